"""Typed results as JSON and back: every field has its declared type and range, or one error line names it."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from heatsmooth.errors import InputError, require

Json = dict[str, Any]
"""A JSON object, between a file and its type."""
Result = TypeVar("Result")
Reader = Callable[[Any], Any]

Format = Literal[1]
"""The format number of a file; a file without one has format 1."""
LARGEST = 2**53
"""Whole numbers up to here are exact wherever JSON is read."""
Whole = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Real = Annotated[float, msgspec.Meta(ge=0, le=LARGEST)]
"""A finite number, 0 or more."""
Positive = Annotated[float, msgspec.Meta(gt=0, le=LARGEST)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Finite = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
Interval = tuple[Finite, Finite]
"""The lower and the upper end."""


def named(name: str) -> dict[str, str]:
    """Metadata of a field that has another name on disk, such as a word that Python reserves."""
    return {"name": name}


def as_text(read: Callable[[str], object]) -> dict[str, Callable[[str], object]]:
    """Metadata of a field that is text on disk: written by ``str(value)``, read by ``read``."""
    return {"read": read}


UNLESS_DEFAULT = {"unless_default": True}
"""Metadata of a field that is only written where it differs from its default, as in files from before it existed."""
OTHER_KEYS = {"other_keys": True}
"""Metadata of a ``dict`` field that holds all keys of the object which no other field has."""


def check_order(*intervals: Interval | None) -> None:
    """Refuse an interval whose lower end is above its upper end."""
    for low, high in (interval for interval in intervals if interval is not None):
        require(low <= high, f"an interval from {low} down to {high}")


def from_json(kind: type[Result], value: Any, where: str, remedy: str) -> Result:
    """The result that the JSON object ``value`` holds; keys that ``kind`` does not know are ignored.

    A missing field, a wrong type or a number out of range raises an ``InputError`` that begins with ``where`` and ends
    with ``remedy``. Published files lack fields that were added later: those have defaults.
    """
    try:
        return read_object(kind, value)
    except InputError as error:
        raise InputError(f"{where}, got {error}; {remedy}") from None


def to_json(result: Any) -> Json:
    """``result`` as ``from_json`` reads it; fields that have their default None are left out."""
    written: Json = {}
    for item in _items(type(result)):  # type: ignore[arg-type]  # a class is hashable
        value = getattr(result, item.field.name)
        if item.is_rest:
            written |= _plain(value)
        elif not item.is_left_out(value):
            written[item.name] = str(value) if "read" in item.field.metadata else _plain(value)
    return written


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(held) for key, held in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(held) for held in value]
    return to_json(value) if is_dataclass(value) else value


@dataclass(frozen=True)
class _Item:
    """A field, its name on disk, and what reads it."""

    field: "Field[Any]"
    name: str
    read: Reader

    @property
    def is_rest(self) -> bool:
        return "other_keys" in self.field.metadata

    def is_left_out(self, value: Any) -> bool:
        """Whether the value is not written: None by default, or the default of a field that came later."""
        usual = self.field.default
        return bool((usual is None and value is None) or ("unless_default" in self.field.metadata and value == usual))

    @property
    def optional(self) -> bool:
        return self.field.default is not MISSING or self.field.default_factory is not MISSING


class _NestedError(InputError):
    """What is wrong inside the object of a field."""


@cache
def _items(kind: type[Any]) -> list[_Item]:
    hints = get_type_hints(kind, include_extras=True)
    return [_Item(item, item.metadata.get("name", item.name), _reader(item, hints[item.name])) for item in fields(kind)]


def read_object(kind: type[Result], value: Any) -> Result:
    """As ``from_json``; the error says only what is wrong."""
    require(isinstance(value, Mapping), str(value)[:40])
    items = _items(kind)  # type: ignore[arg-type]  # a class is hashable
    rest = {key: held for key, held in value.items() if key not in {item.name for item in items}}
    facts: Json = {}
    for item in items:
        if item.is_rest:
            facts[item.field.name] = _read(item, rest)
        elif item.name in value:
            facts[item.field.name] = _read(item, value[item.name])
        else:
            require(item.optional, f"one without {item.name}")
    return kind(**facts)


def _read(item: _Item, value: Any) -> Any:
    try:
        return item.read(value)
    except _NestedError as error:
        raise _NestedError(f"{item.name}, {error}") from None
    except (msgspec.ValidationError, OverflowError, InputError):
        raise InputError(f"{item.name} {str(value)[:40]}") from None


def _reader(item: "Field[Any]", hint: Any) -> Reader:
    from_text = item.metadata.get("read")
    if from_text is not None:
        return lambda value: from_text(msgspec.convert(value, str))
    return _converter(hint)


def _converter(hint: Any) -> Reader:
    """What reads a value of this type: dataclasses alone, optional, or as the values of an object; else msgspec."""
    if is_dataclass(hint):
        return lambda value: _nested(hint, value)  # type: ignore[arg-type]
    kinds = get_args(hint)
    if get_origin(hint) is UnionType and any(map(is_dataclass, kinds)):
        read = _converter(kinds[0])
        return lambda value: None if value is None else read(value)
    if get_origin(hint) is dict and kinds[1] is not Any:
        read_each = _converter(kinds[1])
        return lambda value: {key: read_each(held) for key, held in msgspec.convert(value, dict[str, Any]).items()}
    return lambda value: msgspec.convert(value, hint)


def _nested(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise msgspec.ValidationError
    try:
        return read_object(kind, value)
    except InputError as error:
        raise _NestedError(str(error)) from None
