"""Which objective and which steps make the best network in one label-free epoch: one choice changed at a time.

    python benchmarks/ablation.py --from RUN --data-root DIR --out DIR [--sigma 0.25] [--rows NAME ...] [--threads 2]

Weights of others also need ``--model public_resnet:resnet20 --mean 0.485 0.456 0.406 --std 0.229 0.224 0.225``, for
example, with ``examples`` on the ``PYTHONPATH``.

All rows are measured on test images with an odd index. Published certificates are of images with an even index, so no
radius is published on the images it was chosen on. Accuracies over all 10,000 test images include both. (Records
without ``"test_images": "odd"`` are older and used even indices too.)
Every row begins from the same trained CIFAR-10 network and differs from the preset ``bootcamp-strong`` where it says so
(``half``: with half its penalty). The row ``bootcamp`` is that preset, which once had this name. Rows that begin with
``default`` differ from the preset that is ``bootcamp`` now.
Each is measured as it would be used: accuracy of one clean pass and under noise (2,500 images), and from
``--n`` samples for each of ``--images`` images the certificates of the average and how often one pass has its class.
``where sure``: the same among the images whose average has a class of more than half, proven to 1 − 0.001 each.
Rows that are in ``--out`` already are not made again. What a step costs: ``smoothing_step.py``.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heatsmooth.certification.certificates import certify
from heatsmooth.data import load_images
from heatsmooth.errors import InputError
from heatsmooth.evaluate import accuracy
from heatsmooth.models import load, model_hash, normalising_deviation
from heatsmooth.progress import Progress, bar
from heatsmooth.runs import Records, provenance, read_records
from heatsmooth.statistics.bounds import clopper_pearson_lower
from heatsmooth.statistics.radii import one_sided_radius
from heatsmooth.training.methods import smooth
from heatsmooth.training.settings import preset

_HALF: dict[str, Any] = {"weight": 0.5}
_CLEAN: dict[str, Any] = {"noisy_images": "none", "estimator": "direction"}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("bootcamp", {}),
    "default, SGD": ("bootcamp", {"optimizer": "sgd"}),
    "default, Adam, lr 0.002": ("bootcamp", {"optimizer": "adam", "lr": 0.002}),
    "default, lr 0.025": ("bootcamp", {"lr": 0.025}),
    "default, lr 0.1": ("bootcamp", {"lr": 0.1}),
    "default, batches of 32": ("bootcamp", {"batch_size": 32}),
    "default, batches of 128": ("bootcamp", {"batch_size": 128}),
    "default, twice the penalty": ("bootcamp", {"weight": 1.0}),
    "default, half the penalty": ("bootcamp", {"weight": 0.25}),
    "default, no penalty": ("bootcamp", {"estimator": "none"}),
    "default, ascent of σ/2": ("bootcamp", {"ascent": 0.5}),
    "default, shifts": ("bootcamp", {"shifts": True}),
    "bootcamp": ("bootcamp-strong", {}),
    "no ascent": ("bootcamp-strong", {"ascent": 0.0}),
    "ascent of 2σ": ("bootcamp-strong", {"ascent": 2.0}),
    "twice the penalty": ("bootcamp-strong", {"weight": 2.0}),
    "no penalty": ("bootcamp-strong", {"estimator": "none"}),
    "no penalty, no ascent": ("bootcamp-strong", {"estimator": "none", "ascent": 0.0}),
    "lr 0.2": ("bootcamp-strong", {"lr": 0.2}),
    "batches of 64": ("bootcamp-strong", {"batch_size": 64}),
    "half the penalty": ("bootcamp-strong", _HALF),
    "half, no ascent": ("bootcamp-strong", _HALF | {"ascent": 0.0}),
    "half, ascent of 2σ": ("bootcamp-strong", _HALF | {"ascent": 2.0}),
    "half, on probabilities": ("bootcamp-strong", _HALF | {"penalty": "probabilities"}),
    "half, squared distance": ("bootcamp-strong", _HALF | {"distance": "squared-probabilities"}),
    "half, batch norm frozen, lr 0.01": ("bootcamp-strong", _HALF | {"batch_norm": "frozen", "lr": 0.01}),
    "half, lr 0.05": ("bootcamp-strong", _HALF | {"lr": 0.05}),
    "half, lr 0.2": ("bootcamp-strong", _HALF | {"lr": 0.2}),
    "half, lr constant": ("bootcamp-strong", _HALF | {"schedule": "constant"}),
    "half, lr in a cosine": ("bootcamp-strong", _HALF | {"schedule": "cosine"}),
    "half, batches of 64": ("bootcamp-strong", _HALF | {"batch_size": 64}),
    "clean images, direction": ("bootcamp-strong", _CLEAN),
    "clean images, two directions": ("bootcamp-strong", _CLEAN | {"projections": 2}),
    "clean images, projection": ("bootcamp-strong", _CLEAN | {"estimator": "projection"}),
    "noise on half, no penalty": ("bootcamp-strong", {"noisy_images": "fraction", "estimator": "none"}),
    "noise on half, direction": ("bootcamp-strong", {"noisy_images": "fraction", "estimator": "direction"}),
    "paper-imagenet, κ=1": ("paper-imagenet", {"projections": 1}),
    "paper-imagenet": ("paper-imagenet", {}),
    **{
        f"paper-imagenet, κ=1, ‖∇v‖² weighted {weight:g}": (
            "paper-imagenet",
            {"projections": 1, "scaling": "unbiased", "weight": weight},
        )
        for weight in (0.0003, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    },
}
"""By name: the preset, and what is changed in it."""


def main() -> None:
    """Make and measure the rows, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, required=True, help="run of the trained network")
    parser.add_argument("--model", help="architecture of weights without a record")
    parser.add_argument("--mean", type=float, nargs="*", help="of the normalisation inside the network")
    parser.add_argument("--std", type=float, nargs="*", help="of the normalisation inside the network")
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sigma", type=float, default=0.25)
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS), metavar="NAME")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "ablation.jsonl"
    with Records(file) as records, bar() as progress:
        for row in arguments.rows:
            known = {(record["row"], record["sigma"], record["seed"]) for record in read_records(file)}
            if (row, arguments.sigma, arguments.seed) not in known:
                records.append(_measured(row, arguments, progress))
    _print(read_records(file))


