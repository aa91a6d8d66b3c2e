"""``heatsmooth audit``."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from heatsmooth.cli import options as o
from heatsmooth.cli.training import show, table


def audit(
    *,
    data: o.Data,
    source: o.Source,
    sigma: o.Sigma,
    out: o.Out,
    teacher: Annotated[Path | None, typer.Option(help="The network it was smoothed from.")] = None,
    teacher_model: Annotated[str | None, typer.Option(help="Its architecture, if it needs another --model.")] = None,
    n: Annotated[int, typer.Option(help="Noisy draws an image.")] = 1000,
    alpha: Annotated[float, typer.Option(help="Probability that a certificate is false.")] = 0.001,
    steps: Annotated[int, typer.Option(help="Steps of the attacks.")] = 50,
    noise_samples: Annotated[int, typer.Option(help="Noise draws of the average under attack.")] = 32,
    images: o.Count = None,
    stride: o.Stride = 1,
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
    """Find out whether the certificates of a network hold, and whether they carry over to it in one pass.

    Example: heatsmooth audit --data fashion-mini --from runs/smoothed --sigma 0.25 --images 200 --out runs/audited
    """
    from heatsmooth.auditing import Audit
    from heatsmooth.progress import bar
    from heatsmooth.workflows.audit import audit_run, teacher_network
    from heatsmooth.workflows.inputs import Images
    from heatsmooth.workflows.sharing import by_the_leader

    network = o.network(source, model, classes, mean, std, image_size)
    with bar(shown=not quiet) as progress:
        found = by_the_leader(audit_run)(
            how=Audit(sigma, n=n, alpha=alpha, steps=steps, noise_samples=noise_samples),
            out=out,
            teacher=None if teacher is None else teacher_network(teacher, network, teacher_model),
            network=network,
            images=Images(data, data_root, class_index, skip_broken, stride, images),
            seed=seed,
            device=device,
            progress=progress,
        )
    if found is None or as_json:
        show(found, as_json)
        return
    table(_rows(found), f"{found['images']} images, σ={found['sigma']:g}, n={found['n']}")
    typer.echo(f"{found['verdict']['kind'].upper()}. {found['verdict']['text']}")


def _rows(found: dict[str, Any]) -> list[dict[str, str]]:
    agreement, average, network = found["agreement"], found["average_attacks"], found["network_attacks"]
    survives = network["surviving_fraction"]
    rows = [
        ("one pass agrees with the average", agreement["count"], agreement["images"]),
        ("average broken inside its certified radius", average["violations"], average["attacked"]),
        (
            "network broken inside its L-bound",
            network["inside_l_bound"]["broken"],
            network["inside_l_bound"]["attacked"],
        ),
        (
            "network broken inside the average's radius",
            network["inside_average_radius"]["broken"],
            network["inside_average_radius"]["attacked"],
        ),
    ]
    shown = [
        {"finding": name, "images": f"{count} of {of}", "value": f"{count / max(of, 1):.1%}"}
        for name, count, of in rows
    ]
    for name, distance in found["approximation"].items():
        if distance is not None:
            whom = "its own average" if name == "self" else "the teacher's average"
            value = f"{distance['mean']:.3f} [{_interval(distance['interval'])}]"
            shown.append({"finding": f"distance to {whom}", "images": "", "value": value})
    survived = f"share of the radius that {survives['share']:.0%} survive (empirical)"
    shown.append({"finding": survived, "images": str(survives["images"]), "value": f"{survives['fraction']:.3f}"})
    slope = found["lipschitz"]
    shown.append({"finding": "steepest slope / assumed by the L-bound", "images": "", "value": f"{slope['ratio']:.2f}"})
    return shown


def _interval(ends: list[float] | None) -> str:
    """Both ends, or a dash: one image has none, and older files say infinity."""
    if ends is None or not all(map(math.isfinite, ends)):
        return "–"
    return f"{ends[0]:.3f}, {ends[1]:.3f}"
