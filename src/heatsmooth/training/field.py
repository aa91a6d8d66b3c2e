"""The settings of the methods of others, as they are without labels: what their papers tuned. No torch.

Each objective is in the file of its name beside this one. The teacher's answers take the place of the labels.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from heatsmooth.errors import require
from heatsmooth.settings import check_at_least, check_choices, check_positive
from heatsmooth.training.settings import BOOTCAMP, Heat, Plan
from heatsmooth.training.settings import preset as preset_named

Method = Literal["heat", "consistency", "macer", "smoothmix", "denoised"]
BUILT_IN = "dncnn"


@dataclass(frozen=True)
class Consistency:
    """Consistency regularisation (Jeong and Shin 2020)."""

    consistency: float = 10.0
    """λ, the weight of the divergence of each noisy answer from their mean."""
    entropy: float = 0.5
    """η, the weight of the entropy of that mean."""
    consistency_copies: int = 2
    """m, noisy copies per image."""

    def __post_init__(self) -> None:
        check_at_least(self, 0, "consistency", "entropy")
        check_at_least(self, 2, "consistency_copies")


@dataclass(frozen=True)
class Macer:
    """MACER (Zhai et al. 2020): maximise the certified radius itself."""

    radius_weight: float = 12.0
    """λ, the weight of the radius."""
    largest_margin: float = 8.0
    """γ: images with a larger margin Φ⁻¹(p₁) − Φ⁻¹(p₂) do not count."""
    sharpness: float = 16.0
    """β, the factor of the logits in the radius."""
    radius_copies: int = 16
    """m, noisy copies per image."""

    def __post_init__(self) -> None:
        check_at_least(self, 0, "radius_weight")
        check_positive(self, "largest_margin", "sharpness")
        check_at_least(self, 1, "radius_copies")


@dataclass(frozen=True)
class SmoothMix:
    """SmoothMix (Jeong et al. 2021): mix images with adversarial ones, and their answers with indifference."""

    mix_weight: float = 5.0
    """η, the weight of the mixed images."""
    mix_steps: int = 4
    """T, steps of the attack on the average."""
    mix_step: float = 2.0
    """α, the length of each step, in multiples of σ."""
    mix_copies: int = 2
    """m, noisy copies per image."""

    def __post_init__(self) -> None:
        check_at_least(self, 0, "mix_weight")
        check_positive(self, "mix_step")
        check_at_least(self, 1, "mix_steps", "mix_copies")


@dataclass(frozen=True)
class Denoising:
    """Denoised Smoothing (Salman et al. 2020): a denoiser in front of the network, which stays as it is."""

    denoiser: str = BUILT_IN
    """dncnn, or package.module:callable. The callable returns a network from noisy to clean images in [0, 1]."""
    denoiser_loss: Literal["mse", "stability", "both"] = "both"
    """What the denoiser learns: the clean pixels, the teacher's answers behind it, or both."""

    def __post_init__(self) -> None:
        check_choices(self)
        known = self.denoiser == BUILT_IN or ":" in self.denoiser
        require(known, f"`denoiser`: expected {BUILT_IN} or package.module:callable, got {self.denoiser!r}")


Rival = Consistency | Macer | SmoothMix | Denoising

NAMES: dict[type[Rival], Method] = {
    Consistency: "consistency",
    Macer: "macer",
    SmoothMix: "smoothmix",
    Denoising: "denoised",
}

_AS_BOOTCAMP = replace(BOOTCAMP, shifts=False)
PLANS: dict[Method, Plan] = {
    "consistency": _AS_BOOTCAMP,
    "macer": _AS_BOOTCAMP,
    "smoothmix": _AS_BOOTCAMP,
    "denoised": Plan(lr=0.003, optimizer="adam"),
}
"""How each is optimised, if the person does not say otherwise. Only the denoiser learns from nothing."""


UNCHANGED = 0.85
"""To keep a larger share than this, ``bootcamp`` leaves the statistics of batch norm as they are. Measured again, even
on clean images, they change some percent of the answers by themselves."""


@dataclass(frozen=True)
class Task:
    """What ``smooth`` does: an objective, and how it is minimised."""

    sigma: float
    """Standard deviation of the noise, in [0, 1] pixels."""
    objective: Heat | Rival
    plan: Plan
    preset: str | None = None
    """Of HeatSmoothing."""
    keep: float | None = None
    """The share of the teacher's answers on clean images to keep; None: as it comes."""

    def __post_init__(self) -> None:
        if self.keep is None:
            return
        require(0 < self.keep < 1, f"`keep`: expected a share above 0 and below 1, got {self.keep}")
        require(self.method != "denoised", "`keep`: expected a `method` that trains the network itself, got denoised")
        timesteps = self.objective.timesteps if isinstance(self.objective, Heat) else 1
        require(timesteps == 1, f"`keep`: expected `timesteps` 1 beside it, got {timesteps}")

    @property
    def method(self) -> Method:
        """Its name."""
        return "heat" if isinstance(self.objective, Heat) else NAMES[type(self.objective)]

    def describe(self) -> dict[str, object]:
        """What a run records."""
        if isinstance(self.objective, Heat):
            facts: dict[str, object] = {"preset": self.preset, "heat": self.objective.describe()}
        else:
            facts = {"choices": {"method": self.method, "sigma": self.sigma, **asdict(self.objective)}}
        return facts | ({} if self.keep is None else {"keep": self.keep}) | {"plan": self.plan.describe()}


def task(
    sigma: float,
    *,
    preset: str | None = None,
    method: Rival | None = None,
    keep: float | None = None,
    deviation: float = 1.0,
    **changes: Any,
) -> Task:
    """The task of a preset of HeatSmoothing (default: ``bootcamp``), or of a method of others.

    ``sigma``: the noise, in [0, 1] pixels. ``keep``: see ``Task``. ``deviation``: see ``settings.preset``.
    ``changes``: fields of ``Plan`` that differ, and for HeatSmoothing those of ``Heat``.
    """
    if method is None:
        name = preset or "bootcamp"
        if name == "bootcamp" and keep is not None and keep > UNCHANGED:
            changes = {"batch_norm": "frozen", **changes}
        return Task(sigma, *preset_named(name, sigma, deviation=deviation, **changes), preset=name, keep=keep)
    require(sigma > 0, f"`sigma`: expected a positive number, got {sigma}")
    require(preset is None, f"`preset`: expected none beside `method` {NAMES[type(method)]}, got {preset}")
    unknown = sorted(changes.keys() - Plan.__dataclass_fields__.keys())
    require(not unknown, f"`{(unknown or [''])[0]}`: expected only with `method` heat, got {NAMES[type(method)]}")
    return Task(sigma, method, replace(PLANS[NAMES[type(method)]], **changes), keep=keep)
