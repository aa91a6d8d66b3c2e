"""``heatsmooth board``."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatsmooth.commands.command import Command
from heatsmooth.progress import Progress, silent

if TYPE_CHECKING:
    from heatsmooth.reporting.board.page import BoardResult


@dataclass(frozen=True, kw_only=True)
class Board(Command):
    """Compare published certification logs and own runs on one sortable page, grouped by data and noise level.

    Example: heatsmooth board logs runs --out board
    """

    sources: tuple[Path, ...] = field(metadata={"positional": True, "flag": "LOG|DIR…"})
    """Certification logs, certified runs, and folders of both."""
    out: Path = Path("board")
    """Directory for board.html and board.csv, or a page ending in .html."""
    n: int | None = None
    """Samples per image that runs are recomputed for (default: the smallest number about the same data). Runs with
    fewer stay as they are. Logs have no counts and stay as they are."""
    alpha: float = 0.001
    """Largest probability that a recomputed certificate is false."""
    title: str | None = None
    """Title of the page."""

    def run(self, progress: Progress = silent) -> "BoardResult":  # noqa: ARG002  # it takes seconds
        """Read the sources and write the page."""
        from heatsmooth.reporting.board import build_board

        return build_board(list(self.sources), self.out, n=self.n, alpha=self.alpha, title=self.title)

    def show(self, result: Any) -> None:
        """Print what was written, and on standard error what was unusual or left out."""
        for note in (*result.skipped, *result.notes):
            print(f"{note.name}: {note.reason}", file=sys.stderr)
        images = sum(row.images for row in result.rows)
        print(f"{result.out}: {len(result.rows)} logs and runs, {images:,} images, {result.bytes / 1e6:.1f} MB")
