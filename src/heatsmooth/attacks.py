"""L2 attacks as pure functions, and a module that makes a Gaussian average attackable like any network.

The result of an attack is checked on the images it returns: success by a forward pass, distance by the norm.
The caller puts the network in evaluation mode.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from heatsmooth.device import exact_float32
from heatsmooth.errors import require

AT_ONCE = 250
"""Noisy images that ``GaussianAverage`` keeps in memory at a time."""


@dataclass(frozen=True)
class Adversarial:
    """The result of an attack, one entry per image.

    ``images``: (batch, channels, height, width), the attacked images in [0, 1].
    ``distance``: (batch,), the L2 norm of the perturbation where ``success``. It is 0 where the image was
    misclassified from the start. It is infinite where the attack failed: the true distance is unknown.
    ``success``: (batch,), whether the network misclassifies the attacked image.
    """

    images: Tensor
    distance: Tensor
    success: Tensor


def is_wrong(logits: Tensor, labels: Tensor, top_k: int = 1) -> Tensor:
    """Whether the label is not among the ``top_k`` largest logits; (batch, classes), (batch,) → (batch,)."""
    return ~(logits.topk(top_k, dim=1).indices == labels[:, None]).any(dim=1)


def unit(x: Tensor) -> Tensor:
    """Each image of a batch scaled to L2 norm 1; an image of zeros stays zero."""
    return x / _norms(x).clamp_min(torch.finfo(x.dtype).tiny)


@exact_float32()
def pgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    eps: float | Tensor,
    steps: int = 20,
    step_size: float | None = None,
    top_k: int = 1,
    loss: str = "cross-entropy",
    early_stop: bool = True,
    start: Tensor | None = None,
) -> Adversarial:
    """Projected gradient descent in the L2 ball of radius ``eps`` and the box [0, 1] (Madry et al. 2018).

    Each step moves along the normalised gradient of the loss (paper, eq. 8). No returned image is further than ``eps``
    from its original.

    ``model``: returns logits (batch, classes).
    ``images``: (batch, channels, height, width) in [0, 1].
    ``labels``: (batch,), int64.
    ``eps``: the largest L2 distance, in [0, 1] pixels; one number, or one per image (batch,).
    ``steps``: the number of gradient steps.
    ``step_size``: the L2 length of a step; by default 2·eps/steps.
    ``top_k``: the attack succeeds when the label is no longer among the ``top_k`` largest logits.
    ``loss``: one of ``LOSSES``.
    ``early_stop``: stop for an image as soon as the attack succeeds. Without it, every image takes all steps, which
    adversarial training needs.
    ``start``: where the attack starts, shaped as ``images`` and within ``eps`` of them; by default at the images.
    """
    _check_images(images)
    radius = _column(eps, images)
    require(bool((radius > 0).all()), f"`eps`: expected positive radii, got {float(radius.min()):g}")
    _check_steps(steps, loss)
    size = 2 * radius / steps if step_size is None else torch.full_like(radius, step_size)
    images = images.detach()
    x = images if start is None else start.detach()
    adversarial = x.clone()
    active = torch.arange(len(images), device=images.device)
    for _ in range(steps):
        logits, direction = _ascent(model, x, labels[active], loss, top_k)
        if early_stop:
            going = ~is_wrong(logits, labels[active], top_k)
            active, x, direction = active[going], x[going], direction[going]
            if not len(active):
                break
        centre, most = images[active], radius[active]
        shift = x + size[active] * direction - centre
        shift = shift * (most / _norms(shift).clamp_min(most))
        x = (centre + shift).clamp(0, 1)
        adversarial[active] = x
    return _verified(model, images, adversarial, labels, top_k)


@exact_float32()
def ddn(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    steps: int = 20,
    eps: float | Tensor = math.inf,
    init_norm: float = 1.0,
    gamma: float = 0.05,
    top_k: int = 1,
    loss: str = "cross-entropy",
    early_stop: bool = True,
    start: Tensor | None = None,
) -> Adversarial:
    """Decoupled direction and norm (Rony et al. 2019): the smallest L2 perturbation found in ``steps`` steps.

    The perturbation moves along the normalised gradient with a step size that falls from 1 to 0.01 on a cosine. Its
    norm is multiplied by 1 − gamma where it is adversarial, and by 1 + gamma where it is not, up to ``eps``.

    ``model``: returns logits (batch, classes).
    ``images``: (batch, channels, height, width) in [0, 1].
    ``labels``: (batch,), int64.
    ``steps``: the number of gradient steps.
    ``eps``: the largest L2 distance, in [0, 1] pixels; one number, or one per image (batch,).
    ``init_norm``: the L2 norm of the first perturbation.
    ``gamma``: the relative change of the norm per step.
    ``top_k``: the attack succeeds when the label is no longer among the ``top_k`` largest logits.
    ``loss``: one of ``LOSSES``.
    ``early_stop``: images that are misclassified from the start take no step.
    ``start``: where the attack starts, shaped as ``images``; by default at the images.
    """
    _check_images(images)
    _check_steps(steps, loss)
    images = images.detach()
    limits = _column(eps, images)
    require(bool((limits > 0).all()), f"`eps`: expected a positive radius, got {eps}")
    adversarial = images.clone()
    active = torch.arange(len(images), device=images.device)
    if early_stop:
        with torch.no_grad():
            active = active[~is_wrong(model(images), labels, top_k)]
    if len(active):
        centre, label, limit = images[active], labels[active], limits[active]
        closest, norm = _Closest(centre, label, top_k), limit.clamp_max(init_norm)
        shift = torch.zeros_like(centre) if start is None else start.detach()[active] - centre
        for step in range(steps):
            logits, direction = _ascent(model, centre + shift, label, loss, top_k)
            wrong = closest.update(shift, logits)
            if step > 0:
                norm = (norm * torch.where(wrong.view_as(norm), 1 - gamma, 1 + gamma)).minimum(limit)
            size = 0.01 + (1 - 0.01) * (1 + math.cos(math.pi * step / steps)) / 2
            shift = norm * unit(shift + size * direction)
            shift = (centre + shift).clamp(0, 1) - centre
        with torch.no_grad():
            closest.update(shift, model(centre + shift))
        failed = closest.distance.isinf()
        closest.images[failed] = (centre + shift)[failed]
        adversarial[active] = closest.images
    return _verified(model, images, adversarial, labels, top_k)


class _Closest:
    """The closest adversarial images so far; ``distance`` (batch,) is infinite where there is none."""

    def __init__(self, start: Tensor, labels: Tensor, top_k: int) -> None:
        self._start, self._labels, self._top_k = start, labels, top_k
        self.images = start.clone()
        self.distance = torch.full((len(start),), torch.inf, device=start.device)

    def update(self, shift: Tensor, logits: Tensor) -> Tensor:
        """Where start + shift, which has these logits, is misclassified; keeps it where it is also closer."""
        wrong = is_wrong(logits, self._labels, self._top_k)
        length = _norms(shift).flatten()
        better = wrong & (length < self.distance)
        self.images[better], self.distance[better] = (self._start + shift)[better], length[better]
        return wrong


class GaussianAverage(nn.Module):
    """The Gaussian average of a network: log of the mean of softmax model(x + η), η ~ N(0, σ²I); (batch, classes).

    The noise is sampled once, at the first call, in pairs η and −η. All images and all later calls share it, so an
    attack sees one fixed function. At most ``AT_ONCE`` noisy images are in memory, forward and backward; activations
    are recomputed where needed.

    ``model``: returns logits (batch, classes) for images in [0, 1].
    ``sigma``: the noise level σ, in [0, 1] pixels.
    ``samples``: how many noise samples the mean is taken over.
    ``seed``: of the noise.
    """

    def __init__(self, model: nn.Module, *, sigma: float, samples: int, seed: int = 0) -> None:
        super().__init__()
        require(sigma > 0, f"`sigma`: expected a positive number, got {sigma}")
        require(samples > 0, f"`samples`: expected at least 1, got {samples}")
        self.model, self.sigma, self.samples, self.seed = model, sigma, samples, seed
        self.noise: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return _log_mean(self.log_probabilities(x))

    def log_probabilities(self, x: Tensor) -> Tensor:
        """log softmax model(x + η_i) for every noise sample, (samples, batch, classes)."""
        if self.noise is None or self.noise.shape[2:] != x.shape[1:] or self.noise.device != x.device:
            generator = torch.Generator().manual_seed(self.seed)
            half = self.sigma * torch.randn((self.samples + 1) // 2, 1, *x.shape[1:], generator=generator)
            self.noise = torch.cat([half, -half])[: self.samples].to(x.device)
        return log_probabilities(self.model, x, self.noise)


def log_mean_probability(model: nn.Module, x: Tensor, noise: Tensor) -> Tensor:
    """log mean_i softmax model(x + noise_i); noise (samples, batch or 1, …) → (batch, classes)."""
    return _log_mean(log_probabilities(model, x, noise))


def log_probabilities(model: nn.Module, x: Tensor, noise: Tensor) -> Tensor:
    """log softmax model(x + noise_i); noise (samples, batch or 1, …) → (samples, batch, classes)."""

    def some(x: Tensor, noise: Tensor) -> Tensor:
        logits: Tensor = model((x + noise).flatten(0, 1))
        return logits.log_softmax(1).unflatten(0, (len(noise), len(x)))  # type: ignore[no-any-return]

    parts = noise.split(max(1, AT_ONCE // len(x)))
    if len(parts) == 1 or not (torch.is_grad_enabled() and x.requires_grad):
        return torch.cat([some(x, part) for part in parts])
    return torch.cat([checkpoint(some, x, part, use_reentrant=False, preserve_rng_state=False) for part in parts])


def _log_mean(log_probability: Tensor) -> Tensor:
    return log_probability.logsumexp(0) - math.log(len(log_probability))


def _cross_entropy(model: nn.Module, x: Tensor, labels: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    logits = model(x)
    return logits, F.cross_entropy(logits, labels, reduction="sum")


def _margin(model: nn.Module, x: Tensor, labels: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    logits = model(x)
    own = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return logits, (others.topk(top_k, dim=1).values[:, -1:] - own).sum()


def _per_sample(model: nn.Module, x: Tensor, labels: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    assert isinstance(model, GaussianAverage)
    each = model.log_probabilities(x)
    return _log_mean(each), -each.gather(2, labels.expand(len(each), -1)[..., None]).sum()


LOSSES: dict[str, Callable[[nn.Module, Tensor, Tensor, int], tuple[Tensor, Tensor]]] = {
    "cross-entropy": _cross_entropy,
    "margin": _margin,
    "per-sample": _per_sample,
}
"""What an attack maximises; each function returns the logits and the loss.

