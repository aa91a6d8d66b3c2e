"""Find and read run directories, logs, timings and comparisons. No model is needed, and no input stops another."""

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar
from zipfile import BadZipFile

from heatsmooth.certification.settings import Settings
from heatsmooth.errors import InputError, first_line, require
from heatsmooth.reporting.collection import (
    AttackRun,
    AuditedModel,
    AuditedProofs,
    Calibrated,
    Certification,
    Collection,
    Note,
    PredictionLog,
    Proven,
    ReportedRun,
    Training,
)
from heatsmooth.reporting.formats import one_line
from heatsmooth.reporting.gallery import read_gallery
from heatsmooth.results.agreement_audit import AgreementAudit
from heatsmooth.results.attacks import AttackResults
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.comparison import COMPARISON_FILE, TIMING_FILE, Comparison, Timing
from heatsmooth.results.deterministic import SETTINGS, NetworkCertificates
from heatsmooth.results.frontier import FRONTIER_FILE, FrontierResult
from heatsmooth.results.guarantees import BasisKind, Subject
from heatsmooth.results.logs import named_sigma, read_log_columns
from heatsmooth.results.metrics import read_metrics
from heatsmooth.results.one_pass import read_one_pass
from heatsmooth.results.proof_audit import ProofAudit, read_audit
from heatsmooth.results.radii import Radii, radii_of
from heatsmooth.results.run_info import RunInfo

AnyRadii = TypeVar("AnyRadii", bound=Radii)
LEVELS = ("", "*/", "*/*/")
"""A source is searched this deep."""
UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    OSError,
    EOFError,
    RuntimeError,
    MemoryError,
    BadZipFile,
    zlib.error,
)
"""What reading a damaged file may raise."""
FARTHEST = 1e6
"""No σ or radius, L2 with pixels in [0, 1], is larger: it would be the diagonal of 10¹² pixels."""


class Kind(StrEnum):
    """The kinds of input, by the names of their files; read in this order."""

    RUN = "run*.json"
    LOG = "*.tsv"
    TIMING = TIMING_FILE
    COMPARISON = COMPARISON_FILE
    FRONTIER = FRONTIER_FILE


@dataclass(frozen=True)
class Source:
    """An input, under the shortest name that no other input of the report has."""

    kind: Kind
    name: str
    path: Path


def read_sources(paths: Iterable[Path]) -> Collection:
    """Read everything that can be read; ``notes`` name what cannot."""
    sources, notes = find(paths)
    collection = Collection(notes=notes)
    readers = {
        Kind.RUN: _read_run,
        Kind.LOG: _read_log,
        Kind.TIMING: lambda source, into: into.timings.append((source.name, Timing.read(source.path))),
        Kind.COMPARISON: lambda source, into: into.comparisons.append((source.name, Comparison.read(source.path))),
        Kind.FRONTIER: lambda source, into: into.frontiers.append((source.name, FrontierResult.read(source.path))),
    }
    for source in sources:
        _attempt(readers[source.kind], source, collection)
    collection.sort()
    return collection


def find(paths: Iterable[Path]) -> tuple[list[Source], list[Note]]:
    """The inputs among the paths and two levels below them, each once, and notes on paths that have none.

    A log inside a run directory repeats its certificates. It is read only if it is named itself.
    """
    found: dict[tuple[Kind, Path], None] = {}
    notes = []
    for path in paths:
        if path.is_file():
            kind = {COMPARISON_FILE: Kind.COMPARISON, FRONTIER_FILE: Kind.FRONTIER}.get(path.name, Kind.LOG)
            found[kind, path.resolve()] = None
        elif path.is_dir():
            below = _below(path)
            found |= dict.fromkeys(below)
            if not below:
                lacking = "expected run directories, a comparison or .tsv logs, got a directory with none"
                notes.append(Note(str(path), lacking))
        else:
            notes.append(Note(str(path), "expected a run directory or a log, got nothing; check the path"))
    return _named(found), notes


def _named(found: Iterable[tuple[Kind, Path]]) -> list[Source]:
    """The inputs by kind; a timing or comparison has the name of its directory."""
    owners = {(kind, path): path if kind in (Kind.RUN, Kind.LOG) else path.parent for kind, path in found}
    in_order = sorted(owners, key=lambda key: list(Kind).index(key[0]))
    names = short_names(owners[key] for key in in_order)
    return [Source(kind, names[owners[kind, path]], path) for kind, path in in_order]


def _below(directory: Path) -> list[tuple[Kind, Path]]:
    """The inputs in a directory and two levels below it."""
    files = {kind: _files(directory, kind) for kind in Kind}
    runs = dict.fromkeys(file.parent for file in files[Kind.RUN])
    files |= {Kind.RUN: list(runs), Kind.LOG: [file for file in files[Kind.LOG] if file.parent not in runs]}
    return [(kind, path) for kind, paths in files.items() for path in paths]


def _files(directory: Path, pattern: str) -> list[Path]:
    try:
        files = [file for level in LEVELS for file in sorted(directory.glob(level + pattern))]
    except OSError:
        return []
    visible = (f for f in files if not any(part.startswith(".") for part in f.relative_to(directory).parts))
    return [file.resolve() for file in visible]


