"""The batches of a training, in an order that depends on the seed and the step alone."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from heatsmooth.data import ImageSet, ImageStream, as_unit_interval, shifted_and_flipped
from heatsmooth.errors import InputError, require
from heatsmooth.noise import Draw

AHEAD = 4
"""Batches that are read while a step is computed."""
READERS = 2
"""Batches that are read at the same time; the images of each are decoded in parallel."""


@dataclass(frozen=True)
class Batch:
    """The input of an objective: this process's part of one step."""

    images: Tensor
    """float32 in [0, 1], (batch, channels, height, width)."""
    labels: Tensor | None
    draw: Draw
    """The random numbers of this step."""
    epoch: float
    """How many epochs are done, 0 at the start."""

    @classmethod
    def of(cls, images: Tensor, *, step: int, seed: int = 0, rank: int = 0, world: int = 1) -> "Batch":
        """Images of a loop of your own, for an objective that reads no labels.

        ``images``: in [0, 1], (batch, channels, height, width), on the device of the network.
        ``step``, ``seed``: determine the noise; count the steps from 0 and never repeat one.
        ``rank``, ``world``: the number of this process, and how many there are.
        """
        return cls(
            _on_device(images, images.device),
            None,
            Draw(seed, "step", step, device=images.device, rank=rank, world=world),
            0.0,
        )

    def noise(self, copies: int) -> Tensor:
        """Standard normal noise for this many copies of each image, (copies, batch, channels, height, width)."""
        return self.draw.normal((len(self.images), copies, *self.images.shape[1:])).transpose(0, 1)

    def noisy(self, sigma: float, copies: int) -> Tensor:
        """Noisy copies of all images, one set after another: (copies × batch, channels, height, width)."""
        return (self.images + sigma * self.noise(copies)).flatten(0, 1)

    def parts(self, count: int) -> list["Batch"]:
        """The batch in ``count`` equal parts. Each row gets the same random numbers as in the whole batch."""
        if count == 1:
            return [self]
        rows = len(self.images)
        require(rows % count == 0, f"`accumulate`: expected a divisor of the {rows} images per process, got {count}")
        labels = [None] * count if self.labels is None else list(self.labels.chunk(count))
        return [
            Batch(images, labels[i], self.draw.part(i, count), self.epoch)
            for i, images in enumerate(self.images.chunk(count))
        ]


@dataclass(frozen=True)
class Place:
    """Where a process computes: its device, its number, and the number of processes."""

    device: torch.device
    rank: int = 0
    world: int = 1


class Feed(Protocol):
    """Batches by step number."""

    @property
    def steps_per_epoch(self) -> int:
        """How many steps see every image about once."""

    def batches(self, start: int, stop: int, place: Place) -> Iterator[Batch]:
        """The batches of the steps start … stop − 1."""


Source = TypeVar("Source", ImageSet, ImageStream)


@dataclass(frozen=True)
class _StoredFeed(Generic[Source]):
    """What feeds of stored images share; ``batch_size``: images per step, over all processes together."""

    images: Source
    batch_size: int
    seed: int
    augment: bool = True
    shifts: bool = True

    @property
    def _size(self) -> int:
        return min(self.batch_size, len(self.images))

    @property
    def steps_per_epoch(self) -> int:
        """How many steps see every image about once."""
        return len(self.images) // self._size


@dataclass(frozen=True)
class SetFeed(_StoredFeed[ImageSet]):
    """An ``ImageSet`` in a new order each epoch, ``batch_size`` images per step over all processes together.

    The last, incomplete batch of an epoch is left out. The next batches are read while a step is computed.
    """

    _orders: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def _positions(self, step: int, place: Place) -> Tensor:
        epoch, number = divmod(step, self.steps_per_epoch)
        mine = self._size // place.world
        first = number * self._size + place.rank * mine
        return self._order(epoch)[first : first + mine]

    def _order(self, epoch: int) -> Tensor:
        """The positions of all images in the order of an epoch, which is kept until the next."""
        if epoch not in self._orders:
            self._orders[epoch] = self.images.shuffled(self.seed, "order", epoch)
            self._orders.pop(epoch - 2, None)  # the last steps of the epoch before may still be read
        return self._orders[epoch]

    def batches(self, start: int, stop: int, place: Place) -> Iterator[Batch]:
        """The batches of the steps start … stop − 1."""
        _check_shared(self._size, place)

        def read(step: int) -> tuple[Tensor, Tensor | None]:
            positions = self._positions(step, place)
            return self.images.raw(positions), self.images.labels_at(positions)

        ahead = read_ahead((partial(read, step) for step in range(start, stop)), READERS)
        for step, (pixels, labels) in enumerate(ahead, start):
            yield _batch(self, pixels, labels, step, place)


