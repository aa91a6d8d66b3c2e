"""The report: from files alone, complete, honest about what it could not read, and safe against what it reads."""

import io
import json
import re
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special

from heatsmooth.certification.settings import Settings
from heatsmooth.errors import InputError
from heatsmooth.reporting import build_report
from heatsmooth.reporting.chart import Chart, Series
from heatsmooth.reporting.figures import certified_charts, probability_charts
from heatsmooth.reporting.naming import Names
from heatsmooth.reporting.page import ReportResult
from heatsmooth.reporting.pdf import pdf
from heatsmooth.reporting.probabilities import of_certification
from heatsmooth.reporting.sources import read_sources
from heatsmooth.results.certificates import read_certificates
from heatsmooth.results.comparison import Timing
from heatsmooth.results.logs import write_log
from heatsmooth.statistics.bounds import clopper_pearson_lower
from heatsmooth.table import Column, Table

PUBLISHED = Path(__file__).parents[2] / "shared/data/cohen-logs"
HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"
CONFORMAL = "conformal, 1-epsilon-alpha=0.949, marginal over images like the calibration set"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&$\\n_{"


def write_run(path: Path, command: str, settings: dict[str, Any], **more: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    info = {
        "command": command,
        "settings": settings | {"seed": 0},
        "arguments": [command, "--out", str(path)],
        "started": "2026-01-02T03:04:05Z",
        "seconds": 75.0,
        "status": "done",
        "versions": {"python": "3.11.7", "heatsmooth": "0.1.0", "numpy": "2.4.6"},
        "commit": "0123456789abcdef",
        "hardware": {"machine": "x86_64", "cpu": "Example CPU @ 2.80GHz", "cores": 2},
        **more,
    }
    (path / "run.json").write_text(json.dumps(info))
    return path


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_training(path: Path, command: str, model: str, *, accuracy: float, noisy: float, **settings: Any) -> Path:
    data = {"name": "fashion-mini/train", "images": 5000, "shape": [1, 28, 28], "rule": "all", "fingerprint": "ab12"}
    summary = {"command": command, "out": str(path), "accuracy": accuracy, "accuracy_under_noise": noisy}
    summary |= {"test_images": 1000, "seconds": 75.0}
    if command == "smooth":
        summary |= {"teacher_accuracy": 0.871, "teacher_accuracy_under_noise": 0.352}
    write_run(path, command, {"data": data, **settings}, model_hash=model, summary=summary)
    decay = np.exp(-np.arange(300) / 60)
    lines = []
    for step, value in enumerate(decay.tolist()):
        line = {"stage": 0, "step": step, "epoch": (step + 1) / 50, "lr": 0.1, "loss": 0.3 + 2 * value}
        if command == "smooth":
            line |= {"distance": 0.2 + 1.4 * value, "penalty": 0.1 + 0.6 * value}
        lines.append(line | {"images_per_second": 700.0})
    write_lines(path / "metrics.jsonl", lines)
    return path


def write_certificates(
    path: Path, model: str, *, images: int, level: float, n: int = 1000, sigma: float = 0.25, **choices: Any
) -> Path:
    certificate: dict[str, Any] = {
        "sigma": sigma,
        "n": n,
        "n0": 100,
        "alpha": 0.001,
        "class_from": "clean",
        "adaptive": False,
    }
    certificate |= {"top_k": 1, "bound": "one-sided", "radii": [], "tolerance": 0.05} | choices
    known = {name: value for name, value in certificate.items() if name not in ("radii", "class_from")}
    basis = str(Settings(**known).basis)
    data = {"name": "fashion-mini/test", "images": images, "fingerprint": "cd34"}
    write_run(path, "certify", {"data": data, "model": model, "certificate": certificate}, model_hash=model)
    draw = np.random.default_rng(images)
    p = special.ndtr(draw.normal(level, 1.1, images))
    count = draw.binomial(n, p)
    lower = clopper_pearson_lower(count, n, 0.001)
    radius = np.floor(sigma * special.ndtri(np.maximum(lower, 0.5)) * 1e9) / 1e9
    right = draw.random(images) < 0.9
    lines = []
    for i in range(images):
        chosen = int(draw.integers(10))
        counts = [0] * 10
        counts[chosen], counts[(chosen + 1) % 10] = int(count[i]), int(n - count[i])
        probabilities = [0.0] * 10
        probabilities[chosen] = float(f"{0.5 + p[i] / 2:.6f}")
        probabilities[(chosen + 1) % 10] = float(f"{1 - probabilities[chosen]:.6f}")
        lines.append(
            {
                "index": i * 3,
                "label": chosen if right[i] else (chosen + 2) % 10,
                "class": chosen,
                "target": chosen,
                "sigma": sigma,
                "adaptive": certificate["adaptive"],
                "class_from": "clean",
                "radius": float(radius[i]),
                "abstain": bool(lower[i] < 0.5),
                "n0": 0,
                "n": n,
                "counts": counts,
                "selection": None,
                "clean_class": chosen,
                "clean_probabilities": probabilities,
                "samples": n + 1,
                "seconds": 0.21,
                "subject": "average",
                "basis": basis,
            }
        )
    write_lines(path / "certificates.jsonl", lines)
    return path


def write_attack(
    path: Path, model: str, kind: str, *, images: int, middle: float, subject: str = "network", gallery: bool = False
) -> Path:
    settings = {"attack": kind, "steps": 20, "eps": 4.0, "top_k": 1, "sigma": 0.25, "model": model}
    write_run(path, "attack", settings | {"noise_samples": 100 if subject == "average" else 0}, model_hash=model)
    draw = np.random.default_rng(5)
    lines = []
    for i in range(images):
        wrong, failed = i % 8 == 0, i % 11 == 1
        distance = None if failed else 0.0 if wrong else round(float(draw.gamma(4, middle / 4)), 6)
        line = {"index": i * 3, "label": i % 10, "success": not failed, "distance": distance, "norm_steps": 20}
        lines.append(line | {"subject": subject})
    write_lines(path / "attacks.jsonl", lines)
    if gallery:
        _write_gallery(path / "gallery.npz", draw)
    return path


def _write_gallery(path: Path, draw: np.random.Generator) -> None:
    y, x = np.mgrid[0:28, 0:28]
    clean = np.stack([128 + 100 * np.sin(x / (3 + i)) * np.cos(y / (4 + i)) for i in range(16)])[..., None]
    noisy, near = clean + draw.normal(0, 60, clean.shape), clean + draw.normal(0, 14, clean.shape)
    images = {
        name: pixels.clip(0, 255).astype(np.uint8)
        for name, pixels in (("clean", clean), ("noisy", noisy), ("adversarial", near))
    }
    number = np.arange(16)
    np.savez(
        path,
        **images,  # type: ignore[arg-type]
        index=number * 3,
        label=number % 10,
        clean_class=number % 10,
        adversarial_class=(number + 1) % 10,
        probability=np.linspace(0.4, 0.99, 16),
        distance=np.where(number == 7, np.inf, np.linspace(0.1, 2.2, 16)),
    )


AUDIT = {
    "sigma": 0.25,
    "alpha": 0.001,
    "images": 500,
    "n": 1000,
    "seed": 0,
    "agreement": {"count": 471, "images": 500, "share": 0.942, "interval": [0.918, 0.961]},
    "approximation": {
        "self": {"mean": 0.083, "interval": [0.078, 0.089], "median": 0.05, "largest": 0.61},
        "teacher": {"mean": 0.31, "interval": [0.29, 0.33], "median": 0.28, "largest": 0.98},
    },
    "average_attacks": {"attacked": 200, "violations": 0, "expected_at_most": 0.2},
    "network_attacks": {
        "inside_l_bound": {"attacked": 400, "broken": 3, "share": 0.0075, "interval": [0.0015, 0.0218]},
        "inside_average_radius": {"attacked": 400, "broken": 31, "share": 0.0775, "interval": [0.053, 0.108]},
        "surviving_fraction": {
            "share": 0.99,
            "fraction": 0.62,
            "images": 400,
            "basis": "attack: empirical, these images and attacks only",
        },
    },
    "lipschitz": {"found": 1.9, "assumed": 1.596, "ratio": 1.19},
    "verdict": {"kind": "caution", "text": "The average keeps its certificate; one pass does not always follow it."},
}


def write_story(root: Path, images: int = 400) -> Path:
    """Runs as a whole study leaves them: two models, certified, attacked, audited."""
    clean, heat = "c0ffee00" * 8, "beadfeed" * 8
    plan = {"epochs": 6, "lr": 0.2}
    write_training(
        root / "baseline", "train", clean, accuracy=0.871, noisy=0.352, choices={"method": "clean"}, plan=plan
    )
    settings: dict[str, Any] = {"teacher": clean, "preset": "bootcamp", "heat": {"sigma": 0.25, "timesteps": 1}}
    write_training(root / "smoothed", "smooth", heat, accuracy=0.842, noisy=0.788, plan={"epochs": 1}, **settings)
    write_certificates(root / "certified-baseline", clean, images=images, level=-0.4)
    write_certificates(root / "certified-smoothed", heat, images=images, level=1.4)
    for kind, middle in (("pgd", 0.9), ("ddn", 0.6)):
        write_attack(root / f"{kind}-baseline", clean, kind, images=min(images, 500), middle=middle / 2)
        write_attack(
            root / f"{kind}-smoothed", heat, kind, images=min(images, 500), middle=middle, gallery=kind == "ddn"
        )
    write_run(root / "audit", "audit", {"model": heat}, model_hash=heat)
    (root / "audit/audit.json").write_text(json.dumps(AUDIT))
    timing = Timing(
        one_pass_seconds=0.004,
        stochastic_seconds=0.33,
        plain_seconds=0.8,
        plain_one_pass_seconds=0.006,
        samples=100,
        images=20,
        threads=2,
        agreement=0.95,
        commit=None,
        hardware={},
    )
    timing.write(root / "timing.json")
    return root


class Reader(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> tuple[ReportResult, str, Path]:
    root = tmp_path_factory.mktemp("story")
    summary = build_report([write_story(root / "runs")], root / "report.html", tables=root / "tables")
    return summary, (root / "report.html").read_text(), root


def test_a_report_needs_no_torch(tmp_path: Path) -> None:
    code = "import sys, heatsmooth.reporting; assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_study_is_told_whole(story: tuple[ReportResult, str, Path]) -> None:
    summary, page, _ = story
    assert summary.skipped == summary.notes == []
    assert (summary.trainings, summary.certifications, summary.attacks, summary.audits) == (2, 2, 4, 1)
    wanted = ["summary", "certificates", "attacks", "methods", "audit", "gallery", "training", "provenance"]
    assert summary.sections == wanted
    wanted = ["certified-accuracy", "p-a", "attacked-pgd", "attacked-ddn", "training-1", "training-2"]
    assert summary.figures == wanted
    words = " ".join(Reader(page).words).replace("\u00a0", " ")
    for said in (
        "“smoothed” was made from “baseline” by HeatSmoothing (bootcamp)",
        "No label was read",
        "with probability at least 99.9 %",
        "Nothing proves that the network itself",
        "no radius beyond 0.615: n 1,000, α 0.001, σ 0.25",
        "One pass is 82.5 times as fast",
        "82.5 ×",
        "The average keeps its certificate; one pass does not always follow it.",
        "471 of 500",
        "Least robust",
        "attack failed",
        "Example CPU @ 2.80GHz",
        "0123456789abcdef",
    ):
        assert said in words, said


def test_a_brought_network_is_named_and_what_was_tested_on_is_said(tmp_path: Path) -> None:
    made = write_training(tmp_path / "robust", "smooth", "bb", accuracy=0.772, noisy=0.614, teacher="aa")
    info = json.loads((made / "run.json").read_text())
    info["summary"]["tested_on"] = "the images it was smoothed on"
    (made / "run.json").write_text(json.dumps(info))
    for name, model, level in (("robust-certified", "bb", 0.9), ("brought", "aa", 0.6)):
        write_certificates(tmp_path / name, model, images=100, level=level)
    build_report([tmp_path], tmp_path / "report.html")
    words = " ".join(Reader((tmp_path / "report.html").read_text()).words).replace("\u00a0", " ")
    assert "For “model aa”, which it was made from" in words
    assert "points of accuracy on the clean images it was smoothed on (87.1 % to 77.2 %)" in words


@pytest.mark.parametrize(
    ("data", "title"),
    [
        ("fashion-mini/train", "fashion-mini"),
        ("cifar10/test", "cifar10"),
        ("npz:/data/x.npz/test", "x.npz"),
        ("npz:x.npz", "x.npz"),
        ("imagefolder:/data/imagenet/val", "imagenet"),
        ("imagefolder:photos/held-out/", "held-out"),
        ("hf:uoft-cs/cifar10:validation", "cifar10"),
    ],
)
def test_the_title_names_the_data(tmp_path: Path, data: str, title: str) -> None:
    write_run(tmp_path / "a", "train", {"data": {"name": data}}, model_hash="m")
    page = tmp_path / "report.html"
    build_report([tmp_path / "a"], page)
    assert f"<title>Robustness on {title}</title>" in page.read_text()


def test_the_page_needs_nothing_else(story: tuple[ReportResult, str, Path]) -> None:
    _, page, _ = story
    for tag, attributes in Reader(page).tags:
        for name in ("src", "href"):
            address = attributes.get(name)
            assert address is None or address.startswith(("data:", "#")), (tag, address)
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_every_figure_has_its_numbers(story: tuple[ReportResult, str, Path]) -> None:
    summary, page, _ = story
    for key in summary.figures:
        figure = page.split(f'id="fig-{key}"')[1].split("</figure>")[0]
        assert "<svg" in figure
        assert f'download="{key}.pdf" href="data:application/pdf;base64,JVBERi0' in figure
        assert 'data-save="svg"' in figure
        assert 'data-save="csv"' in figure
        assert figure.count("<tr>") > 10


def test_certified_accuracy_is_exact_where_it_is_drawn(story: tuple[ReportResult, str, Path]) -> None:
    _, page, root = story
    item = next(c for c in read_sources([root / "runs"]).certifications if c.name == "certified-smoothed")
    assert item.cap == pytest.approx(0.25 * special.ndtri(0.001 ** (1 / 1000)))
    figure = page.split('id="fig-certified-accuracy"')[1].split("</figure>")[0]
    rows = re.findall(
        r'<tr><td data-x="([^"]+)">[^<]*<td>[^<]*<td>[^<]*<td>[^<]*<td>([^<]+)<td>([^<]+)<td>([^<\n]+)', figure
    )
    assert len(rows) > 80
    for x, share, low, high in rows:
        expected = (item.claims.known_correct & ~item.claims.abstained & (item.claims.radii >= float(x))).mean()
        assert float(share) == pytest.approx(expected, abs=5e-5)
        assert float(low) <= float(share) <= float(high)


def test_statistical_assumed_and_empirical_radii_have_columns_of_their_own(
    story: tuple[ReportResult, str, Path],
) -> None:
    _, _, root = story
    head = (root / "tables/adversarial-distance.md").read_text().splitlines()[2]
    assert "L-bound, median (network · assumes exact average)" in head
    assert "PGD, median (network · attack, upper bound)" in head
    assert "DDN, mean (network · attack, upper bound)" in head
    rows = (root / "tables/adversarial-distance.md").read_text().splitlines()
    baseline = next(row for row in rows if row.startswith("| baseline"))
    assert baseline.startswith("| baseline | – | – |"), "a network that is no average has no L-bound"
    radii = (root / "tables/certified-radii.md").read_text().splitlines()[2]
    assert radii.count("average · statistical, 1−α") == 3


def test_a_brought_network_that_was_smoothed_has_no_l_bound_itself(tmp_path: Path) -> None:
    write_training(tmp_path / "smoothed", "smooth", "b" * 16, accuracy=0.8, noisy=0.7, sigma=0.25, teacher="a" * 16)
    for name, model in (("before", "a" * 16), ("after", "b" * 16)):
        write_certificates(tmp_path / name, model, images=40, level=1.0)
    build_report([tmp_path], tmp_path / "page.html", tables=tmp_path / "tables")
    rows = (tmp_path / "tables/adversarial-distance.md").read_text().splitlines()[4:-2]
    assert [row.split(" | ")[0] for row in rows] == ["| smoothed"]


def test_one_pass_stands_against_stochastic_inference(story: tuple[ReportResult, str, Path]) -> None:
    _, _, root = story
    head, _, row = (root / "tables/inference-time.md").read_text().splitlines()[2:5]
    assert head.endswith(
        "| Images | One pass | Samples | Stochastic | Ratio | Not optimised | Ratio, not optimised | Same class |"
    )
    assert row.replace("\u00a0", " ").endswith("| 20 | 4 ms | 100 | 330 ms | 82.5 × | 800 ms | 200.0 × | 0.950 |")


def test_attacks_say_how_many_were_censored(story: tuple[ReportResult, str, Path]) -> None:
    _, _, root = story
    rows = (root / "tables/attacks.md").read_text().splitlines()
    attack = next(a.results for a in read_sources([root / "runs"]).attacks if a.name == "ddn-smoothed")
    failed, wrong = int(np.isinf(attack.distances).sum()), int((attack.distances == 0).sum())
    assert next(row for row in rows if "smoothed | DDN" in row).endswith(
        f"| 400 | {wrong} | {400 - wrong - failed} | {failed} |"
    )
    right = attack.distances[attack.distances > 0]
    distances = next(r for r in (root / "tables/adversarial-distance.md").read_text().splitlines() if "| smoothed" in r)
    assert f"{np.median(right):.4f} | {right[np.isfinite(right)].mean():.4f} |" in distances


def test_tables_are_written_for_papers(story: tuple[ReportResult, str, Path]) -> None:
    summary, _, root = story
    assert {path.name for path in (root / "tables").iterdir()} == set(summary.tables)
    for name in ("certified-accuracy", "certified-radii", "adversarial-distance", "methods", "inference-time", "audit"):
        assert f"{name}.tex" in summary.tables
    text = (root / "tables/methods.tex").read_text()
    assert r"\toprule" in text
    assert "σ" not in text


@pytest.mark.skipif(not PUBLISHED.exists(), reason="needs the published logs")
def test_published_logs_give_the_published_figures(tmp_path: Path) -> None:
    summary = build_report([PUBLISHED / "certify", PUBLISHED / "predict"], tmp_path / "r.html", tables=tmp_path)
    assert summary.certifications == 3
    assert summary.predictions == 1
    assert summary.skipped == []
    page, table = (tmp_path / "r.html").read_text(), (tmp_path / "certified-accuracy.md").read_text().splitlines()
    names = [cell.strip() for cell in table[2].split("|")]
    rows = {row.split("|")[1].strip().replace("\\", ""): row.split("|") for row in table[4:7]}
    for name, at in (
        ("noise_0.25_sigma_0.25", {"0.25": 0.600, "0.5": 0.428, "0.75": 0.266}),
        ("cifar10/noise_0.50_sigma_0.50", {"0.25": 0.546, "1": 0.234}),
        ("imagenet/noise_0.50_sigma_0.50", {"1": 0.372, "1.5": 0.286}),
    ):
        assert name in page
        for radius, share in at.items():
            cell = rows[name][names.index(f"r = {radius}")]
            assert cell.strip().startswith(f"{share:.3f} "), (name, radius, cell)
            assert cell.strip().replace(" (", " <small>(") + "</small>" in page
    assert "43 <small>(8.6\u00a0%)</small>" in page
    assert "<td>0.680</td><td>0.032</td>" in page


def test_broken_inputs_are_named_and_stop_nothing(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    good = HEADER + "0\t3\t3\t0.378\t1\t15.4\n20\t7\t-1\t0.0\t0\t0:00:15\n"
    (logs / "good.tsv").write_text(good)
    (logs / "crlf.tsv").write_bytes(good.replace("\n", "\r\n").encode())
    (logs / "cut.tsv").write_text(good + "40\t4\t4\t0.3")
    (logs / "empty.tsv").write_text("")
    (logs / "header.tsv").write_text(HEADER)
    (logs / "broken.tsv").write_text(HEADER + "x\t1\t1\t0\t1\t1\n0\t3\t3\t0.378\t1\t15.4\n")
    (logs / "negative.tsv").write_text(HEADER + "0\t1\t1\t-0.5\t1\t1\n")
    (logs / "binary.tsv").write_bytes(b"\xff\xfe\x00\x01")
    runs = tmp_path / "runs"
    write_run(runs / "nothing", "certify", {"model": "m"})
    write_run(runs / "unknown", "something-new", {})
    write_run(runs / "halfway", "attack", {"attack": "ddn"}, status="running")
    (runs / "halfway/attacks.jsonl").write_text('{"index": 0, "label": 1, "success": true, "distance": 0.5}\n{"ind')
    write_run(runs / "odd", "audit", {})
    (runs / "odd/audit.json").write_text(json.dumps(AUDIT | {"agreement": 3}))
    write_run(runs / "deep", "audit", {})
    (runs / "deep/audit.json").write_text(json.dumps(AUDIT | {"lipschitz": {"found": "a"}}))
    write_run(runs / "past", "audit", {"data": {"images": "many"}})
    write_run(runs / "later", "train", {}, format=2)
    (runs / "torn").mkdir()
    (runs / "torn/run.json").write_text('{"command": "train"')
    write_certificates(runs / "bad-line", "m", images=3, level=1.0)
    with (runs / "bad-line/certificates.jsonl").open("a") as file:
        file.write('{"index": 1}\n')
    write_attack(runs / "bad-gallery", "m", "pgd", images=3, middle=1.0)
    (runs / "bad-gallery/gallery.npz").write_bytes(b"PK\x03\x04 no archive")
    summary = build_report([logs, runs, tmp_path / "missing"], tmp_path / "report.html")
    skipped = {entry.name: entry.reason for entry in summary.skipped}
    wanted = {"empty", "header", "broken", "negative", "binary", "nothing", "torn", "bad-line", "bad-gallery"}
    wanted |= {"odd", "deep", "past", "later"}
    assert set(skipped) == wanted | {str(tmp_path / "missing")}
    assert "empty file" in skipped["empty"]
    assert "header alone" in skipped["header"]
    assert "2: expected 6 columns" in skipped["broken"]
    assert skipped["odd"] == "audit.json: expected an audit, got agreement 3; audit again"
    assert skipped["deep"] == "audit.json: expected an audit, got lipschitz, found a; audit again"
    assert skipped["past"] == "run.json: expected a run, got data, images many; remove the file"
    assert "got format 2" in skipped["later"]
    notes = {entry.name: entry.reason for entry in summary.notes}
    assert set(notes) == {"crlf", "cut", "halfway"}
    assert "CR LF" in notes["crlf"]
    assert summary.certifications == 3
    assert summary.attacks == 2
    words = " ".join(Reader((tmp_path / "report.html").read_text()).words)
    for name in wanted | set(notes):
        assert name in words
    assert "heatsmooth smooth --data D" in words, "what is missing is named with the command that makes it"


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.tsv").write_text("")
    with pytest.raises(InputError, match=r"empty: expected a header, got an empty file"):
        build_report([tmp_path / "empty.tsv"], tmp_path / "report.html")
    (tmp_path / "log.tsv").write_text(HEADER + "0\t3\t3\t0.378\t1\t15.4\n")
    with pytest.raises(InputError, match="expected a file to write, got a directory"):
        build_report([tmp_path / "log.tsv"], tmp_path)


def test_what_files_say_cannot_become_markup(tmp_path: Path) -> None:
    hostile = tmp_path / "<img src=x onerror=alert(2)>"
    write_certificates(hostile, HOSTILE, images=20, level=1.0, class_from=HOSTILE)
    write_training(hostile / "t", "smooth", HOSTILE, accuracy=0.5, noisy=0.5, preset=HOSTILE, teacher=HOSTILE)
    info = json.loads((hostile / "t/run.json").read_text())
    data = {HOSTILE: HOSTILE, "name": HOSTILE}
    info |= {"arguments": [HOSTILE], "commit": HOSTILE, "versions": {HOSTILE: HOSTILE}, "hardware": {"cpu": HOSTILE}}
    info["settings"] |= {"data": data, "x": "</script></style></pre><script>alert(3)</script>"}
    (hostile / "t/run.json").write_text(json.dumps(info))
    write_run(hostile / "a", "audit", {"model": HOSTILE})
    (hostile / "a/audit.json").write_text(json.dumps(AUDIT | {"verdict": {"kind": "caution", "text": HOSTILE}}))
    attack = write_attack(hostile / "k", "m", "ddn", images=9, middle=1.0, gallery=True)
    held = dict(np.load(attack / "gallery.npz"))
    np.savez(attack / "gallery.npz", **held | {"clean_class": np.array([HOSTILE] * 16)})
    (tmp_path / f"{HOSTILE.replace('/', '')}.tsv").write_text(HEADER + "0\t3\t3\t0.378\t1\t15.4\n")
    summary = build_report([tmp_path], tmp_path / "report.html", tables=tmp_path / "tables", title=HOSTILE)
    assert summary.skipped == []
    page = (tmp_path / "report.html").read_text()
    tags = Reader(page).tags
    assert [attributes for tag, attributes in tags if tag == "script"] == [{}]
    assert not any(name.startswith("on") for _, attributes in tags for name in attributes)
    assert all((attributes["src"] or "").startswith("data:image/png") for tag, attributes in tags if tag == "img")
    for path in (tmp_path / "tables").iterdir():
        assert "<script" not in path.read_text().replace("\\<", "")


def test_tables_escape_their_cells() -> None:
    columns = (Column("50 %", about="σ ≥ 1", words=True), Column("x"))
    table = Table("a_b", columns, (("a|b*c", r"\input{/etc/passwd}"),))
    assert r"| a\|b\*c | \\input{/etc/passwd} |" in table.markdown()
    assert r"50 \% &" in table.latex()
    assert r"\textbackslash{}input\{/etc/passwd\}" in table.latex()


def test_figures_for_papers_take_any_name() -> None:
    points = np.array([0.0, 1.0])
    chart = Chart("k", "$\\bad{", "", "x", "y", (Series("_$x_{ 漢 \\frac", 9, points, points),), 1.0, 1.0)
    assert pdf(chart).startswith(b"%PDF")
    assert pdf(chart) == pdf(chart)


def test_ten_thousand_images_stay_small_and_whole(tmp_path: Path) -> None:
    write_story(tmp_path / "runs", images=10_000)
    summary = build_report([tmp_path / "runs"], tmp_path / "report.html")
    assert summary.images == 20_000
    assert summary.skipped == []
    assert summary.bytes == (tmp_path / "report.html").stat().st_size < 3_000_000
    assert len(summary.figures) == 6


def test_conformal_radii_have_a_table_of_their_own(tmp_path: Path) -> None:
    settings = {"model": "m", "calibration": {"sigma": 0.25, "alpha": 0.001, "epsilon": 0.05}}
    write_run(tmp_path / "run", "one-pass", settings, model_hash="m")
    line = {"label": 1, "class": 1, "subject": "average", "basis": CONFORMAL}
    radii = [0.3, 0.1, 0.0, 0.6]
    write_lines(
        tmp_path / "run/one_pass.jsonl",
        [line | {"index": i, "radius": radius, "abstain": radius == 0} for i, radius in enumerate(radii)],
    )
    write_certificates(tmp_path / "certified", "m", images=30, level=1.0)
    summary = build_report([tmp_path], tmp_path / "report.html", tables=tmp_path / "tables")
    assert summary.skipped == []
    assert summary.certifications == 1
    table = (tmp_path / "tables/calibrated-radii.md").read_text()
    assert "Median radius (average, in one pass · conformal, 1−ε−α)" in table
    assert "| 0.25 | 0.05 | 0.001 | 4 | 75.0\u00a0% | 0.2000 | 0.2500 | 0.5999 | 0.500 | 0.250 | 0.2500 |" in table
    assert "conformal" not in (tmp_path / "tables/certified-radii.md").read_text()


def _npy(shape: tuple[int, ...], content: bytes, descr: str = "|u1") -> bytes:
    """An array of numpy's format that declares ``shape``, whatever it holds."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    return header.getvalue() + content


GALLERIES: dict[str, Callable[[zipfile.ZipFile], None]] = {
    "huge-images": lambda archive: archive.writestr("clean.npy", _npy((10**6, 10**4, 10**4, 3), b"short")),
    "huge-facts": lambda archive: archive.writestr("distance.npy", _npy((10**14,), b"", "<f8")),
    "empty-type": lambda archive: archive.writestr("label.npy", _npy((10**17,), b"", "|S0")),
    "negative": lambda archive: archive.writestr("clean.npy", _npy((-4, 8, 8, 3), b"short")),
    "bomb": lambda archive: archive.writestr("clean.npy", _npy((200, 100, 100, 1), bytes(2 * 10**6))),
    "cut": lambda archive: archive.writestr("clean.npy", _npy((4, 8, 8, 3), b"short")),
    "header": lambda archive: archive.writestr("clean.npy", b"\x93NUMPY\x03\x00rest"),
    "squeezed": lambda archive: archive.writestr("clean.npy", b"x", zipfile.ZIP_BZIP2),
}


def test_no_gallery_takes_memory_it_only_declares_or_stops_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heatsmooth.reporting.gallery.GALLERY_BYTES", 10**6, raising=False)
    for name, write in GALLERIES.items():
        attack = write_attack(tmp_path / f"runs/{name}", "m", "ddn", images=9, middle=1.0, gallery=True)
        with zipfile.ZipFile(attack / "gallery.npz", "a", zipfile.ZIP_DEFLATED) as archive:
            archive.NameToInfo.clear()  # no warning of a second array of that name
            write(archive)
    bare = write_attack(tmp_path / "runs/bare", "m", "ddn", images=9, middle=1.0)
    (bare / "gallery.npz").write_bytes(_npy((10**6, 10**4, 10**4, 3), b"short"))
    flipped = write_attack(tmp_path / "runs/flipped", "m", "ddn", images=9, middle=1.0, gallery=True)
    content = bytearray((flipped / "gallery.npz").read_bytes())
    content[60:160] = bytes(100)
    (flipped / "gallery.npz").write_bytes(content)
    write_attack(tmp_path / "runs/good", "m", "ddn", images=9, middle=1.0, gallery=True)
    tracemalloc.start()
    summary = build_report([tmp_path / "runs"], tmp_path / "report.html")
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()
    assert {entry.name for entry in summary.skipped} == {*GALLERIES, "bare", "flipped"}
    assert summary.attacks == len(GALLERIES) + 3
    assert "gallery" in summary.sections


@pytest.mark.parametrize("shape", [(6, 1, 200_000, 1), (6, 10**12, 0, 1), (6, 0, 8, 3)])
def test_no_shape_of_a_gallery_stops_the_page(tmp_path: Path, shape: tuple[int, ...]) -> None:
    attack = write_attack(tmp_path / "runs/odd", "m", "ddn", images=9, middle=1.0)
    empty = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), shape, (0, 0, 0, 0))
    np.savez(attack / "gallery.npz", clean=empty, noisy=empty, adversarial=empty)
    summary = build_report([tmp_path / "runs"], tmp_path / "report.html")
    assert [entry.name for entry in summary.skipped] == ["odd"]
    assert summary.attacks == 1


def test_what_lacks_memory_is_skipped_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_attack(tmp_path / "runs/large", "m", "ddn", images=9, middle=1.0, gallery=True)

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("heatsmooth.reporting.gallery._arrays", fail)
    summary = build_report([tmp_path / "runs"], tmp_path / "report.html")
    assert [entry.name for entry in summary.skipped] == ["large"]


def test_radii_and_noise_beyond_all_images_are_skipped(tmp_path: Path) -> None:
    write_certificates(tmp_path / "good", "m", images=9, level=1.0)
    for name in ("far", "loud"):
        write_certificates(tmp_path / name, "m", images=9, level=1.0)
    file = tmp_path / "far/certificates.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[0] |= {"radius": 9e15, "abstain": False}
    write_lines(file, rows)
    info = json.loads((tmp_path / "loud/run.json").read_text())
    info["settings"]["certificate"]["sigma"] = 1e300
    (tmp_path / "loud/run.json").write_text(json.dumps(info))
    summary = build_report([tmp_path], tmp_path / "report.html")
    assert {entry.name for entry in summary.skipped} == {"far", "loud"}
    assert summary.certifications == 1


def test_large_galleries_stay_small(tmp_path: Path) -> None:
    write_attack(tmp_path / "run", "m", "ddn", images=20, middle=1.0)
    pixels = np.random.default_rng(0).integers(0, 255, (12, 224, 224, 3), dtype=np.uint8)
    np.savez(tmp_path / "run/gallery.npz", clean=pixels, noisy=pixels, adversarial=pixels, distance=np.arange(12.0))
    summary = build_report([tmp_path / "run"], tmp_path / "report.html")
    assert "gallery" in summary.sections
    assert summary.bytes < 3_000_000


def test_runs_of_one_model_are_told_apart(tmp_path: Path) -> None:
    write_certificates(tmp_path / "a", "m", images=30, level=1.0)
    write_certificates(tmp_path / "b", "m", images=30, level=1.0, n=500)
    write_certificates(tmp_path / "c", "m", images=30, level=1.0, top_k=3)
    write_certificates(tmp_path / "d", "m", images=30, level=1.0, adaptive=True)
    write_certificates(tmp_path / "e", "m", images=30, level=1.0, bound="two-sided")
    summary = build_report([tmp_path], tmp_path / "report.html", tables=tmp_path / "tables")
    assert summary.skipped == []
    assert summary.figures[:2] == ["certified-accuracy", "certified-accuracy-top-3"]
    rows = (tmp_path / "tables/certified-radii.md").read_text().splitlines()[4:9]
    assert len({row.split("|")[1] for row in rows}) == 5
    caps = {c.name: c.cap for c in read_sources([tmp_path]).certifications}
    assert caps["a"] is not None
    assert caps["d"] is not None
    assert caps["e"] is not None
    assert caps["d"] < caps["a"], "stopping at any time costs something"


def test_too_few_samples_to_certify_anything_have_the_largest_radius_0(tmp_path: Path) -> None:
    write_certificates(tmp_path / "few", "m", images=30, level=1.0, n=5)
    (item,) = read_sources([tmp_path]).certifications
    assert item.cap == 0
    build_report([tmp_path], tmp_path / "report.html")
    assert "not say n and α" not in (tmp_path / "report.html").read_text()


def test_settings_that_contradict_the_certificates_are_refused(tmp_path: Path) -> None:
    write_certificates(tmp_path / "good", "m", images=9, level=1.0)
    write_certificates(tmp_path / "other", "m", images=9, level=1.0)
    write_certificates(tmp_path / "unknown", "m", images=9, level=1.0)
    for name, change in (("other", {"alpha": 0.01}), ("unknown", {"n": "many"})):
        info = json.loads((tmp_path / name / "run.json").read_text())
        info["settings"]["certificate"] |= change
        (tmp_path / name / "run.json").write_text(json.dumps(info))
    summary = build_report([tmp_path], tmp_path / "report.html")
    assert [entry.name for entry in summary.skipped] == ["other"]
    assert "alpha=0.01, one-sided, got σ 0.25, statistical, alpha=0.001" in summary.skipped[0].reason
    assert [entry.name for entry in summary.notes] == ["unknown"]
    assert "got n many" in summary.notes[0].reason


def test_top_k_certificates_are_never_told_as_top_1(tmp_path: Path) -> None:
    write_certificates(tmp_path / "a-top", "m", images=300, level=2.0, top_k=3)
    build_report([tmp_path], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "to keep the correct class among its 3 most probable for" in page
    assert "keeps the label among its 3 most probable classes under every" in page
    assert "to give the correct class" not in page
    write_certificates(tmp_path / "b", "m", images=300, level=1.0)
    write_certificates(tmp_path / "aa", "m", images=300, level=0.1, adaptive=True)
    found = read_sources([tmp_path]).certified("m")
    assert found is not None
    assert found.name == "b"
    build_report([tmp_path], tmp_path / "report.html")
    assert "keeps its class under every" in (tmp_path / "report.html").read_text()


def test_a_model_has_the_same_line_in_every_figure(tmp_path: Path) -> None:
    for model in ("m", "o"):
        for k in (1, 2):
            write_certificates(tmp_path / f"{model}-{k}", model, images=50, level=1.0, top_k=k)
    collection = read_sources([tmp_path])
    names = Names(collection)
    top_1, top_2 = certified_charts(collection, names)
    (shares,) = probability_charts(collection, names)
    lines = [[series.style for series in chart.series] for chart in (top_1, top_2, shares)]
    assert lines[0] == lines[1] == lines[2]
    assert len(set(lines[0])) == 2


def test_bounds_on_false_certificates_are_rounded_up(tmp_path: Path) -> None:
    write_certificates(tmp_path / "a", "m", images=1000, level=1.0)
    build_report([tmp_path], tmp_path / "report.html")
    assert "at most 0.8\N{NO-BREAK SPACE}% of the certificates are false" in (tmp_path / "report.html").read_text()


def test_p_a_of_a_log_is_that_of_the_counts(tmp_path: Path) -> None:
    certified = write_certificates(tmp_path / "run", "m", images=300, level=1.2)
    records = read_certificates(certified)
    (tmp_path / "logs").mkdir()
    write_log(records, tmp_path / "logs/sigma_0.25.tsv")
    run, log = read_sources([certified, tmp_path / "logs"]).certifications
    from_counts, from_radii = of_certification(run), of_certification(log)
    assert from_counts is not None
    assert from_radii is not None
    count = np.array([item.counts[item.label or 0] for item in records])
    np.testing.assert_array_equal(from_counts, clopper_pearson_lower(count, 1000, 0.001))
    correct = run.claims.known_correct
    assert 0 < correct.sum() < 300
    np.testing.assert_allclose(from_radii[correct], from_counts[correct], atol=1e-5)
    assert (from_radii[~correct] == 0).all()
    build_report([tmp_path], tmp_path / "report.html", tables=tmp_path / "tables")
    head = (tmp_path / "tables/certified-accuracy.md").read_text().splitlines()[2]
    assert head.index("r = 0.25") < head.index("ACR") < head.index("p\\_A, quartiles")
    page = (tmp_path / "report.html").read_text()
    assert (
        page.index('id="fig-certified-accuracy"') < page.index('id="fig-p-a"') < page.index("table-certified-accuracy")
    )
    assert "ACR can be large because of easy images alone" in page
    (chart,) = probability_charts(read_sources([certified]), Names(read_sources([certified])))
    (series,) = chart.series
    assert series.low is not None
    slack = np.sqrt(np.log(2 / 0.05) / 600)
    np.testing.assert_allclose(series.low, np.maximum(series.y - slack, 0))
    np.testing.assert_allclose(series.y, (from_counts[:, None] <= series.x).mean(0))
    assert pdf(chart).startswith(b"%PDF")
