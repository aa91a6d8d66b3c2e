"""Noisy class counts of many images at once, the same however they are computed.

The noise of an image comes in chunks of ``CHUNK`` samples, each seeded by (seed, stream, image, chunk). A batch holds
the chunks of as many images as fit. The class of a sample does not depend on the rest of its batch: batches never have
fewer than ``CHUNK`` rows, where convolutions would take other paths. So counts do not depend on batch size, shard,
number of processes, or interruption, and memory does not depend on the number of samples.
"""

import copy
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heatsmooth.certification.pace import Pace
from heatsmooth.device import exact_float32
from heatsmooth.errors import require
from heatsmooth.models import device_of, images_of_a_pass
from heatsmooth.noise import fill_noise, mixed_seed
from heatsmooth.settings import Noise

CHUNK = 50
"""Samples that share a seed. Another number would give other noise, and so other counts."""

CPU_SIZES = (50, 100, 200)
"""Batch sizes that are tried on a CPU."""

CLEAN = "clean"
"""The stream without noise: its one sample is the image itself."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Ask:
    """``count`` more samples of an image; streams of other names ("selection", "estimation") are independent."""

    stream: str
    count: int


@dataclass
class Tally:
    """The samples of one image together: class counts, and sums of probabilities and of their squares."""

    counts: NDArray[np.int64]
    sums: NDArray[np.float64]
    squares: NDArray[np.float64]

    @property
    def n(self) -> int:
        """How many samples."""
        return int(self.counts.sum())

    def add(self, more: "Tally") -> None:
        """Add the samples of another tally."""
        self.counts += more.counts
        self.sums += more.sums
        self.squares += more.squares


Procedure = Generator[Ask, Tally, Result]
"""What to do with one image: yields what it asks for, is sent the tally of that stream so far, returns its result."""


def drawing(stream: str, samples: int) -> Procedure[Tally]:
    """So many samples of one stream, and nothing else."""
    tally = yield Ask(stream, samples)
    return tally


@dataclass
class Job(Generic[Result]):
    """An image (channels, height, width), its index in the data set, and what to do with it."""

    index: int
    image: Tensor
    procedure: Procedure[Result]
    tallies: dict[str, Tally] = field(default_factory=dict)
    pixels: Tensor = field(default_factory=lambda: torch.empty(0))
    """The image on the sampler's device, as (height, width, channels)."""
    stream: str = ""
    """The stream that is sampled, …"""
    drawn: int = 0
    """… how many of its samples are done or in a batch, …"""
    goal: int = 0
    """… and how many were asked for."""
    seconds: float = 0.0
    """Its share of the time so far."""


@dataclass(frozen=True)
class Part:
    """``count`` samples of a job's image, from the ``start``-th on, within one chunk."""

    job: Job[Any]
    stream: str
    start: int
    count: int


@dataclass(frozen=True)
class Evaluated:
    """The tally of each part, and seconds per sample."""

    tallies: list[Tally]
    seconds: float


