"""Images per second of the loader, beside those that a training step of ResNet-50 uses.

    python benchmarks/loader.py [--images 512] [--batch 32] [--rounds 5] [--threads 2]

JPEG files of ImageNet's usual size (500×375 pixels, about 110 kB) are made on the spot, and written as WebDataset
shards and as Parquet. They are read (from the cache of the system, not from the disk), decoded, resized and cropped to
224 pixels, in random order. The loader and the training step take turns within one run, so that a busy machine slows
them alike; the median of the rounds counts.
"""

import argparse
import io
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from heatsmooth.data import load_images, open_stream
from heatsmooth.models import NetworkSpec, build
from heatsmooth.runs import provenance
from heatsmooth.training.batches import Place, SetFeed, StreamFeed

SIZE = 224
AT_LEAST = 2.0
"""How many times the images of the training step the loader must give."""
SHARD = 128
"""Images per shard, and per row group times four."""


def jpeg(number: int) -> bytes:
    """A photograph-like image: coarse shapes and fine grain."""
    chance = np.random.default_rng(number)
    coarse = Image.fromarray(chance.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    shapes = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), dtype=np.int16)
    pixels = np.clip(shapes + chance.normal(0, 12, shapes.shape), 0, 255).astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=90)
    return content.getvalue()


def written(folder: Path, total: int) -> tuple[str, str, float]:
    """WebDataset shards and Parquet files of the same images: their names, and the mean size of an image in kB."""
    (folder / "parquet").mkdir()
    images = [jpeg(number) for number in range(total)]
    for first in range(0, total, SHARD):
        with tarfile.open(folder / f"{first:06}.tar", "w") as tar:
            for number in range(first, min(first + SHARD, total)):
                for ending, content in ((".jpg", images[number]), (".cls", str(number % 1000).encode())):
                    member = tarfile.TarInfo(f"{number:06}{ending}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    table = {
        "image": [{"bytes": content, "path": None} for content in images],
        "label": [i % 1000 for i in range(total)],
    }
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(table, features=features).to_parquet(folder / "parquet/0.parquet", batch_size=SHARD // 4)
    return f"wds:{folder}", f"parquet:{folder / 'parquet'}", sum(map(len, images)) / total / 1000


def training_step(batch: int) -> Callable[[], int]:
    """A step of plain training of ResNet-50; returns its number of images."""
    torch.manual_seed(0)
    network = build(NetworkSpec("resnet50", classes=1000)).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.rand(batch, 3, SIZE, SIZE), torch.randint(0, 1000, (batch,))

    def step() -> int:
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
        return batch

    return step


def reading(feed: SetFeed | StreamFeed) -> Callable[[], int]:
    """The next epoch, none of it read ahead; returns its number of images."""
    epochs = count()

    def read() -> int:
        first = next(epochs) * feed.steps_per_epoch
        batches = feed.batches(first, first + feed.steps_per_epoch, Place(torch.device("cpu")))
        return sum(len(batch.images) for batch in batches)

    return read


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        tars, parquet, size = written(Path(folder), arguments.images)
        begin = time.process_time()
        shards = load_images(tars, "train", image_size=SIZE)
        opening = time.process_time() - begin
        streamed = open_stream(f"hf:{folder}/parquet", SIZE, cache=Path(folder, "cache"), count=arguments.images)
        feeds: dict[str, SetFeed | StreamFeed] = {
            "WebDataset shards": SetFeed(shards, arguments.batch, 0),
            "Parquet": SetFeed(load_images(parquet, "train", image_size=SIZE), arguments.batch, 0),
            "Parquet as a stream": StreamFeed(streamed, arguments.batch, 0),
        }
        tasks = {"training step, ResNet-50": training_step(arguments.batch)}
        tasks |= {name: reading(feed) for name, feed in feeds.items()}
        results = measured(tasks, arguments.rounds)
    facts = provenance()
    print(f"{facts['hardware']['cpu']}, {arguments.threads} threads, torch {facts['versions']['torch']}")
    print(f"{arguments.images} JPEG files of 500×375 pixels, {size:.0f} kB each, to {SIZE}×{SIZE}")
    print(f"batches of {arguments.batch}, median of {arguments.rounds} rounds")
    print(f"commit {facts['commit']}")
    print(f"opening the shards takes {1e6 * opening / arguments.images:.0f} µs of a processor per image")
    step = results["training step, ResNet-50"]
    for name, speed in results.items():
        line = f"{name:<26}{speed.rate:8.1f} images per second, {1e3 * speed.cost:7.1f} ms of a processor per image"
        if speed is not step:
            line += (
                f"; {speed.rate / step.rate:.0f}× as fast as the step, by processor time {step.cost / speed.cost:.0f}×"
            )
        print(line)
    slowest = min(min(s.rate / step.rate, step.cost / s.cost) for s in results.values() if s is not step)
    print(f"the loader gives at least {slowest:.0f} times the images that the step uses (required: {AT_LEAST:g})")
    assert slowest >= AT_LEAST


class Speed(NamedTuple):
    """How fast a task is; medians of the rounds."""

    rate: float
    """Images per second."""
    cost: float
    """Seconds of processor time per image, in all threads together. Other programs hardly change it."""


def measured(tasks: dict[str, Callable[[], int]], rounds: int) -> dict[str, Speed]:
    """The speed of each task; all take turns, and the first round is not counted."""
    speeds: dict[str, list[Speed]] = {name: [] for name in tasks}
    for counted in range(rounds + 1):
        for name, task in tasks.items():
            begin, used = time.perf_counter(), time.process_time()
            images = task()
            if counted:
                seconds, busy = time.perf_counter() - begin, time.process_time() - used
                speeds[name].append(Speed(images / seconds, busy / images))
    return {
        name: Speed(statistics.median(s.rate for s in values), statistics.median(s.cost for s in values))
        for name, values in speeds.items()
    }


if __name__ == "__main__":
    main()