- cross-entropy: of the label. For a ``GaussianAverage`` this is −log of the mean probability (Salman 2019).
- margin: the k-th largest other logit minus the label's.
- per-sample: only for a ``GaussianAverage``, the sum over the samples of the cross-entropy of each (paper, eq. 9).
"""


def _ascent(model: nn.Module, x: Tensor, labels: Tensor, loss: str, top_k: int) -> tuple[Tensor, Tensor]:
    """Logits at ``x``, and the unit direction in which the loss grows fastest."""
    x = x.detach().requires_grad_(True)
    with torch.enable_grad():
        logits, objective = LOSSES[loss](model, x, labels, top_k)
    (gradient,) = torch.autograd.grad(objective, x)
    return logits.detach(), unit(gradient)


def _verified(model: nn.Module, images: Tensor, adversarial: Tensor, labels: Tensor, top_k: int) -> Adversarial:
    with torch.no_grad():
        success = is_wrong(model(adversarial), labels, top_k)
    distance = torch.where(success, _norms(adversarial - images).flatten(), torch.inf)
    return Adversarial(adversarial, distance, success)


def _check_images(images: Tensor) -> None:
    require(bool(images.isfinite().all()), "expected finite pixels, got NaN or infinity; attack images in [0, 1]")


def _check_steps(steps: int, loss: str) -> None:
    require(steps > 0, f"`steps`: expected at least 1, got {steps}")
    require(loss in LOSSES, f"`loss`: expected {', '.join(LOSSES)}, got {loss!r}")


def _column(value: float | Tensor, images: Tensor) -> Tensor:
    """One number per image, shaped to multiply it."""
    numbers = torch.as_tensor(value, dtype=images.dtype, device=images.device).expand(len(images))
    return numbers.reshape(-1, *[1] * (images.ndim - 1))


def _norms(x: Tensor) -> Tensor:
    """L2 norm of each image, shaped to multiply it."""
    norms: Tensor = x.flatten(1).norm(dim=1)
    return norms.view(-1, *[1] * (x.ndim - 1))
