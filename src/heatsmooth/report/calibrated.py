"""Radii from one pass with a conformal guarantee: a table of their own, as they rest on something else."""

import numpy as np

from heatsmooth.report.collection import Collection
from heatsmooth.report.naming import Names
from heatsmooth.report.results import acr, share_at
from heatsmooth.report.tables import Column, Table, without_empty_columns
from heatsmooth.report.values import count_text, percent, plain, radius_text, share_text

CONFORMAL = "average, in one pass · conformal, 1−ε−α"


def calibrated_table(collection: Collection, names: Names) -> Table | None:
    """The radii that a calibrated model gives from one pass."""
    if not collection.calibrated:
        return None
    rows = tuple(
        (
            names.model_of(item),
            plain(item.sigma),
            plain(item.epsilon),
            plain(item.alpha),
            count_text(len(item.claims)),
            percent(float((item.claims.radii > 0).mean())),
            radius_text(float(np.median(item.claims.radii))),
            radius_text(float(item.claims.radii.mean())),
            radius_text(float(item.claims.radii.max())),
            *(share_text(share_at(item.claims, radius)) for radius in (0.25, 0.5)),
            radius_text(acr(item.claims)),
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
