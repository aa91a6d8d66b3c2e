"""The summary in plain words: what was made robust, how, at what cost, and what is and is not guaranteed."""

import math
from dataclasses import dataclass
from typing import Any

from heatsmooth.report.audits import KINDS
from heatsmooth.report.collection import Certification, Collection, Training
from heatsmooth.report.files import Run
from heatsmooth.report.naming import Names, method_of, training_sigma
from heatsmooth.report.results import acr, certified_at
from heatsmooth.report.values import count_text, duration, number, percent, plain, radius_text, text
from heatsmooth.statistics.accuracy import false_certificates

RHO = 0.001


@dataclass(frozen=True)
class Tile:
    """A number to see first, what it is, and what it is to be compared with."""

    value: str
    name: str
    about: str


@dataclass(frozen=True)
class Summary:
    """One sentence, a few numbers, and blocks of sentences under a heading."""

    lead: str
    tiles: list[Tile]
    blocks: list[tuple[str, str, list[str]]]


@dataclass(frozen=True)
class _Hero:
    """The model the summary is about: the last smoothed one that is certified, else what there is."""

    name: str
    maker: Training | None
    teacher: Training | None
    certified: Certification | None
    before: Certification | None
    origin: str = ""
    """What the network it was made from is called, if that is in the report."""


def summarise(collection: Collection, names: Names) -> Summary:
    """The summary of a collection, saying nothing that is not in it."""
    hero = _hero(collection, names)
    blocks = [
        ("made", "What was made, and how", _made(collection, hero)),
        ("cost", "At what cost", _cost(collection, hero)),
        ("yes", "What is guaranteed", _guaranteed(collection, hero)),
        ("no", "What is not guaranteed", _not_guaranteed(collection, hero)),
    ]
    return Summary(_lead(collection, hero), _tiles(collection, hero), [block for block in blocks if block[2]])


def _hero(collection: Collection, names: Names) -> _Hero:
    certified = [c for c in collection.certifications if c.claims.correct is not None and c.top_k == 1]
    smoothed = [t for t in collection.trainings if t.run.command == "smooth" and t.model]
    with_radius = [t for t in smoothed if any(c.model == t.model for c in certified)]
    maker = next(iter([*with_radius[::-1], *smoothed[::-1], *collection.trainings[::-1]]), None)
    if maker is None:
        first = certified[0] if certified else next(iter(collection.certifications), None)
        return _Hero(names.model_of(first) if first else "", None, None, first, None)
    own = collection.certified(maker.model)
    began_from = text(maker.run.info, "settings", "teacher")
    teacher = collection.maker(began_from)
    before = [c for c in certified if own is not None and began_from is not None and c.model == began_from]
    same = next((c for c in before if own is not None and c.sigma == own.sigma), None)
    origin = teacher.run.name if teacher else names.model_of(before[0]) if before else ""
    return _Hero(maker.run.name, maker, teacher, own, same, origin)


def _at(hero: _Hero) -> float:
    return (hero.certified.sigma if hero.certified else None) or 0.25


def _lead(collection: Collection, hero: _Hero) -> str:
    item = hero.certified
    if item is None or item.claims.correct is None:
        return f"{_counted(collection)}. There are no certificates of labelled images yet."
    share, images = percent(certified_at(item, _at(hero))), count_text(len(item.claims))
    does = f"to give the right class to {share} of {images} images"
    if item.top_k > 1:
        does = f"to keep the right class among its {item.top_k} most probable for {share} of {images} images"
    lead = (
        f"The Gaussian average of “{hero.name}” is certified {does}, "
        f"whatever perturbation of L2 norm up to {plain(_at(hero))} is added"
    )
    if hero.before is not None:
        return f"{lead}; for “{hero.origin}”, which it was made from, it is {_before(hero)}."
    return f"{lead}."


def _before(hero: _Hero) -> str:
    return percent(certified_at(hero.before, _at(hero))) if hero.before else ""


def _tested(info: Any) -> str:
    """What the accuracies that training recorded were measured on."""
    return "clean images" if text(info, "summary", "tested_on") is None else "the clean images it was smoothed on"


