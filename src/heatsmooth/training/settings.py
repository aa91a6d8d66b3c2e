"""What a person may choose about training. No torch: the command line reads its options here."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, TypedDict, get_args

from heatsmooth.errors import require
from heatsmooth.settings import Noise, Norm, alternatives, check_at_least, check_choices, check_positive, norm_of

Distance = Literal["squared-logits", "squared-probabilities", "cross-entropy"]
Penalty = Literal["logits", "probabilities", "fisher"]
Estimator = Literal["projection", "direction", "pair", "exact", "none"]
Scaling = Literal["paper", "unbiased"]
NoisyImages = Literal["none", "fraction", "copy"]
Schedule = Literal["constant", "linear", "cosine", "steps"]
BatchNorm = Literal["train", "frozen"]
Optimizer = Literal["sgd", "adam", "muon"]
Tracker = Literal["tensorboard", "wandb", "mlflow", "trackio"]
Preset = Literal["bootcamp", "bootcamp-strong", "paper-cifar10", "paper-imagenet"]


@dataclass(frozen=True)
class Heat:
    """The objective of HeatSmoothing. The defaults are the preset ``bootcamp``."""

    sigma: float
    """Standard deviation of the noise, in [0, 1] pixels."""
    distance: Distance = "cross-entropy"
    """Distance of student and teacher. ½‖v − f‖², ½‖softmax v − softmax f‖², or −Σ softmax f · log softmax v."""
    temperature: float | None = None
    """T, by which the logits of both networks are divided, so that a sure teacher also teaches the classes that it
    finds unlikely (default of bootcamp: the smallest from 1 on with a mean confidence of at most 0.9)."""
    penalty: Penalty = "fisher"
    """Whose gradient is penalised. That of the logits, of the probabilities, or of the probabilities in the Fisher
    metric."""
    estimator: Estimator = "pair"
    """How the squared gradient is estimated. From κ random projections, from κ random input directions, along the
    noisy copy of each image, from the whole Jacobian, or no penalty."""
    projections: int = 1
    """κ, the number of projections or directions."""
    delta: float | None = None
    """Finite-difference step (default of bootcamp: σ). Its length (projection), or its standard deviation per pixel
    (direction)."""
    scaling: Scaling = "unbiased"
    """Scale of the projection estimator. The sum in the paper has mean κ/classes · ‖∇u‖²_F; unbiased has ‖∇u‖²_F."""
    weight: float = 0.2
    """Weight of the penalty: larger is more robust and less accurate. It multiplies h·σ²/2·‖∇u‖². 1 is the vector form
    of the paper; ½ is the time of the heat equation itself (appendix A, scalar form)."""
    noisy_images: NoisyImages = "copy"
    """Which training images have noise. none: no image. fraction: each with probability `noise_fraction`. copy: a noisy
    version of each is added."""
    noise_fraction: float = 0.5
    """Share of noisy images, with `noisy_images` fraction."""
    ascent: float = 0.5
    """Gradient step of noisy versions, in multiples of σ; 0 is none. Each moves this far (L2) in the direction that
    increases its distance to the teacher most in the `norm`."""
    timesteps: int = 1
    """n_T, the number of timesteps. After each one, the student becomes the teacher of the next."""
    restart: bool = False
    """Begin each timestep with random weights, as the public code of the paper does, instead of the teacher's."""
    noise: Noise = "gaussian"
    """Distribution of the noise: that of the radii to certify. `sigma` is the standard deviation of each. Only the
    average over gaussian noise solves the heat equation."""
    norm: Norm | None = None
    """Norm of the radii to certify (default: l2 with gaussian noise, else l1). It decides the direction of `ascent`."""

    def __post_init__(self) -> None:
        check_positive(self, "sigma", "delta", "temperature")
        check_at_least(self, 1, "projections", "timesteps")
        check_at_least(self, 0, "weight", "ascent", "noise_fraction", "temperature")
        require(
            self.noise not in get_args(NoisyImages),
            f"`noise`: expected {alternatives(get_args(Noise))}, got {self.noise}; use `noisy_images` {self.noise}",
        )
        check_choices(self)
        norm_of(self.noise, self.norm)
        require(
            self.noise == "gaussian" or self.noisy_images != "none",
            f"`noise`: expected gaussian where no image is noisy, got {self.noise}; choose `noisy_images` copy",
        )
        require(self.noise_fraction <= 1, f"`noise_fraction`: expected from 0 to 1, got {self.noise_fraction}")
        require(
            self.noisy_images == "copy" or self.estimator != "pair",
            f"`noisy_images`: expected copy with `estimator` pair, got {self.noisy_images}; or `estimator` direction",
        )

    def describe(self) -> dict[str, object]:
        """What a run records. What earlier versions did not offer is left out where it is as in them."""
        unsaid = {"noise", "norm"} | (set() if self.noisy_images == "copy" else {"ascent"})
        unsaid |= {name for name, usual in {"restart": False, "temperature": 1}.items() if getattr(self, name) == usual}
        said = {name: value for name, value in asdict(self).items() if name not in unsaid}
        facts: dict[str, object] = {"noise" if name == "noisy_images" else name: said[name] for name in said}
        facts |= {} if self.noise == "gaussian" else {"distribution": self.noise}
        return facts | ({} if self.radius_norm == "l2" else {"norm": self.radius_norm})

    @property
    def radius_norm(self) -> Norm:
        """The norm of the radii that it is meant for."""
        return norm_of(self.noise, self.norm)

    @property
    def step(self) -> float:
        """δ."""
        return self.sigma if self.delta is None else self.delta


