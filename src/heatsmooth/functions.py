"""Commands as Python functions: comparisons, reports and boards in one call."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from heatsmooth.progress import Progress, silent

if TYPE_CHECKING:
    from heatsmooth.reporting.board.page import BoardResult
    from heatsmooth.reporting.page import ReportResult
    from heatsmooth.results.comparison import Comparison


def compare(
    recipe: str,
    *,
    out: Path | str | None = None,
    data_root: Path | str | None = None,
    seeds: Sequence[int] = (0,),
    methods: Sequence[str] | None = None,
    rehearse: bool = False,
    device: str | None = None,
    progress: Progress = silent,
) -> "Comparison | None":
    """Make, certify, attack, time and audit every method of a recipe, and report; repeating the call continues it.

    ``recipe``: ``cifar10``, ``imagenet``, ``cifar10-small``, ``cifar10-paper``, ``cifar10-public``, ``fashion-small``
    or ``imagenet-sample``.
    ``out``: directory of all runs (default: the name of the recipe). ``data_root``: directory of the files of a data
    set. ``seeds``: mean and spread are over them. ``methods``: compare only these. ``rehearse``: run all stages on a
    few images. ``device``: ``cpu``, ``cuda``, …; None: the accelerator if there is one.
    More changes to a recipe: ``heatsmooth.commands.compare.Compare``. None in a process that follows another.
    """
    from heatsmooth.commands.compare import Compare, RecipeChanges

    return Compare(
        recipe=recipe,
        out=None if out is None else Path(out),
        data_root=None if data_root is None else Path(data_root),
        seeds=tuple(seeds),
        changes=RecipeChanges(methods=None if methods is None else tuple(methods)),
        rehearse=rehearse,
        device=device,
    ).run(progress)


def report(
    sources: Iterable[Path | str],
    out: Path | str = "report.html",
    *,
    tables: Path | str | None = None,
    title: str | None = None,
) -> "ReportResult":
    """Write one self-contained HTML page about any mix of run directories and Cohen-style logs.

    ``sources``: run directories, folders of them, comparisons, and TSV logs. ``out``: the page. ``tables``: a directory
    for LaTeX and Markdown tables. ``title``: of the page. Returns what was read, and what could not be.
    """
    from heatsmooth.commands.report import Report

    return Report(
        sources=tuple(map(Path, sources)), out=Path(out), tables=None if tables is None else Path(tables), title=title
    ).run()


def board(
    sources: Iterable[Path | str],
    out: Path | str = "board",
    *,
    n: int | None = None,
    alpha: float = 0.001,
    title: str | None = None,
) -> "BoardResult":
    """Write one sortable HTML page that compares certified accuracy, from published logs and own runs.

    ``sources``: certification logs, certified runs, and folders of both. ``out``: a directory for ``board.html`` and
    ``board.csv``, or a page ending in .html. ``n``, ``alpha``: runs are recomputed from their counts for these; without
    ``n``, for the smallest number of samples of a run about the same data. ``title``: of the page. Returns the rows
    with their figures, and what could not be read.
    """
    from heatsmooth.commands.board import Board

    return Board(sources=tuple(map(Path, sources)), out=Path(out), n=n, alpha=alpha, title=title).run()
