"""Data sets by name: embedded, found on this machine, or downloaded and checked."""

import gzip
import hashlib
import shutil
import tarfile
import urllib.error
import urllib.request
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from heatsmooth.data.arrays import load_npy, load_npz
from heatsmooth.data.folder import load_folder
from heatsmooth.data.hub import load_hub
from heatsmooth.data.images import ImageSet, Pixels, Size
from heatsmooth.errors import InputError, require
from heatsmooth.progress import Progress, silent

Split = Literal["train", "test"]
NAMES = "fashion-mini, fashion-mnist, cifar10, imagefolder:PATH, npz:PATH, npy:IMAGES[,LABELS] or hf:NAME[:SPLIT]"

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


def load(
    name: str,
    split: Split = "test",
    *,
    root: Path | str | None = None,
    image_size: Size | None = None,
    class_index: Path | str | None = None,
    progress: Progress = silent,
) -> ImageSet:
    """The data set ``name``, one of ``NAMES``.

    ``imagefolder``, ``npy`` and a plain ``npz`` have no split: training and testing see the images they are given.
    ``image_size``: the side, or (height, width), of the centre crop of encoded images (None: 224, or that of smaller
    ones).
    ``class_index``: the labels of an ``imagefolder``.
    """
    root, class_index = (None if given is None else Path(given) for given in (root, class_index))
    kind, _, path = name.partition(":")
    require(
        class_index is None or kind == "imagefolder",
        f"--class-index: expected it beside imagefolder:PATH, got {name}; leave it out",
    )
    if kind == "imagefolder" and path:
        return load_folder(Path(path).expanduser(), image_size, class_index)
    if kind == "npz" and path:
        return load_npz(name, Path(path).expanduser(), split)
    if kind == "npy" and path:
        images, _, labels = path.partition(",")
        return load_npy(name, Path(images).expanduser(), Path(labels).expanduser() if labels else None)
    if kind == "hf" and path:
        return load_hub(name, split, image_size, root)
    if name == "fashion-mini":
        with resources.as_file(resources.files("heatsmooth.data") / "fashion-mini.npz") as file:
            return load_npz(name, file, split, FASHION_CLASSES)
    if name == "fashion-mnist":
        return _load_fashion(split, root, progress)
    if name == "cifar10":
        return _load_cifar(split, root, progress)
    raise InputError(f"--data: expected {NAMES}, got {name!r}")


def _load_fashion(split: Split, root: Path | None, progress: Progress) -> ImageSet:
    places = [
        place
        for place in (root, root and root / "fashion-mnist", DEBIAN_FASHION, DEFAULT_ROOT / "fashion-mnist")
        if place
    ]
    names = [name for name in FASHION_MD5 if name.startswith("train" if split == "train" else "t10k")]
    place = next((place for place in places if all((place / name).exists() for name in names)), None)
    if place is None:
        place = (root or DEFAULT_ROOT) / "fashion-mnist"
        for name in names:
            _download(f"{FASHION_URL}/{name}", place / name, FASHION_MD5[name], "fashion-mnist", progress)
    images, labels = (_read_idx(place / name) for name in names)
    pixels = torch.from_numpy(images.reshape(-1, 1, 28, 28))
    return ImageSet.of(
        f"fashion-mnist/{split}", pixels, torch.from_numpy(labels.astype(np.int64)), class_names=FASHION_CLASSES
    )


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
    places = [base, base / "cifar-10-batches-bin"]
    place = next((place for place in places if all((place / name).exists() for name in names)), None)
    if place is None:
        archive = base / "cifar-10-binary.tar.gz"
        _download(CIFAR_URL, archive, CIFAR_ARCHIVE_MD5, "cifar10", progress)
        with tarfile.open(archive) as tar:
            tar.extractall(base, filter="data")
        place = base / "cifar-10-batches-bin"
    records = np.concatenate([_read_cifar(place / name) for name in names])
    pixels: Pixels = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
    return ImageSet.of(
        f"cifar10/{split}", pixels, torch.from_numpy(records[:, 0].astype(np.int64)), class_names=CIFAR_CLASSES
    )


def _read_cifar(path: Path) -> np.ndarray:
    content = path.read_bytes()
    _check_md5(path, hashlib.md5(content).hexdigest(), CIFAR_MD5[path.name])
    return np.frombuffer(content, np.uint8).reshape(-1, 3073)


def _check_md5(path: Path, found: str, official: str) -> None:
    require(
        found == official,
        f"{path}: expected the official file, MD5 {official}, got {found}; remove it to download it again",
    )


def _download(url: str, path: Path, md5: str, name: str, progress: Progress) -> None:
    if path.exists() and hashlib.md5(path.read_bytes()).hexdigest() == md5:
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
            f"fetch {url} by other means and name its folder with --data-root"
        ) from None
    _check_md5(part, hashlib.md5(part.read_bytes()).hexdigest(), md5)
    shutil.move(part, path)
