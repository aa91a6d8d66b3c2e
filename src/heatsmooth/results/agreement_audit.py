"""The result of an audit of a network without gradients: how close one pass is to the average. Nothing is attacked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from heatsmooth.results.audit import AUDIT_FILE, AgreementMeasures, Verdict
from heatsmooth.results.schema import Format, to_json
from heatsmooth.runs import write_json

AGREEMENT: Final = "agreement"


@dataclass(frozen=True, kw_only=True)
class AgreementAudit(AgreementMeasures):
    """What an audit without attacks measured, and its verdict."""

    audited: Literal["agreement"] = AGREEMENT
    """Tells this kind of audit from the others."""
    verdict: Verdict
    format: Format = 1

    def write(self, directory: Path) -> None:
        """Write the audit into a run directory."""
        write_json(directory / AUDIT_FILE, to_json(self))
