"""float32 stays float32 while heatsmooth computes, and the user's settings come back."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heatsmooth as hs
from heatsmooth.auditing import audit
from heatsmooth.certification.settings import Settings
from heatsmooth.commands.line import run
from heatsmooth.comparing.timing import inference_times
from heatsmooth.data import ImageSet
from heatsmooth.device import exact_float32
from heatsmooth.evaluate import accuracy
from heatsmooth.models import check_gradient, check_independence, for_inference
from heatsmooth.results.audit import AuditSettings
from heatsmooth.runs import read_json
from heatsmooth.serving import ServedNetwork
from heatsmooth.training.methods import train
from heatsmooth.training.settings import Baseline, Plan

SIZE = (1, 8, 8)


def settings() -> tuple[object, ...]:
    """What decides how float32 is computed: by default convolutions on GPUs may be rounded."""
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()


EXACT = (False, False, "highest")


class Watching(nn.Module):
    """Notes how float32 is computed whenever it is asked or differentiated."""

    seen: list[tuple[object, ...]] = []  # noqa: RUF012  # of all copies together

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Linear(3, 10)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(settings())
        logits: Tensor = self.head(self.norm(self.conv(x)).mean((2, 3)))
        if logits.requires_grad:
            logits.register_hook(lambda gradient: self.seen.append(settings()))
        return logits


def network() -> Watching:
    """What commands are given as ``tests.test_device:network``."""
    torch.manual_seed(0)
    return Watching().eval()


@pytest.fixture(params=["default", "fast"])
def users(request: pytest.FixtureRequest) -> Iterator[tuple[object, ...]]:
    """Settings of a user: torch's own, or all that is fast."""
    Watching.seen.clear()
    before = torch.get_float32_matmul_precision()
    if request.param == "fast":
        torch.set_float32_matmul_precision("medium")
    yield settings()
    torch.set_float32_matmul_precision(before)


def images(count: int = 8) -> ImageSet:
    pixels = torch.rand(count, *SIZE, generator=torch.Generator().manual_seed(1))
    return ImageSet.of("random", pixels, torch.arange(count) % 4)


def pixels() -> Tensor:
    return images().images(torch.arange(8))


LIBRARY: dict[str, Callable[[], Any]] = {
    "smooth": lambda: hs.smooth(network(), images(), sigma=0.25, device="cpu", batch_size=4),
    "smooth by projections": lambda: hs.smooth(
        network(), images(), sigma=0.25, device="cpu", batch_size=4, preset="paper-imagenet", projections=1
    ),
    "train": lambda: train(network(), images(), choices=Baseline(), plan=Plan(batch_size=4), device="cpu"),
    "certify": lambda: hs.certify(network(), pixels(), sigma=0.25, n=100),
    "pgd": lambda: hs.pgd(network(), pixels(), torch.arange(8) % 4, eps=1.0, steps=2, early_stop=False),
    "ddn": lambda: hs.ddn(network(), pixels(), torch.arange(8) % 4, steps=2, early_stop=False),
    "accuracy": lambda: accuracy(network(), images()),
    "for_inference": lambda: for_inference(network(), pixels()),
    "check_independence": lambda: check_independence(network(), pixels()),
    "check_gradient": lambda: check_gradient(network(), pixels()),
    "audit": lambda: audit(network(), images(), AuditSettings(sigma=0.25, n=100, steps=2, noise_samples=2)),
    "serve": lambda: ServedNetwork(network(), Settings(0.25), 0, SIZE).probabilities(pixels()),
    "times": lambda: inference_times(network(), pixels()[:1], sigma=0.25, samples=50, rounds=1),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_the_library_computes_in_float32_and_restores(name: str, users: tuple[object, ...]) -> None:
    LIBRARY[name]()
    assert set(Watching.seen) == {EXACT}
    assert settings() == users
    assert users != EXACT


@pytest.mark.parametrize(
    "words",
    [
        "check --from tests.test_device:network --data fashion-mini --images 4 --image-size 28",
        "smooth --from tests.test_device:network --data fashion-mini --limit-train 32 --batch-size 16 --sigma 0.25",
        "certify --from tests.test_device:network --data fashion-mini --images 2 --n 100 --sigma 0.25",
        "attack --from tests.test_device:network --data fashion-mini --images 2 --steps 2",
    ],
    ids=lambda words: words.split()[0],
)
def test_commands_compute_in_float32_and_say_so(words: str, tmp_path: Path, capsys: Any) -> None:
    Watching.seen.clear()
    tells = not words.startswith("check")
    more = ["--out", str(tmp_path / "run")] if tells else []
    assert run([*words.split(), "--device", "cpu", "--quiet", *more]) == 0
    assert set(Watching.seen) == {EXACT}
    if tells:
        assert read_json(tmp_path / "run/run.json")["precision"] == "float32"


def test_the_last_thread_to_leave_restores() -> None:
    before, entered, leave = settings(), threading.Event(), threading.Event()

    def other() -> None:
        with exact_float32():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with exact_float32():
        thread.start()
        entered.wait()
    assert settings() == EXACT
    leave.set()
    thread.join()
    assert settings() == before


def test_an_error_restores() -> None:
    before = settings()
    with pytest.raises(ValueError, match="wrong"), exact_float32():
        raise ValueError("wrong")
    assert settings() == before


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="older torch has one way to set it")
def test_newer_settings_of_the_user_come_back_too() -> None:
    cudnn: Any = torch.backends.cudnn
    conv, rnn = cudnn.conv, cudnn.rnn
    before = conv.fp32_precision, rnn.fp32_precision
    try:
        conv.fp32_precision, rnn.fp32_precision = "tf32", "ieee"  # which the older setting cannot say
        with exact_float32():
            assert (conv.fp32_precision, rnn.fp32_precision) == ("ieee", "ieee")
        assert (conv.fp32_precision, rnn.fp32_precision) == ("tf32", "ieee")
    finally:
        conv.fp32_precision, rnn.fp32_precision = before
