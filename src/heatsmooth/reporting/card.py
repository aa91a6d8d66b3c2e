"""The model card of a published network: Markdown for a hub, written from the records alone.

What no record states is left out, or the card says that it is not known.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from heatsmooth.calibration import Calibration
from heatsmooth.reporting.certificate_tables import RADII
from heatsmooth.reporting.collection import Certification, Collection, Proven, ReportedRun, Training
from heatsmooth.reporting.formats import count_text, duration, one_line, percent, plain, radius_text
from heatsmooth.reporting.probabilities import of_certification, quartiles, quartiles_text
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.deterministic import NetworkCertificates
from heatsmooth.results.guarantees import Basis, BasisKind
from heatsmooth.results.radii import Radii
from heatsmooth.settings import NORM_NAMES
from heatsmooth.statistics.bounds import clopper_pearson
from heatsmooth.table import Column, Table
from heatsmooth.version import VERSION

ALPHA = 0.05
"""1 minus the confidence of the intervals."""
TAGS = ["heatsmooth", "image-classification", "adversarial-robustness", "certified-robustness"]


@dataclass(frozen=True, kw_only=True)
class CardNetwork:
    """What a card says about the network itself."""

    title: str
    source: str
    """What ``heatsmooth.load`` takes: ``hf:OWNER/NAME`` or a folder."""
    architecture: str
    code: bool
    """Whether the architecture is a callable that a reader must have and name."""
    classes: int
    channels: int
    size: int | tuple[int, int] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    weights: str
    """The hash of the weights."""
    license: str | None = None


def card(network: CardNetwork, records: Collection, calibration: Calibration | None) -> str:
    """The card as Markdown, with front matter in YAML.

    ``network``: what is published. ``records``: finished runs about this network. ``calibration``: of its one-pass
    radius, if it has one.
    """
    front = {"library_name": "heatsmooth", "pipeline_tag": "image-classification", "tags": TAGS}
    front |= {} if network.license is None else {"license": network.license}
    sections = {
        "": _opening(network),
        "Load it": _loading(network),
        "What it is": _network(network),
        "What was done": _done(records),
        "Accuracy without perturbation": _clean(records),
        "Certified accuracy": _certified(records),
        "What is guaranteed, and for whom": _guarantees(records, calibration),
        "What attacks found": _audits(records),
    }
    lines = ["---", yaml.safe_dump(front, sort_keys=False).strip(), "---", "", f"# {_plain(network.title)}"]
    for head, text in sections.items():
        parts = list(text)
        if parts:
            lines += ["", *([f"## {head}", ""] if head else []), "\n\n".join(parts)]
    return "\n".join(lines) + "\n"


def _opening(network: CardNetwork) -> Iterator[str]:
    yield (
        f"An image classifier of {network.classes} classes, published with heatsmooth {VERSION}. "
        "Every figure on this page is computed from the records that are published beside it."
    )
    if network.license is None:
        yield "No license is stated."


def _loading(network: CardNetwork) -> Iterator[str]:
    named = f', model="{network.architecture}"' if network.code else ""
    yield (
        "```python\nimport heatsmooth as hs\n"
        f'model = hs.load("{network.source}"{named})\n'
        f"logits = model(images)  # {_shape(network)}\n```"
    )
    if network.code:
        yield f"You need the code of {_code(network.architecture)}, which is not published here."


def _shape(network: CardNetwork) -> str:
    size = network.size or ("height", "width")
    height, width = size if isinstance(size, tuple) else (size, size)
    return f"float32 in [0, 1], (batch, {network.channels}, {height}, {width})"


def _network(network: CardNetwork) -> Iterator[str]:
    facts = {
        "Architecture": _code(network.architecture),
        "Classes": str(network.classes),
        "Images": _shape(network),
        "Normalisation": "inside the network: " + _normalisation(network) if network.mean else "none",
        "Weights": f"`model.safetensors`, hash {_code(network.weights)}",
    }
    yield _list(facts)


def _normalisation(network: CardNetwork) -> str:
    mean, std = (", ".join(map(plain, numbers)) for numbers in (network.mean, network.std))
    return f"mean {mean}; standard deviation {std}"


def _done(records: Collection) -> Iterator[str]:
    for training in records.trainings:
        yield _list(_training(training))
    if not records.trainings:
        yield "How the network was made is not recorded here."


def _training(training: Training) -> dict[str, str]:
    info = training.run.info
    facts = {
        "Command": f"`heatsmooth {one_line(info.command, 40)}`",
        "Method": _plain(training.method),
        "Labels": "not used" if training.unlabelled else "used",
        "Noise": "" if training.sigma is None else f"σ = {plain(training.sigma)}, in [0, 1] pixels",
        "Images": _plain(_images(training.run)),
        "Length": training.epochs,
        "Started from": "" if training.teacher is None else f"the network with the hash {_code(training.teacher)}",
        "Seed": "" if info.chosen.seed is None else str(info.chosen.seed),
        "Time": duration(info.seconds) + (f" on {_plain(info.device)}" if info.device else ""),
        "Versions": ", ".join(f"{_plain(name)} {_plain(version)}" for name, version in info.versions.items()),
    }
    summary = info.summary
    if summary is not None and summary.kept is not None and summary.kept_interval is not None:
        low, high = summary.kept_interval
        facts["Answers of the teacher kept"] = (
            f"{percent(summary.kept)} (95 % interval {percent(low)} to {percent(high)})"
        )
    return facts


def _images(run: ReportedRun) -> str:
    """How many images of which data set, as plain text; empty if nothing is known."""
    data = run.info.chosen.data
    words = [] if data.images is None else [f"{count_text(data.images)} images"]
    words += [f"of {one_line(data.name, 100)}"] if data.name else []
    return " ".join(words) + (f" ({one_line(data.rule, 100)})" if data.rule else "")


def _one_pass(records: Collection) -> Iterator[tuple[str, int, int]]:
    """Which images one pass was tested on, how many were correct, and how many there were."""
    for training in records.trainings:
        summary = training.run.info.summary
        if summary is not None and summary.accuracy is not None and summary.test_images:
            where = "test images of the training" if summary.tested_on is None else one_line(summary.tested_on)
            yield where, round(summary.accuracy * summary.test_images), summary.test_images
    for item in _claims(records):
        claims = item.claims
        if item.labelled and isinstance(claims, Certificates | NetworkCertificates):
            yield _where(item, records), int(claims.one_pass_correct.sum()), len(claims)


def _clean(records: Collection) -> Iterator[str]:
    rows = list(_one_pass(records))
    if not rows:
        yield "It is not recorded here."
        return
    columns = (Column("Images", words=True), Column("Number"), Column("Accuracy"), Column("95 % interval"))
    cells = tuple(
        (where, count_text(total), percent(right / total), _interval(right, total)) for where, right, total in rows
    )
    yield Table("One pass of the network, without noise", columns, cells).markdown().strip()


def _claims(records: Collection) -> list[Certification | Proven]:
    return [*records.certifications, *records.proven]


def _where(item: Certification | Proven, records: Collection) -> str:
    """Which images were certified, as plain text."""
    run = next((run for run in records.runs if run.name == item.name), None)
    return (_images(run) if run else "") or item.name


def _interval(count: int, total: int) -> str:
    low, high = clopper_pearson(count, total, ALPHA)
    return f"{percent(float(low))} to {percent(float(high))}"


def _certified(records: Collection) -> Iterator[str]:
    items = _claims(records)
    for item in items:
        if item.labelled:
            yield _curve(item, records)
        else:
            yield f"{_plain(_where(item, records))}: these images have no labels, so the accuracy is not known."
    if not items:
        yield "No certificates are published here."


def _curve(item: Certification | Proven, records: Collection) -> str:
    claims: Radii = item.claims
    largest = float(claims.radii.max())
    measured = NORM_NAMES[claims.basis.norm]
    columns = (Column(f"Radius ({measured}, pixels in [0, 1])"), Column("Certified accuracy"), Column("95 % interval"))
    rows = []
    for radius in (radius for radius in RADII if radius <= max(largest, 0.0)):
        share = float(claims.certified_accuracy(radius))
        rows.append((plain(radius), percent(share), _interval(round(share * len(claims)), len(claims))))
    subject = "the average" if isinstance(item, Certification) else "the network in one pass"
    facts = [_where(item, records), f"{int(claims.abstained.sum())} of {count_text(len(claims))} abstained"]
    if isinstance(item, Certification):
        facts += [f"σ = {plain(item.sigma)}"] * (item.sigma is not None)
        facts += [f"n = {count_text(item.n)}"] * (item.n is not None)
    facts.append(f"average certified radius {radius_text(claims.average_certified_radius)}")
    p_a = of_certification(item) if isinstance(item, Certification) else None
    if p_a is not None:
        facts.append(f"p_A of the label, quartiles of its lower bound: {quartiles_text(quartiles(p_a))}")
    note = f"Covers {subject}; rests on: {claims.basis}. Abstentions count as errors."
    return Table("; ".join(facts), columns, tuple(rows), note).markdown().strip()


def _guarantees(records: Collection, calibration: Calibration | None) -> Iterator[str]:
    claims = {(str(item.claims.basis), item.claims.basis, item.sigma) for item in records.certifications}
    said = [_statistical(basis, sigma) for _, basis, sigma in sorted(claims, key=lambda claim: claim[0])]
    said += [PROVEN] * bool(records.proven)
    said += [] if calibration is None else [_conformal(calibration)]
    if not said:
        yield "Nothing is guaranteed: no certificate and no calibration is published with this network."
        return
    yield "\n".join(f"- {text}" for text in said)
    yield (
        f"All radii are {_norms(records)} distances between images with pixels in [0, 1]. Other perturbations, such as "
        "rotations, and "
        "images of another kind are not covered. A radius of 0 claims nothing."
    )


def _norms(records: Collection) -> str:
    """The norms of all radii; a radius that is not L2 says so in its basis."""
    others = sorted({item.claims.basis.norm_name for item in records.certifications} - {"L2"})
    return " or ".join(["L2", *others])


PROVEN = (
    "**Deterministic radius. Covers: the network itself, in one pass.** Within the radius of an image, one pass keeps "
    "its class. This is proven from the stored weights and holds without exception."
)


def _statistical(basis: Basis, sigma: float | None) -> str:
    noise = f"{basis.noise_name} noise"
    noise += "" if sigma is None else f" of standard deviation {plain(sigma)}"
    measured = "" if basis.norm == "l2" else f"{NORM_NAMES[basis.norm]} "
    keeps = "keeps its class" if basis.k == 1 else f"keeps the label among its {basis.k} most probable classes"
    wrong = (
        "with the probability that the log's own α allows"
        if basis.kind is not BasisKind.STATISTICAL or basis.alpha is None
        else f"with probability at most α = {plain(basis.alpha)}"
    )
    return (
        f"**Statistical radius. Covers: the average of the network over {noise}, not the network in one pass.** Within "
        f"the {measured}radius of an image, the average {keeps}. Each certificate is false {wrong} (basis: {basis})."
    )


def _conformal(calibration: Calibration) -> str:
    images = calibration.fitted + calibration.corrected
    name = calibration.data.get("name") if isinstance(calibration.data, dict) else None
    like = f"the {count_text(images)} calibration images" + (f" ({_code(name)})" if name else "")
    return (
        "**Calibrated radius from one pass. Covers: the average of the network over Gaussian noise of standard "
        f"deviation {plain(calibration.sigma)}, not the network in one pass.** For a new image like {like}, the radius "
        f"is too large with probability at most ε = {plain(calibration.epsilon)}, plus α = {plain(calibration.alpha)}. "
        "The probability is over new images and calibration images together, not for each image "
        f"(basis: {calibration.basis})."
    )


def _audits(records: Collection) -> Iterator[str]:
    for audit in records.audits:
        yield f"Audit of {count_text(audit.result.images)} images at σ = {plain(audit.result.sigma)}: " + _plain(
            audit.result.verdict.text
        )
    for attack in records.attacks:
        results = attack.results
        attacked = len(results) - int(results.wrong.sum())
        yield (
            f"{_plain(attack.kind)} on the {results.subject}: {int(results.succeeded.sum())} of {attacked} attacks "
            f"succeeded ({_plain(_images(attack.run))}). This is evidence, not a guarantee."
        )


def _list(facts: dict[str, str]) -> str:
    return "\n".join(f"- **{name}**: {text}" for name, text in facts.items() if text)


def _plain(text: object) -> str:
    """Text from a record on one line; it cannot become markup."""
    line = one_line(text)
    return "".join(f"\\{c}" if c in "\\|<>*_[]`&~#" else c for c in line)


def _code(text: object) -> str:
    return f"`{one_line(text).replace('`', chr(39))}`"
