"""Run directories and logs read into a ``Collection``. No model is needed, and no input stops another."""

import math
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, TypeVar
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from heatsmooth.certification.settings import Settings
from heatsmooth.errors import InputError, require
from heatsmooth.report.collection import (
    GALLERY,
    Attack,
    Audit,
    Calibrated,
    Certification,
    Collection,
    Gallery,
    Prediction,
    Training,
)
from heatsmooth.report.files import Found, Note, Place, Run, find, read_run, reason
from heatsmooth.report.values import dig, number, text
from heatsmooth.results.attacks import AttackResults
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.guarantees import BasisKind, Subject
from heatsmooth.results.logs import read_log
from heatsmooth.results.one_pass import read_one_pass
from heatsmooth.results.radii import Radii, radii_of
from heatsmooth.runs import read_json, read_records
from heatsmooth.statistics.bounds import Floats

AnyRadii = TypeVar("AnyRadii", bound=Radii)
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
"""What reading a file that is not what it seems may raise."""
GALLERY_SIDE = 4096
"""Pixels of the longest side of an image in a gallery."""
GALLERY_BYTES = 128 * 2**20
"""The most that the arrays of a gallery may need in memory."""
FARTHEST = 1e6
"""No σ or radius, L2 in [0, 1] pixels, is larger: that would be the whole diagonal of 10¹² numbers."""
CURVES = ("loss", "distance", "penalty")


def read_sources(sources: Iterable[Path]) -> Collection:
    """Read all that can be read; what cannot is named in ``notes`` and stops nothing."""
    found: Found = find(sources)
    all_of = Collection(notes=list(found.notes))
    for read, places in (
        (_read_directory, found.runs),
        (_read_tsv, found.logs),
        (_read_timing, found.timings),
        (_read_comparison, found.comparisons),
    ):
        for place in places:
            _attempt(read, place, all_of)
    all_of.put_in_order()
    return all_of


def _attempt(read: Callable[[Place, Collection], None], place: Place, collection: Collection) -> None:
    try:
        read(place, collection)
    except UNREADABLE as error:
        collection.notes.append(Note(place.name, reason(error, place.path)))


def _read_directory(place: Place, collection: Collection) -> None:
    run = read_run(place)
    collection.runs.append(run)
    if not run.done:
        collection.notes.append(Note(run.name, f"unfinished {run.command} run: what it has so far is shown", False))
    if run.command in ("train", "smooth"):
        collection.trainings.append(Training(run, text(run.info, "model_hash"), _curves(run.path / "metrics.jsonl")))
    elif run.command == "certify":
        collection.certifications.append(_certification(run, collection))
    elif run.command == "one-pass":
        collection.calibrated.append(_calibrated(run))
    elif run.command == "attack":
        if (run.path / "gallery.npz").exists():
            _attempt(_read_gallery, place, collection)
        collection.attacks.append(_attack(run))
    elif run.command == "audit":
        facts = read_json(run.path / "audit.json")
        collection.audits.append(Audit(run.name, _model(run), facts))


def _model(run: Run) -> str | None:
    return text(run.info, "settings", "model") or text(run.info, "model_hash")


def _curves(path: Path) -> dict[str, tuple[Floats, Floats]]:
    """Of each stage after another, over epochs counted through."""
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in CURVES}
    before = last = 0.0
    stage: float | None = None
    for record in read_records(path):
        epoch = number(record, "epoch")
        if epoch is None:
            continue
        if number(record, "stage") != stage:
            stage, before = number(record, "stage"), last
        last = before + epoch
        for name in CURVES:
            value = number(record, name)
            if value is not None:
                points[name].append((last, value))
    return {
        name: (np.array([x for x, _ in found]), np.array([y for _, y in found]))
        for name, found in points.items()
        if len(found) > 1
    }


def _certification(run: Run, collection: Collection) -> Certification:
    certificates = Certificates.read(run.path)
    about = certificates.subject
    require(about is Subject.AVERAGE, f"{run.path}: expected certificates of the average, got those of the {about}")
    sigma = certificates.sigma
    require(sigma <= FARTHEST, f"{run.path}: expected σ up to {FARTHEST:g}, got {sigma}")
    settings = None
    try:
        settings = Settings.from_json(dig(run.info, "settings", "certificate"), run.path)
    except InputError as error:
        collection.notes.append(Note(run.name, reason(error, run.path), skipped=False))
    if settings is not None:
        claimed, recorded = (f"σ {item.sigma:g}, {item.basis}" for item in (settings, certificates))
        require(claimed == recorded, f"{run.path}: expected certificates of {claimed}, got {recorded}; certify again")
    return Certification(
        run.name, _model(run), _within_reach(certificates, run.path), settings, seconds=certificates.seconds
    )


