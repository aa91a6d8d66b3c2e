"""What is served: studies of an image, the worker that plays them in turns, and who may ask how often."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from heatsmooth.calibration import Calibration
from heatsmooth.certification.certificates import certify
from heatsmooth.certification.sampling import CHUNK, Ask, Job, Sampler, Tally
from heatsmooth.certification.settings import Settings
from heatsmooth.errors import InputError
from heatsmooth.models import Voter
from heatsmooth.serving import ServedNetwork
from heatsmooth.serving.events import Done, Event, Failed, Seen, Waiting
from heatsmooth.serving.limits import Rate, is_own_name
from heatsmooth.serving.studies import TURN, attacking, certifying
from heatsmooth.serving.worker import BusyError, Study, Task, Worker
from tests.conftest import Linear


def an_image(seed: int = 0) -> torch.Tensor:
    return torch.rand(1, 4, 4, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def subject(linear: Linear) -> ServedNetwork:
    settings = Settings(0.25, n=1000, n0=100, adaptive=True, tolerance=0.01)
    return ServedNetwork(linear.eval(), settings, seed=3, shape=(1, 4, 4))


def played(study: Study, sampler: Sampler | None) -> list[dict[str, Any]]:
    """The events of a study as JSON, each draw at once."""
    found: list[dict[str, Any]] = []
    answer = None
    while True:
        try:
            wanted = study.send(answer)
        except StopIteration:
            return found
        answer = None
        if isinstance(wanted, Event):
            found.append(msgspec.to_builtins(wanted))
        else:
            assert sampler is not None
            ((_, answer),) = sampler.run([wanted])


def test_the_radius_grows_to_what_certify_finds(subject: ServedNetwork) -> None:
    image = an_image()
    found = played(certifying(subject, image, 0), subject.sampler())
    radii = [event for event in found if event["kind"] == "radius"]
    assert [event["kind"] for event in found[:2]] == ["image", "copies"]
    assert found[-1]["kind"] == "done"
    assert len(radii) > 3
    assert all(a["radius"] <= b["radius"] and a["n"] < b["n"] for a, b in pairwise(radii))
    known = certify(
        subject.model, image[None], sigma=0.25, n=1000, n0=100, adaptive=True, tolerance=0.01, seed=subject.seed
    )
    last = radii[-1]
    assert last["n"] == known.counts.sum()
    assert last["class"] == known.classes[0]
    assert dict(last["counts"])[last["class"]] == known.counts[0, known.classes[0]]
    assert last["radius"] >= float(known.radii[0]) - 1e-4 > 0, "the largest so far, rounded down"
    assert (last["subject"], last["basis"]) == ("average", "statistical, alpha=0.001, one-sided, any stopping")
    assert all(b["n"] - a["n"] <= TURN for a, b in pairwise(radii))


def test_an_attack_tells_of_network_and_average(subject: ServedNetwork) -> None:
    image = an_image()
    attack, average = played(attacking(subject, image, 0, eps=3.0), subject.sampler())
    assert attack["success"]
    assert attack["class"] != attack["before"]
    assert 0 < attack["distance"] <= 3.0001
    assert (attack["subject"], average["subject"]) == ("network", "average")
    assert average["n"] == 1000
    assert average["class"] is None or 0 <= average["class"] < 5
    near, _ = played(attacking(subject, image, 1, eps=0.001), subject.sampler())
    assert not near["success"]
    assert near["distance"] <= 0.0011


class Reversed(Voter):
    """Predicts the class that the network gives the least probability."""

    def answers(self, model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
        return model(images), -model(images)

    def votes(self, model: nn.Module, images: Tensor) -> Tensor:
        return self.answers(model, images)[1]

    def facts(self) -> dict[str, Any]:
        return {}


def test_a_calibrated_radius_is_shown_with_its_basis(subject: ServedNetwork) -> None:
    known = Calibration(((0.999, 0.125),), classes=5, epsilon=0.05, alpha=0.001, sigma=0.25, fitted=10, corrected=20)
    calibrated = replace(subject, calibration=known)
    first = msgspec.to_builtins(next(certifying(calibrated, an_image(), 0)))
    assert first["calibrated"] == {
        "radius": 0.125,
        "subject": "average",
        "basis": str(known.basis),
        "class": first["top"][0][0],
    }
    votes = replace(calibrated, voter=Reversed().eval())
    seen = next(certifying(votes, an_image(), 0))
    assert isinstance(seen, Seen)
    assert seen.calibrated is not None
    assert seen.calibrated.predicted == int(votes.logits(an_image()[None]).argmin())
    assert first["l_bound"]["subject"] == "network"
    with pytest.raises(InputError, match=r"`sigma`: expected 0.25, that of the calibration, got 0.5"):
        replace(calibrated, settings=Settings(0.5, adaptive=True))


class Heard:
    """A task, and what it tells."""

    def __init__(self, worker: Worker, start: Callable[[int], Study]) -> None:
        self._told: SimpleQueue[Event | None] = SimpleQueue()
        self.task: Task = worker.submit(start, self._told.put)

    def event(self, patience: float) -> Event | None:
        return self._told.get(timeout=patience)


def test_visitors_take_turns(subject: ServedNetwork) -> None:
    worker = Worker(subject.sampler(batch_size=CHUNK), most=2)
    order: list[str] = []
    gate = threading.Event()

    def study(name: str, turns: int, number: int) -> Study:
        gate.wait()
        tallies: dict[str, Tally] = {}
        for _ in range(turns):
            yield Job(number, an_image(), _once(CHUNK), tallies)
            order.append(name)
        yield Done(samples=tallies["draws"].n)

    long = Heard(worker, lambda number: study("long", 20, number))
    short = Heard(worker, lambda number: study("short", 5, number))
    with pytest.raises(BusyError):
        Heard(worker, lambda number: study("refused", 1, number))
    gate.set()
    assert long.event(20) == Done(samples=20 * CHUNK)
    assert long.event(20) is None
    assert short.event(20) == Done(samples=5 * CHUNK)
    assert worker.samples == 25 * CHUNK
    assert "".join(name[0] for name in order[:10]).count("s") == 5, "every other turn"
    worker.close()
    with pytest.raises(BusyError):
        worker.check_room()


def _once(count: int) -> Any:
    tally = yield Ask("draws", count)
    return tally


def test_who_leaves_makes_room_and_errors_are_told(subject: ServedNetwork, capsys: pytest.CaptureFixture[str]) -> None:
    worker = Worker(subject.sampler(), most=1)

    def forever(number: int) -> Study:
        tallies: dict[str, Tally] = {}
        while True:
            yield Job(number, an_image(), _once(CHUNK), tallies)

    def failing(error: Exception) -> Study:
        yield Waiting(present=1)
        raise error

    Heard(worker, forever).task.cancelled = True
    for error, told in (
        (InputError("expected a, got b"), "expected a, got b"),
        (KeyError("secret"), "the server fail"),
    ):
        while worker.present:
            time.sleep(0.01)
        task = Heard(worker, lambda _, error=error: failing(error))  # type: ignore[misc]
        found = [task.event(20) for _ in range(3)]
        assert isinstance(found[1], Failed)
        assert found[1].message.startswith(told)
        assert found[2] is None
    assert "KeyError" in capsys.readouterr().err
    while worker.present:
        time.sleep(0.01)
    task = Heard(worker, forever)
    worker.close()
    assert task.event(20) == Failed(message="the server was stopped")


@pytest.mark.parametrize(
    ("host", "bound", "own"),
    [
        ("localhost:8000", "127.0.0.1", True),
        ("127.0.0.1:8000", "localhost", True),
        ("[::1]:8000", "::1", True),
        ("LOCALHOST", "127.0.0.1", True),
        ("evil.example:8000", "127.0.0.1", False),
        ("10.0.0.7:8000", "127.0.0.1", False),
        ("10.0.0.7:8000", "0.0.0.0", True),
        ("evil.example", "0.0.0.0", False),
        ("box.example", "box.example", True),
        ("localhost@evil.example", "127.0.0.1", False),
        ("localhost:x", "127.0.0.1", False),
        ("", "127.0.0.1", False),
        (None, "127.0.0.1", False),
    ],
)
def test_only_its_own_names_are_answered(host: str | None, bound: str, own: bool) -> None:
    assert is_own_name(host, bound) is own


def test_a_client_has_so_many_images(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    rate = Rate(3, 10)
    assert [rate.wait("a") for _ in range(4)] == [0, 0, 0, 10]
    assert rate.wait("b", images=2) == 0
    assert rate.wait("b", images=2) == 10
    assert rate.wait("b", images=1) == 0
    now = 1004.0
    assert rate.wait("a") == 6
    now = 1010.5
    assert rate.wait("a", images=3) == 0
    for number in range(3 * Rate.MOST):
        rate.wait(str(number))
    assert len(rate._clients.events) <= Rate.MOST
