"""Radii from one pass of a calibrated network, as they are on disk."""

from dataclasses import dataclass, field
from pathlib import Path

from heatsmooth.results.guarantees import Basis, Subject
from heatsmooth.results.radii import is_correct
from heatsmooth.results.records import read_each
from heatsmooth.results.schema import Real, Whole, as_text, named

RADII_FILE = "one_pass.jsonl"


@dataclass(frozen=True, kw_only=True)
class OnePassResult:
    """Class and calibrated radius of one image, from one pass.

    Guarantee: that of ``calibrate.Calibration``: ``subject`` keeps the class within ``radius`` (L2, pixels in [0, 1]),
    marginally over images like the calibration set.
    """

    index: Whole
    label: Whole | None
    predicted: Whole | None = field(metadata=named("class"))
    """None where a logit is not finite."""
    radius: Real
    abstain: bool
    subject: Subject
    basis: Basis = field(metadata=as_text(Basis.read))
    received_radius: Real | None = None
    """Under attack: what follows about the image as it was received, max(0, radius − ρ). ``radius`` is about the image
    before the attack."""
    noise_key: str | None = None
    """Under attack: the secret key of the noise, told with the answer and never used again."""

    @property
    def correct(self) -> bool:
        """Whether the radius covers the label, and the model does not abstain."""
        return is_correct(self.label, self.predicted, self.abstain)


def read_one_pass(directory: Path) -> list[OnePassResult]:
    """The one-pass radii of a run directory, each image once, ordered by index."""
    return read_each(directory, RADII_FILE, "a one-pass radius", OnePassResult)
