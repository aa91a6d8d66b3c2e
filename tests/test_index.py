"""Class-index files."""

import json
from pathlib import Path

import pytest

from heatsmooth import InputError
from heatsmooth.data.index import read_class_index


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", json.dumps({"n01": 0, "n02": 1, "n03": 2})),
        ("a.json", json.dumps({"0": ["n01", "tench"], "1": ["n02", "goldfish"], "2": ["n03", "shark"]})),
        ("a.json", json.dumps(["n01", "n02", "n03"])),
        ("a.csv", "folder,class\nn01,0\nn02,1\nn03,2\n"),
        ("a.csv", "n01,0\nn02,1\nn03,2\n"),
        ("a.txt", "n01 0\nn02 1\nn03 2\n"),
        ("a.txt", "n01 tench, Tinca tinca\nn02 goldfish\nn03 great white shark\n"),
        ("a.txt", "n01\nn02\n\nn03\n"),
    ],
)
def test_every_form(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_class_index(tmp_path / name).numbers == {"n01": 0, "n02": 1, "n03": 2}


def test_imagenets_validation_list(tmp_path: Path) -> None:
    (tmp_path / "LOC_val_solution.csv").write_text(
        "ImageId,PredictionString\nval_2,n03 85 1 499 272 \nval_1,n01 1 2 3 4\n"
        "val_3,n01 0 0 1 1 n01 2 2 3 3\nval_4,n02 1 1 2 2\n"
    )
    index = read_class_index(tmp_path / "LOC_val_solution.csv")
    assert index.numbers == {"val_2": 2, "val_1": 0, "val_3": 0, "val_4": 1}
    labels, names = index.label([tmp_path / f"val_{i}.JPEG" for i in (1, 2, 4)], tmp_path)
    assert labels.tolist() == [0, 2, 1]
    assert names is None


def test_folders_name_the_classes(tmp_path: Path) -> None:
    (tmp_path / "i.txt").write_text("dog\ncat\n")
    labels, names = read_class_index(tmp_path / "i.txt").label(
        [tmp_path / "x/cat/1.png", tmp_path / "dog/2.png"], tmp_path
    )
    assert labels.tolist() == [1, 0]
    assert names == ("dog", "cat")


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.json", "{"), ("a.json", "3"), ("a.json", '{"a": "b"}'), ("a.csv", "a\nb\n"), ("a.txt", ""), ("a.csv", "")],
)
def test_what_is_no_index_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="`class_index`"):
        read_class_index(tmp_path / name)


def test_images_without_a_class_are_refused(tmp_path: Path) -> None:
    (tmp_path / "i.txt").write_text("dog\ncat\n")
    with pytest.raises(InputError, match=r"got 1 not in it \(first: cow/1\.png\)"):
        read_class_index(tmp_path / "i.txt").label([tmp_path / "cow/1.png", tmp_path / "dog/2.png"], tmp_path)
    with pytest.raises(InputError, match="`class_index`"):
        read_class_index(tmp_path / "none.txt")
