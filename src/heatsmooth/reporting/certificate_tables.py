"""Tables of certified radii. Each column of radii says which model they cover and on what they rest."""

from collections.abc import Iterable

import numpy as np

from heatsmooth.reporting.collection import Calibrated, Certification, Collection, Proven
from heatsmooth.reporting.figures import BAND
from heatsmooth.reporting.formats import count_text, duration, percent, plain, radius_text, share_text
from heatsmooth.reporting.naming import Names
from heatsmooth.reporting.probabilities import QUARTERS_NOTE, WHY, quartiles_column
from heatsmooth.results.guarantees import BasisKind
from heatsmooth.table import Column, Table

RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
STATISTICAL = "average · statistical, 1−α"
CONFORMAL = "average, in one pass · conformal, 1−ε−α"
UNDER_ATTACK = "average, in noisy passes · conformal under attack, 1−ε−α"
DETERMINISTIC = "network, in one pass · deterministic"
LINF_PARTS = (0.5, 1, 2, 4, 8)
"""In 1/255: the radii at which L∞ certified accuracies are shown."""
OTHER_KINDS = (
    " Where no noise is named, it is Gaussian. Where no norm is named, radii are L2. Radii of different norms cannot "
    "be compared."
)
PROVEN_RADII = (36, 72, 108)
"""In 1/255: the radii at which certified accuracies of Lipschitz networks are published."""


def _above_one(k: int) -> str:
    return "" if k == 1 else str(k)


def _kind_columns() -> tuple[Column, Column]:
    """Noise and norm, where any is not Gaussian or L2."""

    def noise(item: Certification) -> str:
        basis = item.claims.basis
        return "" if basis.noise == "gaussian" else basis.noise_name

    def norm(item: Certification) -> str:
        basis = item.claims.basis
        return "" if basis.norm == "l2" else basis.norm_name

    return Column("Noise", noise, words=True), Column("Norm", norm, words=True)


def with_band(values: tuple[float, float, float]) -> str:
    """A share with its interval."""
    share, low, high = values
    return f"{share:.3f} ({low:.3f}–{high:.3f})"


def _largest(items: Iterable[Certification]) -> float:
    """The largest radius, but for those of L∞, which have columns of their own."""
    return max((float(item.claims.radii.max()) for item in items if item.claims.basis.norm != "linf"), default=0.0)


def _abstained(item: Certification) -> str:
    flags = item.claims.abstained
    return f"{int(flags.sum()):,} ({percent(float(flags.mean()))})"


def _accuracy_at(radius: float, text: str = "") -> Column:
    """The column of certified accuracy at a radius; with ``text``, of L∞ radii."""

    def value(item: Certification) -> tuple[float, float, float] | None:
        if (item.claims.basis.norm == "linf") != bool(text):
            return None
        share = item.certified_at(radius)
        low, high = item.claims.certified_accuracy_band([radius], alpha=BAND)
        return None if share is None else (share, float(low[0]), float(high[0]))

    return Column(f"r = {text or plain(radius)}", value, with_band)


def accuracy_table(collection: Collection, names: Names) -> Table | None:
    """Certified accuracy at round radii, with ACR."""
    items = [item for item in collection.certifications if item.labelled]
    if not items:
        return None
    largest = _largest(items)

    columns = (
        Column("Model", lambda item: names.certifications[item.name], words=True),
        *_kind_columns(),
        Column("Top\u00a0k", lambda item: item.top_k, _above_one),
        Column("Images", lambda item: len(item.claims), count_text),
        Column("Abstained", _abstained),
        *map(_accuracy_at, [radius for radius in RADII if radius <= largest]),
        *(_accuracy_at(part / 255, f"{plain(part)}/255") for part in LINF_PARTS),
        Column("ACR", lambda item: item.acr, radius_text, STATISTICAL),
        quartiles_column(lambda item: item),
    )
    note = (
        "Certified accuracy of the average of each network: the share of all images that are correct and have a "
        "statistical radius of at least r. Abstentions count as errors. In brackets: 95 % Clopper–Pearson interval. "
        "ACR: the mean radius over all images, 0 where the class is wrong or the model abstains. "
        f"{QUARTERS_NOTE} {WHY}"
    )
    if not all(item.claims.basis.usual for item in items):
        note += OTHER_KINDS
    return Table.of("Certified accuracy at a radius, and ACR", columns, items).noted("certified-accuracy", note)


def radii_table(collection: Collection, names: Names) -> Table | None:
    """Certified radii: median, mean, largest; their settings; what they cost."""
    items = collection.certifications
    if not items:
        return None

    def samples(item: Certification) -> float | None:
        return None if item.certificates is None else float(item.certificates.samples.mean())

    def estimating(item: Certification) -> str | None:
        return None if item.n is None else count_text(item.n) + (" at most" if item.claims.basis.anytime else "")

    columns = (
        Column("Model", lambda item: names.certifications[item.name], words=True),
        *_kind_columns(),
        Column("σ", lambda item: item.sigma, plain),
        Column("n", estimating),
        Column("α", lambda item: item.claims.basis.alpha, plain),
        Column("Class from", lambda item: item.class_from, words=True),
        Column("Top\u00a0k", lambda item: item.top_k, _above_one),
        Column("Images", lambda item: len(item.claims), count_text),
        *_summary_columns(STATISTICAL),
        Column("Largest possible", lambda item: item.cap, radius_text, "by n and α"),
        Column("Samples per image", samples, count_text),
        Column("Time per image", lambda i: None if i.seconds is None else float(i.seconds.mean()), duration),
    )
    note = (
        "Over all images, correct or not; 0 where the model abstains. ACR differs: it counts wrong classes as 0. "
        "Radii are rounded down. A log does not state σ, n and α."
    )
    if any(item.settings and item.settings.adaptive and item.settings.radii for item in items):
        note += " Adaptive runs with --radii are exact at those radii. Elsewhere, their radii are smaller."
    if not all(item.claims.basis.usual for item in items):
        note += OTHER_KINDS
    return Table.of("Certified radii", columns, items).noted("certified-radii", note)


