import json
from pathlib import Path
from typing import Any

import pytest

from heatsmooth import InputError
from heatsmooth.results.attacks import AttackResult, read_attacks
from heatsmooth.results.certificates import Certificate, read_certificates
from heatsmooth.results.deterministic import NetworkCertificate, read_network_certificates
from heatsmooth.results.guarantees import Basis, BasisKind
from heatsmooth.results.one_pass import read_one_pass
from heatsmooth.results.schema import from_json, to_json
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
    "basis": "statistical, alpha=0.001, one-sided",
    "class_from": "noise",
}
ATTACK: dict[str, Any] = {
    "index": 0,
    "label": 1,
    "success": True,
    "distance": 0.5,
    "norm_steps": 20,
    "subject": "network",
}


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
        ("basis", "statistical"),
        ("basis", "statistical, alpha=0.001, top-0"),
        ("subject", "teacher"),
        ("class_from", None),
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
        {"sums": [1.0]},
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
    with pytest.raises(InputError, match="a second, different one for image 3"):
        read_certificates(directory)


@pytest.mark.parametrize(
    "change", [{"distance": None}, {"success": False}, {"success": 1}, {"distance": -1.0}, {"distance": float("nan")}]
)
def test_an_attack_that_makes_no_sense_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    assert read_attacks(written(tmp_path / "attacks.jsonl", ATTACK)) == [AttackResult(**ATTACK)]
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


RESULTS = Path(__file__).parents[1] / "results"


@pytest.mark.parametrize(("pattern", "kind"), [("certificates", Certificate), ("attacks", AttackResult)])
def test_published_records_are_read_and_would_be_written_alike(pattern: str, kind: type[Any]) -> None:
    """Same keys in the same order, same values: files of both versions can stand in one directory."""
    files = list(RESULTS.rglob(f"{pattern}*.jsonl"))
    assert len(files) > 10
    for file in files:
        for published in read_records(file):
            proven = published.get("basis") == "deterministic"
            again = to_json(from_json(NetworkCertificate if proven else kind, published, str(file), ""))
            assert json.dumps(again) == json.dumps(published)


def test_published_records_are_read() -> None:
    for file in RESULTS.rglob("certificates.jsonl"):
        proven = '"basis": "deterministic"' in file.read_text().splitlines()[0]
        assert (read_network_certificates if proven else read_certificates)(file.parent)


def test_a_one_pass_radius_is_read_as_it_was_written(tmp_path: Path) -> None:
    confident = "conformal, 1-epsilon-alpha=0.949, marginal over images like the calibration set"
    line = {"index": 7, "label": 2, "class": 2, "radius": 0.125, "abstain": False} | {
        "subject": "average",
        "basis": confident,
    }
    undecided = line | {"index": 3, "class": None, "radius": 0.0, "abstain": True}
    first, second = read_one_pass(written(tmp_path / "one_pass.jsonl", line, undecided))
    assert [json.dumps(to_json(result)) for result in (second, first)] == [json.dumps(line), json.dumps(undecided)]
    assert (second.correct, first.correct) == (True, False)
    assert second.basis == Basis(BasisKind.CONFORMAL, confidence=0.949)
    with pytest.raises(InputError, match=r"one_pass\.jsonl:1: expected a one-pass radius, got radius"):
        read_one_pass(written(tmp_path / "one_pass.jsonl", line | {"radius": float("nan")}))


@pytest.mark.parametrize(
    "basis",
    [
        Basis(BasisKind.STATISTICAL, alpha=0.001),
        Basis(BasisKind.STATISTICAL, alpha=1e-7, bound="two-sided", anytime=True),
        Basis(BasisKind.STATISTICAL, alpha=0.012, k=5),
        Basis(BasisKind.STATISTICAL, alpha=0.02, bound="randomised"),
        Basis(BasisKind.STATISTICAL, alpha=0.05, n_wrong=200),
        Basis(BasisKind.CONFORMAL, confidence=0.899),
    ],
    ids=str,
)
def test_what_a_radius_rests_on_is_text_and_back(basis: Basis) -> None:
    assert Basis.read(str(basis)) == basis
