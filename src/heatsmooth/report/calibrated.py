"""Radii from one pass with a conformal guarantee: a table of their own, as they rest on something else."""

import numpy as np

from heatsmooth.report.collection import Collection
from heatsmooth.report.naming import Names
from heatsmooth.report.results import acr, certified_at
from heatsmooth.report.tables import Column, Table, without_empty_columns
from heatsmooth.report.values import count_text, number, percent, plain, radius_text, share_text

CONFORMAL = "average, in one pass · conformal, 1−ε−α"


def calibrated_table(collection: Collection, names: Names) -> Table | None:
    """The radii that a calibrated model gives from one pass."""
    if not collection.calibrated:
        return None
    rows = tuple(
        (
            names.model_of(item),
            plain(item.sigma),
            plain(number(item.settings, "epsilon")),
            plain(number(item.settings, "alpha")),
            count_text(len(item.radius)),
            percent(float((item.radius > 0).mean())),
            radius_text(float(np.median(item.radius))),
            radius_text(float(item.radius.mean())),
            radius_text(float(item.radius.max())),
            *(share_text(certified_at(item, radius)) for radius in (0.25, 0.5)),
            radius_text(acr(item)),
        )
        for item in collection.calibrated
    )
    columns = (
        Column("Model", words=True),
        Column("σ"),
        Column("ε"),
        Column("α"),
        Column("Images"),
        Column("With a radius"),
        *(Column(f"{which} radius", CONFORMAL) for which in ("Median", "Mean", "Largest")),
        *(Column(f"Right at {radius}", CONFORMAL) for radius in ("0.25", "0.5")),
        Column("ACR", CONFORMAL),
    )
    note = (
        "A radius from one forward pass. For an image drawn as the calibration images were, it exceeds the statistical "
        "radius of the average with probability at most ε: over images and calibration set together, not for each "
        "image. It says nothing of the network in one pass at a perturbed image."
    )
    return without_empty_columns(Table("calibrated-radii", "Calibrated one-pass radii", columns, rows, note))
