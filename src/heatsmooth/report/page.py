"""One self-contained HTML page from any mix of run directories and logs. No torch, no network, no model."""

import base64
import hashlib
import json
import re
import time
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from heatsmooth.errors import InputError, require
from heatsmooth.report import audits, compared, figures, results
from heatsmooth.report.calibrated import calibrated_table
from heatsmooth.report.chart import Chart
from heatsmooth.report.collection import Collection
from heatsmooth.report.files import Run
from heatsmooth.report.gallery import walls
from heatsmooth.report.naming import Names, method_of
from heatsmooth.report.pdf import pdf
from heatsmooth.report.sources import read_sources
from heatsmooth.report.svg import drawings
from heatsmooth.report.tables import Table, write_tables
from heatsmooth.report.values import dig, duration, number, one_line, text
from heatsmooth.report.words import summarise
from heatsmooth.runs import write_atomically
from heatsmooth.version import VERSION

COMMANDS = {
    "Certified accuracy and radii": "heatsmooth certify --data D --from RUN --sigma 0.25 --out DIR",
    "Attacks": "heatsmooth attack --data D --from RUN --attack ddn --out DIR",
    "Comparison of methods, training curves": "heatsmooth smooth --data D --from SOURCE --sigma 0.25 --out DIR",
    "Inference time": "heatsmooth compare RECIPE --out DIR",
    "Audit": "heatsmooth audit --data D --from RUN --sigma 0.25 --out DIR",
    "Gallery": "heatsmooth attack --data D --from RUN --attack ddn --out DIR",
}
"""What fills a section that has no data."""


@dataclass
class Section:
    """A part of the page."""

    key: str
    title: str
    intro: str = ""
    charts: list[Chart] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    files: list[Table] = field(default_factory=list)
    """Tables that only papers need: the page shows the same otherwise."""
    always: bool = False


def build_report(
    sources: list[Path], out: Path, *, tables: Path | None = None, title: str | None = None
) -> dict[str, Any]:
    """Write the report to ``out``, and its tables as LaTeX and Markdown into ``tables``; what was read, and what not.

    ``sources``: run directories, directories that hold them (two levels deep), what ``compare`` wrote into
    ``comparison.json``, Cohen's tab-separated logs. An input that cannot be read is named under ``skipped`` with the
    reason, here and on the page, and does not stop the rest.
    """
    collection = read_sources(sources)
    runs_or_logs = collection.runs or collection.certifications or collection.predictions
    readable = bool(runs_or_logs or collection.timings or collection.comparisons)
    unread = "; ".join(f"{note.name}: {note.reason}" for note in collection.notes) or "no sources"
    require(readable, f"expected run directories or logs, got none that can be read ({unread})")
    names = Names(collection)
    sections = _sections(collection, names)
    content = _rendered(collection, names, sections, title or _title(collection))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, content)
    except OSError as error:
        raise InputError(f"--out {out}: expected a writable file, got {error.strerror}; name another one") from None
    shown = [table for section in sections for table in section.tables + section.files]
    written = write_tables(shown, tables) if tables is not None else []
    return {
        "command": "report",
        "out": str(out),
        "bytes": len(content),
        "runs": len(collection.runs),
        "trainings": len(collection.trainings),
        "certifications": len(collection.certifications),
        "attacks": len(collection.attacks),
        "audits": len(collection.audits),
        "predictions": len(collection.predictions),
        "comparisons": len(collection.comparisons),
        "images": sum(len(item.claims) for item in collection.certifications),
        "sections": [section.key for section in sections],
        "figures": [chart.key for section in sections for chart in section.charts],
        "tables": written,
        "skipped": [{"name": note.name, "reason": note.reason} for note in collection.notes if note.skipped],
        "notes": [{"name": note.name, "reason": note.reason} for note in collection.notes if not note.skipped],
    }


def _title(collection: Collection) -> str:
    data = [text(run.info, "settings", "data", "name") for run in collection.runs]
    found = list(dict.fromkeys(_source(name) for name in data if name))
    return f"Robustness on {' and '.join(found[:2])}" if found else "Certified robustness"


def _source(data: str) -> str:
    """What data are called without their kind, folder and split: ``cifar10`` of ``hf:uoft-cs/cifar10:test``."""
    return re.sub(r"[/:](train|test|validation|valid|val)$", "", data.rstrip("/")).split(":")[-1].split("/")[-1]


def _sections(collection: Collection, names: Names) -> list[Section]:
    """The parts of the page that have something to show."""
    probability = figures.probability_chart(collection, names)
    certified = figures.certified_charts(collection, names)
    sections = [
        Section("summary", "Summary", always=True),
        Section(
            "certificates",
            "Certificates",
            "How large a perturbation provably leaves the class of the average as it is.",
            certified + ([probability] if probability else []),
            _there(
                results.accuracy_table(collection, names),
                results.radii_table(collection, names),
                results.predictions_table(collection),
                calibrated_table(collection, names),
            ),
        ),
        Section(
            "attacks",
            "Attacks",
            "How small a perturbation was found that changes the answer: upper bounds, where certificates are lower "
            "ones.",
            figures.attack_charts(collection, names),
            _there(results.distance_table(collection, names), results.attacks_table(collection, names)),
        ),
        Section(
            "methods",
            "Methods compared",
            "",
            [],
            _there(
                results.methods_table(collection),
                compared.means_table(collection.comparisons),
                compared.gains_table(collection.comparisons),
                compared.ratios_table(collection.comparisons),
                results.timing_table(collection),
            ),
        ),
        Section(
            "audit",
            "Audit",
            "Is what the certificates say of the average true of the network in one pass?",
            [],
            _there(audits.audit_table(collection)) if len(collection.audits) > 1 else [],
            _there(audits.audit_table(collection)) if len(collection.audits) == 1 else [],
            always=bool(collection.audits),
        ),
        Section(
            "gallery",
            "Gallery",
            "Clean, noisy and adversarial, each a picture of what the numbers mean.",
            always=bool(collection.galleries),
        ),
        Section("training", "Training", "", figures.training_charts(collection)),
        Section(
            "provenance",
            "Provenance",
            "Where every number comes from.",
            always=bool(collection.runs),
        ),
        Section("inputs", "Inputs and gaps", always=bool(collection.notes) or bool(_absent(collection))),
    ]
    return [section for section in sections if section.always or section.charts or section.tables]


