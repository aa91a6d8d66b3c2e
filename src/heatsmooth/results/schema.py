"""Typed results as JSON and back: every field of the declared type and range, or one line that names it."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec

from heatsmooth.errors import InputError, require

Json = dict[str, Any]
"""A JSON object, between a file and its type."""
Result = TypeVar("Result")

LARGEST = 2**53
"""Whole numbers up to here are exact wherever JSON is read."""
Whole = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Real = Annotated[float, msgspec.Meta(ge=0, le=LARGEST)]
"""A finite number, 0 or more."""
Positive = Annotated[float, msgspec.Meta(gt=0, le=LARGEST)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


def named(name: str) -> dict[str, str]:
    """Metadata of a field that has another name on disk, such as a word that Python keeps for itself."""
    return {"name": name}


def as_text(read: Callable[[str], object]) -> dict[str, Callable[[str], object]]:
    """Metadata of a field that is text on disk: ``str(value)``, and back by ``read``."""
    return {"read": read}


def from_json(kind: type[Result], value: Mapping[str, Any], where: str, remedy: str) -> Result:
    """The result that ``value`` holds; keys that ``kind`` does not know are left out.

    A missing field, a wrong type or a number out of range raises an ``InputError`` that begins with ``where`` and ends
    with ``remedy``. Published files lack fields that were added later: those have defaults.
    """
    facts: Json = {}
    for item, name, read in _readers(kind):  # type: ignore[arg-type]  # a class is hashable
        if name not in value:
            optional = item.default is not MISSING or item.default_factory is not MISSING
            require(optional, f"{where}, got one without {name}; {remedy}")
            continue
        try:
            facts[item.name] = read(value[name])
        except (msgspec.ValidationError, OverflowError, InputError):
            raise InputError(f"{where}, got {name} {str(value[name])[:40]}; {remedy}") from None
    try:
        return kind(**facts)
    except InputError as error:
        raise InputError(f"{where}, got {error}; {remedy}") from None


def to_json(result: Any) -> Json:
    """``result`` as ``from_json`` reads it; fields that are None by default, and are None, are left out."""
    known = _readers(type(result))  # type: ignore[arg-type]  # a class is hashable
    values = ((item, name, getattr(result, item.name)) for item, name, _ in known)
    return {name: _plain(value, item) for item, name, value in values if value is not None or item.default is not None}


def _plain(value: Any, item: "Field[Any]") -> Any:
    if "read" in item.metadata or isinstance(value, StrEnum):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


@cache
def _readers(kind: type[Any]) -> list[tuple["Field[Any]", str, Callable[[Any], Any]]]:
    """Each field, its name on disk, and what reads it."""
    hints = get_type_hints(kind, include_extras=True)
    return [(item, item.metadata.get("name", item.name), _reader(item, hints[item.name])) for item in fields(kind)]


def _reader(item: "Field[Any]", hint: Any) -> Callable[[Any], Any]:
    from_text = item.metadata.get("read")
    if from_text is not None:
        return lambda value: from_text(msgspec.convert(value, str))
    return lambda value: msgspec.convert(value, hint)
