"""What ``train`` and ``smooth`` share: their images, their measures, their run directory."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import Accelerator

from heatsmooth.commands.inputs import ImageFiles
from heatsmooth.commands.sharing import finish
from heatsmooth.data import ImageSet, ImageStream
from heatsmooth.data.images import Size
from heatsmooth.device import accelerator
from heatsmooth.evaluate import accuracy
from heatsmooth.models import Classifier, count_classes, model_hash, save
from heatsmooth.models.checkpoint import WEIGHTS_FILE
from heatsmooth.progress import Progress
from heatsmooth.results.schema import from_json, to_json
from heatsmooth.results.training import TrainingResult
from heatsmooth.runs import Run
from heatsmooth.settings import Noise
from heatsmooth.training.loop import STATE_FILE

TESTED = 10_000
"""At most this many test images measure the accuracy at the end of a training."""


def train_and_test(
    files: ImageFiles, size: Size | None, limit: int | None, progress: Progress
) -> tuple[ImageSet, ImageSet]:
    """The images to train on, a fixed subset of ``limit``, and those to test on."""
    train = files.load(size, "train", limit=limit, progress=progress)
    return train, files.first(TESTED).load(size, progress=progress)


def unlabelled_and_test(
    files: ImageFiles, size: Size | None, limit: int | None, progress: Progress, *, stream: bool
) -> tuple[ImageSet | ImageStream, ImageSet | None]:
    """The images to train on, without their labels, and those to test on; a stream has none to test on."""
    if stream:
        return files.stream(size, limit=limit), None
    labelled, test = train_and_test(files, size, limit, progress)
    return labelled.without_labels(), test


def check_fit(network: Classifier, *sets: ImageSet | ImageStream) -> None:
    """Refuse images that the network does not take and labels that it does not know, before any work is done."""
    for images in sets:
        if isinstance(images, ImageStream):
            count_classes(network, images.images(1))
        else:
            images.check_classes(count_classes(network, images.images(torch.arange(1))))


def accuracies(
    network: Classifier, test: ImageSet, sigma: float, seed: int, progress: Progress, *, noise: Noise = "gaussian"
) -> tuple[float, float | None]:
    """Clean accuracy, and accuracy under noise if ``sigma`` > 0."""
    clean = accuracy(network, test, progress=progress)
    if sigma <= 0:
        return clean, None
    return clean, accuracy(network, test, sigma=sigma, noise=noise, seed=seed, progress=progress)


def recorded(
    out: Path,
    settings: dict[str, object],
    device: str | None,
    work: Callable[[], Classifier],
    measure: Callable[[Classifier], TrainingResult],
) -> TrainingResult | None:
    """Do the work inside the run directory ``out``, unless it is done; only the leading process measures and returns.

    All processes return together, when the network is there for whatever comes next.
    """
    processes = accelerator(device)
    command = str(settings.pop("command"))
    with Run(out, command, settings) if processes.is_main_process else nullcontext() as run:
        processes.wait_for_everyone()
        if _is_done(run, processes):
            return None if run is None else _result(run)
        network = work()
        if run is None:
            processes.wait_for_everyone()
            return None
        network.to(processes.device)  # where it is not yet, if all its training was done before
        save(network, out / WEIGHTS_FILE)
        result = measure(network)
        finish(run, processes, model_hash(network), threads=torch.get_num_threads())
        run.update(summary=to_json(replace(result, seconds=run.info["seconds"])))
        processes.wait_for_everyone()
        return _result(run)


def _result(run: Run) -> TrainingResult:
    """The result of a finished run, which needs its state no more."""
    (run.path / STATE_FILE).unlink(missing_ok=True)
    return from_json(TrainingResult, run.info["summary"], f"{run.path}: expected a summary", "train again")


def _is_done(run: Run | None, processes: Accelerator) -> bool:
    """Whether the run was finished before, as its leader sees it; every process gets the same answer."""
    done = torch.tensor([float(run is not None and run.done and "summary" in run.info)], device=processes.device)
    return bool(processes.reduce(done, "sum").item())
