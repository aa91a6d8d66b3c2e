"""The options of a command as one YAML file: ``--config FILE`` reads it, ``--print-config`` writes it.

Keys are the options without their dashes, and the names of positional arguments. A value in the file is read as the
same value on the command line would be.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from reprlib import repr as short
from typing import Any, Literal, get_args, get_origin

import yaml

from heatsmooth.commands.options import Given, Option
from heatsmooth.errors import InputError, require

COMMAND = "command"
"""The key that names the command of a file."""
FLAG, PRINT = "--config", "--print-config"
TEXT = (str, Path)
NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "text"}


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    """Plain values only, each key once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        """As the base class; a key that is there twice is an error."""
        keys = [str(self.construct_object(key)) for key, _ in node.value]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        require(twice is None, f"{twice} twice")
        return super().construct_mapping(node, deep)


def taken(words: list[str]) -> tuple[list[str], Path | None, bool]:
    """The other words of a command line, the file of ``--config``, and whether ``--print-config`` is among them.

    >>> words, file, printing = taken(["--n", "1", "--config", "a.yaml", "--print-config", "--", "--config"])
    >>> words, str(file), printing
    (['--n', '1', '--', '--config'], 'a.yaml', True)
    """
    end = words.index("--") if "--" in words else len(words)
    others, file, printing, place = [], None, False, 0
    while place < end:
        flag, joined, value = words[place].partition("=")
        if flag == FLAG:
            if not joined:
                place += 1
                value = words[place] if place < end else ""
            require(value != "", f"{FLAG}: expected a YAML file, got none; name one")
            file = Path(value)
        elif flag == PRINT:
            printing = True
        else:
            others.append(words[place])
        place += 1
    return [*others, *words[end:]], file, printing


def read_config(
    path: Path, name: str, options: tuple[Option, ...], parse: Callable[[list[str], tuple[Option, ...]], Given]
) -> Given:
    """The values that a file gives to the options of the command ``name``.

    ``parse``: reads the words of a command line. An unknown key, a wrong type or a refused value is an ``InputError``
    that names the file.
    """
    content, known = _content(path), {_key(option): option for option in options}
    written = content.pop(COMMAND, name)
    require(written == name, f"{path}: expected settings of {name}, got those of {written}; name another file")
    unknown = next((key for key in content if key not in known), None)
    require(unknown is None, f"{path}: expected options of {name}, got {unknown!r}; see heatsmooth {name} --help-all")
    words: list[str] = []
    for key, value in content.items():
        words = _with_value(words, known[key], value, f"{path}: {key}")
    try:
        return parse(words, tuple(_optional(option) for option in options))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def config_text(name: str, options: tuple[Option, ...], command: Any) -> str:
    """All settings of a command as YAML, those by default too; ``read_config`` gives the identical command."""
    values = {_key(option): _plain(_value(command, option.path)) for option in options}
    content = {COMMAND: name} | {key: value for key, value in values.items() if value is not None}
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    return text


def _content(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506  # a SafeLoader
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise InputError(f"{path}: expected settings in YAML, got {reason}; see --print-config") from None
    kind = type(content).__name__
    require(isinstance(content, dict), f"{path}: expected settings as key: value, got {kind}; see --print-config")
    return {str(key): value for key, value in content.items()}


def _key(option: Option) -> str:
    """The option without dashes; the field of a positional argument."""
    return option.name if option.positional else option.flag.removeprefix("--")


def _optional(option: Option) -> Option:
    """The option as one that may be missing: the command line can give it."""
    return replace(option, default=None) if option.required else option


def _with_value(words: list[str], option: Option, value: Any, where: str) -> list[str]:
    """The words of a command line, with this value of this option."""
    if option.kind is bool:
        require(isinstance(value, bool), f"{where}: expected true or false, got {short(value)}; write one of them")
        off = [] if option.default is False else [f"--no-{_key(option)}"]
        return [*([option.flag] if value else off), *words]
    values = value if option.several and isinstance(value, list) else [value]
    texts = [_text(option, item, where) for item in values]
    if not option.positional:
        return [f"{option.flag}={','.join(texts)}", *words]
    return [*words, *([] if "--" in words else ["--"]), *texts]


def _text(option: Option, value: Any, where: str) -> str:
    """A value as on the command line; one of a wrong type is refused."""
    kind = get_args(option.kind)[0] if option.several else option.kind
    if get_origin(kind) is Literal or hasattr(kind, "parse"):
        kind = str
    listed = option.several and not option.positional  # text is taken as on the command line: 0.5,0.25
    number = hasattr(option.kind, "parse") and type(value) is int  # a budget without quotes
    fits = _fits(kind, value) or (listed and _fits(str, value)) or number
    require(
        fits, f"{where}: expected {NAMES.get(kind, 'text')}, got {short(value)}; write another value or leave it out"
    )
    return str(value)


def _fits(kind: Any, value: Any) -> bool:
    """Whether a value may be of this kind. YAML reads 1e-3 as text, so a number may be text."""
    if isinstance(value, str):
        return value != "" and (kind in TEXT or kind is float)
    return (
        kind not in TEXT and not isinstance(value, bool) and isinstance(value, (int, float) if kind is float else int)
    )


def _value(command: Any, path: tuple[str, ...]) -> Any:
    """The value at these fields of a command; None where it has none."""
    for name in path:
        command = command.get(name) if isinstance(command, dict) else getattr(command, name, None)
    return command


def _plain(value: Any) -> Any:
    """A value as YAML has it: numbers, text, lists."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value] or None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
