"""The options of a command, derived from the fields of its dataclass, and a command built from given values."""

import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from heatsmooth.errors import InputError
from heatsmooth.settings import documentation

MAIN = "Options"
Given = dict[tuple[str, ...], Any]
"""Values by the path of their option."""


def grouped(group: str, *, of: Any = None, main: tuple[str, ...] = (), flags: Mapping[str, str] | None = None) -> Any:
    """Metadata of a field that holds settings: the group of their options in the help.

    ``of``: the dataclass that documents them, where the field holds changes of its fields. ``main``: options that are
    shown with those of the command. ``flags``: options whose flag is not the name of their field.
    """
    return {"group": group, "of": of, "main": main, "flags": flags or {}}


@dataclass(frozen=True)
class Option:
    """One option of a command line."""

    path: tuple[str, ...]
    """Fields that lead to it: ("network", "source")."""
    flag: str
    """"--from"; for a positional argument its name."""
    kind: Any
    """Its type, without None."""
    help: str
    """One sentence."""
    details: str
    """What else there is to know; may be empty."""
    group: str
    default: Any
    """``MISSING`` if the option is required."""
    positional: bool

    @property
    def name(self) -> str:
        """The name of its field."""
        return self.path[-1]

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is MISSING

    @property
    def several(self) -> bool:
        """Whether it takes several values."""
        return get_origin(self.kind) is tuple

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it may have, if they are listed."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def value_name(self) -> str:
        """What stands for its value in the help; empty for a switch."""
        if self.choices:
            return "|".join(self.choices)
        return {bool: "", int: "N", float: "X", str: "TEXT", Path: "PATH"}.get(
            self.kind, "X,…" if self.several else getattr(self.kind, "VALUE_NAME", "I/N")
        )


@cache
def options_of(command: Any) -> tuple[Option, ...]:
    """All options of a command, in the order of its fields; those of nested settings where they are nested."""
    return tuple(_options(command, (), {}, None))


def _options(kind: Any, path: tuple[str, ...], around: Mapping[str, Any], default: Any) -> list[Option]:
    """The options of one dataclass; ``around``: metadata of the field that holds it, ``default``: its value there."""
    options: list[Option] = []
    hints, texts = get_type_hints(kind), documentation(kind)
    for item in fields(kind):
        if not item.metadata.get("option", True):
            continue
        hint = _without_none(hints[item.name])
        nested = (*path, item.name)
        if is_typeddict(hint):
            options += _changes(hint, nested, item.metadata)
        elif is_dataclass(hint) and not hasattr(hint, "parse"):
            inner = _options(hint, nested, item.metadata, _default(item))
            options += [_optional(option) for option in inner] if _default(item) is None else inner
        else:
            value = _default(item) if default in (None, MISSING) else getattr(default, item.name)
            metadata = {**item.metadata, "group": _group(item, around)}
            metadata["flag"] = around.get("flags", {}).get(item.name) or item.metadata.get("flag")
            options.append(_option(nested, hint, texts[item.name], value, metadata))
    return options


def _optional(option: Option) -> Option:
    """An option of settings that may be left out as a whole."""
    return replace(option, default=None) if option.required else option


def _changes(changes: Any, path: tuple[str, ...], metadata: Mapping[str, Any]) -> list[Option]:
    """The options of changes to the settings ``metadata["of"]``; without one, the settings stay as they are."""
    hints, texts, around = get_type_hints(changes), documentation(metadata["of"]), metadata
    items = {item.name: item for item in fields(metadata["of"])}
    options = []
    for name, hint in hints.items():
        own = {"group": _group(items[name], around), "flag": around["flags"].get(name)}
        options.append(_option((*path, name), _without_none(hint), texts[name], None, own))
    return options


def _group(item: Field[Any], around: Mapping[str, Any]) -> str:
    """The group that the field says, or that of the field that holds its settings."""
    group = item.metadata.get("group") or around.get("group") or MAIN
    return MAIN if item.name in around.get("main", ()) else str(group)


def _option(path: tuple[str, ...], kind: Any, text: str, default: Any, metadata: Mapping[str, Any]) -> Option:
    positional = bool(metadata.get("positional"))
    flag = metadata.get("flag") or (path[-1] if positional else "--" + path[-1].replace("_", "-"))
    sentence, _, details = text.partition(". ")
    return Option(
        path,
        flag,
        kind,
        sentence if sentence.endswith((".", "…")) else f"{sentence}.",
        details,
        metadata["group"],
        default,
        positional,
    )


def _default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _without_none(hint: Any) -> Any:
    """The type of a value that may also be None."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    return hint


def built(command: Any, given: Given) -> Any:
    """The command with these values; the other fields have their defaults."""
    return command(**_arguments(command, given))


def _arguments(kind: Any, given: Given) -> dict[str, Any]:
    hints = get_type_hints(kind)
    arguments: dict[str, Any] = {}
    for item in fields(kind):
        own = {path[1:]: value for path, value in given.items() if path[0] == item.name}
        hint = _without_none(hints[item.name])
        if () in own:
            arguments[item.name] = own[()]
        elif is_typeddict(hint):
            arguments[item.name] = {name: value for (name,), value in own.items()}
        elif is_dataclass(hint) and (own or _default(item) is MISSING):
            default = _default(item)
            inner = _arguments(hint, own)
            _check_complete(hint, inner)
            arguments[item.name] = hint(**inner) if default in (None, MISSING) else replace(default, **inner)  # type: ignore[operator]
    return arguments


def _check_complete(kind: Any, given: Mapping[str, Any]) -> None:
    """Refuse settings that may be left out as a whole, of which only a part is given."""
    missing = [item.name for item in fields(kind) if _default(item) is MISSING and item.name not in given]
    if missing and given:
        raise InputError(f"`{missing[0]}`: expected a value beside `{next(iter(given))}`, got none; name it")


def with_flags(message: str, options: tuple[Option, ...]) -> str:
    """A message of the library, with the flags of these options instead of the names of arguments.

    The library writes "`batch_size`: expected at least 1"; the command line shows "--batch-size: expected at least 1".
    """
    flags = {option.name: option.flag for option in reversed(options)}
    return re.sub(r"`([a-z_0-9]+)`", lambda name: flags.get(name[1], name[0]), message)
