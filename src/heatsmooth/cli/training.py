"""``heatsmooth train`` and ``heatsmooth smooth``."""

import json
from typing import Annotated, Any

import typer

from heatsmooth.cli import options as o
from heatsmooth.cli.help import OBJECTIVE, OPTIMISATION


def train(
    *,
    data: o.Data,
    out: o.Out,
    model: Annotated[str, typer.Option(help="small, …, package.module:callable or hf:NAME.")] = "small",
    method: Annotated[str, typer.Option(help="clean, gaussian, smoothadv or adversarial.")] = "clean",
    sigma: Annotated[float, typer.Option(help="Noise of gaussian and smoothadv.")] = 0.0,
    epochs: Annotated[int, typer.Option(help="Passes over the images.")] = 20,
    data_root: o.DataRoot = None,
    image_size: o.ImageSize = None,
    class_index: o.ClassIndex = None,
    skip_broken: o.SkipBroken = False,
    limit_train: o.LimitTrain = None,
    batch_size: Annotated[int, typer.Option(help="Images a step.", rich_help_panel=OPTIMISATION)] = 128,
    accumulate: Annotated[
        int, typer.Option(help="Parts of a step's images, one after another.", rich_help_panel=OPTIMISATION)
    ] = 1,
    lr: Annotated[float, typer.Option(help="Largest learning rate.", rich_help_panel=OPTIMISATION)] = 0.2,
    schedule: Annotated[
        str, typer.Option(help="constant, linear, cosine or steps.", rich_help_panel=OPTIMISATION)
    ] = "linear",
    warmup: Annotated[
        float, typer.Option(help="Share of the steps over which lr rises.", rich_help_panel=OPTIMISATION)
    ] = 0.15,
    weight_decay: Annotated[
        float, typer.Option(help="L2 penalty on the weights.", rich_help_panel=OPTIMISATION)
    ] = 5e-4,
    batch_norm: Annotated[str, typer.Option(help="train or frozen.", rich_help_panel=OPTIMISATION)] = "train",
    augment: Annotated[bool, typer.Option(help="Shift and mirror.", rich_help_panel=OPTIMISATION)] = True,
    eps: Annotated[
        float, typer.Option(help="L2 radius of the attack.", rich_help_panel="smoothadv and adversarial")
    ] = 0.5,
    steps: Annotated[int, typer.Option(help="Steps of the attack.", rich_help_panel="smoothadv and adversarial")] = 4,
    attack: Annotated[str, typer.Option(help="pgd or ddn.", rich_help_panel="smoothadv and adversarial")] = "pgd",
    warmup_epochs: Annotated[
        float, typer.Option(help="Epochs until full eps.", rich_help_panel="smoothadv and adversarial")
    ] = 10.0,
    noise_draws: Annotated[
        int, typer.Option(help="Noisy copies (smoothadv).", rich_help_panel="smoothadv and adversarial")
    ] = 1,
    mean: o.Mean = None,
    std: o.Std = None,
    seed: o.Seed = 0,
    device: o.Device = None,
    checkpoint_seconds: o.Checkpoint = 30.0,
    log_every: o.LogEvery = 10,
    quiet: o.Quiet = False,
    as_json: o.Json = False,
) -> None:
    """Train a network with labels: a baseline to smooth, or a method to compare with.

    Example: heatsmooth train --data fashion-mini --model small --epochs 4 --out runs/baseline
    """
    from heatsmooth.progress import bar
    from heatsmooth.training import Baseline, Plan
    from heatsmooth.workflows.inputs import Images
    from heatsmooth.workflows.training import train_run

    with bar(shown=not quiet) as progress:
        summary = train_run(
            images=Images(data, data_root, class_index, skip_broken),
            image_size=image_size,
            out=out,
            model=model,
            choices=Baseline(
                method=method,  # type: ignore[arg-type]  # checked by Baseline
                sigma=sigma,
                eps=eps,
                steps=steps,
                attack=attack,  # type: ignore[arg-type]
                warmup_epochs=warmup_epochs,
                noise_draws=noise_draws,
            ),
            plan=Plan(
                epochs=epochs,
                batch_size=batch_size,
                lr=lr,
                schedule=schedule,  # type: ignore[arg-type]
                warmup=warmup,
                weight_decay=weight_decay,
                batch_norm=batch_norm,  # type: ignore[arg-type]
                augment=augment,
                accumulate=accumulate,
            ),
            limit_train=limit_train,
            mean=o.numbers(mean, "--mean"),
            std=o.numbers(std, "--std"),
            seed=seed,
            device=device,
            checkpoint_seconds=checkpoint_seconds,
            log_every=log_every,
            progress=progress,
        )
    show(summary, as_json)


