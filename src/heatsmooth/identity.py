"""Which network a run is about: its architecture, its weights, and what it answers to fixed probe images; no torch.

Weights alone do not say it: code, plain attributes and buffers that are not saved change answers too. Answers are
compared within rounding, so that another processor, number of threads or memory layout knows a network again.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from types import NoneType
from typing import Any, Self

from heatsmooth.errors import InputError

FORMAT = 2
ROUNDING, LEAST = 1e-4, 1e-2
"""Answers are alike if they differ by at most this share of the largest of them, or of ``LEAST`` if that is more."""

Difference = tuple[str, Any, Any]
"""What differs, as it was recorded, and as it is now."""


@dataclass(frozen=True)
class Identity:
    """What a network is known by. What older records do not say is None, and is not compared."""

    weights: str
    """``model_hash``: of weights, saved buffers, normalisation and configuration."""
    architecture: str | None = None
    """The name it was built by; ``hf`` for those of transformers, whose configuration is part of the weights' hash."""
    shape: tuple[int, ...] | None = None
    """(channels, height, width) of the probe images."""
    answers: tuple[tuple[float, ...], ...] | None = None
    """For each probe image a few numbers made of its logits; none if two passes differ (dropout that is on)."""

    def difference(self, recorded: Self) -> Difference | None:
        """The first thing in which this network is not the recorded one; None if it is the same."""
        if self.weights != recorded.weights:
            return "weights", recorded.weights, self.weights
        if recorded.architecture is None or self.architecture is None:
            return None
        if self.architecture != recorded.architecture:
            return "architecture", recorded.architecture, self.architecture
        if recorded.shape is None or self.shape is None:
            return None
        if self.shape != recorded.shape:
            return "shape of probe images", recorded.shape, self.shape
        return _other_answer(recorded.answers, self.answers)

    def to_json(self) -> dict[str, Any]:
        """As JSON, with a format number."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """From what ``to_json`` gave, or from a hash of weights alone, as older runs recorded it."""
        if isinstance(value, str):
            return cls(value)
        try:
            if value["format"] == 1:  # whose answers were compared otherwise
                return cls(str(value["weights"]), str(value["architecture"]))
            if value["format"] != FORMAT:
                raise ValueError(f"format {value['format']}")
            shape, given = tuple(map(int, value["shape"])), value["answers"]
            answers = None if given is None else tuple(tuple(map(float, row)) for row in given)
            if len(shape) != 3 or min(shape) < 1 or not all(map(math.isfinite, chain(*(answers or ())))):
                raise ValueError(f"shape {value['shape']}, answers {given}"[:200])
            return cls(str(value["weights"]), str(value["architecture"]), shape, answers)
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(f"expected the identity of a network, got {error}; make the run again") from None


def recorded_identity(settings: Mapping[str, Any], role: str = "model") -> Identity:
    """The network that the settings of a run name in this role, by its hash alone if the run is an older one."""
    networks = settings.get("networks")
    known = networks.get(role) if isinstance(networks, dict) else None
    return Identity.from_json(known if known is not None else str(settings.get(role)))


def network_settings(**networks: Identity | None) -> dict[str, Any]:
    """What the settings of a run say of its networks, by role: the hashes, as ever, and beside them all identities."""
    hashes = {role: None if network is None else network.weights for role, network in networks.items()}
    return {**hashes, "networks": {role: network.to_json() for role, network in networks.items() if network}}


def first_difference(before: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> Difference | None:
    """The first key under which two nested settings (JSON) differ, with both values; None if they are equal.

    Identities of networks are compared as such, where both sides have one.
    """
    for key in sorted(before.keys() | now.keys()):
        one, other = before.get(key), now.get(key)
        if _is_identity(one) or _is_identity(other):
            known = one is not None and other is not None
            found = Identity.from_json(other).difference(Identity.from_json(one)) if known else None
            if found:
                return f"{key} {found[0]}", *found[1:]
        elif {type(one), type(other)} in ({dict}, {dict, NoneType}):
            found = first_difference(one or {}, other or {}, f"{key} ")
            if found:
                return found
        elif one != other:
            return f"{within}{key}", one, other
    return None


def _is_identity(value: Any) -> bool:
    return isinstance(value, dict) and {"format", "weights", "architecture", "answers"} <= value.keys()


def _other_answer(
    before: tuple[tuple[float, ...], ...] | None, now: tuple[tuple[float, ...], ...] | None
) -> Difference | None:
    if before is None or now is None:
        said = {True: "the same in every pass", False: "not the same in every pass"}
        return None if before is now else ("answers to probe images", said[before is not None], said[now is not None])
    if [*map(len, before)] != [*map(len, now)]:
        return "answers to probe images", f"{sum(map(len, before))} numbers", f"{sum(map(len, now))} numbers"
    pairs = [pair for rows in zip(before, now, strict=True) for pair in zip(*rows, strict=True)]
    if not pairs:
        return None
    tolerance = ROUNDING * max(LEAST, *(abs(number) for pair in pairs for number in pair))
    one, other = max(pairs, key=lambda pair: abs(pair[0] - pair[1]))
    return None if abs(one - other) <= tolerance else ("answer to a probe image", one, other)
