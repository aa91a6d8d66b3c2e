"""``learn_votes``: predict, from one pass, the classes of noisy copies. No labels.

    minimise  E[ D( voter(x), class of v(x + η) ) ],    η ~ N(0, σ²I)

v is the frozen network and D the cross-entropy, a proper score: its minimiser is the share of each class among the
noisy copies, given what the voter sees. A head sees one pass of v: passes are made once, then it learns in seconds. A
copy of v sees the image, and learns for some epochs, with new noise at each step.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heatsmooth.data import ImageSet, as_unit_interval, shifted_and_flipped
from heatsmooth.device import accelerator, exact_float32
from heatsmooth.errors import require
from heatsmooth.models import checked_classes, copy_of, device_of, is_onnx
from heatsmooth.models.votes import VoteCopy, VoteHead, Voter, new_head, observe
from heatsmooth.noise import Draw, mixed_seed
from heatsmooth.progress import Progress, silent
from heatsmooth.training.batches import Batch, Place
from heatsmooth.training.execution import Execution, Teacher, execution_in, unlabelled_feed
from heatsmooth.training.loop import fit
from heatsmooth.training.settings import FEW_EPOCHS, Plan

TOGETHER = 100
"""Images whose passes are made together. Another number would give other noise."""
LEARNING = Plan(epochs=15, batch_size=128, lr=0.003, optimizer="adam", warmup=0.1)
"""How the head learns, from passes that are made once."""
COPYING = Plan(batch_size=64, lr=0.02, optimizer="muon", warmup_steps=100)
"""How a copy learns. It begins close to its goal, so that it takes smaller steps than ``smooth``."""
SCALING = 1000
"""Images on which the scale of a copy's logits is chosen."""


def copying(epochs: int) -> Plan:
    """How a copy learns for so many epochs. Shifts are harder to learn, but without them it would memorise images."""
    return replace(COPYING, epochs=epochs, shifts=epochs > FEW_EPOCHS)


def learn_votes(
    model: nn.Module,
    images: ImageSet | Tensor,
    *,
    sigma: float,
    samples: int = 4,
    epochs: int = 0,
    seed: int = 0,
    out: Path | str | None = None,
    progress: Progress = silent,
) -> Voter:
    """A head or copy, in evaluation mode, that predicts the classes of noisy copies from one pass.

    ``model`` never changes. A copy that learns for some thousand steps predicts better than a head. After a few hundred
    it can be worse.

    ``model``: takes images in [0, 1] to logits, in evaluation mode.
    ``images``: unlabelled images, such as the training images. They must not be calibration images. Each is mirrored
    at random; also shifted for a head, and for a copy in more than three epochs.
    ``sigma``: standard deviation of the noise of the average, in [0, 1] pixels.
    ``samples``: noisy copies per image, for a copy also per epoch. More images are worth more than more samples.
    ``epochs``: how often a copy of the network sees the images; 0: a head learns instead.
    ``seed``: determines every random number.
    ``out``: a directory, for a copy: a call that is killed and repeated continues there. Name another one for other
    arguments.
    """
    require(sigma > 0, f"`sigma`: expected a positive number, got {sigma}")
    require(samples > 0, f"`vote_samples`: expected at least 1, got {samples}; 4 is usual")
    require(epochs >= 0, f"`vote_epochs`: expected at least 0, got {epochs}; 0 lets a head learn")
    require(
        not (epochs and is_onnx(model)), "`vote_epochs`: expected a PyTorch network, got an ONNX file; leave it out"
    )
    source = images if isinstance(images, ImageSet) else ImageSet.of("images", as_unit_interval(images), None)
    processes = accelerator(device_of(model).type)
    require(processes.num_processes == 1, "`learn_votes`: expected one process, got several; start one")
    checked_classes(model, source.shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mixed_seed(seed, "weights"))
        head = new_head(model, source.images(torch.arange(min(2, len(source)))).to(device_of(model)))
    seen = source.sampled(SCALING) if epochs else source
    passes = _passes(model, head, seen, sigma=sigma, samples=samples, seed=seed, progress=progress)
    scale = _best_scale(passes.observed[:, head.spec.features :], passes.shares)
    if epochs:
        execution = execution_in(out, None, seed=seed, device=device_of(model).type, progress=progress)
        objective = partial(vote_learning, sigma=sigma, samples=samples)
        return _learnt_copy(model, scale, source, objective, copying(epochs), execution)
    head.scale.data.fill_(scale)
    fit(head, _score, passes, LEARNING, accelerator=processes, seed=seed, what="learning votes", progress=progress)
    return head


