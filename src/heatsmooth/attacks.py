"""L2 attacks as pure functions, and the module that makes a Gaussian average attackable like any network.

What an attack claims is recomputed from the images it returns: success by a forward pass, distance by the norm.
The caller puts the network in evaluation mode.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heatsmooth.errors import require


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


def _norms(x: Tensor) -> Tensor:
    """L2 norm of each image, shaped to multiply it."""
    norms: Tensor = x.flatten(1).norm(dim=1)
    return norms.view(-1, *[1] * (x.ndim - 1))


def _unit(x: Tensor) -> Tensor:
    """Each image scaled to norm 1; an image of zeros stays zero."""
    return x / _norms(x).clamp_min(torch.finfo(x.dtype).tiny)


def _ascent(model: nn.Module, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits at ``x`` and the unit direction in which the cross-entropy of ``labels`` grows fastest."""
    x = x.detach().requires_grad_(True)
    with torch.enable_grad():
        logits = model(x)
        loss = F.cross_entropy(logits, labels, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, x)
    return logits.detach(), _unit(gradient)


def _verified(model: nn.Module, images: Tensor, found: Tensor, labels: Tensor, top_k: int) -> Adversarial:
    with torch.no_grad():
        success = is_wrong(model(found), labels, top_k)
    distance = torch.where(success, _norms(found - images).flatten(), torch.inf)
    return Adversarial(found, distance, success)


def pgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    eps: float,
    steps: int = 20,
    step_size: float | None = None,
    top_k: int = 1,
    early_stop: bool = True,
) -> Adversarial:
    """Projected gradient descent in the L2 ball of radius ``eps`` and the box [0, 1] (Madry et al. 2018), from zero.

    Each step moves by ``step_size`` (default 2·eps/steps) along the normalised gradient of the cross-entropy
    (paper, eq. 8). With ``early_stop`` an image is done as soon as its label leaves the ``top_k``; without,
    every image takes all steps, as adversarial training wants.
    """
    require(eps > 0, f"eps: expected a positive radius, got {eps}")
    require(steps > 0, f"steps: expected at least one step, got {steps}")
    size = 2 * eps / steps if step_size is None else step_size
    images = images.detach()
    found = images.clone()
    active = torch.arange(len(images), device=images.device)
    x = images
    for _ in range(steps):
        logits, direction = _ascent(model, x, labels[active])
        if early_stop:
            going = ~is_wrong(logits, labels[active], top_k)
            active, x, direction = active[going], x[going], direction[going]
            if not len(active):
                break
        start = images[active]
        shift = x + size * direction - start
        shift = shift * (eps / _norms(shift).clamp_min(eps))
        x = (start + shift).clamp(0, 1)
        found[active] = x
    return _verified(model, images, found, labels, top_k)


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
) -> Adversarial:
    """Decoupled direction and norm (Rony et al. 2019): the smallest L2 perturbation found in ``steps`` steps.

    The perturbation moves along the normalised gradient with a step size that falls from 1 to 0.01 on a cosine;
    its norm shrinks by the factor 1 − gamma where it is adversarial and grows by 1 + gamma where it is not,
    up to ``eps``.
    """
    require(steps > 0, f"steps: expected at least one step, got {steps}")
    images = images.detach()
    best, best_norm = images.clone(), torch.full((len(images),), torch.inf, device=images.device)
    shift = torch.zeros_like(images)
    norm = torch.full((len(images), *[1] * (images.ndim - 1)), min(init_norm, eps), device=images.device)
    for step in range(steps + 1):
        x = images + shift
        logits, direction = _ascent(model, x, labels)
        wrong = is_wrong(logits, labels, top_k)
        length = _norms(shift).flatten()
        better = wrong & (length < best_norm)
        best[better], best_norm[better] = x[better], length[better]
        if step == steps or bool((best_norm == 0).all()):
            break
        if step > 0:
            norm = (norm * torch.where(wrong.view_as(norm), 1 - gamma, 1 + gamma)).clamp_max(eps)
        size = 0.01 + (1 - 0.01) * (1 + math.cos(math.pi * step / steps)) / 2
        shift = norm * _unit(shift + size * direction)
        shift = (images + shift).clamp(0, 1) - images
    failed = best_norm.isinf()
    best[failed] = (images + shift)[failed]
    return _verified(model, images, best, labels, top_k)


class GaussianAverage(nn.Module):
    """log of the mean over ``samples`` noise draws of softmax model(x + η), η ~ N(0, σ²I); (batch, classes).

    The noise is drawn once, at the first call, and shared by all images and all later calls, so that an
    attack sees one fixed function; its softmax is the Monte Carlo mean of the probabilities.
    """

    def __init__(self, model: nn.Module, *, sigma: float, samples: int, seed: int = 0) -> None:
        super().__init__()
        require(sigma > 0, f"sigma: expected a positive number, got {sigma}")
        require(samples > 0, f"samples: expected at least one, got {samples}")
        self.model, self.sigma, self.samples, self.seed = model, sigma, samples, seed
        self.noise: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.noise is None or self.noise.shape[2:] != x.shape[1:]:
            generator = torch.Generator().manual_seed(self.seed)
            self.noise = self.sigma * torch.randn(self.samples, 1, *x.shape[1:], generator=generator).to(x.device)
        return log_mean_probability(self.model, x, self.noise)


def log_mean_probability(model: nn.Module, x: Tensor, noise: Tensor) -> Tensor:
    """Log mean_i softmax model(x + noise_i); noise (samples, batch or 1, …) → (batch, classes)."""
    samples = len(noise)
    logits = model((x + noise).flatten(0, 1))
    log_mean: Tensor = logits.log_softmax(1).unflatten(0, (samples, len(x))).logsumexp(0) - math.log(samples)
    return log_mean
