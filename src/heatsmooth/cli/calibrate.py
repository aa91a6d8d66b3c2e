"""``heatsmooth calibrate``."""

from pathlib import Path
from typing import Annotated

import typer

from heatsmooth.cli import options as o
from heatsmooth.cli.training import show


def calibrate(
    *,
    source: o.Source,
    certificates: Annotated[Path, typer.Option(help="A 'certify' run of this model over calibration images.")],
    out: o.Out,
    epsilon: Annotated[float, typer.Option(help="Probability that a new image's radius is too large.")] = 0.01,
    held_out: Annotated[Path | None, typer.Option(help="Another 'certify' run, to measure the coverage on.")] = None,
    model: o.Model = None,
    seed: o.Seed = 0,
    as_json: o.Json = False,
) -> None:
    """Learn a radius from one pass that is too large for a new image with probability at most ε, plus α.

    The probability is over a new image and the calibration images, alike in kind; it is not for each image. The radius
    is about the Gaussian average. `predict` and `certify --one-pass` use it.

    Example: heatsmooth calibrate --from runs/smoothed --certificates runs/certified --out runs/calibrated
    """
    from heatsmooth.workflows.calibrate import calibrate_run
    from heatsmooth.workflows.inputs import Network
    from heatsmooth.workflows.sharing import by_the_leader

    summary = by_the_leader(calibrate_run)(
        network=Network(source, model),
        certificates=certificates,
        epsilon=epsilon,
        out=out,
        held_out=held_out,
        seed=seed,
    )
    if summary is None:
        return
    held = summary.pop("held_out", None) if not as_json else None
    show(summary, as_json)
    if held:
        low, high = held["interval"]
        covered = (
            f"{held['covered']} of {held['images']} images covered, {held['coverage']:.1%} [{low:.1%}, {high:.1%}]"
        )
        typer.echo(f"held out: {covered}, expected at least {1 - epsilon:.1%}")
        typer.echo(f"kept of the average certified radius: {held['kept'] or 0:.1%}")
