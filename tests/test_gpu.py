"""What must hold on a GPU: ``make test-gpu``. The same functions run on the CPU with the other tests.

Marked ``gpu``: needs CUDA, skipped without it; the last test needs two GPUs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import heatsmooth as hs
from heatsmooth.certification.sampling import Job, Sampler, Tally, drawing, tallied
from heatsmooth.data import ImageSet
from heatsmooth.device import exact_float32
from heatsmooth.models import for_inference, load_state, save
from heatsmooth.models.inference import TOLERANCE
from heatsmooth.noise import Draw
from heatsmooth.results.certificates import read_certificates
from heatsmooth.training.batches import Batch, Place, SetFeed
from heatsmooth.training.heat import heat_smoothing
from heatsmooth.training.settings import Heat
from tests.conftest import tiny_classifier
from tests.faults.processes import free_port

CPU, CUDA = "cpu", "cuda"
GPUS = torch.cuda.device_count()
DEVICES = [
    CPU,
    pytest.param(CUDA, marks=[pytest.mark.gpu, pytest.mark.skipif(GPUS < 1, reason="needs a GPU")]),
]
on_devices = pytest.mark.parametrize("device", DEVICES)


def pictures(count: int) -> Tensor:
    return torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(5))


def network(device: str) -> nn.Module:
    """Random weights, with batch norm statistics, and biases that spread the classes."""
    model = tiny_classifier()
    model(pictures(64))
    model.eval()
    with torch.no_grad():
        model.network.get_parameter("fc.bias").sub_(model(pictures(64)).mean(0))
    return model.to(device)


def tallies(model: nn.Module, batch_size: int) -> dict[int, Tally]:
    sampler = Sampler(model, sigma=0.5, classes=10, batch_size=batch_size)
    jobs = (Job(i, image, drawing("estimation", 130)) for i, image in enumerate(pictures(4)))
    return {job.index: tally for job, tally in sampler.run(jobs)}


def near_ties(model: nn.Module) -> dict[int, int]:
    """How many copies of each image, those of ``tallies``, have two top logits that rounding could exchange."""
    margins: dict[int, list[Tensor]] = {}

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.inner(x)
            best = logits.topk(2, dim=1).values
            slack = 2 * TOLERANCE * float(logits.abs().max().clamp_min(1))
            margins.setdefault(0, []).append((best[:, 0] - best[:, 1] <= slack).cpu())
            return logits

    sampler = Sampler(Watched().eval(), sigma=0.5, classes=10, batch_size=50)
    found = {}
    for i, image in enumerate(pictures(4)):
        margins.clear()
        list(sampler.run([Job(i, image, drawing("estimation", 130))]))
        found[i] = int(torch.cat(margins[0]).sum())
    return found


@on_devices
def test_counts_do_not_depend_on_the_batch_but_for_ties(device: str) -> None:
    """On a CPU not at all; on a GPU only copies whose two top logits tie within rounding may change their class."""
    model = for_inference(network(device), pictures(50).to(device))
    expected, ties = tallies(model, 100), near_ties(model)
    for batch_size in (50, 256, 1000):
        for index, tally in tallies(model, batch_size).items():
            assert tally.n == expected[index].n
            moved = abs(tally.counts - expected[index].counts).sum() / 2
            assert moved <= (0 if device == CPU else ties[index])
            assert tally.sums == pytest.approx(expected[index].sums, abs=130 * 10 * TOLERANCE)
    assert sum(ties.values()) < 0.05 * 4 * 130


@on_devices
def test_sums_on_the_device_are_those_of_the_cpu(device: str) -> None:
    logits, rows = 3 * torch.randn(117, 1000), [50, 17, 50]
    for found, expected in zip(tallied(logits.to(device), rows), tallied(logits, rows), strict=True):
        assert found.counts.tolist() == expected.counts.tolist()
        assert found.sums == pytest.approx(expected.sums, rel=1e-12)
        assert found.squares == pytest.approx(expected.squares, rel=1e-12)


@on_devices
@pytest.mark.parametrize("preset", ["bootcamp", "paper-imagenet"])
def test_losses_are_those_of_the_cpu(device: str, preset: str) -> None:
    """The same noise on both: the CPU's, for a device has random numbers of its own."""

    class Moved(Draw):
        def normal(self, shape: object) -> Tensor:
            return super().normal(shape).to(device)  # type: ignore[arg-type]

        def uniform(self, shape: object) -> Tensor:
            return super().uniform(shape).to(device)  # type: ignore[arg-type]

    heat = Heat(0.25)
    if preset == "paper-imagenet":
        heat = Heat(0.25, estimator="projection", projections=2, noisy_images="fraction", penalty="logits")
    teacher = network(CPU)

    def losses(where: str, draw: Draw) -> dict[str, float]:
        batch = Batch(pictures(16).to(where), None, draw, 0.0)
        student = tiny_classifier(seed=1).eval().to(where)
        terms = heat_smoothing(student, batch, teacher=teacher.to(where), heat=heat)
        return {name: term.detach().item() for name, term in terms.items()}

    with exact_float32():
        expected, found = losses(CPU, Draw(0)), losses(device, Moved(0))
    assert found == pytest.approx(expected, rel=1e-3)


