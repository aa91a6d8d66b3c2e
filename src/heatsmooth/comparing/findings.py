"""What the run directories of a comparison show, over all its seeds."""

from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import numpy as np

from heatsmooth.certification.settings import Settings
from heatsmooth.comparing.claims import claims
from heatsmooth.comparing.gains import gains, ratios
from heatsmooth.comparing.recipe import Distilled, Recipe, Smoothed
from heatsmooth.comparing.trades import trades
from heatsmooth.results.attacks import AttackResults
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.comparison import TIMING_FILE, Comparison, Gain, Measure, MethodFigures, Ratio, Timing
from heatsmooth.results.deterministic import NetworkCertificates
from heatsmooth.results.rates import ChosenSetting
from heatsmooth.results.run_info import RunInfo
from heatsmooth.results.timesteps import TIMESTEPS_FILE, TimestepsResult
from heatsmooth.statistics.radii import l_bound


def findings(recipe: Recipe, places: list[Path]) -> Comparison:
    """The settings of the certificates, the figures of each method, and how the methods compare.

    - ``recipe``: the comparison.
    - ``places``: the directory of the runs of each seed.
    """
    proven = {
        name: recipe.seeds_of(name, places) for name, method in recipe.compared.items() if isinstance(method, Distilled)
    }
    first = next(iter(proven), None)
    deterministic = Comparison(
        attacked_top_k=recipe.attacked_top_k,
        methods={},
        proven={
            name: MethodFigures.of([_proven_figures(place, name) for place in seeds]) for name, seeds in proven.items()
        },
        claims=claims(recipe, places),
        size=recipe.size,
        trades=trades(recipe, places),
        timesteps=_timesteps(recipe, places[0]),
        rates={name: ChosenSetting.read(places[0].parent / "rates" / f"{name}.json") for name in recipe.trials_needed},
        proven_images=None if first is None else len(NetworkCertificates.read(places[0] / f"{first}-certified")),
    )
    return replace(deterministic, **_sampled(recipe, places)) if recipe.sampled else deterministic


def _timesteps(recipe: Recipe, place: Path) -> dict[str, TimestepsResult]:
    """By method, what was measured after each timestep."""
    files = {name: place / f"{name}-timesteps" / TIMESTEPS_FILE for name in recipe.sampled}
    return {name: TimestepsResult.read(file) for name, file in files.items() if recipe.heated and file.exists()}


def _sampled(recipe: Recipe, places: list[Path]) -> "_Sampled":
    """What is known of the methods whose average is certified."""
    certified = {
        name: [place / f"{name}-certified" for place in recipe.seeds_of(name, places)] for name in recipe.sampled
    }
    first = next(iter(certified.values()))[0]
    info, _ = RunInfo.read_directory(first)
    settings = Settings.from_json(info.settings.get("certificate"), first)
    smoothed = [name for name, method in recipe.compared.items() if isinstance(method, Smoothed)]
    return _Sampled(
        sigma=settings.sigma,
        n=settings.n,
        n_wrong=settings.n_wrong,
        alpha=settings.alpha,
        images=info.chosen.data.images,
        methods={
            name: MethodFigures.of([_figures(place, name, recipe) for place in recipe.seeds_of(name, places)])
            for name in certified
        },
        gains=_gains(recipe, places),
        average_certified_radius_ratios=ratios(certified, smoothed),
    )


class _Sampled(TypedDict):
    """Fields of ``Comparison`` about the methods whose average is certified."""

    sigma: float
    n: int
    n_wrong: int | None
    alpha: float
    images: int | None
    methods: dict[str, MethodFigures]
    gains: dict[str, Gain]
    average_certified_radius_ratios: dict[str, dict[str, Ratio]]


def _gains(recipe: Recipe, places: list[Path]) -> dict[str, Gain]:
    """What smoothing changed, by smoothed method; only where the network before smoothing is compared too."""
    top_k = {"certified": 1, **({f"top-{recipe.top_k}": recipe.top_k} if recipe.has_top_k else {})}

    def gain(name: str, start: str) -> Gain:
        kinds = {}
        for kind, k in top_k.items():
            seeds = recipe.seeds_of_both(name, start, places)
            before, after = ([place / f"{method}-{kind}" for place in seeds] for method in (start, name))
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


def _proven_figures(place: Path, name: str) -> dict[Measure, float | None]:
    """The figures of a network with deterministic certificates for one seed. Distances as in ``_figures``."""
    certified = NetworkCertificates.read(place / f"{name}-certified")
    pgd, ddn = (AttackResults.read(place / f"{name}-{kind}") for kind in ("pgd", "ddn"))
    at = {
        Measure.CERTIFIED_AT_0: 0.0,
        Measure.CERTIFIED_AT_36: 36 / 255,
        Measure.CERTIFIED_AT_025: 0.25,
        Measure.CERTIFIED_AT_72: 72 / 255,
        Measure.CERTIFIED_AT_108: 108 / 255,
        Measure.CERTIFIED_AT_05: 0.5,
        Measure.CERTIFIED_AT_075: 0.75,
    }
    return {
        Measure.ONE_PASS_ACCURACY: float(certified.one_pass_correct.mean()),
        **{measure: float(certified.certified_accuracy(radius)) for measure, radius in at.items()},
        Measure.ACR: certified.average_certified_radius,
        Measure.MEDIAN_RADIUS: float(np.median(certified.radii)),
        Measure.MEAN_RADIUS: float(certified.radii.mean()),
        Measure.LARGEST_RADIUS: float(certified.radii.max()),
        Measure.CERTIFICATE_SECONDS: float(certified.seconds.mean()),
        Measure.PGD_MEDIAN: pgd.finite_median,
        Measure.PGD_MEAN: pgd.mean,
        Measure.DDN_MEDIAN: ddn.finite_median,
        Measure.DDN_MEAN: ddn.mean,
    }
