"""Run directories and logs read into a ``Collection``. No model is needed, and no input stops another."""

import math
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from heatsmooth.certification.logs import read_log
from heatsmooth.errors import require
from heatsmooth.records import read_attacks, read_certificates
from heatsmooth.report.collection import (
    GALLERY,
    Attack,
    Audit,
    Certification,
    Collection,
    Gallery,
    Prediction,
    Training,
)
from heatsmooth.report.files import Found, Note, Place, Run, find, read_run, reason
from heatsmooth.report.values import dig, number, one_line, text
from heatsmooth.runs import read_json, read_records
from heatsmooth.statistics.bounds import (
    Flags,
    Floats,
    clopper_pearson_lower,
    clopper_pearson_upper,
    label_bounds,
    label_mean_bounds,
)
from heatsmooth.statistics.radii import (
    l_bound,
    l_bound_between,
    one_sided_radius,
    top_k_radius,
    two_sided_radius,
)
from heatsmooth.statistics.sequences import anytime_lower, anytime_upper, stopped_lower

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
        collection.certifications.append(_certification(run))
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


def _certification(run: Run) -> Certification:
    records = read_certificates(run.path)
    require(bool(records), f"{run.path}: expected certificates, got none; repeat the certify command")
    bases = {one_line(record["basis"]) for record in records}
    require(len(bases) == 1, f"{run.path}: expected certificates of one kind, got {sorted(bases)}; read them apart")
    about = {record.get("subject", "average") for record in records}
    require(about == {"average"}, f"{run.path}: expected certificates of the average, got {sorted(map(str, about))}")
    certificate = dig(run.info, "settings", "certificate")
    settings = certificate if isinstance(certificate, dict) else {}
    abstained = np.array([bool(record["abstain"]) for record in records])
    target = np.array([int(record["target"]) for record in records])
    labelled = all(record["label"] is not None for record in records)
    labels = np.array([int(record["label"]) for record in records]) if labelled else None
    clean = np.array([int(record["clean_class"]) for record in records])
    counts = np.array([record["counts"] for record in records], dtype=np.float64)
    sigma, top_k = number(settings, "sigma"), int(number(settings, "top_k") or 1)
    require(sigma is None or 0 < sigma <= FARTHEST, f"{run.path}: expected σ up to {FARTHEST:g}, got {sigma}")
    probabilities = np.array([record["clean_probabilities"] for record in records], dtype=np.float64)
    return Certification(
        run.name,
        run.name,
        _model(run),
        settings,
        np.array([int(record["index"]) for record in records]),
        _radii(run.path, [record["radius"] for record in records], abstained),
        abstained,
        None if labels is None else target == labels,
        bases.pop(),
        p_a=np.take_along_axis(counts, target[:, None], 1)[:, 0] / counts.sum(1),
        right_in_one_pass=None if labels is None else clean == labels,
        l_bounds=None if sigma is None else l_bound(probabilities, sigma=sigma, k=top_k),
        mean_l_bounds=_mean_l_bounds(records, target, settings),
        samples=_numbers(records, "samples"),
        seconds=_numbers(records, "seconds"),
        cap=largest_possible(settings, counts.shape[1]),
    )


def _calibrated(run: Run) -> Certification:
    """Radii from one pass, whose guarantee is conformal."""
    found = {int(record["index"]): record for record in read_records(run.path / "one_pass.jsonl")}
    require(bool(found), f"{run.path}: expected one-pass radii, got none; repeat the command")
    records = [found[index] for index in sorted(found)]
    bases = {one_line(record["basis"]) for record in records}
    known = len(bases) == 1 and next(iter(bases)).startswith("conformal")
    require(known, f"{run.path}: expected conformal radii, got {sorted(bases)}; read them apart")
    calibration = dig(run.info, "settings", "calibration")
    abstained = np.array([bool(record["abstain"]) for record in records])
    labelled = all(record.get("label") is not None for record in records)
    return Certification(
        run.name,
        run.name,
        _model(run),
        calibration if isinstance(calibration, dict) else {},
        np.array(sorted(found)),
        _radii(run.path, [record["radius"] for record in records], abstained),
        abstained,
        np.array([record["class"] == record["label"] for record in records]) if labelled else None,
        bases.pop(),
    )


