"""The comparisons of the paper as data: which networks are made, how they are certified and attacked, at what size."""

from dataclasses import dataclass, field, replace

from heatsmooth.errors import require
from heatsmooth.training.field import Consistency, Denoising, Macer, Rival, SmoothMix
from heatsmooth.training.settings import Baseline, Distillation, HeatChanges, Plan, PlanChanges, Preset


@dataclass(frozen=True)
class Trained:
    """A network trained from scratch with labels."""

    choices: Baseline
    plan: Plan
    stochastic: bool = False
    """It predicts by averaging over noise: its class comes from noisy samples, and attacks are on the average."""


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
        """Whether a method keeps a share of the network's answers, which it measures on held-out images."""
        return any(isinstance(method, Smoothed) and method.keep is not None for method in self.methods.values())

    def rehearsed(self) -> "Recipe":
        """The same stages on a few images, to see that everything runs."""
        shorter: dict[str, Method] = {}
        for name, method in self.methods.items():
            if isinstance(method, Trained):
                shorter[name] = replace(method, plan=replace(method.plan, epochs=1, batch_size=16))
            elif isinstance(method, Smoothed):
                shorter[name] = replace(method, plan=method.plan | {"epochs": 1, "batch_size": 16})
            elif isinstance(method, Distilled):
                plan: PlanChanges = {**method.plan, "epochs": 1, "batch_size": 16}
                shorter[name] = replace(method, student="lipschitz-tiny", plan=plan)
            else:
                shorter[name] = method
        few = {
            "certified": 4,
            "proven": 4,
            "attacked": 4,
            "audited": 4,
            "limit_train": 128 if self.holds_out else 32,  # some of them may be held out
            "noise_samples": 4,
            "steps": 2,
        }
        few |= {"timed": 2, "timed_draws": 20}
        few_wrong = None if self.n_wrong is None else 20
        return replace(self, methods=shorter, n=100, n0=20, n_wrong=few_wrong, **few)  # type: ignore[arg-type]  # all of them int

    def restricted_to(self, names: tuple[str, ...]) -> "Recipe":
        """The recipe with only these methods compared; the networks they start from are still made."""
        unknown = [name for name in names if name not in self.methods]
        require(not unknown, f"`methods`: expected some of {', '.join(self.methods)}, got {', '.join(unknown)}")
        methods = {name: self.methods[name] for name in names}
        starts = {method.start for method in methods.values() if isinstance(method, Smoothed | Distilled)}
        kept = {name: method for name, method in self.methods.items() if name in {*names, *starts}}
        return replace(self, methods=kept, made_only=tuple(sorted(starts - set(names))))


def _by(rival: Rival) -> Smoothed:
    """The person's network, smoothed by a method of others."""
    return Smoothed("undefended", None, rival=rival)


def _methods(
    sigma: float, smoothings: dict[str, Smoothed], plan: Plan, attacked: Plan, attacks: dict[str, Baseline]
) -> dict[str, Method]:
    """The rows of the paper: undefended, its smoothings, the rivals, and adversarially trained → smoothed.

    ``plan``: of the trainings. ``attacked``: of those against attacks, whose settings are ``attacks``.
    """
    return {
        "undefended": Trained(Baseline(), plan),
        **smoothings,
        "gaussian": Trained(Baseline("gaussian", sigma), plan, stochastic=True),
        "smoothadv": Trained(attacks["smoothadv"], attacked, stochastic=True),
        "adversarial": Trained(attacks["adversarial"], attacked),
        "adversarial-smoothed": Smoothed("adversarial"),
    }


def _attacks(sigma: float, smoothadv: tuple[int, float], adversarial: tuple[int, float, float]) -> dict[str, Baseline]:
    """The attacks in training: (steps, warm-up epochs), and for ``adversarial`` also ε."""
    steps, warmup, eps = adversarial
    return {
        "smoothadv": Baseline("smoothadv", sigma, steps=smoothadv[0], warmup_epochs=smoothadv[1]),
        "adversarial": Baseline("adversarial", steps=steps, warmup_epochs=warmup, eps=eps),
    }


_SMALL = Plan(epochs=10, lr=0.2, warmup=0.15, weight_decay=5e-4)
_SMALL_ATTACKED = Plan(epochs=6, lr=0.2, warmup=0.15, weight_decay=5e-4)
_PAPER = Plan(epochs=200, batch_size=100, lr=0.1, schedule="steps", weight_decay=5e-4)
_IMAGENET = Plan(epochs=90, batch_size=256, lr=0.1, schedule="steps", weight_decay=1e-4)
_ONE_EPOCH = {
    "paper-imagenet": Smoothed("undefended", "paper-imagenet"),
    "bootcamp": Smoothed("undefended", "bootcamp"),
    "bootcamp-strong": Smoothed("undefended", "bootcamp-strong"),
}

