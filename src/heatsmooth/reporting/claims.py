"""What the paper claims beside what was measured here, and how students approach the average of their teacher."""

from heatsmooth.reporting.compared import Comparisons, finished
from heatsmooth.reporting.formats import one_line, plain
from heatsmooth.results.audit import Distances
from heatsmooth.results.claims import Claim
from heatsmooth.results.comparison import Comparison
from heatsmooth.results.schema import Interval
from heatsmooth.results.timesteps import TimestepsResult
from heatsmooth.table import NONE, Column, Table

CLAIMS_EXPLAINED = (
    "Each claim is that the first of two values is larger. Holds: the 95 % interval of the difference and the "
    "difference of every seed are above 0. Does not hold: all of them are below 0. Otherwise it is not decided. With "
    "so many claims, one or two of the verdicts may be wrong by chance. "
    "Intervals are over images, for these networks: for shares by Bonett and Price, else by paired bootstrap. That of "
    "seconds is the range over seeds; that of distances to an average covers those of all seeds. Distances of attacks "
    "and L-bounds are over the images that a method classifies correctly, as in the paper: each method has its own. A "
    "failed attack counts as infinite in the median, and as ε in the mean of PGD. The mean of DDN leaves it out, and "
    "is decided only if the verdict is the same with ε. L-bounds assume that the network is an exact average. "
    "Distances are upper bounds, found by attack. Radii are of the average, statistical."
)
TRADES_EXPLAINED = (
    "Each method of others, and the paper's one-epoch form, beside a row of HeatSmoothing that is at least as accurate "
    "on these clean images after as many epochs without labels, both in its answers and by its average: the one whose "
    "answers are the least accurate of these. Answers of methods of others are by their average, as in their papers. A "
    "verdict holds if the 95 % interval of the difference and the difference of every seed are above 0, and does not "
    "hold if all are below 0. With so many verdicts, one or two may be wrong by chance. Intervals are over images, for "
    "these networks: another training of the same method differs too. Radii are of the average, statistical."
)
TIMESTEPS_EXPLAINED = (
    "L2 distance of the probabilities in one pass to those of the Monte Carlo average of the teacher under noise, mean "
    "over images. The average is of what was smoothed: of logits or of probabilities. Timestep 0 is the teacher "
    "itself. In theory, the form that the paper trains tends to the average of variance 2σ², and with half the penalty "
    "to that of variance σ²."
)


def claim_row(claim: Claim) -> tuple[str, str, str, str, str]:
    """Claim, paper, here, difference with its interval, verdict."""
    where = f" ({one_line(claim.where, 40)})" if claim.where else ""
    return (
        f"{one_line(claim.claim, 120)}{where}",
        _pair(claim.paper),
        _pair(claim.values),
        NONE if claim.difference is None else f"{claim.difference:+.3g}{_between(claim.interval)}",
        claim.verdict,
    )


def _pair(values: Interval | None) -> str:
    return NONE if values is None else f"{values[0]:.3g}, {values[1]:.3g}"


def _between(interval: Interval | None) -> str:
    return "" if interval is None else f" ({interval[0]:+.3g} to {interval[1]:+.3g})"


def claims_of(comparison: Comparison) -> list[dict[str, str]]:
    """The rows for the terminal."""
    heads = ("claim", "paper", "here", "difference", "verdict")
    return [dict(zip(heads, claim_row(claim), strict=True)) for claim in comparison.claims]


def trades_of(comparison: Comparison) -> list[dict[str, str]]:
    """The rows for the terminal."""
    heads = ("at no less clean accuracy", "values", "difference", "verdict")
    return [dict(zip(heads, trade_row(claim), strict=True)) for claim in comparison.trades]


def trade_row(claim: Claim) -> tuple[str, str, str, str]:
    """Claim, the two values, difference with its interval, verdict."""
    words, _, here, difference, verdict = claim_row(claim)
    return words, here, difference, verdict