def _calibrated(run: Run) -> Calibrated:
    """Radii from one pass, whose guarantee is conformal."""
    radii = _within_reach(radii_of(read_one_pass(run.path)), run.path)
    known = radii.basis.kind is BasisKind.CONFORMAL
    require(known, f"{run.path}: expected conformal radii, got {radii.basis}; read them apart")
    sigma, epsilon, alpha = (number(run.info, "settings", "calibration", key) for key in ("sigma", "epsilon", "alpha"))
    return Calibrated(run.name, _model(run), radii, sigma, epsilon, alpha)


def _within_reach(radii: AnyRadii, path: Path) -> AnyRadii:
    """The radii, which are those of images."""
    good = bool(((radii.radii >= 0) & (radii.radii <= FARTHEST)).all())
    require(good, f"{path}: expected radii from 0 to {FARTHEST:g}, got others; certify those images again")
    return radii


def _attack(run: Run) -> Attack:
    kind = (text(run.info, "settings", "attack") or "attack").upper()
    return Attack(run, _model(run), kind, AttackResults.read(run.path))


def _read_gallery(place: Place, collection: Collection) -> None:
    run = read_run(place)
    held = _arrays(run.path / "gallery.npz")
    images = {key: held[key] for key in GALLERY if key in held}
    require(bool(images), "gallery.npz: expected images, got none; repeat the attack command")
    count = len(next(iter(images.values())))
    for key, pixels in images.items():
        good = pixels.ndim == 4 and pixels.dtype == np.uint8 and len(pixels) == count and pixels.shape[3] in (1, 3)
        good = good and all(1 <= side <= GALLERY_SIDE for side in pixels.shape[1:3])
        require(good, f"gallery.npz: expected {key} as uint8 (images, height, width, channels), got {pixels.shape}")
    facts = {key: value for key, value in held.items() if key not in GALLERY and value.shape == (count,)}
    collection.galleries.append(Gallery(run.name, _model(run), images, facts))


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a .npz file by name; what they declare to need is checked before any memory is taken."""
    with ZipFile(path) as archive:
        members = archive.infolist()
        size = sum(member.file_size for member in members)
        require(size <= GALLERY_BYTES, f"{path.name}: expected at most {GALLERY_BYTES:,} bytes of arrays, got {size:,}")
        held = {}
        for member in members:
            plain = member.compress_type in (ZIP_STORED, ZIP_DEFLATED)
            require(plain, f"{path.name}: expected plain or deflated arrays, got {member.compress_type}")
            with archive.open(member) as file:
                shape, dtype = _declared(file)
            needed = math.prod(shape) * max(1, dtype.itemsize)
            name = member.filename.removesuffix(".npy")
            require(
                0 <= needed <= member.file_size,
                f"{path.name}: expected {name} of {member.file_size:,} bytes, got one that declares {needed:,}",
            )
            with archive.open(member) as file:
                held[name] = npy.read_array(file, allow_pickle=False)
    return held


def _declared(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array of numpy's format, from its header alone."""
    version = npy.read_magic(file)
    require(version in ((1, 0), (2, 0)), f"expected an array of numpy's format 1 or 2, got {version}")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _read_timing(place: Place, collection: Collection) -> None:
    collection.timings.append((place.name, read_json(place.path)))


def _read_comparison(place: Place, collection: Collection) -> None:
    facts = read_json(place.path)
    known = text(facts, "command") == "compare" and isinstance(dig(facts, "methods"), dict)
    require(known, f"{place.path}: expected what `heatsmooth compare` writes, got another file; leave it out")
    collection.comparisons.append((place.name, facts))


def _read_tsv(place: Place, collection: Collection) -> None:
    rows = read_log(place.path)
    content = place.path.read_bytes()
    require(bool(rows), f"{place.path}: expected rows, got a header alone; leave it out")
    if b"\r\n" in content:
        collection.notes.append(Note(place.name, "its lines end in CR LF; it was read all the same", False))
    if sum(bool(line.strip()) for line in content.splitlines()) - 1 > len(rows):
        collection.notes.append(Note(place.name, "its last line is cut off and left out", False))
    if any(row.radius is None for row in rows):
        abstained, correct = (
            np.array(flags) for flags in zip(*((row.abstain, row.correct) for row in rows), strict=True)
        )
        collection.predictions.append(Prediction(place.name, correct, abstained))
        return
    seconds = [row.seconds for row in rows if row.seconds is not None]
    radii = _within_reach(radii_of(rows), place.path)
    known = np.array(seconds) if len(seconds) == len(rows) else None
    collection.certifications.append(Certification(place.name, None, radii, seconds=known))
