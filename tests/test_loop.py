"""The loop with real processes: killed, continued, and shared by two."""

import itertools
import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heatsmooth import InputError
from heatsmooth.commands.line import run
from heatsmooth.data import ImageSet
from heatsmooth.device import accelerator
from heatsmooth.models import load_state, model_hash
from heatsmooth.progress import Progress, silent
from heatsmooth.training.batches import Batch, LoaderFeed
from heatsmooth.training.loop import STATE_FILE, Objective, fit
from heatsmooth.training.methods import smooth
from heatsmooth.training.settings import Plan, Saving
from tests.conftest import Linear
from tests.faults.processes import Command, in_two_processes, start_two


@pytest.fixture
def smoothing(network: Path, fashion: str) -> list[str]:
    """A command of two stages with 20 steps each, without its ``--out``."""
    words = f"smooth --data {fashion} --limit-train 1280 --batch-size 64 --timesteps 2 --seed 3 --from {network}"
    return [*words.split(), "--sigma", "0.25", "--quiet", "--device", "cpu"]


def reached(state: Path, stage: int, step: int) -> bool:
    """Whether the state on disk has come so far."""
    if not state.exists():
        return False
    with state.open("rb") as file:  # once, because it is replaced meanwhile; only its header
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    at = json.loads(header["__metadata__"]["heatsmooth"])
    return (at["stage"], at["step"]) >= (stage, step)