def _counted(collection: Collection) -> str:
    numbers = (
        (len(collection.trainings), "trained model"),
        (len(collection.certifications), "set of certificates"),
        (len(collection.attacks), "attack"),
        (len(collection.audits), "audit"),
        (len(collection.predictions), "log of predictions"),
        (len(collection.comparisons), "comparison"),
    )
    parts = [
        f"{count} {what.replace('set of', 'sets of').replace('log of', 'logs of') if count > 1 else what}"
        + ("s" if count > 1 and " of " not in what else "")
        for count, what in numbers
        if count
    ]
    return "This report is made from " + (", ".join(parts) if parts else "no results")


def _tiles(collection: Collection, hero: _Hero) -> list[Tile]:
    tiles = []
    item = hero.certified
    if item is not None and item.claims.correct is not None:
        was = f"{_before(hero)} before · " if hero.before else ""
        share = percent(certified_at(item, _at(hero)))
        tiles.append(Tile(share, f"certified at radius {plain(_at(hero))}", f"{was}average · statistical"))
        was = f"{radius_text(acr(hero.before.claims), 3)} before · " if hero.before else ""
        tiles.append(Tile(radius_text(acr(item.claims), 3), "average certified radius", f"{was}average · statistical"))
    if hero.maker is not None:
        info = hero.maker.run.info
        clean, was_clean = number(info, "summary", "accuracy"), number(info, "summary", "teacher_accuracy")
        if clean is not None:
            before = "" if was_clean is None else f"{percent(was_clean)} before · "
            tiles.append(Tile(percent(clean), "accuracy in one pass", f"{before}{_tested(info)}"))
        labels = "no labels" if hero.maker.run.command == "smooth" else "with labels"
        tiles.append(Tile(duration(hero.maker.run.seconds), "training", f"{_epochs(hero.maker)} · {labels}"))
    for audit in collection.audits:
        agreement = number(audit.facts, "agreement", "share")
        if agreement is not None and (hero.maker is None or audit.model == hero.maker.model):
            kind = KINDS.get(text(audit.facts, "verdict", "kind") or "", "no verdict").lower()
            tiles.append(Tile(percent(agreement), "one pass agrees with the average", f"audit: {kind}"))
            break
    return tiles[:5]


def _epochs(training: Training) -> str:
    epochs = number(training.run.info, "settings", "plan", "epochs")
    if epochs is None:
        return training.run.command
    timesteps = number(training.run.info, "settings", "heat", "timesteps") or 1
    return f"{plain(epochs)} epoch{'' if epochs == 1 else 's'}" + (f" × {plain(timesteps)}" if timesteps > 1 else "")


def _made(collection: Collection, hero: _Hero) -> list[str]:
    maker, said = hero.maker, []
    if maker is None:
        return [f"{_counted(collection)}. How the models were made is not in it."]
    info, sigma = maker.run.info, training_sigma(maker)
    data = text(info, "settings", "data", "name")
    images = number(info, "settings", "data", "images")
    on = "" if data is None else f" on {count_text(images)} images of {data}" if images else f" on {data}"
    noise = "" if sigma is None else f", for noise of σ = {plain(sigma)}"
    if maker.run.command == "smooth":
        origin = f"“{hero.origin}”" if hero.origin else "a network that is not in this report"
        said.append(f"“{hero.name}” was made from {origin} by {method_of(maker)}: {_epochs(maker)}{on}{noise}.")
        said.append("No label was read. The network it began from was not changed.")
    else:
        said.append(
            f"“{hero.name}” was trained with labels ({method_of(maker) or 'train'}): {_epochs(maker)}{on}{noise}."
        )
    noisy, before = (number(info, "summary", f"{who}accuracy_under_noise") for who in ("", "teacher_"))
    if noisy is not None and before is not None:
        said.append(f"Under that noise, its accuracy in one pass went from {percent(before)} to {percent(noisy)}.")
    others = len(collection.trainings) - 1 - (hero.teacher is not None)
    if others > 0:
        said.append(f"{others} other model{'s are' if others > 1 else ' is'} in the comparison below.")
    return said


