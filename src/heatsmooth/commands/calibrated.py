"""The calibration beside a network."""

from pathlib import Path

from heatsmooth.calibration import Calibration
from heatsmooth.errors import require
from heatsmooth.identity import Identity
from heatsmooth.models import Classifier, is_known_as
from heatsmooth.runs import read_json

CALIBRATION_FILE = "calibration.json"


def read_calibration(source: Path, network: Classifier) -> Calibration | None:
    """The calibration in the directory of a network, if there is one; it must be of that network."""
    file = source / CALIBRATION_FILE
    if not source.is_dir() or not file.exists():
        return None
    calibration = Calibration.from_json(read_json(file))
    recorded = Identity.from_json(calibration.network or str(calibration.model_hash))
    require(
        is_known_as(network, recorded), f"{file}: expected a calibration of this model, got another's; calibrate again"
    )
    return calibration