def _radii(path: Path, radii: Iterable[Any], abstained: Flags) -> Floats:
    """Radii, 0 where abstained: nothing is claimed there."""
    found = np.array(list(radii), dtype=np.float64)
    good = bool(((found >= 0) & (found <= FARTHEST)).all())
    require(good, f"{path}: expected radii from 0 to {FARTHEST:g}, got others; certify those images again")
    return np.where(abstained, 0.0, found)


def _numbers(records: list[dict[str, Any]], key: str) -> Floats | None:
    found = [number(record, key) for record in records]
    return np.array(found, dtype=np.float64) if found and all(value is not None for value in found) else None


def _mean_l_bounds(records: list[dict[str, Any]], target: NDArray[np.int64], settings: dict[str, Any]) -> Floats | None:
    """The statistical L-bound of the averaged probabilities, where their sums were recorded for a fixed n."""
    sigma, alpha = number(settings, "sigma"), number(settings, "alpha")
    summed = all("sums" in record and "squares" in record for record in records)
    if not summed or sigma is None or alpha is None or settings.get("adaptive"):
        return None
    sums, squares = (np.array([record[key] for record in records], dtype=np.float64) for key in ("sums", "squares"))
    n = np.array([record["n"] for record in records], dtype=np.float64)
    top_k = int(number(settings, "top_k") or 1)
    lower, rivals = label_mean_bounds(sums, squares, n, target, alpha=alpha, rivals=top_k)
    radius, abstain = l_bound_between(lower, rivals[:, -1], sigma=sigma)
    return np.where(abstain, 0.0, radius)


def largest_possible(settings: dict[str, Any], classes: int) -> float | None:
    """The radius when all n draws agree, by the bound the run used: no image can get more."""
    sigma, alpha, n = (number(settings, key) for key in ("sigma", "alpha", "n"))
    if sigma is None or alpha is None or n is None:
        return None
    top_k = int(number(settings, "top_k") or 1)
    if top_k == 1 and settings.get("bound", "one-sided") == "one-sided":
        lower = partial(stopped_lower, most=int(n)) if settings.get("adaptive") else clopper_pearson_lower
        radius, _ = one_sided_radius(lower(n, n, alpha), sigma=sigma)
        return float(radius)
    counts, label = np.array([[n] + [0.0] * (classes - 1)]), np.array([0])
    bounds = (
        {"lower": anytime_lower, "upper": anytime_upper}
        if settings.get("adaptive")
        else {"lower": clopper_pearson_lower, "upper": clopper_pearson_upper}
    )
    own, rivals = label_bounds(counts, label, alpha=alpha, rivals=top_k, **bounds)
    if top_k == 1:
        radius, _ = two_sided_radius(own, rivals[:, 0], sigma=sigma)
    else:
        radius, _ = top_k_radius(own, rivals, sigma=sigma)
    return float(radius[0])


def _attack(run: Run) -> Attack:
    records = read_attacks(run.path)
    require(bool(records), f"{run.path}: expected attacks, got none; repeat the attack command")
    success = np.array([record["success"] for record in records])
    distance = np.array([np.inf if record["distance"] is None else float(record["distance"]) for record in records])
    subjects = {one_line(record.get("subject", "network"), 20) for record in records}
    require(len(subjects) == 1, f"{run.path}: expected attacks on one model, got {sorted(subjects)}; read them apart")
    settings = run.info.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    kind = (text(settings, "attack") or "attack").upper()
    wrong = success & (distance == 0)
    distance = np.where(success, distance, np.inf)
    return Attack(run.name, _model(run), kind, subjects.pop(), settings, distance, wrong, success)


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
    abstained, correct = (np.array([bool(row[key]) for row in rows]) for key in ("abstain", "correct"))
    if any(row["radius"] is None for row in rows):
        collection.predictions.append(Prediction(place.name, correct, abstained))
        return
    seconds = _numbers(rows, "seconds")
    radius = _radii(place.path, [row["radius"] for row in rows], abstained)
    index = np.array([row["index"] for row in rows])
    basis = "statistical, as the log's own α and n"
    collection.certifications.append(
        Certification(place.name, place.name, None, {}, index, radius, abstained, correct, basis, seconds=seconds)
    )
