"""HeatSmoothing beside methods of others, and beside the paper's one-epoch form, at no less clean accuracy.

Each of them is compared with the row of HeatSmoothing that is nearest to it among those that are at least as accurate
on clean images after as long a training: in what the method answers, and by the average that is certified. A training
is as long if it has as many epochs, unless the recipe names another.
"""

from pathlib import Path

from heatsmooth.comparing.claims import Runs
from heatsmooth.comparing.recipe import Recipe, Smoothed, Stated
from heatsmooth.results.claims import Claim, ClaimVerdict
from heatsmooth.results.comparison import Measure

MEASURES = {
    Measure.ANSWER_ACCURACY: "clean accuracy",
    Measure.CERTIFIED_AT_025: "certified accuracy at 0.25",
    Measure.CERTIFIED_AT_05: "certified accuracy at 0.5",
    Measure.ACR: "ACR",
}


def trades(recipe: Recipe, places: list[Path]) -> tuple[Claim, ...]:
    """For each rival, the claims that HeatSmoothing has a larger value of each of ``MEASURES``; not where both are 0.

    A rival that no row is as accurate as has one claim without values, which says so.

    - ``recipe``: the comparison.
    - ``places``: the directory of the runs of each seed. A claim uses the seeds that both methods have.
    """
    smoothed = {name: method for name, method in recipe.sampled.items() if isinstance(method, Smoothed)}
    own = {name: method for name, method in smoothed.items() if method.is_own}
    runs = Runs(recipe)
    found: list[Claim] = []
    for rival, method in smoothed.items():
        if method.is_own or method.preset == "paper-cifar10":  # this one has another budget
            continue
        same_start = {name: other for name, other in own.items() if other.start == method.start}
        equals = [name for name, other in same_start.items() if other.takes_as_long_as == rival] or [
            name for name, other in same_start.items() if other.epochs == method.epochs
        ]
        nearest = _nearest(runs, rival, equals, places[0])
        if nearest is None:
            found += [_unmatched(rival)] if equals else []
            continue
        seeds = recipe.seeds_of_both(nearest, rival, places)
        found += [
            runs.claim(Stated(f"{what}: {nearest} > {rival}", "", nearest, rival, measure), seeds)
            for measure, what in MEASURES.items()
        ]
    return tuple(claim for claim in found if claim.values != (0, 0))


def _nearest(runs: Runs, rival: str, own: list[str], place: Path) -> str | None:
    """Of those that are at least as accurate on clean images as the rival, the least accurate; by the first seed."""
    answers, average = Measure.ANSWER_ACCURACY, Measure.AVERAGE_ACCURACY

    def accuracy(name: str, measure: Measure) -> float:
        return float(runs.values(name, measure, [place])[1].mean())

    wanted = {measure: accuracy(rival, measure) for measure in (answers, average)}
    enough = [name for name in own if all(accuracy(name, measure) >= least for measure, least in wanted.items())]
    return min(enough, key=lambda name: accuracy(name, answers), default=None)


def _unmatched(rival: str) -> Claim:
    return Claim(
        claim=f"no row of HeatSmoothing is as accurate on clean images as {rival}",
        where="",
        larger="",
        smaller=rival,
        measure=Measure.ANSWER_ACCURACY,
        paper=None,
        values=None,
        difference=None,
        interval=None,
        by_seed=(),
        verdict=ClaimVerdict.OPEN,
    )
