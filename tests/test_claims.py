"""The paper's claims: closed-form differences, verdicts, and what hand-made records say about each kind of claim."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heatsmooth.commands.compare import Compare, RecipeChanges
from heatsmooth.commands.inputs import OddImages
from heatsmooth.comparing.claims import Runs, claims, difference
from heatsmooth.comparing.gains import shares_differ
from heatsmooth.comparing.paper import CIFAR10_PAPER, CLAIMS
from heatsmooth.comparing.recipe import Method, Recipe, Smoothed, Stated, Trained, Trial
from heatsmooth.comparing.recipes import RECIPES
from heatsmooth.comparing.trades import trades
from heatsmooth.progress import silent
from heatsmooth.reporting import build_report
from heatsmooth.reporting.claims import (
    claims_of,
    claims_table,
    rates_table,
    timesteps_table,
    trades_of,
    trades_table,
)
from heatsmooth.results.audit import Distances
from heatsmooth.results.certificates import Certificate
from heatsmooth.results.claims import Claim, ClaimVerdict
from heatsmooth.results.comparison import TIMING_FILE, Comparison, Measure
from heatsmooth.results.rates import ChosenSetting
from heatsmooth.results.schema import to_json
from heatsmooth.results.timesteps import TIMESTEPS_FILE, Approach, TimestepsResult
from heatsmooth.runs import Records, Run, write_json
from heatsmooth.training.field import Consistency
from heatsmooth.training.settings import Baseline, Plan, preset
from tests.conftest import certificate_of

HEAT, NOISY = "paper-cifar10", "gaussian"


def test_a_constant_difference_is_its_own_interval() -> None:
    values = np.linspace(0, 1, 40)[None]
    for kind in ("mean", "median"):
        found = difference(kind, values + 0.25, values)
        assert found.interval == pytest.approx((0.25, 0.25))
        assert found.by_seed == pytest.approx((0.25,))


def test_shares_have_the_interval_of_bonett_and_price_over_the_mean_of_seeds() -> None:
    larger = np.array([[1.0, 1, 1, 0], [1, 1, 0, 0]])
    smaller = np.zeros((2, 4))
    found = difference("share", larger, smaller)
    assert found.values == (0.625, 0)
    assert found.by_seed == (0.75, 0.5)
    assert found.interval == shares_differ(np.array([1, 1, 0.5, 0]))


def test_images_that_do_not_count_change_nothing_and_infinite_medians_decide_nothing() -> None:
    values = np.array([[1.0, 2, 3, np.nan, np.nan]])
    assert difference("median", values, np.array([[0.0, 0, 0, 9, np.nan]])).values == (2, 0)
    assert difference("mean", values, np.full((1, 5), np.nan)).interval is None
    far = difference("median", np.full((1, 5), np.inf), values)
    assert (far.interval, far.by_seed) == (None, (None,))
    assert ClaimVerdict.of(far.interval, far.by_seed) is ClaimVerdict.OPEN


def attacked(directory: Path, distances: list[float | None]) -> None:
    directory.mkdir(parents=True)
    with Records(directory / "attacks.jsonl") as records:
        for index, distance in enumerate(distances):
            success = distance is not None
            records.append({"index": index, "label": 1, "success": success, "distance": distance})


def certified(directory: Path, rows: list[Certificate]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with Records(directory / "certificates.jsonl") as records:
        for row in rows:
            records.append(to_json(row))


def timed(directory: Path, one_pass: float, plain: float) -> None:
    directory.mkdir(parents=True)
    seconds = {"one_pass_seconds": one_pass, "stochastic_seconds": plain, "plain_seconds": plain}
    facts: dict[str, Any] = {
        "samples": 100,
        "images": 20,
        "threads": 1,
        "agreement": 1.0,
        "commit": None,
        "hardware": {},
    }
    write_json(directory / TIMING_FILE, seconds | {"plain_one_pass_seconds": one_pass} | facts)


def distances(mean: float) -> Distances:
    return Distances(mean=mean, interval=(mean - 0.01, mean + 0.01), median=mean, largest=1.0)


def approach(variance: float, start: float, end: float) -> Approach:
    closer = start - end
    by_step = {"0": distances(start), "1": distances(end)}
    return Approach(variance=variance, distances=by_step, closer=closer, closer_interval=(closer - 0.1, closer + 0.1))


TIMESTEPS = TimestepsResult(
    sigma=0.1, images=100, n=1000, seed=0, average=approach(0.01, 0.5, 0.2), wider=approach(0.02, 0.5, 0.7)
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two methods on 12 images: the first has three times the radius, and larger probabilities; both are correct."""
    seed = tmp_path_factory.mktemp("runs") / "seed-0"
    probabilities = {HEAT: (0.1, 0.8, 0.1), NOISY: (0.2, 0.6, 0.2)}
    for name, factor in ((HEAT, 3.0), (NOISY, 1.0)):
        how: dict[str, Any] = {"label": 1, "sigma": 0.1, "radius": 0.05 * factor}
        how |= {"clean_probabilities": probabilities[name]}
        rows = [certificate_of(index=index, **how) for index in range(12)]
        certified(seed / f"{name}-certified", [replace(row, sums=_sums(row, probabilities[name])) for row in rows])
        attacked(seed / f"{name}-pgd", [0.0, None, *(0.1 * factor for _ in range(10))])
        attacked(seed / f"{name}-ddn", [0.0, None, *(0.2 for _ in range(10))])
        timed(seed / f"{name}-timed", 0.001, 0.01)
    TIMESTEPS.write(seed / f"{HEAT}-timesteps" / TIMESTEPS_FILE)
    return [seed]


