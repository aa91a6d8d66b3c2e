"""Attacks inside the deterministic radii of a distilled network: PGD, DDN and APGD, which must break nothing.

    pip install pyautoattack
    python benchmarks/proven_attacks.py --from RUN --data cifar10 --data-root DIR --out attacks.jsonl [--images 1000]

Repeating the command continues it: there is one record per image and attack. Images without a radius are left out.
For several cores, one process each with its own --shard 1/2, 2/2 and --out; then the same command without --shard reads
the files that were put together.
Gradients are of a float32 pass. A candidate counts as a break if it is within the radius, in double precision, and the
network as it is deployed gives it another class. Judged are, per image and attack, every candidate whose float32 margin
is nearly used up, and the one with the smallest margin. A control attacks the same images at a multiple of the radius,
where it should succeed.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heatsmooth.attacks import ddn, pgd
from heatsmooth.auditing.proofs import Attack, Attempt, Target, attack_inside, limited, margins
from heatsmooth.auditing.single_precision import SinglePrecision
from heatsmooth.certification.deterministic import certify_network
from heatsmooth.data import ImageSet, load_images
from heatsmooth.errors import require
from heatsmooth.models import Classifier, identify
from heatsmooth.models import load as load_model
from heatsmooth.progress import bar
from heatsmooth.results.schema import Finite, Real, Whole, from_json, to_json
from heatsmooth.runs import Records, provenance, read_records

LOSSES = ("ce", "dlr")
"""Of APGD, in turns over the restarts."""


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """What one attack with all its restarts did to one image."""

    attack: str
    index: Whole
    model: str
    """The hash of the weights."""
    steps: Whole
    restarts: Whole
    radius: Real
    broken: bool
    margin_used: Finite
    """The largest share of the margin that a candidate inside the radius used up."""
    difference: Real
    """Largest difference of a margin between float32 and the deployed network, over the candidates judged."""
    seconds: Real
    """For the batch, per image."""


def apgd(steps: int) -> Attack:
    """APGD (Croce and Hein 2020), with the cross-entropy and the difference of logits ratio in turns."""
    from pyautoattack.autopgd_base import APGDAttack

    def run(attempt: Attempt) -> object:
        images = attempt.images
        attack: Any = APGDAttack(
            attempt.network,
            n_iter=steps,
            norm="L2",
            eps=attempt.eps.view(-1, 1, 1, 1),
            loss=LOSSES[attempt.restart % 2],
            device=images.device,
        )
        attack.init_hyperparam(images)
        return attack.attack_single_run(images, attempt.classes, x_init=attempt.start)

    return run


def main() -> None:
    """Attack, record and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, required=True)
    parser.add_argument("--data", default="fashion-mini")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--attacks", default="PGD,DDN,APGD")
    parser.add_argument("--control", type=float, default=4.0, help="multiple of the radius")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", default="1/1", help="every Nth of the images with a radius, from the Ith on")
    parser.add_argument("--out", type=Path, default=Path("proven-attacks.jsonl"))
    chosen = parser.parse_args()
    model = load_model(chosen.source).requires_grad_(False)
    images = load_images(chosen.data, "test", root=chosen.data_root)
    images = images.strided(max(1, len(images) // chosen.images), chosen.images)
    facts = provenance()
    print(f"{facts['hardware']['cpu']}, {torch.get_num_threads()} threads, torch {facts['versions']['torch']}")
    print(f"commit {facts['commit']}; {len(images)} images of {images.name}, {chosen.source}")
    first, every = map(int, chosen.shard.split("/"))
    target = certified(model, images)
    target = part(target, torch.arange(first - 1, len(target.radii), every))
    print(f"{len(target.radii)} with a radius, median {float(target.radii.median()):.4f}")
    kinds = {"PGD": limited(pgd, chosen.steps), "DDN": limited(ddn, chosen.steps)}
    for name in chosen.attacks.split(","):
        attack = apgd(chosen.steps) if name == "APGD" else kinds[name]
        report(name, attacked(name, attack, target, chosen))
    control(target, chosen)


def certified(model: Classifier, images: ImageSet) -> Target:
    """The images with a deterministic radius, with their classes and radii."""
    certificates = sorted(certify_network(model, images), key=lambda item: item.index)
    pixels = images.images(torch.arange(len(images)))
    position = {index: i for i, index in enumerate(images.indices.tolist())}
    held = [item for item in certificates if not item.abstain]
    return Target(
        model,
        torch.tensor([item.index for item in held]),
        pixels[[position[item.index] for item in held]],
        torch.tensor([item.predicted for item in held]),
        torch.tensor([item.radius for item in held], dtype=torch.float64),
    )


def part(target: Target, positions: Tensor) -> Target:
    """Some of the images."""
    rows = (target.indices, target.images, target.classes, target.radii)
    return Target(target.model, *(values[positions] for values in rows))


def attacked(name: str, attack: Attack, target: Target, chosen: argparse.Namespace) -> list[Attacked]:
    """The records of one attack: those that are there, and new ones of the other images."""
    model = target.model
    assert isinstance(model, Classifier)
    own = {"attack": name, "steps": chosen.steps, "restarts": chosen.restarts}
    own["model"] = identify(model, tuple(target.images.shape[1:])).weights
    remedy = "name another --out"
    everything = [from_json(Attacked, line, f"{chosen.out}: expected a record", remedy) for line in known(chosen.out)]
    done = [record for record in everything if record.attack == name]
    for record in done:
        same = all(getattr(record, key) == value for key, value in own.items())
        require(same, f"{chosen.out}: expected records of {own}, got {record}; {remedy}")
    left = (~torch.isin(target.indices, torch.tensor([record.index for record in done]))).nonzero().flatten()
    with Records(chosen.out) as records, bar() as progress:
        for positions in left.split(chosen.batch) if len(left) else ():
            some, begin = part(target, positions), time.perf_counter()
            watched = attack_inside(some, attack, restarts=chosen.restarts, seed=chosen.seed)
            used, seconds = watched.used().tolist(), (time.perf_counter() - begin) / len(positions)
            for i, index in enumerate(some.indices.tolist()):
                record = Attacked(
                    **own,
                    index=index,
                    radius=float(some.radii[i]),
                    broken=bool(watched.broken[i]),
                    margin_used=used[i],
                    difference=watched.difference,
                    seconds=round(seconds, 6),
                )
                records.append(to_json(record))
                done.append(record)
            progress(name, len(done), len(target.radii))
    return done


def known(path: Path) -> list[dict[str, Any]]:
    """The records of a file, if it is there."""
    return read_records(path) if path.exists() else []


def report(name: str, records: list[Attacked]) -> None:
    """Print what an attack found."""
    if not records:
        print(f"{name}: no image has a radius")
        return
    used = torch.tensor([record.margin_used for record in records], dtype=torch.float64)
    steps = records[0].steps * records[0].restarts
    rate = steps * len(records) / sum(record.seconds for record in records)
    print(f"{name}, {records[0].steps} steps, {records[0].restarts} restarts, {len(records)} images:")
    print(f"  breaks inside the radius: {sum(record.broken for record in records)}  (must be 0)")
    print(f"  share of the margin used: median {float(used.median()):.3f}, largest {float(used.max()):.3f}")
    print(f"  float32 against deployed: margins differ by at most {max(record.difference for record in records):.2g}")
    print(f"  {rate:.0f} images·steps per second")


def control(target: Target, chosen: argparse.Namespace) -> None:
    """Attack at a multiple of the radius, where an attack that works changes many classes."""
    network: nn.Module = SinglePrecision(target.model)
    changed = torch.zeros(len(target.radii), dtype=torch.bool)
    for positions in torch.arange(len(target.radii)).split(chosen.batch):
        some = part(target, positions)
        eps = (chosen.control * some.radii).float()
        found = pgd(network, some.images, some.classes, eps=eps, steps=min(50, chosen.steps), loss="margin")
        with torch.inference_mode():
            changed[positions] = margins(target.model(found.images), some.classes) <= 0
    share = f"{int(changed.sum())} of {len(changed)}"
    print(f"control: at {chosen.control:g} times the radius, PGD changes the class of {share} images")


if __name__ == "__main__":
    main()
