import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from heatsmooth.commands.compare import Compare, RecipeChanges
from heatsmooth.commands.line import run
from heatsmooth.commands.together import work_together
from heatsmooth.commands.trying import Trying
from heatsmooth.comparing.recipe import Smoothed, Trial
from heatsmooth.comparing.recipes import RECIPES
from heatsmooth.errors import BusyError, InputError
from heatsmooth.progress import Progress, silent
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.rates import ChosenSetting
from heatsmooth.runs import Run
from tests.conftest import refused

HERE = Path(__file__)


def meet(folder: Path, own: str, other: str, progress: Progress) -> None:
    """Ends only if the other one is at work at the same time."""
    (folder / own).touch()
    while not (folder / other).exists():
        time.sleep(0.01)
    progress("waiting", 1, 1, "met")


def be_wrong(folder: Path, progress: Progress) -> None:
    while not (folder / "at work").exists():
        time.sleep(0.01)
    progress("trying", 0, 1)
    raise InputError("expected better, got worse; try again", options=("--better",))


def fill_the_disk(progress: Progress) -> None:
    raise OSError(28, "No space left on device", "somewhere")


def die(folder: Path, progress: Progress) -> None:
    while not (folder / "at work").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), 9)


def die_talking(folder: Path, progress: Progress) -> None:
    """Is killed while it tells something long, mostly in the middle of it."""
    while not (folder / "at work").exists():
        time.sleep(0.01)
    threading.Timer(0.3, os.kill, (os.getpid(), 9)).start()
    while True:
        progress("talking", 0, 1, 10_000_000 * "x")


def work_on(folder: Path, progress: Progress) -> None:
    """Works, and says so often, until it is asked to stop; then it saves."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    (folder / "pid").write_text(str(os.getpid()))
    (folder / "at work").touch()
    while not asked:
        progress("working", 0, 1)
        time.sleep(0.01)
    (folder / "saved").touch()
    raise KeyboardInterrupt


def test_works_run_at_the_same_time_and_tell_their_progress(tmp_path: Path) -> None:
    told = []

    def note(what: str, done: int, total: int, note: str = "") -> None:
        told.append((what, done, total, note))

    works = {"one": partial(meet, tmp_path, "one", "two"), "two": partial(meet, tmp_path, "two", "one")}
    work_together(works, 2, note)
    assert sorted(told) == [(f"{name}, waiting", 1, 1, "met") for name in ("one", "two")]


def test_the_error_of_one_work_stops_the_others_which_save(tmp_path: Path) -> None:
    works = {"endless": partial(work_on, tmp_path), "wrong": partial(be_wrong, tmp_path)}
    with pytest.raises(InputError, match="expected better, got worse; try again") as wrong:
        work_together(works, 2, silent)
    assert wrong.value.options == ("--better",)
    assert (tmp_path / "saved").exists()
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_an_error_of_the_system_stays_what_it_is() -> None:
    with pytest.raises(OSError, match="No space left on device") as full:
        work_together({"writing": fill_the_disk}, 1, silent)
    assert full.value.filename == "somewhere"


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("end", [die, die_talking])
def test_a_process_that_is_killed_is_an_error_at_once_though_others_go_on(
    end: Callable[[Path, Progress], None], tmp_path: Path
) -> None:
    works = {"endless": partial(work_on, tmp_path), "dying": partial(end, tmp_path)}
    with pytest.raises(InputError, match="dying: expected its process to finish, got signal 9; if memory has run out"):
        work_together(works, 2, silent)
    assert (tmp_path / "saved").exists()


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_works_stop_and_save_when_the_command_is_stopped_or_gone(how: signal.Signals, tmp_path: Path) -> None:
    code = (
        "from functools import partial; from pathlib import Path; from heatsmooth.progress import silent\n"
        "from heatsmooth.commands.together import work_together; from tests.test_together import work_on\n"
        f"works = {{'endless': partial(work_on, Path({str(tmp_path)!r}))}}\n"
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored where tests run by `&`
        "if __name__ == '__main__': work_together(works, 1, silent)\n"
    )
    (tmp_path / "command.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), *sys.path])}
    command = subprocess.Popen(
        [sys.executable, tmp_path / "command.py"], env=environment, stderr=subprocess.DEVNULL, start_new_session=True
    )
    until((tmp_path / "at work").exists)
    os.killpg(command.pid, how) if how == signal.SIGINT else command.send_signal(how)
    command.wait(30)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    assert (tmp_path / "saved").exists()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_methods_compared_at_the_same_time_have_the_same_networks_and_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "fashion-small", "--rehearse", "--data", "fashion-mini", "--quiet", "--json", "--seeds", "0,1"]
    words += ["--methods", "undefended,bootcamp"]
    names, weights, counts = set(), [], []
    for jobs in ("1", "2"):
        place = tmp_path / jobs
        assert run([*words, "--jobs", jobs, "--out", str(place)]) == 0
        names.add(tuple(json.loads(capsys.readouterr().out)["methods"]))
        weights.append({str(file.relative_to(place)): file.read_bytes() for file in place.rglob("model.safetensors")})
        runs = sorted(place.rglob("*-certified"))
        counts.append({str(run.relative_to(place)): Certificates.read(run).counts.tolist() for run in runs})
    assert names == {("undefended", "bootcamp")}
    assert weights[0] == weights[1]
    assert counts[0] == counts[1]
    assert len(weights[0]) == 4
    assert len(counts[0]) == 4
    assert (tmp_path / "2" / "seed-1" / "bootcamp-timed").exists()


def test_the_stages_of_a_comparison_are_divided_among_processes(tmp_path: Path) -> None:
    """Each stage but timing and the common starts is in one part, as it is in the whole; one trial is in one part."""
    for name in ("cifar10-paper", "cifar10-public", "cifar10-small"):
        recipe = RECIPES[name]
        for part in recipe.separable:
            tried = {getattr(recipe.methods[method], "tuned", None) for method in part}
            others = [method for method in recipe.compared if method not in part]
            assert not (tried - {None}) & {getattr(recipe.methods[method], "tuned", None) for method in others}
        assert sorted(method for part in recipe.separable for method in part) == sorted(recipe.compared)


def test_a_part_of_a_comparison_is_made_as_in_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its starts there, all stages of a method are filled but its timing; each has the settings of the whole."""
    changes = RecipeChanges(data="fashion-mini", methods=("undefended", "bootcamp", "keep"))
    keeping = {"keep": replace(RECIPES["fashion-small"].methods["bootcamp"], keep=0.9)}  # type: ignore[arg-type]
    recipe = replace(RECIPES["fashion-small"], methods=RECIPES["fashion-small"].methods | keeping)
    monkeypatch.setitem(RECIPES, "fashion-small", recipe)
    compare = Compare(recipe="fashion-small", out=tmp_path, rehearse=True, changes=changes)
    for stage in compare.experiment(0).making(["undefended"]):
        stage.fill(silent)
    compare.fill_some(("bootcamp",), silent)
    there = {path.name for path in (tmp_path / "seed-0").iterdir()}
    kinds = ("", "-certified", "-top-2", "-pgd", "-ddn", "-audited")
    assert there == {"undefended", *(f"bootcamp{kind}" for kind in kinds)}
    compare.run()  # refuses runs with other settings
    assert (tmp_path / "seed-0" / "keep-timed").exists()


