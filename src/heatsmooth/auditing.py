"""The audit: whether a certificate is true, and whether it carries over to the network that is deployed.

A certificate speaks of the Gaussian average g of a network v; what runs at work is v, in one pass. The audit measures
how often the two agree, how far v is from an average, and attacks both inside the radii they were given.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heatsmooth.attacks import GaussianAverage, ddn, pgd
from heatsmooth.certification.certificates import certify_each
from heatsmooth.certification.sampling import Job, Sampler, drawing
from heatsmooth.certification.settings import Settings
from heatsmooth.data import ImageSet
from heatsmooth.device import exact_float32
from heatsmooth.errors import require
from heatsmooth.models import count_classes, device_of, for_inference
from heatsmooth.progress import Progress, silent
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.guarantees import BasisKind
from heatsmooth.statistics.bounds import clopper_pearson, clopper_pearson_lower, predict
from heatsmooth.statistics.radii import l_bound, round_down

CONFIDENCE = 0.95
"""Of every interval in an audit."""
SURE = 0.001
"""How improbable broken certificates of the average must be by chance before the audit calls them false."""
TOLERATED = 0.01
"""The share of images that may break inside their L-bound before the audit calls it broken."""
SURVIVING = 0.99
"""The share of images for which the calibrated, empirical radius holds against these attacks."""
AGREEING = 0.95
"""Below this agreement of one pass and average, the certificates say little of the deployed network."""


@dataclass(frozen=True)
class Audit:
    """How hard to look."""

    sigma: float
    n: int = 1000
    """Noisy draws an image, for the certificate, for the mean probabilities, and to confirm a broken average."""
    alpha: float = 0.001
    steps: int = 50
    """Of DDN on the network, and of PGD on both."""
    noise_samples: int = 32
    """Draws of the average that PGD climbs."""
    batch_size: int = 50


@exact_float32()
def audit(
    model: nn.Module,
    images: ImageSet,
    *,
    sigma: float,
    teacher: nn.Module | None = None,
    seed: int = 0,
    progress: Progress = silent,
    **choices: Any,
) -> dict[str, Any]:
    """What is true of ``model``'s radii at noise ``sigma`` on these images, as plain numbers and a verdict.

    ``teacher``: the network it was smoothed from, to compare with its average. ``choices``: fields of ``Audit``.
    Labels are not needed: the audit is about predictions that change, not about right ones.
    """
    how = Audit(sigma, **choices)
    require(how.steps > 0, f"--steps: expected at least 1, got {how.steps}")
    settings = Settings(sigma, n=how.n, alpha=how.alpha)
    examples = images.images(torch.arange(min(4, len(images)))).to(device_of(model))
    fast = for_inference(model, examples)
    unlabelled = images.without_labels()
    certificates = Certificates.of(certify_each(model, unlabelled, settings, seed=seed, means=True, progress=progress))
    in_order = np.searchsorted(certificates.indices, images.indices.numpy())
    certified = _Certified(
        one_pass=certificates.clean_probabilities[in_order],
        average=certificates.average_probabilities[in_order],
        classes=certificates.classes[in_order],
        radii=certificates.radii[in_order],
    )
    network = _attack_network(fast, unlabelled, certified, how, progress)
    found = {
        "sigma": sigma,
        "alpha": how.alpha,
        "images": len(images),
        "n": how.n,
        "seed": seed,
        "agreement": _share("count", int((certified.one_pass.argmax(1) == certified.classes).sum()), len(images)),
        "approximation": {
            "self": _distances(certified.one_pass, certified.average),
            "teacher": None
            if teacher is None
            else _distances(certified.one_pass, _mean_probabilities(teacher, unlabelled, how, seed, progress)),
        },
        "average_attacks": _attack_average(fast, unlabelled, certified, how, seed, progress),
        "network_attacks": _broken(network, certified, sigma),
        "lipschitz": _lipschitz(network, sigma),
    }
    return found | {"verdict": verdict(found)}


@dataclass(frozen=True)
class _Certified:
    """What certification found, one row an image: probabilities in one pass and on average, class and radius."""

    one_pass: NDArray[np.float64]
    average: NDArray[np.float64]
    classes: NDArray[np.int64]
    radii: NDArray[np.float64]


@dataclass(frozen=True)
class _Broken:
    """The smallest distance at which an attack broke the network's own class, and the steepest slope seen."""

    distances: NDArray[np.float64]
    slopes: NDArray[np.float64]


