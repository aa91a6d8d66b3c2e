"""What is predicted about image files."""

from dataclasses import dataclass, field

from heatsmooth.errors import require
from heatsmooth.results.guarantees import BasisKind, Subject
from heatsmooth.settings import check_at_least, check_positive


@dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """What is predicted beside the class of one pass."""

    sigma: float | None = None
    """Standard deviation of the noise, for the L-bound, in [0, 1] pixels."""
    noise_samples: int = 0
    """Also find the class of the average from this many samples."""
    alpha: float = 0.001
    """Largest probability that the class of the average is wrong."""
    seed: int | None = None
    """Determines the noise (default: a secret number). The guarantee is for images made without knowing it."""
    batch_size: int | None = None
    """Samples evaluated together; results do not depend on it."""

    def __post_init__(self) -> None:
        check_positive(self, "sigma")
        check_at_least(self, 0, "noise_samples")
        named = not self.noise_samples or self.sigma is not None
        require(named, "`noise_samples`: expected `sigma` beside it, got none; name the noise")


@dataclass(frozen=True, kw_only=True)
class AttackClaim:
    """What noisy passes with secret noise say about one image that may have been attacked."""

    predicted: int | None = field(metadata={"name": "class"})
    """The most frequent class of the passes; None where a logit is not finite."""
    radius: float
    """L2 radius of the average for this class, about the image *before* the attack; 0 claims nothing."""
    received_radius: float
    """The same about the image as it was received: max(0, radius − ρ)."""
    subject: Subject
    basis: str
    rho: float
    noise_key: str
    """Of the noise, told with the answer and never used again."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What is said about one image. Class and probability are None, and radii 0, where a logit is not finite."""

    image: str
    predicted: int | None = field(metadata={"name": "class"})
    """The class of one pass."""
    probability: float | None
    subject: Subject = Subject.NETWORK
    """The model that class, probability and L-bound are about."""
    l_bound: float | None = None
    """L2 radius of the network, in [0, 1] pixels."""
    basis: BasisKind | None = None
    """What the L-bound rests on: an exact average, which nothing checks."""
    one_pass_radius: float | None = None
    """Calibrated L2 radius of the average, for the class of one pass, or for ``one_pass_class``; 0 claims nothing."""
    one_pass_basis: str | None = None
    one_pass_class: int | None = None
    """The class of the average, as a head or copy predicts it; None if the calibration has neither."""
    certified_radius: float | None = None
    """Deterministic L2 radius of the network; 0 claims nothing. None unless it is Lipschitz by construction."""
    certified_basis: BasisKind | None = None
    under_attack: AttackClaim | None = None
    """None unless noisy passes were asked for."""


@dataclass(frozen=True, kw_only=True)
class SampledPrediction(Prediction):
    """A prediction with the class of the average, from samples."""

    average_class: int | None
    """None where the average abstains."""
    seed: int
    """Of the noise."""
    average_basis: str


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """One prediction per image file, in the order of the files."""

    predictions: tuple[Prediction, ...]
