"""Names of models, certifications and attacks that tell them apart, and the style of their lines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from heatsmooth.reporting.collection import AttackRun, Calibrated, Certification, Collection, Proven
from heatsmooth.reporting.formats import count_text, plain

Item = TypeVar("Item", bound=Certification | AttackRun)


@dataclass
class Names:
    """Names of everything in a collection; a model has the same line in every figure where it has only one."""

    collection: Collection
    certifications: dict[str, str] = field(default_factory=dict)
    attacks: dict[str, str] = field(default_factory=dict)
    _styles: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for training in self.collection.trainings:
            self.style(training.name)
        self.certifications = self._told_apart(self.collection.certifications, _certificate_facts)
        for kind in sorted({attack.kind for attack in self.collection.attacks}):
            same = [attack for attack in self.collection.attacks if attack.kind == kind]
            self.attacks |= self._told_apart(same, _attack_facts)

    def model_of(self, item: Certification | Calibrated | Proven | AttackRun) -> str:
        """The name of the model that something is about."""
        return self.collection.model_name(item.model, item.name)

    def style(self, name: str) -> int:
        """A number for the colour, dashes and markers of a line."""
        return self._styles.setdefault(name, len(self._styles))

    def lines(self, certifications: Sequence[Certification]) -> dict[str, tuple[str, int]]:
        """By run, the name and the style of each among these certifications, as in one figure."""
        names = self._told_apart(certifications, _certificate_facts)
        return {run: (name, self.style(name)) for run, name in names.items()}

    def _told_apart(self, items: Sequence[Item], facts: Callable[[Item], list[str]]) -> dict[str, str]:
        """By run, the name of the model with the facts in which items of the same model differ, else with the run."""
        names: dict[str, str] = {}
        groups: dict[str, list[Item]] = {}
        for item in items:
            groups.setdefault(self.model_of(item), []).append(item)
        for name, group in groups.items():
            columns = list(zip(*(facts(item) for item in group), strict=True))
            different = [i for i, column in enumerate(columns) if len(set(column)) > 1]
            labels = [" · ".join([name, *(facts(item)[i] for i in different)]) for item in group]
            for item, label in zip(group, labels, strict=True):
                names[item.name] = label if labels.count(label) == 1 else f"{label} · {item.name}"
        return names


def _certificate_facts(item: Certification) -> list[str]:
    basis = item.claims.basis
    return [
        f"{item.claims.basis.noise_name} noise",
        item.claims.basis.norm_name,
        f"σ {plain(item.sigma)}",
        f"class from {item.class_from or '?'}",
        "adaptive" if basis.anytime else "fixed n",
        f"n {count_text(item.n)}",
        f"α {plain(basis.alpha)}",
        f"top-{item.top_k}",
        basis.bound,
        f"{len(item.claims):,} images",
    ]


def _attack_facts(item: AttackRun) -> list[str]:
    chosen = item.run.info.chosen
    return [
        item.results.subject,
        f"{count_text(chosen.noise_samples)} samples",
        f"{plain(chosen.steps)} steps",
        f"ε {plain(chosen.eps)}",
        f"top-{plain(chosen.top_k)}",
        f"σ {plain(chosen.sigma)}",
        f"{len(item.results):,} images",
    ]
