"""One self-contained HTML page from any mix of run directories and logs. No torch, no network, no model."""

import base64
import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from heatsmooth.errors import InputError, require
from heatsmooth.reporting.attack_tables import attacks_table, distance_table
from heatsmooth.reporting.audits import agreement_table, audit_table, proof_audit_table
from heatsmooth.reporting.certificate_tables import (
    accuracy_table,
    calibrated_table,
    predictions_table,
    proven_table,
    radii_table,
    under_attack_table,
)
from heatsmooth.reporting.chart import Chart
from heatsmooth.reporting.claims import claims_table, rates_table, timesteps_table, trades_table
from heatsmooth.reporting.collection import Collection, Note
from heatsmooth.reporting.compared import gains_table, means_table, proven_means_table, ratios_table
from heatsmooth.reporting.figures import attack_charts, certified_charts, probability_charts, training_charts
from heatsmooth.reporting.formats import one_line
from heatsmooth.reporting.frontiers import frontier_charts, frontier_tables
from heatsmooth.reporting.gallery import picture_groups
from heatsmooth.reporting.guarantees import guarantees_charts, guarantees_table
from heatsmooth.reporting.method_tables import methods_table, timing_table
from heatsmooth.reporting.naming import Names
from heatsmooth.reporting.pdf import pdf
from heatsmooth.reporting.probabilities import median_p_a
from heatsmooth.reporting.sources import read_sources
from heatsmooth.reporting.summary import RHO, MainModel, most_false
from heatsmooth.reporting.templates import script, style, templates
from heatsmooth.results.schema import Json
from heatsmooth.runs import write_atomically
from heatsmooth.table import Table
from heatsmooth.version import VERSION


@dataclass
class Section:
    """A part of the page."""

    key: str
    title: str
    intro: str = ""
    charts: list[Chart] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    only_files: list[Table] = field(default_factory=list)
    """Tables for papers, of what the page shows otherwise."""
    always: bool = False


@dataclass(frozen=True, kw_only=True)
class ReportFile:
    """What was written."""

    command: str = "report"
    out: str
    bytes: int
    tables: list[str]
    """Files of tables."""


@dataclass(frozen=True, kw_only=True)
class ReportResult(ReportFile):
    """What was written, what it was made from, and what it shows."""

    runs: int
    trainings: int
    certifications: int
    attacks: int
    audits: int
    predictions: int
    comparisons: int
    images: int
    """Certified images."""
    sections: list[str]
    figures: list[str]
    skipped: list[Note]
    notes: list[Note]

    def to_json(self) -> Json:
        """For ``--json``."""
        remarks = {"skipped": self.skipped, "notes": self.notes}
        named = {key: [{"name": note.name, "reason": note.reason} for note in held] for key, held in remarks.items()}
        return asdict(self) | named


def build_report(
    sources: list[Path], out: Path, *, tables: Path | None = None, title: str | None = None
) -> ReportResult:
    """Write the report, and say what was read.

    An input that cannot be read is named in ``skipped`` with the reason, here and on the page. It does not stop the
    rest.

    - ``sources``: run directories, directories that hold them (two levels deep), ``comparison.json`` files, and Cohen's
      tab-separated logs.
    - ``out``: the HTML file to write.
    - ``tables``: a directory for the tables as LaTeX and Markdown.
    - ``title``: of the page; by default it names the data.
    """
    collection = read_sources(sources)
    unread = "; ".join(f"{note.name}: {note.reason}" for note in collection.notes) or "no sources"
    require(collection.inputs > 0, f"expected run directories or logs, got none that can be read ({unread})")
    names = Names(collection)
    sections = _sections(collection, names)
    content = _rendered(collection, names, sections, title or _title(collection))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, content)
    except OSError as error:
        raise InputError(f"`out` {out}: expected a writable file, got {error.strerror}; name another one") from None
    all_tables = [table for section in sections for table in section.tables + section.only_files]
    written = [] if tables is None else _write_tables(all_tables, tables)
    return _result(collection, sections, ReportFile(out=str(out), bytes=len(content), tables=written))


def _result(collection: Collection, sections: list[Section], file: ReportFile) -> ReportResult:
    return ReportResult(
        **vars(file),
        runs=len(collection.runs),
        trainings=len(collection.trainings),
        certifications=len(collection.certifications),
        attacks=len(collection.attacks),
        audits=len(collection.audits) + len(collection.agreement_audits) + len(collection.proof_audits),
        predictions=len(collection.predictions),
        comparisons=len(collection.comparisons),
        images=sum(len(item.claims) for item in collection.certifications),
        sections=[section.key for section in sections],
        figures=[chart.key for section in sections for chart in section.charts],
        skipped=collection.skipped,
        notes=[note for note in collection.notes if not note.skipped],
    )


def _write_tables(tables: Iterable[Table], directory: Path) -> list[str]:
    """Write each table as ``key.md`` and ``key.tex``; the names of the files."""
    written = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for table in tables:
            for ending, content in (("md", table.markdown()), ("tex", table.latex())):
                write_atomically(directory / f"{table.key}.{ending}", content.encode())
                written.append(f"{table.key}.{ending}")
    except OSError as error:
        raise InputError(
            f"`tables` {directory}: expected a writable directory, got {error.strerror}; name another one"
        ) from None
    return written


def _title(collection: Collection) -> str:
    names = [run.info.chosen.data.name for run in collection.runs]
    sources = list(dict.fromkeys(_data_source(one_line(name)) for name in names if name))
    return f"Robustness on {' and '.join(sources[:2])}" if sources else "Certified robustness"