def _there(*tables: Table | None) -> list[Table]:
    return [table for table in tables if table is not None]


def _absent(collection: Collection) -> list[tuple[str, str]]:
    held = {
        "Certified accuracy and radii": collection.certifications,
        "Attacks": collection.attacks,
        "Comparison of methods, training curves": collection.trainings,
        "Inference time": collection.timings,
        "Audit": collection.audits,
        "Gallery": collection.galleries,
    }
    return [(what, command) for what, command in COMMANDS.items() if not held[what]]


def _rendered(collection: Collection, names: Names, sections: list[Section], title: str) -> bytes:
    """The page; everything from files is escaped, and no script but its own may run."""
    here = files("heatsmooth.report")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    script = here.joinpath("page.js").read_text()
    style = here.joinpath("page.css").read_text()
    inputs = len(collection.runs) + len(collection.predictions) + len(collection.comparisons)
    inputs += sum(item.model is None for item in collection.certifications)
    page = environment.from_string(here.joinpath("page.html").read_text()).render(
        title=one_line(title),
        subtitle=f"{inputs} input{'' if inputs == 1 else 's'} · {time.strftime('%d %B %Y', time.gmtime())}",
        skipped=sum(note.skipped for note in collection.notes),
        style=Markup(style),  # noqa: S704 - a file of this package
        script=Markup(script),  # noqa: S704 - a file of this package
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        summary=summarise(collection, names),
        sections=[
            {
                "key": s.key,
                "title": s.title,
                "intro": s.intro,
                "charts": [_drawn(c) for c in s.charts],
                "tables": s.tables,
            }
            for s in sections
        ],
        findings=audits.findings(collection),
        kinds=audits.KINDS,
        walls=walls(collection),
        runs=[_provenance(run, collection) for run in collection.runs],
        notes=collection.notes,
        absent=_absent(collection),
        footer=(
            f"heatsmooth {VERSION}. Radii are L2, for images in [0, 1], and rounded down. This page needs no network; "
            "its figures can be saved above, its numbers as CSV."
        ),
    )
    return (page + "\n").encode("utf-8", errors="replace")


def _drawn(chart: Chart) -> dict[str, Any]:
    return {
        "key": chart.key,
        "title": chart.title,
        "caption": chart.caption,
        "small": chart.small,
        "svg": Markup(drawings(chart)),  # noqa: S704 - names are escaped where they are drawn
        "pdf": "data:application/pdf;base64," + base64.b64encode(pdf(chart)).decode(),
        "x_title": chart.x_title,
        "x_short": chart.x_title.split(",")[0],
        "band": chart.band,
        "series": [{"name": s.name, "style": s.style % 8, "band": s.low is not None} for s in chart.series],
        "rows": [(f"{x:.10g}", name, cells) for x, name, cells in chart.rows()],
    }


HOW = ("device", "processes", "threads", "precision")
"""What a run records about where it was computed."""


def _provenance(run: Run, collection: Collection) -> dict[str, Any]:
    """What ``run.json`` says, for people; what it lacks is left out."""
    info = run.info
    arguments = info.get("arguments")
    command = " ".join(["heatsmooth", *map(str, arguments)]) if isinstance(arguments, list) else None
    hardware = dig(info, "hardware")
    machine = ", ".join(f"{k} {v}" for k, v in hardware.items()) if isinstance(hardware, dict) else None
    versions = dig(info, "versions")
    data = dig(info, "settings", "data")
    described = ", ".join(f"{k} {v}" for k, v in data.items()) if isinstance(data, dict) else None
    maker = next((t for t in collection.trainings if t.run is run), None)
    started, known = text(info, "started"), text(info, "settings", "model")
    facts = [
        ("command", command),
        ("method", method_of(maker)),
        ("status", text(info, "status")),
        ("started", started),
        ("time", None if run.seconds is None else duration(run.seconds)),
        ("parts", str(run.parts) if run.parts > 1 else None),
        ("seed", None if (seed := number(info, "settings", "seed")) is None else f"{seed:.0f}"),
        ("data", described),
        ("model hash", text(info, "model_hash")),
        ("model", None if known == text(info, "model_hash") else known),
        ("teacher", text(info, "settings", "teacher")),
        ("commit", text(info, "commit")),
        ("versions", ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, dict) else None),
        ("hardware", machine),
        (
            "finished on",
            ", ".join(f"{key} {info[key]}" for key in HOW if key in info and "device" in info),
        ),
        ("directory", str(run.path)),
    ]
    line = " · ".join(part for part in (run.command, started, duration(run.seconds)) if part)
    settings = json.dumps(info.get("settings"), indent=1, ensure_ascii=False, default=str)
    return {
        "name": run.name,
        "line": line,
        "facts": [(name, one_line(value, 1000)) for name, value in facts if value],
        "settings": settings if len(settings) <= 6000 else settings[:6000] + "…",
    }