def _sums(row: Certificate, probabilities: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(row.n * probability for probability in probabilities)


def recipe_of(*stated: Stated) -> Recipe:
    methods: dict[str, Method] = {
        HEAT: Smoothed("undefended", "paper-cifar10"),
        NOISY: Trained(Baseline("gaussian", 0.1), Plan(), stochastic=True),
    }
    return Recipe("", "cifar10", "tiny", 0.1, methods, claims=stated, heated=100)


@pytest.mark.parametrize(
    ("measure", "values", "verdict"),
    [
        (Measure.ACR, (0.15, 0.05), "holds"),
        (Measure.CERTIFIED_AT_0, (1, 1), "not decided"),
        (Measure.CERTIFIED_AT_01, (1, 0), "holds"),
        (Measure.CERTIFIED_AT_02, (0, 0), "not decided"),
        (Measure.L_BOUND_MEDIAN, (0.7 * 0.1 * np.sqrt(np.pi / 2), 0.4 * 0.1 * np.sqrt(np.pi / 2)), "holds"),
        (Measure.PGD_MEDIAN, (0.3, 0.1), "holds"),
        (Measure.PGD_MEAN, (7 / 11, 5 / 11), "holds"),  # one of 11 attacks failed, which counts as 4
        (Measure.DDN_MEDIAN, (0.2, 0.2), "not decided"),
        (Measure.ANSWER_ACCURACY, (1, 1), "not decided"),
        (Measure.ANSWER_SECONDS, (0.001, 0.01), "does not hold"),
    ],
)
def test_records_decide_claims(measure: Measure, values: tuple[float, float], verdict: str, places: list[Path]) -> None:
    (found,) = claims(recipe_of(Stated("", "", HEAT, NOISY, measure)), places)
    assert found.values == pytest.approx(values)
    assert found.verdict == verdict


def test_the_approach_to_the_average_is_a_claim_and_a_table(places: list[Path]) -> None:
    stated = [
        Stated("", "", NOISY, HEAT, measure)
        for measure in (Measure.DISTANCE_TO_AVERAGE, Measure.DISTANCE_TO_WIDER_AVERAGE)
    ]
    near, wide = claims(recipe_of(*stated), places)
    assert (near.verdict, wide.verdict) == (ClaimVerdict.HOLDS, ClaimVerdict.FAILS)
    assert near.values == (0.5, 0.2)
    table = timesteps_table([("", Comparison(methods={}, timesteps={HEAT: TIMESTEPS}))])
    assert table is not None
    assert table.cells[1] == [HEAT, "probabilities", "1", "0.200 ± 0.010", "0.700 ± 0.010"]


def test_the_approach_to_the_average_holds_only_if_every_seed_shows_it(tmp_path: Path) -> None:
    for seed, end in enumerate((0.2, 0.9)):
        result = replace(TIMESTEPS, average=approach(0.01, 0.5, end), seed=seed)
        result.write(tmp_path / f"{seed}/{HEAT}-timesteps" / TIMESTEPS_FILE)
    (found,) = claims(
        recipe_of(Stated("", "", NOISY, HEAT, Measure.DISTANCE_TO_AVERAGE)), [tmp_path / "0", tmp_path / "1"]
    )
    assert found.verdict is ClaimVerdict.OPEN
    assert found.values == pytest.approx((0.5, 0.55))
    assert found.interval == pytest.approx((-0.5, 0.4))
    assert found.by_seed == pytest.approx((0.3, -0.4))


def test_wrong_images_have_no_l_bound_and_failed_attacks_favour_nobody(tmp_path: Path) -> None:
    """One method is attacked at 0.7 everywhere; the other fails on three of ten images, and has 0.6 on the rest."""
    ddn: dict[str, list[float | None]] = {HEAT: [0.7] * 10, NOISY: [None] * 3 + [0.6] * 7}
    for name, found in ddn.items():
        attacked(tmp_path / f"{name}-ddn", found)
        right: dict[str, Any] = {"sigma": 0.1, "radius": 0.1, "clean_probabilities": (0.1, 0.8, 0.1)}
        rows = [certificate_of(index=i, label=1 if i < 5 else 0, **right) for i in range(10)]
        certified(tmp_path / f"{name}-certified", [replace(row, sums=_sums(row, (0.1, 0.8, 0.1))) for row in rows])
    stated = [Stated("", "", HEAT, NOISY, measure) for measure in (Measure.DDN_MEAN, Measure.L_BOUND_MEAN)]
    mean, bound = claims(recipe_of(*stated), [tmp_path])
    assert mean.values == pytest.approx((0.7, 0.6))
    assert mean.verdict is ClaimVerdict.OPEN, "with failed attacks at 4, the other one would be farther"
    assert bound.values == pytest.approx([0.7 * 0.1 * np.sqrt(np.pi / 2)] * 2)
    kind, values = Runs(recipe_of()).values(HEAT, Measure.L_BOUND_MEAN, [tmp_path])
    assert kind == "mean"
    assert np.isnan(values[0, 5:]).all()
    assert np.isfinite(values[0, :5]).all()


def test_claims_about_methods_that_are_not_compared_are_left_out(places: list[Path]) -> None:
    assert claims(recipe_of(Stated("", "", HEAT, "smoothadv", Measure.ACR)), places) == ()


def test_a_rival_is_compared_with_the_nearest_row_that_is_as_accurate_on_clean_images(tmp_path: Path) -> None:
    """Of 10 images, the rows answer 9, 7 and 5 as labelled, the rival 6: so it is compared with the second."""
    correct = {"bootcamp": 9, "strong": 7, "stronger": 5, "rival": 6}
    for name, count in correct.items():
        radius = 0.3 if name == "strong" else 0.1
        how: dict[str, Any] = {"label": 1, "sigma": 0.25, "radius": radius}
        right = [certificate_of(index=index, **how) for index in range(count)]
        wrong = [certificate_of(index=index, **(how | {"label": 0})) for index in range(count, 10)]
        certified(tmp_path / f"{name}-certified", right + wrong)
    methods: dict[str, Method] = {name: Smoothed("undefended") for name in ("bootcamp", "strong", "stronger")}
    methods |= {"rival": Smoothed("undefended", None, rival=Consistency())}
    recipe = Recipe("", "cifar10", "tiny", 0.25, methods)
    found = trades(recipe, [tmp_path])
    assert {(claim.larger, claim.smaller) for claim in found} == {("strong", "rival")}
    by_measure = {claim.measure: claim.values for claim in found}
    assert by_measure == {
        Measure.ANSWER_ACCURACY: pytest.approx((0.7, 0.6)),
        Measure.CERTIFIED_AT_025: pytest.approx((0.7, 0)),
        Measure.ACR: pytest.approx((0.21, 0.06)),
    }
    slower = recipe.methods | {"strong": Smoothed("undefended", plan={"epochs": 10})}
    assert {claim.larger for claim in trades(replace(recipe, methods=slower), [tmp_path])} == {"bootcamp"}
    as_long = methods | {"bootcamp": Smoothed("undefended", plan={"epochs": 3}, takes_as_long_as="rival")}
    assert {claim.larger for claim in trades(replace(recipe, methods=as_long), [tmp_path])} == {"bootcamp"}
    without = {name: methods[name] for name in ("stronger", "rival")}
    (nothing,) = trades(replace(recipe, methods=without), [tmp_path])
    assert (nothing.claim, nothing.values) == ("no row of HeatSmoothing is as accurate on clean images as rival", None)
    shown = Comparison(methods={}, trades=found)
    first = "clean accuracy: strong > rival"
    assert trades_of(shown)[0]["at no less clean accuracy"] == first
    table = trades_table([("", shown)])
    assert table is not None
    assert table.cells[0][:2] == [first, "0.7, 0.6"]
    other_budget = methods | {"rival": Smoothed("undefended", "paper-cifar10")}
    assert trades(replace(recipe, methods=other_budget), [tmp_path]) == ()


CLAIM = Claim(
    claim="ACR: one > other",
    where="figure 1",
    larger="one",
    smaller="other",
    measure=Measure.ACR,
    paper=(0.2, 0.1),
    values=(0.25, 0.125),
    difference=0.125,
    interval=(0.1, 0.15),
    by_seed=(0.125,),
    verdict=ClaimVerdict.HOLDS,
)
RATE = ChosenSetting(
    rate=0.2,
    average_certified_radii={"0.4": None, "0.2": 0.1},
    accuracies={"0.4": None, "0.2": 0.7},
    images=200,
    n=1000,
    training_images=10_000,
    seed=0,
)


def test_claims_timesteps_and_rates_are_read_as_written_and_shown(tmp_path: Path) -> None:
    written = Comparison(methods={}, claims=(CLAIM,), timesteps={HEAT: TIMESTEPS}, rates={NOISY: RATE})
    written.write(tmp_path / "comparison.json")
    assert Comparison.read(tmp_path / "comparison.json") == written
    assert not {"claims", "timesteps", "rates"} & Comparison(methods={}).to_json().keys()
    assert claims_of(written)[0] == {
        "claim": "ACR: one > other (figure 1)",
        "paper": "0.2, 0.1",
        "here": "0.25, 0.125",
        "difference": "+0.125 (+0.1 to +0.15)",
        "verdict": "holds",
    }
    rates, table = rates_table([("", written)]), claims_table([("", written)])
    assert rates is not None
    assert table is not None
    assert rates.cells == [[NOISY, "lr", "0.4", "–", "–", ""], [NOISY, "lr", "0.2", "0.7", "0.1", "yes"]]
    build_report([tmp_path / "comparison.json"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "The paper&#39;s claims" in page or "The paper's claims" in page
    assert "Distance to the Gaussian average of the teacher" in page


def test_a_claim_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    broken = to_json(CLAIM) | {"interval": [0.2, 0.1]}
    (tmp_path / "comparison.json").write_text(json.dumps({"command": "compare", "methods": {}, "claims": [broken]}))
    with pytest.raises(ValueError, match="claims"):
        Comparison.read(tmp_path / "comparison.json")


def test_the_recipe_has_the_table_of_the_paper_and_its_algorithm() -> None:
    by_claim = {stated.claim: stated for stated in CLAIMS}
    assert len(by_claim) == len(CLAIMS)
    exception = by_claim["mean PGD distance: SmoothAdv > HeatSmoothing"]
    assert (exception.larger, exception.smaller, exception.paper) == ("smoothadv", HEAT, (1.3241, 0.9023))
    assert all(stated.paper is None or stated.paper[0] > stated.paper[1] for stated in CLAIMS)
    recipe = RECIPES["cifar10-paper"]
    assert recipe is CIFAR10_PAPER
    assert {stated.larger for stated in CLAIMS} | {stated.smaller for stated in CLAIMS} <= recipe.methods.keys()
    written = recipe.methods[HEAT]
    assert isinstance(written, Smoothed)
    heat, _ = preset("paper-cifar10", recipe.sigma, **written.heat)
    assert (heat.timesteps, heat.projections, heat.distance, heat.penalty, heat.weight) == (
        *(5, 10),
        *("squared-logits", "logits", 1.0),
    )
    assert recipe.certified >= 500
    assert recipe.n == 10_000


def test_later_seeds_have_the_headline_methods_alone(tmp_path: Path) -> None:
    recipe, places = RECIPES["cifar10-paper"], [tmp_path / "0", tmp_path / "1"]
    assert tuple(recipe.of_later_seeds().compared) == recipe.every_seed
    assert recipe.seeds_of(HEAT, places) == places
    assert recipe.seeds_of("bootcamp", places) == places[:1]
    alone = recipe.restricted_to(("bootcamp",))
    assert alone.seeds_of("bootcamp", places) == places
    assert set(alone.trials_needed) == set()
    assert set(recipe.restricted_to(("paper-cifar10-2",)).trials_needed) == {HEAT}


def test_the_learning_rate_with_the_largest_acr_is_chosen_once_for_all_seeds(fashion: str, tmp_path: Path) -> None:
    """On records of a trial whose second rate trained best and whose third did not train at all."""
    compare = Compare(recipe="cifar10-paper", out=tmp_path, changes=RecipeChanges(data=fashion, methods=(NOISY,)))
    for rate, radius in (("0.4", 0.1), ("0.2", 0.2)):
        tried = tmp_path / f"rates/{NOISY}-lr-{rate}-certified"
        with Run(tried, "certify", {}) as run:
            run.update(status="done")
        certified(tried, [certificate_of(index=1, radius=radius)])
    stages = {stage.name: stage for stage in compare.experiment(0).stages()}
    trained = [name for name in stages if name.startswith(f"{NOISY}-lr") and not name.endswith("certified")]
    assert trained == [f"{NOISY}-lr-{rate}" for rate in ("0.4", "0.2", "0.1")]
    stages[f"rates/{NOISY}"].fill(silent)
    chosen = ChosenSetting.read(tmp_path / f"rates/{NOISY}.json")
    assert (chosen.rate, chosen.average_certified_radii) == (0.2, {"0.4": 0.1, "0.2": 0.2, "0.1": None})
    assert next(compare.experiment(1).stages()).name == NOISY


def test_a_network_that_has_collapsed_is_not_chosen_for_its_radii() -> None:
    radii = {0.3: 0.3, 0.1: 0.2, 0.03: 0.1}
    assert Trial.best(radii, {0.3: 0.7, 0.1: 0.75, 0.03: 0.8}) == 0.3
    assert Trial.best(radii, {0.3: 0.4, 0.1: 0.71, 0.03: 0.8}) == 0.1
    assert Trial.best({0.3: 0.3}, {0.3: 0.1}) == 0.3


def test_rates_are_chosen_on_odd_images_and_figures_are_of_even_ones(fashion: str, tmp_path: Path) -> None:
    compare = Compare(recipe="cifar10-paper", out=tmp_path, rehearse=True, changes=RecipeChanges(data=fashion))
    odd = OddImages(data=fashion, stride=24, count=4).load(None)
    assert odd.indices.tolist() == [1, 25, 49, 73]
    shown = compare.experiment(0)._spread(7).load(None)
    assert not any(index % 2 for index in shown.indices.tolist())
