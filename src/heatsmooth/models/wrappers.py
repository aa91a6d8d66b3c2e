"""Names of weights as others publish them, read without guessing.

Parallel wrappers put ``module.`` into the names. Cohen's and Salman's checkpoints are those of
``Sequential(normalisation, network)``: every name begins with ``1.``, and the numbers of the normalisation are not in
the file; files of others hold them as ``0.means`` and ``0.sds``.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from heatsmooth.errors import InputError, require

MEANS, DEVIATIONS = "0.means", "0.sds"
AGREEING = 1e-5
"""Largest difference between the normalisation in a file and the one given."""

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class Reading:
    """A state dict without the names of wrappers."""

    state: dict[str, Tensor]
    normalised: bool = False
    """Whether the network stood behind a normalisation layer."""
    normalisation: Normalisation | None = None
    """Mean and standard deviation, if the file holds them."""

    def agreed(self, path: Path, mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> Normalisation:
        """The normalisation of a network that had one: from the file, or as given, and the same if from both."""
        stored, given = self.normalisation, None if mean is None and std is None else completed(mean, std)
        chosen = given or stored
        if chosen is None:
            raise InputError(
                f"{path}: expected --mean and --std beside weights that stood behind a normalisation, got none; "
                "give those it was trained with (--std 1,1,1 where it only centred)"
            )
        require(
            stored is None or _agree(chosen, stored),
            f"{path}: expected the normalisation in the file, mean and deviation {stored}, got {given}; "
            "leave out --mean and --std",
        )
        return chosen


def read_names(state: dict[str, Tensor], names: Collection[str]) -> Reading:
    """``state`` under the reading of its names that meets most of the network's ``names``; as it is, if equal."""
    whole = _without_module(state)
    readings = [Reading(state), Reading(whole), *_behind_normalisation(whole)]
    return max(readings, key=lambda reading: len(reading.state.keys() & set(names)))


def _without_module(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names without ``module`` between their dots, unless two would become one."""
    plain = {".".join(part for part in name.split(".") if part != "module"): state[name] for name in state}
    return plain if len(plain) == len(state) else state


def _behind_normalisation(state: dict[str, Tensor]) -> list[Reading]:
    """The second of two layers, if the first holds nothing, or nothing but a normalisation."""
    first = {name for name in state if not name.startswith("1.")}
    if len(first) == len(state) or first not in (set(), {MEANS}, {MEANS, DEVIATIONS}):
        return []
    inner = {name.removeprefix("1."): tensor for name, tensor in state.items() if name not in first}
    if not first:
        return [Reading(inner, normalised=True)]
    mean, std = (tuple(map(float, state[name].flatten())) if name in first else None for name in (MEANS, DEVIATIONS))
    return [Reading(inner, normalised=True, normalisation=completed(mean, std))]


def completed(mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> Normalisation:
    """Both, where one is given: a mean alone only centres, a deviation alone only scales."""
    if mean is None:
        mean = (0.0,) * len(std or (1.0,))
    return mean, std or (1.0,) * len(mean)


def _agree(one: Normalisation, other: Normalisation) -> bool:
    def alike(these: tuple[float, ...], those: tuple[float, ...]) -> bool:
        if len(these) != len(those) and 1 not in (len(these), len(those)):
            return False
        return bool(torch.allclose(torch.tensor(these), torch.tensor(those), rtol=0, atol=AGREEING))

    return alike(one[0], other[0]) and alike(one[1], other[1])
