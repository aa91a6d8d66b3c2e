"""Certificates: from noisy class counts to a class, a radius, and what the radius guarantees.

The counts are the record. Everything else (the radius at another α, the two-sided and top-k radii) follows from them
without the model.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heatsmooth.certification import stopping
from heatsmooth.certification.sampling import CHUNK, CLEAN, Ask, Job, Procedure, Sampler, Tally
from heatsmooth.certification.settings import Settings, radii_of
from heatsmooth.data import ImageSet, as_unit_interval
from heatsmooth.errors import InputError, require
from heatsmooth.models import check_independence, count_classes, device_of, for_inference
from heatsmooth.progress import Progress, silent
from heatsmooth.statistics import accuracy


def certify_image(settings: Settings, label: int | None = None) -> Procedure[dict[str, Tally]]:
    """CERTIFY (Cohen 2019, section 3.2.2; paper, section 5.1) for one image, as the draws it asks for.

    Guarantee: the class is chosen without looking at the estimation draws. So, except with probability α over those,
    the averaged classifier g(x) = argmax_c P[v(x+η)=c] has this class at x and everywhere within the radius, for any
    network v. Nothing is said of v itself at a perturbed image. Adaptive sampling may stop at any time, as its bounds
    hold at all times at once.
    """
    tallies = {CLEAN: (yield Ask(CLEAN, 1))}
    if settings.class_from == "noise":
        tallies["selection"] = yield Ask("selection", settings.n0)
    chosen = chosen_class(tallies)
    first = min(CHUNK, settings.n) if settings.adaptive else settings.n
    if settings.n_wrong is not None and label not in (None, chosen):
        first = settings.n_wrong
    tallies["estimation"] = yield Ask("estimation", first)
    while settings.adaptive and not stopping.may_stop(tallies["estimation"], chosen, settings):
        done = tallies["estimation"].n
        more = min(max(CHUNK, done // 20 // CHUNK * CHUNK), settings.n - done)
        tallies["estimation"] = yield Ask("estimation", more)
    return tallies


def chosen_class(tallies: dict[str, Tally]) -> int:
    """The class to certify, from the selection draws if there are any, else from the clean pass."""
    return int(tallies.get("selection", tallies[CLEAN]).counts.argmax())


def certificate(record: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """A record with class, radius, abstention and guarantee by these settings, from the counts it holds.

    ``target`` is the class that the radius speaks of: the chosen class, or for top-k the label where it is known.
    Counts drawn at another σ, and counts whose number depends on themselves under a bound for fixed n, are refused.
    """
    selection = record["selection"]
    require(
        record["sigma"] == settings.sigma, f"expected counts of noise σ={settings.sigma:g}, got {record['sigma']:g}"
    )
    fixed = settings.adaptive or not record["adaptive"]
    require(
        fixed, "expected a bound for any stopping on adaptive counts, got one for fixed n; leave the counts as they are"
    )
    if settings.class_from == "noise":
        require(
            selection is not None, "--class-from noise: expected selection counts, got none; use --class-from clean"
        )
    chosen = int(np.argmax(selection)) if settings.class_from == "noise" else record["clean_class"]
    target = record["label"] if settings.top_k > 1 and record["label"] is not None else chosen
    radius, abstain = radii_of(np.array([record["counts"]]), np.array([target]), settings)
    found = {"class": chosen, "target": target, "radius": float(radius[0]), "abstain": bool(abstain[0])}
    return record | found | {"subject": "average", "basis": settings.basis, "class_from": settings.class_from}


def certify_each(
    model: nn.Module,
    images: ImageSet,
    settings: Settings,
    *,
    seed: int = 0,
    batch_size: int | None = None,
    positions: Iterable[int] | None = None,
    compiled: bool = False,
    means: bool = False,
    progress: Progress = silent,
    done: int = 0,
    abstained: int = 0,
) -> Iterator[dict[str, Any]]:
    """One record an image, as soon as it is done; with ``means`` also the sums for bounds on mean probabilities.

    ``positions``: the images still to do; ``done`` and ``abstained``: how many are, for the progress.
    """
    todo = list(range(len(images)) if positions is None else positions)
    if not todo:
        return
    first = images.images(torch.tensor(todo[:4]))
    sampler = prepared(model, images, settings, first, seed=seed, batch_size=batch_size, compiled=compiled)
    labels = [None] * len(images) if images.labels is None else images.known_labels().tolist()
    label_of: dict[int, int | None] = dict(zip(images.indices.tolist(), labels, strict=True))

    def job(position: int) -> Job[dict[str, Tally]]:
        index = int(images.indices[position])
        return Job(index, images.images(torch.tensor([position]))[0], certify_image(settings, label_of[index]))

    begin = time.monotonic()
    for number, (done_job, tallies) in enumerate(sampler.run(map(job, todo)), start=1):
        record = certificate(_counted(done_job, tallies, label_of[done_job.index], settings, means), settings)
        abstained += record["abstain"]
        speed = sampler.samples / (time.monotonic() - begin)
        progress("certifying", done + number, done + len(todo), f"{speed:.0f} samples/s, {abstained} abstained")
        yield record


def prepared(
    model: nn.Module,
    images: ImageSet,
    settings: Settings,
    first: Tensor,
    *,
    seed: int,
    batch_size: int | None,
    compiled: bool,
) -> Sampler:
    """A sampler of the network in its fastest form, after everything that can be refused beforehand is.

    ``first``: up to four of the images, which the faster form is tried on.
    """
    examples = first.to(device_of(model)).repeat(13, 1, 1, 1)[:CHUNK]
    noise = torch.randn(examples[4:].shape, generator=torch.Generator().manual_seed(0))
    examples[4:] += settings.sigma * noise.to(examples.device)
    classes = count_classes(model, examples)
    images.check_classes(classes)
    _check_possible(settings, classes)
    check_independence(model, examples)
    fast = for_inference(model, examples, compiled=compiled)
    return Sampler(fast, sigma=settings.sigma, classes=classes, seed=seed, batch_size=batch_size, even=compiled)


def _check_possible(settings: Settings, classes: int) -> None:
    """Refuse what could never certify anything, before any work is done."""
    require(settings.top_k < classes, f"--top-k: expected less than the {classes} classes, got {settings.top_k}")
    plain = settings.top_k == 1 and settings.bound == "one-sided"
    require(
        plain or not settings.adaptive,
        "--adaptive: expected one-sided top-1 certificates, got others; leave it out",
    )
    ever = settings.n > 0 and settings.largest_radius(classes) is not None
    require(
        ever,
        f"--n: expected enough draws to certify anything at α={settings.alpha:g}, got {settings.n}; raise --n or α",
    )


def _counted(
    job: Job[Any], tallies: dict[str, Tally], label: int | None, settings: Settings, means: bool
) -> dict[str, Any]:
    """What was drawn for an image, as JSON: the part of a record that the model is needed for."""
    clean, estimation, selection = tallies[CLEAN], tallies["estimation"], tallies.get("selection")
    record = {
        "index": job.index,
        "label": label,
        "sigma": settings.sigma,
        "adaptive": settings.adaptive,
        "n0": 0 if selection is None else selection.n,
        "n": estimation.n,
        "counts": estimation.counts.tolist(),
        "selection": None if selection is None else selection.counts.tolist(),
        "clean_class": int(clean.counts.argmax()),
        "clean_probabilities": [float(f"{p:.7g}") for p in clean.sums],
        "samples": sum(tally.n for tally in tallies.values()),
        "seconds": round(job.seconds, 4),
    }
    if means:
        record |= {"sums": estimation.sums.tolist(), "squares": estimation.squares.tolist()}
    return record


@dataclass(frozen=True)
class Certificates:
    """The certificates of many images, ordered by index; arrays (images,), counts (images, classes).

    ``radii`` are L2, in [0, 1] pixels, about ``subject``: the *average* of the network over N(0, σ²I), not the network
    in one pass; they rest on ``basis``. Where ``abstained``, the radius is 0 and nothing is claimed.
    """

    indices: NDArray[np.int64]
    labels: NDArray[np.int64] | None
    classes: NDArray[np.int64]
    targets: NDArray[np.int64]
    """The classes that the radii speak of: ``classes``, or for top-k the labels."""
    radii: NDArray[np.float64]
    abstained: NDArray[np.bool_]
    counts: NDArray[np.int64]
    clean_classes: NDArray[np.int64]
    samples: NDArray[np.int64]
    basis: str
    subject: str = "average"

    @staticmethod
    def of(records: Iterable[dict[str, Any]]) -> "Certificates":
        """Of records of one kind, each image once."""
        unique: dict[int, dict[str, Any]] = {}
        for record in records:
            index, known = record["index"], unique.setdefault(record["index"], record)
            same = known["counts"] == record["counts"]
            require(same, f"expected one certificate for image {index}, got two that differ; read the runs apart")
        rows = [unique[index] for index in sorted(unique)]
        require(bool(rows), "expected certificates, got none; certify some images first")
        kinds = {(row["sigma"], row["class_from"], row["basis"]) for row in rows}
        require(len(kinds) == 1, f"expected certificates of one kind, got {sorted(kinds)}; read them apart")
        labelled = all(row["label"] is not None for row in rows)
        return Certificates(
            indices=np.array([row["index"] for row in rows]),
            labels=np.array([row["label"] for row in rows]) if labelled else None,
            classes=np.array([row["class"] for row in rows]),
            targets=np.array([row["target"] for row in rows]),
            radii=np.array([row["radius"] for row in rows]),
            abstained=np.array([row["abstain"] for row in rows]),
            counts=np.array([row["counts"] for row in rows]),
            clean_classes=np.array([row["clean_class"] for row in rows]),
            samples=np.array([row["samples"] for row in rows]),
            basis=rows[0]["basis"],
        )

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Where the radius speaks of the label; abstained images count as errors elsewhere."""
        if self.labels is None:
            raise InputError("expected labels to measure accuracy, got none; certify labelled images")
        return np.asarray(self.targets == self.labels)

    def certified_accuracy(self, at: Any) -> NDArray[np.float64]:
        """The share of all images certified right at each radius of ``at``."""
        return accuracy.certified_accuracy(self.radii, self.correct, self.abstained, at)

    @property
    def average_certified_radius(self) -> float:
        """ACR: the mean radius over all images, 0 where wrong or abstained."""
        return accuracy.average_certified_radius(self.radii, self.correct, self.abstained)


