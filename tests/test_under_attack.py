"""The radius that holds under attack: in a half-space model, where everything is known, and through the commands."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import special, stats

import heatsmooth as hs
from heatsmooth import InputError
from heatsmooth.certification.noisy_passes import seeded_passes
from heatsmooth.commands.line import run
from heatsmooth.data import load_images
from heatsmooth.models import load as load_model
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.guarantees import Basis, BasisKind
from heatsmooth.results.noisy_passes import NoisyPasses
from heatsmooth.results.one_pass import read_one_pass
from heatsmooth.results.radii import radii_of
from heatsmooth.statistics.attacked import SLACK, attacked, attacked_votes, risks_by_count
from heatsmooth.statistics.bounds import Floats
from heatsmooth.under_attack import AttackCalibration, calibrate_under_attack
from tests.conftest import certificate_of

SIGMA, EPSILON, CAP = 0.25, 0.1, 2.3 * 0.25
"""The half-space model: class 1 where the coordinate t is positive. Its average has the radius |t| there."""


def certified(t: Floats) -> Certificates:
    rows = [
        certificate_of(
            index=i,
            sigma=SIGMA,
            predicted=int(value > 0),
            target=int(value > 0),
            radius=min(abs(value), CAP),
            abstain=False,
            clean_probabilities=(0.5, 0.5),
            counts=(50, 50),
        )
        for i, value in enumerate(t.tolist())
    ]
    return Certificates.of(rows)


def passes_of(t: Floats, noise: float, count: int, random: np.random.Generator) -> NoisyPasses:
    """Noisy passes of a network whose log odds grow with the coordinate."""
    z = t[:, None] + noise * random.normal(size=(len(t), count))
    doubts = special.ndtr(-np.abs(z) / SIGMA)
    return NoisyPasses(classes=(z > 0).astype(np.int64), doubts=doubts, number_of_classes=2, noise=noise)


def false_under(calibration: AttackCalibration, t: Floats, shift: float) -> Floats:
    """The exact probability of a false claim about each image, if the attacker moves it by ``shift`` in the worse way.

    A pass at z claims the certified class too far if |z| is at least ``far``, and the other class if it is past 0 by
    ``wrong``.
    """
    doubts, radii = np.array(calibration.steps).T
    starts = np.append(-special.ndtri(doubts) * SIGMA, np.inf)
    margin = np.abs(t)
    far = starts[np.searchsorted(radii, np.minimum(margin, CAP), side="right")]
    wrong = np.maximum(starts[0], 0)

    def chance(q: Floats) -> Floats:
        return np.asarray(stats.binom.sf(calibration.needed - 1, calibration.passes, q))

    def false(centre: Floats) -> Floats:
        own, other = special.ndtr((centre - far) / calibration.noise), special.ndtr((-centre - wrong) / calibration.noise)
        return chance(own) + chance(other)

    return np.maximum(false(margin + shift), false(margin - shift))


@pytest.mark.parametrize(("passes", "noise"), [(1, SIGMA), (5, SIGMA), (1, SIGMA / 2)])
@pytest.mark.parametrize("rho", [0, 0.25 * SIGMA, 0.5 * SIGMA, SIGMA])
def test_it_covers_under_the_worst_attack_and_not_under_a_longer_one(rho: float, passes: int, noise: float) -> None:
    risks, broken = [], []
    for seed in range(4):
        random = np.random.default_rng(seed)
        t, new = SIGMA * random.normal(0.9, 1, 300), SIGMA * random.normal(0.9, 1, 4000)
        calibration = calibrate_under_attack(
            certified(t), passes_of(t, noise, 500, random), rho=rho, epsilon=EPSILON, votes=passes, seed=seed
        )
        assert calibration.steps
        risks.append(false_under(calibration, new, rho).mean())
        broken.append(false_under(calibration, new, 3 * max(rho, SIGMA / 4)).mean())
    error = np.sqrt(EPSILON * (1 - EPSILON) / 200 / len(risks))
    assert np.mean(risks) <= EPSILON + 3 * error
    assert np.mean(broken) > EPSILON + 3 * error
