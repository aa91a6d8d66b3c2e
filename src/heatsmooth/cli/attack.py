"""``heatsmooth attack``."""

from typing import Annotated

import typer

from heatsmooth.cli import options as o
from heatsmooth.cli.certify import parsed_shard
from heatsmooth.cli.training import show

AVERAGE = "Attack the average of the network"


def attack(
    *,
    data: o.Data,
    source: o.Source,
    out: o.Out,
    kind: Annotated[str, typer.Option("--attack", help="pgd or ddn.")] = "ddn",
    steps: Annotated[int, typer.Option(help="Steps of the attack.")] = 20,
    eps: Annotated[float, typer.Option(help="Largest L2 perturbation, in [0, 1] pixels.")] = 4.0,
    top_k: Annotated[int, typer.Option(help="Succeed when the label is not among the k most probable.")] = 1,
    loss: Annotated[
        str, typer.Option(help="cross-entropy, margin, or per-sample (the paper's, averaged).")
    ] = "cross-entropy",
    noise_samples: Annotated[int, typer.Option(help="Noise draws of the average.", rich_help_panel=AVERAGE)] = 0,
    sigma: Annotated[float, typer.Option(help="Their deviation, in [0, 1] pixels.", rich_help_panel=AVERAGE)] = 0.0,
    images: o.Count = None,
    stride: o.Stride = 1,
    shard: o.Shard = "1/1",
    data_root: o.DataRoot = None,
    image_size: o.ImageSize = None,
    class_index: o.ClassIndex = None,
    skip_broken: o.SkipBroken = False,
    model: o.Model = None,
    classes: o.Classes = None,
    mean: o.Mean = None,
    std: o.Std = None,
    batch_size: Annotated[int, typer.Option(help="Images attacked together.", rich_help_panel=o.RUNNING)] = 100,
    seed: o.Seed = 0,
    device: o.Device = None,
    quiet: o.Quiet = False,
    as_json: o.Json = False,
) -> None:
    """Find adversarial images: how small an L2 perturbation breaks the network, or its Gaussian average.

    Example: heatsmooth attack --data fashion-mini --from runs/smoothed --attack ddn --images 100 --out runs/attacked
    """
    from heatsmooth.progress import bar
    from heatsmooth.workflows.attack import Attack, attack_run
    from heatsmooth.workflows.inputs import Images

    chosen = Attack(
        attack=kind,  # type: ignore[arg-type]  # checked by Attack
        steps=steps,
        eps=eps,
        top_k=top_k,
        loss=loss,
        noise_samples=noise_samples,
        sigma=sigma,
        batch_size=batch_size,
    )
    with bar(shown=not quiet) as progress:
        summary = attack_run(
            attack=chosen,
            out=out,
            shard=parsed_shard(shard),
            network=o.network(source, model, classes, mean, std, image_size),
            images=Images(data, data_root, class_index, skip_broken, stride, images),
            seed=seed,
            device=device,
            progress=progress,
        )
    show(summary, as_json)
