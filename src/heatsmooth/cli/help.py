"""Help on one screen: the options one needs explained, the others named; ``--help-all`` explains them all."""

import inspect
import re
import textwrap
from typing import Any

from typer.core import TyperCommand, TyperOption

FILES, NETWORK, OBJECTIVE, OPTIMISATION, RUNNING = "Image files", "Network", "Objective", "Optimisation", "Running"
NAMED_ONLY = (FILES, NETWORK, OBJECTIVE, OPTIMISATION, RUNNING)
"""Groups of options that most people leave alone."""


class Command(TyperCommand):
    """A command whose docstring ends in a line ``Example: …``, shown so that it can be copied."""

    explain_all = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take ``--help-all`` for ``--help``, and notice it."""
        self.explain_all = "--help-all" in args
        return super().parse_args(ctx, ["--help" if word == "--help-all" else word for word in args])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The options one must give, then the rest."""
        required = [p for p in self.params if isinstance(p, TyperOption) and p.required]
        must = [f"{p.opts[0]} {p.display_type_rich(ctx)}" for p in required]
        return [*must, *super().collect_usage_pieces(ctx)]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  # typer's signature
        """What it does, and the example with its lines joined by backslashes."""
        text, _, example = inspect.cleandoc(self.help or "").partition("Example: ")
        formatter.write_paragraph()
        formatter.write_text(" ".join(text.split()))
        if example:
            room = formatter.width - 8
            whole = re.sub(r" (?!-)", "\N{NO-BREAK SPACE}", " ".join(example.split()))
            lines = textwrap.wrap(whole, room, break_on_hyphens=False, break_long_words=False)
            formatter.write("\n  " + " \\\n      ".join(lines).replace("\N{NO-BREAK SPACE}", " ") + "\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Each option explained in its group, except those of ``NAMED_ONLY``, which are listed at the end."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                name, text = record
                group = getattr(parameter, "rich_help_panel", None) or "Options"
                groups.setdefault(group, []).append((name, text.replace("  [required]", "")))
        named = [] if self.explain_all else [group for group in NAMED_ONLY if group in groups]
        for group, records in groups.items():
            if group not in named:
                with formatter.section(group):
                    formatter.write_dl(records)
        if named:
            with formatter.section("More, explained by --help-all"):
                for group in named:
                    names = " ".join(record[0].split()[0] for record in groups[group])
                    lines = textwrap.wrap(names, formatter.width - 16, break_on_hyphens=False)
                    formatter.write(f"  {group:14}" + ("\n" + 16 * " ").join(lines) + "\n")
