"""``certify`` and ``predict``: images in, certificates out, in a run directory that can be continued and shared."""

import math
import secrets
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heatsmooth.calibrate import Calibration
from heatsmooth.certification.certificates import certificate, certify_each
from heatsmooth.certification.sampling import CHUNK, Job, Sampler, Tally, drawing
from heatsmooth.certification.settings import Settings
from heatsmooth.data import as_unit_interval
from heatsmooth.data.folder import read_image, usual_size
from heatsmooth.data.images import height_and_width
from heatsmooth.device import PRECISION, accelerator, exact_float32
from heatsmooth.errors import require
from heatsmooth.identity import network_settings
from heatsmooth.models import (
    checked_classes,
    device_of,
    for_inference,
    identify,
    images_of_a_pass,
    probabilities_of,
)
from heatsmooth.progress import Progress, silent
from heatsmooth.results.certificates import Certificate, Certificates, read_certificates
from heatsmooth.results.guarantees import BasisKind
from heatsmooth.results.logs import write_log
from heatsmooth.results.schema import to_json
from heatsmooth.runs import Records, Run, read_run_info, sha256
from heatsmooth.statistics.bounds import predict as predict_from_counts
from heatsmooth.statistics.radii import l_bound, round_down
from heatsmooth.workflows.calibrate import certified_run, one_pass_class, read_calibration
from heatsmooth.workflows.inputs import Images, Network, left_out
from heatsmooth.workflows.sharing import share_of

SHOWN_RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


def certify_run(
    *,
    network: Network,
    images: Images,
    settings: Settings,
    out: Path,
    shard: tuple[int, int] = (1, 1),
    means: bool = False,
    compiled: bool = False,
    log: Path | None = None,
    seed: int = 0,
    device: str | None = None,
    batch_size: int | None = None,
    progress: Progress = silent,
) -> dict[str, Any] | None:
    """Certify images, or this shard's part of them, into ``out``; a summary, or None in a process that follows."""
    chosen = images.load(network.side, progress=progress)
    model = network.load(chosen)
    processes = accelerator(device)
    model.to(processes.device)
    shard, part = share_of(processes, shard)
    identity = {
        "data": chosen.describe(),
        **network_settings(model=identify(model, chosen.shape)),
        "certificate": settings.describe(),
        "means": means,
        "compiled": compiled,
        "chunk": CHUNK,
        "seed": seed,
    }
    with Run(out, "certify", identity, part=part) as run:
        known = {item.index: item for item in read_certificates(out)}
        mine = range(shard[0] - 1, len(chosen), shard[1])
        todo = [position for position in mine if int(chosen.indices[position]) not in known]
        new = certify_each(
            model,
            chosen,
            settings,
            seed=seed,
            batch_size=batch_size,
            positions=todo,
            compiled=compiled,
            means=means,
            progress=progress,
            done=len(mine) - len(todo),
            abstained=sum(item.abstain for item in known.values()),
        )
        with Records(out / f"certificates{part}.jsonl") as records:
            for item in new:
                records.append(to_json(item))
        how = {"device": processes.device.type, "processes": processes.num_processes, "precision": PRECISION}
        run.update(status="done", model_hash=identity["model"], **how)
    processes.wait_for_everyone()
    if not processes.is_main_process:
        return None
    certificates = read_certificates(out)
    if log is not None:
        write_log(certificates, log)
    return {
        "command": "certify",
        "out": str(out),
        "asked": len(chosen),
        **summary(certificates, settings),
        **left_out(chosen),
        **_other_sigma(network.source, settings.sigma),
    }


def _other_sigma(source: Path, sigma: float) -> dict[str, Any]:
    """What a summary says if the network was smoothed for another noise than it is certified with."""
    file = source / "run.json"
    heat = read_run_info(file)["settings"].get("heat") if file.is_file() else None
    aimed = heat.get("sigma") if isinstance(heat, dict) else None
    return {} if aimed in (None, sigma) else {"note": f"smoothed for σ={aimed:g}, certified with σ={sigma:g}"}


def recompute_run(*, source: Path, changes: dict[str, Any], out: Path | None, log: Path | None) -> dict[str, Any]:
    """The certificates of a run with other settings (``alpha``, ``bound``, ``top_k``, …), from its counts alone."""
    made = certified_run(source, "--recompute")
    before = Settings.from_json(made["certificate"], source)
    settings = replace(before, **changes)
    require(
        before.n_wrong is None or settings.class_from == before.class_from,
        f"--class-from: expected {before.class_from}, which decided the draws of wrong images, got "
        f"{settings.class_from}; leave it out",
    )
    certificates = [certificate(item, settings) for item in read_certificates(source)]
    if out is not None:
        identity = made | {"certificate": settings.describe(), "counts": str(source.resolve())}
        with Run(out, "certify", identity) as run:
            with Records(out / "certificates.jsonl") as records:
                records.keep(lambda _: False)
                for item in certificates:
                    records.append(to_json(item))
            run.update(status="done", model_hash=made["model"])
    if log is not None:
        write_log(certificates, log)
    asked = made["data"]["images"]
    return {"command": "certify", "recomputed": str(source), "asked": asked, **summary(certificates, settings)}


