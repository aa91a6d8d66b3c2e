"""The audit of a network that is Lipschitz by construction: attacks inside its deterministic radii must all fail.

Attacks take their gradients from a pass in float32, which is several times faster. Whether a candidate is a break is
decided by the network as it is deployed, and its distance is computed in double precision.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heatsmooth.attacks import ddn, pgd, unit
from heatsmooth.auditing.parts import Parts, listed, unlisted
from heatsmooth.auditing.single_precision import SinglePrecision
from heatsmooth.certification.deterministic import certify_network
from heatsmooth.data import ImageSet
from heatsmooth.device import exact_float32
from heatsmooth.models import device_of
from heatsmooth.noise import mixed_seed
from heatsmooth.progress import Progress, silent
from heatsmooth.results.audit import AuditSettings, Broken, Verdict, VerdictKind
from heatsmooth.results.deterministic import NetworkCertificates
from heatsmooth.results.proof_audit import ProofAudit, ProofAuditMeasures, Tightness
from heatsmooth.statistics.radii import round_down

INSIDE = 1 - 1e-6
"""Attacks get this share of a radius: the float32 arithmetic of an attack may leave its ball by some 1e-7."""
SUSPECT = 1e-3
"""A candidate whose float32 margin is below this share of the image's margin is judged by the deployed network."""
RESTARTS = 2
ATTACKS: dict[str, Callable[..., object]] = {"PGD": pgd, "DDN": ddn}
"""By name, the attacks that are limited to the radius."""


@dataclass(frozen=True)
class Attempt:
    """One run of an attack on a batch: (batch, channels, height, width), all other arrays (batch,)."""

    network: nn.Module
    """It must be given whole batches, in the order of the images."""
    images: Tensor
    classes: Tensor
    eps: Tensor
    """The largest distance from each image."""
    start: Tensor
    """Where the attack starts, shaped as the images."""
    restart: int
    """From 0."""


Attack = Callable[[Attempt], object]
"""Attacks a network. Its result is not used: ``Watched`` sees every candidate."""


def margins(logits: Tensor, classes: Tensor) -> Tensor:
    """The logit of the class less the largest other one, (batch,), double; not positive where the class is lost."""
    exact = logits.detach().double()
    own = exact.gather(1, classes[:, None])
    return (own - exact.scatter(1, classes[:, None], -torch.inf).amax(1, keepdim=True)).flatten()


@dataclass(frozen=True)
class Target:
    """Images (batch, channels, height, width) with their classes (batch,) and proven radii (batch,), double."""

    model: nn.Module
    """As it is deployed."""
    indices: Tensor
    """Of the images in their data set, (batch,)."""
    images: Tensor
    classes: Tensor
    radii: Tensor


