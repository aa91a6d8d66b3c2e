"""What one deterministic certificate costs beside one from noisy samples; and the exported radius beside the bound.

    pip install 'heatsmooth[export]'
    python benchmarks/proven_cost.py --from RUN --data cifar10 --data-root DIR [--public resnet20-12fca82f.th]

All times are of one run, taking turns: deterministic certificates one image at a time and in batches, and certificates
from n samples of the same student and of a ResNet-20 as in examples/public_resnet.py, whose weights are random without
--public: time does not depend on them. Then the exported file runs in onnxruntime on many images, and each of its radii
is compared with the bound (z_i − z_j) / (‖w_i − w_j‖ L) in double precision.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from public_resnet import resnet20

from heatsmooth.certification.certificates import certify_each
from heatsmooth.certification.deterministic import certify_network
from heatsmooth.certification.settings import Sampling, Settings
from heatsmooth.data import ImageSet, load_images
from heatsmooth.exporting import export_onnx
from heatsmooth.models import Classifier, DeterministicRadius, NetworkSpec
from heatsmooth.models import load as load_model
from heatsmooth.models.lipschitz import LipschitzNetwork
from heatsmooth.runs import provenance

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the public ResNet-20."""
RELATIVE = 3e-7
"""Of an exported radius: it is rounded down to float32."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, required=True)
    parser.add_argument("--data", default="fashion-mini")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--public", type=Path, help="weights of the ResNet-20")
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--sampled", type=int, default=3, help="images with sampled certificates")
    parser.add_argument("--images", type=int, default=1000, help="images with deterministic certificates")
    chosen = parser.parse_args()
    model = load_model(chosen.source).requires_grad_(False)
    whole = load_images(chosen.data, "test", root=chosen.data_root)
    images = whole.strided(max(1, len(whole) // chosen.images), chosen.images)
    facts = provenance()
    print(f"{facts['hardware']['cpu']}, {torch.get_num_threads()} threads, torch {facts['versions']['torch']}")
    print(f"commit {facts['commit']}; {len(images)} images of {images.name}, {chosen.source}")
    times(model, public(chosen.public, images.shape[0]), images, chosen)
    exported(model, images)


def public(weights: Path | None, channels: int) -> Classifier:
    """The public ResNet-20; for grey images with a first layer of one channel and random weights."""
    network = resnet20()
    if channels != 3:
        network.conv1 = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
    elif weights is not None:
        state = torch.load(weights, map_location="cpu", weights_only=True)["state_dict"]
        network.load_state_dict({name.removeprefix("module."): tensor for name, tensor in state.items()})
    mean, std = (MEAN, STD) if channels == 3 else ((0.5,), (0.5,))
    return Classifier(network, NetworkSpec("resnet20", 10, channels, mean, std)).eval().requires_grad_(False)


def times(model: Classifier, other: Classifier, images: ImageSet, chosen: argparse.Namespace) -> None:
    """Print seconds per certificate of each kind, and their ratios to a deterministic one."""
    settings = Settings(0.25, n=chosen.n, n0=100)
    few, proven = images.strided(1, chosen.sampled), DeterministicRadius(model)
    singles = images.images(torch.arange(min(100, len(images)))).split(1)

    def one_at_a_time() -> int:
        with torch.inference_mode():
            return len([proven(single, model(single)) for single in singles])

    def sampled(network: Classifier) -> Callable[[], int]:
        return lambda: len(list(certify_each(network, few, settings, Sampling())))

    kinds: dict[str, Callable[[], int]] = {
        "deterministic, one image at a time": one_at_a_time,
        "deterministic, in batches": lambda: len(list(certify_network(model, images))),
        f"{settings.n:,} samples of the same student": sampled(model),
        f"{settings.n:,} samples of a ResNet-20": sampled(other),
    }
    seconds = {name: per_certificate(work) for name, work in kinds.items()}
    alone, batched, *sampling = seconds
    print("seconds per certificate:")
    for name, value in seconds.items():
        print(f"  {name:40} {value:10.5f}")
    for name in sampling:
        ratios = (seconds[name] / seconds[alone], seconds[name] / seconds[batched])
        print(f"{name}: {ratios[0]:,.0f} times one at a time, {ratios[1]:,.0f} times in batches  (at least 1,000)")


def per_certificate(work: Callable[[], int]) -> float:
    """Seconds per certificate."""
    begin = time.perf_counter()
    count = work()
    return (time.perf_counter() - begin) / count


@dataclass(frozen=True)
class Bounded:
    """Per image, double: the bound in real numbers, the proven radius, and what was subtracted for rounding."""

    exact: Tensor
    radii: Tensor
    subtracted: Tensor

    @classmethod
    def of(cls, model: Classifier, images: Tensor) -> "Bounded":
        """Of images (batch, channels, height, width); the bound is computed in double precision, without rounding."""
        network, proven = model.network, DeterministicRadius(model)
        assert isinstance(network, LipschitzNetwork)
        with torch.inference_mode():
            normalised = (images.double() - model.mean.double()) / model.std.double()
            features = network.layers(normalised).flatten(1)
            rows = network.last.rows(torch.float64)
            logits = features @ rows.T + network.last.bias.double()
            distances = torch.stack([(row - rows).square().sum(1).sqrt() for row in rows])
            classes = logits.argmax(1)
            gaps = (logits.amax(1, keepdim=True) - logits) / distances[classes]
            gaps = gaps.scatter(1, classes[:, None], torch.inf).amin(1)
            return cls(gaps / proven.constant, *proven.parts(images, model(images)))


def exported(model: Classifier, images: ImageSet) -> None:
    """Print how the radii of the exported file compare with the bound and with its stated margin."""
    every = images.images(torch.arange(len(images)))
    with tempfile.TemporaryDirectory() as directory:
        file = export_onnx(model, Path(directory) / "model.onnx", every[:100]).path
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    below, exceeding, shares, differences = [], 0, [], []
    for some in every.split(50):
        names = [output.name for output in session.get_outputs()]
        radii = session.run(None, {"images": some.numpy()})[names.index("certified_radius")]
        found, bound = torch.from_numpy(radii).double(), Bounded.of(model, some)
        margin = 1.5 * bound.subtracted + RELATIVE * bound.exact
        exceeding += int((found > bound.exact).sum())
        below.append(bound.exact - found)
        shares.append((bound.exact - found)[found > 0] / margin[found > 0])
        differences.append((found - bound.radii).abs())
    gap, share = torch.cat(below), torch.cat(shares)
    print(f"exported to ONNX, onnxruntime {onnxruntime.__version__}, {len(gap)} images:")
    print(f"  radii above the bound: {exceeding}  (must be 0)")
    print(f"  below the bound: median {float(gap.median()):.2g}, at most {float(gap.max()):.2g}")
    print(f"  as a share of the stated margin: at most {float(share.max()):.2f}  (must be at most 1)")
    print(f"  different from certify: at most {float(torch.cat(differences).max()):.2g}")


if __name__ == "__main__":
    main()
