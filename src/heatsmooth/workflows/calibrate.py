"""``calibrate``, and the one-pass radii that come of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heatsmooth.calibrate import Calibration, calibrate, coverage
from heatsmooth.certification.settings import Settings
from heatsmooth.data.images import size_of
from heatsmooth.device import accelerator, exact_float32
from heatsmooth.errors import InputError, require
from heatsmooth.identity import Identity, first_difference, network_settings, recorded_identity
from heatsmooth.models import Classifier, checked_classes, identify, is_known_as, probabilities_of, save
from heatsmooth.models.checkpoint import WEIGHTS_FILE
from heatsmooth.progress import Progress, silent
from heatsmooth.results.certificates import Certificate, Certificates, read_certificates
from heatsmooth.results.one_pass import RADII_FILE, OnePassResult
from heatsmooth.results.radii import radii_of
from heatsmooth.results.schema import to_json
from heatsmooth.runs import Records, Run, read_json, read_run_info, write_json
from heatsmooth.statistics.radii import round_down
from heatsmooth.workflows.inputs import Images, Network, left_out

CALIBRATION_FILE = "calibration.json"
SHOWN_RADII = (0.0, 0.25, 0.5, 0.75, 1.0)


def certified_run(directory: Path, option: str) -> dict[str, Any]:
    """What the certificates of a directory, named by ``option``, were made with: the settings of its run."""
    files = sorted(directory.glob("run*.json"))
    require(bool(files), f"{option} {directory}: expected a 'certify' run, got none; check the path")
    parts = [read_run_info(file) for file in files]
    info = max(parts, key=lambda part: "networks" in part["settings"])
    for file, part in zip(files, parts, strict=True):
        other = first_difference(info["settings"], part["settings"])
        require(
            part["command"] == info["command"] and other is None,
            f"{file}: expected a part of one run, got another {other[0] if other else 'command'}; remove that part",
        )
    require(
        info["command"] == "certify",
        f"{option} {directory}: expected a 'certify' run, got {info['command']!r}; name another",
    )
    made: dict[str, Any] = info["settings"]
    data = made.get("data")
    described = isinstance(data, dict) and isinstance(data.get("images"), int) and _is_shape(data.get("shape"))
    known = isinstance(made.get("model"), str) and described
    require(known, f"{files[0]}: expected the model and the data of the certificates, got others; certify again")
    Settings.from_json(made.get("certificate"), directory)
    return made


def _is_shape(value: Any) -> bool:
    """Whether that is (channels, height, width), as a run records it."""
    return isinstance(value, list) and len(value) == 3 and all(type(side) is int and side > 0 for side in value)


def calibrate_run(
    *,
    network: Network,
    certificates: Path,
    epsilon: float,
    out: Path,
    held_out: Path | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Learn a one-pass radius from certified images and store it with the model in ``out``."""
    settings = certified_run(certificates, "--certificates")
    channels, height, width = settings["data"]["shape"]
    model = network.load(channels=channels)
    model.spec = replace(model.spec, size=model.spec.size or size_of(height, width))
    found = identify(model, (channels, height, width))
    other = found.difference(recorded_identity(settings))
    if other is not None:
        what, theirs, own = other
        raise InputError(
            f"--certificates {certificates}: expected those of the model ({what} {own!r}), got another's ({theirs!r}); "
            "certify it first"
        )
    certified = all_certificates(certificates, "--certificates", settings)
    made = settings["certificate"]
    calibration = calibrate(
        Certificates.of(certified),
        epsilon=epsilon,
        seed=seed,
        model_hash=found.weights,
        network=found.to_json(),
        data=settings["data"],
    )
    identity = {
        **network_settings(model=found),
        "certificate": made,
        "data": settings["data"],
        "epsilon": epsilon,
        "seed": seed,
    }
    with Run(out, "calibrate", identity) as run:
        save(model, out / WEIGHTS_FILE)
        write_json(out / CALIBRATION_FILE, calibration.to_json())
        run.update(status="done", model_hash=found.weights)
    facts = {
        "command": "calibrate",
        "out": str(out),
        "images": len(certified),
        "epsilon": epsilon,
        "subject": calibration.subject,
        "basis": str(calibration.basis),
        "largest_radius": round_down(max((radius for _, radius in calibration.steps), default=0.0), 4),
    }
    if held_out is not None:
        others = certified_run(held_out, "--held-out")
        alike = is_known_as(model, recorded_identity(others)) and others["certificate"] == made
        require(alike, f"--held-out {held_out}: expected certificates of the same model made alike, got others")
        used = {item.index for item in certified} if others["data"]["name"] == settings["data"]["name"] else set()
        rest = [item for item in all_certificates(held_out, "--held-out", others) if item.index not in used]
        require(bool(rest), f"--held-out {held_out}: expected images not calibrated on, got none; certify others")
        facts["held_out"] = coverage(calibration, Certificates.of(rest))
    return facts


