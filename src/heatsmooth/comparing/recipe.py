"""What a comparison is: which networks are made, how they are certified and attacked, at what size."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from heatsmooth.errors import require
from heatsmooth.results.comparison import Measure
from heatsmooth.results.rates import TriedSetting
from heatsmooth.training.field import Denoising, Rival
from heatsmooth.training.settings import Baseline, Distillation, HeatChanges, Plan, PlanChanges, Preset, preset


@dataclass(frozen=True)
class Trained:
    """A network trained from scratch with labels."""

    choices: Baseline
    plan: Plan
    stochastic: bool = False
    """It predicts by averaging over noise: its class comes from noisy samples, and attacks are on the average."""
    tuned: str | None = None
    """The trial that chooses a setting of it; None: all are as they are here."""


@dataclass(frozen=True)
class Smoothed:
    """A network smoothed without labels from another of the recipe."""

    start: str
    preset: Preset | None = "bootcamp"
    """Of HeatSmoothing; None with ``rival``."""
    heat: HeatChanges = field(default_factory=HeatChanges)
    """What differs from the objective of the preset."""
    plan: PlanChanges = field(default_factory=PlanChanges)
    """What differs from the optimisation of the preset."""
    stochastic: bool = False
    rival: Rival | None = None
    """The method of others that is used instead of HeatSmoothing."""
    keep: float | None = None
    """The share of answers to keep; held-out images are every second test image."""
    images: int | None = None
    """Training images of each epoch, a fixed subset; None: all of the recipe."""
    takes_as_long_as: str = ""
    """A method of other epochs that takes at least as long."""
    tuned: str | None = None
    """The trial that chooses a setting of it; None: all are as they are here."""

    @property
    def is_own(self) -> bool:
        """Whether it is HeatSmoothing as this project does it, not as the paper does, nor a method of others."""
        return self.preset in ("bootcamp", "bootcamp-strong")

    @property
    def fits_logits(self) -> bool:
        """Whether the loss of HeatSmoothing is about logits, not about probabilities."""
        return self.preset is not None and preset(self.preset, 1.0, **self.heat)[0].distance == "squared-logits"

    @property
    def epochs(self) -> int:
        """Passes over the images."""
        return self.plan.get("epochs", 1)

    @property
    def denoiser(self) -> str | None:
        """The denoiser in front of the network, if the method makes one."""
        return self.rival.denoiser if isinstance(self.rival, Denoising) else None


@dataclass(frozen=True)
class Distilled:
    """A student that is Lipschitz by construction, distilled without labels from another network of the recipe.

    It has deterministic certificates, which need no noise. So it is in tables of its own.
    """

    start: str
    student: str = "lipschitz-small"
    choices: Distillation = Distillation()  # noqa: RUF009  # frozen
    plan: PlanChanges = field(default_factory=PlanChanges)
    """What differs from ``DISTILLING``."""
    stochastic: bool = False


@dataclass(frozen=True)
class Given:
    """A network that the person names."""

    stochastic: bool = False


Method = Trained | Smoothed | Distilled | Given

LOST = 0.1
"""Clean accuracy that a value of a trial may lose against the best one."""


@dataclass(frozen=True)
class Trial:
    """A short training with each of some values of a setting, of which one is chosen."""

    method: Trained | Smoothed
    values: tuple[float, ...]
    setting: TriedSetting = "lr"
    farther: int = 3
    """As long as the best value is the smallest or the largest, another one beyond it is tried; at most so many."""

    def with_value(self, method: Trained | Smoothed, value: float) -> Trained | Smoothed:
        """The method with this value of the setting."""
        if isinstance(method, Trained):
            return replace(method, plan=replace(method.plan, lr=value))
        if self.setting == "lr":
            return replace(method, plan=method.plan | {"lr": value})
        if method.rival is not None:
            return replace(method, rival=replace(method.rival, **{self.setting: value}))  # type: ignore[arg-type]  # a weight
        return replace(method, heat=method.heat | {"weight": value})

    @staticmethod
    def best(radii: dict[float, float], accuracies: dict[float, float]) -> float:
        """The value with the largest ACR among those whose clean accuracy is at most ``LOST`` below the best.

        A network whose answers hardly depend on the image can have the largest ACR.

        - ``radii``: the ACR that each value reached.
        - ``accuracies``: the accuracy of its answers on the same images without noise.

        >>> Trial.best({0.3: 0.096, 0.1: 0.086, 0.03: 0.088}, {0.3: 0.40, 0.1: 0.77, 0.03: 0.79})
        0.03
        """
        enough = max(accuracies.values()) - LOST - 1e-9
        return max((value for value in radii if accuracies[value] >= enough), key=lambda value: radii[value])

    def beyond(self, best: float, tried: Collection[float]) -> float | None:
        """The value to try after these, if the best of them is the smallest or the largest; None otherwise.

        Its ratio to the best one is that of the best one to its neighbour.

        >>> trial = Trial(Smoothed("undefended"), (5, 10, 20))
        >>> trial.beyond(5, {5, 10, 20}), trial.beyond(10, {5, 10, 20}), trial.beyond(20, {5, 10, 20})
        (2.5, None, 40.0)
        """
        values = sorted(tried)
        if len(values) < 2 or best not in (values[0], values[-1]) or len(values) >= len(self.values) + self.farther:
            return None
        neighbour = values[1] if best == values[0] else values[-2]
        further = float(f"{best * best / neighbour:.3g}") if neighbour else best
        return None if values[0] <= further <= values[-1] else further

    def run_name(self, name: str, value: float) -> str:
        """Of the run with this value, in the trial of this name."""
        return f"{name}-{self.setting}-{value:g}"


@dataclass(frozen=True)
class Stated:
    """A claim of the paper: one method has a larger value of a measure than another."""

    claim: str
    where: str
    """Where the paper states it."""
    larger: str
    smaller: str
    measure: Measure
    paper: tuple[float, float] | None = None
    """The two values in the paper; None where it shows a figure without numbers."""


@dataclass(frozen=True)
class Recipe:
    """A comparison; ``methods`` in the order in which they are made. Empty ``data``: the person names it."""

    about: str
    data: str
    model: str
    sigma: float
    methods: dict[str, Method]
    made_only: tuple[str, ...] = ()
    """Methods that others start from and that are not compared themselves."""
    n: int = 10_000
    n0: int = 100
    n_wrong: int | None = None
    """Samples per image where the class is wrong, if fewer; then without top-k certificates."""
    top_k: int = 1
    """Beside top-1, certificates for the k most probable classes, from the same counts."""
    certified: int = 1000
    """Test images to certify, evenly spread; likewise below."""
    proven: int | None = None
    """Test images with deterministic certificates. None: all, since each takes one pass."""
    attacked: int = 1000
    steps: int = 20
    eps: float = 4.0
    noise_samples: int = 100
    """Samples of the average of stochastic networks under attack."""
    timed: int = 20
    """Test images whose inference is timed, one after another."""
    timed_draws: int = 100
    """Samples of the stochastic inference that is timed."""
    audited: int = 200
    smooth_on: str = ""
    """Images to smooth and train on, if not the training images of ``data``."""
    limit_train: int | None = None
    image_size: int | None = None
    """Centre crop of encoded images; None: the network's, else the usual one."""
    every_seed: tuple[str, ...] = ()
    """Methods that are made with every seed, the others only with the first; empty: all."""
    trials: dict[str, Trial] = field(default_factory=dict)
    """By name, how settings are chosen: with the first seed, on test images with an odd index."""
    trial_images: int = 10_000
    """Training images of each epoch of a trial."""
    tried: int = 200
    """Test images of a trial, certified with up to 1,000 samples."""
    heated: int = 0
    """Test images on which the distance to the average of the teacher is measured after each timestep."""
    claims: tuple[Stated, ...] = ()
    """What the paper claims about these methods."""
    size: str = ""
    """How much smaller than in the paper everything is: shown below the claims."""

    @property
    def compared(self) -> dict[str, Method]:
        """The methods that are certified, attacked and timed."""
        return {name: method for name, method in self.methods.items() if name not in self.made_only}

    @property
    def sampled(self) -> dict[str, Method]:
        """The compared methods whose average is certified, from noisy samples."""
        return {name: method for name, method in self.compared.items() if not isinstance(method, Distilled)}

    @property
    def has_top_k(self) -> bool:
        """Whether there are certificates for more than the most probable class."""
        return self.top_k > 1 and self.n_wrong is None

    @property
    def attacked_top_k(self) -> int:
        """Attacks move the label out of the k most probable classes: five on ImageNet as in the paper, else one."""
        return 5 if self.top_k == 5 else 1

    @property
    def holds_out(self) -> bool:
        """Whether something is chosen on test images with an odd index: a share of answers, or a setting."""
        return self.keeps or bool(self.trials)

    @property
    def keeps(self) -> bool:
        """Whether a method keeps a share of the network's answers."""
        return any(isinstance(method, Smoothed) and method.keep is not None for method in self.methods.values())

    @property
    def trials_needed(self) -> dict[str, Trial]:
        """The trials whose setting a method takes."""
        taken = {getattr(method, "tuned", None) for method in self.methods.values()}
        return {name: trial for name, trial in self.trials.items() if name in taken}

    @property
    def starts(self) -> tuple[str, ...]:
        """The methods from whose networks others start."""
        starts = _starts(self.methods)
        return tuple(name for name in self.methods if name in starts)

    @property
    def separable(self) -> list[tuple[str, ...]]:
        """The compared methods in groups that need nothing from each other: those with the same trial are together."""
        groups: dict[str, tuple[str, ...]] = {}
        for name, method in self.compared.items():
            trial = getattr(method, "tuned", None) or name
            groups[trial] = (*groups.get(trial, ()), name)
        return list(groups.values())

    @property
    def repeated(self) -> tuple[str, ...]:
        """The compared methods that are made with every seed."""
        return tuple(name for name in self.compared if name in self.every_seed) or tuple(self.compared)

    def of_later_seeds(self) -> "Recipe":
        """What is made with other seeds than the first."""
        return self.restricted_to(self.repeated)

    def seeds_of(self, name: str, places: list[Path]) -> list[Path]:
        """Of the directories of all seeds, those that have this method."""
        return places if name in self.repeated else places[:1]

    def seeds_of_both(self, one: str, other: str, places: list[Path]) -> list[Path]:
        """Of the directories of all seeds, those that have both methods."""
        return min((self.seeds_of(name, places) for name in (one, other)), key=len)

    def rehearsed(self) -> "Recipe":
        """The same stages on a few images, to see that everything runs."""
        trials = {
            name: replace(trial, method=_shorter(trial.method), values=trial.values[:2], farther=0)  # type: ignore[arg-type]  # same kind
            for name, trial in self.trials.items()
        }
        shorter = {name: _shorter(method) for name, method in self.methods.items()}
        few = {
            "certified": 4,
            "proven": 4,
            "attacked": 4,
            "audited": 4,
            "limit_train": 128 if self.keeps else 32,  # some of them may be held out
            "noise_samples": 4,
            "steps": 2,
        }
        few |= {"timed": 2, "timed_draws": 20, "tried": 4, "heated": min(self.heated, 4), "trial_images": 32}
        few_wrong = None if self.n_wrong is None else 20
        return replace(self, methods=shorter, trials=trials, n=100, n0=20, n_wrong=few_wrong, **few)  # type: ignore[arg-type]  # all of them int

    def restricted_to(self, names: tuple[str, ...]) -> "Recipe":
        """The recipe with only these methods compared; the networks they start from are still made."""
        unknown = [name for name in names if name not in self.methods]
        require(not unknown, f"`methods`: expected some of {', '.join(self.methods)}, got {', '.join(unknown)}")
        starts = _starts({name: self.methods[name] for name in names})
        kept = {name: method for name, method in self.methods.items() if name in {*names, *starts}}
        return replace(self, methods=kept, made_only=tuple(sorted(starts - set(names))))


def _starts(methods: Mapping[str, Method]) -> set[str]:
    """The methods from whose networks these start."""
    return {method.start for method in methods.values() if isinstance(method, Smoothed | Distilled)}


def _shorter(method: Method) -> Method:
    """The method with one epoch of small batches."""
    if isinstance(method, Trained):
        return replace(method, plan=replace(method.plan, epochs=1, batch_size=16))
    if isinstance(method, Smoothed):
        return replace(method, plan=method.plan | {"epochs": 1, "batch_size": 16}, images=None)
    if isinstance(method, Distilled):
        return replace(method, student="lipschitz-tiny", plan=method.plan | {"epochs": 1, "batch_size": 16})
    return method
