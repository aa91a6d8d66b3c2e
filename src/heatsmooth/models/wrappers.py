"""Names of weights as others publish them.

Parallel wrappers insert ``module.`` into the names. The checkpoints of Cohen and Salman are those of
``Sequential(normalisation, network)``: every name begins with ``1.``, and the normalisation itself is not in the file.
Files of others contain it as ``0.means`` and ``0.sds``.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from heatsmooth.errors import InputError, require
from heatsmooth.models.spec import Normalisation, completed

MEANS, DEVIATIONS = "0.means", "0.sds"
TOLERANCE = 1e-5
"""Largest difference between the normalisation in a file and the one the user gives."""


@dataclass(frozen=True)
class Reading:
    """A state dict without the names of wrappers."""

    state: dict[str, Tensor]
    normalised: bool = False
    """Whether the network was behind a normalisation layer."""
    normalisation: Normalisation | None = None
    """The normalisation, if the file contains it."""

    def agreed(self, path: Path, from_user: Normalisation | None) -> Normalisation:
        """The normalisation of a network that had one, in the file or ``from_user``; if in both, they must agree."""
        normalisation = from_user or self.normalisation
        if normalisation is None:
            raise InputError(
                f"{path}: expected `mean` and `std` for weights of a network behind a normalisation, got none; "
                "give those it was trained with (`std` 1,1,1 if it only subtracted a mean)"
            )
        require(
            self.normalisation is None or _agree(normalisation, self.normalisation),
            f"{path}: expected the normalisation in the file, mean and deviation {self.normalisation}, "
            f"got {from_user}; leave out `mean` and `std`",
        )
        return normalisation


def read_names(state: dict[str, Tensor], names: Collection[str]) -> Reading:
    """``state`` in the reading of its names that matches most of the network's ``names``; unchanged in a tie."""
    whole = _without_module(state)
    readings = [Reading(state), Reading(whole), *_behind_normalisation(whole)]
    return max(readings, key=lambda reading: len(reading.state.keys() & set(names)))


def _without_module(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names without ``module`` between their dots, unless two names would become equal."""
    plain = {".".join(part for part in name.split(".") if part != "module"): state[name] for name in state}
    return plain if len(plain) == len(state) else state


def _behind_normalisation(state: dict[str, Tensor]) -> list[Reading]:
    """The second of two layers, if the first contains nothing or only a normalisation."""
    first = {name for name in state if not name.startswith("1.")}
    if len(first) == len(state) or first not in (set(), {MEANS}, {MEANS, DEVIATIONS}):
        return []
    inner = {name.removeprefix("1."): tensor for name, tensor in state.items() if name not in first}
    mean, std = (tuple(map(float, state[name].flatten())) if name in first else None for name in (MEANS, DEVIATIONS))
    return [Reading(inner, normalised=True, normalisation=completed(mean, std))]


def _agree(one: Normalisation, other: Normalisation) -> bool:
    def close(these: tuple[float, ...], those: tuple[float, ...]) -> bool:
        if len(these) != len(those) and 1 not in (len(these), len(those)):
            return False
        return bool(torch.allclose(torch.tensor(these), torch.tensor(those), rtol=0, atol=TOLERANCE))

    return close(one[0], other[0]) and close(one[1], other[1])
