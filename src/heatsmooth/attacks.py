"""L2 attacks as pure functions, and the module that makes a Gaussian average attackable like any network.

What an attack claims is recomputed from the images it returns: success by a forward pass, distance by the norm.
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
    """What an attack found, one entry an image.

    ``distance`` is the L2 norm of the perturbation where ``success``, 0 where the image was wrong from the
    start, and infinite where the attack failed (the true distance is censored, not known to be infinite).
    """

    images: Tensor
    distance: Tensor
    success: Tensor


def is_wrong(logits: Tensor, labels: Tensor, top_k: int = 1) -> Tensor:
    """Whether the label is not among the ``top_k`` largest logits; (batch, classes), (batch,) → (batch,)."""
    return ~(logits.topk(top_k, dim=1).indices == labels[:, None]).any(dim=1)


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
) -> Adversarial:
    """Projected gradient descent in the L2 ball of radius ``eps`` and the box [0, 1] (Madry et al. 2018), from zero.

    Each step moves by ``step_size`` (default 2·eps/steps) along the normalised gradient of the loss (paper, eq. 8).
    ``eps`` is one radius, or one an image. With ``early_stop`` an image is done as soon as its label leaves the
    ``top_k``; without, every image takes all steps, as adversarial training wants. ``loss``: see ``LOSSES``.
    """
    _check_images(images)
    radius = _column(eps, images)
    require(bool((radius > 0).all()), f"--eps: expected positive radii, got {float(radius.min()):g}")
    _check_steps(steps, loss)
    size = 2 * radius / steps if step_size is None else torch.full_like(radius, step_size)
    images = images.detach()
    found = images.clone()
    active = torch.arange(len(images), device=images.device)
    x = images
    for _ in range(steps):
        logits, direction = _ascent(model, x, labels[active], loss, top_k)
        if early_stop:
            going = ~is_wrong(logits, labels[active], top_k)
            active, x, direction = active[going], x[going], direction[going]
            if not len(active):
                break
        start, most = images[active], radius[active]
        shift = x + size[active] * direction - start
        shift = shift * (most / _norms(shift).clamp_min(most))
        x = (start + shift).clamp(0, 1)
        found[active] = x
    return _verified(model, images, found, labels, top_k)


@exact_float32()
def ddn(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    steps: int = 20,
    eps: float = math.inf,
    init_norm: float = 1.0,
    gamma: float = 0.05,
    top_k: int = 1,
    loss: str = "cross-entropy",
    early_stop: bool = True,
) -> Adversarial:
    """Decoupled direction and norm (Rony et al. 2019): the smallest L2 perturbation found in ``steps`` steps.

    The perturbation moves along the normalised gradient with a step size that falls from 1 to 0.01 on a cosine;
    its norm shrinks by the factor 1 − gamma where it is adversarial and grows by 1 + gamma where it is not,
    up to ``eps``. With ``early_stop`` images that are wrong from the start take no step.
    """
    _check_images(images)
    _check_steps(steps, loss)
    require(eps > 0, f"--eps: expected a positive radius, got {eps}")
    images = images.detach()
    found = images.clone()
    active = torch.arange(len(images), device=images.device)
    if early_stop:
        with torch.no_grad():
            active = active[~is_wrong(model(images), labels, top_k)]
    start, label = images[active], labels[active]
    best, best_norm = start.clone(), torch.full((len(start),), torch.inf, device=images.device)
    shift, norm = torch.zeros_like(start), _column(min(init_norm, eps), start)
    for step in range(steps if len(start) else 0):
        logits, direction = _ascent(model, start + shift, label, loss, top_k)
        wrong = _keep_better(best, best_norm, start, shift, logits, label, top_k)
        if step > 0:
            norm = (norm * torch.where(wrong.view_as(norm), 1 - gamma, 1 + gamma)).clamp_max(eps)
        size = 0.01 + (1 - 0.01) * (1 + math.cos(math.pi * step / steps)) / 2
        shift = norm * _unit(shift + size * direction)
        shift = (start + shift).clamp(0, 1) - start
    if len(start):
        with torch.no_grad():
            _keep_better(best, best_norm, start, shift, model(start + shift), label, top_k)
        failed = best_norm.isinf()
        best[failed] = (start + shift)[failed]
        found[active] = best
    return _verified(model, images, found, labels, top_k)


def _keep_better(
    best: Tensor, best_norm: Tensor, start: Tensor, shift: Tensor, logits: Tensor, label: Tensor, top_k: int
) -> Tensor:
    """Where start + shift is wrong; where it is also closer than the best so far, it becomes the best."""
    wrong = is_wrong(logits, label, top_k)
    length = _norms(shift).flatten()
    better = wrong & (length < best_norm)
    best[better], best_norm[better] = (start + shift)[better], length[better]
    return wrong


class GaussianAverage(nn.Module):
    """log of the mean over ``samples`` noise draws of softmax model(x + η), η ~ N(0, σ²I); (batch, classes).

    The noise is drawn once, at the first call, in pairs η and −η, and shared by all images and all later calls, so
    that an attack sees one fixed function; its softmax is the Monte Carlo mean of the probabilities. At most
    ``AT_ONCE`` noisy images are in memory, forward and backward (activations are computed again when needed).
    """

    def __init__(self, model: nn.Module, *, sigma: float, samples: int, seed: int = 0) -> None:
        super().__init__()
        require(sigma > 0, f"--sigma: expected a positive number, got {sigma}")
        require(samples > 0, f"--noise-samples: expected at least one, got {samples}")
        self.model, self.sigma, self.samples, self.seed = model, sigma, samples, seed
        self.noise: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return _log_mean(self.log_probabilities(x))

    def log_probabilities(self, x: Tensor) -> Tensor:
        """log softmax model(x + η_i) for every draw, (samples, batch, classes)."""
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
"""What an attack climbs: the cross-entropy of the label (of a ``GaussianAverage``, −log mean probability: Salman 2019);
the k-th largest other logit less the label's; or, of a ``GaussianAverage``, the sum over the draws of the cross-entropy
of each (paper, eq. 9). Each gives the logits too."""


def _ascent(model: nn.Module, x: Tensor, labels: Tensor, loss: str, top_k: int) -> tuple[Tensor, Tensor]:
    """Logits at ``x`` and the unit direction in which the loss grows fastest."""
    x = x.detach().requires_grad_(True)
    with torch.enable_grad():
        logits, climbed = LOSSES[loss](model, x, labels, top_k)
    (gradient,) = torch.autograd.grad(climbed, x)
    return logits.detach(), _unit(gradient)


def _verified(model: nn.Module, images: Tensor, found: Tensor, labels: Tensor, top_k: int) -> Adversarial:
    with torch.no_grad():
        success = is_wrong(model(found), labels, top_k)
    distance = torch.where(success, _norms(found - images).flatten(), torch.inf)
    return Adversarial(found, distance, success)


def _check_images(images: Tensor) -> None:
    require(bool(images.isfinite().all()), "expected finite pixels, got NaN or infinity; attack images in [0, 1]")


def _check_steps(steps: int, loss: str) -> None:
    require(steps > 0, f"--steps: expected at least 1, got {steps}")
    require(loss in LOSSES, f"--loss: expected {', '.join(LOSSES)}, got {loss!r}")


def _column(value: float | Tensor, images: Tensor) -> Tensor:
    """One number an image, shaped to multiply it."""
    numbers = torch.as_tensor(value, dtype=images.dtype, device=images.device).expand(len(images))
    return numbers.reshape(-1, *[1] * (images.ndim - 1))


def _norms(x: Tensor) -> Tensor:
    """L2 norm of each image, shaped to multiply it."""
    norms: Tensor = x.flatten(1).norm(dim=1)
    return norms.view(-1, *[1] * (x.ndim - 1))


def _unit(x: Tensor) -> Tensor:
    """Each image scaled to norm 1; an image of zeros stays zero."""
    return x / _norms(x).clamp_min(torch.finfo(x.dtype).tiny)
