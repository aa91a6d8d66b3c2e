"""One seed of a comparison: the stages that make, certify, attack, time and audit its networks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from heatsmooth.certification.settings import Sampling, Settings
from heatsmooth.commands.attack import Attack, AttackSettings
from heatsmooth.commands.audit import Audit
from heatsmooth.commands.certify import Certify
from heatsmooth.commands.distill import Distill
from heatsmooth.commands.inputs import Computing, ImageFiles, Images, Network
from heatsmooth.commands.recompute import Recompute
from heatsmooth.commands.smooth import Smooth
from heatsmooth.commands.train import Train
from heatsmooth.comparing.recipes import Distilled, Given, Method, Recipe, Smoothed, Trained
from heatsmooth.progress import Progress
from heatsmooth.results.audit import AuditSettings
from heatsmooth.training.field import NAMES
from heatsmooth.training.settings import DISTILLING


@dataclass(frozen=True)
class Stage:
    """One run directory of a comparison, and the work that fills it."""

    name: str
    fill: Callable[[Progress], object]
    """Does the work, and tells the progress."""
    shared: bool = True
    """Several processes fill it together; otherwise the first one does, while the others wait."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A recipe with one seed, and with the images and the network that the person names."""

    recipe: Recipe
    place: Path
    """The directory of its runs."""
    files: ImageFiles
    own: Network | None
    computing: Computing

    @property
    def training_files(self) -> ImageFiles:
        """The images that networks are trained and smoothed on."""
        return replace(self.files, data=self.recipe.smooth_on or self.recipe.data)

    def certifies_unseen_images(self) -> bool:
        """Whether other images are certified than networks are made on: a folder has no training part.

        Refuses images that are not there, and settings that cannot be, before anything is made.
        """
        certified = self.files.load(self.recipe.image_size)
        seen = self.training_files.load(self.recipe.image_size, "train")
        for method in self.recipe.sampled.values():
            self._settings(method)
        return seen.name != certified.name

    def stages(self) -> Iterator[Stage]:
        """All stages, in an order in which each finds what it needs."""
        recipe, top_k = self.recipe, self.recipe.top_k
        for name, method in recipe.methods.items():
            yield Stage(name, self._made(name, method), shared=not isinstance(method, Given))
        for name, method in recipe.compared.items():
            yield Stage(f"{name}-certified", self._certified(name, method).run)
            if recipe.has_top_k and name in recipe.sampled:
                yield Stage(f"{name}-top-{top_k}", partial(self._recertify, name), shared=False)
            for kind in ("pgd", "ddn"):
                yield Stage(f"{name}-{kind}", self._attacked(name, method, kind).run)
            if name in recipe.sampled:
                yield Stage(f"{name}-timed", partial(self._time, name), shared=False)
            if isinstance(method, Smoothed | Distilled) and recipe.audited:
                yield Stage(f"{name}-audited", self._audited(name, method).run)

    def _network(self, name: str) -> Network:
        """The network of a method. The person's own keeps its code: that is imported only where it is named."""
        method = self.recipe.methods[name]
        code = None if self.own is None or isinstance(method, Trained | Distilled) else self.own.code
        if code is not None and isinstance(method, Smoothed) and method.denoiser is not None:
            code = f"{method.denoiser}+{code}"
        return Network(source=self.place / name, model=code, image_size=self.recipe.image_size)

    @cached_property
    def _test_images(self) -> int:
        return len(self.files.load(self.recipe.image_size))

    def _spread(self, wanted: int) -> Images:
        """At most this many test images, evenly spread: folders are sorted by class.

        Where a method keeps a share of answers, only images with an even position: the others are held out.
        """
        stride = -(-self._test_images // wanted)
        return self.files.every(stride + (stride % 2 if self.recipe.holds_out else 0), wanted)

    def _made(self, name: str, method: Method) -> Callable[[Progress], object]:
        """What makes the network of a method."""
        recipe, out = self.recipe, self.place / name
        if isinstance(method, Given):
            return partial(self._save_own, out)
        if isinstance(method, Trained):
            return Train(
                images=self.training_files,
                image_size=recipe.image_size,
                out=out,
                model=recipe.model,
                choices=method.choices,
                plan=method.plan,
                limit_train=recipe.limit_train,
                computing=self.computing,
            ).run
        return (self._distill(method, out) if isinstance(method, Distilled) else self._smooth(method, out)).run

    def _distill(self, method: Distilled, out: Path) -> Distill:
        """What distils a network of the recipe."""
        return Distill(
            network=self._network(method.start),
            images=self.training_files,
            out=out,
            student=method.student,
            choices=method.choices,
            plan=replace(DISTILLING, **method.plan),
            limit_train=self.recipe.limit_train,
            computing=self.computing,
        )

    def _smooth(self, method: Smoothed, out: Path) -> Smooth:
        """What smooths a network of the recipe; for ``keep``, every second test image is held out."""
        command = Smooth(
            network=self._network(method.start),
            images=self.training_files,
            sigma=self.recipe.sigma,
            out=out,
            preset=method.preset,
            heat=method.heat,
            plan=method.plan,
            keep=method.keep,
            held_out=None if method.keep is None else self.recipe.data,
            limit_train=self.recipe.limit_train,
            computing=self.computing,
        )
        if method.rival is None:
            return command
        name = NAMES[type(method.rival)]
        return replace(command, method=name, **{name: method.rival})  # type: ignore[arg-type]  # its settings

    def _save_own(self, out: Path, progress: Progress) -> None:  # noqa: ARG002  # a stage
        from heatsmooth.models import save
        from heatsmooth.models.checkpoint import WEIGHTS_FILE

        assert self.own is not None  # Compare.resolved refuses to go without
        if not (out / WEIGHTS_FILE).exists():
            out.mkdir(parents=True, exist_ok=True)
            save(self.own.load(channels=self.files.load(self.recipe.image_size).shape[0]), out / WEIGHTS_FILE)

    def _settings(self, method: Method) -> Settings:
        recipe = self.recipe
        class_from: Literal["noise", "clean"] = "noise" if method.stochastic else "clean"
        return Settings(recipe.sigma, n=recipe.n, n0=recipe.n0, class_from=class_from, n_wrong=recipe.n_wrong)

    def _certified(self, name: str, method: Method) -> Certify:
        """What certifies a method: a distilled one without noise, on all test images unless the recipe says less."""
        proven = isinstance(method, Distilled)
        wanted = self.recipe.proven if proven else self.recipe.certified
        return Certify(
            network=self._network(name),
            images=self.files.every(1, None) if wanted is None else self._spread(wanted),
            settings=None if proven else self._settings(method),
            out=self.place / f"{name}-certified",
            sampling=Sampling(seed=self.computing.seed, means=True),
            device=self.computing.device,
        )

    def _recertify(self, name: str, progress: Progress) -> None:  # noqa: ARG002  # a stage
        from heatsmooth.results.run_info import RunInfo

        top_k = self.recipe.top_k
        out = self.place / f"{name}-top-{top_k}"
        if not (out / "run.json").exists() or not RunInfo.read(out / "run.json").done:
            Recompute(source=self.place / f"{name}-certified", changes={"top_k": top_k}, out=out).recomputed()

    def _attacked(self, name: str, method: Method, kind: Literal["pgd", "ddn"]) -> Attack:
        recipe = self.recipe
        attack = AttackSettings(attack=kind, steps=recipe.steps, eps=recipe.eps, top_k=recipe.attacked_top_k)
        if method.stochastic:
            attack = replace(attack, noise_samples=recipe.noise_samples, sigma=recipe.sigma, batch_size=20)
        return Attack(
            network=self._network(name),
            images=self._spread(recipe.attacked),
            attack=attack,
            out=self.place / f"{name}-{kind}",
            computing=self.computing,
        )

    def _time(self, name: str, progress: Progress) -> None:  # noqa: ARG002  # a stage
        import torch

        from heatsmooth.comparing.timing import inference_times
        from heatsmooth.device import accelerator
        from heatsmooth.results.comparison import TIMING_FILE

        file = self.place / f"{name}-timed" / TIMING_FILE
        if file.exists():
            return
        recipe = self.recipe
        whole = self.files.load(recipe.image_size)
        timing = inference_times(
            self._network(name).load().to(accelerator(self.computing.device).device),
            whole.images(torch.arange(min(recipe.timed, len(whole)))),
            sigma=recipe.sigma,
            samples=recipe.timed_draws,
            seed=self.computing.seed,
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        timing.write(file)

    def _audited(self, name: str, method: Smoothed | Distilled) -> Audit:
        recipe, proven = self.recipe, isinstance(method, Distilled)
        sigma = None if proven else recipe.sigma
        return Audit(
            network=self._network(name),
            images=self._spread(recipe.audited),
            settings=AuditSettings(sigma=sigma, n=min(1000, recipe.n), steps=recipe.steps),
            out=self.place / f"{name}-audited",
            teacher=None if proven else self.place / method.start,
            computing=self.computing,
        )
