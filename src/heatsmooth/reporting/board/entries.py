"""What a board is made of: the radii of logs and of runs, at the same n and α where the counts allow it."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heatsmooth.certification.radii import largest_radius, radii_of
from heatsmooth.certification.settings import Settings
from heatsmooth.errors import InputError, require
from heatsmooth.reporting.collection import Note
from heatsmooth.reporting.formats import count_text, one_line, plain
from heatsmooth.reporting.probabilities import lower_probabilities
from heatsmooth.reporting.sources import UNREADABLE, reason, within_reach
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.deterministic import SETTINGS, NetworkCertificates
from heatsmooth.results.logs import Log, named_sigma, read_log_columns
from heatsmooth.results.radii import Radii
from heatsmooth.results.run_info import RunInfo
from heatsmooth.statistics.bounds import Floats, clopper_pearson_lower
from heatsmooth.statistics.radii import one_sided_radius

AVERAGE = "average · statistical"
NETWORK = "network, in one pass · deterministic"
LOG_START = b"idx\t"
FURTHEST = 6.0
"""No number of samples that anyone takes gives a radius of more than this times σ."""
CUSTOMARY = (100, 1_000, 10_000, 100_000, 1_000_000)
"""Numbers of samples that are looked for in a log."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The radii of one log or run."""

    path: Path
    parts: tuple[str, ...]
    """Of the path, as the user wrote it."""
    claims: Radii
    labels: NDArray[np.int64]
    about: str
    """Which model the radii cover, and on what they rest."""
    sigma: float | None = None
    n: int | None = None
    """Samples per image, the maximum if adaptive; None where it is not stated."""
    alpha: float | None = None
    cap: float | None = None
    """The largest radius that n and α allow; None where they are not known or there is no limit."""
    data: str = ""
    """The name of the images, if it is recorded."""
    settings: Settings | None = None
    """Those of a run with counts."""
    remarks: tuple[str, ...] = ()
    """What is odd about it."""
    changes: tuple[str, ...] = ()
    """What was computed anew."""

    @property
    def p_a(self) -> Floats | None:
        """Lower bounds of p_A, (images,)."""
        return lower_probabilities(self.claims, self.sigma)


@dataclass(frozen=True)
class Found:
    """A log or a run directory, and the parts of its path that may name it."""

    path: Path
    parts: tuple[str, ...]


def read_entries(paths: Iterable[Path]) -> tuple[list[Entry], list[Note]]:
    """The radii of all logs and runs, as they are recorded, and notes on what could not be read."""
    notes: list[Note] = []
    entries: list[Entry] = []
    for found in _all_found(paths, notes):
        try:
            entry = _run(found) if found.path.is_dir() else _log(found)
        except UNREADABLE as error:
            notes.append(Note("/".join(found.parts), reason(error, found.path)))
            continue
        entries += [entry] if entry is not None else []
    return entries, notes


def _all_found(paths: Iterable[Path], notes: list[Note]) -> list[Found]:
    """The logs and runs among and below the paths, each once."""
    found: dict[Path, Found] = {}
    for path in paths:
        below = list(_below(path))
        if not below:
            expected = "expected a certification log or a run directory, got"
            notes.append(Note(str(path), f"{expected} {'a directory with none' if path.is_dir() else 'nothing'}"))
        for item in below:
            found.setdefault(item.path.resolve(), item)
    return list(found.values())


def _below(path: Path) -> Iterator[Found]:
    """The logs and runs at or below a path, in the order of their names; logs inside a run repeat it."""
    if path.is_file():
        yield Found(path, _named_parts(path))
        return
    named = _named_parts(path)
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        here = Path(folder)
        parts = (*named, *here.relative_to(path).parts)
        if any(here.glob("run*.json")):
            yield Found(here, parts or (path.resolve().name,))
            continue
        for name in sorted(files):
            if not name.startswith(".") and _starts_like_a_log(here / name):
                yield Found(here / name, (*parts, name))


def _named_parts(path: Path) -> tuple[str, ...]:
    """The parts of a path as the user wrote it."""
    return tuple(part for part in path.parts if part not in (path.anchor, "..", "."))


def _starts_like_a_log(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(LOG_START)) == LOG_START
    except OSError:
        return False


def _log(found: Found) -> Entry:
    log = read_log_columns(found.path)
    remarks = list(log.remarks)
    log = _each_image_once(log, remarks)
    claims = within_reach(log.claims, found.path)
    contradicted = int(((log.labels == log.predicted) != log.correct)[~log.abstained].sum())
    if contradicted:
        remarks.append(
            f"its column correct contradicts label and predict for {count_text(contradicted)} images; it was used"
        )
    sigma = named_sigma(found.path)
    largest = float(claims.radii.max())
    if sigma is None:
        remarks.append("its name states no σ, as in sigma_0.25")
    elif largest > FURTHEST * sigma:
        remarks.append(f"its largest radius is {largest / sigma:.3g} times the σ of its name; that σ was not used")
        sigma = None
    return Entry(
        path=found.path,
        parts=found.parts,
        claims=claims,
        labels=log.labels,
        about=AVERAGE,
        sigma=sigma,
        remarks=tuple(remarks),
    )


def _each_image_once(log: Log, remarks: list[str]) -> Log:
    """The log with the first line of each image, ordered by index."""
    indices, first = np.unique(log.indices, return_index=True)
    twice = len(log) - len(indices)
    if twice:
        remarks.append(f"{count_text(twice)} lines repeat an image; the first line of each image was used")
    return replace(
        log,
        indices=indices,
        labels=log.labels[first],
        predicted=log.predicted[first],
        correct=log.correct[first],
        radii=None if log.radii is None else log.radii[first],
        seconds=None if log.seconds is None else log.seconds[first],
        base_predicted=None if log.base_predicted is None else log.base_predicted[first],
    )


