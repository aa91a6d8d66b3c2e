"""The tables of a report, from what was read. Each column of radii or distances says whose and how sure they are."""

import numpy as np

from heatsmooth.report.collection import Attack, Certification, Collection, Training
from heatsmooth.report.figures import BAND
from heatsmooth.report.naming import Names, method_of, training_sigma
from heatsmooth.report.tables import Column, Table, without_empty_columns
from heatsmooth.report.values import (
    NONE,
    count_text,
    distance_text,
    duration,
    number,
    percent,
    plain,
    radius_text,
    share_text,
    text,
)
from heatsmooth.results.guarantees import Subject
from heatsmooth.results.radii import Radii
from heatsmooth.statistics.bounds import Floats

SHOWN = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
STATISTICAL = "average · statistical, 1−α"
ASSUMED = "network · assumes exact average"


def acr(radii: Radii) -> float | None:
    """The average certified radius, 0 where wrong or abstained; None without labels."""
    return None if radii.correct is None else radii.average_certified_radius


def share_at(radii: Radii, radius: float) -> float | None:
    """The share of all images with the right class and at least this radius; None without labels."""
    return None if radii.correct is None else float(radii.certified_accuracy(radius))


def certified_at(item: Certification, radius: float) -> float | None:
    """The share of all images certified right at a radius; None without labels, and beyond the largest possible."""
    return None if item.cap is not None and radius > item.cap else share_at(item.claims, radius)


def shown_radii(items: list[Certification]) -> list[float]:
    """The radii worth a column: at which any image of any model is certified."""
    most = max((float(item.claims.radii.max()) for item in items), default=0.0)
    return [radius for radius in SHOWN if radius <= most]


def accuracy_table(collection: Collection, names: Names) -> Table | None:
    """Certified accuracy at round radii, with ACR."""
    items = [item for item in collection.certifications if item.claims.correct is not None]
    if not items:
        return None
    radii = shown_radii(items)
    rows = []
    for item in items:
        abstained = item.claims.abstained
        low, high = item.claims.certified_accuracy_band(radii, alpha=BAND)
        rows.append(
            (
                names.certifications[item.name],
                "" if item.top_k == 1 else str(item.top_k),
                count_text(len(item.claims)),
                f"{int(abstained.sum()):,} ({percent(float(abstained.mean()))})",
                *(
                    NONE if certified_at(item, r) is None else f"{share_text(certified_at(item, r))} ({a:.3f}–{b:.3f})"
                    for r, a, b in zip(radii, low, high, strict=True)
                ),
                radius_text(acr(item.claims)),
            )
        )
    columns = (
        Column("Model", words=True),
        Column("Top\u00a0k"),
        Column("Images"),
        Column("Abstained"),
        *(Column(f"r = {plain(r)}") for r in radii),
        Column("ACR", STATISTICAL),
    )
    note = (
        "Certified accuracy of the average of each network: share of all images, right and with a statistical radius "
        "of at least r; abstentions are errors. In brackets: 95 % Clopper–Pearson. ACR: mean radius over all images, "
        "0 where wrong or abstained."
    )
    return without_empty_columns(
        Table("certified-accuracy", "Certified accuracy at a radius, and ACR", columns, tuple(rows), note)
    )


def radii_table(collection: Collection, names: Names) -> Table | None:
    """Certified radii: median, mean, largest; their settings; what they cost."""
    if not collection.certifications:
        return None
    rows = []
    for item in collection.certifications:
        radii, basis = item.claims.radii, item.claims.basis
        rows.append(
            (
                names.certifications[item.name],
                plain(item.sigma),
                count_text(item.n) + (" at most" if basis.anytime else ""),
                plain(basis.alpha),
                item.class_from or NONE,
                "" if item.top_k == 1 else str(item.top_k),
                count_text(len(radii)),
                radius_text(float(np.median(radii))),
                radius_text(float(radii.mean())),
                radius_text(float(radii.max())),
                radius_text(item.cap),
                NONE if item.certificates is None else count_text(float(item.certificates.samples.mean())),
                NONE if item.seconds is None else duration(float(item.seconds.mean())),
            )
        )
    columns = (
        Column("Model", words=True),
        Column("σ"),
        Column("n"),
        Column("α"),
        Column("Class from", words=True),
        Column("Top\u00a0k"),
        Column("Images"),
        Column("Median radius", STATISTICAL),
        Column("Mean radius", STATISTICAL),
        Column("Largest radius", STATISTICAL),
        Column("Largest possible", "by n and α"),
        Column("Draws an image"),
        Column("Time an image"),
    )
    note = (
        "Over all images, 0 where it abstains, whether the class is right or not (ACR counts wrong ones as 0). "
        "Radii are rounded down. A log does not say σ, n and α."
    )
    if any(item.settings and item.settings.adaptive and item.settings.radii for item in collection.certifications):
        note += " Adaptive runs asked about certain radii are decided at those; elsewhere their radii are smaller."
    return without_empty_columns(Table("certified-radii", "Certified radii", columns, tuple(rows), note))