def _data_source(data: str) -> str:
    """The name of data without its kind, folder and split: ``cifar10`` for ``hf:uoft-cs/cifar10:test``."""
    return re.sub(r"[/:](train|test|validation|valid|val)$", "", data.rstrip("/")).split(":")[-1].split("/")[-1]


def _sections(collection: Collection, names: Names) -> list[Section]:
    """The parts of the page that have something to show."""
    audits, several_audits = _present(audit_table(collection)), len(collection.audits) > 1
    sections = [
        Section("summary", "Summary", always=True),
        Section(
            "frontier",
            "Frontier",
            "What robustness costs this network: the fewer of its answers are kept, the more is certified.",
            frontier_charts(collection.frontiers),
            frontier_tables(collection.frontiers),
        ),
        _certificates(collection, names),
        _guarantees(collection, names),
        Section(
            "attacks",
            "Attacks",
            "The smallest perturbations found that change the class. They are upper bounds; certificates are lower "
            "bounds.",
            attack_charts(collection, names),
            _present(distance_table(collection, names), attacks_table(collection, names)),
        ),
        Section(
            "claims",
            "The paper's claims",
            "What the paper states beside what was measured here.",
            tables=_present(claims_table(collection.comparisons), timesteps_table(collection.comparisons)),
        ),
        Section(
            "methods",
            "Methods compared",
            tables=_present(
                methods_table(collection),
                means_table(collection.comparisons),
                proven_means_table(collection.comparisons),
                trades_table(collection.comparisons),
                gains_table(collection.comparisons),
                ratios_table(collection.comparisons),
                rates_table(collection.comparisons),
                timing_table(collection),
            ),
        ),
        Section(
            "audit",
            "Audit",
            "Do the certificates of the average also hold for the network in one pass?"
            if collection.audits or collection.agreement_audits
            else "Do attacks find anything against the deterministic radii?",
            tables=[
                *(audits if several_audits else []),
                *_present(agreement_table(collection), proof_audit_table(collection)),
            ],
            only_files=[] if several_audits else audits,
            always=bool(collection.audits),
        ),
        Section(
            "gallery",
            "Gallery",
            "Images as they are, with noise, and after an attack.",
            always=bool(collection.galleries),
        ),
        Section("training", "Training", charts=training_charts(collection)),
        Section("provenance", "Provenance", "Where every number comes from.", always=bool(collection.runs)),
        Section("inputs", "Inputs and gaps", always=bool(collection.notes) or bool(_absent(collection))),
    ]
    return [section for section in sections if section.always or section.charts or section.tables]


def _certificates(collection: Collection, names: Names) -> Section:
    return Section(
        "certificates",
        "Certificates",
        "How large a perturbation provably does not change the class of the average"
        + (", or of the network itself." if collection.proven else "."),
        certified_charts(collection, names) + probability_charts(collection, names),
        _present(
            accuracy_table(collection, names),
            radii_table(collection, names),
            predictions_table(collection),
            calibrated_table(collection, names),
            under_attack_table(collection, names),
            proven_table(collection, names),
        ),
    )


def _guarantees(collection: Collection, names: Names) -> Section:
    return Section(
        "guarantees",
        "Kinds of guarantee",
        "What each kind of guarantee costs and gives.",
        guarantees_charts(collection, names),
        _present(guarantees_table(collection, names)),
    )


def _present(*tables: Table | None) -> list[Table]:
    return [table for table in tables if table is not None]


def _absent(collection: Collection) -> list[tuple[str, str]]:
    """What the report lacks, with the command that adds it."""
    certify = "heatsmooth certify --data D --from RUN --sigma 0.25 --out DIR"
    attack = "heatsmooth attack --data D --from RUN --attack ddn --out DIR"
    smooth = "heatsmooth smooth --data D --from SOURCE --sigma 0.25 --out DIR"
    kinds = [
        (collection.certifications, "Certified accuracy and radii", certify),
        (collection.attacks, "Attacks", attack),
        (collection.trainings, "Comparison of methods, training curves", smooth),
        (collection.timings, "Inference time", "heatsmooth compare RECIPE --out DIR"),
        (
            collection.audits or collection.agreement_audits or collection.proof_audits,
            "Audit",
            "heatsmooth audit --data D --from RUN --sigma 0.25 --out DIR",
        ),
        (collection.galleries, "Gallery", attack),
    ]
    return [(what, command) for present, what, command in kinds if not present]


def _rendered(collection: Collection, names: Names, sections: list[Section], title: str) -> bytes:
    """The page; all text from files is escaped, and no other script than its own can run."""
    inputs = collection.inputs
    page = (
        templates()
        .get_template("page.html")
        .render(
            title=one_line(title),
            subtitle=f"{inputs} input{'' if inputs == 1 else 's'} · {time.strftime('%d %B %Y', time.gmtime())}",
            skipped=len(collection.skipped),
            style=style("parts.css", "page.css"),
            **script("parts.js", "page.js"),
            collection=collection,
            model=MainModel.of(collection, names),
            most_false=most_false,
            median_p_a=median_p_a,
            rho=RHO,
            sections=sections,
            pdf=lambda chart: "data:application/pdf;base64," + base64.b64encode(pdf(chart)).decode(),
            galleries=picture_groups(collection),
            methods={training.name: training.method for training in collection.trainings},
            absent=_absent(collection),
            version=VERSION,
        )
    )
    return (page + "\n").encode("utf-8", errors="replace")
