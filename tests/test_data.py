import gzip
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from heatsmooth import InputError
from heatsmooth.data import ImageSet, as_unit_interval, load_images, shifted_and_flipped, sources
from heatsmooth.noise import Draw


def test_fashion_mini_is_balanced_and_in_range() -> None:
    train, test = load_images("fashion-mini", "train"), load_images("fashion-mini", "test")
    assert (len(train), len(test)) == (12_000, 2_000)
    assert train.shape == (1, 28, 28)
    assert train.known_labels().bincount().tolist() == [1200] * 10
    assert test.known_labels().bincount().tolist() == [200] * 10
    images = test.images(torch.arange(500))
    assert images.dtype == torch.float32
    assert (float(images.min()), float(images.max())) == (0.0, 1.0)
    assert train.fingerprint != test.fingerprint
    assert (train.name, test.name) == ("fashion-mini/train", "fashion-mini/test")


def test_fashion_mini_is_a_subset_of_fashion_mnist() -> None:
    if not sources.DEBIAN_FASHION.exists():
        pytest.skip("Debian's dataset-fashion-mnist is not installed")
    full, mini = load_images("fashion-mnist", "test"), load_images("fashion-mini", "test")
    assert len(full) == 10_000
    with np.load(Path(sources.__file__).parent / "fashion-mini.npz") as arrays:
        chosen = torch.from_numpy(arrays["test_indices"].astype(np.int64))
    assert torch.equal(full.raw(chosen), mini.raw(torch.arange(2000)))
    assert torch.equal(full.known_labels()[chosen], mini.known_labels())


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


def test_fashion_mnist_is_read_from_a_root(tmp_path: Path) -> None:
    images, labels = np.arange(3 * 784).reshape(3, 28, 28) % 256, np.array([1, 2, 9])
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", labels)
    found = load_images("fashion-mnist", "test", root=str(tmp_path))
    assert found.known_labels().tolist() == [1, 2, 9]
    assert torch.equal(found.raw(torch.arange(3)).squeeze(1), torch.from_numpy(images.astype(np.uint8)))
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(b"broken")
    with pytest.raises(InputError, match="IDX"):
        load_images("fashion-mnist", "test", root=tmp_path)


