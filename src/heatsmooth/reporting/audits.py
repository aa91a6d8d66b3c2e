"""Audits side by side. ``audit.html`` shows each one with its intervals."""

from collections.abc import Callable

from heatsmooth.reporting.certificate_tables import DETERMINISTIC, STATISTICAL
from heatsmooth.reporting.collection import AuditedModel, AuditedProofs, Collection
from heatsmooth.reporting.formats import count_text, one_line, percent, share_text
from heatsmooth.results.agreement_audit import AgreementAudit
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


def agreement_table(collection: Collection) -> Table | None:
    """Audits without attacks side by side: how close one pass is to the average."""
    if not collection.agreement_audits:
        return None

    def teacher(item: tuple[str, str | None, AgreementAudit]) -> float | None:
        distances = item[2].approximation.teacher
        return None if distances is None else distances.mean

    columns = (
        Column("Model", lambda item: collection.model_name(item[1], item[0]), words=True),
        Column("Images", lambda item: item[2].images, count_text),
        Column("One pass agrees with average", lambda item: item[2].agreement.share, percent),
        Column("Distance to own average", lambda item: item[2].approximation.own.mean, share_text, "mean"),
        Column("Distance to teacher's average", teacher, share_text, "mean"),
    )
    note = "These networks have no gradients, so nothing was attacked. The radii are in the tables above."
    return Table.of("Audit without attacks", columns, collection.agreement_audits).noted("agreement", note)


def proof_audit_table(collection: Collection) -> Table | None:
    """Audits of deterministic radii side by side: breaks by attack, and how close the attacks came."""
    if not collection.proof_audits:
        return None
    attacks = list(dict.fromkeys(name for item in collection.proof_audits for name in item.result.broken))

    def broken(attack: str) -> Column:
        return Column(
            f"Broken by {one_line(attack, 20)}", lambda item: item.result.broken.get(attack), how_many, DETERMINISTIC
        )

    def close(name: str) -> Callable[[AuditedProofs], float | None]:
        return lambda item: None if item.result.tightness is None else getattr(item.result.tightness, name)

    columns = (
        Column("Model", lambda item: collection.model_name(item.model, item.name), words=True),
        Column("Verdict", lambda item: item.result.verdict.kind, words=True),
        Column("Images", lambda item: item.result.images, count_text),
        Column("Steps", lambda item: item.result.steps, count_text),
        Column("Starts", lambda item: item.result.restarts, count_text),
        *(broken(attack) for attack in attacks),
        Column("Largest share of a margin used", close("margin_used"), share_text, "inside the radius"),
        Column("Smallest distance / radius", close("nearest"), share_text, "network · attack, upper bound"),
        Column("Median distance / radius", close("median"), share_text, "network · attack, upper bound"),
    )
    note = (
        "Attacks on the network inside its deterministic radii. One break would refute the proof. Breaks are "
        "judged by the network as it is deployed. Distances are those of an attack without a limit: how much larger "
        "than the radius they are shows how much a better proof could gain at most."
    )
    table = Table.of("Audit of the deterministic radii", columns, collection.proof_audits)
    return table.noted("audit-of-proofs", note)
