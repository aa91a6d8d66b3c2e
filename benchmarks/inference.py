"""One image: one pass of a network against Cohen's PREDICT from 100 noisy ones, for networks of several sizes.

    pip install 'heatsmooth[export]'
    python benchmarks/inference.py [--models tiny:32 small:32 resnet34:32 resnet50:224] [--samples 100] [--threads 2]

A model is named with the side of its images. All ways take turns: optimised in PyTorch, one pass and PREDICT with the
same network; the exported file in onnxruntime, one pass and PREDICT; and both as they are written plainly. Weights and
images are random: times do not depend on them; agreement does, and is in what ``heatsmooth compare`` reports.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from heatsmooth.comparing.timing import inference_times
from heatsmooth.exporting import export_onnx
from heatsmooth.models import NetworkSpec, build
from heatsmooth.results.schema import to_json
from heatsmooth.runs import provenance
from heatsmooth.statistics.bounds import predict

SIGMA, CLASSES = 0.25, 10


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=["tiny:32", "small:32", "resnet34:32", "resnet50:224"])
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--images", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    facts = provenance()
    versions = facts["versions"] | {"onnxruntime": onnxruntime.__version__}
    print(json.dumps({"commit": facts["commit"], "hardware": facts["hardware"], "versions": versions}))
    size = f"{arguments.images} images, {arguments.samples} draws, {arguments.threads} threads"
    print(f"{size}; milliseconds an image, and how many times one pass")
    print(f"{'':14}{'PyTorch':>30}{'onnxruntime':>30}{'plain':>30}")
    print(f"{'':14}" + 3 * f"{'one pass':>10}{'PREDICT':>10}{'':>10}" + f"{'plain PREDICT : onnx one pass':>32}")
    for named in arguments.models:
        name, side = named.split(":")
        torch.manual_seed(0)
        network = build(NetworkSpec(name, CLASSES)).eval()
        images = torch.rand(arguments.images, 3, int(side), int(side))
        others = exported(network, images, arguments.samples, arguments.threads)
        found = to_json(inference_times(network, images, sigma=SIGMA, samples=arguments.samples, others=others))
        pairs = [("one_pass", "stochastic"), ("onnx_one_pass", "onnx"), ("plain_one_pass", "plain")]
        cells = [(1e3 * found[f"{once}_seconds"], 1e3 * found[f"{often}_seconds"]) for once, often in pairs]
        most = found["plain_seconds"] / found["onnx_one_pass_seconds"]
        print(
            f"{named:14}" + "".join(f"{a:10.2f}{b:10.2f}{b / a:8.1f} ×" for a, b in cells) + f"{most:30.1f} ×",
            flush=True,
        )


def exported(network: nn.Module, images: Tensor, samples: int, threads: int) -> dict[str, Callable[[Tensor], object]]:
    """One pass and PREDICT with the network as an exported file."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "model.onnx"
        export_onnx(network, file, images, sigma=SIGMA)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry(
            "session.intra_op.allow_spinning", "0"
        )  # or the other ways wait for its threads
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def one_pass(image: Tensor) -> int:
        return int(session.run(["class"], {"images": image.numpy()})[0][0])

    def often(image: Tensor) -> object:
        copies = image.repeat(samples, 1, 1, 1)
        noisy = copies + SIGMA * torch.randn_like(copies)
        classes = session.run(["class"], {"images": noisy.numpy()})[0]
        return predict(np.bincount(classes, minlength=CLASSES)[None], alpha=0.001)

    return {"onnx_one_pass_seconds": one_pass, "onnx_seconds": often}


if __name__ == "__main__":
    main()
