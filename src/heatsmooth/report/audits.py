"""What an audit found, for the page: each measure with its interval, and what it means."""

from dataclasses import dataclass
from typing import Any

from heatsmooth.report.collection import Audit, Collection
from heatsmooth.report.results import STATISTICAL
from heatsmooth.report.tables import Column, Table, without_empty_columns
from heatsmooth.report.values import NONE, count_text, dig, interval, number, one_line, percent, plain, share_text, text

KINDS = {"holds": "Holds", "caution": "Caution", "broken": "Broken"}


@dataclass(frozen=True)
class Measure:
    """A number of the audit; with ``share``, a bar with its interval is drawn."""

    name: str
    value: str
    meaning: str
    share: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Finding:
    """An audit of one model."""

    model: str
    kind: str
    verdict: str
    conditions: str
    measures: list[Measure]


def findings(collection: Collection) -> list[Finding]:
    """One for each audit; measures an older file lacks are left out."""
    return [_finding(audit, collection.model_name(audit.model, audit.name)) for audit in collection.audits]


def _finding(audit: Audit, model: str) -> Finding:
    facts = audit.facts
    kind = text(facts, "verdict", "kind") or ""
    conditions = [
        f"{count_text(number(facts, key))} {name}"
        for key, name in (("images", "images"), ("n", "draws an image"))
        if number(facts, key) is not None
    ]
    conditions += [
        f"{sign} {plain(number(facts, key))}"
        for key, sign in (("sigma", "σ"), ("alpha", "α"))
        if number(facts, key) is not None
    ]
    said = dig(facts, "verdict", "text")
    verdict = one_line(said, 1000) if said and isinstance(said, str) else "the audit gives no verdict"
    measures = [m for m in (*_agreement(facts), *_approximation(facts), *_attacks(facts), *_slope(facts)) if m]
    return Finding(model, kind if kind in KINDS else "unknown", verdict, " · ".join(conditions), measures)


def _share(facts: dict[str, Any], name: str, meaning: str, counted: str, of: str, *keys: str) -> Measure | None:
    share, count, total = (number(facts, *keys, key) for key in ("share", counted, of))
    if share is None and count is not None and total:
        share = count / total
    if share is None:
        return None
    low, high = interval(facts, *keys, "interval")
    if low is None or high is None or not 0 <= low <= high <= 1:
        low = high = None
    value = percent(share) if count is None or total is None else f"{percent(share)} ({count:,.0f} of {total:,.0f})"
    return Measure(name, value, meaning, min(max(share, 0.0), 1.0), low, high)


def _agreement(facts: dict[str, Any]) -> list[Measure | None]:
    meaning = "How often the network in one pass gives the class of its Gaussian average, which is the one certified"
    return [_share(facts, "One pass agrees with the average", meaning, "count", "images", "agreement")]


def _approximation(facts: dict[str, Any]) -> list[Measure | None]:
    found: list[Measure | None] = []
    for key, whose in (("self", "its own average"), ("teacher", "the average of its teacher")):
        mean, median, largest = (number(facts, "approximation", key, part) for part in ("mean", "median", "largest"))
        if mean is None:
            continue
        low, high = interval(facts, "approximation", key, "interval")
        between = "" if low is None or high is None else f" ({low:.3f}–{high:.3f})"
        rest = f"Median {share_text(median)}, largest {share_text(largest)}; 0 would be an exact average"
        found.append(Measure(f"Mean distance of the probabilities to {whose}", f"{mean:.3f}{between}", rest))
    return found


def _attacks(facts: dict[str, Any]) -> list[Measure | None]:
    attacked, violations = (number(facts, "average_attacks", key) for key in ("attacked", "violations"))
    found: list[Measure | None] = []
    if attacked is not None and violations is not None:
        most = number(facts, "average_attacks", "expected_at_most")
        expected = "" if most is None else f" At most {most:.3g} are expected at this α."
        meaning = f"Attacks on the average inside its statistical radius that succeeded.{expected}"
        value = f"{violations:,.0f} of {attacked:,.0f}"
        found.append(Measure("Violations of the certificate", value, meaning))
    inside = "Attacks on the network in one pass that succeeded inside"
    for key, name, what in (
        ("inside_average_radius", "Network broken inside the average's radius", "the radius certified for its average"),
        ("inside_l_bound", "Network broken inside its L-bound", "the L-bound, which assumes an exact average"),
    ):
        found.append(_share(facts, name, f"{inside} {what}", "broken", "attacked", "network_attacks", key))
    share, fraction = (number(facts, "network_attacks", "surviving_fraction", key) for key in ("share", "fraction"))
    if share is not None and fraction is not None and fraction >= 0:
        kept = f"{percent(share)} of the network's answers survived these attacks"
        meaning = f"Empirical: at this fraction of the average's radius, {kept}."
        found.append(Measure("Fraction of the radius that survives", plain(fraction), meaning))
    return found


def _slope(facts: dict[str, Any]) -> list[Measure | None]:
    found, assumed, ratio = (number(facts, "lipschitz", key) for key in ("found", "assumed", "ratio"))
    if found is None or assumed is None:
        return []
    times = "" if ratio is None else f", {ratio:.2f} times"
    meaning = "Steepest slope found between images, against the one an exact average could have at most"
    return [Measure("Slope found against assumed", f"{found:.3g} against {assumed:.3g}{times}", meaning)]


def audit_table(collection: Collection) -> Table | None:
    """Audits side by side: counts and shares, no radii."""
    rows = []
    for audit in collection.audits:
        facts = audit.facts
        ratio = number(facts, "lipschitz", "ratio")
        rows.append(
            (
                collection.model_name(audit.model, audit.name),
                text(facts, "verdict", "kind") or NONE,
                percent(number(facts, "agreement", "share")),
                share_text(number(facts, "approximation", "self", "mean")),
                share_text(number(facts, "approximation", "teacher", "mean")),
                _of(facts, "violations", "average_attacks"),
                _of(facts, "broken", "network_attacks", "inside_average_radius"),
                _of(facts, "broken", "network_attacks", "inside_l_bound"),
                NONE if ratio is None else f"{ratio:.2f} ×",
            )
        )
    if not rows:
        return None
    columns = (
        Column("Model", words=True),
        Column("Verdict", words=True),
        Column("One pass agrees with average"),
        Column("Distance to own average", "mean"),
        Column("Distance to teacher's average", "mean"),
        Column("Average broken inside its radius", STATISTICAL),
        Column("Network broken inside the average's radius", "network · attack"),
        Column("Network broken inside its L-bound", "network · attack"),
        Column("Slope found / assumed"),
    )
    note = "Counts and shares of attacks and images; the radii they are about are in the tables above."
    return without_empty_columns(Table("audit", "Audit", columns, tuple(rows), note))


def _of(facts: dict[str, Any], counted: str, *keys: str) -> str:
    count, total = number(facts, *keys, counted), number(facts, *keys, "attacked")
    return NONE if count is None or total is None else f"{count:,.0f} of {total:,.0f}"
