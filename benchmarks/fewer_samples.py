"""How many samples certificates at given radii need, against a fixed number and against what is possible.

    python benchmarks/fewer_samples.py [RESULTS] [--replays 8] [--runs 100000] [--only PART]

No network is run. Each image of a certified run is replayed: its samples are drawn anew. Each has the selected class
with the probability p = (k + ½)/(n + 1), from the stored count k of n. These runs drew n = 10,000 samples where the
class is the label and 100 elsewhere, so p is less exact there. Accuracies are means over the replays.

What was chosen (``MOST_PER_RADIUS``, the weights of the mixture) was chosen on the images at odd positions of the
runs. The figures are of those at even positions. A fitted prior is fitted on the odd ones.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy import special

from heatsmooth.certification.settings import Budget, Settings
from heatsmooth.certification.spending import Account
from heatsmooth.certification.stopping import LEAST_CHANCE, MOST_PER_RADIUS, chance
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.rounds import Draws, Round
from heatsmooth.runs import provenance
from heatsmooth.statistics.bounds import Flags, Floats, Integers, clopper_pearson_lower, randomised_lower
from heatsmooth.statistics.looks import until_next_look
from heatsmooth.statistics.mixtures import KNOTS, Prior, fitted_prior
from heatsmooth.statistics.sequences import anytime_exceeds, stopped_lower

RADII = (0.1, 0.25, 0.5)
N = 10_000
METHODS = ("bootcamp", "gaussian", "paper-imagenet")
CHUNK = 50
EARLIER = 4.0
"""Another ``MOST_PER_RADIUS``, for comparison."""
LOST = 0.005
"""Certified accuracy that may be lost at each radius."""


@dataclass(frozen=True)
class Replayed:
    """Images that are replayed: the probability of the class, that of one pass, and whether the class is the label."""

    p: Floats
    one_pass: Floats
    correct: Flags

    @classmethod
    def read(cls, directory: Path, positions: slice) -> "tuple[Replayed, Prior]":
        """The images at these positions, and a prior fitted on the others."""
        run = Certificates.read(directory)
        rows = np.arange(len(run))
        count, n = run.counts[rows, run.targets], run.n
        one_pass = run.clean_probabilities[rows, run.targets]
        own = np.zeros(len(run), dtype=bool)
        own[positions] = True
        prior = Prior() if own.all() else fitted_prior(count[~own], n[~own], one_pass[~own])
        return cls(
            ((count + 0.5) / (n + 1))[own],
            one_pass[own],
            (run.targets == run.known_labels)[own],
        ), prior

    def repeated(self, times: int) -> "Replayed":
        """Each image so many times."""
        return Replayed(np.repeat(self.p, times), np.repeat(self.one_pass, times), np.repeat(self.correct, times))


@dataclass(frozen=True)
class Outcome:
    """Samples per image, and the share of images that are correct and certified at each radius."""

    samples: float
    accuracy: Floats

    def line(self, name: str, fixed: Floats) -> str:
        """As a row of the table."""
        lost = " ".join(f"{value:+6.2f}" for value in 100 * (self.accuracy - fixed))
        return f"  {name:<28} {self.samples:7.0f} {(N + 1) / self.samples:7.1f}   {lost}"


def fixed_accuracy(images: Replayed, settings: Settings, n: int) -> tuple[Floats, Floats]:
    """The expected share certified at each radius with n samples per image: of correct images, and of all."""
    counts = np.arange(n + 1)
    least = np.searchsorted(clopper_pearson_lower(counts, n, settings.alpha), np.array(settings.levels))
    power = special.bdtrc(least[None] - 1, n, images.p[:, None])
    return (power * images.correct[:, None]).mean(0), power.mean(0)


def adaptive(
    images: Replayed, settings: Settings, rng: np.random.Generator, most_per_radius: float = MOST_PER_RADIUS
) -> Outcome:
    """Replay adaptive sampling, all images side by side."""
    count, reached = np.zeros(len(images.p)), np.zeros((len(images.p), len(RADII)), dtype=bool)
    used, active, n = np.zeros(len(images.p)), np.arange(len(images.p)), CHUNK
    groups = (settings.prior or Prior()).groups(images.one_pass)
    more = CHUNK
    while len(active):
        count[active] += rng.binomial(more, images.p[active])
        used[active] = n
        stop = np.zeros(len(active), dtype=bool)
        for group in np.unique(groups[active]):
            rows = groups[active] == group
            representative = float(images.one_pass[active][rows][0])
            stop[rows], reached[active[rows]] = decided(
                count[active[rows]], n, settings, representative, most_per_radius
            )
        active = active[~stop & (n < settings.n)]
        more = until_next_look(n, settings.n)
        n += more
    return Outcome(1 + used.mean(), (reached & images.correct[:, None]).mean(0))


def decided(count: Floats, n: int, settings: Settings, one_pass: float, most_per_radius: float) -> tuple[Flags, Flags]:
    """Where sampling stops, and which radii are reached."""
    levels, alpha = settings.levels, settings.alpha
    if settings.mixes:
        mixture = settings.mixture(one_pass)
        stop = mixture.gain(count, n, alpha) < 1 / (most_per_radius * settings.n)
        return np.asarray(stop), mixture.excludes(count, n, alpha)
    if n == settings.n:
        return np.ones(len(count), dtype=bool), stopped_lower(count, n, alpha, most=n)[:, None] >= np.array(levels)
    reached = anytime_exceeds(count[:, None], n, alpha / 2, np.array(levels))
    hopeless = chance(count[:, None], n, settings.n, alpha, levels) < LEAST_CHANCE  # type: ignore[arg-type]
    return np.asarray((reached | hopeless).all(1)), np.asarray(reached)


def divergence(p: Floats | float, q: Floats | float) -> Floats:
    """KL(p, q) of Bernoulli distributions."""
    return np.asarray(special.xlogy(p, p / q) + special.xlogy(1 - np.asarray(p), (1 - np.asarray(p)) / (1 - q)))


def least_possible(images: Replayed, settings: Settings, lost: Floats) -> float:
    """Wald's bound: the mean samples of any test at α that knows every p and no label, and loses so much accuracy.

    A test of level α with power b at p takes at least kl(b, α)/KL(p, t) samples, if t is the level to exclude. Each
    image is tested for the largest level below its p. The powers that lose ``lost`` at each radius for the fewest
    samples follow from a price per radius, which is adjusted until the loss is right.
    """
    levels, alpha = np.array(settings.levels), settings.alpha
    level = np.searchsorted(levels, images.p, side="right") - 1
    images = Replayed(images.p[level >= 0], images.one_pass[level >= 0], images.correct[level >= 0])
    share, level = len(level), level[level >= 0]
    fixed = fixed_accuracy(images, settings, N)[0] * len(level) / share
    power = np.concatenate([[alpha], np.linspace(0.005, 0.995, 199), [0.9999]])
    information = divergence(power, alpha)
    cost = information / divergence(images.p, levels[level])[:, None]
    below = np.where(level > 0, information[-1] / divergence(images.p, levels[np.maximum(level - 1, 0)]), 0.0)
    cost, price = np.maximum(cost, below[:, None]), np.full(len(levels), 3e4)
    for _ in range(80):
        best = np.argmin(cost - price[level][:, None] * power, 1)
        own = [np.where(level == j, power[best], (level > j) * 1.0) for j in range(len(levels))]
        short = fixed - np.stack(own, 1)[images.correct].sum(0) / share - lost
        price *= np.exp(np.clip(150 * short, -0.5, 0.5))
    return float(cost[np.arange(len(best)), best].sum() / share)


def tables(results: Path, replays: int) -> None:
    """Adaptive sampling on every network."""
    base = Settings(0.25, n=N, adaptive=True, radii=RADII, class_from="clean")
    rng = np.random.default_rng(0)
    print(
        f"Adaptive sampling at the radii {RADII}, n ≤ {N}, α = {base.alpha}: 500 images per network, {replays} replays"
    )
    print("  samples per image; times fewer than fixed; certified accuracy at the radii less that of fixed, in points")
    means: dict[str, list[Outcome]] = {}
    for seed in range(3):
        for method in METHODS:
            directory = results / f"cifar10-small-seeds/seed-{seed}/{method}-certified"
            images, prior = Replayed.read(directory, slice(0, None, 2))
            fixed, _ = fixed_accuracy(images, base, N)
            print(f"{method}, seed {seed}: fixed n = {N} certifies {' '.join(f'{100 * a:.1f} %' for a in fixed)}")
            many = images.repeated(replays)
            for name, settings, most in (
                ("beta", replace(base, sequence="beta"), MOST_PER_RADIUS),
                ("mixture", replace(base, sequence="mixture"), MOST_PER_RADIUS),
                ("exact", base, MOST_PER_RADIUS),
                ("exact, fitted prior", replace(base, prior=prior), MOST_PER_RADIUS),
                ("the same, gives up earlier", replace(base, prior=prior), EARLIER),
            ):
                outcome = adaptive(many, settings, rng, most)
                means.setdefault(name, []).append(replace(outcome, accuracy=outcome.accuracy - fixed))
                print(outcome.line(name, fixed), flush=True)
            last = fixed - outcome.accuracy
            for name, loss in (("least possible, .5 points", np.full(3, LOST)), ("least possible, last loss", last)):
                least = Outcome(1 + least_possible(images, base, loss), fixed - loss)
                means.setdefault(name, []).append(replace(least, accuracy=-loss))
                print(least.line(name, fixed))
    print("mean of the nine networks")
    for name, outcomes in means.items():
        mean = Outcome(float(np.mean([o.samples for o in outcomes])), np.mean([o.accuracy for o in outcomes], axis=0))
        print(mean.line(name, np.zeros(3)), flush=True)
    print("all 1,000 images, of which half were used to choose; seed 0")
    for method in METHODS:
        images, _ = Replayed.read(results / f"cifar10-small-seeds/seed-0/{method}-certified", slice(None))
        print(
            adaptive(images.repeated(replays), base, rng).line(method, fixed_accuracy(images, base, N)[0]), flush=True
        )


def boundary(settings: Settings, one_pass: float, p: float, looks: Integers) -> Integers:
    """At each look, the fewest successes for which the bound exceeds p."""
    mixture, low, high = settings.mixture(one_pass), np.zeros_like(looks), looks + 1
    while (low < high).any():
        middle = (low + high) // 2
        over = np.where(middle <= looks, mixture.lower(np.minimum(middle, looks), looks, settings.alpha) > p, True)
        low, high = np.where(over, low, middle + 1), np.where(over, middle, high)
    return low


def violations(runs: int, prior: Prior) -> None:
    """How often the bound exceeds p at any of 200 looks, without stopping, for p around each level."""
    base, rng = Settings(0.25, n=N, adaptive=True, radii=RADII), np.random.default_rng(1)
    looks = np.arange(CHUNK, N + 1, CHUNK)
    wrong = Prior(weights=(tuple(np.exp(-3 * np.abs(KNOTS - 4)) + 1e-4),))
    print(f"False certificates in {runs} runs of {N} samples, for any stopping: at most α = {base.alpha} is allowed")
    for name, settings in {
        "mixture": replace(base, sequence="mixture"),
        "exact": base,
        "exact, fitted prior": replace(base, prior=prior),
        "exact, expects p ≈ 1": replace(base, prior=wrong),
    }.items():
        for level in base.levels:
            shares = []
            for p in (level - 0.01, level - 0.001, level, level + 0.001, level + 0.01):
                bounds = boundary(settings, 0.5, p, looks)
                count, false = np.zeros(runs, dtype=np.int64), np.zeros(runs, dtype=bool)
                for most in bounds:
                    count += rng.binomial(CHUNK, p, runs)
                    false |= count >= most
                shares.append(false.mean())
            print(f"  {name:<26} p = {level:.4f} −.01 −.001 0 +.001 +.01: {' '.join(f'{s:.5f}' for s in shares)}")


def randomised(runs: int) -> None:
    """How often the bounds for a fixed n exceed p."""
    rng, n, alpha = np.random.default_rng(2), 1000, 0.001
    print(f"Bounds for a fixed n = {n} that exceed p, in {runs} runs: α = {alpha} is allowed")
    for p in Settings(0.25, radii=RADII).levels:
        count, u = rng.binomial(n, p, runs), rng.random(runs)
        plain = clopper_pearson_lower(np.arange(n + 1), n, alpha)[count]
        tighter = randomised_lower(count, n, alpha, u)
        print(
            f"  p = {p:.4f}: Clopper–Pearson {(plain > p).mean():.5f}, randomised {(tighter > p).mean():.5f}; "
            f"mean radius {mean_radius(plain):.5f}, {mean_radius(tighter):.5f}"
        )


def mean_radius(lower: Floats) -> float:
    """At σ = 0.25."""
    return float(0.25 * special.ndtri(np.maximum(lower, 0.5)).mean())


def budgeted(images: Replayed, settings: Settings, budget: int, rng: np.random.Generator) -> tuple[Floats, Floats, int]:
    """Replay a budget by the rule of ``certify --budget``: shares certified, of correct images and of all; samples."""

    def draws(index: int, more: int, first: bool) -> Draws:
        hits, probability = int(rng.binomial(more, images.p[index])), float(images.one_pass[index])
        pair = (probability, 1 - probability)
        return Draws(
            index=index,
            counts=(hits, more - hits),
            seconds=0.0,
            clean_class=0 if first else None,
            clean_probabilities=pair if first else None,
        )

    account = Account(settings)
    account.add(
        Round(number=account.rounds, draws=tuple(draws(i, CHUNK, True) for i in range(len(images.p))), seconds=0.0)
    )
    while asked := account.next_round(Budget(samples=budget)):
        account.add(
            Round(number=account.rounds, draws=tuple(draws(i, more, False) for i, more in asked.items()), seconds=0.0)
        )
    reached = np.zeros((len(images.p), len(RADII)), dtype=bool)
    for index, drawn in account.images.items():
        hits, misses = drawn.tallies["estimation"].counts
        mixture = settings.mixture(float(images.one_pass[index]))
        reached[index] = mixture.excludes(hits, hits + misses, settings.alpha)
    return (reached & images.correct[:, None]).mean(0), reached.mean(0), account.samples


def budgets(results: Path, replays: int) -> None:
    """A budget against the same number of samples for every image."""
    settings, rng = Settings(0.25, n=N, adaptive=True, radii=RADII, class_from="clean"), np.random.default_rng(3)
    print(f"A budget against a fixed n of the same cost: images of 500 certified at {RADII}, mean of {replays} replays")
    for method in METHODS:
        directory = results / f"cifar10-small-seeds/seed-0/{method}-certified"
        images, prior = Replayed.read(directory, slice(0, None, 2))
        for n in (200, 500, 1000):
            total = len(images.p) * (n + 1)
            _, fixed = fixed_accuracy(images, settings, n)
            print(f"  {method}, {total} samples: fixed n = {n} {row(fixed, len(images.p))}", end="")
            for name, chosen in {"budget": settings, "with a fitted prior": replace(settings, prior=prior)}.items():
                spent = [budgeted(images, chosen, total, rng) for _ in range(replays)]
                most = max(samples for _, _, samples in spent)
                every = np.mean([shares for _, shares, _ in spent], axis=0)
                print(f"; {name} {row(every, len(images.p))}, {most} spent at most", end="")
            print(flush=True)


def row(shares: Floats, images: int) -> str:
    """The number of images at each radius."""
    return " ".join(f"{share * images:.1f}" for share in shares)


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, default=Path("results"))
    parser.add_argument("--replays", type=int, default=8)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--only", choices=["adaptive", "budget", "false", "randomised"])
    chosen = parser.parse_args()
    made = provenance()
    print(f"{made['hardware']['cpu']}, numpy {made['versions']['numpy']}, commit {made['commit']}")
    _, prior = Replayed.read(chosen.results / "cifar10-small-seeds/seed-0/bootcamp-certified", slice(0, None, 2))
    parts: dict[str, Callable[[], None]] = {
        "adaptive": lambda: tables(chosen.results, chosen.replays),
        "budget": lambda: budgets(chosen.results, max(1, chosen.replays // 2)),
        "false": lambda: violations(chosen.runs, prior),
        "randomised": lambda: randomised(chosen.runs),
    }
    for name, part in parts.items():
        if chosen.only in (None, name):
            part()


if __name__ == "__main__":
    main()
