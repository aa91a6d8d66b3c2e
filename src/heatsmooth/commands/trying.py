"""The trials of a comparison: short trainings that choose a setting, on images that no comparison certifies."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatsmooth.certification.settings import Sampling
from heatsmooth.commands.certify import Certify
from heatsmooth.commands.inputs import OddImages
from heatsmooth.commands.stages import Stage
from heatsmooth.comparing.recipe import Trial
from heatsmooth.errors import DivergedError, require
from heatsmooth.progress import Progress
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.rates import ChosenSetting
from heatsmooth.results.run_info import RunInfo

if TYPE_CHECKING:
    from accelerate import Accelerator

    from heatsmooth.commands.experiment import Experiment


@dataclass(frozen=True)
class Trying:
    """How an experiment chooses a setting of a method."""

    experiment: "Experiment"
    trial: Trial
    file: Path
    """Where the choice is written. The runs of each value are beside it."""

    def chosen(self) -> float:
        """The value that was chosen."""
        return ChosenSetting.read(self.file).rate

    def stages(self) -> Iterator[Stage]:
        """Those of each value of the recipe, then the choice; none if it was made already."""
        if self._is_over():
            return
        for value in self.trial.values:
            made, certified = self._runs(value)
            yield Stage(made.name, partial(self._make, value), directory=made)
            yield Stage(certified.name, partial(self._certify, value), directory=certified)
        yield Stage(f"rates/{self.file.stem}", self._choose)

    def _is_over(self) -> bool:
        """Whether the choice is written. It is final, also where an earlier version tried no values beyond an end."""
        return self.file.exists() and ChosenSetting.read(self.file).includes(self.trial.values)

    def _runs(self, value: float) -> tuple[Path, Path]:
        """The runs that make and certify the network of a value."""
        made = self.file.parent / self.trial.run_name(self.file.stem, value)
        return made, made.with_name(f"{made.name}-certified")

    def _make(self, value: float, progress: Progress) -> None:
        """Train with one value; where that is too large to train at all, there is no network."""
        made, _ = self._runs(value)
        method = self.trial.with_value(self.trial.method, value)
        try:
            self.experiment.maker(method, made, self.experiment.recipe.trial_images).run(progress)
        except DivergedError as error:
            progress(f"{made.name}: {error}", 1, 1)

    def _certify(self, value: float, progress: Progress) -> None:
        from heatsmooth.models.checkpoint import WEIGHTS_FILE

        made, certified = self._runs(value)
        if not (made / WEIGHTS_FILE).exists():
            return
        experiment, method, tried = self.experiment, self.trial.method, self.experiment.recipe.tried
        stride = 2 * max(1, experiment.test_images // (2 * tried))
        Certify(
            network=experiment.network_in(made, method),
            images=OddImages(**vars(experiment.files.every(stride, tried))),
            settings=replace(experiment.settings(method), n=self._samples),
            out=certified,
            sampling=Sampling(seed=experiment.computing.seed),
            device=experiment.computing.device,
        ).run(progress)

    @property
    def _samples(self) -> int:
        return min(1000, self.experiment.recipe.n)

    def _choose(self, progress: Progress) -> None:
        """Try values beyond the best one while it is at an end. Write down the choice, and what each value reached."""
        from heatsmooth.device import accelerator

        processes, values = accelerator(self.experiment.computing.device), list(self.trial.values)
        choice, further = self._best(values, processes)
        while further is not None:
            self._make(further, progress)
            self._certify(further, progress)
            values.append(further)
            choice, further = self._best(values, processes)
        if processes.is_main_process:
            choice.write(self.file)
        processes.wait_for_everyone()

    def _best(self, values: list[float], processes: "Accelerator") -> tuple[ChosenSetting, float | None]:
        """The best of these values, and which one to try next: what the leading process says."""
        from accelerate.utils import broadcast_object_list

        said: list[Any] = [None, None]
        if processes.is_main_process:
            choice = self._choice(values)
            said = [choice, self.trial.beyond(choice.rate, values)]
        return tuple(broadcast_object_list(said))

    def _choice(self, values: list[float]) -> ChosenSetting:
        """The best of these values."""
        name, setting = self.file.stem, self.trial.setting
        certified = {value: self._runs(value)[1] for value in values}
        results = {value: Certificates.read(run) for value, run in certified.items() if _is_done(run)}
        require(
            bool(results),
            f"trial {name}: expected a value of {setting} that trains, got none; see {self.file.parent}",
        )
        reached = {value: result.average_certified_radius for value, result in results.items()}
        accurate = {
            value: float((result.average_classes == result.known_labels).mean())
            if self.trial.method.stochastic
            else float(result.one_pass_correct.mean())
            for value, result in results.items()
        }
        best = self.trial.best(reached, accurate)
        return ChosenSetting(
            setting=setting,
            rate=best,
            average_certified_radii={f"{value:g}": reached.get(value) for value in values},
            accuracies={f"{value:g}": accurate.get(value) for value in values},
            images=len(results[best]),
            n=self._samples,
            training_images=self.experiment.recipe.trial_images,
            seed=self.experiment.computing.seed,
        )


def _is_done(run: Path) -> bool:
    return bool(list(run.glob("run*.json"))) and RunInfo.read_directory(run)[0].done
