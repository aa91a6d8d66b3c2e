"""``heatsmooth report``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from heatsmooth.cli import options as o


def report(
    *,
    sources: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Run directories, folders of them, comparisons, and TSV logs.")
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    tables: Annotated[Path | None, typer.Option(help="Also write LaTeX and Markdown tables here.")] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    as_json: o.Json = False,
) -> None:
    """Make one self-contained HTML page from any mix of run directories and Cohen-style logs; no model needed.

    Example: heatsmooth report runs --out report.html
    """
    from heatsmooth.report import build_report

    found = build_report(sources, out, tables=tables, title=title)
    if as_json:
        typer.echo(json.dumps(found))
        return
    for entry in (*found["skipped"], *found["notes"]):
        typer.echo(f"{entry['name']}: {entry['reason']}", err=True)
    typer.echo(f"{out}: {found['runs']} runs and logs, {found['bytes'] / 1e6:.1f} MB")
