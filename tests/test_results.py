"""Typed results: published files are read and written again unchanged, and wrong ones are refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from heatsmooth.errors import InputError
from heatsmooth.results.audit import Agreement, AuditResult, Broken, VerdictKind
from heatsmooth.results.comparison import Comparison, Measure, MethodFigures, Timing
from heatsmooth.results.proof_audit import read_audit
from heatsmooth.results.run_info import RunInfo
from heatsmooth.results.schema import to_json
from heatsmooth.results.training import TrainingResult

RESULTS = Path(__file__).parents[1] / "results"
READERS = {
    "run*.json": lambda path: to_json(RunInfo.read(path)),
    "audit.json": lambda path: to_json(read_audit(path.parent)),
    "comparison.json": lambda path: Comparison.read(path).to_json(),
    "timing.json": lambda path: to_json(Timing.read(path)),
}


def without_format(value: Any) -> Any:
    """None is the same as left out: a run of an installed package has no commit."""
    if isinstance(value, dict):
        held = {key: without_format(held) for key, held in value.items() if key not in ("format", "networks")}
        return {key: value for key, value in held.items() if not (key == "commit" and value is None)}
    return value


@pytest.mark.parametrize("pattern", READERS)
def test_published_files_are_read_whole_and_written_with_the_same_keys(pattern: str) -> None:
    files = sorted(RESULTS.rglob(pattern))
    assert files
    for file in files:
        assert without_format(READERS[pattern](file)) == without_format(json.loads(file.read_text())), file


def run_file(path: Path, **changes: Any) -> Path:
    info = {"command": "smooth", "settings": {"seed": 1}, "status": "done", "seconds": 2.5}
    path.write_text(json.dumps(info | changes))
    return path


def test_a_run_states_what_others_read(tmp_path: Path) -> None:
    summary = to_json(TrainingResult(command="smooth", out="here", accuracy=0.75, seconds=2.5))
    settings = {"data": {"name": "d", "images": 3, "shape": [1, 28, 28]}, "heat": {"sigma": 0.5}, "plan": {"epochs": 1}}
    info = RunInfo.read(
        run_file(tmp_path / "run.json", settings=settings, summary=summary, arguments=["smooth", "--from", "x"])
    )
    assert info.done
    assert info.chosen.data.shape == (1, 28, 28)
    assert (info.chosen.heat.sigma, info.chosen.plan.epochs, info.chosen.certificate) == (0.5, 1, None)
    assert info.summary is not None
    assert info.summary.accuracy == 0.75
    assert info.argument("--from") == "x"
    assert info.argument("x") is None
    info.write(tmp_path / "again.json")
    assert RunInfo.read(tmp_path / "again.json") == info


def test_parts_of_a_run_are_one_run(tmp_path: Path) -> None:
    for name, status in (("run-1-of-2", "done"), ("run-2-of-2", "running")):
        run_file(tmp_path / f"{name}.json", status=status)
    info, parts = RunInfo.read_directory(tmp_path)
    assert (info.seconds, info.done, parts) == (5.0, False, 2)
    run_file(tmp_path / "run-2-of-2.json", settings={"seed": 2})
    with pytest.raises(InputError, match=r"parts with other settings \(seed\)"):
        RunInfo.read_directory(tmp_path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"seconds": -1}, "expected a run, got seconds -1; remove the file"),
        ({"settings": 3}, "got settings 3"),
        ({"settings": {"plan": {"epochs": "two"}}}, "got plan, epochs two"),
        ({"summary": {"out": "x"}}, "got summary, one without command"),
        ({"format": 2}, "got format 2"),
    ],
)
def test_a_wrong_run_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError) as error:
        RunInfo.read(run_file(tmp_path / "run.json", **changes))
    assert complaint in str(error.value)
    assert str(error.value).count("\n") == 0


def test_a_verdict_has_one_of_three_kinds(tmp_path: Path) -> None:
    file = next(RESULTS.rglob("audit.json"))
    audit = AuditResult.read(file.parent)
    assert audit.verdict.kind in VerdictKind
    audit.write(tmp_path)
    assert AuditResult.read(tmp_path) == audit
    wrong = json.loads(file.read_text())
    wrong["verdict"]["kind"] = "fine"
    (tmp_path / "audit.json").write_text(json.dumps(wrong))
    with pytest.raises(InputError, match="got verdict, kind fine"):
        AuditResult.read(tmp_path)


def test_counted_shares_have_exact_intervals() -> None:
    agreement, broken = Agreement.of(0, 10), Broken.of(3, 0)
    assert (agreement.count, agreement.images, agreement.share) == (0, 10, 0)
    assert agreement.interval == pytest.approx((0, 1 - 0.025**0.1))
    assert (broken.broken, broken.attacked, broken.interval) == (3, 0, (0, 1))


def test_figures_are_means_over_the_seeds_that_have_them() -> None:
    seeds: list[dict[Measure, float | None]] = [
        {Measure.ACR: 1.0, Measure.PGD_MEDIAN: None, Measure.DDN_MEDIAN: None},
        {Measure.ACR: 3.0, Measure.PGD_MEDIAN: 2.0, Measure.DDN_MEDIAN: None},
    ]
    figures = MethodFigures.of(seeds)
    assert figures.mean(Measure.ACR) == 2
    assert figures.deviation(Measure.ACR) == pytest.approx(2**0.5)
    assert (figures.mean(Measure.PGD_MEDIAN), figures.deviation(Measure.PGD_MEDIAN)) == (2.0, None)
    assert figures.mean(Measure.DDN_MEDIAN) is None
    assert to_json(figures)["average_certified_radius_sd"] == figures.deviation(Measure.ACR)


def test_an_interval_has_its_ends_in_order(tmp_path: Path) -> None:
    value = json.loads(next(RESULTS.rglob("comparison.json")).read_text())
    gain = next(iter(value["gains"].values()))
    gain["certified"]["average_certified_radius"]["difference_interval"] = [0.5, 0.25]
    (tmp_path / "comparison.json").write_text(json.dumps(value))
    with pytest.raises(InputError, match=r"gains, kinds, an interval from 0\.5 down to 0\.25"):
        Comparison.read(tmp_path / "comparison.json")
