"""``heatsmooth compare``."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatsmooth.commands.command import Command, show_table
from heatsmooth.commands.experiment import Experiment
from heatsmooth.commands.inputs import FILES, RUNNING, Computing, ImageFiles, Network
from heatsmooth.commands.options import grouped
from heatsmooth.commands.stages import Stage
from heatsmooth.comparing.recipe import Given, Recipe
from heatsmooth.comparing.recipes import RECIPES
from heatsmooth.errors import InputError, require
from heatsmooth.progress import Progress, silent
from heatsmooth.settings import check_at_least

if TYPE_CHECKING:
    from heatsmooth.results.comparison import Comparison, MethodFigures


@dataclass(frozen=True, kw_only=True)
class RecipeChanges:
    """What differs from the recipe; None leaves it."""

    data: str | None = None
    """Other images: imagefolder:PATH, hf:NAME, …"""
    smooth_on: str | None = None
    """Other images to train and smooth on."""
    image_size: int | None = None
    """Side of the centre crop of encoded images, in pixels."""
    certified: int | None = field(default=None, metadata={"flag": "--images"})
    """Number of test images to certify."""
    n: int | None = None
    """Noise samples per image."""
    n_wrong: int | None = None
    """Fewer samples where the class is wrong."""
    methods: tuple[str, ...] | None = None
    """Compare only these methods, as bootcamp,gaussian."""


@dataclass(frozen=True, kw_only=True)
class OwnNetwork:
    """The undefended network of the person, if they have one."""

    source: Path | None = field(default=None, metadata={"flag": "--from", "group": "Changes to the recipe"})
    """Your undefended network."""
    model: str | None = None
    """Its architecture: package.module:callable, hf:NAME, …"""
    classes: int | None = None
    """Number of classes of a built-in network."""
    mean: tuple[float, ...] | None = None
    """Mean of the normalisation inside the network, as 0.5 or 0.49,0.48,0.45."""
    std: tuple[float, ...] | None = None
    """Standard deviation of the normalisation inside the network."""

    @property
    def network(self) -> Network | None:
        """The network, if one is named."""
        if self.source is None:
            given = [name for name, value in vars(self).items() if value is not None]
            if given:
                raise InputError(f"`{given[0]}`: expected `source` beside it, got none; name the weights")
            return None
        return Network(source=self.source, model=self.model, classes=self.classes, mean=self.mean, std=self.std)


@dataclass(frozen=True, kw_only=True)
class Compare(Command):
    """Make, certify, attack, time and audit every method of the paper, and report; repeating it continues it.

    Example: heatsmooth compare fashion-small --out runs/fashion-small
    """

    recipe: str = field(metadata={"positional": True, "flag": "RECIPE"})
    """cifar10, imagenet, cifar10-small, cifar10-paper, cifar10-public, fashion-small or imagenet-sample. imagenet and
    imagenet-sample need your images (`data`); imagenet-sample and cifar10-public need your network (`source`).
    fashion-small takes about 25 minutes on two cores, cifar10-small two hours, cifar10-public two and a half for a
    ResNet-20, cifar10-paper several; cifar10 and imagenet are for GPUs."""
    out: Path | None = None
    """Directory of all runs (default: the name of the recipe)."""
    data_root: Path | None = None
    """Directory of the files of a data set."""
    rehearse: bool = False
    """Run all stages on a few images, to see that everything works."""
    seeds: tuple[int, ...] = (0,)
    """Seeds, as 0,1,2: mean and spread over them."""
    changes: RecipeChanges = field(default=RecipeChanges(), metadata=grouped("Changes to the recipe"))
    own: OwnNetwork = field(default=OwnNetwork(), metadata=grouped("Network"))
    class_index: Path | None = field(default=None, metadata=FILES)
    """Classes of an imagefolder: a .json, .csv or .txt file."""
    device: str | None = field(default=None, metadata=RUNNING)
    """cpu, cuda, … (default: the accelerator if there is one)."""
    jobs: int = field(default=1, metadata=RUNNING)
    """Methods worked on at the same time, each with an equal part of the cores: at most as many as cores."""

    def __post_init__(self) -> None:
        require(bool(self.seeds), "`seeds`: expected numbers as 0,1,2, got none")
        check_at_least(self, 1, "jobs")

    @property
    def place(self) -> Path:
        """The directory of all runs."""
        return self.out or Path(self.recipe)

    def resolved(self) -> Recipe:
        """The recipe with its changes; refused if the person must name something and does not."""
        name = self.recipe
        require(name in RECIPES, f"`recipe`: expected {', '.join(RECIPES)}, got {name!r}")
        changed = {key: value for key, value in vars(self.changes).items() if value is not None and key != "methods"}
        recipe = replace(RECIPES[name], **changed)
        if self.own.network is not None:
            recipe = replace(recipe, methods=recipe.methods | {"undefended": Given()})
        if self.changes.methods is not None:
            recipe = recipe.restricted_to(self.changes.methods)
        missing = self.own.network is None and any(isinstance(m, Given) for m in recipe.methods.values())
        require(not missing, f"compare {name}: expected your network, got none; name it by --from and --model")
        require(
            bool(recipe.data), f"compare {name}: expected your images, got none; name them by --data imagefolder:PATH"
        )
        return recipe.rehearsed() if self.rehearse else recipe

    def experiment(self, seed: int) -> Experiment:
        """The runs of one seed."""
        recipe = self.resolved() if seed == self.seeds[0] else self.resolved().of_later_seeds()
        files = ImageFiles(data=recipe.data, data_root=self.data_root, class_index=self.class_index)
        return Experiment(
            recipe=recipe,
            place=self.place / f"seed-{seed}",
            files=files,
            own=self.own.network,
            computing=Computing(seed=seed, device=self.device),
        )

    def run(self, progress: Progress = silent) -> "Comparison | None":
        """Fill the directory with every stage for every seed; the comparison, also in comparison.json.

        None in a process that follows. Each stage begins when all processes are done with the one before.
        """
        from heatsmooth.comparing.findings import findings
        from heatsmooth.device import accelerator
        from heatsmooth.reporting import build_report
        from heatsmooth.results.comparison import COMPARISON_FILE

        unseen = self.experiment(self.seeds[0]).certifies_unseen_images()
        processes = accelerator(self.device)
        if self.jobs > 1:
            require(
                processes.num_processes == 1,
                f"`jobs`: expected 1 under several processes, got {self.jobs}; leave it out",
            )
            self._fill_together(progress)
        seconds = sum(self._fill(seed, list(self.experiment(seed).stages()), progress) for seed in self.seeds)
        if not processes.is_main_process:
            return None
        page = self.place / "report.html"
        comparison = replace(
            findings(self.resolved(), [self.place / f"seed-{seed}" for seed in self.seeds]),
            out=str(self.place),
            seeds=self.seeds,
            certified_images_unseen=unseen,
            seconds=round(seconds, 1),
        )
        comparison.write(self.place / COMPARISON_FILE)
        first, *others = self.seeds
        title = f"heatsmooth: {self.recipe}" + (f", runs of seed {first}" if others else "")
        build_report([self.place / f"seed-{first}", self.place / COMPARISON_FILE], page, title=title)
        return replace(comparison, report=str(page))

    def _fill(self, seed: int, stages: Sequence[Stage], progress: Progress) -> float:
        """Do these stages of a seed, one after another; the seconds that they took, as they record."""
        from heatsmooth.device import accelerator

        processes, place, seconds = accelerator(self.device), self.experiment(seed).place, 0.0
        for number, stage in enumerate(stages, start=1):
            what = f"seed {seed}, stage {number} of {len(stages)}: {stage.name}"
            progress(what, 0, 1)
            if stage.shared or processes.is_main_process:
                stage.fill(progress)
            processes.wait_for_everyone()
            seconds += _seconds(stage.directory or place / stage.name)
            progress(what, 1, 1)
        return seconds

    def _fill_together(self, progress: Progress) -> None:
        """Do what may run beside other stages: first the networks that others start from, then method by method."""
        from heatsmooth.commands.together import work_together

        recipe = self.resolved()
        for seed in self.seeds:
            experiment = self.experiment(seed)
            starts = [name for name in recipe.starts if name in experiment.recipe.methods]
            self._fill(seed, list(experiment.making(starts)), progress)
        works = {names[0]: partial(self.fill_some, names) for names in recipe.separable}
        work_together(works, self.jobs, progress)

    def fill_some(self, methods: tuple[str, ...], progress: Progress) -> None:
        """Make, certify, attack and audit these methods with each of their seeds; where they start from is there."""
        starts = self.resolved().starts
        for seed in self.seeds:
            stages = self.experiment(seed).stages()
            some = [stage for stage in stages if stage.of in methods and not stage.alone and stage.name not in starts]
            self._fill(seed, some, progress)

    def show(self, result: Any) -> None:
        """Print every table of the comparison."""
        from heatsmooth.reporting.compared import PROVEN_EXPLAINED, gained, proven_figures, ratios

        comparison: Comparison = result
        if comparison.methods:
            self._show_sampled(comparison)
        if comparison.proven:
            rows = [{"method": name, **proven_figures(row)} for name, row in comparison.proven.items()]
            show_table(rows, f"Networks that are Lipschitz by construction, {comparison.proven_images} images")
            print(PROVEN_EXPLAINED)
        everything = comparison.methods | comparison.proven
        show_table([_attacked(name, row) for name, row in everything.items()], "Attacked, and timed on one image")
        print(
            f"PGD and DDN: the median L2 distance at which {self.resolved().steps} steps of the "
            f"top-{comparison.attacked_top_k} attack succeed, over images correct at the start. Methods that predict "
            "by averaging are attacked on one fixed average of samples."
        )
        if not comparison.certified_images_unseen:
            print("The networks were made on the same images that are certified; name others by --smooth-on.")
        for name, gain in comparison.gains.items():
            rows = [dict(zip(("", "before", "after", "change"), row, strict=True)) for row in gained(gain)]
            show_table(rows, f"{gain.start} → {name}, with 95 % intervals over images")
        heads = ("ACR of", "against that of", "", *(("by seed",) if len(comparison.seeds) > 1 else ()))
        if factors := [dict(zip(heads, row, strict=False)) for row in ratios(comparison)]:
            show_table(factors, "With 95 % intervals over images, for these networks")
        self._show_claims(comparison)
        print(f"Report: {comparison.report}")

    def _show_claims(self, comparison: "Comparison") -> None:
        """Print the trades, the claims of the paper and the distances after each timestep, if there are any."""
        from heatsmooth.reporting import claims

        if rows := claims.trades_of(comparison):
            show_table(rows, "At no less clean accuracy")
            print(claims.TRADES_EXPLAINED)
        if rows := claims.timesteps_of(comparison):
            show_table(rows, "Distance to the Gaussian average of the teacher")
            print(claims.TIMESTEPS_EXPLAINED)
        if rows := claims.claims_of(comparison):
            show_table(rows, "The paper's claims")
            print(f"{comparison.size} {claims.CLAIMS_EXPLAINED}".lstrip())

    def _show_sampled(self, comparison: "Comparison") -> None:
        """Print the figures of the methods whose average is certified."""
        from heatsmooth.reporting.compared import EXPLAINED, conditions, figures

        recipe = self.resolved()
        rows = [{"method": name, **figures(row)} for name, row in comparison.methods.items()]
        show_table(rows, f"{recipe.about} σ={recipe.sigma:g}")
        averaging = " and ".join(name for name, method in recipe.compared.items() if method.stochastic)
        answer = f" The answer of {averaging} is that of its average." if averaging else ""
        print(f"{EXPLAINED}{answer} ({conditions(comparison)}.)")


def _seconds(run: Path) -> float:
    """What a run took, as it records: of several processes, the longest."""
    from heatsmooth.results.run_info import RunInfo

    return max((RunInfo.read(file).seconds for file in run.glob("run*.json")), default=0.0)


def _attacked(name: str, row: "MethodFigures") -> dict[str, str]:
    from heatsmooth.results.comparison import Measure

    def distance(measure: Measure) -> str:
        mean, deviation = row.mean(measure), row.deviation(measure)
        spread = "" if deviation is None else f" ± {deviation:.3f}"
        return "–" if mean is None else f"{math.ceil(1000 * mean) / 1000:.3f}{spread}"

    once, often = row.mean(Measure.ONE_PASS_SECONDS), row.mean(Measure.STOCHASTIC_SECONDS)
    return {
        "method": name,
        "PGD": distance(Measure.PGD_MEDIAN),
        "DDN": distance(Measure.DDN_MEDIAN),
        "one pass": "–" if once is None else f"{1000 * once:.1f} ms",
        "stochastic": "–" if often is None else f"{1000 * often:.1f} ms",
        "slower by": "–" if not once or often is None else f"× {often / once:.1f}",
    }