def _l_bounds(items: list[Certification], collection: Collection) -> Floats | None:
    """L-bounds of the network in one pass, over images it has right, if it was smoothed to be an average."""
    for item in items:
        maker, certificates = collection.maker(item.model), item.certificates
        if maker is not None:
            aimed = maker.run.command == "smooth"
        else:
            aimed = item.class_from == "clean" and not collection.is_teacher(item.model)
        if aimed and certificates is not None:
            bounds = certificates.l_bounds
            return bounds if certificates.labels is None else bounds[certificates.one_pass_correct]
    return None


def _middle(values: Floats | None) -> tuple[str, str]:
    if values is None or not values.size:
        return NONE, NONE
    return radius_text(float(np.median(values))), radius_text(float(values.mean()))


def _mean_l_bounds(items: list[Certification]) -> Floats | None:
    """Statistical L-bounds of the averaged probabilities, over images whose class is right."""
    for certificates in (item.certificates for item in items):
        bounds = None if certificates is None else certificates.mean_l_bounds
        if certificates is not None and bounds is not None:
            return bounds if certificates.labels is None else bounds[certificates.targets == certificates.labels]
    return None


def distance_table(collection: Collection, names: Names) -> Table | None:
    """Adversarial distance as in the paper: L-bound, PGD, DDN, median and mean, each about a named subject."""
    certified: dict[str, list[Certification]] = {}
    for item in collection.certifications:
        certified.setdefault(names.model_of(item), []).append(item)
    attacked: dict[str, list[Attack]] = {}
    for attack in collection.attacks:
        attacked.setdefault(names.model_of(attack), []).append(attack)
    kinds = sorted({(a.results.subject is Subject.AVERAGE, a.kind != "PGD", a.kind) for a in collection.attacks})
    columns = [Column("Model", words=True)]
    for basis in (ASSUMED, STATISTICAL):
        columns += [Column("L-bound, median", basis), Column("L-bound, mean", basis)]
    for average, _, kind in kinds:
        about = f"{'average' if average else 'network'} · attack, upper bound"
        columns += [Column(f"{kind}, median", about), Column(f"{kind}, mean", about)]
    rows = []
    for model in dict.fromkeys([*certified, *attacked]):
        row = [model, *_middle(_l_bounds(certified.get(model, []), collection))]
        row += _middle(_mean_l_bounds(certified.get(model, [])))
        for average, _, kind in kinds:
            subject = Subject.AVERAGE if average else Subject.NETWORK
            same = [a.results for a in attacked.get(model, []) if (a.kind, a.results.subject) == (kind, subject)]
            row += map(distance_text, (same[0].median, same[0].mean) if same else (None, None))
        rows.append(tuple(row))
    rows = [row for row in rows if any(cell != NONE for cell in row[1:])]
    if not rows:
        return None
    note = (
        "Over images that were right at the start. Medians count a failed attack as infinitely far; means leave it "
        "out, so read them with the number of failed attacks below. The L-bound of the network in one pass assumes "
        "that it is an exact Gaussian average, which nothing here proves; networks not smoothed for it have none. "
        "The statistical one is about the averaged probabilities."
    )
    return without_empty_columns(
        Table("adversarial-distance", "Adversarial distance", tuple(columns), tuple(rows), note)
    )


def attacks_table(collection: Collection, names: Names) -> Table | None:
    """Every attack run: its settings, and how many images were wrong, attacked, censored."""
    rows = []
    for attack in sorted(collection.attacks, key=lambda a: (names.model_of(a), a.kind)):
        results, drawn = attack.results, attack.setting("noise_samples")
        rows.append(
            (
                names.model_of(attack),
                attack.kind,
                results.subject
                + (f", {count_text(drawn)} draws" if results.subject is Subject.AVERAGE and drawn else ""),
                *(plain(attack.setting(name)) for name in ("steps", "eps", "top_k")),
                count_text(len(results)),
                count_text(int(results.wrong.sum())),
                count_text(int(results.succeeded.sum())),
                count_text(int(results.failed.sum())),
            )
        )
    if not rows:
        return None
    columns = (
        Column("Model", words=True),
        Column("Attack", words=True),
        Column("Attacked", words=True),
        Column("Steps"),
        Column("ε"),
        Column("Top\u00a0k"),
        Column("Images"),
        Column("Wrong at the start"),
        Column("Attack succeeded"),
        Column("Attack failed (censored)"),
    )
    note = "A failed attack says only that this attack found nothing: the true distance is not known."
    return without_empty_columns(Table("attacks", "Attacks, run by run", columns, tuple(rows), note))