class Watched(nn.Module):
    """A network under attack in float32, which judges the candidates inside the radius by the deployed network.

    ``broken`` (batch,): whether a candidate inside the radius has another class. ``used`` (batch,): the largest share
    of an image's margin that a candidate inside the radius used up; below 1 where not broken.
    """

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target, self.fast = target, SinglePrecision(target.model)
        with torch.no_grad():
            self.at_start = margins(target.model(target.images), target.classes)
        self.least, self.nearest = self.at_start.clone(), target.images.clone()
        self.broken = self.at_start <= 0
        self.difference = 0.0
        """Largest difference of a margin between float32 and the deployed network, over the candidates judged."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fast(x)
        with torch.no_grad():
            target = self.target
            distances = (x.detach().double() - target.images.double()).flatten(1).norm(dim=1)
            found = torch.where(distances <= target.radii, margins(logits, target.classes), torch.inf)
            nearer = found < self.least
            self.least[nearer], self.nearest[nearer] = found[nearer], x.detach()[nearer]
            suspects = (~(found >= SUSPECT * self.at_start)).nonzero().flatten()  # NaN too
            if len(suspects):
                self._judge(suspects, x.detach()[suspects], found[suspects])
        return logits

    def _judge(self, positions: Tensor, candidates: Tensor, found: Tensor) -> Tensor:
        judged = margins(self.target.model(candidates), self.target.classes[positions])
        self.broken[positions] |= ~(judged > 0)
        self.difference = max(self.difference, float((judged - found).abs().max()))
        return judged

    def used(self) -> Tensor:
        """See the class; the nearest candidate of each image is judged by the deployed network."""
        with torch.no_grad():
            judged = self._judge(torch.arange(len(self.least), device=self.least.device), self.nearest, self.least)
        return 1 - judged / self.at_start


def starting_points(target: Target, restart: int, seed: int) -> Tensor:
    """Where a restart begins: at the images, then at random points on the sphere of each radius, clipped to [0, 1].

    The points depend on the seed, the restart and the index of the image, not on the batch.
    """
    if restart == 0:
        return target.images
    shape = target.images.shape[1:]
    seeds = [mixed_seed(seed, "restart", restart, index) for index in target.indices.tolist()]
    directions = torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(own)) for own in seeds])
    away = (INSIDE * target.radii).to(target.images).view(-1, 1, 1, 1)
    return (target.images + away * unit(directions.to(target.images))).clamp(0, 1)


def limited(attack: Callable[..., object], steps: int) -> Attack:
    """``pgd`` or ``ddn`` within the radius: on the margin, and in every second restart on the cross-entropy."""

    def run(attempt: Attempt) -> object:
        return attack(
            attempt.network,
            attempt.images,
            attempt.classes,
            eps=attempt.eps,
            steps=steps,
            loss="cross-entropy" if attempt.restart % 2 else "margin",
            early_stop=False,
            start=attempt.start,
        )

    return run


@exact_float32()
def attack_inside(target: Target, attack: Attack, *, restarts: int, seed: int = 0) -> Watched:
    """Attack images inside their radii, from ``restarts`` starting points each."""
    watched = Watched(target)
    eps = (INSIDE * target.radii).to(target.images)
    for restart in range(restarts):
        start = starting_points(target, restart, seed)
        attack(Attempt(watched, target.images, target.classes, eps, start, restart))
    return watched


@dataclass
class _Tally:
    """What the attacks did to images so far."""

    broken: dict[str, list[bool]] = field(default_factory=dict)
    used: list[float] = field(default_factory=list)
    reached: list[float] = field(default_factory=list)
    """Distances of unlimited attacks in units of the radius; infinite where they changed nothing."""

    def add(self, part: dict[str, Any]) -> None:
        """Add what ``_attacked`` found."""
        for name, broken in part["broken"].items():
            self.broken.setdefault(name, []).extend(broken)
        self.used += unlisted(part["used"])
        self.reached += unlisted(part["reached"])


def audit_proofs(
    model: nn.Module,
    images: ImageSet,
    settings: AuditSettings,
    *,
    seed: int = 0,
    parts: Parts | None = None,
    progress: Progress = silent,
) -> ProofAudit:
    """Attack ``model`` inside its deterministic radii on these images.

    The parameters are those of ``average.audit``; of ``settings``, only ``steps`` and ``batch_size`` matter.
    """
    certificates = NetworkCertificates.of(certify_network(model, images.without_labels(), progress=progress))
    order = np.searchsorted(certificates.indices, images.indices.numpy())
    radii, classes = (torch.from_numpy(values[order]) for values in (certificates.radii, certificates.classes))
    attacked = (radii > 0).nonzero().flatten()
    tally, device, known = _Tally(), device_of(model), parts or Parts()

    def attack(some: Tensor) -> dict[str, Any]:
        pixels, own = images.images(some).to(device), (classes[some].to(device), radii[some].to(device))
        return _attacked(Target(model, images.indices[some], pixels, *own), settings.steps, seed)

    for some in attacked.split(settings.batch_size) if len(attacked) else ():
        tally.add(known.get("attacked inside the radii", some, attack))
        progress("attacking inside the radii", int((attacked <= some[-1]).sum()), len(attacked))
    measures = ProofAuditMeasures(
        images=len(images),
        steps=settings.steps,
        restarts=RESTARTS,
        seed=seed,
        broken={name: Broken.of(sum(tally.broken.get(name, [])), len(attacked)) for name in ATTACKS},
        tightness=_tightness(tally),
    )
    return ProofAudit(**vars(measures), verdict=proof_verdict(measures))


def _attacked(target: Target, steps: int, seed: int) -> dict[str, Any]:
    """What the attacks did to each of these images, as JSON."""
    reached = _reached(target, steps)
    broken, used = dict[str, list[bool]](), list[float | None]()
    for name, attack in ATTACKS.items():
        watched = attack_inside(target, limited(attack, steps), restarts=RESTARTS, seed=seed)
        used += listed(watched.used())
        inside = watched.broken | (reached <= 1) if name == "DDN" else watched.broken
        broken[name] = inside.tolist()
    return {"broken": broken, "used": used, "reached": listed(reached)}


@exact_float32()
def _reached(target: Target, steps: int) -> Tensor:
    """The distance at which unlimited DDN changes the class of the deployed network, in units of the radius."""
    found = ddn(SinglePrecision(target.model), target.images, target.classes, steps=steps, loss="margin")
    with torch.no_grad():
        changed = ~(margins(target.model(found.images), target.classes) > 0)  # NaN too
    distances = (found.images.double() - target.images.double()).flatten(1).norm(dim=1)
    return torch.where(changed, distances / target.radii, torch.inf)


def _tightness(tally: _Tally) -> Tightness | None:
    """How close the attacks came; None if no image has a radius."""
    if not tally.reached:
        return None
    changed = torch.tensor([ratio for ratio in tally.reached if math.isfinite(ratio)], dtype=torch.float64)
    return Tightness(
        margin_used=max(tally.used),
        changed=len(changed),
        nearest=round_down(float(changed.min()), 4) if len(changed) else None,
        median=round_down(float(changed.median()), 4) if len(changed) else None,
    )


def proof_verdict(measures: ProofAuditMeasures) -> Verdict:
    """The conclusion in plain words. One break refutes a proof, whatever the number of images."""
    attacked = max((counts.attacked for counts in measures.broken.values()), default=0)
    broken = {name: counts.broken for name, counts in measures.broken.items()}
    told = ", ".join(f"{name} broke {count}" for name, count in broken.items())
    effort = f"{measures.steps} steps and {measures.restarts} starts each: {told} of {attacked} images."
    if any(broken.values()):
        text = "The deterministic radii are false: do not use them, and report this as a bug."
        return Verdict(kind=VerdictKind.BROKEN, text=f"{text} {effort}")
    if not attacked:
        return Verdict(kind=VerdictKind.CAUTION, text="No image has a deterministic radius, so there was none to test.")
    text = "The attacks found nothing against the deterministic radii, which are proven."
    return Verdict(kind=VerdictKind.HOLDS, text=f"{text} {effort}")