@dataclass(frozen=True)
class StreamFeed(_StoredFeed[ImageStream]):
    """An ``ImageStream``, shuffled anew each epoch, ``batch_size`` images per step over all processes together.

    Each process reads the stream and decodes its own share. A run that continues reads up to where it was.
    """

    def _encoded(self, start: int, place: Place) -> Iterator[list[Any]]:
        """The process's own encoded images of each step from ``start`` on."""
        epoch, skipped = divmod(start, self.steps_per_epoch)
        mine = self._size // place.world
        while True:
            images = islice(self.images.epoch(epoch, self.seed), skipped * self._size, None)
            for _ in range(skipped, self.steps_per_epoch):
                rows = list(islice(images, self._size))
                require(
                    len(rows) == self._size,
                    f"{self.images.name}: expected {len(self.images)} images per epoch, got fewer; lower `limit_train`",
                )
                yield rows[place.rank * mine : (place.rank + 1) * mine]
            epoch, skipped = epoch + 1, 0

    def batches(self, start: int, stop: int, place: Place) -> Iterator[Batch]:
        """The batches of the steps start … stop − 1."""
        _check_shared(self._size, place)
        encoded = self._encoded(start, place)
        ahead = read_ahead((lambda: self.images.pixels(next(encoded)) for _ in range(start, stop)), 1)
        for step, pixels in enumerate(ahead, start):
            yield _batch(self, pixels, None, step, place)


Read = TypeVar("Read")


def read_ahead(tasks: Iterable[Callable[[], Read]], readers: int) -> Iterator[Read]:
    """The results of the tasks, in order. Up to ``AHEAD`` tasks run or wait in threads while the caller works."""
    pool = ThreadPoolExecutor(readers)
    waiting: deque[Future[Read]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(task))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _check_shared(size: int, place: Place) -> None:
    require(size % place.world == 0, f"`batch_size`: expected a multiple of the {place.world} processes, got {size}")


def _on_device(pixels: Tensor, device: torch.device) -> Tensor:
    """float32 in [0, 1] on the device. Bytes are divided there; floats are checked before, so that no step waits."""
    if pixels.dtype == torch.uint8:
        return as_unit_interval(pixels.to(device))
    return as_unit_interval(pixels).to(device)


def _batch(feed: SetFeed | StreamFeed, pixels: Tensor, labels: Tensor | None, step: int, place: Place) -> Batch:
    """The batch of a step: images in [0, 1] on the device, augmented there if the feed says so.

    The random numbers of the augmentation are made on the CPU, so that they do not depend on the device.
    """
    images = _on_device(pixels, place.device)
    if feed.augment:
        order = Draw(feed.seed, "augment", step, rank=place.rank, world=place.world)
        images = shifted_and_flipped(images, order, shifts=feed.shifts)
    draw = Draw(feed.seed, "step", step, device=place.device, rank=place.rank, world=place.world)
    labels = None if labels is None else labels.to(place.device)
    return Batch(images, labels, draw, step / feed.steps_per_epoch)


@dataclass(frozen=True)
class LoaderFeed:
    """Any iterable of batches: tensors, or tuples and dicts whose first entry (or ``images``/``pixel_values``) is one.

    Everything but the images is dropped here, so that labels cannot be read. A run continues exactly only if the
    iterable yields the same batches each time. Several processes share the rows of each batch, so the iterable must
    yield the same whole batches in each process.
    """

    loader: Iterable[Any]
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """The length of the loader."""
        if not isinstance(self.loader, Sized):
            raise InputError(
                "expected a loader with a length, got one without; wrap it so that len(loader) is its number of batches"
            )
        require(len(self.loader) > 0, "expected a loader with at least one batch, got none")
        return len(self.loader)

    def batches(self, start: int, stop: int, place: Place) -> Iterator[Batch]:
        """The batches of the steps start … stop − 1."""
        step = start - start % self.steps_per_epoch
        while step < stop:
            before = step
            for item in self.loader:
                if start <= step < stop:
                    draw = Draw(self.seed, "step", step, device=place.device, rank=place.rank, world=place.world)
                    images = _on_device(_own_rows(images_of(item), place), place.device)
                    yield Batch(images, None, draw, step / self.steps_per_epoch)
                step += 1
            require(step > before, "expected a loader that yields batches again, got one that is used up; give a list")


def _own_rows(images: Tensor, place: Place) -> Tensor:
    """The rows of a batch that belong to this process."""
    rows = len(images)
    require(
        rows % place.world == 0,
        f"expected batches that the {place.world} processes can share in equal parts, got one of {rows} images; "
        "choose another batch size for the loader, and drop_last=True",
    )
    mine = rows // place.world
    return images[place.rank * mine : (place.rank + 1) * mine]


def images_of(item: Any) -> Tensor:
    """The images of what a loader yields."""
    if isinstance(item, dict):
        item = item.get("images", item.get("pixel_values"))
    elif isinstance(item, (tuple, list)) and item:
        item = item[0]
    if not isinstance(item, Tensor) or item.ndim != 4:
        shape = tuple(item.shape) if isinstance(item, Tensor) else type(item).__name__
        raise InputError(
            f"expected batches of images (batch, channels, height, width), got {shape}; yield a tensor first"
        )
    return item
