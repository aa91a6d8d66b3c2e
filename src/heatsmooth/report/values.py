"""Values out of files that anyone may have written, and numbers as they are printed."""

import math
from typing import Any

from heatsmooth.statistics.radii import round_down

NBSP = "\u00a0"
"""A space at which no line breaks."""
NONE = "–"
"""What a table shows where nothing was measured."""


def dig(value: Any, *keys: str) -> Any:
    """The value under nested keys; None where one is missing or what should hold it is no object.

    >>> dig({"a": {"b": 1}}, "a", "b"), dig({"a": 3}, "a", "b")
    (1, None)
    """
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def number(value: Any, *keys: str) -> float | None:
    """The finite number under nested keys, or None.

    >>> number({"a": 2}, "a"), number({"a": "2"}, "a"), number({"a": True}, "a"), number({"a": float("nan")}, "a")
    (2.0, None, None, None)
    """
    found = dig(value, *keys)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        result = float(found)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def interval(value: Any, *keys: str) -> tuple[float | None, float | None]:
    """The two ends of the interval under nested keys, or None twice.

    >>> interval({"a": [1, 2]}, "a"), interval({"a": [1]}, "a")
    ((1.0, 2.0), (None, None))
    """
    found = dig(value, *keys)
    low, high = map(number, found) if isinstance(found, list) and len(found) == 2 else (None, None)
    return (None, None) if low is None or high is None or low > high else (low, high)


def entries(value: Any, *keys: str) -> list[tuple[str, Any]]:
    """The entries of the object under nested keys; none if it is no object."""
    found = dig(value, *keys)
    return list(found.items()) if isinstance(found, dict) else []


def text(value: Any, *keys: str) -> str | None:
    """The text under nested keys on one line without control characters, or None if it is no text or empty."""
    found = dig(value, *keys)
    return (one_line(found) or None) if isinstance(found, str) else None


def one_line(value: object, most: int = 300) -> str:
    r"""Any value as one line of printable text, cut at ``most`` characters.

    >>> one_line("a\nb\x00\ud800"), one_line("abcdef", 4)
    ('a b', 'abc…')
    """
    line = "".join(c for c in " ".join(str(value).split()) if c.isprintable())
    return line if len(line) <= most else line[: most - 1] + "…"


def radius_text(value: float | None, digits: int = 4) -> str:
    """A radius, rounded down.

    >>> radius_text(0.29999), radius_text(None)
    ('0.2999', '–')
    """
    return NONE if value is None else f"{round_down(value, digits):.{digits}f}"


def distance_text(value: float | None) -> str:
    """The distance of an attack; infinite where more than half of the attacks failed."""
    if value is None:
        return NONE
    return f"{value:.4f}" if math.isfinite(value) else "∞ (most failed)"


def share_text(value: float | None) -> str:
    """A share of images, with three decimals."""
    return NONE if value is None else f"{value:.3f}"


def percent(value: float | None) -> str:
    r"""A share in per cent.

    >>> percent(0.6), percent(1.0), percent(None)
    ('60.0\xa0%', '100\xa0%', '–')
    """
    if value is None:
        return NONE
    return f"{100 * value:.0f}{NBSP}%" if value in (0, 1) else f"{100 * value:.1f}{NBSP}%"


def count_text(value: float | None) -> str:
    """A whole number with separators.

    >>> count_text(100000.0)
    '100,000'
    """
    return NONE if value is None else f"{value:,.0f}"


def plain(value: float | None) -> str:
    """A setting as it was given.

    >>> plain(0.25), plain(4.0), plain(10000.0)
    ('0.25', '4', '10000')
    """
    return NONE if value is None else f"{value:.10g}"


def duration(seconds: float | None) -> str:
    """A time a person can read.

    >>> [duration(s).replace(NBSP, " ") for s in (0.0123, 4.25, 75, 3700, 100000)]
    ['12.3 ms', '4.2 s', '1 min 15 s', '1 h 1 min', '27 h 46 min']
    """
    if seconds is None or seconds < 0:
        return NONE
    if seconds < 1:
        return f"{1000 * seconds:.3g}{NBSP}ms"
    if seconds < 60:
        return f"{seconds:.1f}{NBSP}s"
    minutes, rest = divmod(int(seconds), 60)
    long = f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"
    return long.replace(" ", NBSP)
