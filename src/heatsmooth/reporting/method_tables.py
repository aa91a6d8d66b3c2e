"""The models of a report side by side, and how long their predictions take."""

from heatsmooth.reporting.certificate_tables import STATISTICAL
from heatsmooth.reporting.collection import Certification, Collection, Training
from heatsmooth.reporting.formats import count_text, distance_text, duration, plain, radius_text, share_text
from heatsmooth.reporting.probabilities import QUARTERS_NOTE, quartiles_column
from heatsmooth.results.comparison import Timing
from heatsmooth.results.guarantees import Subject
from heatsmooth.table import Column, Table


def _under_noise(training: Training, collection: Collection) -> float | None:
    """Accuracy under noise as its run measured it, or as that of a model smoothed from it did."""
    summary = training.run.info.summary
    if summary is not None and summary.accuracy_under_noise is not None:
        return summary.accuracy_under_noise
    students = (t.run.info.summary for t in collection.trainings if training.model and t.teacher == training.model)
    measured = (summary.teacher_accuracy_under_noise for summary in students if summary)
    return next((accuracy for accuracy in measured if accuracy is not None), None)


def methods_table(collection: Collection) -> Table | None:
    """The models side by side: how they were made, at what cost, how accurate, how robust."""
    if not collection.trainings:
        return None

    def median(kind: str) -> Column:
        def value(item: Training) -> float | None:
            same = [a.results for a in collection.attacks if item.model and (a.model, a.kind) == (item.model, kind)]
            on_network = next((results for results in same if results.subject is Subject.NETWORK), None)
            return on_network.median if on_network else None

        return Column(f"{kind} median", value, distance_text, "network · attack, upper bound")

    def comparable(item: Training) -> Certification | None:
        """Its L2 radii of Gaussian noise: those of other norms have no place in one column with them."""
        certified = collection.certified(item.model)
        return certified if certified and certified.claims.basis.usual else None

    def certified_at(radius: float) -> Column:
        def value(item: Training) -> float | None:
            certified = comparable(item)
            return certified.certified_at(radius) if certified else None

        return Column(f"Certified at {plain(radius)}", value, share_text, STATISTICAL)

    def acr(item: Training) -> float | None:
        certified = comparable(item)
        return certified.acr if certified else None

    def accuracy(item: Training) -> float | None:
        return item.run.info.summary.accuracy if item.run.info.summary else None

    columns = (
        Column("Model", lambda item: item.name, words=True),
        Column("Method", lambda item: item.method or None, words=True),
        Column("σ", lambda item: item.sigma, plain),
        Column("Labels", lambda item: "no" if item.unlabelled else "yes"),
        Column("Training", lambda item: item.run.info.seconds, duration),
        Column("Accuracy", accuracy, share_text, "one pass"),
        Column("Under noise", lambda item: _under_noise(item, collection), share_text, "one pass"),
        certified_at(0.25),
        certified_at(0.5),
        Column("ACR", acr, radius_text, STATISTICAL),
        quartiles_column(comparable),
        median("PGD"),
        median("DDN"),
    )
    note = (
        "Accuracy: the share of test images that are correct, without noise and with noise of level σ. A model without "
        "σ is measured at that of the model smoothed from it. Attack distances: over images correct at the start. The "
        "training time of a smoothed model does not include that of the model it started from. "
        f"{QUARTERS_NOTE}"
    )
    return Table.of("Comparison of methods", columns, collection.trainings).noted("methods", note)


def timing_table(collection: Collection) -> Table | None:
    """One pass against the noisy passes of a stochastic model, with the same optimisations and without any."""
    if not collection.timings:
        return None

    def times(seconds: float, timing: Timing) -> str | None:
        return f"{seconds / timing.one_pass_seconds:.1f} ×" if seconds and timing.one_pass_seconds else None

    columns = (
        Column("Measured in", lambda item: item[0], words=True),
        Column("Images", lambda item: item[1].images, count_text),
        Column("One pass", lambda item: item[1].one_pass_seconds, duration),
        Column("Samples", lambda item: item[1].samples, count_text),
        Column("Stochastic", lambda item: item[1].stochastic_seconds, duration),
        Column("Ratio", lambda item: times(item[1].stochastic_seconds, item[1])),
        Column("Not optimised", lambda item: item[1].plain_seconds, duration),
        Column("Ratio, not optimised", lambda item: times(item[1].plain_seconds, item[1])),
        Column("Same class", lambda item: item[1].agreement, share_text),
    )
    note = (
        "Time per image: one pass against a vote over noisy samples, on the same machine. Not optimised: Cohen's "
        "PREDICT as in its pseudo-code, with the network as it is. Same class: how often one pass has the class of "
        "the vote."
    )
    table = Table.of("Inference: one pass against stochastic", columns, collection.timings)
    return table.noted("inference-time", note)
