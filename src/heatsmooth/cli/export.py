"""``heatsmooth export``."""

from pathlib import Path
from typing import Annotated

import typer

from heatsmooth.cli import options as o
from heatsmooth.cli.training import show


def export(
    *,
    source: o.Source,
    sigma: o.Sigma,
    out: Annotated[Path, typer.Option(help="The file to write, as model.onnx.")],
    data: Annotated[str | None, typer.Option(help="Check the file on images of this data set too.")] = None,
    images: Annotated[int, typer.Option(help="How many of those.")] = 200,
    data_root: o.DataRoot = None,
    image_size: Annotated[
        int | None, typer.Option(help="Side of an image, in pixels (default: the network's).")
    ] = None,
    model: o.Model = None,
    classes: o.Classes = None,
    mean: o.Mean = None,
    std: o.Std = None,
    quiet: o.Quiet = False,
    as_json: o.Json = False,
) -> None:
    """Write the one-pass network as ONNX: probabilities, class, L-bound and, if calibrated, the calibrated radius.

    The file takes any number of images in [0, 1], and is written only if onnxruntime agrees with the network to 1e-5.

    Example: heatsmooth export --from runs/calibrated --sigma 0.25 --out model.onnx
    """
    from heatsmooth.progress import bar
    from heatsmooth.workflows.export import export_run
    from heatsmooth.workflows.inputs import Images

    with bar(shown=not quiet) as progress:
        summary = export_run(
            network=o.network(source, model, classes, mean, std, image_size),
            images=None if data is None else Images(data, data_root, count=images),
            sigma=sigma,
            out=out,
            progress=progress,
        )
    outputs = {} if as_json else summary.pop("outputs")
    difference = summary["largest_difference"]
    show(summary if as_json else summary | {"largest_difference": f"{difference:.2g}"}, as_json)
    for name, facts in outputs.items():
        typer.echo(f"{name:<40} of the {facts['subject']}; {facts['basis']}")
