"""The map from probabilities to a radius that the calibrations have in common, and its file; no torch."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from heatsmooth.errors import InputError, require
from heatsmooth.results.guarantees import Basis, Subject
from heatsmooth.statistics.bounds import Floats, Integers, checked

FORMAT, FORMAT_WITH_HEAD, FORMAT_WITH_RUNNER_UP = 1, 2, 3
"""Of a calibration file. Older versions refuse what they do not know: a head that predicts the votes, and a weight of
the runner-up."""
LEAST_DOUBT = 1e-12
LARGEST_WEIGHT = 4.0
"""The largest size of the weight of the runner-up."""
NO_DOUBT = 2 * LEAST_DOUBT
"""Weighted doubts below this are the least doubt, however they are rounded."""
SUM_TOLERANCE = 1e-3
"""Largest difference of a sum of probabilities from 1."""
SOFTMAX = "take the softmax of logits first"


@dataclass(frozen=True)
class LearntRadius(ABC):
    """A map from probabilities to a radius of the average, learnt from certified images, and what it rests on."""

    steps: tuple[tuple[float, float], ...]
    """(doubt, radius): a pass with at most this doubt has at least this radius; falling doubts, growing radii."""
    classes: int
    epsilon: float
    alpha: float
    sigma: float
    """Standard deviation of the noise of the average, in [0, 1] pixels."""
    fitted: int
    """Number of images the model was fitted on."""
    corrected: int
    """Number m of other images that selected λ."""
    seed: int = 0
    model_hash: str | None = None
    data: Any = None
    """Description of the images with their fingerprint, as JSON."""
    subject: Subject = Subject.AVERAGE
    network: Any = None
    """The network's identity as JSON. Published files from before identities have only ``model_hash``."""
    head: str | None = None
    """Hash of the head that predicts the probabilities, see ``models.votes``; None: they are the network's own."""
    runner_up: float = 0.0
    """Weight of the runner-up in the doubt, see ``doubt_of``."""

    @property
    @abstractmethod
    def basis(self) -> Basis:
        """What the radius rests on."""

    @property
    def _format(self) -> int:
        if self.runner_up:
            return FORMAT_WITH_RUNNER_UP
        return FORMAT if self.head is None else FORMAT_WITH_HEAD

    def to_json(self) -> dict[str, object]:
        """As JSON, with every number exact."""
        unsaid = [("head", None), ("runner_up", 0.0)]
        facts = {name: value for name, value in asdict(self).items() if (name, value) not in unsaid}
        return {"format": self._format, "basis": str(self.basis), **facts}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The calibration that ``to_json`` wrote; an ``InputError`` if a field is missing or wrong."""
        number = value.get("format")
        try:
            later = {"network": value.get("network"), "head": value.get("head")}
            later["runner_up"] = float(value.get("runner_up", 0.0))
            facts = {field.name: value[field.name] for field in fields(cls) if field.name not in later}
            facts |= {**later, "subject": Subject(value["subject"]), "steps": read_steps(facts["steps"])}
            known = cls(**facts)
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise InputError(f"calibration: expected all fields, got a wrong one ({error}); calibrate again") from None
        own = known._format
        require(number == own, f"calibration: expected format {own}, got {number!r}; calibrate again")
        small = abs(known.runner_up) <= LARGEST_WEIGHT
        require(small, f"calibration: expected a weight from -4 to 4, got {known.runner_up}; calibrate again")
        return known


def read_steps(value: Any) -> tuple[tuple[float, float], ...]:
    """The steps of a calibration, as JSON has them; others are refused."""
    steps = tuple((float(doubt), float(radius)) for doubt, radius in value)
    sound = all(d > e and r < s for (d, r), (e, s) in pairwise([(math.inf, 0.0), *steps, (0.0, math.inf)]))
    require(sound, "calibration: expected falling doubts and growing radii, got others; calibrate again")
    return steps


def radius_at(steps: tuple[tuple[float, float], ...], doubts: Floats) -> Floats:
    """The radius of each doubt (…), by the ``steps`` of a calibration."""
    levels, radii = np.array([(np.inf, 0.0), *steps]).T
    return np.asarray(radii[level_of(levels, doubts)])


def doubt_of(probabilities: ArrayLike, classes: int, runner_up: float = 0.0) -> Floats:
    """How unsure a pass is, (…, classes) → (…), from 0 to 1.

    Let d = Σ_{c≠ĉ} v_c be the probability of all other classes, and s the share of it that the second class has. The
    odds of the doubt are d/(1−d)·s^w, with the weight w = ``runner_up``. With w = 0, the doubt is d. It is a sum,
    because 1 − v_ĉ loses all digits if the network is confident.
    """
    positive = checked("probabilities", probabilities, lambda p: p >= 0, f"numbers from 0 to 1; {SOFTMAX}")
    v = np.sort(np.atleast_1d(positive))
    require(
        v.shape[-1] == classes >= 2,
        f"`probabilities`: expected {classes} classes, at least 2, got {v.shape[-1]}; use those of the network",
    )
    checked("probabilities", v.sum(-1), lambda p: np.abs(p - 1) <= SUM_TOLERANCE, f"a sum of 1 per image; {SOFTMAX}")
    others = np.clip(v[..., :-1].sum(-1), LEAST_DOUBT, 1 - LEAST_DOUBT)
    if not runner_up:
        return np.asarray(others)
    share = np.maximum(v[..., -2], LEAST_DOUBT) / others
    weighted = special.expit(special.logit(others) + runner_up * np.log(share))
    return np.asarray(np.where(weighted < NO_DOUBT, LEAST_DOUBT, np.minimum(weighted, 1 - LEAST_DOUBT)))


def level_of(levels: Floats, doubts: Floats) -> Integers:
    """The last of the falling ``levels`` that is at least the doubt; the first is infinite."""
    return np.asarray(np.searchsorted(-levels, -doubts, side="right") - 1)
