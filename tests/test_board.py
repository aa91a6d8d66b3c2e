"""The board: figures as computed by hand, odd logs by name, the same n and α from counts."""

import csv
import json
import math
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special

import heatsmooth as hs
from heatsmooth.commands.line import run
from heatsmooth.reporting.board.page import BoardRow
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.logs import named_sigma
from heatsmooth.statistics.bounds import clopper_pearson_lower
from heatsmooth.statistics.radii import one_sided_radius
from tests.test_report import HOSTILE, write_certificates, write_run

HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"
PUBLISHED = Path(__file__).parents[2] / "shared/data/cohen-logs/certify"


def log_lines(
    method: int, *, images: int = 200, every: int = 1, sigma: float = 0.25, digits: int = 3, data: int = 0
) -> list[str]:
    """A log as Cohen (3 digits) and Salman (4 decimals) write it; better methods have larger radii."""
    draw = np.random.default_rng((method, int(100 * sigma), images))
    labels = np.random.default_rng(data).integers(0, 10, images * every)[::every].tolist()
    p = special.ndtr(draw.normal(1 + method / 10, 1.2, images))
    lower = clopper_pearson_lower(draw.binomial(100_000, p), 100_000, 0.001)
    radii, right = sigma * special.ndtri(np.maximum(lower, 0.5)), draw.random(images) < 0.9
    lines = []
    for place, label in enumerate(labels):
        predicted = -1 if lower[place] < 0.5 else label if right[place] else (label + 1) % 10
        shown = f"{radii[place]:.{digits}}" if digits == 3 else f"{radii[place]:.{digits}f}"
        correct = int(predicted == label)
        lines.append(f"{place * every}\t{label}\t{predicted}\t{shown}\t{correct}\t0:00:1{method % 10}.5\n")
    return lines


def write_log(path: Path, method: int, **choices: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEADER + "".join(log_lines(method, **choices)))
    return path


def write_field(root: Path, images: int = 200) -> Path:
    """Twenty logs: two authors, three noise levels, names with much in common."""
    for number in range(20):
        sigma = (0.25, 0.5, 1.0)[number % 3]
        author, ending = (f"cohen/run_{number}", ".tsv") if number % 2 else (f"salman/pgd/eps_{number}", "")
        name = f"certify/cifar10/{author}/resnet110/noise_{sigma:.2f}/test/sigma_{sigma:.2f}{ending}"
        write_log(root / name, number, images=images, sigma=sigma, digits=3 if number % 2 else 4)
    return root


def by_hand(path: str, radius: float) -> tuple[int, int]:
    """Certified images at a radius, and images, from the text of the file alone."""
    rows = list(csv.DictReader(Path(path).read_text().splitlines(), delimiter="\t"))
    return sum(row["correct"] == "1" and float(row["radius"]) >= radius for row in rows), len(rows)


def check_by_hand(row: BoardRow) -> None:
    for radius, (share, low, high) in row.certified_accuracy.items():
        certified, images = by_hand(row.source, float(radius))
        assert share == pytest.approx(certified / images, abs=1e-12)
        exact_low = special.betaincinv(certified, images - certified + 1, 0.025) if certified else 0.0
        exact_high = special.betaincinv(certified + 1, images - certified, 0.975) if certified < images else 1.0
        assert (low, high) == pytest.approx((exact_low, exact_high), abs=1e-9)
    rows = list(csv.DictReader(Path(row.source).read_text().splitlines(), delimiter="\t"))
    radii = [float(one["radius"]) if one["correct"] == "1" else 0.0 for one in rows]
    assert row.average_certified_radius == pytest.approx(statistics.fmean(radii))
    assert row.sigma is not None
    p_a = sorted(0.5 * (1 + math.erf(r / row.sigma / math.sqrt(2))) if r else 0.0 for r in radii)
    quarters = [p_a[math.ceil(share * len(p_a)) - 1] for share in (0.25, 0.5, 0.75)]
    assert row.p_a_quartiles == pytest.approx(quarters)


def test_twenty_logs_give_the_figures_computed_by_hand(tmp_path: Path) -> None:
    field = write_field(tmp_path / "logs")
    result = hs.board([field], tmp_path / "out")
    assert len(result.rows) == 20
    assert result.skipped == result.notes == []
    for row in result.rows:
        check_by_hand(row)
        assert (row.n, row.alpha, row.drawn, row.remarks) == (None, None, True, [])
        assert row.sigma == named_sigma(Path(row.source))
    assert {row.name for row in result.rows if "cohen" in row.source} == {f"cohen/run_{i}" for i in range(1, 20, 2)}
    assert {row.name for row in result.rows if "salman" in row.source} == {f"salman/eps_{i}" for i in range(0, 20, 2)}
    table = list(csv.DictReader(Path(result.table).read_text().splitlines()))
    for line, row in zip(table, result.rows, strict=True):
        assert float(line["r 0.5, high"]) == row.certified_accuracy["0.5"][2]
        assert (line["name"], float(line["ACR"])) == (row.name, row.average_certified_radius)
    page = Path(result.out).read_bytes()
    hs.board([field], tmp_path / "again")
    assert (tmp_path / "again/board.html").read_bytes() == page


