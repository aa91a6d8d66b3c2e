"""``heatsmooth check``."""

from typing import Annotated

import typer

from heatsmooth.cli import options as o
from heatsmooth.cli.training import show


def check(
    *,
    source: o.Source,
    data: Annotated[str | None, typer.Option(help="Also try these images: " + o.DATA_HELP)] = None,
    sigma: Annotated[float, typer.Option(help="Noise to try, in [0, 1] pixels.")] = 0.25,
    images: Annotated[int, typer.Option(help="How many images to try.")] = 200,
    data_root: o.DataRoot = None,
    image_size: o.ImageSize = None,
    class_index: o.ClassIndex = None,
    skip_broken: o.SkipBroken = False,
    model: o.Model = None,
    classes: o.Classes = None,
    mean: o.Mean = None,
    std: o.Std = None,
    seed: o.Seed = 0,
    device: o.Device = None,
    quiet: o.Quiet = False,
    as_json: o.Json = False,
) -> None:
    """Say what heatsmooth understood of a network, and warn of what looks wrong with it, its inputs or its labels.

    Example: heatsmooth check --from weights.pt --model resnet50 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225
    """
    from heatsmooth.progress import bar
    from heatsmooth.workflows.check import check_run
    from heatsmooth.workflows.inputs import Images

    with bar(shown=not quiet) as progress:
        facts = check_run(
            network=o.network(source, model, classes, mean, std, image_size),
            images=None if data is None else Images(data, data_root, class_index, skip_broken),
            tried=images,
            sigma=sigma,
            seed=seed,
            device=device,
            progress=progress,
        )
    warnings = [] if as_json else facts.pop("warnings")
    show(facts, as_json)
    for warning in warnings:
        typer.echo(f"warning: {warning}")