def all_certificates(directory: Path, option: str, made: dict[str, Any]) -> list[Certificate]:
    """The certificates of a finished run, with the exact α of its settings, of which their text has six digits.

    Those of an unfinished run are not a fair sample of its images.
    """
    certificates, asked = read_certificates(directory), made["data"]["images"]
    require(
        len(certificates) == asked,
        f"{option} {directory}: expected certificates of all {asked} images, got {len(certificates)}; finish that run",
    )
    require(
        made["certificate"].get("n_wrong") is None,
        f"{option} {directory}: expected as many draws for every image, got fewer where the class is wrong; certify "
        "without --n-wrong",
    )
    basis = Settings.from_json(made["certificate"], directory).basis
    other = next((str(item.basis) for item in certificates if str(item.basis) != str(basis)), None)
    require(other is None, f"{option} {directory}: expected certificates that are {basis}, got {other}; certify again")
    return [replace(item, basis=basis) for item in certificates]


def read_calibration(source: Path, network: Classifier) -> Calibration | None:
    """The calibration beside a model, if there is one; it must be of that model."""
    file = source / CALIBRATION_FILE
    if not source.is_dir() or not file.exists():
        return None
    calibration = Calibration.from_json(read_json(file))
    recorded = Identity.from_json(calibration.network or str(calibration.model_hash))
    require(
        is_known_as(network, recorded), f"{file}: expected a calibration of this model, got another's; calibrate again"
    )
    return calibration


def one_pass_class(probabilities: Tensor) -> int | None:
    """The class of one image's probabilities (classes,); None where they are NaN."""
    return int(probabilities.argmax()) if bool(probabilities.isfinite().all()) else None


@exact_float32()
def one_pass_run(
    *,
    network: Network,
    images: Images,
    out: Path,
    device: str | None = None,
    batch_size: int | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Class and calibrated radius of each image from one forward pass, into ``out``/one_pass.jsonl."""
    chosen = images.load(network.side, progress=progress)
    model = network.load(chosen)
    calibration = read_calibration(network.source, model)
    require(
        calibration is not None,
        f"--one-pass: expected a calibrated model in {network.source}, got none; run heatsmooth calibrate",
    )
    assert calibration is not None
    place = accelerator(device).device
    model.to(place)
    chosen.check_classes(checked_classes(model, chosen.shape))
    found = network_settings(model=identify(model, chosen.shape))
    identity = {"data": chosen.describe(), **found, "calibration": calibration.to_json()}
    results: list[OnePassResult] = []
    with Run(out, "one-pass", identity) as run:
        with Records(out / RADII_FILE) as records, torch.inference_mode():
            records.keep(lambda _: False)
            for positions in torch.arange(len(chosen)).split(batch_size or 200):
                probabilities = probabilities_of(model(chosen.images(positions).to(place)))
                labels = chosen.labels_at(positions)
                for i, radius in enumerate(calibration.radius(probabilities)):
                    result = OnePassResult(
                        index=int(chosen.indices[positions[i]]),
                        label=None if labels is None else int(labels[i]),
                        predicted=one_pass_class(probabilities[i]),
                        radius=round_down(float(radius), 9),
                        abstain=bool(radius == 0),
                        subject=calibration.subject,
                        basis=calibration.basis,
                    )
                    records.append(to_json(result))
                    results.append(result)
                progress("one pass", len(results), len(chosen))
        run.update(status="done", model_hash=identity["model"])
    facts = {
        "command": "certify",
        "out": str(out),
        "images": len(results),
        "sigma": calibration.sigma,
        "subject": calibration.subject,
        "basis": str(calibration.basis),
        "abstained": sum(result.abstain for result in results),
    }
    facts |= left_out(chosen)
    if chosen.labels is None:
        return facts
    claimed = radii_of(results)
    shares = claimed.certified_accuracy(SHOWN_RADII)
    return facts | {
        "mean_claimed_radius": round_down(claimed.average_certified_radius, 6),
        "claimed_accuracy": {
            f"{radius:g}": round(float(share), 6) for radius, share in zip(SHOWN_RADII, shares, strict=True)
        },
    }
