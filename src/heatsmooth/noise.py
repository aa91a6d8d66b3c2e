"""Reproducible randomness: every random number is a function of a seed and of what it is for."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


def mixed_seed(*parts: int | str) -> int:
    """A 63-bit seed from the parts: equal parts give equal seeds, different parts unrelated ones.

    >>> mixed_seed(0, "step", 7) == mixed_seed(0, "step", 7)
    True
    >>> mixed_seed(0, "step", 7) == mixed_seed(0, "step", 8)
    False
    """
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Draw:
    """The random numbers of one training step, alike however many processes share the batch.

    A batch is split over ``world`` processes by rows. Each process draws for the rows of all of them
    and keeps its own, so that the numbers that meet an image do not depend on ``world``.
    """

    def __init__(self, *parts: int | str, device: torch.device | str = "cpu", rank: int = 0, world: int = 1) -> None:
        self.device = torch.device(device)
        self.rank, self.world = rank, world
        self._parts = parts
        self._generator = torch.Generator(self.device).manual_seed(mixed_seed(*parts))

    def part(self, number: int, count: int) -> "Draw":
        """Of ``count`` equal parts of this process's rows, what falls to part ``number``, drawn from the beginning.

        The parts draw as so many more processes would: together they see the numbers of the whole.

        >>> whole, parts = Draw(0).normal((4, 1)), [Draw(0).part(i, 2).normal((2, 1)) for i in range(2)]
        >>> torch.equal(whole, torch.cat(parts))
        True
        """
        return Draw(*self._parts, device=self.device, rank=self.rank * count + number, world=self.world * count)

    def _own(self, rows: int) -> slice:
        return slice(self.rank * rows, (self.rank + 1) * rows)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal numbers of this shape; the first axis counts this process's rows."""
        rows, *rest = shape
        everyone = torch.randn(rows * self.world, *rest, generator=self._generator, device=self.device)
        return everyone[self._own(rows)]

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Numbers uniform in [0, 1) of this shape; the first axis counts this process's rows."""
        rows, *rest = shape
        everyone = torch.rand(rows * self.world, *rest, generator=self._generator, device=self.device)
        return everyone[self._own(rows)]