def _run(found: Found) -> Entry | None:
    """The radii of a ``certify`` run; None for other commands."""
    info, _ = RunInfo.read_directory(found.path)
    if info.command != "certify":
        return None
    deterministic = info.chosen.certificate == SETTINGS
    claims = (NetworkCertificates if deterministic else Certificates).read(found.path)
    require(claims.labels is not None, f"{found.path}: expected labelled images, got none; certify labelled images")
    within_reach(claims, found.path)
    require(
        claims.basis.usual,
        f"expected L2 radii of Gaussian noise, got {claims.basis.norm_name} radii of {claims.basis.noise_name} noise; "
        "left out, because they cannot be compared",
    )
    entry = Entry(
        path=found.path,
        parts=found.parts,
        claims=claims,
        labels=np.asarray(claims.labels),
        about=NETWORK if deterministic else AVERAGE,
        data=one_line(info.chosen.data.name or "", 40),
        remarks=() if info.done else ("an unfinished run: the board shows what it has",),
    )
    if not isinstance(claims, Certificates):
        return entry
    settings = Settings.from_json(info.chosen.certificate, found.path)
    require(
        (claims.sigma, str(claims.basis)) == (settings.sigma, str(settings.basis)),
        f"{found.path}: expected records of σ={settings.sigma:g}, {settings.basis}, as run.json says, got "
        f"σ={claims.sigma:g}, {claims.basis}; certify again",
    )
    return replace(entry, sigma=claims.sigma, settings=settings)


def at_same_samples(entries: Sequence[Entry], *, n: int | None, alpha: float) -> list[Entry]:
    """The entries with certificates for ``n`` samples per image and ``alpha`` where there are counts.

    ``n``: None means the smallest number of samples of a run among these entries.
    """
    own = [entry.settings.n for entry in entries if entry.settings and not entry.settings.adaptive]
    same = n if n is not None else min(own, default=None)
    return [recomputed(entry, n=same, alpha=alpha) for entry in entries]


def recomputed(entry: Entry, *, n: int | None, alpha: float) -> Entry:
    """A run by Cohen's CERTIFY at these ``n`` and ``alpha``, top-1, from its counts; others as they are.

    Of more than n samples, n are drawn without replacement: so many independent samples are independent samples again,
    and the certificates hold as before. The draw depends on the image alone. Adaptive runs keep their samples.
    """
    claims, own = entry.claims, entry.settings
    if own is None or not isinstance(claims, Certificates):
        return entry
    settings = replace(own, alpha=alpha, top_k=1, bound="one-sided", n_wrong=None)
    counts, changes = claims.counts, _differences(own, n)
    if n is not None and n < own.n and not own.adaptive:
        counts = np.stack([_drawn(row, index, n) for row, index in zip(counts, claims.indices.tolist(), strict=True)])
        settings = replace(settings, n=n)
    if (settings.n, settings.alpha, settings.top_k, settings.bound) != (own.n, own.alpha, own.top_k, own.bound):
        was = f"n {count_text(own.n)}, {str(own.basis).removeprefix('statistical, ')}"
        changes.append(f"recomputed from its counts; it was certified with {was}")
    radii, abstained = radii_of(
        counts,
        claims.classes,
        settings,
        one_pass=claims.one_pass_probabilities(claims.classes),
    )
    again = replace(
        claims,
        radii=np.where(abstained, 0.0, radii),
        abstained=abstained,
        correct=(claims.classes == claims.known_labels) & ~abstained,
        targets=claims.classes,
        counts=counts,
        basis=settings.basis,
    )
    cap = largest_radius(settings, counts.shape[1]) or 0.0
    return replace(entry, claims=again, n=settings.n, alpha=alpha, cap=cap, changes=tuple(changes))


def _differences(own: Settings, n: int | None) -> list[str]:
    """What keeps a run from having exactly ``n`` samples per image."""
    if own.adaptive:
        return ["adaptive: its samples are as they were, at most n"]
    if n is not None and n > own.n:
        return [f"it has {count_text(own.n)} samples per image, fewer than {count_text(n)}"]
    return []


def _drawn(counts: NDArray[np.int64], index: int, n: int) -> NDArray[np.int64]:
    """The counts of ``n`` of these samples; all where there are fewer."""
    if counts.sum() <= n:
        return counts
    return np.asarray(np.random.default_rng((n, index)).multivariate_hypergeometric(counts, n))


def fitting_samples(entry: Entry, alpha: float) -> int | None:
    """The customary n at which ``alpha`` gives the largest radius of a log, to three digits; None if none does.

    A log states neither, and its largest radius is that of an image all of whose samples agree.
    """
    if entry.sigma is None or entry.n is not None or entry.about != AVERAGE:
        return None
    for n in CUSTOMARY:
        largest, _ = one_sided_radius(clopper_pearson_lower(n, n, alpha), sigma=entry.sigma)
        if abs(float(entry.claims.radii.max()) - float(largest)) <= 0.005 * float(largest):
            return n
    return None


def samples_text(entry: Entry, alpha: float) -> str:
    """n as the board shows it."""
    if entry.n is not None:
        return count_text(entry.n)
    fits = fitting_samples(entry, alpha)
    return "not stated" + (f" (fits {count_text(fits)} at α {plain(alpha)})" if fits else "")


def check_choices(n: int | None, alpha: float) -> None:
    """Refuse values that no certificate can have."""
    if n is not None and n < 1:
        raise InputError(f"`n`: expected at least 1, got {n}; leave it out to use the smallest number of the runs")
    if not 0 < alpha < 0.5:
        raise InputError(f"`alpha`: expected a number above 0 and below 0.5, got {alpha}; 0.001 is usual")