@dataclass(frozen=True)
class Plan:
    """How the weights are optimised."""

    epochs: int = 1
    """Passes over the images. In smoothing, per timestep."""
    batch_size: int = 128
    """Images per step, over all processes together."""
    lr: float = 0.05
    """Largest learning rate."""
    schedule: Schedule = "linear"
    """Learning rate after the warm-up. Constant, linear to 0, cosine to 0, or × 1/5 after 30 %, 60 % and 80 %."""
    warmup: float = 0.0
    """Share of the steps over which the learning rate rises from 0."""
    warmup_steps: int = 0
    """The learning rate needs at least this many steps to rise (default of bootcamp: 100). So a training of few steps
    has small ones, and stays near the network it starts from."""
    momentum: float = 0.9
    """Momentum."""
    weight_decay: float = 0.0
    """L2 penalty on the weights."""
    batch_norm: BatchNorm = "train"
    """Batch norm. Use the statistics of each batch, or keep them frozen (default of smooth with --keep above 0.85)."""
    augment: bool = True
    """Mirror the images, and shift them with `shifts`."""
    shifts: bool = True
    """Shift augmented images by up to an eighth of their size. Few epochs learn more without it (default of bootcamp:
    from 4 epochs on)."""
    accumulate: int = 1
    """Parts of a batch that are computed one after another, to save memory. The gradient is that of the whole batch.
    With `batch_norm` train, batch norm uses the statistics of each part."""
    optimizer: Optimizer = "sgd"
    """How steps are made (default of bootcamp: muon). SGD with Nesterov momentum, Adam, or Muon, which changes every
    weight by about `lr`/5 of its size per step."""

    def __post_init__(self) -> None:
        check_positive(self, "lr")
        check_at_least(self, 1, "epochs", "batch_size", "accumulate")
        check_at_least(self, 0, "weight_decay", "warmup", "warmup_steps", "momentum")
        check_choices(self)
        for name in ("warmup", "momentum"):
            value = getattr(self, name)
            require(value < 1, f"`{name}`: expected a share from 0 to below 1, got {value}")

    def describe(self) -> dict[str, object]:
        """What a run records; later options only where they differ, as in runs from before they existed."""
        usual = {"accumulate": 1, "optimizer": "sgd", "shifts": True, "warmup_steps": 0}
        return {name: value for name, value in asdict(self).items() if usual.get(name) != value}

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, the first of which is 0, among so many steps.

        >>> Plan(lr=0.4, schedule="linear", warmup=0.5).rate(1, 4), Plan(lr=0.4, schedule="linear").rate(3, 4)
        (0.2, 0.1)
        >>> Plan(lr=1.0, warmup_steps=100).rate(4, 10), Plan(lr=1.0, warmup_steps=100).rate(500, 1000)
        (0.05, 0.5)
        """
        done = step / steps
        if done < self.warmup:
            share = done / self.warmup
        else:
            share = _SCHEDULES[self.schedule]((done - self.warmup) / (1 - self.warmup))
        return self.lr * (min(share, (step + 1) / self.warmup_steps) if self.warmup_steps else share)


_SCHEDULES: dict[Schedule, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "steps": lambda done: 0.2 ** sum(done >= drop for drop in (0.3, 0.6, 0.8)),
}


class HeatChanges(TypedDict, total=False):
    """Fields of ``Heat`` that differ from the preset."""

    distance: Distance
    temperature: float | None
    penalty: Penalty
    estimator: Estimator
    projections: int
    delta: float | None
    scaling: Scaling
    weight: float
    noisy_images: NoisyImages
    noise_fraction: float
    ascent: float
    timesteps: int
    restart: bool
    noise: Noise
    norm: Norm | None


class PlanChanges(TypedDict, total=False):
    """Fields of ``Plan`` that differ from the preset."""

    epochs: int
    batch_size: int
    lr: float
    schedule: Schedule
    warmup: float
    warmup_steps: int
    momentum: float
    weight_decay: float
    batch_norm: BatchNorm
    augment: bool
    shifts: bool
    accumulate: int
    optimizer: Optimizer


class Changes(HeatChanges, PlanChanges, total=False):
    """Fields of ``Heat`` and ``Plan`` that differ from the preset."""


FEW_EPOCHS = 3
"""Up to this many epochs, images are only mirrored: shifted images slow down what few epochs can learn."""

BOOTCAMP = Plan(batch_size=64, optimizer="muon", warmup_steps=100)
"""How ``bootcamp`` is optimised."""

_as_sure = partial(Heat, temperature=1.0, weight=1.0)
_paper = partial(_as_sure, penalty="logits", estimator="projection", delta=0.1, scaling="paper")

PRESETS: dict[Preset, Callable[[float, float], tuple[Heat, Plan]]] = {
    "bootcamp": lambda sigma, deviation: (Heat(sigma), BOOTCAMP),
    "bootcamp-strong": lambda sigma, deviation: (_as_sure(sigma, ascent=1.0), Plan(lr=0.1)),
    "paper-cifar10": lambda sigma, deviation: (
        _paper(sigma, distance="squared-logits", projections=10, noisy_images="none", timesteps=5),
        Plan(epochs=200, batch_size=100, lr=0.1, schedule="steps"),
    ),
    "paper-imagenet": lambda sigma, deviation: (
        _paper(sigma, distance="squared-probabilities", projections=6, weight=deviation**2, noisy_images="fraction"),
        Plan(lr=0.01, schedule="constant"),
    ),
}
"""Settings by name, for a given σ and standard deviation of the network's normalisation.

