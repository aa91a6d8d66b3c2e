"""``audit`` in a run directory."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from heatsmooth.auditing import Audit, audit
from heatsmooth.models import load as load_model
from heatsmooth.models import model_hash
from heatsmooth.progress import Progress, silent
from heatsmooth.runs import Run, read_json, write_json
from heatsmooth.training.loop import accelerator
from heatsmooth.workflows.inputs import PLAINLY, Reading, images_for, left_out


def audit_run(
    *,
    data: str,
    source: Path,
    how: Audit,
    out: Path,
    teacher: Path | None = None,
    images: int | None = None,
    stride: int = 1,
    data_root: Path | None = None,
    image_size: int | None = None,
    reading: Reading = PLAINLY,
    model: str | None = None,
    classes: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    seed: int = 0,
    device: str | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Audit the network of ``source`` on these images into ``out``/audit.json; what it says."""
    chosen = images_for(
        data,
        "test",
        source=source,
        model=model,
        data_root=data_root,
        image_size=image_size,
        reading=reading,
        stride=stride,
        images=images,
        progress=progress,
    )
    known = classes or chosen.classes or 10
    place = accelerator(device).device
    network, former = (
        None
        if path is None
        else load_model(path, model=model, classes=known, channels=chosen.shape[0], mean=mean, std=std).to(place)
        for path in (source, teacher)
    )
    assert network is not None
    identity = {
        "data": chosen.describe(),
        "model": model_hash(network),
        "teacher": None if former is None else model_hash(former),
        "audit": asdict(how),
        "seed": seed,
    }
    run = Run(out, "audit", identity)
    try:
        if not run.done:
            choices = {name: value for name, value in asdict(how).items() if name != "sigma"}
            found = audit(network, chosen, sigma=how.sigma, teacher=former, seed=seed, progress=progress, **choices)
            write_json(out / "audit.json", found)
            run.update(status="done", model_hash=identity["model"])
        return {"command": "audit", "out": str(out), **read_json(out / "audit.json"), **left_out(chosen)}
    finally:
        run.close()
