"""A table as data: for the terminal, for the report page, and as Markdown and LaTeX. No torch."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Self

NBSP = "\u00a0"
"""A space at which no line breaks."""
NONE = "–"
"""What a table shows where nothing was measured."""
LATEX = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "σ": r"$\sigma$",
    "α": r"$\alpha$",
    "ε": r"$\varepsilon$",
    "η": r"$\eta$",
    "≥": r"$\ge$",
    "≤": r"$\le$",
    "−": r"$-$",
    "∞": r"$\infty$",
    "·": r"$\cdot$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "→": r"$\to$",
    "½": r"$\frac12$",
    "–": "--",
    NBSP: "~",
    "…": r"\dots{}",
}


@dataclass(frozen=True)
class Column:
    """A column: how to get its value from what a row is about, and how to show it."""

    head: str
    value: Callable[[Any], Any] | None = None
    """For ``Table.of``; None means that nothing was measured."""
    show: Callable[[Any], str] = str
    about: str = ""
    """For radii and distances: which model they cover, and on what they rest."""
    words: bool = False
    """Text, aligned to the left; otherwise numbers."""


@dataclass(frozen=True)
class Table:
    """Rows of values under columns; ``note`` says under which conditions the numbers hold."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""
    key: str = ""
    """The name of its files, and of its place on the page."""

    @classmethod
    def of(cls, title: str, columns: Sequence[Column], items: Iterable[Any]) -> Self:
        """One row per item; columns in which nothing was measured are left out."""
        rows = tuple(tuple(column.value(item) if column.value else None for column in columns) for item in items)
        return cls(title, tuple(columns), rows).without_empty_columns()

    def noted(self, key: str, note: str) -> Self:
        """The table with a key and a note."""
        return replace(self, key=key, note=note)

    @property
    def cells(self) -> list[list[str]]:
        """The text of each cell."""
        return [
            [NONE if value is None else column.show(value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    @property
    def groups(self) -> list[tuple[str, int]]:
        """What neighbouring columns are about, and their number; empty if no column says it."""
        if not any(column.about for column in self.columns):
            return []
        return [(about, len(list(same))) for about, same in groupby(column.about for column in self.columns)]

    def without_empty_columns(self) -> Self:
        """Without the columns in which nothing was measured; the first one stays."""
        cells = self.cells
        kept = [i for i, _ in enumerate(self.columns) if i == 0 or any(row[i] not in (NONE, "") for row in cells)]
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[i] for i in kept), rows=rows)

    def text(self) -> str:
        """For the terminal, as wide as it is; what does not fit continues on the next line."""
        from rich import box
        from rich.console import Console
        from rich.table import Table as Grid
        from rich.text import Text

        console, cells = Console(), self.cells
        names_fit = max((len(row[0]) for row in cells), default=0) <= console.width // 2
        grid = Grid(title=Text(self.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for number, column in enumerate(self.columns):
            left, whole = number == 0 or column.words, number == 0 and names_fit
            grid.add_column(
                Text(column.head), justify="left" if left else "right", no_wrap=whole, overflow="fold"
            )  # nothing is cut off
        for row in cells:
            grid.add_row(*map(Text, row))
        with console.capture() as captured:
            console.print(grid)
        return captured.get()

    def markdown(self) -> str:
        """For a code host; text from files cannot become markup."""
        heads = [_markdown(c.head + (f" ({c.about})" if c.about else "")) for c in self.columns]
        rule = ["---" if c.words else "---:" for c in self.columns]
        lines = [f"**{_markdown(self.title)}**", "", _row(heads), _row(rule)]
        lines += [_row([_markdown(cell) for cell in row]) for row in self.cells]
        return "\n".join(lines + (["", _markdown(self.note)] if self.note else [])) + "\n"

    def latex(self) -> str:
        """For a paper, with booktabs; text from files cannot become a command."""
        aligned = "".join("l" if c.words else "r" for c in self.columns)
        heads = " & ".join(_latex(c.head) for c in self.columns)
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(self.title)}. {_latex(self.note)}}}"]
        lines += [rf"\label{{tab:{self.key}}}", rf"\begin{{tabular}}{{{aligned}}}", r"\toprule"]
        if self.groups:
            spans = (rf"\multicolumn{{{span}}}{{c}}{{\scriptsize {_latex(about)}}}" for about, span in self.groups)
            lines.append(" & ".join(spans) + r" \\")
        lines += [heads + r" \\", r"\midrule"]
        lines += [" & ".join(_latex(cell) for cell in row) + r" \\" for row in self.cells]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    return re.sub(r"([\\|<>*_\[\]`&~])", r"\\\1", text)


def _latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)
