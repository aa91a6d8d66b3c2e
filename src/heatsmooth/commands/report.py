"""``heatsmooth report``."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatsmooth.commands.command import Command
from heatsmooth.progress import Progress, silent

if TYPE_CHECKING:
    from heatsmooth.reporting.page import ReportResult


@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Make one self-contained HTML page from any mix of run directories and Cohen-style logs, without the networks.

    Example: heatsmooth report runs --out report.html
    """

    sources: tuple[Path, ...] = field(metadata={"positional": True, "flag": "DIR…"})
    """Run directories, folders of them, comparisons, and TSV logs."""
    out: Path = Path("report.html")
    """The page to write."""
    tables: Path | None = None
    """Also write LaTeX and Markdown tables into this directory."""
    title: str | None = None
    """Title of the page."""

    def run(self, progress: Progress = silent) -> "ReportResult":  # noqa: ARG002  # it takes no time
        """Read the sources and write the page."""
        from heatsmooth.reporting import build_report

        return build_report(list(self.sources), self.out, tables=self.tables, title=self.title)

    def show(self, result: Any) -> None:
        """Print what was read, and on standard error what was not."""
        for note in (*result.skipped, *result.notes):
            print(f"{note.name}: {note.reason}", file=sys.stderr)
        print(f"{self.out}: {result.runs} runs and logs, {result.bytes / 1e6:.1f} MB")
