"""One image through the network: the exported file in onnxruntime beside PyTorch, in one run.

    pip install 'heatsmooth[export]'
    python benchmarks/onnx_latency.py [--from RUN --data cifar10 --data-root DIR] [--model small] [--rounds 300]

Batch 1, all variants taking turns, medians. PyTorch is timed in inference mode and in both memory layouts, giving
probabilities alone; the file also gives class and L-bound. Without --from the network has random weights: latency does
not depend on them.
"""

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor

from heatsmooth.data import load_images
from heatsmooth.exporting import export_onnx
from heatsmooth.models import NetworkSpec, build, for_inference
from heatsmooth.models import load as load_model
from heatsmooth.runs import provenance

IMAGES, WARM_UP = 200, 20


def medians(rounds: int, variants: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median milliseconds of each; they take turns, each round beginning with another."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants)
    for i in range(WARM_UP + rounds):
        order = [*order[1:], order[0]]
        for name in order:
            start = time.perf_counter()
            variants[name]()
            if i >= WARM_UP:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--data", default="fashion-mini")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--model", default="small")
    parser.add_argument("--sigma", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    chosen = load_images(arguments.data, "test", root=arguments.data_root).strided(1, IMAGES)
    images = chosen.images(torch.arange(len(chosen)))
    if arguments.source:
        model = load_model(arguments.source)
    else:
        model = build(NetworkSpec(arguments.model, channels=chosen.shape[0])).eval()
    facts = provenance()
    print(f"{facts['hardware']['cpu']}, {arguments.threads} threads")
    print(f"torch {facts['versions']['torch']}, onnxruntime {onnxruntime.__version__}, commit {facts['commit']}")
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "model.onnx"
        exported = export_onnx(model, file, images, sigma=arguments.sigma)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = arguments.threads
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    kind = model.spec.architecture
    print(f"{kind}, {len(images)} images of {chosen.name} and {exported.images - len(images)} random ones")
    print(f"largest difference of a probability: {exported.largest_difference:.2g}  (at most 1e-5)")
    plain = copy.deepcopy(model)
    plain.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    faster = for_inference(model, images[:50])
    one, array = images[:1], images[:1].numpy()

    def eager(network: torch.nn.Module) -> Tensor:
        with torch.inference_mode():
            probabilities: Tensor = network(one).softmax(1)
            return probabilities

    found = medians(
        arguments.rounds,
        {
            "eager, channels last": lambda: eager(model),
            "eager, default layout": lambda: eager(plain),
            "batch norm folded": lambda: eager(faster),
            "onnxruntime": lambda: session.run(None, {"images": array}),
        },
    )
    print(f"one image, median of {arguments.rounds} rounds")
    for name, value in found.items():
        print(f"  {name:24} {value:8.3f} ms")
    found = {name: value / found["onnxruntime"] for name, value in found.items()}
    best = min(ratio for name, ratio in found.items() if name.startswith("eager"))
    print(f"onnxruntime against eager PyTorch, its better layout: {best:.2f}×  (at least 1.5)")
    print(f"            against the folded network:               {found['batch norm folded']:.2f}×")


if __name__ == "__main__":
    main()
