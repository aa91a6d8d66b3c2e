"""What smoothing brought a network, and what it cost, on the same images before and after."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatsmooth.errors import require
from heatsmooth.records import read_certificates

RESAMPLES = 2000
LEVEL = 0.95

Values = NDArray[np.float64]


def gains(before: list[Path], after: list[Path], *, top_k: int = 1, seed: int = 0) -> dict[str, dict[str, Any]]:
    """By measure, its value before and after, the difference, and an interval of the difference and of the factor.

    ``before`` and ``after``: directories of certificates over the same images, one for each seed of the comparison;
    values are means over the seeds. Radii count as 0 where the class is wrong or abstained from. ``top_k``: the
    certificates are of the label among the k most probable classes, and a pass is right if it has it there. The
    intervals speak of other images of the same kind, for these networks: the middle ``LEVEL`` of what the images give
    when drawn anew with replacement, the same for both (paired percentile bootstrap; too narrow for a few dozen images
    and for shares next to 0 or 1). A factor is None where its divisor is, or may well be, 0.
    """
    runs = [[read_certificates(directory) for directory in directories] for directories in (before, after)]
    shown = [[record["index"] for record in run] for run in (*runs[0], *runs[1])]
    same = all(indices == shown[0] for indices in shown)
    require(same, f"{after[0]}: expected certificates of the images of {before[0]}, got others; certify the same ones")
    measured = [_measures(records, top_k) for records in runs]
    images = len(shown[0])
    chosen = np.random.default_rng(seed).integers(images, size=(RESAMPLES, images))
    found: dict[str, dict[str, Any]] = {}
    for name, (first, is_median) in measured[0].items():
        summary = np.median if is_median else np.mean
        then, now = (
            [summary(values[:, rows], axis=-1).mean(0) for rows in (np.arange(images), chosen)]
            for values in (first, measured[1][name][0])
        )
        found[name] = {
            "before": float(then[0]),
            "after": float(now[0]),
            "difference": float(now[0] - then[0]),
            "difference_interval": _middle(now[1] - then[1]),
            "factor": None,
            "factor_interval": None,
        }
        if np.quantile(then[1], (1 - LEVEL) / 2) > 0:
            factors = np.divide(now[1], then[1], out=np.full(RESAMPLES, np.inf), where=then[1] > 0)
            found[name] |= {"factor": float(now[0] / then[0]), "factor_interval": _middle(factors)}
    return found


def _measures(runs: list[list[dict[str, Any]]], top_k: int) -> dict[str, tuple[Values, bool]]:
    """By name, values of (seeds, images), and whether their median is meant, not their mean."""
    right = np.array([[r["label"] == r["target"] and not r["abstain"] for r in run] for run in runs])
    radius = np.array([[r["radius"] for r in run] for run in runs])
    one_pass = np.array([[r["label"] in np.argsort(r["clean_probabilities"])[-top_k:] for r in run] for run in runs])
    return {
        "one_pass_accuracy": (one_pass.astype(np.float64), False),
        "certified_at_0": (right.astype(np.float64), False),
        "average_certified_radius": (right * radius, False),
        "median_certified_radius": (right * radius, True),
    }


def _middle(values: Values) -> list[float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
    return [float(low), float(high)]
