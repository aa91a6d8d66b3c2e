"""Certificates: from noisy class counts to a class, a radius, and what the radius guarantees.

The counts are the record. Everything else (the radius at another α, the two-sided and top-k radii) follows from them
without the model.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack, overload

import numpy as np
import torch
from torch import Tensor, nn

from heatsmooth.certification import stopping
from heatsmooth.certification.clever import clever
from heatsmooth.certification.deterministic import certify_network
from heatsmooth.certification.radii import DIGITS, largest_radius, radii_of
from heatsmooth.certification.sampling import CHUNK, CLEAN, Ask, Job, Procedure, Sampler, Tally
from heatsmooth.certification.settings import Sampling, Settings, SettingsChanges
from heatsmooth.data import ImageSet, as_unit_interval
from heatsmooth.errors import InputError, require
from heatsmooth.models import check_independence, count_classes, device_of, for_inference
from heatsmooth.noise import fill_noise, mixed_seed
from heatsmooth.progress import Progress, silent
from heatsmooth.results.certificates import Certificate, Certificates, Counted
from heatsmooth.results.deterministic import NetworkCertificates
from heatsmooth.statistics.looks import until_next_look


def certify_image(settings: Settings, label: int | None = None) -> Procedure[dict[str, Tally]]:
    """CERTIFY (Cohen 2019, section 3.2.2; paper, section 5.1) for one image, as the samples it asks for.

    Guarantee: the class is selected without the estimation samples. So, except with probability α over those, the
    average g(x) = argmax_c P[v(x+η)=c] has this class at x and everywhere within the radius, for any network v.
    Nothing is claimed about v itself at a perturbed image. Adaptive sampling may stop at any time, because its bounds
    hold at all times simultaneously.
    """
    tallies = {CLEAN: (yield Ask(CLEAN, 1))}
    if settings.class_from == "noise":
        tallies["selection"] = yield Ask("selection", settings.n0)
    selected = selected_class(tallies)
    first = min(CHUNK, settings.n) if settings.adaptive else settings.n
    if settings.n_wrong is not None and label not in (None, selected):
        first = settings.n_wrong
    tallies["estimation"] = yield Ask("estimation", first)
    one_pass = float(tallies[CLEAN].sums[selected])
    while settings.adaptive and not stopping.may_stop(tallies["estimation"], selected, settings, one_pass):
        done = tallies["estimation"].n
        tallies["estimation"] = yield Ask("estimation", until_next_look(done, settings.n))
    return tallies


def selected_class(tallies: dict[str, Tally]) -> int:
    """The class to certify, from the selection samples if there are any, else from the clean pass."""
    return int(tallies.get("selection", tallies[CLEAN]).counts.argmax())


def certificate(counted: Counted, settings: Settings) -> Certificate:
    """Class, radius, abstention and guarantee by these settings, from what was counted for an image.

    The radius covers the selected class, or for top-k the label where it is known. Two cases are refused: counts
    sampled with another noise or σ, and adaptive counts under a bound for a fixed number of samples.
    """
    require(
        (counted.noise, counted.sigma) == (settings.noise, settings.sigma),
        f"expected counts of {settings.noise} noise σ={settings.sigma:g}, got {counted.noise} {counted.sigma:g}",
    )
    require(
        settings.adaptive or not counted.adaptive,
        "expected a bound for any stopping on adaptive counts, got one for fixed n; leave the counts as they are",
    )
    selected = counted.clean_class
    if settings.class_from == "noise":
        if counted.selection is None:
            raise InputError("`class_from` noise: expected selection counts, got none; use `class_from` clean")
        selected = int(np.argmax(counted.selection))
    target = counted.label if settings.top_k > 1 and counted.label is not None else selected
    radius, abstain = radii_of(
        np.array([counted.counts]),
        np.array([target]),
        settings,
        one_pass=np.array([counted.clean_probabilities[target]]),
        uniform=None if counted.uniform is None else np.array([counted.uniform]),
        pixels=counted.pixels,
    )
    return counted.with_radius(
        predicted=selected,
        target=target,
        radius=float(radius[0]),
        abstain=bool(abstain[0]),
        basis=settings.basis,
        class_from=settings.class_from,
    )


def certify_each(
    model: nn.Module,
    images: ImageSet,
    settings: Settings,
    sampling: Sampling,
    *,
    known: Mapping[int, Certificate] | None = None,
    positions: Iterable[int] | None = None,
    progress: Progress = silent,
) -> Iterator[Certificate]:
    """One certificate per image, as soon as it is done.

    ``positions``: of the images to certify; all, if None. ``known``: certificates that exist already, by index of the
    image. Their images are not certified again, and the progress counts them.
    """
    known = known or {}
    asked = list(range(len(images)) if positions is None else positions)
    todo = [position for position in asked if int(images.indices[position]) not in known]
    if not todo:
        return
    sampler = prepared(model, images, settings, sampling, images.images(torch.tensor(todo[:4])))
    labels = [None] * len(images) if images.labels is None else images.known_labels().tolist()
    label_of: dict[int, int | None] = dict(zip(images.indices.tolist(), labels, strict=True))
    abstained = sum(item.abstain for item in known.values())

    def job(position: int) -> Job[dict[str, Tally]]:
        index = int(images.indices[position])
        return Job(index, images.images(torch.tensor([position]))[0], certify_image(settings, label_of[index]))

    begin = time.monotonic()
    for number, (done_job, tallies) in enumerate(sampler.run(map(job, todo)), start=1):
        drawn = Drawn(done_job.index, tallies, done_job.seconds)
        counted = counted_of(drawn, label_of[done_job.index], settings, sampling, pixels=done_job.image.numel())
        if sampling.clever:
            counted = replace(counted, clever=_clever(model, done_job, settings, sampling))
        certified = certificate(counted, settings)
        abstained += certified.abstain
        speed = sampler.samples / (time.monotonic() - begin)
        done = len(asked) - len(todo) + number
        progress("certifying", done, len(asked), f"{speed:.0f} samples/s, {abstained} abstained")
        yield certified


def prepared(model: nn.Module, images: ImageSet, settings: Settings, sampling: Sampling, first: Tensor) -> Sampler:
    """A sampler of the network in its fastest form, after everything that can be refused beforehand is.

    ``first``: up to four of the images, on which the faster form is compared with the network.
    """
    examples = first.to(device_of(model)).repeat(13, 1, 1, 1)[:CHUNK]
    noise = torch.empty(examples[4:].shape)
    fill_noise(noise, settings.noise, settings.sigma, torch.Generator().manual_seed(0))
    examples[4:] += noise.to(examples.device)
    classes = count_classes(model, examples)
    images.check_classes(classes)
    _check_possible(settings, classes, pixels=first[0].numel())
    check_independence(model, examples)
    fast = for_inference(model, examples, compiled=sampling.compiled)
    return Sampler(
        fast,
        sigma=settings.sigma,
        noise=settings.noise,
        classes=classes,
        seed=sampling.seed,
        batch_size=sampling.batch_size,
        even=sampling.compiled,
    )


def _check_possible(settings: Settings, classes: int, *, pixels: int) -> None:
    """Refuse what could never certify anything, before any work is done."""
    require(settings.top_k < classes, f"`top_k`: expected less than the {classes} classes, got {settings.top_k}")
    plain = settings.top_k == 1 and settings.bound == "one-sided"
    require(
        plain or not settings.adaptive,
        "`adaptive`: expected one-sided top-1 certificates, got others; leave it out",
    )
    require(
        settings.radius_norm != "linf" or not settings.adaptive,
        "`adaptive`: expected l2 or l1 radii, got linf; certify those, then use heatsmooth recompute --norm linf",
    )
    ever = settings.n > 0 and largest_radius(settings, classes, pixels=pixels) is not None
    require(
        ever,
        f"`n`: expected enough samples to certify anything at α={settings.alpha:g}, got {settings.n}; raise `n` or α",
    )


@dataclass
class Drawn:
    """All samples of an image: its index, the tallies by stream, and the time they took."""

    index: int
    tallies: dict[str, Tally]
    seconds: float = 0.0


def counted_of(drawn: Drawn, label: int | None, settings: Settings, sampling: Sampling, *, pixels: int) -> Counted:
    """What was sampled for an image of so many values: the part of a certificate that the model is needed for."""
    tallies = drawn.tallies
    clean, estimation, selection = tallies[CLEAN], tallies["estimation"], tallies.get("selection")
    return Counted(
        index=drawn.index,
        label=label,
        sigma=settings.sigma,
        adaptive=settings.adaptive,
        n0=0 if selection is None else selection.n,
        n=estimation.n,
        counts=tuple(estimation.counts.tolist()),
        selection=None if selection is None else tuple(selection.counts.tolist()),
        clean_class=int(clean.counts.argmax()),
        clean_probabilities=shown_probabilities(clean),
        samples=sum(tally.n for tally in tallies.values()),
        seconds=round(drawn.seconds, 4),
        sums=tuple(estimation.sums.tolist()) if sampling.means else None,
        squares=tuple(estimation.squares.tolist()) if sampling.means else None,
        noise=settings.noise,
        pixels=None if settings.basis.usual else pixels,
        uniform=uniform_number(sampling.seed, drawn.index) if settings.bound == "randomised" else None,
    )


def shown_probabilities(clean: Tally) -> tuple[float, ...]:
    """The probabilities of one pass, with the seven digits that are recorded."""
    return tuple(float(f"{p:.7g}") for p in clean.sums)


def uniform_number(seed: int, index: int) -> float:
    """The number in [0, 1) of an image for randomised bounds: by the seed of its noise, independent of the noise.

    It cannot be drawn again without drawing all samples again.
    """
    return mixed_seed(seed, "randomised bound", index) / 2**63


def _clever(model: nn.Module, job: Job[Any], settings: Settings, sampling: Sampling) -> float:
    """The CLEVER estimate of the network at the image, in the norm of the radii."""
    seed = mixed_seed(sampling.seed, "clever", job.index)
    estimate = clever(model, job.image[None], norm=settings.radius_norm, batches=sampling.clever, seed=seed)
    return round(float(estimate[0]), DIGITS)


@overload
def certify(
    model: nn.Module,
    images: ImageSet | Tensor,
    *,
    sigma: None = None,
    labels: Tensor | None = None,
    batch_size: int | None = None,
    progress: Progress = silent,
) -> NetworkCertificates: ...


@overload
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
    **settings: Unpack[SettingsChanges],
) -> Certificates: ...


def certify(
    model: nn.Module,
    images: ImageSet | Tensor,
    *,
    sigma: float | None = None,
    labels: Tensor | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    compiled: bool = False,
    progress: Progress = silent,
    **settings: Unpack[SettingsChanges],
) -> Certificates | NetworkCertificates:
    """Certify each image: the average of the network keeps its class within the radius, except with probability α.

    Without ``sigma``: the network itself keeps its class within the radius, always. It must be Lipschitz by
    construction, as ``distill`` makes it; one pass per image proves the radius.

    ``model``: in evaluation mode, takes images in [0, 1] to logits.
    ``images``: an ``ImageSet``, or a tensor (images, channels, height, width) in [0, 1].
    ``sigma``: standard deviation of the noise, in [0, 1] pixels; None for a deterministic certificate.
    ``labels``: (images,), for certified accuracy; the certificates do not depend on them, unless ``top_k`` > 1 or
    ``n_wrong`` is given.
    ``seed``: determines the noise. ``batch_size``: samples evaluated together; results do not depend on it.
    ``compiled``: use ``torch.compile``. ``progress``: is told what is done.
    ``settings``: fields of ``Settings``: ``n`` (noise samples per image, default 10,000), ``n0`` (samples that select
    the class, 100), ``alpha`` (probability that a certificate is false, 0.001), ``class_from`` (``noise`` or
    ``clean``), ``adaptive``, ``radii``, ``sequence``, ``prior``, ``tolerance``, ``bound``, ``top_k``, ``n_wrong``,

    ``noise`` (``gaussian``, ``laplace`` or ``uniform``) and ``norm`` (``l2``, ``l1`` or ``linf``).
    """
    fits = isinstance(images, ImageSet) or (isinstance(images, Tensor) and images.ndim == 4)
    require(fits, "expected images as a tensor (images, channels, height, width) or an ImageSet, got something else")
    require(labels is None or isinstance(labels, Tensor), "expected labels as a tensor (images,), got something else")
    if isinstance(images, Tensor):
        images = ImageSet.of("images", as_unit_interval(images.detach().cpu()), labels)
    require(not any(m.training for m in model.modules()), "expected a network in evaluation mode; call model.eval()")
    if sigma is None:
        require(not settings, f"`sigma`: expected the noise level beside {', '.join(settings)}, got none; name it")
        return NetworkCertificates.of(certify_network(model, images, progress=progress))
    sampling = Sampling(seed=seed, batch_size=batch_size, compiled=compiled)
    return Certificates.of(certify_each(model, images, Settings(sigma, **settings), sampling, progress=progress))
