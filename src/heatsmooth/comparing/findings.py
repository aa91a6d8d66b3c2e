"""What the run directories of a comparison show, over all its seeds."""

from pathlib import Path

import numpy as np

from heatsmooth.certification.settings import Settings
from heatsmooth.comparing.gains import gains, ratios
from heatsmooth.comparing.recipes import Recipe, Smoothed
from heatsmooth.results.attacks import AttackResults
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.comparison import TIMING_FILE, Comparison, Gain, Measure, MethodFigures, Timing
from heatsmooth.results.run_info import RunInfo
from heatsmooth.statistics.radii import l_bound


def findings(recipe: Recipe, places: list[Path]) -> Comparison:
    """The settings of the certificates, the figures of each method, and how the methods compare.

    - ``recipe``: the comparison.
    - ``places``: the directory of the runs of each seed.
    """
    certified = {name: [place / f"{name}-certified" for place in places] for name in recipe.compared}
    first = next(iter(certified.values()))[0]
    info, _ = RunInfo.read_directory(first)
    settings = Settings.from_json(info.settings.get("certificate"), first)
    smoothed = [name for name, method in recipe.compared.items() if isinstance(method, Smoothed)]
    return Comparison(
        sigma=settings.sigma,
        n=settings.n,
        n_wrong=settings.n_wrong,
        alpha=settings.alpha,
        images=info.chosen.data.images,
        attacked_top_k=recipe.attacked_top_k,
        methods={name: MethodFigures.of([_figures(place, name, recipe) for place in places]) for name in certified},
        gains=_gains(recipe, places),
        average_certified_radius_ratios=ratios(certified, smoothed),
    )


def _gains(recipe: Recipe, places: list[Path]) -> dict[str, Gain]:
    """What smoothing changed, by smoothed method; only where the network before smoothing is compared too."""
    top_k = {"certified": 1, **({f"top-{recipe.top_k}": recipe.top_k} if recipe.has_top_k else {})}

    def gain(name: str, start: str) -> Gain:
        kinds = {}
        for kind, k in top_k.items():
            before, after = ([place / f"{method}-{kind}" for place in places] for method in (start, name))
            kinds[kind] = gains(before, after, top_k=k)
        return Gain(start=start, kinds=kinds)

    return {
        name: gain(name, method.start)
        for name, method in recipe.compared.items()
        if isinstance(method, Smoothed) and method.start in recipe.compared
    }


def _figures(place: Path, name: str, recipe: Recipe) -> dict[Measure, float | None]:
    """The figures of a method for one seed. Distances are medians over images that were correct at the start."""
    certified = Certificates.read(place / f"{name}-certified")
    labels = certified.known_labels
    stochastic = recipe.methods[name].stochastic
    probabilities = certified.average_probabilities if stochastic else certified.clean_probabilities
    bound = l_bound(probabilities, sigma=recipe.sigma)
    timing = Timing.read(place / f"{name}-timed" / TIMING_FILE)
    pgd, ddn = (AttackResults.read(place / f"{name}-{kind}") for kind in ("pgd", "ddn"))
    return {
        Measure.ONE_PASS_ACCURACY: float(certified.one_pass_correct.mean()),
        Measure.AVERAGE_ACCURACY: float((certified.average_classes == labels).mean()),
        Measure.AGREEMENT: float((certified.clean_classes == certified.average_classes).mean()),
        Measure.CERTIFIED_AT_0: float(certified.certified_accuracy(0.0)),
        Measure.CERTIFIED_AT_025: float(certified.certified_accuracy(0.25)),
        Measure.CERTIFIED_AT_05: float(certified.certified_accuracy(0.5)),
        Measure.CERTIFIED_AT_075: float(certified.certified_accuracy(0.75)),
        Measure.ACR: certified.average_certified_radius,
        Measure.MEDIAN_RADIUS: float(np.median(certified.radii)),
        Measure.MEAN_RADIUS: float(certified.radii.mean()),
        Measure.LARGEST_RADIUS: float(certified.radii.max()),
        Measure.L_BOUND_MEDIAN: float(np.median(bound)),
        Measure.L_BOUND_MEAN: float(bound.mean()),
        Measure.ONE_PASS_SECONDS: timing.one_pass_seconds,
        Measure.STOCHASTIC_SECONDS: timing.stochastic_seconds,
        Measure.PLAIN_SECONDS: timing.plain_seconds,
        Measure.PLAIN_ONE_PASS_SECONDS: timing.plain_one_pass_seconds,
        Measure.PGD_MEDIAN: pgd.finite_median,
        Measure.PGD_MEAN: pgd.mean,
        Measure.DDN_MEDIAN: ddn.finite_median,
        Measure.DDN_MEAN: ddn.mean,
    }