_BEST_WEIGHT: HeatChanges = {"projections": 1, "scaling": "unbiased", "weight": 0.03}
"""Of the paper's one-epoch penalty on CIFAR-10 with ``tiny``: the best of a grid in factors of 3, by ACR on test images
that no comparison certifies (``benchmarks/ablation.py``; one projection, as there). The public code's own weight is
0.037 there, with six projections."""

_FEW_IMAGES: PlanChanges = {"epochs": 3, "batch_size": 16, "lr": 0.002, "optimizer": "sgd", "batch_norm": "frozen"}
"""For smoothing on hundreds of images instead of a million: more and smaller steps, and batch norm as it is."""

RECIPES: dict[str, Recipe] = {
    "cifar10": Recipe(
        "The paper's CIFAR-10 experiment at its full size, for a GPU.",
        "cifar10",
        "resnet34",
        0.1,
        _methods(
            0.1,
            {
                "paper-cifar10": Smoothed("undefended", "paper-cifar10"),
                "bootcamp": Smoothed("undefended", "bootcamp"),
            },
            _PAPER,
            _PAPER,
            _attacks(0.1, smoothadv=(4, 10), adversarial=(4, 10, 0.5)),
        ),
    ),
    "imagenet": Recipe(
        "The paper's ImageNet experiment: ResNet-50, one epoch; bring the images as --data imagefolder:PATH.",
        "",
        "resnet50",
        0.25,
        _methods(0.25, _ONE_EPOCH, _IMAGENET, _IMAGENET, _attacks(0.25, smoothadv=(1, 10), adversarial=(4, 10, 3.0))),
        n=1000,
        n0=25,
        top_k=5,
        noise_samples=25,
    ),
    "cifar10-small": Recipe(
        "The same methods on CIFAR-10 with a tiny network, about two hours on two cores.",
        "cifar10",
        "tiny",
        0.25,
        _methods(
            0.25,
            {"paper-imagenet-best": Smoothed("undefended", "paper-imagenet", heat=_BEST_WEIGHT), **_ONE_EPOCH},
            _SMALL,
            _SMALL_ATTACKED,
            _attacks(0.25, smoothadv=(2, 2), adversarial=(3, 2, 0.5)),
        ),
        n=1000,
        certified=500,
        attacked=100,
        noise_samples=25,
        top_k=2,
        audited=100,
    ),
    "fashion-small": Recipe(
        "The same methods on Fashion-MNIST with a tiny network, about 25 minutes on two cores.",
        "fashion-mnist",
        "tiny",
        0.25,
        _methods(
            0.25,
            _ONE_EPOCH,
            replace(_SMALL, epochs=4),
            replace(_SMALL_ATTACKED, epochs=3),
            _attacks(0.25, smoothadv=(2, 1), adversarial=(3, 1, 0.5)),
        )
        | {"distilled": Distilled("undefended", plan={"epochs": 4, "batch_size": 64})},
        n=1000,
        certified=200,
        attacked=100,
        noise_samples=25,
        top_k=2,
        audited=50,
        limit_train=10_000,
    ),
    "cifar10-public": Recipe(
        "Your CIFAR-10 network: HeatSmoothing beside what others do, without labels.",
        "cifar10",
        "resnet20",
        0.25,
        {
            "undefended": Given(),
            "bootcamp": Smoothed("undefended"),
            "bootcamp-strong": Smoothed("undefended", "bootcamp-strong"),
            "bootcamp-10-epochs": Smoothed("undefended", plan={"epochs": 10}),
            "keep-0.95": Smoothed("undefended", keep=0.95),
            "paper-imagenet-best": Smoothed("undefended", "paper-imagenet", heat=_BEST_WEIGHT),
            "consistency": _by(Consistency()),
            "macer": _by(Macer(radius_copies=4)),
            "smoothmix": _by(SmoothMix()),
            "denoised": _by(Denoising()),
            "gaussian": Trained(Baseline("gaussian", 0.25), _SMALL, stochastic=True),
            "distilled": Distilled("undefended"),
        },
        n=1000,
        certified=250,
        attacked=50,
        noise_samples=25,
        audited=0,
    ),
    "imagenet-sample": Recipe(
        "Your pretrained ImageNet network before and after smoothing, on your folder of images.",
        "",
        "",
        0.25,
        {"undefended": Given(), "bootcamp": Smoothed("undefended", "bootcamp", plan=_FEW_IMAGES)},
        n=400,
        n0=25,
        top_k=5,
        certified=100,
        attacked=25,
        noise_samples=25,
        timed=3,
        audited=0,
    ),
}
"""By name, what ``heatsmooth compare NAME`` does."""