def _learnt_copy(
    model: nn.Module,
    scale: float,
    images: ImageSet,
    objective: Callable[..., dict[str, Tensor]],
    plan: Plan,
    execution: Execution,
) -> VoteCopy:
    """A copy of ``model``, whose logits times ``scale`` have learnt the votes."""
    student = VoteCopy(copy_of(model), scale)
    if execution.finished() == 0:
        teacher, feed = Teacher(model).to(execution.processes.device), unlabelled_feed(images, plan, execution.seed)
        execution.fit(student, partial(objective, teacher=teacher), feed, plan, what="learning votes")
    execution.result(student)
    return student


def vote_learning(
    student: nn.Module, batch: Batch, *, teacher: nn.Module, sigma: float, samples: int
) -> dict[str, Tensor]:
    """The loss of a copy: the cross-entropy of its answer and the classes of noisy copies of each image."""
    logits = student(batch.images)
    shares = torch.zeros_like(logits)
    with torch.no_grad():
        for noise in batch.noise(samples):
            shares += F.one_hot(teacher(batch.images + sigma * noise).argmax(1), logits.shape[1]) / samples
    return {"loss": F.cross_entropy(logits, shares)}


def _best_scale(logits: Tensor, shares: Tensor) -> float:
    """The factor, from 1/100 to 10, whose product with the logits predicts the shares best; logits may be too sure."""
    factors = torch.logspace(-2, 1, 61)
    return float(min(factors, key=lambda factor: float(F.cross_entropy(factor * logits, shares))))


def _score(head: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The loss: ``batch.images`` is what the head sees of each pass, ``batch.labels`` the shares of the votes."""
    assert batch.labels is not None
    return {"loss": F.cross_entropy(head(batch.images), batch.labels)}


@dataclass(frozen=True)
class _Passes:
    """Passes of the network without and with noise, one row per image, in a new order each epoch."""

    observed: Tensor
    shares: Tensor
    """Of each class among the noisy copies."""
    seed: int

    @property
    def _size(self) -> int:
        return min(LEARNING.batch_size, len(self.observed))

    @property
    def steps_per_epoch(self) -> int:
        """How many steps see every image about once."""
        return len(self.observed) // self._size

    def batches(self, start: int, stop: int, place: Place) -> Iterator[Batch]:
        """The batches of the steps start … stop − 1."""
        for step in range(start, stop):
            epoch, number = divmod(step, self.steps_per_epoch)
            order = torch.Generator().manual_seed(mixed_seed(self.seed, "order", epoch))
            rows = torch.randperm(len(self.observed), generator=order)[number * self._size :][: self._size]
            draw = Draw(self.seed, "step", step, device=place.device)
            observed, shares = (rows_of[rows].to(place.device) for rows_of in (self.observed, self.shares))
            yield Batch(observed, shares, draw, step / self.steps_per_epoch)


@exact_float32()
@torch.inference_mode()
def _passes(
    model: nn.Module, head: VoteHead, source: ImageSet, *, sigma: float, samples: int, seed: int, progress: Progress
) -> _Passes:
    """One pass without noise, and ``samples`` with noise, of each image."""
    device, fast = device_of(model), Teacher(model).to(device_of(model))
    observed, shares = [], []
    for number, positions in enumerate(torch.arange(len(source)).split(TOGETHER)):
        images = shifted_and_flipped(source.images(positions), Draw(seed, "augment", number)).to(device)
        draw, votes = Draw(seed, "votes", number, device=device), torch.zeros(len(images), head.spec.classes)
        for _ in range(samples):
            predicted = fast(images + sigma * draw.normal(images.shape)).argmax(1).cpu()
            votes += F.one_hot(predicted, head.spec.classes)
        observed.append(observe(model, head.spec.layer, images).cpu())
        shares.append(votes / samples)
        progress("noisy passes", int(positions[-1]) + 1, len(source))
    rows = torch.cat(observed)
    finite = bool(rows.isfinite().all())
    require(finite, "`learn_votes`: expected finite logits, got NaN or infinity; check the weights and `mean`, `std`")
    return _Passes(rows, torch.cat(shares), seed)
