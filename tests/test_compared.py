"""What ``comparison.json`` says, in a report and on the command line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatsmooth.errors import InputError
from heatsmooth.reporting import build_report
from heatsmooth.reporting.compared import (
    conditions,
    figures,
    gained,
    gains_table,
    means_table,
    ratios,
    ratios_table,
    times,
)
from heatsmooth.results.comparison import Comparison, Factor
from heatsmooth.results.schema import from_json

FACTOR: dict[str, Any] = {"factor": 2.0, "factor_interval": [1.501, 2.501]}
GAIN: dict[str, Any] = {"before": 0.5, "after": 0.25, "difference": -0.25, "difference_interval": [-0.5, 0.0]}
COMPARISON: dict[str, Any] = {
    "command": "compare",
    "sigma": 0.25,
    "n": 10000,
    "n_wrong": 100,
    "alpha": 0.001,
    "images": 1000,
    "seeds": [0, 1],
    "certified_images_unseen": False,
    "methods": {
        "smooth": {
            "one_pass_accuracy": 0.75,
            "one_pass_accuracy_sd": 0.011,
            "average_certified_radius": 0.31297,
            "average_certified_radius_sd": 0.0081,
        },
    },
    "gains": {
        "smooth": {
            "from": "plain",
            "certified": {
                "one_pass_accuracy": GAIN | {"factor": 0.5, "factor_interval": [0.1, 1.0]},
                "average_certified_radius": GAIN | FACTOR,
            },
            "top-5": {"median_certified_radius": GAIN | {"factor": None, "factor_interval": None}},
        }
    },
    "average_certified_radius_ratios": {"smooth": {"plain": FACTOR, "noisy": FACTOR | {"by_seed": [1.9, None]}}},
}

TYPED = from_json(Comparison, COMPARISON, "expected a comparison", "leave it out")


def comparison(**changes: Any) -> Comparison:
    return from_json(Comparison, {"methods": {}} | changes, "expected a comparison", "leave it out")


def test_means_have_their_spread_and_radii_round_down() -> None:
    shown = figures(TYPED.methods["smooth"])
    assert shown["one pass"] == "75.0% ± 1.1%"
    assert shown["ACR"] == "0.312 ± 0.008"
    assert shown["agree"] == "–"


def test_shares_change_by_points_and_radii_by_factors_rounded_outwards() -> None:
    assert gained(TYPED.gains["smooth"]) == [
        ("one pass accuracy", "50.0%", "25.0%", "-25.0 points (-50.0 to +0.0)"),
        ("ACR", "0.500", "0.250", "× 2.00 (1.50 to 2.51)"),
        ("median radius, top-5", "0.500", "0.250", "-0.250 (-0.500 to +0.000)"),
    ]


def test_a_factor_over_what_may_be_zero_is_not_shown() -> None:
    assert times(Factor(factor=None, factor_interval=None)) == "–"


def test_ratios_leave_out_what_the_gains_say() -> None:
    assert ratios(TYPED) == [("smooth", "noisy", "× 2.00 (1.50 to 2.51)", "1.90, –")]


def test_of_two_smoothed_methods_the_larger_stands_first() -> None:
    half = {"factor": 0.5, "factor_interval": [0.4, 0.6], "by_seed": [0.5]}
    found = ratios(comparison(average_certified_radius_ratios={"small": {"large": half}, "large": {"small": FACTOR}}))
    assert [(name, other) for name, other, *_ in found] == [("large", "small")]


def test_conditions_are_told_as_far_as_they_are_known() -> None:
    known = "σ = 0.25, α = 0.001, n = 10,000, 100 where the class is wrong, 1,000 images, seeds 0, 1"
    assert conditions(TYPED) == f"{known}, on the images that the networks were made on"
    assert conditions(comparison(seeds=[3])) == "seed 3"


def test_one_seed_needs_no_table_of_means() -> None:
    assert means_table([("a", replace(TYPED, seeds=(0,)))]) is None


def test_the_page_shows_all_three_tables_and_names_comparisons_if_there_are_two(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "comparison.json").write_text(json.dumps(COMPARISON))
    wanted = ["over-seeds", "smoothing-gains", "acr-ratios"]
    summary = build_report([tmp_path / "one/comparison.json"], tmp_path / "page.html", tables=tmp_path / "alone")
    assert summary.skipped == []
    assert summary.tables == [f"{key}.{ending}" for key in wanted for ending in ("md", "tex")]
    build_report([tmp_path], tmp_path / "page.html", tables=tmp_path / "both")
    for key in wanted:
        alone, both = ((tmp_path / which / f"{key}.md").read_text() for which in ("alone", "both"))
        assert "Comparison" not in alone
        assert both.count("| one |") == both.count("| two |") > 0
    page = (tmp_path / "page.html").read_text()
    assert "What smoothing gained and cost" in page
    assert "plain → smooth" in page


def test_a_damaged_comparison_is_named_and_stops_nothing(tmp_path: Path) -> None:
    for name, content in (("good", json.dumps(COMPARISON)), ("bad", "[1"), ("other", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "comparison.json").write_text(content)
    summary = build_report([tmp_path], tmp_path / "page.html")
    assert [entry.name for entry in summary.skipped] == ["bad", "other"]
    assert summary.comparisons == 1


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The keys that lead to every value of nested objects."""
    if not isinstance(value, dict):
        return [path]
    return [path, *(place for key, item in value.items() for place in places(item, (*path, key)))]


@pytest.mark.parametrize("path", [place for place in places(COMPARISON) if place], ids="/".join)
@settings(derandomize=True, deadline=None, max_examples=30)
@given(junk=JUNK)
def test_nonsense_at_any_place_is_refused_or_shown(path: tuple[str, ...], junk: Any) -> None:
    nonsense = json.loads(json.dumps(COMPARISON))
    within = nonsense
    for key in path[:-1]:
        within = within[key]
    within[path[-1]] = junk
    try:
        read = comparison(**nonsense)
    except InputError:
        return
    for table in (means_table, gains_table, ratios_table):
        made = table([("a", read)])
        assert made is None or all(isinstance(cell, str) for row in made.cells for cell in row)