@pytest.mark.skipif(not PUBLISHED.exists(), reason="needs the published logs")
def test_published_logs_give_the_published_figures(tmp_path: Path) -> None:
    rows = {(row.data, row.sigma): row for row in hs.board([PUBLISHED], tmp_path / "board.html").rows}
    assert rows["cifar10", 0.25].certified_accuracy["0.25"][0] == 0.600
    assert rows["cifar10", 0.5].certified_accuracy["1"][0] == 0.234
    ((imagenet, row),) = ((key, row) for key, row in rows.items() if key[0] != "cifar10")
    assert imagenet[1] == 0.5
    assert row.certified_accuracy["1.5"][0] == 0.286
    for row in rows.values():
        check_by_hand(row)


def test_odd_logs_are_named_and_stop_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = tmp_path / "logs"
    for number in range(3):
        write_log(logs / f"good_{number}/sigma_0.50", number, sigma=0.5)
    lines = log_lines(4, sigma=0.5)
    odd = {
        "cut_sigma_0.50": "".join(lines[:40]) + lines[40][:9],
        "windows_sigma_0.50": "".join(lines).replace("\n", "\r\n"),
        "broken_sigma_0.50": "".join(lines[:9]) + "9\tx\n" + "".join(lines[10:]),
        "header_sigma_0.50": "",
        "twice_sigma_0.50": "".join(lines + lines[:2]),
        "contrary_sigma_0.50": "".join([lines[0].replace("\t1\t0:", "\t0\t0:"), *lines[1:]]),
        "negative_sigma_0.50": "".join(lines[:5]) + "5\t1\t1\t-0.5\t1\t1\n" + "".join(lines[6:]),
        "nameless": "".join(lines),
        "far_sigma_0.01": "".join(lines),
        "strided_sigma_0.50": "".join(lines[::20]),
        f"{HOSTILE.replace('/', '')}_sigma_0.50": "".join(lines),
    }
    for name, text in odd.items():
        (logs / name).write_bytes(((HEADER.rstrip("\n") + ("\r\n" if "\r" in text else "\n")) + text).encode())
    (logs / "predicted").write_text("idx\tlabel\tpredict\tcorrect\ttime\n0\t1\t1\t1\t3.0\n")
    (logs / "stdout.txt").write_text("Check gpu start\n")
    empty = tmp_path / "empty.tsv"
    empty.write_text("")
    assert run(["board", str(logs), str(empty), "nowhere", "--out", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    reasons = {note["name"].split("/")[-1]: note["reason"] for note in found["skipped"]}
    assert set(reasons) == {
        "broken_sigma_0.50",
        "header_sigma_0.50",
        "negative_sigma_0.50",
        "predicted",
        "empty.tsv",
        "nowhere",
    }
    for name, reason in (("broken", "expected 6 columns"), ("header", "a header alone"), ("negative", "radii from 0")):
        assert reason in reasons[f"{name}_sigma_0.50"]
    assert "PREDICT" in reasons["predicted"]
    rows = {row["source"].split("/")[-1]: row for row in found["rows"]}
    assert len(rows) == 3 - 2 + 8, "three have the name sigma_0.50"
    said = {name: " ".join(row["remarks"]) for name, row in rows.items()}
    for name, remark in (
        ("cut_sigma_0.50", "only the first 40 of 200 images: unfinished or truncated its last line is incomplete"),
        ("windows_sigma_0.50", "CR LF"),
        ("twice_sigma_0.50", "2 lines repeat an image"),
        ("contrary_sigma_0.50", "contradicts label and predict for 1 images"),
        ("nameless", "states no σ"),
        ("far_sigma_0.01", "times the σ of its name"),
        ("strided_sigma_0.50", "other images: 10 images, 0 to 180, every 20th; too few to compare"),
    ):
        assert remark in said[name], name
    assert {name for name, row in rows.items() if not row["drawn"]} == {"cut_sigma_0.50", "strided_sigma_0.50"}
    assert rows["nameless"]["sigma"] is rows["far_sigma_0.01"]["sigma"] is None
    page = (tmp_path / "out/board.html").read_text()
    assert "<script>alert" not in page
    assert "left out</em><b>nowhere</b>" in page
    assert run(["board", str(empty), "--out", str(tmp_path / "out")]) == 2
    assert "none that can be read" in capsys.readouterr().err
    assert run(["board", str(logs), "--alpha", "0.7", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(
        "heatsmooth: error: --alpha: expected a number above 0 and below 0.5, got 0.7"
    )


def test_other_labels_are_other_images(tmp_path: Path) -> None:
    for data in range(2):
        for number in range(2):
            write_log(tmp_path / f"logs/data_{data}/{number}/noise_0.50.tsv", number, sigma=0.5, data=data)
    rows = hs.board([tmp_path / "logs"], tmp_path / "board.html").rows
    assert [(row.data, row.name) for row in rows] == [
        (f"data_{data}", f"{number}") for data in range(2) for number in range(2)
    ]


def fewer_samples(source: Path, copy: Path, n: int, **choices: Any) -> None:
    """The same images with other counts."""
    write_certificates(copy, "m", images=1, level=1.0, n=n, **choices)
    basis = json.loads((copy / "certificates.jsonl").read_text())["basis"]
    lines = []
    for line in (source / "certificates.jsonl").read_text().splitlines():
        item = json.loads(line)
        counts = [round(count * n / item["n"]) for count in item["counts"]]
        adaptive = choices.get("adaptive", False)
        lines.append(json.dumps(item | {"n": n, "counts": counts, "basis": basis, "adaptive": adaptive}))
    (copy / "certificates.jsonl").write_text("\n".join(lines) + "\n")


def test_runs_are_brought_to_the_same_n_and_alpha(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    many = write_certificates(runs / "many", "m", images=400, level=1.0, n=4000)
    fewer_samples(many, runs / "few", 1000)
    fewer_samples(many, runs / "adaptive", 2000, adaptive=True)
    write_run(
        runs / "proven", "certify", {"data": {"name": "x", "images": 2}, "certificate": {"kind": "deterministic"}}
    )
    proven = json.loads((many / "certificates.jsonl").read_text().splitlines()[0])
    kept = {key: proven[key] for key in ("index", "label", "class")}
    kept |= {"radius": 0.8, "abstain": False, "subject": "network", "basis": "deterministic", "seconds": 0.1}
    (runs / "proven/certificates.jsonl").write_text(json.dumps(kept) + "\n")
    rows = {row.name: row for row in hs.board([runs], tmp_path / "a.html", alpha=0.01).rows}
    assert {name: (row.n, row.alpha) for name, row in rows.items()} == {
        "many": (1000, 0.01),
        "few": (1000, 0.01),
        "adaptive": (2000, 0.01),
        "proven": (None, None),
    }
    assert rows["proven"].about.startswith("network")
    for name, change in {"sigma": {"sigma": 1.0}, "noise": {"noise": "laplace"}, "fixed": {"adaptive": False}}.items():
        shutil.copytree(runs / "adaptive", tmp_path / "edited" / name)
        edited = tmp_path / "edited" / name / "run.json"
        info = json.loads(edited.read_text())
        info["settings"]["certificate"] |= change
        edited.write_text(json.dumps(info))
    with pytest.raises(hs.InputError, match=r"expected records of σ=.*, as run\.json says"):
        hs.board([tmp_path / "edited"], tmp_path / "edited.html")
    few = Certificates.read(runs / "few")
    count = np.take_along_axis(few.counts, few.classes[:, None], 1)[:, 0]
    radius, abstain = one_sided_radius(clopper_pearson_lower(count, 1000, 0.01), sigma=0.25)
    correct = (few.classes == few.known_labels) & ~abstain
    assert rows["few"].average_certified_radius == pytest.approx((radius * correct).mean(), abs=1e-8)
    assert rows["few"].certified_accuracy["0.25"][0] == (correct & (radius >= 0.25)).mean()
    assert "it was certified with n 4,000, alpha=0.001" in " ".join(rows["many"].remarks)
    assert rows["many"].average_certified_radius == pytest.approx(rows["few"].average_certified_radius, abs=0.01)
    assert "adaptive" in " ".join(rows["adaptive"].remarks)
    assert [name for name, row in rows.items() if "0.75" in row.certified_accuracy] == ["proven"], "beyond n and α"
    rows = {row.name: row for row in hs.board([runs], tmp_path / "b.html", n=4000).rows}
    own = Certificates.read(many)
    assert rows["many"].average_certified_radius == pytest.approx(own.average_certified_radius, abs=1e-8)
    assert "fewer than 4,000" in " ".join(rows["few"].remarks)