def _cost(collection: Collection, hero: _Hero) -> list[str]:
    said = []
    if hero.maker is not None:
        info = hero.maker.run.info
        begun = (
            f", on top of {duration(hero.teacher.run.seconds)} for “{hero.teacher.run.name}”" if hero.teacher else ""
        )
        cpu = text(info, "hardware", "cpu")
        where = f" on {cpu}" if cpu else ""
        said.append(f"Training took {duration(hero.maker.run.seconds)}{where}{begun}.")
        clean, was = number(info, "summary", "accuracy"), number(info, "summary", "teacher_accuracy")
        if clean is not None and was is not None:
            points = 100 * (clean - was)
            change = "costs" if points < 0 else "gains"
            numbers = f"{percent(was)} to {percent(clean)}"
            said.append(f"It {change} {abs(points):.1f} points of accuracy on {_tested(info)} ({numbers}).")
    item = hero.certified
    if item is not None and item.certificates is not None:
        took = "" if item.seconds is None else f", {duration(float(item.seconds.mean()))}"
        said.append(f"A certificate takes {count_text(float(item.certificates.samples.mean()))} passes an image{took}.")
    for name, timing in collection.timings[:1]:
        once, many = number(timing, "one_pass_seconds"), number(timing, "stochastic_seconds")
        if once and many:
            draws = count_text(number(timing, "samples"))
            said.append(f"One pass is {many / once:.1f} times as fast as an average of {draws} noisy ones ({name}).")
    return said


def _guaranteed(collection: Collection, hero: _Hero) -> list[str]:
    if not collection.certifications:
        return []
    item = hero.certified or min(collection.certifications, key=lambda c: c.top_k)
    alpha, sigma = item.claims.basis.alpha, item.sigma
    sure = "1−α" if alpha is None else f"{100 * (1 - alpha):.6g}\u00a0%"
    noise = "Gaussian noise" if sigma is None else f"Gaussian noise of σ = {plain(sigma)}"
    keeps = "keeps its class" if item.top_k == 1 else f"keeps the label among its {item.top_k} most probable classes"
    said = [
        f"For each image by itself, with probability at least {sure} over the noise drawn: the average of the network "
        f"over {noise} {keeps} under every perturbation of L2 norm below that image's radius."
    ]
    if item.class_from == "clean":
        said.append("The class certified is that of one clean pass; the draws behind the radius did not choose it.")
    if alpha is not None and 0 < alpha < 0.5:
        most = math.ceil(1000 * false_certificates(len(item.claims), alpha=alpha, rho=RHO)) / 1000
        said.append(
            f"Over {count_text(len(item.claims))} images together, at most {percent(most)} of the certificates are "
            f"false, except with probability {plain(RHO)}."
        )
    return said


def _is_of(run: Run, hero: _Hero) -> bool:
    """Whether a run trained the model of the summary, or made its certificates."""
    made = hero.maker is not None and run.name == hero.maker.run.name
    return made or (hero.certified is not None and run.name == hero.certified.name)


def _not_guaranteed(collection: Collection, hero: _Hero) -> list[str]:
    said = []
    if collection.certifications or hero.maker is not None:
        measured = "the audit below measures how often it does" if collection.audits else "an audit would measure it"
        said.append(
            "Nothing proves that the network itself, in one pass, keeps its class at a perturbed image: the radii are "
            f"about its average, and {measured}."
        )
        said.append("The L-bound is a radius of the network only if it were an exact average; that is an assumption.")
    data = [text(run.info, "settings", "data", "name") for run in collection.runs if _is_of(run, hero)]
    if len(data) > 1 and len(set(data)) == 1:
        said.append("The certified images are among those it was trained on; others may have smaller radii.")
    if collection.attacks:
        said.append("The distance of an attack is an upper bound: a better attack may find less.")
    said.append("All of it is about L2 perturbations of images like these, not about other changes or other data.")
    return said