def short_names(paths: Iterable[Path]) -> dict[Path, str]:
    """The shortest end of each path that no other path has; without .tsv.

    >>> list(short_names([Path("/a/x/s.tsv"), Path("/a/y/s.tsv"), Path("/b/t")]).values())
    ['x/s', 'y/s', 't']
    """
    unique = list(dict.fromkeys(paths))
    ends = {path: [*path.parts[:-1], path.name.removesuffix(".tsv")] for path in unique}
    names: dict[Path, str] = {}
    for path in unique:
        for length in range(1, len(ends[path]) + 1):
            end = ends[path][-length:]
            if sum(other[-length:] == end for other in ends.values()) == 1:
                break
        names[path] = one_line("/".join(end), 120) or "?"
    return names


def _attempt(read: Callable[[Source, Collection], None], source: Source, collection: Collection) -> None:
    try:
        read(source, collection)
    except UNREADABLE as error:
        collection.notes.append(Note(source.name, reason(error, source.path)))


def reason(error: Exception, path: Path) -> str:
    """Why an input could not be read, on one line, without its path: the report names it already."""
    if isinstance(error, InputError):
        line = first_line(error)
        return one_line(line.removeprefix(str(path)).removeprefix("/").removeprefix(": "))
    return one_line(f"expected the records of a run, got {type(error).__name__}: {first_line(error)}")


def _read_run(source: Source, collection: Collection) -> None:
    info, parts = RunInfo.read_directory(source.path)
    run = ReportedRun(source.name, source.path, info, parts)
    collection.runs.append(run)
    if not info.done:
        collection.notes.append(Note(run.name, f"unfinished {run.command} run: the report shows what it has", False))
    match info.command:
        case "train" | "smooth" | "distill":
            curves = {name: curve for name, curve in read_metrics(run.path).items() if len(curve[0]) > 1}
            collection.trainings.append(Training(run, curves))
        case "certify" if info.chosen.certificate == SETTINGS:
            claims = within_reach(NetworkCertificates.read(run.path), run.path)
            collection.proven.append(Proven(run.name, info.network, claims))
        case "certify":
            collection.certifications.append(_certification(run, collection))
        case "one-pass":
            collection.calibrated.append(_calibrated(run))
        case "attack":
            if (run.path / "gallery.npz").exists():
                _attempt(lambda _, into: into.galleries.append(read_gallery(run)), source, collection)
            collection.attacks.append(AttackRun(run, AttackResults.read(run.path)))
        case "audit":
            audit = read_audit(run.path)
            if isinstance(audit, ProofAudit):
                collection.proof_audits.append(AuditedProofs(run.name, info.network, audit))
            elif isinstance(audit, AgreementAudit):
                collection.agreement_audits.append((run.name, info.network, audit))
            else:
                collection.audits.append(AuditedModel(run.name, info.network, audit))


def _certification(run: ReportedRun, collection: Collection) -> Certification:
    certificates = Certificates.read(run.path)
    about = certificates.subject
    require(about is Subject.AVERAGE, f"{run.path}: expected certificates of the average, got those of the {about}")
    sigma = certificates.sigma
    require(sigma <= FARTHEST, f"{run.path}: expected σ up to {FARTHEST:g}, got {sigma}")
    settings = None
    try:
        settings = Settings.from_json(run.info.chosen.certificate, run.path)
    except InputError as error:
        collection.notes.append(Note(run.name, reason(error, run.path), skipped=False))
    if settings is not None:
        claimed, recorded = (f"σ {item.sigma:g}, {item.basis}" for item in (settings, certificates))
        require(claimed == recorded, f"{run.path}: expected certificates of {claimed}, got {recorded}; certify again")
    radii = within_reach(certificates, run.path)
    return Certification(run.name, run.info.network, radii, settings, seconds=certificates.seconds)


def _calibrated(run: ReportedRun) -> Calibrated:
    rows = read_one_pass(run.path)
    radii = within_reach(radii_of(rows), run.path)
    known = radii.basis.kind in (BasisKind.CONFORMAL, BasisKind.UNDER_ATTACK)
    require(known, f"{run.path}: expected conformal radii, got {radii.basis}; read them separately")
    noiseless = radii.correct is not None and radii.basis.kind is BasisKind.CONFORMAL
    clean = sum(row.predicted == row.label for row in rows) / len(rows) if noiseless else None
    return Calibrated(run.name, run.info.network, radii, run.info.chosen.calibration, clean)


def within_reach(radii: AnyRadii, path: Path) -> AnyRadii:
    """The radii, if images can have them."""
    good = bool(((radii.radii >= 0) & (radii.radii <= FARTHEST)).all())
    require(good, f"{path}: expected radii from 0 to {FARTHEST:g}, got others; certify those images again")
    return radii


def _read_log(source: Source, collection: Collection) -> None:
    log = read_log_columns(source.path)
    require(len(log) > 0, f"{source.path}: expected rows, got a header alone; leave it out")
    collection.notes += [Note(source.name, remark, skipped=False) for remark in log.remarks]
    if log.radii is None:
        collection.predictions.append(PredictionLog(source.name, log.correct, log.abstained))
        return
    radii = within_reach(log.claims, source.path)
    sigma = named_sigma(source.path)
    collection.certifications.append(Certification(source.name, None, radii, seconds=log.seconds, named_sigma=sigma))