def _batches(images: ImageSet, size: int) -> Iterator[Tensor]:
    yield from torch.arange(len(images)).split(size)


def _attack_network(
    model: nn.Module, images: ImageSet, certified: _Certified, how: Audit, progress: Progress
) -> _Broken:
    """DDN for the smallest distance, PGD at exactly the L-bound and the certified radius; the least of them counts."""
    device = device_of(model)
    claimed = np.stack([l_bound(certified.one_pass, sigma=how.sigma), certified.radii])
    distances, slopes = [], []
    for positions in _batches(images, how.batch_size):
        x = images.images(positions).to(device)
        labels = torch.from_numpy(certified.one_pass[positions.numpy()].argmax(1)).to(device)
        attacks = [ddn(model, x, labels, steps=how.steps)]
        for radii in claimed:
            eps = torch.from_numpy(radii[positions.numpy()]).to(x).clamp_min(1e-6)
            attacks.append(pgd(model, x, labels, eps=eps, steps=how.steps))
        distances.append(torch.stack([found.distance for found in attacks]).min(0).values.cpu())
        points = [x, attacks[0].images, (x + attacks[0].images) / 2]
        slopes.append(torch.stack([_slope(model, point, labels) for point in points]).max(0).values.cpu())
        progress("attacking the network", int(positions[-1]) + 1, len(images))
    return _Broken(torch.cat(distances).double().numpy(), torch.cat(slopes).double().numpy())


