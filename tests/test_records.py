import json
from pathlib import Path
from typing import Any

import pytest

from heatsmooth import InputError
from heatsmooth.records import read_attacks, read_certificates
from heatsmooth.runs import Records, read_records

CERTIFICATE: dict[str, Any] = {
    "index": 3,
    "label": 1,
    "sigma": 0.25,
    "adaptive": False,
    "n0": 10,
    "n": 100,
    "counts": [10, 90],
    "selection": [1, 9],
    "clean_class": 1,
    "clean_probabilities": [0.25, 0.75],
    "samples": 111,
    "seconds": 0.5,
    "class": 1,
    "target": 1,
    "radius": 0.2,
    "abstain": False,
    "subject": "average",
    "basis": "statistical",
    "class_from": "noise",
}
ATTACK = {"index": 0, "label": 1, "success": True, "distance": 0.5, "norm_steps": 20, "subject": "network"}


def written(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path.parent


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("index", -1),
        ("index", 1.0),
        ("index", True),
        ("index", 10**30),
        ("label", "1"),
        ("radius", float("nan")),
        ("radius", float("inf")),
        ("radius", -0.1),
        ("radius", None),
        ("sigma", 0),
        ("counts", []),
        ("counts", [10, -90]),
        ("counts", {"0": 1}),
        ("counts", [10, 10**400]),
        ("clean_probabilities", [0.5, 1.5]),
        ("abstain", 0),
        ("seconds", "long"),
        ("basis", ["x"]),
    ],
)
def test_a_certificate_of_wrong_types_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    directory = written(tmp_path / "certificates.jsonl", CERTIFICATE, CERTIFICATE | {"index": 4, name: value})
    with pytest.raises(InputError, match=rf"certificates\.jsonl:2: expected a certificate, got {name} .*; remove"):
        read_certificates(directory)


@pytest.mark.parametrize(
    "change",
    [
        {"n": 101},
        {"counts": [10, 91]},
        {"counts": [10, 80, 10]},
        {"selection": [10]},
        {"n0": 11},
        {"class": 2},
        {"target": 5},
        {"clean_probabilities": [0.25, 0.25]},
        {"abstain": True},
    ],
)
def test_a_certificate_that_contradicts_itself_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="contradicts itself"):
        read_certificates(written(tmp_path / "certificates.jsonl", CERTIFICATE | change))


def test_an_image_has_one_certificate(tmp_path: Path) -> None:
    other = {"seconds": 0.7}
    directory = written(tmp_path / "certificates-1-of-2.jsonl", CERTIFICATE, CERTIFICATE | other)
    assert len(read_certificates(directory)) == 1
    written(tmp_path / "certificates-2-of-2.jsonl", CERTIFICATE | {"counts": [9, 91]})
    with pytest.raises(InputError, match="a second, other one of image 3"):
        read_certificates(directory)


@pytest.mark.parametrize(
    "change", [{"distance": None}, {"success": False}, {"success": 1}, {"distance": -1.0}, {"distance": float("nan")}]
)
def test_an_attack_that_makes_no_sense_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    assert read_attacks(written(tmp_path / "attacks.jsonl", ATTACK)) == [ATTACK]
    with pytest.raises(InputError, match=r"attacks\.jsonl:1: expected an attack, got"):
        read_attacks(written(tmp_path / "attacks.jsonl", ATTACK | change))


def test_a_line_that_changed_after_it_was_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with Records(path) as records:
        records.append(ATTACK)
        records.append(ATTACK | {"index": 1, "distance": 0.1234567890123456789})
    content = path.read_bytes()
    assert read_records(path) == [ATTACK, ATTACK | {"index": 1, "distance": 0.1234567890123456789}]
    path.write_bytes(content.replace(b"0.5", b"0.6"))
    with pytest.raises(InputError, match=r"r\.jsonl:1: expected a JSON record as it was written"):
        read_records(path)


def test_published_records_are_read() -> None:
    results = Path(__file__).parents[1] / "results"
    read = [read_certificates(file.parent) for file in results.rglob("certificates.jsonl")]
    assert all(read)
