"""What smoothing brought: against closed forms, and by how often the interval holds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from heatsmooth.comparing import gains as module
from heatsmooth.comparing.gains import gains, ratios, shares_differ
from heatsmooth.errors import InputError
from heatsmooth.results.certificates import Certificate
from heatsmooth.results.comparison import Change, Ratio
from tests.conftest import certificate_of

Runs = dict[str, list[Certificate]]


def record(index: int, radius: float, *, right: bool = True) -> Certificate:
    label = 1 if right else 0
    return certificate_of(index=index, label=label, radius=radius, clean_probabilities=(0.2, 0.5, 0.3))


def measured(runs: Runs, monkeypatch: pytest.MonkeyPatch, **how: Any) -> dict[str, Change]:
    monkeypatch.setattr(module, "read_certificates", lambda directory: runs[directory.name])
    before, after = ([Path(name) for name in sorted(runs) if name.startswith(kind)] for kind in ("before", "later"))
    return gains(before, after, **how)


def test_twice_every_radius_is_a_factor_of_two_without_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    radii = np.linspace(0.1, 0.5, 41)
    runs = {name: [record(i, k * r) for i, r in enumerate(radii)] for name, k in (("before", 1.0), ("later", 2.0))}
    found = measured(runs, monkeypatch)
    for name in ("average_certified_radius", "median_certified_radius"):
        assert found[name].before == pytest.approx(0.3)
        assert found[name].factor == pytest.approx(2)
        assert found[name].factor_interval == pytest.approx([2, 2])
        low, high = found[name].difference_interval
        assert found[name].difference == pytest.approx(0.3)
        assert low < 0.3 < high
    reach = 1.959964 * 2**0.5 / 43
    assert found["one_pass_accuracy"].difference_interval == pytest.approx([-reach, reach], abs=1e-6)


def test_seeds_are_averaged_and_images_drawn_anew_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {
        f"{kind}-{seed}": [record(i, r + seed) for i in range(5)]
        for kind, r in (("before", 1), ("later", 3))
        for seed in (0, 1)
    }
    found = measured(runs, monkeypatch)["average_certified_radius"]
    assert (found.before, found.after, found.difference_interval) == (1.5, 3.5, (2, 2))


def test_wrong_classes_count_nothing_and_nothing_divides_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"before": [record(i, 0.2, right=i == 0) for i in range(30)], "later": [record(i, 0.2) for i in range(30)]}
    found = measured(runs, monkeypatch)
    assert found["average_certified_radius"].before == pytest.approx(0.2 / 30)
    assert found["average_certified_radius"].factor is None
    assert found["one_pass_accuracy"].before == pytest.approx(1 / 30)
    assert measured(runs, monkeypatch, top_k=3)["one_pass_accuracy"].before == 1


def test_ratios_are_of_every_method_to_every_other(monkeypatch: pytest.MonkeyPatch) -> None:
    radii, times = np.linspace(0.1, 0.5, 41), {"one": 1.0, "twice": 2.0, "never": 0.0}
    runs = {name: [record(i, k * r) for i, r in enumerate(radii)] for name, k in times.items()}
    monkeypatch.setattr(module, "read_certificates", lambda directory: runs[directory.name])
    found = ratios({name: [Path(name)] for name in runs}, runs)
    twice = found["twice"]["one"]
    assert twice.factor == pytest.approx(2)
    assert twice.factor_interval == pytest.approx((2, 2))
    assert twice.by_seed == pytest.approx((2,))
    assert found["one"]["twice"].factor == pytest.approx(0.5)
    assert found["never"]["one"].factor == 0
    assert found["one"]["never"] == Ratio(factor=None, factor_interval=None, by_seed=(None,))
    assert {name: set(others) for name, others in found.items()} == {name: set(runs) - {name} for name in runs}


def test_a_ratio_is_of_the_seeds_that_both_methods_have(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {
        name: [record(i, radius) for i in range(5)] for name, radius in (("one", 0.2), ("two", 0.4), ("third", 0.9))
    }
    monkeypatch.setattr(module, "read_certificates", lambda directory: runs[directory.name])
    found = ratios({"a": [Path("two"), Path("third")], "b": [Path("one")]}, ["a"])["a"]["b"]
    assert found.factor == pytest.approx(2)
    assert found.by_seed == pytest.approx((2,))


def test_other_images_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="expected certificates of the images of before"):
        measured({"before": [record(0, 0.1)], "later": [record(1, 0.1)]}, monkeypatch)


def test_the_interval_holds_about_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Radii before uniform on [0, 0.4], after larger by what is uniform on [0, 0.2]: the difference is 0.1."""
    generator, held = np.random.default_rng(1), 0
    monkeypatch.setattr(module, "RESAMPLES", 200)
    for seed in range(200):
        first = generator.uniform(0, 0.4, 60)
        second = first + generator.uniform(0, 0.2, 60)
        runs = {
            name: [record(i, r) for i, r in enumerate(radii)] for name, radii in (("before", first), ("later", second))
        }
        low, high = measured(runs, monkeypatch, seed=seed)["average_certified_radius"].difference_interval
        held += low <= 0.1 <= high
    assert 0.88 <= held / 200 <= 0.99


@pytest.mark.parametrize("images", [40, 100, 400])
@pytest.mark.parametrize(("lost", "gained"), [(0.04, 0.0), (0.05, 0.01), (0.15, 0.02), (0.4, 0.1)])
def test_shares_differ_within_their_interval_as_often_as_it_says(images: int, lost: float, gained: float) -> None:
    """The exact coverage, summed over all numbers of images gained and lost that are not beyond chance."""
    least = 0.945 if images >= 100 else 0.94
    covered = 0.0
    for b, of_lost in enumerate(stats.binom.pmf(np.arange(images + 1), images, lost)):
        chances = of_lost * stats.binom.pmf(np.arange(images - b + 1), images - b, gained / (1 - lost))
        for c, chance in enumerate(chances):
            if chance > 1e-7:
                low, high = shares_differ(np.repeat([-1.0, 1.0, 0.0], [b, c, images - b - c]))
                covered += chance * (low <= gained - lost <= high)
    assert covered >= least