def predictions_table(collection: Collection) -> Table | None:
    """Logs of PREDICT: accuracy and abstention."""
    if not collection.predictions:
        return None
    rows = tuple(
        (p.name, count_text(len(p.correct)), share_text(float(p.correct.mean())), share_text(float(p.abstained.mean())))
        for p in collection.predictions
    )
    columns = (Column("Log", words=True), Column("Images"), Column("Accuracy"), Column("Abstained"))
    note = "Classes of the average without radii. An abstention is an error in the accuracy."
    return Table("predictions", "Predictions of the average", columns, rows, note)


def timing_table(collection: Collection) -> Table | None:
    """One pass against the noisy passes of a stochastic model, with the same optimisations and without any."""
    if not collection.timings:
        return None
    rows = []
    for name, timing in collection.timings:
        once, many, plainly = (number(timing, f"{way}_seconds") for way in ("one_pass", "stochastic", "plain"))
        ratios = [f"{way / once:.1f} ×" if once and way else NONE for way in (many, plainly)]
        images, draws = (count_text(number(timing, fact)) for fact in ("images", "samples"))
        agreement = number(timing, "agreement")
        agreed = NONE if agreement is None else share_text(agreement)
        times = [duration(once), draws, duration(many), ratios[0], duration(plainly), ratios[1]]
        rows.append((name, images, *times, agreed))
    columns = (
        Column("Measured in", words=True),
        Column("Images"),
        Column("One pass"),
        Column("Noisy draws"),
        Column("Stochastic"),
        Column("Ratio"),
        Column("Written plainly"),
        Column("Ratio, plainly"),
        Column("Same class"),
    )
    note = (
        "An image in one pass against a vote of noisy draws, on the same machine; written plainly: Cohen's PREDICT as "
        "its pseudo-code reads, the network as it is. Same class: how often one pass has the class of the vote."
    )
    table = Table("inference-time", "Inference: one pass against stochastic", columns, tuple(rows), note)
    return without_empty_columns(table)


def _under_noise(training: Training, collection: Collection) -> float | None:
    """Accuracy under noise as its run measured it, or as that of a model smoothed from it did."""
    own = number(training.run.info, "summary", "accuracy_under_noise")
    if own is not None or training.model is None:
        return own
    smoothed = [t.run.info for t in collection.trainings if text(t.run.info, "settings", "teacher") == training.model]
    found = (number(info, "summary", "teacher_accuracy_under_noise") for info in smoothed)
    return next((value for value in found if value is not None), None)


def methods_table(collection: Collection) -> Table | None:
    """The models side by side: how made, at what cost, how accurate, how robust."""
    rows = []
    for training in collection.trainings:
        info, name = training.run.info, training.run.name
        certified = collection.certified(training.model)
        medians = {}
        for kind in ("PGD", "DDN"):
            same = [a for a in collection.attacks if training.model and a.model == training.model and a.kind == kind]
            chosen = next((a.results for a in same if a.results.subject is Subject.NETWORK), None)
            medians[kind] = distance_text(chosen.median) if chosen else NONE
        rows.append(
            (
                name,
                method_of(training) or NONE,
                plain(training_sigma(training)),
                "no" if training.run.command == "smooth" else "yes",
                duration(training.run.seconds),
                share_text(number(info, "summary", "accuracy")),
                share_text(_under_noise(training, collection)),
                *(share_text(certified_at(certified, r)) if certified else NONE for r in (0.25, 0.5)),
                radius_text(acr(certified.claims)) if certified else NONE,
                medians["PGD"],
                medians["DDN"],
            )
        )
    if not rows:
        return None
    attack = "network · attack, upper bound"
    columns = (
        Column("Model", words=True),
        Column("Method", words=True),
        Column("σ"),
        Column("Labels"),
        Column("Training"),
        Column("Accuracy", "one pass"),
        Column("Under noise", "one pass"),
        *(Column(f"Certified at {r}", STATISTICAL) for r in ("0.25", "0.5")),
        Column("ACR", STATISTICAL),
        Column("PGD median", attack),
        Column("DDN median", attack),
    )
    note = (
        "Accuracy: share of test images, clean and with noise of σ (without one, that of the model smoothed from it). "
        "Attack distances over images right at the start. "
        "A smoothed model's training time is on top of that of the model it began from."
    )
    return without_empty_columns(Table("methods", "Comparison of methods", columns, tuple(rows), note))
