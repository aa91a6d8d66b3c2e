"""Data sets by name: embedded, on this machine, or downloaded and checked."""

import gzip
import hashlib
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from heatsmooth.data.arrays import load_npy, load_npz
from heatsmooth.data.folder import load_folder
from heatsmooth.data.hub import load_hub
from heatsmooth.data.images import ImageSet, Size
from heatsmooth.data.parquet import load_parquet
from heatsmooth.data.webdataset import load_webdataset
from heatsmooth.errors import InputError, require
from heatsmooth.progress import Progress, silent

Split = Literal["train", "test"]
NAMES = (
    "fashion-mini, fashion-mnist, cifar10, imagefolder:PATH, npz:PATH, npy:IMAGES[,LABELS], wds:SHARDS, parquet:FILES "
    "or hf:NAME[:SPLIT]"
)

DEFAULT_ROOT = Path("~/.cache/heatsmooth").expanduser()
DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")
FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
FASHION_CLASSES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
FASHION_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR_ARCHIVE_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}


def load_images(
    name: str,
    split: Split = "test",
    *,
    root: Path | str | None = None,
    image_size: Size | None = None,
    class_index: Path | str | None = None,
    progress: Progress = silent,
) -> ImageSet:
    """The data set ``name``: images in [0, 1], with labels if it has any.

    ``name``: one of ``NAMES``.
    ``split``: "train" or "test"; ``imagefolder``, ``npy`` and a plain ``npz`` have no splits.
    ``root``: where the files of a named data set are, or are downloaded to.
    ``image_size``: of the centre crop of encoded images, in pixels; None for 224, or less for smaller images.
    ``class_index``: a file with the labels of an ``imagefolder``, see ``index.FORMS``.
    ``progress``: called during downloads.
    """
    root, class_index = (None if path is None else Path(path) for path in (root, class_index))
    kind, _, rest = name.partition(":")
    require(
        class_index is None or kind == "imagefolder",
        f"`class_index`: expected it beside imagefolder:PATH, got {name}; leave it out",
    )
    if name in NAMED:
        return NAMED[name](split, root, progress)
    kind, path = kind if rest else "", Path(rest).expanduser()
    if kind == "imagefolder":
        return load_folder(path, image_size, class_index)
    if kind == "npz":
        return load_npz(name, path, split)
    if kind == "npy":
        return load_npy(name, rest)
    if kind == "wds":
        return load_webdataset(name, rest, split, image_size)
    if kind == "parquet":
        return load_parquet(name, rest, split, image_size)
    if kind == "hf":
        return load_hub(name, split, image_size, root)
    raise InputError(f"`data`: expected {NAMES}, got {name!r}")


def _load_mini(split: Split, root: Path | None, progress: Progress) -> ImageSet:  # noqa: ARG001
    with resources.as_file(resources.files("heatsmooth.data") / "fashion-mini.npz") as file:
        return load_npz("fashion-mini", file, split, FASHION_CLASSES)


def _holding(places: Sequence[Path], names: Sequence[str]) -> Path | None:
    """The first of these directories that contains all files."""
    return next((place for place in places if all((place / name).exists() for name in names)), None)


def _load_fashion(split: Split, root: Path | None, progress: Progress) -> ImageSet:
    names = [name for name in FASHION_MD5 if name.startswith("train" if split == "train" else "t10k")]
    own = [] if root is None else [root, root / "fashion-mnist"]
    place = _holding([*own, DEBIAN_FASHION, DEFAULT_ROOT / "fashion-mnist"], names)
    if place is None:
        place = (root or DEFAULT_ROOT) / "fashion-mnist"
        for name in names:
            _download(f"{FASHION_URL}/{name}", place / name, FASHION_MD5[name], "fashion-mnist", progress)
    images, labels = (_read_idx(place / name) for name in names)
    pixels = torch.from_numpy(images.reshape(-1, 1, 28, 28))
    numbers = torch.from_numpy(labels.astype(np.int64))
    return ImageSet.of(f"fashion-mnist/{split}", pixels, numbers, class_names=FASHION_CLASSES)


def _read_idx(path: Path) -> np.ndarray:
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise InputError(f"{path}: expected a gzipped IDX file, got {error}; remove it to download it again") from None
    dimensions = content[3]
    shape = np.frombuffer(content, ">i4", dimensions, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()


def _load_cifar(split: Split, root: Path | None, progress: Progress) -> ImageSet:
    base = root or DEFAULT_ROOT
    names = [name for name in CIFAR_MD5 if name.startswith("data" if split == "train" else "test")]
    place = _holding([base, base / "cifar-10-batches-bin"], names)
    if place is None:
        archive = base / "cifar-10-binary.tar.gz"
        _download(CIFAR_URL, archive, CIFAR_ARCHIVE_MD5, "cifar10", progress)
        with tarfile.open(archive) as tar:
            tar.extractall(base, filter="data")
        place = base / "cifar-10-batches-bin"
    records = np.concatenate([_read_cifar(place / name) for name in names])
    pixels = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
    numbers = torch.from_numpy(records[:, 0].astype(np.int64))
    return ImageSet.of(f"cifar10/{split}", pixels, numbers, class_names=CIFAR_CLASSES)


def _read_cifar(path: Path) -> np.ndarray:
    content = path.read_bytes()
    _check_md5(path, content, CIFAR_MD5[path.name])
    return np.frombuffer(content, np.uint8).reshape(-1, 3073)


def _md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def _check_md5(path: Path, content: bytes, official: str) -> None:
    actual = _md5(content)
    require(
        actual == official,
        f"{path}: expected the official file, MD5 {official}, got {actual}; remove it to download it again",
    )


def _download(url: str, path: Path, md5: str, name: str, progress: Progress) -> None:
    """Download a file to ``path``, unless it is there; a file that is not the official one is refused."""
    if path.exists() and _md5(path.read_bytes()) == md5:
        return
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=30) as answer, part.open("wb") as file:
            total, done = int(answer.headers.get("Content-Length", 0)), 0
            while block := answer.read(1 << 18):
                file.write(block)
                done += len(block)
                progress(f"downloading {name}", done, total)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(
            f"{name}: expected its files in {path.parent} or a download, got {reason}; "
            f"download {url} in another way and name its folder as `data_root`"
        ) from None
    _check_md5(part, part.read_bytes(), md5)
    shutil.move(part, path)


NAMED: dict[str, Callable[[Split, Path | None, Progress], ImageSet]] = {
    "fashion-mini": _load_mini,
    "fashion-mnist": _load_fashion,
    "cifar10": _load_cifar,
}