def test_killed_three_times_smooth_ends_with_the_same_weights(
    smoothing: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    assert Command([*smoothing, "--out", undisturbed], tmp_path).end(600).code == 0
    smoothing += ["--out", str(killed)]
    for at in ((0, 3), (0, 13), (1, 2)):
        command = Command([*smoothing, "--checkpoint-seconds", "0"], tmp_path)
        assert command.kill_when(reached, killed / STATE_FILE, *at), "not killed"
    assert Command(smoothing, tmp_path).end(600).code == 0
    expected, found = (load_state(run / "model.safetensors")[0] for run in (undisturbed, killed))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert (
        json.loads((undisturbed / "run.json").read_text())["model_hash"]
        == json.loads((killed / "run.json").read_text())["model_hash"]
    )
    curves = [
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (undisturbed, killed)
    ]
    assert [(m["stage"], m["step"]) for m in curves[0]] == [(m["stage"], m["step"]) for m in curves[1]]
    capsys.readouterr()
    assert run([*smoothing, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == "smooth"
    assert run([*smoothing, "--lr", "0.01"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_interrupted_politely_it_saves_and_ends_with_130(smoothing: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    start = [sys.executable, "-m", "heatsmooth"]
    process = subprocess.Popen(
        [*start, *smoothing, "--checkpoint-seconds", "0", "--out", str(out)], stderr=subprocess.PIPE
    )
    while not (out / STATE_FILE).exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    message = process.communicate()[1].decode()
    assert process.returncode == 130
    assert message == "heatsmooth: interrupted; repeat the command to continue\n"


@pytest.mark.parametrize(
    ("preset", "more"),
    [("bootcamp", "--lr 0.02 --warmup-steps 0"), ("paper-imagenet", "--lr 0.001 --penalty probabilities")],
)
def test_two_processes_have_the_loss_curve_of_one(
    network: Path, fashion: str, tmp_path: Path, preset: str, more: str
) -> None:
    """The difference of ``projection`` jumps where a ReLU switches; small steps keep rounding from growing by it."""
    words = (
        f"smooth --data {fashion} --limit-train 1280 --batch-size 64 --sigma 0.25 --from {network} --preset {preset}"
    )
    words += f" --projections 2 --batch-norm frozen {more} --log-every 1 --quiet --device cpu --out {tmp_path}"
    assert run(f"{words}/1".split()) == 0
    in_two_processes(f"{words}/2".split(), tmp_path)
    curves = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        made = json.loads((out / "run.json").read_text())
        assert (made["device"], made["processes"]) == ("cpu", processes)
        assert made["threads"] >= 1
        curves.append([json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()])
    assert len(curves[0]) == len(curves[1]) == 20
    difference = max(abs(a - b) for a, b in zip(*curves, strict=True))
    print(
        f"{preset}: loss {curves[0][0]:.5f} → {curves[0][-1]:.5f}; largest difference of two processes {difference:.2e}"
    )
    assert difference < 1e-4
    assert curves[0][-1] < 0.9 * curves[0][0]


def test_batch_norm_that_cannot_be_synchronised_is_refused(smoothing: list[str], tmp_path: Path) -> None:
    for process in start_two([*smoothing, "--batch-norm", "train", "--out", tmp_path / "out"], tmp_path):
        ended = process.end()
        assert ended.code != 0
        assert "heatsmooth: error: expected --batch-norm frozen" in ended.err


def batches(size: int) -> list[Tensor]:
    """Ten, the same each time."""
    return [torch.rand(size, 1, 4, 4, generator=torch.Generator().manual_seed(i)) for i in range(10)]


def fitted(
    objective: Objective, out: Path | None, progress: Progress = silent, saving: Saving | None = None
) -> nn.Module:
    """A linear network after ten steps; without ``saving``, its state is saved after each."""
    torch.manual_seed(0)
    student = Linear(torch.randn(5, 16))
    saving = saving or Saving(checkpoint_seconds=0)
    feed, processes = LoaderFeed(batches(4), 0), accelerator("cpu")
    fit(student, objective, feed, Plan(), accelerator=processes, out=out, progress=progress, saving=saving)
    return student


class Breaking(list[Tensor]):
    """Batches of which the seventh cannot be read."""

    def __iter__(self):  # type: ignore[no-untyped-def]
        yield from self[:6]
        raise OSError("broken")


class BreakingLater(list[Tensor]):
    """Batches that can be read once, and the second time up to the seventh."""

    read = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        self.read += 1
        yield from self[:6] if self.read > 1 else super().__iter__()
        if self.read > 1:
            raise OSError("broken")


def exploding(student: nn.Module, batch: Batch) -> dict[str, Tensor]:
    loss = student(batch.images).square().mean()
    return {"loss": loss * (torch.inf if batch.epoch > 0.6 else 1.0)}


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_state(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"finite loss at step 7.*lower `lr`"):
        fitted(exploding, tmp_path)
    tensors, at = load_state(tmp_path / STATE_FILE)
    assert (at["stage"], at["step"]) == (0, 7)
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())


class SpoiledAt:
    """An objective whose gradient, but not its loss, is NaN at the given step, as often as ``times`` says."""

    def __init__(self, step: int, times: int = 1) -> None:
        self.step, self.times = step, times

    def __call__(self, student: nn.Module, batch: Batch) -> dict[str, Tensor]:
        loss = student(batch.images).square().mean()
        if round(10 * batch.epoch) == self.step and self.times:
            self.times -= 1
            loss.register_hook(lambda gradient: gradient * torch.nan)
        return {"loss": loss}


def test_weights_that_end_not_finite_are_an_error_and_the_run_goes_on_from_the_last_good_state(tmp_path: Path) -> None:
    """A NaN gradient in the last step: no later loss tells of it."""
    spoiled, said = SpoiledAt(9), []
    with pytest.raises(
        InputError, match=r"finite weights after step 10, .* after step 9, .*state\.safetensors"
    ) as told:
        fitted(spoiled, tmp_path)
    assert "\n" not in str(told.value)
    assert str(tmp_path / STATE_FILE) in str(told.value)
    tensors, at = load_state(tmp_path / STATE_FILE)
    assert (at["stage"], at["step"]) == (0, 9)
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())
    found = fitted(spoiled, tmp_path, progress=lambda *words: said.append(words))
    assert said[0] == ("training", 9, 10, "continued after step 9")
    assert model_hash(found) == model_hash(fitted(SpoiledAt(99), None))


def test_weights_that_end_not_finite_are_an_error_without_a_checkpoint_too(tmp_path: Path) -> None:
    for out in (None, tmp_path):
        with pytest.raises(InputError, match=r"finite weights after step 10, got NaN or infinity in .*; lower `lr`"):
            fitted(SpoiledAt(9), out, saving=Saving(checkpoint_seconds=1000))
    assert not (tmp_path / STATE_FILE).exists()


def test_smooth_never_returns_an_older_state_as_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled = SpoiledAt(9)
    monkeypatch.setattr(
        "heatsmooth.training.methods.heat_smoothing", lambda student, batch, **_: spoiled(student, batch)
    )
    for out in (tmp_path, None):
        spoiled.times = 1
        with pytest.raises(InputError, match="expected finite weights after step 10"):
            smooth(
                Linear(torch.randn(5, 16)),
                batches(4),
                sigma=0.25,
                device="cpu",
                out=out,
                saving=Saving(checkpoint_seconds=0),
            )


@pytest.mark.parametrize(
    ("log_every", "checkpoint_seconds", "last_good"), [(10, 0, 7), (3, 1e9, None), (10, 1e9, None)]
)
def test_a_loss_that_is_not_finite_is_named_when_it_is_logged_or_saved(
    log_every: int, checkpoint_seconds: float, last_good: int | None, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="finite loss at step 7, got"):
        fitted(exploding, tmp_path, saving=Saving(checkpoint_seconds=checkpoint_seconds, log_every=log_every))
    state = tmp_path / STATE_FILE
    assert (load_state(state)[1]["step"] if state.exists() else None) == last_good
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in metrics] == ([2, 5] if log_every == 3 else [])


def test_terms_are_fetched_once_a_record_and_are_those_of_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU each fetch waits for all that was asked of it before."""
    values: list[tuple[float, float]] = []

    def objective(student: nn.Module, batch: Batch) -> dict[str, Tensor]:
        answer = student(batch.images)
        terms = {"distance": answer.square().mean(), "penalty": 0.1 * answer.abs().mean()}
        values.append((terms["distance"].item(), terms["penalty"].item()))
        return terms

    fetched: list[int] = []
    plain = torch.Tensor.tolist

    def noted(tensor: Tensor) -> Any:
        fetched.append(tensor.numel())
        return plain(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", noted)
    fitted(objective, tmp_path, saving=Saving(log_every=4))
    assert fetched == [8, 8, 4]
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in metrics] == [3, 7, 9]
    for record, steps in zip(metrics, (values[:4], values[4:8], values[8:]), strict=True):
        assert record["distance"] == sum(distance for distance, _ in steps) / len(steps)
        assert record["penalty"] == sum(penalty for _, penalty in steps) / len(steps)
        assert record["loss"] == sum(sum(terms) for terms in steps) / len(steps)


def test_a_run_continued_amid_a_record_has_the_same_metrics(tmp_path: Path) -> None:
    images = batches(8)
    model = Linear(torch.randn(5, 16))
    how: dict[str, Any] = {"sigma": 0.25, "device": "cpu", "saving": Saving(log_every=4)}
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    expected = smooth(model, images, out=tmp_path / "whole", **how)
    with pytest.raises(OSError, match="broken"):
        smooth(
            model,
            Breaking(images),
            out=tmp_path / "broken",
            **how | {"saving": Saving(checkpoint_seconds=0, log_every=4)},
        )
    found = smooth(model, images, out=tmp_path / "broken", **how)
    assert model_hash(found) == model_hash(expected)
    curves = []
    for name in ("whole", "broken"):
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        curves.append([{**json.loads(line), "images_per_second": 0, "check": ""} for line in lines])
    assert curves[0] == curves[1]
    assert len(curves[0]) == 3


@pytest.mark.parametrize("restart", [False, True])
def test_timesteps_in_a_directory_are_those_without_one_also_when_broken(restart: bool, tmp_path: Path) -> None:
    """Each begins without the momentum of the one before; where it restarts, with its own random weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 5))
    how: dict[str, Any] = {"sigma": 0.25, "device": "cpu", "timesteps": 2, "restart": restart, "temperature": 1.0}
    expected = smooth(model, batches(8), **how)
    often = Saving(checkpoint_seconds=0)
    for feed in (Breaking(batches(8)), BreakingLater(batches(8))):
        with pytest.raises(OSError, match="broken"):
            smooth(model, feed, out=tmp_path, saving=often, **how)
    assert load_state(tmp_path / STATE_FILE)[1]["stage"] == 1
    assert model_hash(smooth(model, batches(8), out=tmp_path, **how)) == model_hash(expected)


def test_dropout_and_resumption_in_one_process(tmp_path: Path) -> None:
    """Randomness inside the network follows from the seed and the step too."""

    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.Dropout(0.5), nn.Linear(32, 5))

    images = batches(8)
    smoothed = partial(smooth, sigma=0.25, temperature=1.0, device="cpu")
    expected = smoothed(network(), images, out=None)
    with pytest.raises(OSError, match="broken"):
        smoothed(network(), Breaking(images), out=tmp_path, saving=Saving(checkpoint_seconds=0))
    assert load_state(tmp_path / STATE_FILE)[1]["step"] == 6
    found = smoothed(network(), images, out=str(tmp_path))
    assert model_hash(found) == model_hash(expected)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "steps"])
