"""What single noisy passes of images say, as arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class NoisyPasses:
    """Noisy passes of calibration images: what ``calibrate_under_attack`` learns from."""

    classes: NDArray[np.int64]
    """The class of each pass, (images, passes); -1 where a logit is not finite."""
    doubts: NDArray[np.float64]
    """The probability that each pass gives to all other classes, (images, passes); 1 where a logit is not finite."""
    number_of_classes: int
    noise: float
    """Standard deviation τ of the noise, in [0, 1] pixels."""


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What the noisy passes of images claim; arrays (images,)."""

    classes: NDArray[np.int64]
    """The most frequent class of the passes of each image; -1 where every pass has a logit that is not finite."""
    radii: NDArray[np.float64]
    """L2 in [0, 1] pixels, about the image *before* the attack; 0 claims nothing."""
    received_radii: NDArray[np.float64]
    """What follows about the image as it was received: max(0, radius − ρ)."""
