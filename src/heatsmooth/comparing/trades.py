"""HeatSmoothing beside methods of others, and beside the paper's one-epoch form, at the same clean accuracy.

Each of them is compared with the row of HeatSmoothing that is nearest to it among those whose answers on clean images
are at least as accurate, after as many epochs. So a larger certified accuracy of that row is not paid for with clean
accuracy.
"""

from pathlib import Path

from heatsmooth.comparing.claims import Runs
from heatsmooth.comparing.recipe import Recipe, Smoothed, Stated
from heatsmooth.results.claims import Claim
from heatsmooth.results.comparison import Measure

MEASURES = {
    Measure.CERTIFIED_AT_025: "certified accuracy at 0.25",
    Measure.CERTIFIED_AT_05: "certified accuracy at 0.5",
    Measure.ACR: "ACR",
}


def trades(recipe: Recipe, places: list[Path]) -> tuple[Claim, ...]:
    """For each rival, the claims that HeatSmoothing has a larger value of each of ``MEASURES``; not where both are 0.

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
        equals = [name for name, other in own.items() if other.epochs == method.epochs and other.start == method.start]
        if nearest := _nearest(runs, rival, equals, places[0]):
            seeds = recipe.seeds_of_both(nearest, rival, places)
            ours, theirs = (f"{name} ({_clean(runs, name, seeds):.1%} clean)" for name in (nearest, rival))
            found += [
                runs.claim(Stated(f"{what}: {ours} > {theirs}", "", nearest, rival, measure), seeds)
                for measure, what in MEASURES.items()
            ]
    return tuple(claim for claim in found if claim.values != (0, 0))


def _clean(runs: Runs, name: str, places: list[Path]) -> float:
    """The accuracy of the answers on clean images, mean over seeds."""
    return float(runs.values(name, Measure.ANSWER_ACCURACY, places)[1].mean())


def _nearest(runs: Runs, rival: str, own: list[str], place: Path) -> str | None:
    """Of those that are at least as accurate on clean images as the rival, the least accurate; by the first seed."""
    accuracy = {name: _clean(runs, name, [place]) for name in (rival, *own)}
    enough = [name for name in own if accuracy[name] >= accuracy[rival]]
    return min(enough, key=lambda name: accuracy[name], default=None)
