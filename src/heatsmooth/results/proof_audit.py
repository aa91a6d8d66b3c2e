"""The result of an audit of deterministic radii: breaks by attack, and how close the attacks came."""

from dataclasses import dataclass
from pathlib import Path

from heatsmooth.results.agreement_audit import AGREEMENT, AgreementAudit
from heatsmooth.results.audit import AUDIT_FILE, AuditResult, Broken, Verdict
from heatsmooth.results.guarantees import BasisKind, Subject
from heatsmooth.results.schema import Finite, Format, Real, Whole, from_json, to_json
from heatsmooth.runs import read_json, write_json


@dataclass(frozen=True, kw_only=True)
class Tightness:
    """How close attacks came to the deterministic radii: upper bounds on what a better proof could give."""

    margin_used: Finite
    """The largest share of an image's margin that an attack inside the radius used up; 1 would be a break."""
    changed: Whole
    """Images whose class an unlimited attack changed."""
    nearest: Real | None
    """The smallest distance of such a change, in units of the radius; below 1 would be a break."""
    median: Real | None


@dataclass(frozen=True, kw_only=True)
class ProofAuditMeasures:
    """What an audit of deterministic radii measured."""

    images: Whole
    steps: Whole
    restarts: Whole
    """Starts of each attack per image."""
    seed: int
    broken: dict[str, Broken]
    """By attack, how many images it broke inside their radius."""
    tightness: Tightness | None
    """None if no image has a radius."""


@dataclass(frozen=True, kw_only=True)
class ProofAudit(ProofAuditMeasures):
    """What an audit of deterministic radii measured, and its verdict."""

    subject: Subject = Subject.NETWORK
    basis: BasisKind = BasisKind.DETERMINISTIC
    verdict: Verdict
    format: Format = 1

    def write(self, directory: Path) -> None:
        """Write the audit into a run directory."""
        write_json(directory / AUDIT_FILE, to_json(self))


def read_audit(directory: Path) -> AuditResult | AgreementAudit | ProofAudit:
    """The audit of a run directory, of any kind: that of deterministic radii states its basis."""
    file = directory / AUDIT_FILE
    value = read_json(file)
    if value.get("audited") == AGREEMENT:
        return from_json(AgreementAudit, value, f"{file}: expected an audit", "audit again")
    if value.get("basis") != BasisKind.DETERMINISTIC:
        return AuditResult.read(directory)
    return from_json(ProofAudit, value, f"{file}: expected an audit", "audit again")
