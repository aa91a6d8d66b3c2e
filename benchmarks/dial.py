"""How close ``smooth --keep`` comes to the share that was asked for, on images that it did not use.

    python benchmarks/dial.py --from SOURCE --data cifar10 --data-root DIR --out dial.jsonl [--keep 0.75 0.85 0.95]

The network is smoothed once per share. Test images with an odd index are held out for the dial; the share that is kept
is then measured on those with an even index. Weights of others also need ``--model public_resnet:resnet20 --mean 0.485
0.456 0.406 --std 0.229 0.224 0.225``, for example, with ``examples`` on the ``PYTHONPATH``. Repeating the command
continues it: shares that are in --out already are not made again.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from heatsmooth.data import ImageSet, load_images
from heatsmooth.device import accelerator
from heatsmooth.evaluate import accuracy
from heatsmooth.models import Classifier, model_hash
from heatsmooth.models import load as load_model
from heatsmooth.progress import bar
from heatsmooth.runs import Records, provenance, read_records
from heatsmooth.statistics.bounds import clopper_pearson
from heatsmooth.training.dial import HeldOut
from heatsmooth.training.methods import smooth

ALLOWED = 0.015
"""Largest difference of the reached share from the one that was asked for."""


def main() -> None:
    """Smooth, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, required=True)
    parser.add_argument("--model", help="architecture of weights without a record")
    parser.add_argument("--mean", type=float, nargs="*", help="of the normalisation inside the network")
    parser.add_argument("--std", type=float, nargs="*", help="of the normalisation inside the network")
    parser.add_argument("--data", default="fashion-mini")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--limit-train", type=int)
    parser.add_argument("--sigma", type=float, default=0.25)
    parser.add_argument("--keep", type=float, nargs="*", default=[0.75, 0.85, 0.9, 0.95, 0.97])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    train = load_images(options.data, "train", root=options.data_root)
    train = train if options.limit_train is None else train.sampled(options.limit_train)
    test = load_images(options.data, "test", root=options.data_root)
    teacher = load_model(options.source, model=options.model, mean=options.mean, std=options.std)
    own = {"data": train.describe(), "sigma": options.sigma, "seed": options.seed, "teacher": model_hash(teacher)}
    with Records(options.out) as records:
        for keep in options.keep:
            wanted = own | {"asked": keep}
            if not any(
                all(record[key] == value for key, value in wanted.items()) for record in read_records(options.out)
            ):
                records.append(wanted | measured(teacher, train, test, keep, options) | provenance())
    found = read_records(options.out)
    first = found[0]
    versions = f"{first['hardware']['cpu']}, torch {first['versions']['torch']}"
    print(f"{versions}, commit {first['commit']}, seed {first['seed']}")
    for record in found:
        report(record)


def measured(
    teacher: Classifier, train: ImageSet, test: ImageSet, keep: float, options: argparse.Namespace
) -> dict[str, Any]:
    """What the student of one share keeps."""
    begin = time.monotonic()
    with bar() as progress:
        student: Any = smooth(
            teacher,
            train.without_labels(),
            sigma=options.sigma,
            keep=keep,
            held_out=test.strided(2, start=1).without_labels(),
            seed=options.seed,
            device="cpu",
            progress=lambda *told: progress(f"keep {keep:g}", *told[1:]),
        )
    seconds = time.monotonic() - begin
    even = test.strided(2)
    unseen = HeldOut.of(even, teacher, accelerator("cpu"))
    share = unseen.agreement(student, torch.arange(len(unseen.classes)))
    low, high = clopper_pearson(round(share * len(unseen.classes)), len(unseen.classes), 0.05)
    return {
        "reached": share,
        "interval": [float(low), float(high)],
        "images": len(unseen.classes),
        "reported": student.kept.share,
        "factor": student.kept.factor,
        "clean": accuracy(student, even),
        "under_noise": accuracy(student, even, sigma=options.sigma, seed=options.seed),
        "seconds": round(seconds, 1),
    }


def report(record: dict[str, Any]) -> None:
    """One line per share."""
    low, high = record["interval"]
    off = record["reached"] - record["asked"]
    print(
        f"{record['data']['name']:24} {record['teacher'][:8]}  asked {record['asked']:.3f}  reached "
        f"{record['reached']:.3f} ({low:.3f} to {high:.3f}, {record['images']} images)  off by {100 * off:+.1f} points"
        f"{'' if abs(off) <= ALLOWED else ' (too far)'}  clean {record['clean']:.3f}, under noise "
        f"{record['under_noise']:.3f}"
    )


if __name__ == "__main__":
    main()
