"""``heatsmooth demo``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from heatsmooth.cli import options as o
from heatsmooth.cli.training import show, table

SIGMA = 0.25


def demo(
    *,
    out: Annotated[Path, typer.Option(help="Where the runs go; repeating the command continues them.")] = Path(
        "heatsmooth-demo"
    ),
    epochs: Annotated[int, typer.Option(help="Epochs of the baseline.")] = 6,
    seed: o.Seed = 0,
    quiet: o.Quiet = False,
    as_json: o.Json = False,
) -> None:
    """Tell the whole story on the embedded images: train a network, then smooth it without labels.

    Example: heatsmooth demo --out heatsmooth-demo
    """
    from heatsmooth.progress import bar
    from heatsmooth.training import Baseline, Plan
    from heatsmooth.workflows.training import smooth_run, train_run

    with bar(shown=not quiet) as progress:
        baseline = train_run(
            data="fashion-mini",
            out=out / "baseline",
            choices=Baseline(),
            plan=Plan(epochs=epochs, lr=0.2, warmup=0.15, weight_decay=5e-4),
            seed=seed,
            progress=progress,
        )
        smoothed = smooth_run(
            data="fashion-mini",
            source=out / "baseline",
            sigma=SIGMA,
            out=out / "smoothed",
            seed=seed,
            progress=progress,
        )
    if baseline is None or smoothed is None:
        return
    if as_json:
        show({"baseline": baseline, "smoothed": smoothed}, as_json)
        return
    table(
        [
            _row("baseline", smoothed["teacher_accuracy"], smoothed["teacher_accuracy_under_noise"], baseline),
            _row("after one epoch without labels", smoothed["accuracy"], smoothed["accuracy_under_noise"], smoothed),
        ],
        f"fashion-mini, {smoothed['test_images']} test images, one pass each",
    )
    typer.echo(f"runs: {out}")


def _row(name: str, clean: float, noisy: float, summary: dict[str, Any]) -> dict[str, str]:
    return {
        "network": name,
        "clean": f"{clean:.1%}",
        f"noise σ={SIGMA}": f"{noisy:.1%}",
        "seconds": f"{summary['seconds']:.0f}",
    }