``paper-imagenet`` has the penalty weight of the public code. Its sum over κ = 6 projections has mean
6/classes · ‖∇v‖²_F (``scaling="paper"``). Its gradient is taken in normalised coordinates, where it is ``deviation``
times as long."""


def preset(name: str, sigma: float, *, deviation: float = 1.0, **changes: Any) -> tuple[Heat, Plan]:
    """The objective and the plan of a preset.

    ``name``: one of ``PRESETS``. ``sigma``: the noise, in [0, 1] pixels. ``deviation``: the number by which the network
    divides its input, see ``normalising_deviation``. ``changes``: fields of ``Heat`` and ``Plan`` that differ.
    """
    require(name in PRESETS, f"`preset`: expected {', '.join(PRESETS)}, got {name!r}")
    heat, plan = PRESETS[name](sigma, deviation)  # type: ignore[index]  # checked
    known_heat, known_plan = set(Heat.__dataclass_fields__), set(Plan.__dataclass_fields__)
    unknown = sorted(changes.keys() - known_heat - known_plan)
    require(
        not unknown, f"expected settings among {', '.join(sorted(known_heat | known_plan))}, got {', '.join(unknown)}"
    )
    heat = replace(heat, **{name: value for name, value in changes.items() if name in known_heat})
    plan = replace(plan, **{name: value for name, value in changes.items() if name in known_plan})
    if name == "bootcamp" and "shifts" not in changes:
        plan = replace(plan, shifts=plan.epochs > FEW_EPOCHS)
    return heat, plan


@dataclass(frozen=True)
class Baseline:
    """A training method that reads labels, and its choices; which of them matter depends on the method."""

    method: Literal["clean", "gaussian", "smoothadv", "adversarial"] = "clean"
    """The training method."""
    sigma: float = 0.0
    """Noise, required by gaussian and smoothadv. In [0, 1] pixels."""
    eps: float = 0.5
    """Largest L2 perturbation of the attack."""
    warmup_epochs: float = 10.0
    """Epochs over which `eps` (not lr) grows from 0."""
    steps: int = 4
    """Steps of the attack."""
    attack: Literal["pgd", "ddn"] = "pgd"
    """The attack."""
    noise_draws: int = 1
    """Noise samples per image of smoothadv."""

    def __post_init__(self) -> None:
        check_choices(self)
        noisy = self.method in ("gaussian", "smoothadv")
        require(not noisy or self.sigma > 0, f"`sigma`: expected a positive number for {self.method}, got {self.sigma}")
        check_positive(self, "eps")
        check_at_least(self, 1, "steps", "noise_draws")
        check_at_least(self, 0, "sigma", "warmup_epochs")

    def radius(self, epoch: float) -> float:
        """ε after this many epochs: linear up to ``eps``, and never 0."""
        share = 1.0 if self.warmup_epochs == 0 else min(1.0, epoch / self.warmup_epochs)
        return max(share, 1e-3) * self.eps


@dataclass(frozen=True)
class Distillation:
    """The objective of ``distill``."""

    radius: float = 0.35
    """L2 radius to aim for, in [0, 1] pixels. A larger one gives larger certified radii and a lower clean accuracy."""
    temperature: float | None = None
    """In units of radius. A smaller one is content with smaller radii (default: half of the radius)."""

    def __post_init__(self) -> None:
        check_positive(self, "radius", "temperature")
        check_at_least(self, 0, "radius", "temperature")

    @property
    def softness(self) -> float:
        """τ."""
        return self.radius / 2 if self.temperature is None else self.temperature


DISTILLING = Plan(epochs=6, batch_size=64, lr=0.014, warmup=0.1, optimizer="adam", shifts=False)
"""How a student of ``distill`` is optimised, unless changed."""


@dataclass(frozen=True, kw_only=True)
class Saving:
    """How often a training writes to its run directory, and where else its metrics go."""

    checkpoint_seconds: float = 30.0
    """Seconds between checkpoints."""
    log_every: int = 10
    """Steps averaged per line of metrics.jsonl."""
    track: Tracker | None = None
    """Also send the metrics there (default: nowhere). TensorBoard's files are in the folder tensorboard of the run."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "log_every")
        check_at_least(self, 0, "checkpoint_seconds")
        known = get_args(Tracker)
        require(self.track in (None, *known), f"`track`: expected {alternatives(known)}, got {self.track!r}")
        require(
            self.track is None or find_spec(self.track) is not None,
            f"`track` {self.track}: expected the package {self.track}, got none; pip install {self.track}",
        )