def test_a_trial_that_another_process_makes_is_not_left_out(tmp_path: Path) -> None:
    changes = RecipeChanges(data="fashion-mini")
    experiment = Compare(recipe="cifar10-paper", out=tmp_path, rehearse=True, changes=changes).experiment(0)
    trials: dict[str, Trial] = experiment.recipe.trials
    name, trial = next(iter(trials.items()))
    for stage in experiment.making(["undefended"]):
        stage.fill(silent)
    first = next(stage for stage in experiment.stages() if stage.directory and stage.name.startswith(name))
    assert first.directory is not None
    with Run(first.directory, "smooth", {}), pytest.raises(BusyError):
        first.fill(silent)
    assert trial.values


def test_a_setting_is_tried_again_if_other_values_are_to_be_tried(tmp_path: Path) -> None:
    changes = RecipeChanges(data="fashion-mini")
    experiment = Compare(recipe="cifar10-paper", out=tmp_path, rehearse=True, changes=changes).experiment(0)
    name, trial = next(iter(experiment.recipe.trials.items()))

    def choosing() -> bool:
        return f"rates/{name}" in [stage.name for stage in experiment.stages()]

    for values, again in ((trial.values, False), (trial.values[:1], True)):
        radii: dict[str, float | None] = {f"{value:g}": 0.1 for value in values}
        ChosenSetting(rate=values[0], average_certified_radii=radii, images=2, n=10, training_images=2, seed=0).write(
            experiment.trying(name).file
        )
        assert choosing() is again


def test_jobs_are_counted_from_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--jobs" in refused(capsys, "compare", "fashion-small", "--jobs", 0)


def test_values_beyond_the_best_one_are_tried_while_it_is_at_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smaller the value, the larger the radii here: so three more are tried. Repeated, nothing is."""
    changes = RecipeChanges(data="fashion-mini")
    experiment = Compare(recipe="cifar10-paper", out=tmp_path, rehearse=True, changes=changes).experiment(0)
    name, short = next(iter(experiment.recipe.trials.items()))
    trying, made = replace(experiment.trying(name), trial=replace(short, values=(0.4, 0.2), farther=3)), list[float]()

    def make(self: Trying, value: float, progress: Progress) -> None:
        made.append(value)

    def choice(self: Trying, values: list[float]) -> ChosenSetting:
        radii: dict[str, float | None] = {f"{value:g}": 1 - value for value in values}
        return ChosenSetting(rate=min(values), average_certified_radii=radii, images=2, n=10, training_images=2, seed=0)

    monkeypatch.setattr(Trying, "_make", make)
    monkeypatch.setattr(Trying, "_certify", lambda *_: None)
    monkeypatch.setattr(Trying, "_choice", choice)
    for stage in trying.stages():
        stage.fill(silent)
    assert made == [0.4, 0.2, 0.1, 0.05, 0.025]
    assert trying.chosen() == 0.025
    assert list(trying.stages()) == []


def test_only_a_training_that_diverges_is_left_out_of_a_trial(tmp_path: Path) -> None:
    """A missing network is an error, and is not written down as a value that does not train."""
    changes = RecipeChanges(data="fashion-mini")
    experiment = Compare(recipe="cifar10-paper", out=tmp_path, rehearse=True, changes=changes).experiment(0)
    name = next(name for name, trial in experiment.recipe.trials.items() if isinstance(trial.method, Smoothed))
    first = next(experiment.trying(name).stages())
    with pytest.raises(InputError, match="expected"):
        first.fill(silent)
    assert not experiment.trying(name).file.exists()