@on_devices
def test_the_network_is_computed_in_float32(device: str) -> None:
    """Of 11 bits, TF32's, a difference of 1e-3 would remain."""
    model = network(CPU)
    with torch.inference_mode(), exact_float32():
        expected = model.double()(pictures(16).double())
        found = model.float().to(device)(pictures(16).to(device)).cpu()
    scale = float(expected.abs().max().clamp_min(1))
    assert float((found - expected).abs().max()) < 2e-5 * scale


@on_devices
def test_the_folded_network_keeps_its_tolerance(device: str) -> None:
    """In TF32 it misses it, and is not used: no batch norm would be folded."""
    faster = for_inference(network(device), pictures(50).to(device))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in faster.modules())


@on_devices
def test_batches_are_augmented_alike(device: str) -> None:
    feed = SetFeed(ImageSet.of("random", (255 * pictures(32)).to(torch.uint8), None), 16, seed=2)
    expected, found = (list(feed.batches(0, 2, Place(torch.device(where)))) for where in (CPU, device))
    for one, other in zip(expected, found, strict=True):
        assert other.images.device.type == device
        torch.testing.assert_close(other.images.cpu(), one.images, rtol=1e-6, atol=0)


@on_devices
def test_smoothing_and_certifying_leave_the_settings_alone(device: str) -> None:
    before = torch.backends.cudnn.allow_tf32
    images = ImageSet.of("random", pictures(32), None)
    robust = hs.smooth(network(CPU), images, sigma=0.25, device=device, batch_size=16)
    assert next(robust.parameters()).device.type == device
    certificates = hs.certify(robust, pictures(2), sigma=0.25, n=100)
    assert certificates.counts.sum(1).tolist() == [100, 100]
    assert torch.backends.cudnn.allow_tf32 == before


@pytest.mark.gpu
@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
def test_two_gpus_are_as_one(tmp_path: Path) -> None:
    """As documented in docs/scale.md: the counts but for ties, and the weights within what rounding does to them."""
    save(tiny_classifier(), tmp_path / "teacher.safetensors")
    given = f"--data fashion-mini --from {tmp_path}/teacher.safetensors --sigma 0.25 --quiet --device cuda"
    smooth = f"smooth {given} --limit-train 1280 --batch-size 64 --lr 0.005 --log-every 1"
    certify = f"certify {given} --images 8 --n 1000"
    two = f"-m torch.distributed.run --nproc-per-node 2 --master-port {free_port()} -m --".split()
    for words in (smooth, certify):
        for launch, name in ((["-m"], "one"), (two, "two")):
            out = tmp_path / f"{words.split()[0]}-{name}"
            subprocess.run(
                [sys.executable, *launch, "heatsmooth", *words.split(), "--out", str(out)], env=os.environ, check=True
            )
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / f"smooth-{name}/metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert losses[1] == pytest.approx(losses[0], abs=1e-3)
    weights = [load_state(tmp_path / f"smooth-{name}/model.safetensors")[0] for name in ("one", "two")]
    for key, expected in weights[0].items():
        torch.testing.assert_close(weights[1][key], expected, rtol=1e-2, atol=1e-3)
    counts = [
        {r.index: torch.tensor(r.counts) for r in read_certificates(tmp_path / f"certify-{name}")}
        for name in ("one", "two")
    ]
    assert counts[0].keys() == counts[1].keys()
    for index, expected in counts[0].items():
        assert int((counts[1][index] - expected).abs().sum()) / 2 <= 5
