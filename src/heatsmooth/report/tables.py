"""A table as data, and as Markdown and LaTeX. The page's template draws it in HTML."""

import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from heatsmooth.errors import InputError
from heatsmooth.report.values import NBSP, NONE
from heatsmooth.runs import write_atomically

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
    """A column; one of radii or distances says in ``about`` which model they speak of and on what they rest."""

    head: str
    about: str = ""
    words: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of text under columns; ``note`` says what the numbers are conditioned on."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    @property
    def groups(self) -> list[tuple[str, int]]:
        """What neighbouring columns are about, and how many they are; empty if no column says."""
        if not any(column.about for column in self.columns):
            return []
        return [(about, len(list(same))) for about, same in groupby(column.about for column in self.columns)]


def without_empty_columns(table: Table) -> Table:
    """Without the columns in which nothing was measured."""
    kept = [i for i, _ in enumerate(table.columns) if i == 0 or any(row[i] not in (NONE, "") for row in table.rows)]
    return Table(
        table.key,
        table.title,
        tuple(table.columns[i] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in table.rows),
        table.note,
    )


def markdown(table: Table) -> str:
    """The table for a code host; what came from files cannot become markup."""
    heads = [_markdown(c.head + (f" ({c.about})" if c.about else "")) for c in table.columns]
    rule = ["---" if c.words else "---:" for c in table.columns]
    lines = [f"**{_markdown(table.title)}**", "", _row(heads), _row(rule)]
    lines += [_row([_markdown(cell) for cell in row]) for row in table.rows]
    return "\n".join(lines + (["", _markdown(table.note)] if table.note else [])) + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    return re.sub(r"([\\|<>*_\[\]`&~])", r"\\\1", text)


def latex(table: Table) -> str:
    """The table for a paper, with booktabs; what came from files cannot become a command."""
    aligned = "".join("l" if c.words else "r" for c in table.columns)
    heads = " & ".join(_latex(c.head) for c in table.columns)
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(table.title)}. {_latex(table.note)}}}"]
    lines += [rf"\label{{tab:{table.key}}}", rf"\begin{{tabular}}{{{aligned}}}", r"\toprule"]
    if table.groups:
        spans = (rf"\multicolumn{{{span}}}{{c}}{{\scriptsize {_latex(about)}}}" for about, span in table.groups)
        lines.append(" & ".join(spans) + r" \\")
    lines += [heads + r" \\", r"\midrule"]
    lines += [" & ".join(_latex(cell) for cell in row) + r" \\" for row in table.rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


def write_tables(tables: list[Table], directory: Path) -> list[str]:
    """Write each table as ``key.md`` and ``key.tex``; the names of the files."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for table in tables:
            write_atomically(directory / f"{table.key}.md", markdown(table).encode())
            write_atomically(directory / f"{table.key}.tex", latex(table).encode())
    except OSError as error:
        raise InputError(
            f"--tables {directory}: expected a writable directory, got {error.strerror}; name another one"
        ) from None
    return [f"{table.key}.{ending}" for table in tables for ending in ("md", "tex")]
