"""The page of a board, its table as CSV, and what both show. No torch, no network, no model, no date."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from heatsmooth.errors import InputError, require
from heatsmooth.reporting.board.entries import AVERAGE, Entry, check_choices, read_entries, samples_text
from heatsmooth.reporting.board.groups import DataSet, Row, by_data
from heatsmooth.reporting.chart import Chart, Series, grid, nice_limit
from heatsmooth.reporting.collection import Note
from heatsmooth.reporting.formats import one_line, plain
from heatsmooth.reporting.probabilities import BAND, QUARTERS_NOTE, WHY, quartiles
from heatsmooth.reporting.templates import script, style, templates
from heatsmooth.results.schema import Json
from heatsmooth.runs import write_atomically
from heatsmooth.statistics.accuracy import distribution_band, empirical_distribution
from heatsmooth.statistics.bounds import Floats
from heatsmooth.version import VERSION

POINTS = 200
"""Of a curve."""
SPARK: Floats = np.linspace(0.5, 1, 41)
"""Below ½ there is no radius."""
SPARK_SIZE = (80, 26)


@dataclass(frozen=True, kw_only=True)
class BoardRow:
    """One log or run as the board shows it."""

    name: str
    source: str
    data: str
    about: str
    """Which model the radii cover, and on what they rest."""
    sigma: float | None
    images: int
    n: int | None
    """None where a log does not state it."""
    alpha: float | None
    certified_accuracy: dict[str, tuple[float, float, float]]
    """By radius: the share, and its 95 % interval; without radii beyond what n and α allow."""
    average_certified_radius: float
    p_a_quartiles: tuple[float, float, float] | None
    """Of the lower bounds of p_A; None where σ is not known."""
    drawn: bool
    """Whether it is drawn, and in the envelope, when the page opens."""
    remarks: list[str]


@dataclass(frozen=True, kw_only=True)
class BoardResult:
    """What was written and what it shows."""

    command: str = "board"
    out: str
    bytes: int
    table: str
    """The CSV file."""
    rows: list[BoardRow]
    skipped: list[Note]
    notes: list[Note]

    def to_json(self) -> Json:
        """For ``--json``."""
        remarks = {"skipped": self.skipped, "notes": self.notes}
        named = {key: [{"name": note.name, "reason": note.reason} for note in held] for key, held in remarks.items()}
        return asdict(self) | named


def build_board(
    sources: Sequence[Path], out: Path, *, n: int | None = None, alpha: float = 0.001, title: str | None = None
) -> BoardResult:
    """Write one page that compares the certified accuracy of published logs and of runs, and say what was read.

    The same inputs give the same page. An input that cannot be read is named in ``skipped`` with the reason, here and
    on the page. It does not stop the rest.

    - ``sources``: tab-separated certification logs, certified runs, and folders of both at any depth.
    - ``out``: a directory for ``board.html`` and ``board.csv``, or the name of the page, ending in .html.
    - ``n``, ``alpha``: runs are recomputed from their counts for them; None: the smallest n of the runs about the same
      data.
    - ``title``: of the page.
    """
    check_choices(n, alpha)
    entries, notes = read_entries(sources)
    _check_read(entries, notes)
    data = by_data(entries, n=n, alpha=alpha)
    odd_rows = [note for one in data for row in one.rows for note in odd(row)]
    page = out if out.suffix == ".html" else out / "board.html"
    content = _rendered(data, notes + odd_rows, alpha, title or "Certified accuracy, log by log")
    rows = [board_row(one, row) for one in data for row in one.rows]
    table = page.with_suffix(".csv")
    _write({page: content, table: table_text(rows).encode()}, out)
    return BoardResult(
        out=str(page),
        bytes=len(content),
        table=str(table),
        rows=rows,
        skipped=notes,
        notes=odd_rows,
    )


def _check_read(entries: Sequence[Entry], notes: Sequence[Note]) -> None:
    """Refuse sources without anything to compare."""
    unread = "; ".join(f"{note.name}: {note.reason}" for note in notes[:3]) or "no sources"
    require(bool(entries), f"expected certification logs or certified runs, got none that can be read ({unread})")


def _write(files: dict[Path, bytes], out: Path) -> None:
    """Write each file whole, or say in one line why not."""
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
    except OSError as error:
        raise InputError(
            f"`out` {out}: expected a writable directory, got {error.strerror}; name another one"
        ) from None


def odd(row: Row) -> list[Note]:
    """What is said of a row by name: that it is truncated, or that its file is odd."""
    reasons = [*([] if row.drawn else [row.images]), *row.entry.remarks]
    return [Note("/".join(row.entry.parts), text, skipped=False) for text in reasons]


def board_row(data: DataSet, row: Row) -> BoardRow:
    """A row with its figures."""
    entry = row.entry
    p_a = entry.p_a
    return BoardRow(
        name=row.name,
        source=str(entry.path),
        data=data.name,
        about=entry.about,
        sigma=entry.sigma,
        images=len(entry.claims),
        n=entry.n,
        alpha=entry.alpha,
        certified_accuracy={
            plain(r): three for r, three in zip(data.radii, row.at(data.radii), strict=True) if three is not None
        },
        average_certified_radius=row.acr,
        p_a_quartiles=None if p_a is None else quartiles(p_a),
        drawn=row.drawn,
        remarks=row.remarks,
    )


def table_text(rows: Iterable[BoardRow]) -> str:
    """All rows as CSV, with every digit; empty where nothing is known."""
    rows = list(rows)
    radii = sorted({radius for row in rows for radius in row.certified_accuracy}, key=float)
    at = [f"r {radius}{end}" for radius in radii for end in ("", ", low", ", high")]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    heads = ["data", "name", "about", "sigma", "images", "n", "alpha", *at, "ACR"]
    writer.writerow([*heads, "p_A 25 %", "p_A 50 %", "p_A 75 %", "drawn", "remarks", "source"])
    for row in rows:
        shares = [value for r in radii for value in row.certified_accuracy.get(r, (None, None, None))]
        facts = [row.data, row.name, row.about, row.sigma, row.images, row.n, row.alpha]
        p_a = row.p_a_quartiles or (None, None, None)
        last = [row.average_certified_radius, *p_a, int(row.drawn), "; ".join(row.remarks), row.source]
        writer.writerow([_safe(value) for value in (*facts, *shares, *last)])
    return file.getvalue()


def _safe(value: object) -> object:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "@", "\t", "-")) else value


def envelope_chart(data: DataSet) -> Chart:
    """The envelope of each group, drawn over its rows."""
    at = grid(max(data.largest, 0.05), POINTS)

    def series(name: str, style: int, key: str, share: Floats, role: Literal["faint", "envelope"]) -> Series:
        last = int((share > 0).sum()) + 1
        return Series(name, style, at[:last], share[:last], role=role, key=key)

    faint = [
        series(row.name, style, row.key, row.entry.claims.certified_accuracy(at), "faint")
        for style, group in enumerate(data.groups)
        for row in group.rows
        if row.drawn
    ]
    best = [
        series(group.name, style, group.key, group.envelope(at), "envelope") for style, group in enumerate(data.groups)
    ]
    highest = max(float(one.y.max()) for one in best)
    return Chart(
        key=data.key,
        title="Envelope: the best row at each radius",
        caption=(
            "Thick: the largest certified accuracy of all rows of a noise level that are switched on. Thin: those "
            "rows. The envelope picks the best of many rows on the same images. So it is a little too optimistic, and "
            "has no interval."
        ),
        x_title="L2 radius r, images in [0, 1]",
        y_title="certified accuracy",
        series=(*faint, *best),
        x_max=float(at[-1]) * 1.02,
        y_max=min(1.0, nice_limit(highest)),
        shape="step",
        percent=True,
    )


def curves(data: DataSet) -> Json:
    """What the script draws from: the radii, and per row how many images are certified there."""
    at = grid(max(data.largest, 0.05), POINTS)

    def counts(row: Row) -> list[int]:
        claims = row.entry.claims
        certified = (claims.certified_accuracy(at) * len(claims)).round().astype(int)
        return [int(value) for value in certified[: int((certified > 0).sum()) + 1]]

    rows = {row.key: {"m": len(row.entry.claims), "k": counts(row)} for row in data.rows}
    return {"x": [float(f"{x:.6g}") for x in at], "rows": rows}


def spark(values: Floats) -> tuple[str, str]:
    """The distribution of p_A from ½ to 1 as two paths in a box of ``SPARK_SIZE``: the band and the line."""
    width, height = SPARK_SIZE
    low, high = distribution_band(values, SPARK, alpha=BAND)

    def path(shares: Floats) -> list[str]:
        return [
            f"{(2 * x - 1) * width:.0f} {height * (1 - y):.1f}"
            for x, y in zip(SPARK.tolist(), shares.tolist(), strict=True)
        ]

    band = "M" + "L".join(path(high) + path(low)[::-1]) + "z"
    return band, "M" + "L".join(path(empirical_distribution(values, SPARK)))


def _rendered(data: list[DataSet], notes: list[Note], alpha: float, title: str) -> bytes:
    rows = sum(len(one.rows) for one in data)
    images = sum(len(row.entry.claims) for one in data for row in one.rows)
    return (
        templates()
        .get_template("board.html")
        .render(
            title=one_line(title),
            data=data,
            rows=rows,
            images=images,
            charts={one.key: envelope_chart(one) for one in data},
            curves={one.key: curves(one) for one in data},
            spark=spark,
            spark_size=SPARK_SIZE,
            quartiles=quartiles,
            samples=lambda entry: samples_text(entry, alpha),
            average=AVERAGE,
            best=best_of_all,
            alpha=alpha,
            explained=f"{QUARTERS_NOTE} {WHY}",
            notes=notes,
            style=style("parts.css", "page.css", "board.css"),
            version=VERSION,
            **script("parts.js", "board.js"),
        )
        + "\n"
    ).encode("utf-8", errors="replace")


def best_of_all(data: DataSet) -> list[float]:
    """The envelope over all noise levels, at the fixed radii."""
    averages = [group.envelope(data.radii) for group in data.groups if group.about == AVERAGE]
    best: list[float] = np.max(averages, axis=0).tolist() if averages else []
    return best
