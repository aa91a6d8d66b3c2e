"""Tables of adversarial distances: L-bounds from below, attacks from above."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from heatsmooth.reporting.certificate_tables import STATISTICAL
from heatsmooth.reporting.collection import AttackRun, Certification, Collection
from heatsmooth.reporting.formats import count_text, distance_text, plain, radius_text
from heatsmooth.reporting.naming import Names
from heatsmooth.results.guarantees import Subject
from heatsmooth.statistics.bounds import Floats
from heatsmooth.table import Column, Table

ASSUMED = "network · assumes exact average"
Middles = Mapping[str, tuple[float | None, float | None]]
"""Median and mean by model."""


def distance_table(collection: Collection, names: Names) -> Table | None:
    """Adversarial distance as in the paper: L-bound, PGD, DDN, median and mean, each about a named subject."""
    certified: dict[str, list[Certification]] = {}
    for item in collection.certifications:
        certified.setdefault(names.model_of(item), []).append(item)
    models = dict.fromkeys([*certified, *(names.model_of(attack) for attack in collection.attacks)])
    assumed = {model: _middles(_l_bounds(items, collection)) for model, items in certified.items()}
    statistical = {model: _middles(_mean_l_bounds(items)) for model, items in certified.items()}
    columns = [
        Column("Model", str, words=True),
        *_median_and_mean("L-bound", assumed, radius_text, ASSUMED),
        *_median_and_mean("L-bound", statistical, radius_text, STATISTICAL),
        *_attack_columns(collection, names),
    ]
    measured = [model for model in models if any(c.value and c.value(model) is not None for c in columns[1:])]
    note = (
        "Over images that were correct at the start. A median counts a failed attack as infinitely far. A mean leaves "
        "it out, so read it with the number of failed attacks below. The L-bound of the network in one pass assumes "
        "that the network is an exact Gaussian average, which nothing here proves. Networks that were not smoothed "
        "have none. The statistical L-bound is about the averaged probabilities."
    )
    return Table.of("Adversarial distance", columns, measured).noted("adversarial-distance", note) if measured else None


def _attack_columns(collection: Collection, names: Names) -> Iterator[Column]:
    """Median and mean distance per attacked subject and kind of attack: the network first, PGD first."""
    distances: dict[tuple[Subject, str], dict[str, tuple[float | None, float | None]]] = {}
    for attack in collection.attacks:
        by_model = distances.setdefault((attack.results.subject, attack.kind), {})
        by_model.setdefault(names.model_of(attack), (attack.results.median, attack.results.mean))
    for subject, kind in sorted(distances, key=lambda key: (key[0] is Subject.AVERAGE, key[1] != "PGD", key[1])):
        about = f"{subject} · attack, upper bound"
        yield from _median_and_mean(kind, distances[subject, kind], distance_text, about)


def _median_and_mean(head: str, values: Middles, show: Callable[[float], str], about: str) -> tuple[Column, Column]:
    nothing = (None, None)
    return (
        Column(f"{head}, median", lambda model: values.get(model, nothing)[0], show, about),
        Column(f"{head}, mean", lambda model: values.get(model, nothing)[1], show, about),
    )


def _middles(values: Floats | None) -> tuple[float | None, float | None]:
    return (None, None) if values is None or not values.size else (float(np.median(values)), float(values.mean()))


def _l_bounds(items: list[Certification], collection: Collection) -> Floats | None:
    """L-bounds of the network in one pass, over correct images, if it was smoothed to be an average."""
    for item in items:
        maker, certificates = collection.maker(item.model), item.certificates
        if maker is not None:
            smoothed = maker.smoothed
        else:
            smoothed = item.class_from == "clean" and not collection.is_teacher(item.model)
        if smoothed and certificates is not None:
            bounds = certificates.l_bounds
            if bounds is None or certificates.labels is None:
                return bounds
            return bounds[certificates.one_pass_correct]
    return None


def _mean_l_bounds(items: list[Certification]) -> Floats | None:
    """Statistical L-bounds of the averaged probabilities, over images whose class is correct."""
    for certificates in (item.certificates for item in items):
        bounds = None if certificates is None else certificates.mean_l_bounds
        if certificates is not None and bounds is not None:
            return bounds if certificates.labels is None else bounds[certificates.targets == certificates.labels]
    return None


def attacks_table(collection: Collection, names: Names) -> Table | None:
    """Every attack run: its settings, and how many images were wrong, attacked, censored."""
    if not collection.attacks:
        return None

    def attacked(item: AttackRun) -> str:
        samples = item.run.info.chosen.noise_samples
        averaged = item.results.subject is Subject.AVERAGE and samples
        return item.results.subject + (f", {count_text(samples)} samples" if averaged else "")

    columns = (
        Column("Model", names.model_of, words=True),
        Column("Attack", lambda item: item.kind, words=True),
        Column("Attacked", attacked, words=True),
        Column("Steps", lambda item: item.run.info.chosen.steps, plain),
        Column("ε", lambda item: item.run.info.chosen.eps, plain),
        Column("Top\u00a0k", lambda item: item.run.info.chosen.top_k, plain),
        Column("Images", lambda item: len(item.results), count_text),
        Column("Wrong at the start", lambda item: int(item.results.wrong.sum()), count_text),
        Column("Attack succeeded", lambda item: int(item.results.succeeded.sum()), count_text),
        Column("Attack failed (censored)", lambda item: int(item.results.failed.sum()), count_text),
    )
    note = "A failed attack shows only that this attack found nothing. The true distance is not known."
    runs = sorted(collection.attacks, key=lambda a: (names.model_of(a), a.kind))
    return Table.of("Attacks, run by run", columns, runs).noted("attacks", note)
