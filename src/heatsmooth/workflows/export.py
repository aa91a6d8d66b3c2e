"""``export``: a model and its radii as one ONNX file."""

from pathlib import Path
from typing import Any

import torch

from heatsmooth.data.folder import USUAL_SIZE
from heatsmooth.data.images import height_and_width
from heatsmooth.errors import require
from heatsmooth.export import export_onnx
from heatsmooth.progress import Progress, silent
from heatsmooth.workflows.calibrate import read_calibration
from heatsmooth.workflows.inputs import Images, Network


def export_run(
    *,
    network: Network,
    images: Images | None = None,
    sigma: float,
    out: Path,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write the network, with its calibration if it has one, to ``out``; a summary.

    The file is checked on random images and on ``images``, if there are any.
    """
    require(not out.is_dir(), f"--out {out}: expected a file to write, got a directory; name it, as model.onnx")
    chosen = None if images is None else images.load(network.side, progress=progress)
    model = network.load(chosen)
    if chosen is None:
        sides = height_and_width(network.size or model.spec.size or USUAL_SIZE)
        shown = torch.empty(0, model.spec.channels, *sides)
    else:
        shown = chosen.images(torch.arange(len(chosen)))
    exported = export_onnx(
        model,
        out,
        shown,
        sigma=sigma,
        calibration=read_calibration(network.source, model),
        facts={"architecture": model.spec.architecture},
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
