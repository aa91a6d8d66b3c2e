"""Audits: whether certificates are true. ``average`` is about statistical ones, ``proofs`` about deterministic ones."""

from heatsmooth.auditing.average import audit, audit_agreement
from heatsmooth.auditing.proofs import audit_proofs
from heatsmooth.auditing.verdict import verdict

__all__ = ["audit", "audit_agreement", "audit_proofs", "verdict"]
