"""The calibrations beside a network."""

from pathlib import Path

from heatsmooth.calibration import Calibration
from heatsmooth.errors import require
from heatsmooth.identity import Identity
from heatsmooth.models import Classifier, Voter, is_known_as, require_voter
from heatsmooth.models.votes import VOTES_FILE, load_voter
from heatsmooth.runs import read_json
from heatsmooth.under_attack import AttackCalibration

CALIBRATION_FILE = "calibration.json"
ATTACK_FILE = "calibration_under_attack.json"
"""Another file, so that nobody takes a radius of noisy passes for one of a pass without noise."""


def read_calibration(source: Path, network: Classifier) -> Calibration | None:
    """The calibration in the directory of a network, if there is one; it must be of that network."""
    file = source / CALIBRATION_FILE
    if not source.is_dir() or not file.exists():
        return None
    calibration = Calibration.from_json(read_json(file))
    _check(file, calibration, network)
    return calibration


def read_voter(source: Path, network: Classifier, calibration: Calibration | AttackCalibration | None) -> Voter | None:
    """The head or copy beside a calibration, in evaluation mode, if the calibration has one; it must be that one."""
    if calibration is None or calibration.head is None:
        return None
    head = load_voter(source / VOTES_FILE, network)
    require_voter(calibration.head, head)
    return head


def read_attack_calibration(source: Path, network: Classifier) -> AttackCalibration:
    """The calibration under attack in the directory of a network; it must be there, and of that network."""
    file = source / ATTACK_FILE
    require(
        file.is_file(),
        f"`under_attack`: expected a network calibrated for it, got {source} without {ATTACK_FILE}; run heatsmooth "
        "calibrate --under-attack RHO",
    )
    calibration = AttackCalibration.from_json(read_json(file))
    _check(file, calibration, network)
    return calibration


def _check(file: Path, calibration: Calibration | AttackCalibration, network: Classifier) -> None:
    """Refuse the calibration of another network."""
    recorded = Identity.from_json(calibration.network or str(calibration.model_hash))
    require(
        is_known_as(network, recorded), f"{file}: expected a calibration of this model, got another's; calibrate again"
    )