def _summary_columns(about: str) -> tuple[Column, ...]:
    """Median, mean and largest radius."""
    return (
        Column("Median radius", lambda item: float(np.median(item.claims.radii)), radius_text, about),
        Column("Mean radius", lambda item: float(item.claims.radii.mean()), radius_text, about),
        Column("Largest radius", lambda item: float(item.claims.radii.max()), radius_text, about),
    )


def _correct_at(radius: float, about: str, text: str = "") -> Column:
    """Certified accuracy at a radius, where there are labels."""

    def value(item: Calibrated | Proven) -> float | None:
        return None if item.claims.correct is None else float(item.claims.certified_accuracy(radius))

    return Column(f"Correct at {text or plain(radius)}", value, share_text, about)


def _acr(about: str) -> Column:
    def value(item: Calibrated | Proven) -> float | None:
        return None if item.claims.correct is None else item.claims.average_certified_radius

    return Column("ACR", value, radius_text, about)


def calibrated_table(collection: Collection, names: Names) -> Table | None:
    """Calibrated radii from one pass."""
    items = [item for item in collection.calibrated if item.claims.basis.kind is BasisKind.CONFORMAL]
    if not items:
        return None

    note = (
        "A radius from one pass. For an image like the calibration images, it exceeds the statistical radius of the "
        "average with probability at most ε. This probability is over the image and the calibration set together, not "
        "for each image. The radius does not cover the network in one pass at a perturbed image."
    )
    table = Table.of("Calibrated one-pass radii", _calibrated_columns(names, CONFORMAL), items)
    return table.noted("calibrated-radii", note)


def under_attack_table(collection: Collection, names: Names) -> Table | None:
    """Calibrated radii from noisy passes that hold for attacked images."""
    items = [item for item in collection.calibrated if item.claims.basis.kind is BasisKind.UNDER_ATTACK]
    if not items:
        return None

    columns = (
        *_calibrated_columns(names, UNDER_ATTACK),
        Column("ρ", lambda item: item.claims.basis.rho, plain),
        Column("Passes", lambda item: item.claims.basis.passes, count_text),
    )
    note = (
        "A radius from passes with secret noise. For an image like the calibration images, also if it was changed "
        "within ρ, it exceeds the statistical radius of the average, at the image before the change, with probability "
        "at most ε. This probability is over the image, the noise and the calibration set together. For the image as "
        "it was received, the radius is smaller by ρ."
    )
    table = Table.of("Calibrated radii that hold under attack", columns, items)
    return table.noted("radii-under-attack", note)


def _calibrated_columns(names: Names, about: str) -> tuple[Column, ...]:
    return (
        Column("Model", names.model_of, words=True),
        Column("σ", lambda item: item.choices.sigma, plain),
        Column("ε", lambda item: item.choices.epsilon, plain),
        Column("α", lambda item: item.choices.alpha, plain),
        Column("Images", lambda item: len(item.claims), count_text),
        Column("With a radius", lambda item: float((item.claims.radii > 0).mean()), percent),
        *_summary_columns(about),
        _correct_at(0.25, about),
        _correct_at(0.5, about),
        _acr(about),
    )


def proven_table(collection: Collection, names: Names) -> Table | None:
    """Deterministic radii: median, mean, largest; how many are correct; what they cost."""
    if not collection.proven:
        return None

    def accuracy(item: Proven) -> float | None:
        return None if item.claims.labels is None else float(item.claims.one_pass_correct.mean())

    columns = (
        Column("Model", names.model_of, words=True),
        Column("Images", lambda item: len(item.claims), count_text),
        Column("Accuracy", accuracy, share_text, "one pass"),
        *_summary_columns(DETERMINISTIC),
        *(_correct_at(part / 255, DETERMINISTIC, f"{part}/255") for part in PROVEN_RADII),
        _correct_at(0.25, DETERMINISTIC),
        _correct_at(0.5, DETERMINISTIC),
        _acr(DETERMINISTIC),
        Column("Time per image", lambda item: float(item.claims.seconds.mean()), duration),
    )
    note = (
        "The network itself keeps its class within the radius: a proof from its weights and one pass, without noise. "
        "It holds for every image, attacked or not. These radii are not about the average, and those of the average "
        "are not about the network."
    )
    table = Table.of("Deterministic radii of the network", columns, collection.proven)
    return table.noted("deterministic-radii", note)


def predictions_table(collection: Collection) -> Table | None:
    """Logs of PREDICT: accuracy and abstention."""
    if not collection.predictions:
        return None
    columns = (
        Column("Log", lambda item: item.name, words=True),
        Column("Images", lambda item: len(item.correct), count_text),
        Column("Accuracy", lambda item: float(item.correct.mean()), share_text),
        Column("Abstained", lambda item: float(item.abstained.mean()), share_text),
    )
    note = "Classes of the average without radii. Abstentions count as errors in the accuracy."
    return Table.of("Predictions of the average", columns, collection.predictions).noted("predictions", note)
