"""Our attacks beside foolbox's, with the same settings on the same images, in one run.

    pip install foolbox pyautoattack
    python benchmarks/attacks.py --from RUN --data cifar10 --data-root DIR [--images 200] [--rounds 3]

foolbox gets the network as a user has it, and once more with frozen parameters, of which it then computes no gradients.
Ours is what `heatsmooth attack` does: batch norm is folded first, within the measured time; and once more the function
on the network as it is. What either finds is judged by the network as it is. pyautoattack's APGD, a stronger attack, is
reported beside them.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import foolbox
import torch
from torch import Tensor

from heatsmooth.attacks import ddn, pgd
from heatsmooth.data import load_images
from heatsmooth.models import for_inference
from heatsmooth.models import load as load_model
from heatsmooth.runs import provenance

RADII = (0.25, 0.5, 1.0)
DDN_STEPS, PGD_STEPS = 50, 40


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, required=True)
    parser.add_argument("--data", default="fashion-mini")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    chosen = load_images(arguments.data, "test", root=arguments.data_root).strided(5, arguments.images)
    images, labels = chosen.images(torch.arange(len(chosen))), chosen.known_labels()
    model = load_model(arguments.source)
    peer = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    frozen = foolbox.PyTorchModel(load_model(arguments.source).requires_grad_(False), bounds=(0, 1), device="cpu")
    facts = provenance()
    print(f"{facts['hardware']['cpu']}, {torch.get_num_threads()} threads, torch {facts['versions']['torch']}")
    print(f"commit {facts['commit']}; {len(images)} images of {chosen.name}, {arguments.source}")
    with torch.no_grad():
        right = model(images).argmax(1) == labels
    print(f"right from the start: {float(right.float().mean()):.1%}; distances of those")

    def prepared() -> torch.nn.Module:
        return for_inference(model, images[:50])

    def median(found: Tensor) -> float:
        distances = torch.where(model(found).argmax(1) == labels, torch.inf, (found - images).flatten(1).norm(dim=1))
        return float(distances[right].median())

    theirs = foolbox.attacks.DDNAttack(steps=DDN_STEPS)
    found, seconds = in_turns(
        arguments.rounds,
        ours=lambda: ddn(prepared(), images, labels, steps=DDN_STEPS).images,
        foolbox=lambda: theirs(peer, images, labels, epsilons=None)[1],
        foolbox_frozen=lambda: theirs(frozen, images, labels, epsilons=None)[1],
        as_it_is=lambda: ddn(model, images, labels, steps=DDN_STEPS).images,
        margin=lambda: ddn(prepared(), images, labels, steps=DDN_STEPS, loss="margin").images,
    )
    medians = {name: median(value) for name, value in found.items()}
    shown = ", ".join(f"{name} {value:.4f}" for name, value in medians.items())
    print(f"DDN, {DDN_STEPS} steps: median distance {shown}")
    print(f"  ours / foolbox {medians['ours'] / medians['foolbox']:.4f}  (at most 1.03)")
    speed(seconds, "1.2", len(images))
    for eps in RADII:
        step = 2.5 * eps / PGD_STEPS
        other = foolbox.attacks.L2PGD(abs_stepsize=step, steps=PGD_STEPS)
        found, seconds = in_turns(
            arguments.rounds,
            ours=lambda e=eps, s=step: _pgd(prepared(), images, labels, e, s),  # type: ignore[misc]
            as_it_is=partial(_pgd, model, images, labels, eps, step),
            foolbox=partial(_second, other, peer, images, labels, epsilons=eps),
            foolbox_frozen=partial(_second, other, frozen, images, labels, epsilons=eps),
        )
        rates = {name: success(model, value, labels) for name, value in found.items()}
        rates["APGD"] = apgd(model, images, labels, eps)
        shown = ", ".join(f"{name} {value:.1%}" for name, value in rates.items())
        print(f"PGD, {PGD_STEPS} steps, ε={eps:g}: wrong {shown}")
        print(f"  ours − foolbox {100 * (rates['ours'] - rates['foolbox']):+.2f} points  (at least −0.5)")
        speed(seconds, "2 where most images fall early", len(images))


def _pgd(model: torch.nn.Module, images: Tensor, labels: Tensor, eps: float, step: float) -> Tensor:
    return pgd(model, images, labels, eps=eps, steps=PGD_STEPS, step_size=step).images


def _second(attack: Any, *arguments: Any, **options: Any) -> Tensor:
    """The clipped images of a foolbox attack."""
    clipped: Tensor = attack(*arguments, **options)[1]
    return clipped


def in_turns(rounds: int, **actions: Callable[[], Tensor]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """What each action finds, and its median time; they take turns."""
    found: dict[str, Tensor] = {}
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            torch.manual_seed(0)
            start = time.perf_counter()
            found[name] = action().detach()
            times[name].append(time.perf_counter() - start)
    return found, {name: statistics.median(spent) for name, spent in times.items()}


def speed(seconds: dict[str, float], least: str, images: int) -> None:
    """Print seconds an image, and how much faster ours is."""
    shown = ", ".join(f"{name} {1e3 * value / images:.1f} ms" for name, value in seconds.items())
    print(f"  an image: {shown}; {seconds['foolbox'] / seconds['ours']:.2f}× faster than foolbox  (at least {least})")


def success(model: torch.nn.Module, found: Tensor, labels: Tensor) -> float:
    """The share of images whose class is wrong."""
    return float((model(found).argmax(1) != labels).float().mean())


def apgd(model: torch.nn.Module, images: Tensor, labels: Tensor, eps: float) -> float:
    """The share that APGD on the cross-entropy makes wrong; not a number if pyautoattack is not installed."""
    try:
        from pyautoattack import AutoAttack
    except ImportError:
        return float("nan")
    attack: Any = AutoAttack(model, norm="L2", eps=eps, version="custom", attacks=["apgd-ce"], device="cpu", seed=0)
    return success(model, attack.run_standard_evaluation(images, labels, batch_size=len(images))[0], labels)


if __name__ == "__main__":
    main()