def fake_cifar(root: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """A file in the official layout, whose checksum stands for the official one."""
    records = np.random.default_rng(0).integers(0, 256, (20, 3073), dtype=np.uint8)
    records[:, 0] %= 10
    folder = root / "cifar-10-batches-bin"
    folder.mkdir()
    records.tofile(folder / "test_batch.bin")
    monkeypatch.setitem(sources.CIFAR_MD5, "test_batch.bin", hashlib.md5(records.tobytes()).hexdigest())
    return records


def test_cifar10_layout_and_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = fake_cifar(tmp_path, monkeypatch)
    for root in (tmp_path, tmp_path / "cifar-10-batches-bin"):
        found = load_images("cifar10", "test", root=root)
        assert found.known_labels().tolist() == records[:, 0].tolist()
        assert found.raw(torch.tensor([3]))[0, 1, 0, 5] == records[3, 1 + 1024 + 5]
    with (tmp_path / "cifar-10-batches-bin/test_batch.bin").open("r+b") as file:
        file.write(b"\xff")
    with pytest.raises(InputError, match=r"official file, MD5"):
        load_images("cifar10", "test", root=tmp_path)


def test_the_official_cifar10_where_it_is() -> None:
    root = Path(os.environ.get("HEATSMOOTH_DATA", "/nonexistent"))
    if not (root / "cifar-10-batches-bin").exists():
        pytest.skip("set HEATSMOOTH_DATA to a folder that holds cifar-10-batches-bin")
    assert load_images("cifar10", "test", root=root).known_labels()[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]


def test_a_download_that_fails_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CIFAR_URL", "http://127.0.0.1:9/cifar-10-binary.tar.gz")
    with pytest.raises(InputError, match=r"cifar10: expected its files in .* `data_root`"):
        load_images("cifar10", "test", root=tmp_path)


def test_a_download_is_checked_and_shows_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, seen = os.urandom(1 << 19), []
    (tmp_path / "served").mkdir()
    (tmp_path / "served/file").write_bytes(content)
    monkeypatch.chdir(tmp_path / "served")
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().decode().split("port ")[1].split()[0]
        url = f"http://127.0.0.1:{port}/file"

        def progress(what: str, done: int, total: int, note: str = "") -> None:
            seen.append((what, done, total))

        sources._download(url, tmp_path / "file", hashlib.md5(content).hexdigest(), "x", progress)
        assert (tmp_path / "file").read_bytes() == content
        assert seen[-1] == ("downloading x", len(content), len(content))
        with pytest.raises(InputError, match="official"):
            sources._download(url, tmp_path / "other", "0" * 32, "x", progress)
        assert not (tmp_path / "other").exists()
    finally:
        server.kill()
        server.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name, size, mode in (
        ("cat/a.png", (50, 40), "RGB"),
        ("cat/b.jpg", (40, 80), "L"),
        ("dog/deep/c.png", (30, 30), "RGBA"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (size[1], size[0], 4), dtype=np.uint8), "RGBA").convert(mode).save(
            tmp_path / name
        )
    (tmp_path / "cat/notes.txt").write_text("not an image")
    return tmp_path


def test_imagefolder_resizes_crops_and_labels(folder: Path) -> None:
    found = load_images(f"imagefolder:{folder}", image_size=32)
    assert found.class_names == ("cat", "dog")
    assert found.known_labels().tolist() == [0, 0, 1]
    assert found.images(torch.tensor([2, 0])).shape == (2, 3, 32, 32)
    reference = (
        Image.open(folder / "cat/a.png").convert("RGB").resize((46, 37), Image.Resampling.BILINEAR).crop((7, 2, 39, 34))
    )
    assert np.array_equal(found.raw(torch.tensor([0]))[0].permute(1, 2, 0).numpy(), np.asarray(reference))


def test_imagefolder_without_classes_has_no_labels(folder: Path) -> None:
    found = load_images(f"imagefolder:{folder / 'cat'}", image_size=16)
    assert found.labels is None
    with pytest.raises(InputError, match="labels"):
        found.known_labels()


def test_imagefolder_follows_links_but_not_in_circles(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    chosen = tmp_path_factory.mktemp("chosen")
    for name in ("cat", "dog"):
        (chosen / name).symlink_to(folder / name)
    (folder / "dog" / "again").symlink_to(folder / "dog")
    (chosen / "cat" / "lost.png").symlink_to(folder / "nothing.png")
    found = load_images(f"imagefolder:{chosen}", image_size=32)
    assert found.class_names == ("cat", "dog")
    assert found.known_labels().tolist() == [0, 0, 1]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_unreadable_images_are_named(folder: Path) -> None:
    (folder / "cat/a.png").write_bytes((folder / "cat/a.png").read_bytes()[:200])
    with pytest.raises(InputError, match=r"cat/a\.png: expected a readable image"):
        load_images(f"imagefolder:{folder}", image_size=16).images(torch.arange(3))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_unreadable_images_are_listed_and_skipped_only_if_asked(folder: Path) -> None:
    (folder / "cat/b.jpg").write_bytes(b"")
    (folder / "dog/deep/c.png").write_bytes((folder / "dog/deep/c.png").read_bytes()[:300])
    found = load_images(f"imagefolder:{folder}", image_size=16)
    with pytest.raises(InputError, match=r"cat/b\.jpg, .*c\.png: expected 2 readable images.*`skip_broken`"):
        found.images(torch.arange(3))
    kept = found.readable()
    assert kept.indices.tolist() == [0]
    assert [Path(name).name for name in kept.left_out] == ["b.jpg", "c.png"]
    assert kept.known_labels().tolist() == [0]
    assert kept.fingerprint != found.fingerprint
    assert numbered(3).readable().left_out == ()


def test_an_imagefolder_labelled_by_a_class_index(folder: Path) -> None:
    (folder / "index.json").write_text('{"dog": 0, "cat": 7, "a": 3}')
    found = load_images(f"imagefolder:{folder}", image_size=16, class_index=folder / "index.json")
    assert found.known_labels().tolist() == [3, 7, 0]
    with pytest.raises(InputError, match="beside imagefolder"):
        load_images("fashion-mini", class_index=folder / "index.json")


@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_npy_files_are_read_where_they_lie(tmp_path: Path, kind: type) -> None:
    images: np.ndarray = np.random.default_rng(0).integers(0, 2, (5, 8, 8, 3)).astype(kind)
    np.save(tmp_path / "i.npy", images)
    np.save(tmp_path / "l.npy", np.arange(5))
    found = load_images(f"npy:{tmp_path}/i.npy,{tmp_path}/l.npy")
    assert found.shape == (3, 8, 8)
    assert found.known_labels().tolist() == [0, 1, 2, 3, 4]
    expected = torch.from_numpy(images[[4, 1]].transpose(0, 3, 1, 2).copy())
    assert torch.equal(found.raw(torch.tensor([4, 1])), expected if kind is np.uint8 else expected.float())
    assert load_images(f"npy:{tmp_path}/i.npy").labels is None
    assert load_images(f"npy:{tmp_path}/i.npy").fingerprint != found.fingerprint
    for name, message in (("none.npy", "check the path"), ("i.npy,i.npy", "integer labels"), ("a.npz", "use npz:")):
        np.savez(tmp_path / "a.npz", images=images)
        with pytest.raises(InputError, match=message):
            load_images(f"npy:{tmp_path}/" + name.replace(",", f",{tmp_path}/"))


@pytest.mark.parametrize("shape", [(5, 8, 8), (5, 8, 8, 3), (5, 3, 8, 8), (5, 8, 8, 1)])
@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_npz_in_every_layout(tmp_path: Path, shape: tuple[int, ...], kind: type) -> None:
    images: np.ndarray = np.random.default_rng(0).integers(0, 256, shape).astype(kind)
    images = images if kind is np.uint8 else images / 255
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(5))
    found = load_images(f"npz:{tmp_path / 'a.npz'}")
    assert found.shape == (3 if 3 in shape else 1, 8, 8)
    assert found.images(torch.arange(5)).dtype == torch.float32
    np.savez(tmp_path / "b.npz", images=images)
    assert load_images(f"npz:{tmp_path / 'b.npz'}").labels is None


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": np.zeros((2, 4, 4))}, "an array 'images'"),
        ({"images": np.zeros((2, 4, 4, 7))}, "1 or 3 channels"),
        ({"images": np.zeros((2, 4, 4), dtype=np.int32)}, "uint8"),
        ({"images": np.zeros((2, 4, 4)), "labels": np.zeros(3, int)}, "one label for each of 2 images, got 3"),
        ({"images": np.zeros((2, 4, 4)), "labels": np.array([-1, 0])}, "labels from 0, got -1"),
        ({"images": np.zeros((2, 4, 4)), "labels": np.array([0.5, 0])}, "integer labels"),
        ({"images": np.zeros((0, 4, 4))}, "at least one image"),
    ],
)
def test_bad_npz_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        load_images(f"npz:{tmp_path / 'a.npz'}")


