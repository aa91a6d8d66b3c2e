"""Settings as one YAML file: what is printed gives the identical command, and the command line counts before it."""

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from heatsmooth import InputError
from heatsmooth.certification.settings import Budget
from heatsmooth.commands.configs import config_text, read_config
from heatsmooth.commands.inputs import Shard
from heatsmooth.commands.line import COMMANDS, _given, command_named, run
from heatsmooth.commands.options import Option, built, options_of

SMOOTH = ["smooth", "--data", "fashion-mini", "--from", "b", "--sigma", "0.25", "--out", "s"]
SAMPLES: dict[Any, Any] = {
    int: 3,
    float: 1e-4,
    str: "some: 'text'",
    Path: Path("some/where"),
    Shard: Shard(2, 3),
    Budget: Budget(seconds=90.0),
}


def sample(option: Option) -> Any:
    """A value that is not the default."""
    if option.positional and option.several:
        return (Path("no"), Path("10.png"), Path("#3"))
    if option.kind is bool:
        return not option.default
    if get_origin(option.kind) is tuple:
        kind = get_args(option.kind)[0]
        return tuple(map(kind, ("1", "2") if kind is not float else (0.25, 0.5)))
    return get_args(option.kind)[-1] if get_origin(option.kind) is Literal else SAMPLES[option.kind]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_printed_config_gives_the_identical_command(name: str, tmp_path: Path) -> None:
    """With a value other than the default for every option that the command accepts beside the others."""
    kind, file = command_named(name), tmp_path / "run.yaml"
    options = options_of(kind)
    values = {option.path: sample(option) for option in options if option.required}
    tried = len(values)
    for option in options:
        try:
            built(kind, values | {option.path: sample(option)})
        except InputError:
            continue
        values[option.path] = sample(option)
        tried += 1
    assert tried > len(options) // 2
    command = built(kind, values)
    file.write_text(config_text(name, options, command))
    again = read_config(file, name, options, lambda words, some: _given(name, words, some)[0])
    assert built(kind, again) == command


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run([*words, "--print-config"]) == 0
    return capsys.readouterr().out


def test_the_command_line_counts_before_the_file(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, *SMOOTH, "--stream", "--no-augment", "--lr", "0.125")
    Path("run.yaml").write_text(text)
    assert printed(capsys, "smooth", "--config", "run.yaml") == text
    changed = printed(capsys, "smooth", "--sigma=0.5", "--config=run.yaml", "--augment", "--no-stream")
    assert changed == text.replace("sigma: 0.25", "sigma: 0.5").replace("augment: false", "augment: true").replace(
        "stream: true", "stream: false"
    )
    assert not Path("s").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sigm: 0.5", "expected options of smooth, got 'sigm'"),
        ("command: train", "expected settings of smooth, got those of train"),
        ("sigma: true", "sigma: expected a number, got True"),
        ("sigma: half", "--sigma: expected a number, got 'half'"),
        ("epochs: 1.5", "epochs: expected a whole number, got 1.5"),
        ("data: 3", "data: expected text, got 3"),
        ("out:", "out: expected text, got None"),
        ("stream: 1", "stream: expected true or false, got 1"),
        ("preset: best", "--preset: expected bootcamp, bootcamp-strong, paper-cifar10 or paper-imagenet, got 'best'"),
        ("mean: [0.5, x: 1]", "mean: expected a number, got {'x': 1}"),
        ("- sigma", "expected settings as key: value, got list"),
        ("sigma: 1\nsigma: 2", "expected settings in YAML, got sigma twice"),
        ("sigma: [", "expected settings in YAML, got while parsing"),
        ("out: !!python/object/apply:os.getcwd []", "expected settings in YAML, got could not determine"),
    ],
)
def test_what_a_file_cannot_say_is_one_line(
    text: str, message: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run.yaml").write_text(text)
    assert run([*SMOOTH, "--config", "run.yaml"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"heatsmooth: error: run.yaml: {message}")
    assert error.count("\n") == 1


def test_a_missing_file_and_a_missing_value(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text("data: fashion-mini\nsigma: 1e-1\n")
    for words, message in {
        ("--config",): "--config: expected a YAML file, got none",
        ("--config", "no.yaml"): "no.yaml: expected settings in YAML, got No such file",
        ("--config", "run.yaml"): "--from: expected a value, got none",
    }.items():
        assert run(["smooth", *words]) == 2
        assert message in capsys.readouterr().err