def summary(certificates: list[Certificate], settings: Settings) -> dict[str, Any]:
    """What the certificates say together; radii rounded down."""
    certified = Certificates.of(certificates)
    cap = settings.largest_radius(certified.counts.shape[1]) or 0.0
    facts: dict[str, Any] = {
        "images": len(certified),
        "sigma": settings.sigma,
        "subject": certified.subject,
        "basis": str(certified.basis),
        "abstained": int(certified.abstained.sum()),
        "largest_possible_radius": round_down(cap, 4),
        "median_radius": round_down(float(np.median(certified.radii)), 4),
        "mean_samples": float(certified.samples.mean()),
    }
    if certified.labels is None:
        return facts
    shown = [radius for radius in SHOWN_RADII if radius <= cap]
    shares = certified.certified_accuracy(shown)
    return facts | {
        "one_pass_accuracy": float(certified.one_pass_correct.mean()),
        "certified_accuracy": {
            f"{radius:g}": round(float(share), 6) for radius, share in zip(shown, shares, strict=True)
        },
        "average_certified_radius": round_down(certified.average_certified_radius, 6),
    }


@exact_float32()
def predict_images(
    *,
    network: Network,
    files: list[Path],
    sigma: float | None = None,
    noise_samples: int = 0,
    alpha: float = 0.001,
    seed: int | None = None,
    device: str | None = None,
    batch_size: int | None = None,
) -> list[dict[str, Any]]:
    """One row per image file: class and probability from one pass, and the L-bound, which assumes an exact average.

    With ``noise_samples``: Cohen's PREDICT, the class of the averaged network or an abstention, wrong with
    probability at most ``alpha`` for images made without knowledge of ``seed``; None takes a secret one.

    Files are read, evaluated and dropped a few at a time, and the row of a file does not depend, but for rounding,
    on the other files.
    Where a logit is not finite, class and probability are None and radii are 0.
    """
    require(sigma is None or sigma > 0, f"--sigma: expected a positive number, got {sigma}")
    require(
        not noise_samples or sigma is not None, "--noise-samples: expected --sigma beside it, got none; name the noise"
    )
    model = network.load().to(accelerator(device).device)
    calibration = read_calibration(network.source, model)
    known_size, channels, chosen = network.size or model.spec.size, model.spec.channels, seed
    if chosen is None:
        chosen = secrets.randbits(48)
    rows: list[dict[str, Any]] = []
    for size, same in groupby(files, lambda file: known_size or usual_size(file)):
        shape = (channels, *height_and_width(size))
        classes = checked_classes(model, shape)
        sampler = None
        if noise_samples and sigma is not None:
            examples = _noisy_grey(shape, sigma, device_of(model))
            fast = for_inference(model, examples)
            sampler = Sampler(fast, sigma=sigma, classes=classes, seed=chosen, batch_size=batch_size)
        together = images_of_a_pass(device_of(model), math.prod(shape)) or CHUNK
        of_this_size = list(same)
        for first in range(0, len(of_this_size), together):
            some = of_this_size[first : first + together]
            pixels = np.stack([read_image(file, size, channels=channels) for file in some])
            images = as_unit_interval(torch.from_numpy(pixels))
            with torch.inference_mode():
                probabilities = probabilities_of(model(images.to(device_of(model))))
            new = _one_pass_rows(some, probabilities, sigma, calibration)
            if sampler is not None:
                _predict_average(new, images, sampler, noise_samples, alpha)
            rows += new
    return rows


def _one_pass_rows(
    files: Sequence[Path], probabilities: Tensor, sigma: float | None, calibration: Calibration | None
) -> list[dict[str, Any]]:
    """What one pass says of these files."""
    rows: list[dict[str, Any]] = []
    for file, row in zip(files, probabilities, strict=True):
        found = one_pass_class(row)
        probability = None if found is None else float(row[found])
        rows.append({"image": str(file), "class": found, "probability": probability, "subject": "network"})
    if sigma is not None:
        for facts, radius in zip(rows, l_bound(probabilities, sigma=sigma), strict=True):
            facts |= {"l_bound": round_down(float(radius), 4), "basis": BasisKind.EXACT_AVERAGE}
    if calibration is not None:
        for facts, radius in zip(rows, calibration.radius(probabilities), strict=True):
            facts |= {"one_pass_radius": round_down(float(radius), 4), "one_pass_basis": str(calibration.basis)}
    return rows


def _predict_average(
    rows: list[dict[str, Any]], images: Tensor, sampler: Sampler, noise_samples: int, alpha: float
) -> None:
    """Add the class of the average to ``rows``; None where it abstains, or the image has none in one pass.

    The noise of an image depends on its pixels and the seed alone.
    """
    rows_of = defaultdict[int, list[dict[str, Any]]](list)
    jobs = dict[int, Job[Tally]]()
    for row, image in zip(rows, images, strict=True):
        row |= {"average_class": None, "seed": sampler.seed, "average_basis": f"statistical, 1-alpha={1 - alpha:.10g}"}
        if row["class"] is None:
            continue
        index = int(sha256(image.numpy().tobytes())[:12], 16)
        rows_of[index].append(row)
        jobs[index] = Job(index, image, drawing("prediction", noise_samples))
    for job, tally in sampler.run(jobs.values()):
        found, abstain = predict_from_counts(tally.counts[None], alpha=alpha)
        for row in rows_of[job.index]:
            row["average_class"] = None if abstain[0] else int(found[0])


def _noisy_grey(shape: tuple[int, int, int], sigma: float, device: torch.device) -> Tensor:
    """Fixed noisy copies of a grey image, on which the faster form of a network is compared with it."""
    count = images_of_a_pass(device, math.prod(shape)) or CHUNK
    return (0.5 + sigma * torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))).to(device)
