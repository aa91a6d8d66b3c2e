"""Training metrics where people watch them; what TensorBoard wrote is read back."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from heatsmooth.commands.line import run
from heatsmooth.models import save
from heatsmooth.results.metrics import read_metrics
from heatsmooth.runs import read_records
from tests.conftest import tiny_classifier

SMOOTH = [
    *("smooth", "--data", "npz:images.npz", "--from", "b", "--sigma", "0.25", "--quiet"),
    *("--batch-size", "4", "--timesteps", "2", "--log-every", "2", "--out", "s"),
]


@pytest.fixture(autouse=True)
def _network(in_tmp: Path) -> None:
    Path("b").mkdir()
    save(tiny_classifier(), Path("b/model.safetensors"))
    np.savez("images.npz", images=np.random.default_rng(0).random((16, 1, 12, 12)), labels=np.arange(16) % 10)


def test_tensorboard_files_hold_the_metrics() -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert run([*SMOOTH, "--track", "tensorboard"]) == 0
    read = events.EventAccumulator("s/tensorboard").Reload()
    records = read_records(Path("s/metrics.jsonl"))
    assert [(record["stage"], record["step"]) for record in records] == [(0, 1), (0, 3), (1, 1), (1, 3)]
    names = set(records[0]) - {"stage", "step"}
    assert {"loss", "distance", "penalty", "lr", "epoch", "images_per_second"} <= names
    assert set(read.Tags()["scalars"]) >= names
    for name in names:
        scalars = read.Scalars(name)
        assert [scalar.step for scalar in scalars] == [1, 3, 5, 7]
        assert [scalar.value for scalar in scalars] == pytest.approx([record[name] for record in records])
    assert set(read_metrics(Path("s"))) >= {"loss"}


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_the_other_trackers_are_told_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through look-alikes: none of these libraries is installed here."""
    library: Any = MagicMock(__spec__=ModuleType("spec"))
    library.search_experiments.return_value = []
    library.utils.validation.MAX_PARAM_VAL_LENGTH, library.utils.validation.MAX_PARAMS_TAGS_PER_BATCH = 500, 100
    monkeypatch.setitem(sys.modules, name, library)
    assert run([*SMOOTH, "--track", name]) == 0
    told = library.log_metrics if name == "mlflow" else library.init.return_value.log
    records = read_records(Path("s/metrics.jsonl"))
    assert [call.kwargs["step"] for call in told.call_args_list] == [1, 3, 5, 7]
    assert [call.args[0]["loss"] for call in told.call_args_list] == [record["loss"] for record in records]
    ended = library.end_run if name == "mlflow" else library.init.return_value.finish
    assert ended.call_count == 2


def test_a_missing_library_and_one_that_does_not_start_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    library = MagicMock(__spec__=ModuleType("spec"))
    library.init.side_effect = RuntimeError("no key\nsecond line")
    monkeypatch.setitem(sys.modules, "trackio", library)
    for name, message in {
        "wandb": "--track wandb: expected the package wandb, got none; pip install wandb",
        "trackio": "--track trackio: expected it to start, got no key;",
        "other": "--track: expected tensorboard, wandb, mlflow or trackio, got 'other'",
    }.items():
        assert run([*SMOOTH, "--track", name]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
