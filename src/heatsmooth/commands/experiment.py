"""One seed of a comparison: the stages that make, certify, attack, time and audit its networks."""

from collections.abc import Iterable, Iterator
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
from heatsmooth.commands.stages import Stage
from heatsmooth.commands.train import Train
from heatsmooth.commands.trying import Trying
from heatsmooth.comparing.recipe import Distilled, Given, Method, Recipe, Smoothed, Trained
from heatsmooth.progress import Progress
from heatsmooth.results.audit import AuditSettings
from heatsmooth.training.field import NAMES
from heatsmooth.training.settings import DISTILLING


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
            self.settings(method)
        return seen.name != certified.name

    def stages(self) -> Iterator[Stage]:
        """All stages, in an order in which each finds what it needs."""
        yield from self.making(self.recipe.methods)
        for name, method in self.recipe.compared.items():
            yield from (replace(stage, of=name) for stage in self._testing(name, method))

    def making(self, methods: Iterable[str]) -> Iterator[Stage]:
        """The stages that make the networks of these methods."""
        tried: set[str] = set()
        for name in methods:
            method = self.recipe.methods[name]
            trial = method.tuned if isinstance(method, Trained | Smoothed) else None
            if trial is not None and trial not in tried:
                yield from (replace(stage, of=name) for stage in self.trying(trial).stages())
                tried.add(trial)
            yield Stage(name, partial(self._make, name), shared=not isinstance(method, Given), of=name)

    def trying(self, trial: str) -> Trying:
        """How a setting is chosen; the choice is for all seeds."""
        return Trying(self, self.recipe.trials[trial], self.place.parent / "rates" / f"{trial}.json")

    def _testing(self, name: str, method: Method) -> Iterator[Stage]:
        """The stages that certify, attack, time and audit a network."""
        recipe, top_k = self.recipe, self.recipe.top_k
        yield Stage(f"{name}-certified", self._certified(name, method).run)
        if recipe.has_top_k and name in recipe.sampled:
            yield Stage(f"{name}-top-{top_k}", partial(self._recertify, name), shared=False)
        for kind in ("pgd", "ddn"):
            yield Stage(f"{name}-{kind}", self._attacked(name, method, kind).run)
        if name in recipe.sampled:
            yield Stage(f"{name}-timed", partial(self._time, name), shared=False, alone=True)
        if isinstance(method, Smoothed) and method.rival is None and recipe.heated:
            yield Stage(f"{name}-timesteps", partial(self._measure_timesteps, name, method), shared=False)
        if isinstance(method, Smoothed | Distilled) and recipe.audited:
            yield Stage(f"{name}-audited", self._audited(name, method).run)

    def _network(self, name: str) -> Network:
        """The network of a method."""
        return self.network_in(self.place / name, self.recipe.methods[name])

    def network_in(self, directory: Path, method: Method) -> Network:
        """The network that a method left there. The person's own keeps its code, imported only where it is named."""
        code = None if self.own is None or isinstance(method, Trained | Distilled) else self.own.code
        if code is not None and isinstance(method, Smoothed) and method.denoiser is not None:
            code = f"{method.denoiser}+{code}"
        return Network(source=directory, model=code, image_size=self.recipe.image_size)

    @cached_property
    def test_images(self) -> int:
        """How many test images there are."""
        return len(self.files.load(self.recipe.image_size))

    def _spread(self, wanted: int) -> Images:
        """At most this many test images, evenly spread: folders are sorted by class.

        Where a method keeps a share of answers, only images with an even position: the others are held out.
        """
        stride = -(-self.test_images // wanted)
        return self.files.every(stride + (stride % 2 if self.recipe.holds_out else 0), wanted)

    def _make(self, name: str, progress: Progress) -> None:
        """Make the network of a method, with the setting that was chosen for it."""
        method, out = self.recipe.methods[name], self.place / name
        if isinstance(method, Trained | Smoothed) and method.tuned is not None:
            method = self.recipe.trials[method.tuned].with_value(method, self.trying(method.tuned).chosen())
        if isinstance(method, Given):
            self._save_own(out)
        else:
            self.maker(method, out, self.recipe.limit_train).run(progress)

    def maker(self, method: Trained | Smoothed | Distilled, out: Path, limit: int | None) -> Train | Smooth | Distill:
        """What makes a network on at most ``limit`` training images."""
        if isinstance(method, Trained):
            return Train(
                images=self.training_files,
                image_size=self.recipe.image_size,
                out=out,
                model=self.recipe.model,
                choices=method.choices,
                plan=method.plan,
                limit_train=limit,
                computing=self.computing,
            )
        return self._distill(method, out) if isinstance(method, Distilled) else self._smooth(method, out, limit)

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

    def _smooth(self, method: Smoothed, out: Path, limit: int | None) -> Smooth:
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
            limit_train=method.images or limit,
            computing=self.computing,
        )
        if method.rival is None:
            return command
        name = NAMES[type(method.rival)]
        return replace(command, method=name, **{name: method.rival})  # type: ignore[arg-type]  # its settings

    def _save_own(self, out: Path) -> None:
        from heatsmooth.models import save
        from heatsmooth.models.checkpoint import WEIGHTS_FILE

        assert self.own is not None  # Compare.resolved refuses to go without
        if not (out / WEIGHTS_FILE).exists():
            out.mkdir(parents=True, exist_ok=True)
            save(self.own.load(channels=self.files.load(self.recipe.image_size).shape[0]), out / WEIGHTS_FILE)

    def _measure_timesteps(self, name: str, method: Smoothed, progress: Progress) -> None:
        from heatsmooth.auditing.timesteps import SAMPLES, timestep_distances
        from heatsmooth.models.checkpoint import load_state, load_strictly
        from heatsmooth.results.timesteps import TIMESTEPS_FILE

        file = self.place / f"{name}-timesteps" / TIMESTEPS_FILE
        if file.exists():
            return
        students = [self._network(name).load() for _ in (self.place / name).glob("timestep-*.safetensors")]
        for student, stored in zip(students, sorted((self.place / name).glob("timestep-*.safetensors")), strict=True):
            load_strictly(student, load_state(stored)[0], stored)
        timestep_distances(
            self._network(method.start).load(),
            [*students, self._network(name).load()],
            self._spread(self.recipe.heated).load(self.recipe.image_size),
            sigma=self.recipe.sigma,
            logits=method.fits_logits,
            n=min(SAMPLES, self.recipe.n),
            seed=self.computing.seed,
            progress=progress,
        ).write(file)

    def settings(self, method: Method) -> Settings:
        """How a method is certified."""
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
            settings=None if proven else self.settings(method),
            out=self.place / f"{name}-certified",
            sampling=Sampling(seed=self.computing.seed, means=True),
            device=self.computing.device,
        )

    def _recertify(self, name: str, progress: Progress) -> None:  # noqa: ARG002  # a stage
        from heatsmooth.results.run_info import RunInfo

        top_k, out = self.recipe.top_k, self.place / f"{name}-top-{self.recipe.top_k}"
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
        recipe, whole = self.recipe, self.files.load(self.recipe.image_size)
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
        return Audit(
            network=self._network(name),
            images=self._spread(recipe.audited),
            settings=AuditSettings(sigma=None if proven else recipe.sigma, n=min(1000, recipe.n), steps=recipe.steps),
            out=self.place / f"{name}-audited",
            teacher=None if proven else self.place / method.start,
            computing=self.computing,
        )
