"""``compare``: every method of a recipe made, certified, attacked, timed and audited; repeating it continues it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from heatsmooth.auditing import Audit
from heatsmooth.certification.settings import Settings
from heatsmooth.device import accelerator
from heatsmooth.errors import InputError, require
from heatsmooth.models import save
from heatsmooth.models.checkpoint import WEIGHTS_FILE
from heatsmooth.progress import Progress, silent
from heatsmooth.results import COMPARISON_FILE
from heatsmooth.runs import read_json, read_run_info, write_json
from heatsmooth.workflows.attack import Attack, attack_run
from heatsmooth.workflows.audit import audit_run
from heatsmooth.workflows.certify import certify_run, recompute_run
from heatsmooth.workflows.findings import findings
from heatsmooth.workflows.inputs import Images, Network
from heatsmooth.workflows.recipes import RECIPES, Given, Method, Recipe, Smoothed, Trained
from heatsmooth.workflows.timing import inference_times
from heatsmooth.workflows.training import smooth_run, train_run


@dataclass(frozen=True)
class Stage:
    """One run directory of a comparison, and what fills it."""

    name: str
    fill: Callable[[], Any]
    shared: bool = True
    """Several processes fill it together; otherwise the first one, while the others wait."""


@dataclass(frozen=True)
class Kitchen:
    """A recipe with what the user brings to it."""

    recipe: Recipe
    out: Path
    seed: int
    data_root: Path | None = None
    network: Network | None = None
    """The network that is brought."""
    class_index: Path | None = None
    device: str | None = None
    progress: Progress = silent

    @property
    def place(self) -> Path:
        """Where the runs of this seed are."""
        return self.out / f"seed-{self.seed}"

    @property
    def common(self) -> dict[str, Any]:
        """Arguments that every stage takes."""
        return {"seed": self.seed, "device": self.device, "progress": self.progress}

    @property
    def images(self) -> Images:
        """All images of the recipe."""
        return Images(self.recipe.data, self.data_root, self.class_index)

    @property
    def training_images(self) -> Images:
        """Those that networks are trained and smoothed on."""
        return replace(self.images, data=self.recipe.smooth_on or self.recipe.data)

    def spread(self, wanted: int) -> Images:
        """At most so many of the test images, evenly spread: folders are sorted by class."""
        whole = self.images.load(self.recipe.image_size)
        return replace(self.images, stride=-(-len(whole) // wanted), count=wanted)

    def check(self) -> bool:
        """Refuse images that are not there, and settings that cannot be, before anything is made.

        Whether networks are made on the very images that are certified: folders, for one, have no training part.
        """
        certified = self.images.load(self.recipe.image_size)
        seen = self.training_images.load(self.recipe.image_size, "train")
        for method in self.recipe.compared.values():
            self._settings(method)
        return seen.name == certified.name

    def made(self, name: str) -> Network:
        """The network of a method. A brought one keeps its code: that is imported only where it is named."""
        code = None if self.network is None else self.network.code
        return Network(self.place / name, code, size=self.recipe.image_size)

    def stages(self) -> Iterator[Stage]:
        """All stages, in an order in which each finds what it needs."""
        for name, method in self.recipe.methods.items():
            yield Stage(name, partial(self._make, name, method), shared=not isinstance(method, Given))
        for name, method in self.recipe.compared.items():
            yield Stage(f"{name}-certified", partial(self._certify, name, method))
            if self.recipe.has_top_k:
                yield Stage(f"{name}-top-{self.recipe.top_k}", partial(self._recertify, name), shared=False)
            for kind in ("pgd", "ddn"):
                yield Stage(f"{name}-{kind}", partial(self._attack, name, method, kind))
            yield Stage(f"{name}-timed", partial(self._time, name), shared=False)
            if isinstance(method, Smoothed) and self.recipe.audited:
                yield Stage(f"{name}-audited", partial(self._audit, name, method), shared=False)

    def _make(self, name: str, method: Method) -> None:
        """The network of a method, in a run directory."""
        out, shared = self.place / name, self.common | {"limit_train": self.recipe.limit_train}
        if isinstance(method, Given):
            assert self.network is not None  # chosen_recipe refuses to go without
            if not (out / WEIGHTS_FILE).exists():
                out.mkdir(parents=True, exist_ok=True)
                channels = self.images.load(self.recipe.image_size).shape[0]
                save(self.network.load(channels=channels), out / WEIGHTS_FILE)
        elif isinstance(method, Trained):
            train_run(
                images=self.training_images,
                image_size=self.recipe.image_size,
                out=out,
                model=self.recipe.model,
                choices=method.choices,
                plan=method.plan,
                **shared,
            )
        else:
            smooth_run(
                network=self.made(method.start),
                images=self.training_images,
                sigma=self.recipe.sigma,
                out=out,
                preset=method.preset,
                changes=method.changes,
                **shared,
            )

    def _settings(self, method: Method) -> Settings:
        return Settings(
            self.recipe.sigma,
            n=self.recipe.n,
            n0=self.recipe.n0,
            class_from="noise" if method.stochastic else "clean",
            n_wrong=self.recipe.n_wrong,
        )

    def _certify(self, name: str, method: Method) -> None:
        images, out = self.spread(self.recipe.certified), self.place / f"{name}-certified"
        settings = self._settings(method)
        certify_run(network=self.made(name), images=images, settings=settings, out=out, means=True, **self.common)

    def _recertify(self, name: str) -> None:
        certified, out = self.place / f"{name}-certified", self.place / f"{name}-top-{self.recipe.top_k}"
        if not (out / "run.json").exists() or read_json(out / "run.json")["status"] != "done":
            recompute_run(source=certified, changes={"top_k": self.recipe.top_k}, out=out, log=None)

    def _attack(self, name: str, method: Method, kind: str) -> None:
        averaged = {"noise_samples": self.recipe.noise_samples, "sigma": self.recipe.sigma, "batch_size": 20}
        attack = Attack(
            attack=kind,  # type: ignore[arg-type]  # checked by Attack
            steps=self.recipe.steps,
            eps=self.recipe.eps,
            top_k=self.recipe.attacked_top_k,
            **(averaged if method.stochastic else {}),  # type: ignore[arg-type]
        )
        images, out = self.spread(self.recipe.attacked), self.place / f"{name}-{kind}"
        attack_run(network=self.made(name), images=images, attack=attack, out=out, **self.common)

    def _time(self, name: str) -> None:
        file = self.place / f"{name}-timed" / "timing.json"
        if file.exists():
            return
        whole = self.images.load(self.recipe.image_size)
        found = inference_times(
            self.made(name).load().to(accelerator(self.device).device),
            whole.images(torch.arange(min(self.recipe.timed, len(whole)))),
            sigma=self.recipe.sigma,
            samples=self.recipe.timed_draws,
            seed=self.seed,
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, found)

    def _audit(self, name: str, method: Smoothed) -> None:
        audit_run(
            network=self.made(name),
            images=self.spread(self.recipe.audited),
            teacher=self.made(method.start),
            how=Audit(self.recipe.sigma, n=min(1000, self.recipe.n), steps=self.recipe.steps),
            out=self.place / f"{name}-audited",
            **self.common,
        )


def chosen_recipe(name: str, *, rehearse: bool = False, given: bool = False, **changes: Any) -> Recipe:
    """The recipe of that name, with ``data``, ``n``, ``certified``, … changed where they are not None.

    ``given``: the user brings the undefended network. ``methods``: only these are
    compared; what they are smoothed from is made.
    """
    require(name in RECIPES, f"compare: expected {', '.join(RECIPES)}, got {name!r}")
    recipe = RECIPES[name]
    wanted = changes.pop("methods", None)
    recipe = replace(recipe, **{key: value for key, value in changes.items() if value is not None})
    if given:
        recipe = replace(recipe, methods=recipe.methods | {"undefended": Given()})
    if wanted is not None:
        unknown = [method for method in wanted if method not in recipe.methods]
        require(not unknown, f"--methods: expected some of {', '.join(recipe.methods)}, got {', '.join(unknown)}")
        chosen = set(wanted)
        chosen |= {m.start for key, m in recipe.methods.items() if key in chosen and isinstance(m, Smoothed)}
        made_only = tuple(sorted(chosen - set(wanted)))
        kept = {key: m for key, m in recipe.methods.items() if key in chosen}
        recipe = replace(recipe, methods=kept, made_only=made_only)
    missing = any(isinstance(method, Given) for method in recipe.methods.values()) and not given
    require(not missing, f"compare {name}: expected your network, got none; name it by --from and --model")
    require(bool(recipe.data), f"compare {name}: expected your images, got none; name them by --data imagefolder:PATH")
    return recipe.rehearsed() if rehearse else recipe


def compare_run(
    recipe: Recipe,
    *,
    out: Path,
    seeds: tuple[int, ...] = (0,),
    data_root: Path | None = None,
    network: Network | None = None,
    class_index: Path | None = None,
    device: str | None = None,
    progress: Progress = silent,
) -> dict[str, Any] | None:
    """Fill ``out`` with every stage of the recipe for every seed; the comparison, also in ``out``/comparison.json.

    ``seconds``: what the recorded stages took together, over all repetitions of the command. None in a process that
    follows: each stage is begun when all processes are done with the one before, whose files it reads.
    """
    require(bool(seeds), "--seeds: expected numbers as 0,1,2, got none")
    unseen = not Kitchen(recipe, out, 0, data_root, network, class_index).check()
    processes = accelerator(device)
    spent = 0.0
    for seed in seeds:
        kitchen = Kitchen(recipe, out, seed, data_root, network, class_index, device, progress)
        stages = list(kitchen.stages())
        for number, stage in enumerate(stages, start=1):
            progress(f"seed {seed}, stage {number} of {len(stages)}: {stage.name}", 0, 1)
            if stage.shared or processes.is_main_process:
                stage.fill()
            processes.wait_for_everyone()
            spent += _seconds(kitchen.place / stage.name)
            progress(f"seed {seed}, stage {number} of {len(stages)}: {stage.name}", 1, 1)
    if not processes.is_main_process:
        return None
    found = {
        "command": "compare",
        "out": str(out),
        "seeds": list(seeds),
        "certified_images_unseen": unseen,
        "attacked_top_k": recipe.attacked_top_k,
        "seconds": round(spent, 1),
        **findings(recipe, [out / f"seed-{seed}" for seed in seeds]),
    }
    write_json(out / COMPARISON_FILE, found)
    return found


def _seconds(run: Path) -> float:
    """What a run took, as it records: of several processes, the longest."""
    return max((float(read_run_info(file)["seconds"]) for file in run.glob("run*.json")), default=0.0)


def for_report(out: Path, seed: int) -> list[Path]:
    """What a report of a comparison is made of: the runs of one seed, and what was found over all."""
    return [out / f"seed-{seed}", out / COMPARISON_FILE]


def brought(source: Path | None, **facts: Any) -> Network | None:
    """The network of the user, if there is one; ``facts``: the other fields of ``Network``."""
    if source is None:
        given = [name for name, value in facts.items() if value is not None]
        if given:
            raise InputError(f"--{given[0]}: expected --from beside it, got none; name the weights")
        return None
    return Network(source, **facts)
