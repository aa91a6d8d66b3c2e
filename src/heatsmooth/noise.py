"""Reproducible randomness: every random number is a function of a seed and a purpose."""

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from heatsmooth.settings import Noise

LARGEST_UNIFORM = 1 - 2**-24
"""The largest float32 below 1: it keeps the logarithm of Laplace noise finite."""


def mixed_seed(*parts: int | str) -> int:
    """A 63-bit seed from the parts: equal parts give equal seeds, different parts give unrelated seeds.

    >>> mixed_seed(0, "step", 7) == mixed_seed(0, "step", 7)
    True
    >>> mixed_seed(0, "step", 7) == mixed_seed(0, "step", 8)
    False
    """
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def fill_noise(numbers: Tensor, noise: Noise, sigma: float, generator: torch.Generator) -> None:
    """Fill ``numbers`` with independent noise of mean 0 and standard deviation ``sigma``.

    Laplace noise has the density exp(−|t|/b)/(2b) with b = σ/√2. Uniform noise lies in [−√3σ, √3σ].
    """
    if noise == "gaussian":
        numbers.normal_(0, sigma, generator=generator)
        return
    numbers.uniform_(-1, 1, generator=generator)
    _from_uniform(numbers, noise).mul_(sigma)


def _from_uniform(numbers: Tensor, noise: Noise) -> Tensor:
    """Uniform numbers in [−1, 1) become noise of standard deviation 1, in place."""
    if noise == "uniform":
        return numbers.mul_(3**0.5)
    scale = numbers.abs().clamp_(max=LARGEST_UNIFORM).neg_().log1p_().div_(-(2**0.5))
    return numbers.sign_().mul_(scale)


class Draw:
    """The random numbers of one training step, the same for any number of processes that share the batch.

    A batch is split over ``world`` processes by rows. Each process generates the numbers of all rows and keeps those of
    its own rows, so the numbers for an image do not depend on ``world``.

    ``parts``: what the seed is made of, see ``mixed_seed``.
    ``device``: where the numbers are generated.
    ``rank``, ``world``: the number of this process, from 0, and how many there are.
    """

    def __init__(self, *parts: int | str, device: torch.device | str = "cpu", rank: int = 0, world: int = 1) -> None:
        self.device, self.rank, self.world = torch.device(device), rank, world
        self._parts = parts
        self._generator = torch.Generator(self.device).manual_seed(mixed_seed(*parts))

    def part(self, number: int, count: int) -> "Draw":
        """The generator for part ``number``, from 0, of ``count`` equal parts of this process's rows.

        The parts together give the same numbers as the whole, as if there were ``count`` times as many processes.

        >>> whole, parts = Draw(0).normal((4, 1)), [Draw(0).part(i, 2).normal((2, 1)) for i in range(2)]
        >>> torch.equal(whole, torch.cat(parts))
        True
        """
        return Draw(*self._parts, device=self.device, rank=self.rank * count + number, world=self.world * count)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal numbers of this shape; the first axis is the rows of this process."""
        return self._own_rows(torch.randn, shape)

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Uniform numbers in [0, 1) of this shape; the first axis is the rows of this process."""
        return self._own_rows(torch.rand, shape)

    def noise(self, noise: Noise, shape: Sequence[int]) -> Tensor:
        """Noise of standard deviation 1, of this shape; the first axis is the rows of this process."""
        if noise == "gaussian":
            return self.normal(shape)
        return _from_uniform(self.uniform(shape).mul_(2).sub_(1), noise)

    def _own_rows(self, generate: Callable[..., Tensor], shape: Sequence[int]) -> Tensor:
        rows, *rest = shape
        all_rows = generate(rows * self.world, *rest, generator=self._generator, device=self.device)
        return all_rows[self.rank * rows : (self.rank + 1) * rows]