def _measured(row: str, arguments: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """The record of one row."""
    name, changes = ROWS[row]
    sigma, seed = arguments.sigma, arguments.seed
    train = load_images("cifar10", "train", root=arguments.data_root)
    test = load_images("cifar10", "test", root=arguments.data_root).strided(2, start=1)
    teacher = load(arguments.source, model=arguments.model, mean=arguments.mean, std=arguments.std)
    heat, plan = preset(name, sigma, deviation=normalising_deviation(teacher), **changes)
    facts = {
        "row": row,
        "sigma": sigma,
        "seed": seed,
        "teacher": model_hash(teacher),
        "heat": heat.describe(),
        "plan": plan.describe(),
        "images": arguments.images,
        "n": arguments.n,
        "test_images": "odd",
    }
    begin = time.monotonic()
    try:
        student = smooth(
            teacher,
            train,
            sigma=sigma,
            preset=name,
            seed=seed,
            device="cpu",
            progress=lambda *told: progress(row, *told[1:]),
            **changes,
        )
    except InputError as error:
        return facts | {"failed": str(error), **provenance()}
    facts |= {"seconds": round(time.monotonic() - begin, 1)}
    chosen = test.strided(max(1, len(test) // arguments.images), arguments.images)
    run = certify(student, chosen, sigma=sigma, n=arguments.n, n0=100, seed=seed)
    counts = np.take_along_axis(run.counts, run.clean_classes[:, None], 1)[:, 0]
    radius, abstain = one_sided_radius(clopper_pearson_lower(counts, run.counts.sum(1), 0.001), sigma=sigma)
    right = (run.clean_classes == run.labels) & ~abstain
    agree = run.counts.argmax(1) == run.clean_classes
    sure = clopper_pearson_lower(run.counts.max(1), run.counts.sum(1), 0.001) > 0.5
    few = test.strided(2)
    return facts | {
        "clean": float(accuracy(student, few)),
        "noisy": float(accuracy(student, few, sigma=sigma, seed=seed)),
        "acr": float((right * radius).mean()),
        "certified": {f"{r:g}": float((right & (radius >= r)).mean()) for r in (0.0, sigma, 2 * sigma)},
        "agreement": float(agree.mean()),
        "agreement_where_sure": float(agree[sure].mean()),
        **provenance(),
    }


def _print(found: list[dict[str, Any]]) -> None:
    for sigma in sorted({record["sigma"] for record in found}):
        print(f"\nσ = {sigma}")
        print(f"{'':36}clean  noise  certified at 0, σ, 2σ   ACR  agreement  where sure")
        for record in (record for record in found if record["sigma"] == sigma):
            row = record["row"] + (f", seed {record['seed']}" if record["seed"] else "")
            if "failed" in record:
                print(f"{row:36}{record['failed']}")
                continue
            certified = "  ".join(f"{share:.3f}" for share in record["certified"].values())
            print(
                f"{row:36}{record['clean']:.3f}  {record['noisy']:.3f}  {certified}  {record['acr']:.3f}"
                f"      {record['agreement']:.3f}       {record['agreement_where_sure']:.3f}"
            )


if __name__ == "__main__":
    main()
