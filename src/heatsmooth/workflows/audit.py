"""``audit`` in a run directory."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from heatsmooth.auditing import Audit, audit
from heatsmooth.data import ImageSet
from heatsmooth.device import accelerator
from heatsmooth.errors import InputError
from heatsmooth.identity import network_settings
from heatsmooth.models import Classifier, identify, recorded_spec
from heatsmooth.models.checkpoint import CALLABLE
from heatsmooth.progress import Progress, silent
from heatsmooth.runs import Run, read_json, write_json
from heatsmooth.workflows.inputs import Images, Network, left_out


def audit_run(
    *,
    network: Network,
    images: Images,
    how: Audit,
    out: Path,
    teacher: Network | None = None,
    seed: int = 0,
    device: str | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Audit the network on these images into ``out``/audit.json; what it says."""
    chosen = images.load(network.side, progress=progress)
    place = accelerator(device).device
    model = network.load(chosen).to(place)
    former = None if teacher is None else _loaded_teacher(teacher, chosen).to(place)
    identity = {
        "data": chosen.describe(),
        **network_settings(
            model=identify(model, chosen.shape), teacher=None if former is None else identify(former, chosen.shape)
        ),
        "audit": asdict(how),
        "seed": seed,
    }
    with Run(out, "audit", identity) as run:
        if not run.done:
            choices = {name: value for name, value in asdict(how).items() if name != "sigma"}
            found = audit(model, chosen, sigma=how.sigma, teacher=former, seed=seed, progress=progress, **choices)
            write_json(out / "audit.json", found)
            run.update(status="done", model_hash=identity["model"])
        return {"command": "audit", "out": str(out), **read_json(out / "audit.json"), **left_out(chosen)}


def teacher_network(source: Path, network: Network, model: str | None = None) -> Network:
    """The teacher at ``source``: as its own record says, else, for plain weights, as ``network`` is described.

    ``model``: the code of a teacher whose architecture is not that of ``network``.
    """
    if CALLABLE.fullmatch(str(source)):
        return Network(source)
    spec = recorded_spec(source)
    if spec is None:
        return replace(network, source=source, model=model or network.model)
    return Network(source, model or (network.code if network.code == spec.architecture else None))


def _loaded_teacher(teacher: Network, images: ImageSet) -> Classifier:
    try:
        return teacher.load(images)
    except InputError as error:
        if not error.options:
            raise
        message = str(error).replace("--model", "--teacher-model")
        raise InputError(message, options=("--teacher-model", *error.options[1:])) from None
