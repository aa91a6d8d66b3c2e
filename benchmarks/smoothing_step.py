"""What a step of smoothing costs, as a ratio to a plain training step of the same network and batch.

    python benchmarks/smoothing_step.py [--rounds 7] [--batch 128]

All variants take turns within one run, so that a busy machine slows them alike; the median of the rounds counts.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from heatsmooth.models import NetworkSpec, build, copy_of
from heatsmooth.noise import Draw
from heatsmooth.runs import provenance
from heatsmooth.training.baselines import METHODS
from heatsmooth.training.batches import Batch
from heatsmooth.training.execution import Teacher
from heatsmooth.training.heat import heat_smoothing
from heatsmooth.training.loop import optimizer_of
from heatsmooth.training.settings import Baseline, Plan, preset

LIMITS = {"projection κ=10": 17.0, "direction": 3.0, "bootcamp": 3.0}
"""What the steps may cost; by count of passes, 14.7 is the floor of the first, and 3.0 that of the last."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=128)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    network = build(NetworkSpec("small"))
    teacher = Teacher(network)
    images = torch.rand(arguments.batch, 3, 32, 32)
    batch = Batch(images, torch.randint(0, 10, (arguments.batch,)), Draw(0), 0.0)
    step = partial(heat_smoothing, teacher=teacher)
    objectives = {
        "plain": partial(METHODS["clean"], choices=Baseline()),
        "bootcamp": partial(step, heat=preset("bootcamp", 0.25)[0]),
        "bootcamp-strong": partial(step, heat=preset("bootcamp-strong", 0.25)[0]),
        "paper-imagenet": partial(step, heat=preset("paper-imagenet", 0.25)[0]),
        "projection κ=10": partial(step, heat=preset("paper-cifar10", 0.1)[0]),
        "projection κ=1": partial(step, heat=preset("paper-cifar10", 0.1, projections=1)[0]),
        "direction": partial(step, heat=preset("bootcamp", 0.25, noisy_images="none", estimator="direction")[0]),
        "exact": partial(step, heat=preset("bootcamp", 0.25, noisy_images="none", estimator="exact")[0]),
    }
    plans = {"bootcamp": preset("bootcamp", 0.25)[1]}
    steps = {name: _step(network, objective, batch, plans.get(name, Plan())) for name, objective in objectives.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for take in steps.values():
        take()
    for _ in range(arguments.rounds):
        for name, take in steps.items():
            start = time.perf_counter()
            take()
            seconds[name].append(time.perf_counter() - start)
    plain = statistics.median(seconds["plain"])
    facts = provenance()
    print(f"{facts['hardware']['cpu']}, {torch.get_num_threads()} threads, torch {facts['versions']['torch']}")
    print(f"network small, batch {arguments.batch} of 3×32×32, median of {arguments.rounds} rounds")
    print(f"commit {facts['commit']}")
    for name, times in seconds.items():
        ratios = sorted(t / p for t, p in zip(times, seconds["plain"], strict=True))
        limit = f"  (at most {LIMITS[name]:g})" if name in LIMITS else ""
        median = statistics.median(times)
        spread = f"[{ratios[0]:.2f}, {ratios[-1]:.2f}]"
        print(f"{name:16} {1e3 * median:8.1f} ms  {median / plain:6.2f}× plain  {spread}{limit}")


def _step(
    network: torch.nn.Module, objective: Callable[..., dict[str, torch.Tensor]], batch: Batch, plan: Plan
) -> Callable[[], None]:
    """A training step of a copy of the network, always on the same batch, by the optimiser of ``plan``."""
    student = copy_of(network).train()
    optimizer = optimizer_of(student, replace(plan, lr=1e-4))

    def take() -> None:
        terms = objective(student, batch)
        optimizer.zero_grad(set_to_none=True)
        torch.stack(list(terms.values())).sum().backward()
        optimizer.step()

    return take


if __name__ == "__main__":
    main()
