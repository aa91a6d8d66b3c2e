"""What models, certifications and attacks are called, so that a reader can tell them apart, and how they are drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from heatsmooth.report.collection import Attack, Calibrated, Certification, Collection, Training
from heatsmooth.report.values import count_text, number, plain, text

Item = TypeVar("Item")
METHODS = {
    "clean": "undefended",
    "gaussian": "RandomizedSmoothing",
    "smoothadv": "SmoothAdv",
    "adversarial": "L2 adversarial training",
}


def method_of(training: Training | None) -> str:
    """How a model was made, in a word or two; empty if unknown."""
    if training is None:
        return ""
    info = training.run.info
    if training.run.command == "smooth":
        preset = text(info, "settings", "preset") or text(info, "summary", "preset")
        return f"HeatSmoothing ({preset})" if preset else "HeatSmoothing"
    method = text(info, "settings", "choices", "method") or text(info, "summary", "method") or ""
    return METHODS.get(method, method)


def training_sigma(training: Training | None) -> float | None:
    """The noise a model was trained or smoothed for; None for a model that knows no noise."""
    if training is None:
        return None
    places = (("settings", "heat", "sigma"), ("settings", "choices", "sigma"), ("summary", "sigma"))
    return next((s for s in (number(training.run.info, *place) for place in places) if s), None)


@dataclass
class Names:
    """Names of everything in a collection; a model has the same line in every figure where it has only one."""

    collection: Collection
    certifications: dict[str, str] = field(default_factory=dict)
    attacks: dict[str, str] = field(default_factory=dict)
    _styles: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for training in self.collection.trainings:
            self.style(training.run.name)
        self.certifications = _told_apart(self.collection.certifications, self.model_of, _certificate_facts)
        for kind in sorted({attack.kind for attack in self.collection.attacks}):
            same = [attack for attack in self.collection.attacks if attack.kind == kind]
            self.attacks |= _told_apart(same, self.model_of, _attack_facts)

    def model_of(self, item: Certification | Calibrated | Attack) -> str:
        """The name of the model something is about."""
        return self.collection.model_name(item.model, item.name)

    def style(self, name: str) -> int:
        """A number for a line's colour, dashes and markers."""
        return self._styles.setdefault(name, len(self._styles))

    def lines(self, certifications: Sequence[Certification]) -> dict[str, tuple[str, int]]:
        """By run, the name and the style of each among these alone, as in one figure."""
        told = _told_apart(certifications, self.model_of, _certificate_facts)
        return {run: (name, self.style(name)) for run, name in told.items()}


def _told_apart(
    items: Sequence[Item], base: Callable[[Item], str], facts: Callable[[Item], list[str]]
) -> dict[str, str]:
    """A name for each item: its model's, with the facts in which items of the same model differ, else its run's."""
    names: dict[str, str] = {}
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(base(item), []).append(item)
    for name, group in groups.items():
        columns = list(zip(*(facts(item) for item in group), strict=True))
        telling = [i for i, column in enumerate(columns) if len(set(column)) > 1]
        found = [" · ".join([name, *(facts(item)[i] for i in telling)]) for item in group]
        for item, label in zip(group, found, strict=True):
            run: str = getattr(item, "name", "")
            names[run] = label if found.count(label) == 1 else f"{label} · {run}"
    return names


def _certificate_facts(item: Certification) -> list[str]:
    basis = item.claims.basis
    return [
        f"σ {plain(item.sigma)}",
        f"class from {item.class_from or '?'}",
        "adaptive" if basis.anytime else "fixed n",
        f"n {count_text(item.n)}",
        f"α {plain(basis.alpha)}",
        f"top-{item.top_k}",
        basis.bound,
        f"{len(item.claims):,} images",
    ]


def _attack_facts(item: Attack) -> list[str]:
    return [
        item.results.subject,
        f"{count_text(item.setting('noise_samples'))} draws",
        f"{plain(item.setting('steps'))} steps",
        f"ε {plain(item.setting('eps'))}",
        f"top-{plain(item.setting('top_k'))}",
        f"σ {plain(item.setting('sigma'))}",
        f"{len(item.results):,} images",
    ]
