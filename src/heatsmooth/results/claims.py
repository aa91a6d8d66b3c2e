"""A claim of the paper, what was measured about it here, and the verdict."""

from dataclasses import dataclass
from enum import StrEnum

from heatsmooth.results.schema import Finite, Interval, check_order


class ClaimVerdict(StrEnum):
    """Whether a claim holds, by the interval of the difference and the sign of every seed."""

    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "not decided"

    @classmethod
    def of(cls, interval: Interval | None, by_seed: tuple[float | None, ...]) -> "ClaimVerdict":
        """Of a difference that is claimed to be positive.

        It holds if the interval and the difference of every seed are above 0, and does not hold if all are below 0.

        >>> ClaimVerdict.of((0.1, 0.3), (0.2,)).value, ClaimVerdict.of((-0.3, -0.1), (-0.2,)).value
        ('holds', 'does not hold')
        >>> ClaimVerdict.of((-0.1, 0.3), (0.1,)).value, ClaimVerdict.of((0.1, 0.3), (0.5, -0.1)).value
        ('not decided', 'not decided')
        """
        known = [difference for difference in by_seed if difference is not None]
        if interval is None or len(known) < len(by_seed):
            return cls.OPEN
        if min(interval[0], *known) > 0:
            return cls.HOLDS
        return cls.FAILS if max(interval[1], *known) < 0 else cls.OPEN


@dataclass(frozen=True, kw_only=True)
class Claim:
    """That ``larger`` has a larger value of ``measure`` than ``smaller``."""

    claim: str
    where: str
    """Where the paper states it."""
    larger: str
    smaller: str
    measure: str
    paper: Interval | None
    """The two values in the paper, the larger first; None where it shows a figure without numbers."""
    values: Interval | None
    """The same two values here, means over the seeds; None if one is not finite."""
    difference: Finite | None
    interval: Interval | None
    """95 % of the difference over images, for these networks; of seconds, the range over seeds."""
    by_seed: tuple[Finite | None, ...]
    """The difference for each seed."""
    verdict: ClaimVerdict

    def __post_init__(self) -> None:
        check_order(self.interval)
