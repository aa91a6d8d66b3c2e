"""Audits side by side. ``audit.html`` shows each one with its intervals."""

from heatsmooth.reporting.certificate_tables import STATISTICAL
from heatsmooth.reporting.collection import AuditedModel, Collection
from heatsmooth.reporting.formats import percent, share_text
from heatsmooth.results.audit import Agreement, AverageAttacks, Broken
from heatsmooth.table import Column, Table


def how_many(counts: Agreement | AverageAttacks | Broken) -> str:
    """How many of how many."""
    if isinstance(counts, Agreement):
        return f"{counts.count:,} of {counts.images:,}"
    return f"{counts.violations if isinstance(counts, AverageAttacks) else counts.broken:,} of {counts.attacked:,}"


def audit_table(collection: Collection) -> Table | None:
    """Audits side by side: counts and shares, no radii."""
    if not collection.audits:
        return None

    def teacher(item: AuditedModel) -> float | None:
        distances = item.result.approximation.teacher
        return None if distances is None else distances.mean

    columns = (
        Column("Model", lambda item: collection.model_name(item.model, item.name), words=True),
        Column("Verdict", lambda item: item.result.verdict.kind, words=True),
        Column("One pass agrees with average", lambda item: item.result.agreement.share, percent),
        Column("Distance to own average", lambda item: item.result.approximation.own.mean, share_text, "mean"),
        Column("Distance to teacher's average", teacher, share_text, "mean"),
        Column("Average broken inside its radius", lambda item: item.result.average_attacks, how_many, STATISTICAL),
        Column(
            "Network broken inside the average's radius",
            lambda item: item.result.network_attacks.inside_average_radius,
            how_many,
            "network · attack",
        ),
        Column(
            "Network broken inside its L-bound",
            lambda item: item.result.network_attacks.inside_l_bound,
            how_many,
            "network · attack",
        ),
        Column("Steepest slope / assumed", lambda item: item.result.lipschitz.ratio, lambda ratio: f"{ratio:.2f} ×"),
    )
    note = "Counts and shares of attacks and images. The radii are in the tables above."
    return Table.of("Audit", columns, collection.audits).noted("audit", note)
