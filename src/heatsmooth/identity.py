"""Which network a run is about: its architecture, its weights, and its answers on fixed probe images; no torch.

The weights alone do not identify a network: code, plain attributes and buffers that are not saved change its answers
too. Answers are compared within rounding, so another processor, number of threads or memory layout gives the same
identity.
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
"""Answers agree if they differ by at most ``ROUNDING`` times the largest of them, or of ``LEAST`` if more."""

Answers = tuple[tuple[float, ...], ...]
Difference = tuple[str, Any, Any]
"""What differs, as recorded, and as it is now."""


@dataclass(frozen=True)
class Identity:
    """What identifies a network. A field that an older record lacks is None and is not compared."""

    weights: str
    """``model_hash``: of weights, saved buffers, normalisation and configuration."""
    architecture: str | None = None
    """The name it was built by; ``hf`` for networks of transformers, whose configuration is part of the hash."""
    shape: tuple[int, ...] | None = None
    """(channels, height, width) of the probe images."""
    answers: Answers | None = None
    """A few numbers per probe image, computed from its logits; None if two passes differ (as with active dropout)."""
    file: str | None = None
    """SHA-256 of the file that is the network: an ONNX file or a program; None for weights."""

    def difference(self, recorded: Self) -> Difference | None:
        """The first difference between this network and the recorded one; None if it is the same."""
        if None not in (self.file, recorded.file) and self.file != recorded.file:
            return "file", recorded.file, self.file
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
        return _answer_difference(recorded.answers, self.answers)

    def to_json(self) -> dict[str, object]:
        """As JSON, with a format number."""
        facts = asdict(self)
        return {"format": FORMAT, **{name: facts[name] for name in facts if name != "file" or facts[name] is not None}}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """From the result of ``to_json``, or from a hash of weights alone, as in the oldest published runs."""
        if isinstance(value, str):
            return cls(value)
        try:
            known = str(value["weights"]), str(value["architecture"])
            if value["format"] == 1:  # published runs whose answers were computed in another way
                return cls(*known)
            if value["format"] != FORMAT:
                raise ValueError(f"format {value['format']}")
            shape = tuple(map(int, value["shape"]))
            if len(shape) != 3 or min(shape) < 1:
                raise ValueError(f"shape {shape}"[:200])
            return cls(*known, shape, _finite(value["answers"]), None if "file" not in value else str(value["file"]))
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(f"expected the identity of a network, got {error}; make the run again") from None


def recorded_identity(settings: Mapping[str, Any], role: str = "model") -> Identity:
    """The network of this role in the settings of a run; the oldest published runs have only its hash."""
    networks = settings.get("networks")
    recorded = networks.get(role) if isinstance(networks, dict) else None
    return Identity.from_json(recorded if recorded is not None else str(settings.get(role)))


def network_settings(**networks: Identity | None) -> dict[str, object]:
    """What the settings of a run record of its networks, by role: their hashes, and under "networks" the identities."""
    hashes = {role: None if network is None else network.weights for role, network in networks.items()}
    return {**hashes, "networks": {role: network.to_json() for role, network in networks.items() if network}}


def first_difference(before: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> Difference | None:
    """The first key whose values differ in two nested settings (JSON), with both values; None if they are equal.

    Identities of networks are compared by ``Identity.difference``, where both sides have one.
    """
    for key in sorted(before.keys() | now.keys()):
        one, other = before.get(key), now.get(key)
        difference: Difference | None = None
        if _is_identity(one) or _is_identity(other):
            difference = _identity_difference(key, one, other)
        elif {type(one), type(other)} in ({dict}, {dict, NoneType}):
            difference = first_difference(one or {}, other or {}, f"{key} ")
        elif one != other:
            difference = f"{within}{key}", one, other
        if difference:
            return difference
    return None


def _identity_difference(role: str, before: Any, now: Any) -> Difference | None:
    if before is None or now is None:
        return None
    difference = Identity.from_json(now).difference(Identity.from_json(before))
    return difference and (f"{role} {difference[0]}", *difference[1:])


def _is_identity(value: Any) -> bool:
    return isinstance(value, dict) and {"format", "weights", "architecture", "answers"} <= value.keys()


def _finite(answers: Any) -> Answers | None:
    if answers is None:
        return None
    rows = tuple(tuple(map(float, row)) for row in answers)
    if not all(map(math.isfinite, chain(*rows))):
        raise ValueError(f"answers {answers}"[:200])
    return rows


def _answer_difference(before: Answers | None, now: Answers | None) -> Difference | None:
    if before is None or now is None:
        described = {True: "the same in every pass", False: "not the same in every pass"}
        one, other = (described[answers is not None] for answers in (before, now))
        return None if one == other else ("answers to probe images", one, other)
    if [*map(len, before)] != [*map(len, now)]:
        return "answers to probe images", f"{sum(map(len, before))} numbers", f"{sum(map(len, now))} numbers"
    pairs = [*zip(chain(*before), chain(*now), strict=True)]
    if not pairs:
        return None
    tolerance = ROUNDING * max(LEAST, *map(abs, chain(*pairs)))
    first, second = max(pairs, key=lambda pair: abs(pair[0] - pair[1]))
    return None if abs(first - second) <= tolerance else ("answer to a probe image", first, second)