class Sampler:
    """Runs procedures over images, a batch of samples at a time.

    ``model``: in evaluation mode; it is only called in inference mode. ``sigma``: of the noise, in [0, 1] pixels.
    ``noise``: its distribution. ``classes``: of the model. ``seed``: determines the noise. ``batch_size``: samples
    evaluated together, at least ``CHUNK``; by default the fastest of ``CPU_SIZES`` on a CPU, and 1,000 elsewhere. It is
    halved when memory runs out. ``even``: fill every batch to that size, as compiled networks need.

    On a CPU each thread evaluates batches with its own replica of the network, with shared weights. This is faster than
    sharing every convolution. Batches are counted in the order in which they were filled.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        sigma: float,
        noise: Noise = "gaussian",
        classes: int,
        seed: int = 0,
        batch_size: int | None = None,
        even: bool = False,
    ) -> None:
        require(sigma > 0, f"`sigma`: expected a positive number, got {sigma}")
        self.device = device_of(model)
        require(batch_size is None or batch_size > 0, f"`batch_size`: expected at least 1, got {batch_size}")
        training = next((type(module).__name__ for module in model.modules() if module.training), None)
        require(
            training is None, f"expected a network in evaluation mode, got {training} in training; call model.eval()"
        )
        self.sigma, self.noise, self.classes, self.seed, self.even = sigma, noise, classes, seed, even
        if batch_size is not None:
            self._pace = Pace(max(CHUNK, batch_size))
        else:
            self._pace = Pace(1000) if self.device.type != "cpu" else Pace(CPU_SIZES[-1]) if even else Pace(*CPU_SIZES)
        self._threads = torch.get_num_threads()
        replicas = _replicas(model, self._threads if self.device.type == "cpu" and not even else 1)
        self._workers = len(replicas)
        self._pool = ThreadPoolExecutor(self._workers)
        self._idle: SimpleQueue[nn.Module] = SimpleQueue()
        for replica in replicas:
            self._idle.put(replica)
        self.samples = 0
        """Samples evaluated so far."""

    @property
    def batch_size(self) -> int:
        """Samples of the largest batch."""
        return self._pace.largest

    def run(self, jobs: Iterable[Job[Result]]) -> Iterator[tuple[Job[Result], Result]]:
        """The jobs with their results, each as soon as it is done; finished ones make room for waiting ones."""
        waiting, active = iter(jobs), list[Job[Result]]()
        flying: deque[tuple[list[Part], Future[Evaluated]]] = deque()
        try:
            while True:
                while len(flying) <= self._workers and (parts := self._fill(active, waiting)):
                    flying.append((parts, self._pool.submit(self._evaluate, parts)))
                if not flying:
                    return
                self._count(*flying.popleft())
                for job in [job for job in active if job.tallies[job.stream].n == job.goal]:
                    try:
                        self._advance(job, job.tallies[job.stream])
                    except StopIteration as end:
                        active.remove(job)
                        yield job, end.value
        finally:
            torch.set_num_threads(self._threads)

    def _fill(self, active: list[Job[Result]], waiting: Iterator[Job[Result]]) -> list[Part]:
        """What the next batch holds. Waiting jobs become active as long as the workers need samples.

        The last samples are shared evenly among the workers.
        """
        pending, size = sum(job.goal - job.drawn for job in active), self._pace.size
        while pending + CHUNK <= self._workers * size and (new := next(waiting, None)) is not None:
            new.pixels = new.image.to(self.device).permute(1, 2, 0).contiguous()
            self._advance(new, None)
            active.append(new)
            pending += new.goal - new.drawn
        most = max(CHUNK, min(size, -(-pending // self._workers)))
        parts: list[Part] = []
        for job in active:
            _take(job, parts, most)
        return parts

    def _advance(self, job: Job[Any], tally: Tally | None) -> None:
        """Let the procedure ask for its next samples."""
        ask = next(job.procedure) if tally is None else job.procedure.send(tally)
        zeros = np.zeros(self.classes)
        known = job.tallies.setdefault(ask.stream, Tally(zeros.astype(np.int64), zeros.copy(), zeros.copy()))
        job.stream, job.drawn, job.goal = ask.stream, known.n, known.n + ask.count

    def _count(self, parts: list[Part], evaluated: Future[Evaluated]) -> None:
        """Add what the parts were classified as to their tallies; in smaller batches if memory did not suffice."""
        try:
            batch = evaluated.result()
        except RuntimeError as error:
            if "memory" not in str(error):
                raise
            rows, half = _rows(parts), len(parts) // 2
            require(half > 0, f"expected memory for a batch of {rows} images, got none; use a larger machine")
            self._pace.at_most(max(CHUNK, min(self.batch_size, rows // 2)))
            for some in (parts[:half], parts[half:]):
                self._count(some, self._pool.submit(self._evaluate, some))
            return
        self._pace.took(_rows(parts), batch.seconds)
        for part, tally in zip(parts, batch.tallies, strict=True):
            part.job.tallies[part.stream].add(tally)
            part.job.seconds += batch.seconds * part.count / self._workers
            self.samples += part.count

    def _evaluate(self, parts: list[Part]) -> Evaluated:
        """The answers for all the parts, one after another, by whichever replica is idle."""
        begin, model = time.perf_counter(), self._idle.get()
        torch.set_num_threads(max(1, self._threads // self._workers))  # of this thread, not of the others
        try:
            logits = self._logits(model, parts)
        finally:
            self._idle.put(model)
        require(
            bool(logits.isfinite().all()),
            "expected finite logits, got NaN or infinity; check the weights and `mean`, `std`",
        )
        return Evaluated(tallied(logits, [part.count for part in parts]), (time.perf_counter() - begin) / len(logits))

    @exact_float32()
    @torch.inference_mode()
    def _logits(self, model: nn.Module, parts: list[Part]) -> Tensor:
        """(copies, classes) of all the parts, on the device."""
        channels, height, width = parts[0].job.image.shape
        count = _rows(parts)
        rows = max(self.batch_size if self.even else CHUNK, count)
        at_once = rows if self.even else images_of_a_pass(self.device, channels * height * width) or rows
        rows = -(-rows // at_once) * at_once
        batch = torch.empty(rows, height, width, channels, device=self.device)
        batch[count:] = 0
        pieces = batch[:count].split([part.count for part in parts])
        for piece, part in zip(pieces, parts, strict=True):
            self._fill_with_copies(piece, part)
        return torch.cat([model(some) for some in batch.permute(0, 3, 1, 2).split(at_once)])[:count]

    @torch.inference_mode()
    def _fill_with_copies(self, piece: Tensor, part: Part) -> None:
        """Fill ``piece`` with the samples of the part, as (samples, height, width, channels)."""
        if part.stream == CLEAN:
            piece.copy_(part.job.pixels)
            return
        chunk, offset = divmod(part.start, CHUNK)
        generator = torch.Generator(self.device).manual_seed(_chunk_seed(self.seed, part.stream, part.job.index, chunk))
        if part.count == CHUNK:
            fill_noise(piece, self.noise, self.sigma, generator)
        else:
            whole = torch.empty(CHUNK, *piece.shape[1:], device=self.device)
            fill_noise(whole, self.noise, self.sigma, generator)
            piece.copy_(whole[offset : offset + part.count])
        piece.add_(part.job.pixels)


@torch.inference_mode()
def tallied(logits: Tensor, rows: list[int]) -> list[Tally]:
    """The tally of each part; logits (samples, classes), part by part, ``rows`` of each.

    Probabilities are added in double precision, one sample after another, where the logits are: per part, only three
    rows leave the device. Some devices other than CPUs and CUDA have no double precision: there the CPU adds.
    """
    if logits.device.type not in ("cpu", "cuda"):
        logits = logits.cpu()
    classes, lengths = logits.shape[1], torch.tensor(rows, device=logits.device)
    probabilities = logits.double().softmax(1)
    both = torch.cat([probabilities, probabilities.square()], 1)
    sums, squares = np.split(torch.segment_reduce(both, "sum", lengths=lengths, axis=0).cpu().numpy(), 2, axis=1)
    first = torch.from_numpy(np.repeat(np.arange(len(rows)) * classes, rows)).to(logits.device)
    counts = (first + logits.argmax(1)).bincount(minlength=len(rows) * classes).view(-1, classes).cpu().numpy()
    return [Tally(*of_part) for of_part in zip(counts, sums, squares, strict=True)]


def _chunk_seed(seed: int, stream: str, image: int, chunk: int) -> int:
    """A seed of 32 bits, all that torch's CPU generator uses; different for all chunks of a stream of an image.

    An odd number times the chunk never repeats (mod 2³²). It differs from image to image. So two images whose seeds
    coincide share one chunk, not a run of them.
    """
    first, step = mixed_seed(seed, stream, image, "first"), mixed_seed(seed, stream, image, "step") | 1
    return (first + chunk * step) % 2**32


def _replicas(model: nn.Module, count: int) -> list[nn.Module]:
    """Copies of the network that share its weights; the network alone if it cannot be copied."""
    weights = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    try:
        return [model, *(copy.deepcopy(model, dict(weights)) for _ in range(count - 1))]
    except Exception:  # copying runs the user's code, which may raise anything
        return [model]


def _rows(parts: list[Part]) -> int:
    return sum(part.count for part in parts)


def _take(job: Job[Any], parts: list[Part], most: int) -> None:
    """Add the next samples of ``job`` to ``parts``, chunk by chunk, as long as there are at most ``most`` in all."""
    rows = _rows(parts)
    while job.drawn < job.goal:
        count = min(CHUNK - job.drawn % CHUNK, job.goal - job.drawn)
        if rows + count > most:
            return
        parts.append(Part(job, job.stream, job.drawn, count))
        job.drawn += count
        rows += count
