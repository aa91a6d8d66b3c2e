"""A budget of samples for many images, spent where it is expected to certify most.

Sampling goes in rounds. A round takes the images with the largest ``Mixture.gain``: how many more of the asked radii
per sample are expected to be certified. The rule sees counts and one-pass probabilities, never labels. The certificates
hold for any such rule, because the capital of each image holds at all times up to n samples.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from heatsmooth.certification.certificates import (
    Drawn,
    certificate,
    counted_of,
    prepared,
    selected_class,
    shown_probabilities,
)
from heatsmooth.certification.sampling import CHUNK, CLEAN, Ask, Job, Procedure, Tally, drawing
from heatsmooth.certification.settings import Budget, Sampling, Settings
from heatsmooth.data import ImageSet
from heatsmooth.errors import require
from heatsmooth.progress import Progress, silent
from heatsmooth.results.certificates import Certificate
from heatsmooth.results.rounds import Draws, Round
from heatsmooth.statistics.bounds import Integers
from heatsmooth.statistics.looks import until_next_look
from heatsmooth.statistics.mixtures import Mixture

ROUND_SHARE, LEAST_ROUND = 25, 40
"""A round takes one in 25 of the images, and at least 40 images."""
OPENING = 200
"""Images per round while every image gets its first samples."""
LEAST_GAIN = 0.01
"""Nothing is spent on an image that is expected to gain fewer radii than this with n samples."""


@dataclass
class Account:
    """What was drawn so far."""

    settings: Settings
    images: dict[int, Drawn] = field(default_factory=dict)
    """By index."""
    samples: int = 0
    """Of all images and streams."""
    seconds: float = 0.0
    rounds: int = 0
    gains: dict[int, float] = field(default_factory=dict)
    """The gain of each image by its counts so far."""

    def add(self, new: Round) -> None:
        """Add what a round drew, and see what its images may still gain."""
        require(
            new.number == self.rounds,
            f"rounds.jsonl: expected round {self.rounds}, got {new.number}: lines were repeated or lost; certify into "
            "another directory",
        )
        self.rounds += 1
        self.seconds += new.seconds
        for draws in new.draws:
            if draws.clean_probabilities is not None and draws.clean_class is not None:
                self._open(draws, draws.clean_class, draws.clean_probabilities)
            image = self.images[draws.index]
            image.tallies["estimation"].add(_tally(draws.counts))
            image.seconds += draws.seconds
            self.samples += sum(draws.counts)
        self._see_gains([draws.index for draws in new.draws])

    def _open(self, draws: Draws, clean_class: int, probabilities: tuple[float, ...]) -> None:
        classes = len(draws.counts)
        clean = _tally(np.eye(classes, dtype=np.int64)[clean_class])
        clean.sums += np.array(probabilities)
        tallies = {CLEAN: clean, "estimation": _tally(np.zeros(classes, dtype=np.int64))}
        if draws.selection is not None:
            tallies["selection"] = _tally(draws.selection)
        self.images[draws.index] = Drawn(draws.index, tallies)
        self.samples += 1 + sum(draws.selection or ())

    def _see_gains(self, indices: list[int]) -> None:
        """The gains of these images, those with the same prior together."""
        alike: dict[Mixture, list[tuple[int, int, int]]] = {}
        for index in indices:
            tallies = self.images[index].tallies
            selected, estimation = selected_class(tallies), tallies["estimation"]
            mixture = self.settings.mixture(float(tallies[CLEAN].sums[selected]))
            alike.setdefault(mixture, []).append((index, int(estimation.counts[selected]), estimation.n))
        for mixture, rows in alike.items():
            those, counts, n = zip(*rows, strict=True)
            gains = mixture.gain(np.array(counts), np.array(n), self.settings.alpha)
            self.gains.update(zip(those, gains.tolist(), strict=True))

    def next_round(self, budget: Budget) -> dict[int, int]:
        """By index, how many samples the images with the largest gains get next; none if the budget is spent."""
        left = budget.left(self.samples, self.seconds)
        hopeful = [index for index, gain in self.gains.items() if gain * self.settings.n >= LEAST_GAIN]
        hopeful.sort(key=lambda index: (-self.gains[index], index))
        asked: dict[int, int] = {}
        for index in hopeful[: max(LEAST_ROUND, len(self.images) // ROUND_SHARE)]:
            done = self.images[index].tallies["estimation"].n
            more = min(until_next_look(done, self.settings.n), left)
            left -= more
            if more > 0:
                asked[index] = more
        return asked


@dataclass(frozen=True)
class Task:
    """What is certified, within which budget; ``positions``: of the images, by index."""

    images: ImageSet
    positions: dict[int, int]
    settings: Settings
    sampling: Sampling
    budget: Budget

    def check(self) -> None:
        """Refuse what cannot be done within the budget."""
        settings, count = self.settings, len(self.positions)
        require(
            settings.mixes,
            "`budget`: expected `radii` and `sequence` exact or mixture beside it, got others; name the radii",
        )
        more = self.sampling.means or self.sampling.clever > 0
        require(not more, "`budget`: expected no `means` or `clever` beside it, got both; leave one out")
        first = 1 + (settings.n0 if settings.class_from == "noise" else 0) + min(CHUNK, settings.n)
        require(
            self.budget.samples is None or self.budget.samples >= first * count,
            f"`budget`: expected at least {first * count} samples, {first} for each of {count} images, got "
            f"{self.budget.samples}; raise it, or certify fewer images",
        )

    def rounds(self, model: nn.Module, account: Account) -> Iterator[Round]:
        """Rounds until the budget is spent or nothing is left to gain; each is added to ``account``."""
        waiting = [index for index in self.positions if index not in account.images]
        if not waiting and not account.next_round(self.budget):
            return
        some = torch.tensor(list(self.positions.values())[:4])
        sampler = prepared(model, self.images, self.settings, self.sampling, self.images.images(some))
        while waiting or account.next_round(self.budget):
            begin = time.monotonic()
            asked = dict.fromkeys(waiting[:OPENING], 0) or account.next_round(self.budget)
            waiting = waiting[OPENING:]
            jobs = (self._job(index, more, account) for index, more in asked.items())
            drawn = [replace(draws, seconds=round(job.seconds, 4)) for job, draws in sampler.run(jobs)]
            drawn.sort(key=lambda draws: draws.index)
            new = Round(number=account.rounds, draws=tuple(drawn), seconds=round(time.monotonic() - begin, 4))
            account.add(new)
            yield new

    def _job(self, index: int, more: int, account: Account) -> Job[Draws]:
        """The first samples of an image, or ``more`` of one that has some."""
        image = self.images.images(torch.tensor([self.positions[index]]))[0]
        if more == 0:
            job = Job(index, image, _first_samples(index, self.settings))
        else:
            before = account.images[index].tallies["estimation"].counts
            job = Job(index, image, _more_samples(index, more, before.copy()))
            job.tallies["estimation"] = _tally(before)
        return job


def certify_within(
    model: nn.Module,
    task: Task,
    *,
    rounds: Sequence[Round] = (),
    record: Callable[[Round], None] = lambda _: None,
    progress: Progress = silent,
) -> Iterator[Certificate]:
    """One certificate per image once the budget is spent; each is false with probability at most α.

    Every image gets its first samples in any case. A budget of samples is never exceeded, and gives the same
    certificates for any batch size and any interruption. A budget of time is exceeded by at most one round.

    ``rounds``: what was drawn before an interruption. ``record``: is given each round as soon as it is drawn.
    """
    task.check()
    account = Account(task.settings)
    for known in rounds:
        account.add(known)
    for new in task.rounds(model, account):
        record(new)
        done, of = task.budget.progress(account.samples, account.seconds)
        progress("certifying", done, of, f"{account.samples} samples")
    images = task.images
    labels = [None] * len(images) if images.labels is None else images.known_labels().tolist()
    for index, position in task.positions.items():
        counted = counted_of(
            account.images[index], labels[position], task.settings, task.sampling, pixels=math.prod(images.shape)
        )
        yield certificate(counted, task.settings)


def positions_of(images: ImageSet, positions: Iterable[int]) -> dict[int, int]:
    """The positions by the index of the image."""
    return {int(images.indices[position]): position for position in positions}


def _first_samples(index: int, settings: Settings) -> Procedure[Draws]:
    """One pass, the samples that select the class, and the first that estimate."""
    clean = yield Ask(CLEAN, 1)
    selection = (yield Ask("selection", settings.n0)) if settings.class_from == "noise" else None
    estimation = yield Ask("estimation", min(CHUNK, settings.n))
    return Draws(
        index=index,
        counts=tuple(estimation.counts.tolist()),
        seconds=0.0,
        selection=None if selection is None else tuple(selection.counts.tolist()),
        clean_class=int(clean.counts.argmax()),
        clean_probabilities=shown_probabilities(clean),
    )


def _more_samples(index: int, more: int, before: Integers) -> Procedure[Draws]:
    """``more`` samples that estimate, for an image that has the counts ``before``."""
    tally = yield from drawing("estimation", more)
    return Draws(index=index, counts=tuple((tally.counts - before).tolist()), seconds=0.0)


def _tally(counts: ArrayLike) -> Tally:
    """These counts, without sums of probabilities."""
    array = np.array(counts, dtype=np.int64)
    return Tally(array, np.zeros(len(array)), np.zeros(len(array)))
