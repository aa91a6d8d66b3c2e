"""How close ``smooth --keep`` comes to the share that was asked for, on images that it did not use.

    python benchmarks/dial.py --from SOURCE --data cifar10 --data-root DIR --out dial.jsonl [--keep 0.75 0.85 0.95]

The network is smoothed once per share. Test images with an odd index are held out for the dial; the share that is kept
is then measured on those with an even index. With --splits N, this is done N times instead, with random halves of the
test images and seeds from 1 to N. The scatter over splits shows what is chance.

Weights of others also need ``--model public_resnet:resnet20 --mean 0.485 0.456 0.406 --std 0.229 0.224 0.225``, for
example, with ``examples`` on the ``PYTHONPATH``. Repeating the command continues it: shares that are in --out already
are not made again.
"""

import argparse
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from heatsmooth.data import ImageSet, load_images
from heatsmooth.device import accelerator
from heatsmooth.evaluate import accuracy
from heatsmooth.models import Classifier, model_hash
from heatsmooth.models import load as load_model
from heatsmooth.noise import mixed_seed
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
    parser.add_argument("--splits", type=int, default=0, help="random halves of the test images, each with a seed")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    train = load_images(options.data, "train", root=options.data_root)
    train = train if options.limit_train is None else train.sampled(options.limit_train)
    test = load_images(options.data, "test", root=options.data_root)
    teacher = load_model(options.source, model=options.model, mean=options.mean, std=options.std)
    same = {"data": train.describe(), "sigma": options.sigma, "teacher": model_hash(teacher)}
    seeds = range(1, options.splits + 1) if options.splits else [options.seed]
    with Records(options.out) as records:
        for seed in seeds:
            held_out, rest, halves = halves_of(test, seed if options.splits else None)
            for keep in options.keep:
                wanted = same | {"seed": seed, "halves": halves, "asked": keep}
                if not any(
                    all(record.get(key, ODD) == value for key, value in wanted.items())
                    for record in read_records(options.out)
                ):
                    asked = Asked(keep, options.sigma, seed)
                    records.append(wanted | measured(teacher, train, held_out, rest, asked) | provenance())
    found = read_records(options.out)
    first = found[0]
    versions = f"{first['hardware']['cpu']}, torch {first['versions']['torch']}"
    which = f"{options.splits} splits" if options.splits else f"seed {options.seed}"
    print(f"{versions}, commit {first['commit']}, {which}")
    if options.splits:
        report_scatter(found)
        return
    for record in found:
        report(record)


ODD = "odd, even"
"""The halves of records that do not say which."""


@dataclass(frozen=True)
class Asked:
    """What a student is to keep."""

    keep: float
    sigma: float
    seed: int


def halves_of(test: ImageSet, seed: int | None) -> tuple[ImageSet, ImageSet, str]:
    """The images that are held out for the dial, those to measure on, and their name; random ones with a seed."""
    if seed is None:
        return test.strided(2, start=1), test.strided(2), ODD
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(mixed_seed("halves", seed)))
    name = f"random halves {seed}"
    first, second = (
        replace(test, indices=test.indices[part.sort().values], rule=f"{name}, {number}")
        for number, part in enumerate(order.chunk(2), start=1)
    )
    return first, second, name


def measured(teacher: Classifier, train: ImageSet, held_out: ImageSet, rest: ImageSet, asked: Asked) -> dict[str, Any]:
    """What the student of one share keeps of the images that are left."""
    begin = time.monotonic()
    with bar() as progress:
        student: Any = smooth(
            teacher,
            train.without_labels(),
            sigma=asked.sigma,
            keep=asked.keep,
            held_out=held_out.without_labels(),
            seed=asked.seed,
            device="cpu",
            progress=lambda *told: progress(f"keep {asked.keep:g}", *told[1:]),
        )
    seconds = time.monotonic() - begin
    unseen = HeldOut.of(rest, teacher, accelerator("cpu"))
    share = unseen.agreement(student, torch.arange(len(unseen.classes)))
    low, high = clopper_pearson(round(share * len(unseen.classes)), len(unseen.classes), 0.05)
    return {
        "reached": share,
        "interval": [float(low), float(high)],
        "images": len(unseen.classes),
        "reported": student.kept.share,
        "factor": student.kept.factor,
        "clean": accuracy(student, rest),
        "under_noise": accuracy(student, rest, sigma=asked.sigma, seed=asked.seed),
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


def report_scatter(records: list[dict[str, Any]]) -> None:
    """One line per share, over all splits."""
    for asked in sorted({record["asked"] for record in records}):
        off = [record["reached"] - asked for record in records if record["asked"] == asked]
        within = sum(abs(one) <= ALLOWED for one in off)
        print(
            f"asked {asked:.3f}  off by {100 * statistics.mean(off):+.2f} points on average, standard deviation "
            f"{100 * statistics.stdev(off):.2f}, at most {100 * max(map(abs, off)):.1f}; within {100 * ALLOWED:g} "
            f"points in {within} of {len(off)}"
        )


if __name__ == "__main__":
    main()