def test_schedules_start_at_lr_and_never_rise(schedule: str) -> None:
    plan = Plan(lr=0.3, schedule=schedule)  # type: ignore[arg-type]
    rates = [plan.rate(i, 100) for i in range(100)]
    assert rates[0] == 0.3
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates))
    assert rates[-1] > 0


@pytest.mark.parametrize(("steps", "largest"), [(12, 0.12), (100, 0.5), (1000, 0.9)])
def test_few_steps_are_small_ones(steps: int, largest: float) -> None:
    plan = Plan(lr=1.0, warmup_steps=100)
    rates = [plan.rate(step, steps) for step in range(steps)]
    assert max(rates) <= largest + 0.01
    assert rates[0] == 0.01
    assert rates[-1] == pytest.approx(min(1 / steps, steps / 100))


@pytest.mark.parametrize("parts", [2, 4])
def test_accumulated_gradients_are_those_of_the_whole_batch(parts: int) -> None:
    """A network without batch norm: the same noise meets the same images, so only rounding differs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 5))
    images = ImageSet.of("random", torch.rand(32, 1, 8, 8, generator=torch.Generator().manual_seed(1)), None)
    whole, split = (
        smooth(model, images, sigma=0.25, batch_size=16, lr=0.1, device="cpu", accumulate=count) for count in (1, parts)
    )
    for expected, found, start in zip(whole.parameters(), split.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(found, start, atol=1e-4)
    with pytest.raises(InputError, match="`accumulate`: expected a divisor of the 16 images"):
        smooth(model, images, sigma=0.25, batch_size=16, device="cpu", accumulate=3)


def test_mixed_precision_of_the_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(InputError, match="expected --mixed_precision no, got bf16"):
        accelerator("cpu")