def test_an_npz_with_objects_runs_no_code(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.array([object()], dtype=object))
    with pytest.raises(InputError, match=r"numpy \.npz"):
        load_images(f"npz:{tmp_path / 'a.npz'}")


@pytest.mark.parametrize("value", [1.5, -0.1, float("nan")])
def test_values_outside_the_unit_interval_are_refused(value: float) -> None:
    with pytest.raises(InputError, match=r"images in \[0, 1\].*`mean`"):
        as_unit_interval(torch.tensor([0.5, value]))


def numbered(count: int) -> ImageSet:
    return ImageSet.of(
        "numbered", torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 8, 8), torch.arange(count)
    )


def test_subsets_are_fixed_and_recorded() -> None:
    full = numbered(100)
    some = full.sampled(10)
    assert torch.equal(some.indices, full.sampled(10).indices)
    assert len(set(some.indices.tolist())) == 10
    assert "10 of a fixed permutation" in some.rule
    assert full.strided(7, 3).indices.tolist() == [0, 7, 14]
    assert full.strided(7, 3).describe()["rule"] == "all; every 7., the first 3"
    assert full.strided(7, 3, start=1).indices.tolist() == [1, 8, 15]
    assert full.strided(7, 3, start=1).describe()["rule"] == "all; every 7. from 1 on, the first 3"
    assert full.strided(30).known_labels().tolist() == [0, 30, 60, 90]
    assert full.fingerprint != full.without_labels().fingerprint != some.fingerprint
    with pytest.raises(InputError, match="labels below 50"):
        full.check_classes(50)
    with pytest.raises(InputError, match="stride"):
        full.strided(0)


def test_augmentation_shifts_and_mirrors_whole_images() -> None:
    image = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8)
    found = shifted_and_flipped(image.expand(400, 1, 8, 8), Draw(0))
    assert found.dtype == torch.uint8
    padded = torch.nn.functional.pad(image.float(), (1, 1, 1, 1), mode="reflect").to(torch.uint8)
    windows = {
        tuple(w.flatten().tolist()) for i in range(3) for j in range(3) for w in (padded[0, 0, i : i + 8, j : j + 8],)
    }
    mirrored = {tuple(torch.tensor(w).view(8, 8).flip(1).flatten().tolist()) for w in windows}
    seen = {tuple(w.flatten().tolist()) for w in found}
    assert seen == windows | mirrored
    assert torch.equal(found, shifted_and_flipped(image.expand(400, 1, 8, 8), Draw(0)))
    only_mirrored = shifted_and_flipped(image.expand(400, 1, 8, 8), Draw(0), shifts=False)
    assert {tuple(w.flatten().tolist()) for w in only_mirrored} == {
        tuple(image.flatten().tolist()),
        tuple(image.flip(3).flatten().tolist()),
    }


def test_a_stride_beyond_all_images_takes_the_first() -> None:
    images = load_images("fashion-mini", "test")
    assert images.strided(2**63 - 1).indices.tolist() == [0]


def test_small_images_keep_their_size_and_parts_of_a_data_set_are_no_classes(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / part / name).mkdir(parents=True)
            Image.new("RGB", (40, 36)).save(tmp_path / part / name / "a.png")
    assert load_images(f"imagefolder:{tmp_path}/train").shape == (3, 36, 36)
    Image.new("RGB", (300, 400)).save(tmp_path / "train/cat/A.png")
    assert load_images(f"imagefolder:{tmp_path}/train").shape == (3, 224, 224)
    with pytest.raises(InputError, match=r"got the splits test, train of a data set; name one of them"):
        load_images(f"imagefolder:{tmp_path}")
