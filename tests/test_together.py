import json
import os
import queue
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from heatsmooth.commands.line import run
from heatsmooth.commands.together import _begin, work_together
from heatsmooth.errors import InputError
from heatsmooth.progress import Progress, silent
from heatsmooth.results.certificates import Certificates
from tests.conftest import refused


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
    raise InputError("expected better, got worse; try again")


def die(progress: Progress) -> None:
    os.kill(os.getpid(), 9)


def work_on(folder: Path, progress: Progress) -> None:
    (folder / "pid").write_text(str(os.getpid()))
    (folder / "at work").touch()
    while True:
        progress("working", 0, 1)
        time.sleep(0.01)


def test_works_run_at_the_same_time_and_tell_their_progress(tmp_path: Path) -> None:
    told = []

    def note(what: str, done: int, total: int, note: str = "") -> None:
        told.append((what, done, total, note))

    works = {"one": partial(meet, tmp_path, "one", "two"), "two": partial(meet, tmp_path, "two", "one")}
    work_together(works, 2, note)
    assert sorted(told) == [(f"{name}, waiting", 1, 1, "met") for name in ("one", "two")]


def test_the_error_of_one_work_ends_the_others(tmp_path: Path) -> None:
    works = {"endless": partial(work_on, tmp_path), "wrong": partial(be_wrong, tmp_path)}
    with pytest.raises(InputError, match="expected better, got worse; try again"):
        work_together(works, 2, silent)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_process_that_is_killed_is_an_error_with_a_remedy() -> None:
    with pytest.raises(InputError, match="dying: expected its process to finish, got signal 9; if memory has run out"):
        work_together({"dying": die}, 1, silent)


def test_a_process_whose_parent_is_gone_stops(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="130"):
        _begin("orphan", partial(work_on, tmp_path), 1, os.getppid() + 1, queue.Queue())


def test_methods_compared_at_the_same_time_have_the_same_networks_and_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "compare fashion-small --rehearse --data fashion-mini --quiet --json --seeds 0,1".split()
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


def test_jobs_are_counted_from_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--jobs" in refused(capsys, "compare", "fashion-small", "--jobs", 0)
