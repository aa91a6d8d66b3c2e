"""What an exported file computes: probabilities, class and radii from one pass."""

import math

import torch
from torch import Tensor, nn

from heatsmooth.calibration import Calibration
from heatsmooth.learnt_radius import LEAST_DOUBT, NO_DOUBT
from heatsmooth.models import DeterministicRadius, Voter, is_lipschitz

BELOW = 1 - 2.0**-23
"""A double times this is still smaller after rounding to float32: exported radii never exceed the computed ones."""
EDGE = 1e-6
"""How far a pixel may lie outside [0, 1], because of rounding, and still have a radius."""
LEVEL_MARGIN = 1 - 1e-12
"""Levels of doubt are lowered by this factor, so that the order of a sum never enlarges a calibrated radius."""


class OnePassNetwork(nn.Module):
    """Probabilities, class and radii from one pass of ``model``: those that it, ``sigma`` and ``calibration`` give.

    With a ``head``, also the votes that it predicts and their class, which the calibrated radius is then for. If it is
    a copy of the network, it makes a pass of its own.

    Radii are L2 in [0, 1] pixels and rounded down. The L-bound covers the network, if it is exactly an average over
    N(0, σ²I). The calibrated radius covers the average, see ``Calibration``. The certified radius covers the network,
    see ``DeterministicRadius``. All are 0, which claims nothing, where a pixel is NaN or outside [0, 1] by more than
    ``EDGE``, and where a logit is not finite.
    """

    slope: Tensor
    below: Tensor
    runner_up: Tensor
    bounds: Tensor
    levels: Tensor
    radii: Tensor

    def __init__(
        self,
        model: nn.Module,
        *,
        sigma: float | None,
        calibration: Calibration | None = None,
        head: Voter | None = None,
    ) -> None:
        super().__init__()
        self.model, self.sigma, self.calibration, self.head = model, sigma, calibration, head
        self.proven = DeterministicRadius(model) if is_lipschitz(model) else None
        steps = torch.tensor([(math.inf, 0.0), *(calibration.steps if calibration else ())], dtype=torch.float64)
        slope = torch.tensor([(sigma or 0.0) * math.sqrt(math.pi / 2)], dtype=torch.float64)
        # As buffers, constants keep all digits in the file; with a dimension, the exporter keeps them near 0 and 1 too.
        self.register_buffer("slope", slope * BELOW)
        self.register_buffer("below", torch.tensor([BELOW], dtype=torch.float64))
        weight = calibration.runner_up if calibration else 0.0
        self.register_buffer("runner_up", torch.tensor([weight], dtype=torch.float64))
        bounds = [LEAST_DOUBT, 1.0, 1 - LEAST_DOUBT, NO_DOUBT * LEVEL_MARGIN]
        self.register_buffer("bounds", torch.tensor(bounds, dtype=torch.float64)[:, None])
        self.register_buffer("levels", steps[:, 0] * LEVEL_MARGIN)
        self.register_buffer("radii", (steps[:, 1] * BELOW).float())

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        logits, votes = self.one_pass(images)
        probabilities, shares = logits.softmax(1), votes.softmax(1)
        pixels = images.flatten(1)
        inside = ((pixels >= -EDGE) & (pixels <= 1 + EDGE)).all(1)  # False for NaN
        valid = inside & logits.isfinite().all(1)
        if self.head is not None:
            valid = valid & votes.isfinite().all(1)
        predicted, *radii = self.conclusions(probabilities, shares)
        if self.proven is not None:
            predicted = logits.argmax(1)
            radii.append((self.proven(images, logits) * self.below).float())
        predicted_votes = () if self.head is None else (shares, shares.argmax(1))
        return probabilities, predicted, *predicted_votes, *(torch.where(valid, radius, 0.0) for radius in radii)

    def one_pass(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of the network, and those of the votes; without a head, the network's own."""
        if self.head is None:
            logits = self.model(images)
            return logits, logits
        return self.head.answers(self.model, images)

    def conclusions(self, probabilities: Tensor, shares: Tensor | None = None) -> tuple[Tensor, ...]:
        """Class, and radii that follow from ``probabilities`` and the ``shares`` of the votes, both (batch, classes).

        Each is (batch,), and 0 where a number is NaN. Without a head, the shares are the probabilities.
        """
        shares = probabilities if shares is None else shares
        predicted = probabilities.argmax(1)
        if self.sigma is None:
            return (predicted,)
        first, second = probabilities.double().topk(2, dim=1).values.unbind(1)
        gap = first - second
        bound = (self.slope * torch.where(gap > 0, gap, 0.0)).float()
        if self.calibration is None:
            return predicted, bound
        doubt = self._doubt(shares)
        level = ((doubt <= self.levels).sum(1) - 1).clamp_min(0)  # NaN is below no level, not even the infinite one
        return predicted, bound, self.radii[level]

    def _doubt(self, shares: Tensor) -> Tensor:
        """``learnt_radius.doubt_of``, (batch, 1)."""
        assert self.calibration is not None
        others = torch.arange(shares.shape[1], device=shares.device) != shares.argmax(1)[:, None]
        doubt = (shares.double() * others).sum(1, keepdim=True)
        if not self.calibration.runner_up:
            return doubt
        least, one, most, no_doubt = self.bounds.unbind()
        doubt = doubt.maximum(least).minimum(most)
        second = shares.double().topk(2, dim=1).values[:, 1:].maximum(least)
        # Not a sigmoid: that of onnxruntime loses the digits of small values.
        odds = (doubt.log() - (one - doubt).log() + self.runner_up * (second.log() - doubt.log())).exp()
        weighted = odds / (odds + one)
        return torch.where(weighted < no_doubt, doubt - doubt, weighted)
