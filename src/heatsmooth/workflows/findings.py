"""What the run directories of a comparison say, over all its seeds."""

from pathlib import Path
from typing import Any

import numpy as np

from heatsmooth.results.attacks import AttackResults
from heatsmooth.results.certificates import Certificates
from heatsmooth.runs import read_json
from heatsmooth.statistics.radii import l_bound
from heatsmooth.workflows.calibrate import certified_run
from heatsmooth.workflows.gains import gains, ratios
from heatsmooth.workflows.recipes import Recipe, Smoothed


def findings(recipe: Recipe, places: list[Path]) -> dict[str, Any]:
    """What was certified and how, the figures of each method, and how they compare; ``places``: one for each seed."""
    certified = {name: [place / f"{name}-certified" for place in places] for name in recipe.compared}
    settings = certified_run(next(iter(certified.values()))[0], "compare")
    return {
        **{key: settings["certificate"].get(key) for key in ("sigma", "n", "n_wrong", "alpha")},
        "images": settings["data"]["images"],
        "methods": {name: _row(name, recipe, places) for name in recipe.compared},
        "gains": _gains(recipe, places),
        "average_certified_radius_ratios": ratios(
            certified, [name for name, method in recipe.compared.items() if isinstance(method, Smoothed)]
        ),
    }


def _row(name: str, recipe: Recipe, places: list[Path]) -> dict[str, Any]:
    """The figures of a method: each the mean over the seeds, and beside it the standard deviation if there are more."""
    per_seed = [_figures(place, name, recipe) for place in places]
    row: dict[str, Any] = {}
    for key in per_seed[0]:
        values = [value for figures in per_seed if (value := figures.get(key)) is not None]
        row[key] = float(np.mean(values)) if values else None
        if len(values) > 1:
            row[f"{key}_sd"] = float(np.std(values, ddof=1))
    return row


def _gains(recipe: Recipe, places: list[Path]) -> dict[str, dict[str, Any]]:
    """By smoothed method and kind of certificate, what smoothing brought, if the network before it is compared too."""
    kinds = {"certified": 1, **({f"top-{recipe.top_k}": recipe.top_k} if recipe.has_top_k else {})}
    found: dict[str, dict[str, Any]] = {}
    for name, method in recipe.compared.items():
        if isinstance(method, Smoothed) and method.start in recipe.compared:
            found[name] = {"from": method.start}
            for kind, k in kinds.items():
                before, after = ([place / f"{which}-{kind}" for place in places] for which in (method.start, name))
                found[name][kind] = gains(before, after, top_k=k)
    return found


def _figures(place: Path, name: str, recipe: Recipe) -> dict[str, float | None]:
    """What the run directories of one seed say of a method. Distances: medians over images right at the start."""
    certified = Certificates.read(place / f"{name}-certified")
    labels = certified.known_labels
    stochastic = recipe.methods[name].stochastic
    probabilities = certified.average_probabilities if stochastic else certified.clean_probabilities
    bound = l_bound(probabilities, sigma=recipe.sigma)
    timing = read_json(place / f"{name}-timed" / "timing.json")
    figures: dict[str, float | None] = {
        "one_pass_accuracy": float(certified.one_pass_correct.mean()),
        "average_accuracy": float((certified.average_classes == labels).mean()),
        "agreement": float((certified.clean_classes == certified.average_classes).mean()),
        **{f"certified_at_{r:g}": float(certified.certified_accuracy(r)) for r in (0.0, 0.25, 0.5, 0.75)},
        "average_certified_radius": certified.average_certified_radius,
        "median_radius": float(np.median(certified.radii)),
        "mean_radius": float(certified.radii.mean()),
        "largest_radius": float(certified.radii.max()),
        "l_bound_median": float(np.median(bound)),
        "l_bound_mean": float(bound.mean()),
        **{key: value for key, value in timing.items() if key.endswith("_seconds")},
    }
    for kind in ("pgd", "ddn"):
        attacked = AttackResults.read(place / f"{name}-{kind}")
        figures |= {f"{kind}_median": attacked.finite_median, f"{kind}_mean_of_attacked": attacked.mean}
    return figures
