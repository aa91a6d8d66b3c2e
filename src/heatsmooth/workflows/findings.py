"""What the run directories of a comparison say, over all its seeds."""

from pathlib import Path
from typing import Any

import numpy as np

from heatsmooth.records import read_attacks, read_certificates
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
    certificates = read_certificates(place / f"{name}-certified")
    label, target = (np.array([record[key] for record in certificates]) for key in ("label", "target"))
    radius = np.array([record["radius"] for record in certificates])
    clean = np.array([record["clean_class"] for record in certificates])
    average = np.array([int(np.argmax(record["counts"])) for record in certificates])
    right = (label == target) & ~np.array([record["abstain"] for record in certificates])
    method = recipe.methods[name]
    if method.stochastic:
        probabilities = np.array([np.array(record["sums"]) / record["n"] for record in certificates])
    else:
        probabilities = np.array([record["clean_probabilities"] for record in certificates])
    bound = l_bound(probabilities, sigma=recipe.sigma)
    timing = read_json(place / f"{name}-timed" / "timing.json")
    figures: dict[str, float | None] = {
        "one_pass_accuracy": float((clean == label).mean()),
        "average_accuracy": float((average == label).mean()),
        "agreement": float((clean == average).mean()),
        **{f"certified_at_{r:g}": float((right & (radius >= r)).mean()) for r in (0.0, 0.25, 0.5, 0.75)},
        "average_certified_radius": float((right * radius).mean()),
        "median_radius": float(np.median(radius)),
        "mean_radius": float(radius.mean()),
        "largest_radius": float(radius.max()),
        "l_bound_median": float(np.median(bound)),
        "l_bound_mean": float(bound.mean()),
        **{key: value for key, value in timing.items() if key.endswith("_seconds")},
    }
    for kind in ("pgd", "ddn"):
        distances = np.array(
            [np.inf if not r["success"] else r["distance"] for r in read_attacks(place / f"{name}-{kind}")]
        )
        fooled = distances[distances > 0]
        figures[f"{kind}_median"] = _finite(np.median(fooled)) if len(fooled) else None
        figures[f"{kind}_mean_of_attacked"] = _finite(fooled[np.isfinite(fooled)].mean()) if len(fooled) else None
    return figures


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