def _slope(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Norm of the gradient of the gap between the label's probability and the next one, (images,)."""
    x = x.detach().requires_grad_(True)
    p = model(x).softmax(1)
    own = p.gather(1, labels[:, None])
    rival = p.scatter(1, labels[:, None], -1.0).max(1, keepdim=True).values
    (gradient,) = torch.autograd.grad((own - rival).sum(), x)
    norms: Tensor = gradient.flatten(1).norm(dim=1)
    return norms


def _attack_average(
    model: nn.Module, images: ImageSet, certified: _Certified, how: Audit, seed: int, progress: Progress
) -> dict[str, Any]:
    """PGD on the average inside its certified radius; a break counts when fresh draws confirm another class at 1−α."""
    device = device_of(model)
    average = GaussianAverage(model, sigma=how.sigma, samples=how.noise_samples, seed=seed)
    inside = np.flatnonzero(certified.radii > 0)
    attacked: dict[int, Tensor] = {}
    for first in range(0, len(inside), how.batch_size):
        positions = torch.from_numpy(inside[first : first + how.batch_size])
        x = images.images(positions).to(device)
        labels = torch.from_numpy(certified.classes[positions.numpy()]).to(device)
        eps = torch.from_numpy(certified.radii[positions.numpy()]).to(x)
        found = pgd(average, x, labels, eps=eps * (1 - 1e-6), steps=how.steps)
        within = (found.images - x).flatten(1).double().norm(dim=1) < eps.double()
        points = torch.where(within[:, None, None, None], found.images, x).cpu()  # rounding may step out
        attacked |= dict(zip(positions.tolist(), points, strict=True))
        progress("attacking the average", first + len(positions), len(inside))
    sampler = Sampler(model, sigma=how.sigma, classes=certified.average.shape[1], seed=seed)
    jobs = (Job(position, image, drawing("confirmation", how.n)) for position, image in attacked.items())
    violations = 0
    for number, (job, tally) in enumerate(sampler.run(jobs), start=1):
        other, abstain = predict(tally.counts[None], alpha=how.alpha)
        violations += bool(not abstain[0] and other[0] != certified.classes[job.index])
        progress("confirming", number, len(inside))
    chances = len(images) + len(inside)  # of a false certificate, and of a false confirmation
    return {"attacked": len(inside), "violations": violations, "expected_at_most": how.alpha * chances}


def _mean_probabilities(
    model: nn.Module, images: ImageSet, how: Audit, seed: int, progress: Progress
) -> NDArray[np.float64]:
    """Monte Carlo mean of softmax model(x + η), (images, classes)."""
    every = torch.arange(len(images))
    examples = images.images(every[:4]).to(device_of(model))
    classes = count_classes(model, examples)
    sampler = Sampler(for_inference(model, examples), sigma=how.sigma, classes=classes, seed=seed)
    jobs = (Job(int(i), images.images(every[i : i + 1])[0], drawing("teacher", how.n)) for i in every)
    means = np.zeros((len(images), classes))
    for number, (job, tally) in enumerate(sampler.run(jobs), start=1):
        means[job.index] = tally.sums / tally.n
        progress("averaging the teacher", number, len(images))
    return means


def _distances(one_pass: NDArray[np.float64], average: NDArray[np.float64]) -> dict[str, Any]:
    """L2 distance of probabilities, over images: mean with its interval (None of one image), median, largest."""
    apart = np.linalg.norm(one_pass - average, axis=1)
    mean = float(apart.mean())
    error = 1.96 * float(apart.std(ddof=1)) / np.sqrt(len(apart)) if len(apart) > 1 else None
    return {
        "mean": mean,
        "interval": None if error is None else [mean - error, mean + error],
        "median": float(np.median(apart)),
        "largest": float(apart.max()),
    }


def _share(name: str, count: int, of: int) -> dict[str, Any]:
    """A count among images, its share, and the exact interval of the share."""
    low, high = clopper_pearson(count, of, 1 - CONFIDENCE) if of else (0.0, 1.0)
    interval = [float(low), float(high)]
    return {
        name: count,
        "images" if name == "count" else "attacked": of,
        "share": count / max(of, 1),
        "interval": interval,
    }


def _broken(network: _Broken, certified: _Certified, sigma: float) -> dict[str, Any]:
    """How often the one-pass class breaks inside its L-bound, and inside the radius of the average."""
    bound = l_bound(certified.one_pass, sigma=sigma)
    same = (certified.radii > 0) & (certified.one_pass.argmax(1) == certified.classes)
    ratios = np.sort(network.distances[same] / certified.radii[same])
    allowed = int((1 - SURVIVING) * len(ratios))
    fraction = float(ratios[allowed]) if len(ratios) else 0.0
    return {
        "inside_l_bound": _share("broken", int((network.distances < bound).sum()), len(bound)),
        "inside_average_radius": _share(
            "broken", int((network.distances < certified.radii)[same].sum()), int(same.sum())
        ),
        "surviving_fraction": {
            "share": SURVIVING,
            "fraction": round_down(min(fraction, 1e6), 4),
            "images": len(ratios),
            "basis": BasisKind.ATTACK,
        },
    }


def _lipschitz(network: _Broken, sigma: float) -> dict[str, float]:
    """The steepest slope of the probability gap that attacks met, against the one the L-bound assumes."""
    assumed = float(np.sqrt(2 / np.pi) / sigma)
    found = float(network.slopes.max())
    return {"found": found, "assumed": assumed, "ratio": found / assumed}


def verdict(found: dict[str, Any]) -> dict[str, str]:
    """In plain words, with the counts behind it."""
    average, network = found["average_attacks"], found["network_attacks"]["inside_l_bound"]
    agreement, slope = found["agreement"], found["lipschitz"]
    attacked, violations, broken = average["attacked"], average["violations"], network["broken"]
    beyond_chance = clopper_pearson_lower(violations, found["images"] + attacked, SURE) > found["alpha"]
    if not attacked:
        of_average = "There was no certificate of the average to test"
    elif violations:
        of_average = f"{violations} certificates of the average were broken, no more than chance allows"
    else:
        of_average = "Nothing found against certificates of the average"
    if beyond_chance:
        kind, conclusion = "broken", "The statistical certificates are false: do not use them."
    elif broken or slope["ratio"] > 1.01:
        many = clopper_pearson_lower(broken, network["attacked"], 1 - CONFIDENCE) > TOLERATED
        verb = "is false" if broken else "has no ground"
        kind = "broken" if many else "caution"
        conclusion = f"{of_average}; the network is not an exact average at this σ, so its L-bound {verb}."
    elif agreement["interval"][0] < AGREEING:
        doubt = "one pass may disagree with the average too often"
        if agreement["count"] >= AGREEING * agreement["images"]:
            doubt = f"too few images to be sure that one pass agrees with the average on {100 * AGREEING:g} %"
        kind, conclusion = "caution", f"{of_average}; {doubt}."
    elif violations or not attacked:
        kind, conclusion = "caution", f"{of_average}."
    else:
        kind, conclusion = "holds", f"{of_average}, nor against the L-bound."
    words = [
        conclusion,
        f"Average: {violations} of {attacked} certificates were broken by attack "
        f"({average['expected_at_most']:.2g} may be).",
        f"Network in one pass: {broken} of {network['attacked']} predictions break inside their L-bound, "
        f"slopes reach {slope['ratio']:.2g} times what it assumes; it agrees with its average on "
        f"{agreement['count']} of {agreement['images']} images.",
    ]
    return {"kind": kind, "text": " ".join(words)}
