"""Every option is declared once: what mirrors a settings dataclass has its fields, types and documentation."""

from dataclasses import dataclass, fields
from typing import Any, Literal, get_type_hints

import pytest

import heatsmooth as hs
from heatsmooth.certification.settings import RecomputedSettings, Sampling, Settings, SettingsChanges
from heatsmooth.commands.line import COMMANDS, command_named
from heatsmooth.commands.options import built, options_of, with_flags
from heatsmooth.commands.smooth import Smooth
from heatsmooth.settings import check_at_least, check_choices, check_positive, documentation
from heatsmooth.training.settings import Baseline, Changes, Heat, HeatChanges, Plan, PlanChanges, Saving


@pytest.mark.parametrize(
    ("changes", "settings", "without"),
    [(HeatChanges, Heat, {"sigma"}), (PlanChanges, Plan, set()), (SettingsChanges, Settings, {"sigma"})],
)
def test_changes_have_the_fields_and_types_of_their_settings(changes: Any, settings: Any, without: set[str]) -> None:
    expected = {name: kind for name, kind in get_type_hints(settings).items() if name not in without}
    assert get_type_hints(changes) == expected


def test_all_changes_of_smooth_are_those_of_its_objective_and_its_plan() -> None:
    assert get_type_hints(Changes) == get_type_hints(HeatChanges) | get_type_hints(PlanChanges)
    assert get_type_hints(RecomputedSettings).items() <= get_type_hints(SettingsChanges).items()


@pytest.mark.parametrize("settings", [Heat, Plan, Baseline, Saving, Settings, Sampling])
def test_every_setting_is_documented(settings: Any) -> None:
    texts = documentation(settings)
    assert list(texts) == [item.name for item in fields(settings)]
    assert all(texts.values()), texts


def test_given_values_reach_their_fields_and_the_others_keep_their_defaults() -> None:
    given = {
        ("images", "data"): "cifar10",
        ("network", "source"): "runs/x",
        ("sigma",): 0.25,
        ("out",): "runs/y",
        ("heat", "weight"): 0.5,
        ("computing", "seed"): 3,
    }
    command: Smooth = built(Smooth, given)
    assert (command.images.data, command.heat, command.plan) == ("cifar10", {"weight": 0.5}, {})
    assert (command.computing.seed, command.computing.device, command.saving) == (3, None, Saving())


def test_defaults_in_the_help_are_those_of_the_command() -> None:
    defaults = {option.flag: option.default for option in options_of(command_named("train"))}
    assert (defaults["--epochs"], defaults["--lr"], defaults["--eps"]) == (20, 0.2, 0.5)


def test_messages_name_arguments_and_the_command_line_shows_flags() -> None:
    with pytest.raises(hs.InputError, match="`sigma`: expected a positive number, got 0"):
        Heat(0.0)
    text = "`weight`: expected 0 or more beside `batch_size` and `unknown`"
    expected = "--penalty-weight: expected 0 or more beside --batch-size and `unknown`"
    assert with_flags(text, options_of(Smooth)) == expected


def test_no_help_speaks_of_a_name_that_is_no_option() -> None:
    for name in COMMANDS:
        options = options_of(command_named(name))
        for option in options:
            assert "`" not in with_flags(f"{option.help} {option.details}", options), (name, option.flag)


@dataclass(frozen=True)
class Example:
    kind: Literal["a", "b", "c"] = "a"
    share: float | None = None


def test_checks_of_fields() -> None:
    check_choices(Example())
    with pytest.raises(hs.InputError, match="`kind`: expected a, b or c, got 'd'"):
        check_choices(Example("d"))  # type: ignore[arg-type]
    check_positive(Example(), "share")
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(hs.InputError, match="`share`: expected a positive number"):
            check_positive(Example(share=wrong), "share")
    for wrong in (-0.5, float("nan"), float("inf")):
        with pytest.raises(hs.InputError, match="`share`: expected 0 or more"):
            check_at_least(Example(share=wrong), 0, "share")