def certify(
    model: nn.Module,
    images: ImageSet | Tensor,
    *,
    sigma: float,
    labels: Tensor | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    compiled: bool = False,
    progress: Progress = silent,
    **settings: Any,
) -> Certificates:
    """Certify each image: the averaged network keeps its class within the radius, except with probability α.

    ``model``: in evaluation mode, taking images in [0, 1] to logits. ``images``: an ``ImageSet``, or a tensor
    (images, channels, height, width). ``settings``: fields of ``Settings``, as ``n``, ``n0``, ``alpha``,
    ``class_from``, ``adaptive``, ``radii``, ``top_k``.
    """
    fits = isinstance(images, ImageSet) or (isinstance(images, Tensor) and images.ndim == 4)
    require(fits, "expected images as a tensor (images, channels, height, width) or an ImageSet, got something else")
    require(labels is None or isinstance(labels, Tensor), "expected labels as a tensor (images,), got something else")
    if isinstance(images, Tensor):
        images = ImageSet.of("images", as_unit_interval(images.detach().cpu()), labels)
    require(not any(m.training for m in model.modules()), "expected a network in evaluation mode; call model.eval()")
    chosen = Settings(sigma, **settings)
    found = certify_each(model, images, chosen, seed=seed, batch_size=batch_size, compiled=compiled, progress=progress)
    return Certificates.of(found)
