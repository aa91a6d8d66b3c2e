"""Which batch size takes the least time per sample, found while samples are drawn."""

TURNS = 4
"""Batches of each size before one is chosen. The first ones also pay for what a network sets up."""


class Pace:
    """Tries every size in turns, then stays with the one that had the fastest batch.

    Caches, kernels and the network decide which size is fastest: 50 samples for a ResNet-20 on some CPUs, 200 for other
    networks. Trying costs nothing, because counts do not depend on the batch size.

    - ``sizes``: at least one. With one size there is nothing to try.
    """

    def __init__(self, *sizes: int) -> None:
        self._seconds: dict[int, list[float]] = {size: [] for size in sizes}

    @property
    def size(self) -> int:
        """Samples of the next batch."""
        fewest = min(self._seconds, key=lambda size: len(self._seconds[size]))
        if len(self._seconds[fewest]) < TURNS:
            return fewest
        return min(self._seconds, key=lambda size: min(self._seconds[size]))

    @property
    def largest(self) -> int:
        """The largest size that may be used."""
        return max(self._seconds)

    def took(self, size: int, seconds: float) -> None:
        """Learn that a batch of ``size`` samples took so many ``seconds`` per sample. Other sizes teach nothing."""
        if size in self._seconds and len(self._seconds[size]) < TURNS:
            self._seconds[size].append(seconds)

    def at_most(self, most: int) -> None:
        """Use no more than ``most`` samples from now on: the memory does not suffice for more."""
        self._seconds = {size: seconds for size, seconds in self._seconds.items() if size <= most} or {most: []}
