"""What the measures of an audit mean, in plain words."""

from heatsmooth.results.audit import CONFIDENCE, AuditMeasures, AverageAttacks, Verdict, VerdictKind
from heatsmooth.statistics.bounds import clopper_pearson_lower

FALSE_ALARM = 0.001
"""The audit calls certificates false if as many violations have at most this probability for true certificates."""
TOLERATED = 0.01
"""The share of images that may break inside their L-bound before the audit calls it broken."""
AGREEING = 0.95
"""Below this agreement of one pass and average, the certificates say little about the deployed network."""


def verdict(measures: AuditMeasures) -> Verdict:
    """The conclusion in plain words, and the counts behind it."""
    average, network = measures.average_attacks, measures.network_attacks.inside_l_bound
    agreement, slope = measures.agreement, measures.lipschitz
    kind, conclusion = _conclusion(measures)
    sentences = [
        conclusion,
        f"Average: {average.violations} of {average.attacked} certificates were broken by attack "
        f"({average.expected_at_most:.2g} expected at most).",
        f"Network in one pass: {network.broken} of {network.attacked} predictions break inside their L-bound. "
        f"Slopes reach {slope.ratio:.2g} times the value that the L-bound assumes. "
        f"One pass agrees with the average on {agreement.count} of {agreement.images} images.",
    ]
    return Verdict(kind=kind, text=" ".join(sentences))


def _conclusion(measures: AuditMeasures) -> tuple[VerdictKind, str]:
    average, network = measures.average_attacks, measures.network_attacks.inside_l_bound
    attempts = measures.images + average.attacked
    if clopper_pearson_lower(average.violations, attempts, FALSE_ALARM) > measures.alpha:
        return VerdictKind.BROKEN, "The statistical certificates are false: do not use them."
    about_average = _about_average(average)
    if network.broken or measures.lipschitz.ratio > 1.01:
        many = clopper_pearson_lower(network.broken, network.attacked, 1 - CONFIDENCE) > TOLERATED
        wrong = "is false" if network.broken else "is not justified"
        reason = f"The network is not an exact average at this σ, so its L-bound {wrong}."
        return VerdictKind.BROKEN if many else VerdictKind.CAUTION, f"{about_average}. {reason}"
    agreement = measures.agreement
    if agreement.interval[0] < AGREEING:
        doubt = "One pass may disagree with the average too often"
        if agreement.count >= AGREEING * agreement.images:
            doubt = f"There are too few images to show that one pass agrees with the average on {100 * AGREEING:g} %"
        return VerdictKind.CAUTION, f"{about_average}. {doubt}."
    if average.violations or not average.attacked:
        return VerdictKind.CAUTION, f"{about_average}."
    return VerdictKind.HOLDS, f"{about_average} or against the L-bound."


def _about_average(average: AverageAttacks) -> str:
    if not average.attacked:
        return "There was no certificate of the average to test"
    if average.violations:
        return f"Attacks broke {average.violations} certificates of the average, no more than chance allows"
    return "The attacks found nothing against the certificates of the average"
