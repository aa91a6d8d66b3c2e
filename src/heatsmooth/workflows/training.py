"""``train`` and ``smooth`` in a run directory."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator

from heatsmooth.data import ImageSet, ImageStream
from heatsmooth.data.images import Size
from heatsmooth.device import PRECISION, accelerator
from heatsmooth.evaluate import accuracy
from heatsmooth.identity import network_settings
from heatsmooth.models import (
    Classifier,
    NetworkSpec,
    build,
    count_classes,
    device_of,
    identify,
    model_hash,
    normalising_deviation,
    save,
)
from heatsmooth.models.checkpoint import WEIGHTS_FILE
from heatsmooth.models.program import refuse_program
from heatsmooth.noise import mixed_seed
from heatsmooth.progress import Progress, silent
from heatsmooth.runs import Run
from heatsmooth.training import Baseline, Plan, preset, smooth, train
from heatsmooth.training.loop import STATE_FILE
from heatsmooth.workflows.inputs import Images, Network, left_out

TESTED = 10_000
"""At most this many test images measure the accuracy at the end of a training."""


def train_run(
    *,
    images: Images,
    out: Path,
    model: str = "small",
    image_size: int | None = None,
    choices: Baseline,
    plan: Plan,
    limit_train: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    seed: int = 0,
    device: str | None = None,
    checkpoint_seconds: float = 30.0,
    log_every: int = 10,
    progress: Progress = silent,
) -> dict[str, Any] | None:
    """Train a network with labels and leave it in ``out``; a summary, or None in a process that does not lead."""
    chosen, test = _sets(images, image_size, limit_train, progress)
    found_mean, found_std = chosen.statistics()
    classes = int(chosen.known_labels().max()) + 1
    spec = NetworkSpec(model, classes, chosen.shape[0], mean or found_mean, std or found_std, chosen.size)
    settings = {
        "data": chosen.describe(),
        "network": spec.describe(),
        "choices": asdict(choices),
        "plan": plan.describe(),
        "seed": seed,
    }

    def work() -> Classifier:
        torch.manual_seed(mixed_seed(seed, "weights"))
        network = build(spec)
        _check_fit(network, chosen, test)
        trained = train(
            network,
            chosen,
            choices=choices,
            plan=plan,
            seed=seed,
            device=device,
            out=out,
            checkpoint_seconds=checkpoint_seconds,
            log_every=log_every,
            progress=progress,
        )
        return cast("Classifier", trained)

    def measure(network: Classifier) -> dict[str, Any]:
        return {"method": choices.method, **_accuracies(network, test, choices.sigma, seed, progress)}

    return _recorded(out, "train", settings, device, work, measure)


def smooth_run(
    *,
    network: Network,
    images: Images,
    sigma: float,
    out: Path,
    preset: str = "bootcamp",
    changes: dict[str, Any] | None = None,
    limit_train: int | None = None,
    stream: bool = False,
    seed: int = 0,
    device: str | None = None,
    checkpoint_seconds: float = 30.0,
    log_every: int = 10,
    progress: Progress = silent,
) -> dict[str, Any] | None:
    """Smooth the network without labels into ``out``; a summary, or None in a process that follows.

    ``stream``: read ``hf:`` images one after another, never all at once; nothing is measured at the end.
    """
    chosen: ImageSet | ImageStream
    if stream:
        chosen, test = images.stream(network.side, limit=limit_train), None
        teacher = network.load(chosen)
    else:
        labelled, test = _sets(images, network.side, limit_train, progress)
        teacher = network.load(labelled)
        chosen = labelled.without_labels()
    refuse_program(teacher)
    heat, plan = _preset(preset, sigma, deviation=normalising_deviation(teacher), **(changes or {}))
    teacher.spec = replace(teacher.spec, size=teacher.spec.size or chosen.size)
    _check_fit(teacher, chosen, *([] if test is None else [test]))
    settings = {
        "data": chosen.describe(),
        **network_settings(teacher=identify(teacher, chosen.shape)),
        "preset": preset,
        "heat": heat.describe(),
        "plan": plan.describe(),
        "seed": seed,
    }

    def work() -> Classifier:
        smoothed = smooth(
            teacher,
            chosen,
            sigma=sigma,
            preset=preset,
            seed=seed,
            device=device,
            out=out,
            checkpoint_seconds=checkpoint_seconds,
            log_every=log_every,
            progress=progress,
            **(changes or {}),
        )
        return cast("Classifier", smoothed)

    def measure(smoothed: Classifier) -> dict[str, Any]:
        facts: dict[str, Any] = {"sigma": sigma} | ({} if test is None else left_out(test))
        if test is None or test.labels is None:
            return facts
        if test.name == chosen.name:
            facts["tested_on"] = "the images it was smoothed on"
        before = _accuracies(teacher.to(device_of(smoothed)), test, sigma, seed, progress)
        after = _accuracies(smoothed, test, sigma, seed, progress)
        teachers = {f"teacher_{name}": value for name, value in before.items() if name.startswith("accuracy")}
        return {**facts, "preset": preset, **after, **teachers}

    return _recorded(out, "smooth", settings, device, work, measure)


_preset = preset


def _sets(images: Images, side: Size | None, limit: int | None, progress: Progress) -> tuple[ImageSet, ImageSet]:
    """The images to train on, a fixed subset of ``limit``, and those to test on."""
    test = replace(images, count=TESTED)
    return images.load(side, "train", limit=limit, progress=progress), test.load(side, progress=progress)


def _check_fit(network: Classifier, *sets: ImageSet | ImageStream) -> None:
    """Refuse images that the network does not take and labels that it does not know, before any work is done."""
    for images in sets:
        if isinstance(images, ImageStream):
            count_classes(network, images.images(1))
        else:
            images.check_classes(count_classes(network, images.images(torch.arange(1))))


def _accuracies(network: Classifier, test: ImageSet, sigma: float, seed: int, progress: Progress) -> dict[str, Any]:
    found: dict[str, Any] = {"test_images": len(test), "accuracy": accuracy(network, test, progress=progress)}
    if sigma > 0:
        found["accuracy_under_noise"] = accuracy(network, test, sigma=sigma, seed=seed, progress=progress)
    return found


def _recorded(
    out: Path,
    command: str,
    settings: dict[str, Any],
    device: str | None,
    work: Callable[[], Classifier],
    measure: Callable[[Classifier], dict[str, Any]],
) -> dict[str, Any] | None:
    """Do the work inside the run directory ``out``, unless it is done; only the leading process writes and answers.

    All processes return together, when the network is there for whatever comes next.
    """
    processes = accelerator(device)
    with Run(out, command, settings) if processes.is_main_process else nullcontext() as run:
        processes.wait_for_everyone()
        if _is_done(run, processes):
            return None if run is None else _summary(run)
        network = work()
        if run is None:
            processes.wait_for_everyone()
            return None
        network.to(processes.device)  # where it is not yet, if all its training was done before
        save(network, out / WEIGHTS_FILE)
        summary = {"command": command, "out": str(out), **measure(network)}
        how = {
            "device": processes.device.type,
            "processes": processes.num_processes,
            "threads": torch.get_num_threads(),
            "precision": PRECISION,
        }
        run.update(status="done", model_hash=model_hash(network), **how)
        summary["seconds"] = run.info["seconds"]
        run.update(summary=summary)
        processes.wait_for_everyone()
        return _summary(run)


def _summary(run: Run) -> dict[str, Any]:
    """The summary of a finished run, which needs its state no more."""
    (run.path / STATE_FILE).unlink(missing_ok=True)
    return cast("dict[str, Any]", run.info["summary"])


def _is_done(run: Run | None, processes: Accelerator) -> bool:
    """Whether the run was finished before, as its leader sees it; every process gets the same answer."""
    done = torch.tensor([float(run is not None and run.done and "summary" in run.info)], device=processes.device)
    return bool(processes.reduce(done, "sum").item())
