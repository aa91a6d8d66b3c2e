"""Help on one screen: the main options explained, the others named; ``--help-all`` explains them all."""

import inspect
import os
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from heatsmooth.commands.options import MAIN, Option, options_of, with_flags

WIDTH = 80
NAMED_ONLY = (
    "Image files",
    "Network",
    "Sampling",
    "Other norms",
    "Objective",
    "Other methods",
    "Optimisation",
    "Running",
)
"""Groups of options that most people leave alone."""
PRESET_GROUPS = ("Objective", "Optimisation")
SHARED = (
    ("Running", "--quiet", "Show no progress."),
    ("Running", "--json", "Print one JSON object."),
    ("Running", "--config FILE", "Read options from a YAML file. Those on the command line count before it."),
    ("Running", "--print-config", "Print all options as such a file, and stop."),
)


def root(commands: Mapping[str, str]) -> str:
    """The help of the whole program."""
    lines = [f"  {name:<12}{summary}" for name, summary in commands.items()]
    text = (
        "Make a pretrained image classifier robust in one epoch without labels, and certify an L2 radius within which "
        "its Gaussian average keeps its class."
    )
    more = (
        "Start with `heatsmooth demo`. `heatsmooth COMMAND --help` shows the options and an example. After an "
        "interruption, repeat the command: it continues where it stopped. Only commands that take seconds start again. "
        "Exit codes: 0 done, 2 wrong use or input, 130 interrupted."
    )
    options = ["  --version    Print the version.", "  --install-completion SHELL", "               bash, zsh or fish."]
    head = ["Usage: heatsmooth COMMAND [OPTIONS]", "", *_wrapped(text)]
    return "\n".join([*head, "", "Commands:", *lines, "", "Options:", *options, "", *_wrapped(more)])


def command(name: str, kind: Any, *, explain_all: bool) -> str:
    """The help of one command."""
    options = options_of(kind)
    text, _, example = inspect.cleandoc(kind.__doc__).partition("Example: ")
    paragraphs = [line for part in text.strip().split("\n\n") for line in (*_wrapped(" ".join(part.split())), "")]
    return "\n".join(
        [*_usage(name, options), "", *paragraphs, *_example(example), *_groups(options, explain_all)]
    ).rstrip()


def _usage(name: str, options: tuple[Option, ...]) -> list[str]:
    words = [f"{o.flag} {o.value_name}" for o in options if o.required and not o.positional]
    words += ["[OPTIONS]"] + [o.flag.upper() for o in options if o.positional]
    return _filled(f"Usage: heatsmooth {name} ", words)


def _example(text: str) -> list[str]:
    """The example, so that it can be copied: broken before options, with backslashes."""
    whole = re.sub(r" (?!-)", "\N{NO-BREAK SPACE}", " ".join(text.split()))
    lines = textwrap.wrap(whole, _width() - 8, break_on_hyphens=False, break_long_words=False)
    return ("  " + " \\\n      ".join(lines)).replace("\N{NO-BREAK SPACE}", " ").split("\n")


def _groups(options: tuple[Option, ...], explain_all: bool) -> list[str]:
    groups: dict[str, list[tuple[str, str]]] = {MAIN: []}
    for option in options:
        words = option.flag if option.positional else f"{option.flag} {option.value_name}".rstrip()
        if option.kind is bool and option.default is not False:
            words = f"{option.flag}, --no-{option.flag[2:]}"
        text = with_flags(_explained(option, explain_all), options)
        groups.setdefault(option.group, []).append((words, text))
    for group, flag, text in SHARED:
        groups.setdefault(group, []).append((flag, text))
    lines: list[str] = []
    presets = any(option.name == "preset" for option in options)
    named = [] if explain_all else [group for group in NAMED_ONLY if group in groups]
    for group, entries in groups.items():
        if group not in named:
            note = " (defaults: those of the preset)" if group in PRESET_GROUPS and presets else ""
            lines += ["", f"{group}{note}:", *(line for entry in entries for line in _entry(*entry))]
    if named:
        lines += ["", "More, explained by --help-all:"]
        lines += [line for group in named for line in _names(group, groups[group])]
    return lines


def _explained(option: Option, explain_all: bool) -> str:
    text = f"{option.help} {option.details}".rstrip() if explain_all else option.help
    default = option.default
    if option.required or default is None or default == () or default is False:
        return text
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else "on" if default is True else default
    return f"{text} [{shown}]"


def _entry(words: str, text: str) -> list[str]:
    column = 24
    lines = textwrap.wrap(text, _width() - column, break_on_hyphens=False)
    if len(words) + 4 > column:
        return [f"  {words}", *(" " * column + line for line in lines)]
    return [f"  {words:<{column - 2}}{lines[0]}", *(" " * column + line for line in lines[1:])]


def _names(group: str, entries: list[tuple[str, str]]) -> list[str]:
    return _filled(f"  {group:14}", [words.split()[0].rstrip(",") for words, _ in entries])


def _filled(head: str, words: list[str]) -> list[str]:
    """The words after ``head``, on as many lines as they need, none of them broken."""
    whole = [word.replace(" ", "\N{NO-BREAK SPACE}") for word in words]
    lines = textwrap.wrap(" ".join(whole), _width() - len(head), break_on_hyphens=False, break_long_words=False)
    return [
        (head if not number else " " * len(head)) + line.replace("\N{NO-BREAK SPACE}", " ")
        for number, line in enumerate(lines)
    ]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _width(), break_on_hyphens=False)


def _width() -> int:
    return min(100, int(os.environ.get("COLUMNS", WIDTH)) if os.environ.get("COLUMNS", "").isdecimal() else WIDTH)