def smooth(
    *,
    data: o.Data,
    source: o.Source,
    sigma: o.Sigma,
    out: o.Out,
    preset: Annotated[str, typer.Option(help="bootcamp, paper-cifar10 or paper-imagenet.")] = "bootcamp",
    data_root: o.DataRoot = None,
    image_size: o.ImageSize = None,
    class_index: o.ClassIndex = None,
    skip_broken: o.SkipBroken = False,
    limit_train: o.LimitTrain = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Read hf:NAME as a stream: --limit-train images an epoch, no test.")
    ] = False,
    distance: Annotated[
        str | None,
        typer.Option(help="squared-logits, squared-probabilities, cross-entropy.", rich_help_panel=OBJECTIVE),
    ] = None,
    penalty: Annotated[
        str | None, typer.Option(help="Of the logits, probabilities or fisher.", rich_help_panel=OBJECTIVE)
    ] = None,
    penalty_weight: Annotated[
        float | None, typer.Option(help="Multiplies h·σ²/2·‖∇‖².", rich_help_panel=OBJECTIVE)
    ] = None,
    estimator: Annotated[
        str | None, typer.Option(help="projection, direction, pair, exact or none.", rich_help_panel=OBJECTIVE)
    ] = None,
    projections: Annotated[int | None, typer.Option(help="κ.", rich_help_panel=OBJECTIVE)] = None,
    delta: Annotated[float | None, typer.Option(help="δ of the finite difference.", rich_help_panel=OBJECTIVE)] = None,
    scaling: Annotated[
        str | None, typer.Option(help="Of projection: paper or unbiased.", rich_help_panel=OBJECTIVE)
    ] = None,
    noise: Annotated[str | None, typer.Option(help="none, fraction or copy.", rich_help_panel=OBJECTIVE)] = None,
    noise_fraction: Annotated[
        float | None, typer.Option(help="Share of noisy images.", rich_help_panel=OBJECTIVE)
    ] = None,
    ascent: Annotated[
        float | None, typer.Option(help="Step of noisy copies uphill, in σ.", rich_help_panel=OBJECTIVE)
    ] = None,
    timesteps: Annotated[int | None, typer.Option(help="n_T.", rich_help_panel=OBJECTIVE)] = None,
    batch_norm: Annotated[str | None, typer.Option(help="train or frozen.", rich_help_panel=OPTIMISATION)] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs a timestep.", rich_help_panel=OPTIMISATION)] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", rich_help_panel=OPTIMISATION)] = None,
    schedule: Annotated[
        str | None, typer.Option(help="constant, linear, cosine, steps.", rich_help_panel=OPTIMISATION)
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a step.", rich_help_panel=OPTIMISATION)] = None,
    accumulate: Annotated[
        int | None, typer.Option(help="Parts of a step's images, one after another.", rich_help_panel=OPTIMISATION)
    ] = None,
    model: o.Model = None,
    classes: o.Classes = None,
    mean: o.Mean = None,
    std: o.Std = None,
    seed: o.Seed = 0,
    device: o.Device = None,
    checkpoint_seconds: o.Checkpoint = 30.0,
    log_every: o.LogEvery = 10,
    quiet: o.Quiet = False,
    as_json: o.Json = False,
) -> None:
    """Make a trained network robust to L2 perturbations: one epoch, no labels.

    Example: heatsmooth smooth --data fashion-mini --from runs/baseline --sigma 0.25 --out runs/smoothed
    """
    from heatsmooth.progress import bar
    from heatsmooth.workflows.inputs import Images
    from heatsmooth.workflows.training import smooth_run

    changes: dict[str, Any] = {
        "distance": distance,
        "penalty": penalty,
        "weight": penalty_weight,
        "estimator": estimator,
        "projections": projections,
        "delta": delta,
        "scaling": scaling,
        "noise": noise,
        "noise_fraction": noise_fraction,
        "ascent": ascent,
        "timesteps": timesteps,
        "batch_norm": batch_norm,
        "epochs": epochs,
        "lr": lr,
        "schedule": schedule,
        "batch_size": batch_size,
        "accumulate": accumulate,
    }
    with bar(shown=not quiet) as progress:
        summary = smooth_run(
            network=o.network(source, model, classes, mean, std, image_size),
            images=Images(data, data_root, class_index, skip_broken),
            sigma=sigma,
            out=out,
            preset=preset,
            changes={name: value for name, value in changes.items() if value is not None},
            limit_train=limit_train,
            stream=stream,
            seed=seed,
            device=device,
            checkpoint_seconds=checkpoint_seconds,
            log_every=log_every,
            progress=progress,
        )
    show(summary, as_json)


def show(summary: dict[str, Any] | None, as_json: bool) -> None:
    """Print a summary as one JSON object or as lines for people; nothing where another process leads."""
    if summary is None:
        return
    if as_json:
        typer.echo(json.dumps(summary))
        return
    for name, value in summary.items():
        text = _shown(name, value)
        typer.echo(f"{name.replace('_', ' '):<40} {text}")


def _shown(name: str, value: Any) -> str:
    """A value with four decimals if it is a float; radii rounded down."""
    from heatsmooth.statistics.radii import round_down

    if not isinstance(value, float):
        return str(value)
    rounded_already = abs(value - round(value, 4)) < 1e-9
    return f"{round_down(value, 4) if 'radius' in name and not rounded_already else value:.4f}"


def table(rows: list[dict[str, str]], title: str) -> None:
    """Print rows of equal keys as a table on standard output."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    grid = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in rows[0]:
        first = name == next(iter(rows[0]))
        grid.add_column(name, justify="left" if first else "right", no_wrap=first)
    for row in rows:
        grid.add_row(*row.values())
    Console().print(grid)