def trades_table(comparisons: Comparisons) -> Table | None:
    """HeatSmoothing beside methods of others at no less clean accuracy."""
    rows = []
    for directory, comparison in comparisons:
        for claim in comparison.trades:
            words, *cells = trade_row(claim)
            rows.append((words, directory, *cells))
    columns = (
        Column("Claim", words=True),
        Column("Comparison", words=True),
        Column("Values"),
        Column("Difference (95\u00a0% interval)"),
        Column("Verdict", words=True),
    )
    title = "At no less clean accuracy"
    return finished(Table(title, columns, tuple(rows), TRADES_EXPLAINED, "trades"), comparisons)


def claims_table(comparisons: Comparisons) -> Table | None:
    """The claims of the paper with their verdicts."""
    rows = []
    for directory, comparison in comparisons:
        for claim in comparison.claims:
            words, *cells = claim_row(claim)
            rows.append((words, directory, *cells))
    columns = (
        Column("Claim", words=True),
        Column("Comparison", words=True),
        Column("Paper"),
        Column("Here"),
        Column("Difference (95\u00a0% interval)"),
        Column("Verdict", words=True),
    )
    sizes = sorted({comparison.size for _, comparison in comparisons if comparison.size})
    note = " ".join([*sizes, CLAIMS_EXPLAINED])
    return finished(Table("The paper's claims", columns, tuple(rows), note, "claims"), comparisons)


def timestep_rows(name: str, result: TimestepsResult) -> list[tuple[str, str, str, str, str]]:
    """Method, what is averaged, timestep, and the distances to both averages."""
    return [
        (
            one_line(name, 60),
            result.averaged,
            one_line(step, 10),
            _distance(near),
            _distance(result.wider.distances.get(step)),
        )
        for step, near in result.average.distances.items()
    ]


def _distance(distances: Distances | None) -> str:
    if distances is None:
        return NONE
    spread = "" if distances.interval is None else f" ± {(distances.interval[1] - distances.interval[0]) / 2:.3f}"
    return f"{distances.mean:.3f}{spread}"


def timesteps_of(comparison: Comparison) -> list[dict[str, str]]:
    """The rows for the terminal."""
    heads = ("method", "average of", "timestep", "to the average of σ²", "of 2σ²")
    return [
        dict(zip(heads, row, strict=True))
        for name, result in comparison.timesteps.items()
        for row in timestep_rows(name, result)
    ]


def timesteps_table(comparisons: Comparisons) -> Table | None:
    """How far each student is from the average of the teacher after each timestep."""
    rows = [
        (method, directory, *cells)
        for directory, comparison in comparisons
        for name, result in comparison.timesteps.items()
        for method, *cells in timestep_rows(name, result)
    ]
    columns = (
        Column("Method", words=True),
        Column("Comparison", words=True),
        Column("Average of", words=True),
        Column("Timestep"),
        Column("To the average of σ²"),
        Column("To the average of 2σ²"),
    )
    title = "Distance to the Gaussian average of the teacher"
    return finished(Table(title, columns, tuple(rows), TIMESTEPS_EXPLAINED, "timesteps"), comparisons)


def rates_table(comparisons: Comparisons) -> Table | None:
    """How settings were chosen."""
    rows = [
        (
            one_line(name, 60),
            directory,
            chosen.setting,
            one_line(value, 20),
            plain(chosen.accuracies.get(value)),
            plain(radius),
            "yes" if float(value) == chosen.rate else "",
        )
        for directory, comparison in comparisons
        for name, chosen in comparison.rates.items()
        for value, radius in chosen.average_certified_radii.items()
    ]
    columns = (
        Column("Trial", words=True),
        Column("Comparison", words=True),
        Column("Setting", words=True),
        Column("Value"),
        Column("Clean accuracy"),
        Column("ACR"),
        Column("Chosen", words=True),
    )
    note = (
        "lr: the learning rate. weight: that of the penalty. Others: options of smooth for methods of others. Short "
        "trainings on fewer images, certified on test images with an odd index, which no table of certificates from "
        "samples shows. For all seeds, the largest ACR is chosen among values whose clean accuracy is at most 10 "
        "points below the best."
    )
    return finished(Table("Settings chosen by trial", columns, tuple(rows), note, "trials"), comparisons)
