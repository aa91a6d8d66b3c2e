"""A world small enough that a whole command takes half a second."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heatsmooth.data import load_images
from heatsmooth.models import save
from tests.conftest import tiny_classifier
from tests.faults.processes import Command


@pytest.fixture(scope="session", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Everything imported before a clock is read."""
    assert Command(["--version"], tmp_path_factory.mktemp("server")).end().code == 0


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 training and 24 test images of 14×14."""
    arrays: dict[str, Any] = {}
    for split, count in (("train", 96), ("test", 24)):
        images = load_images("fashion-mini", "train" if split == "train" else "test")
        arrays[f"{split}_images"] = np.asarray(images.pixels)[:count, 0, ::2, ::2]
        arrays[f"{split}_labels"] = images.known_labels()[:count].numpy()
    path = tmp_path_factory.mktemp("data") / "small.npz"
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with an untrained network."""
    path = tmp_path_factory.mktemp("network")
    save(tiny_classifier(), path / "model.safetensors")
    return path


@pytest.fixture(scope="session")
def commands(data: Path, network: Path) -> dict[str, list[str]]:
    """Each command that works in a run directory, without its ``--out``."""
    common = ["--data", f"npz:{data}", "--device", "cpu", "--quiet", "--json"]
    steps = ["--batch-size", "16", "--lr", "0.02", "--checkpoint-seconds", "0", "--log-every", "3"]
    source = ["--from", str(network)]
    noise = [*source, "--sigma", "0.25"]
    return {
        "train": ["train", *common, *steps, "--epochs", "2"],
        "smooth": ["smooth", *common, *steps, *noise, "--timesteps", "2"],
        "certify": ["certify", *common, *noise, "--n", "200", "--n0", "50", "--means"],
        "attack": ["attack", *common, *source, "--steps", "5", "--batch-size", "4"],
        "compare": ["compare", "fashion-small", "--rehearse", "--methods", "bootcamp", *common],
        "audit": ["audit", *common, *noise, "--n", "100", "--steps", "3", "--noise-samples", "4", "--images", "12"],
    }


@pytest.fixture(scope="session")
def finished(commands: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run directories of the commands, undisturbed; of all but the comparison, which takes longer."""
    root = tmp_path_factory.mktemp("finished")
    names = [name for name in commands if name != "compare"]
    for name in names:
        ended = Command([*commands[name], "--out", root / name], root).end()
        assert ended.code == 0, ended
    return {name: root / name for name in names}
