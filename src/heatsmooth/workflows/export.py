"""``export``: a model and its radii as one ONNX file."""

from pathlib import Path
from typing import Any

import torch

from heatsmooth.data import load
from heatsmooth.errors import require
from heatsmooth.export import export_onnx
from heatsmooth.models import load as load_model
from heatsmooth.progress import Progress, silent
from heatsmooth.workflows.calibrate import read_calibration


def export_run(
    *,
    source: Path,
    sigma: float,
    out: Path,
    data: str | None = None,
    images: int = 200,
    data_root: Path | None = None,
    image_size: int | None = None,
    model: str | None = None,
    classes: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write the network of ``source``, with its calibration if it has one, to ``out``; a summary.

    The file is checked on random images and, with ``data``, on the first ``images`` of its test images.
    """
    require(not out.is_dir(), f"--out {out}: expected a file to write, got a directory; name it, as model.onnx")
    chosen = None
    if data is not None:
        chosen = load(data, "test", root=data_root, image_size=image_size or 224, progress=progress).strided(1, images)
    channels, known = (3, None) if chosen is None else (chosen.shape[0], chosen.classes)
    network = load_model(source, model=model, classes=classes or known or 10, channels=channels, mean=mean, std=std)
    if chosen is None:
        size = image_size or network.spec.size or 224
        shown = torch.empty(0, network.spec.channels, size, size)
    else:
        shown = chosen.images(torch.arange(len(chosen)))
    exported = export_onnx(
        network,
        out,
        shown,
        sigma=sigma,
        calibration=read_calibration(source, network),
        facts={"architecture": network.spec.architecture},
        progress=progress,
    )
    return {
        "command": "export",
        "out": str(out),
        "outputs": {
            name: {key: exported.metadata[f"{name}.{key}"] for key in ("subject", "basis")} for name in exported.outputs
        },
        "sigma": sigma,
        "model_hash": exported.metadata["model_hash"],
        "images_checked": exported.images,
        "largest_difference": exported.largest_difference,
    }
