"""Text from files on one line, and numbers as they are shown; None is shown as a dash."""

import json
import math
from collections.abc import Mapping
from typing import Any

from heatsmooth.statistics.radii import round_down
from heatsmooth.table import NBSP, NONE


def one_line(value: object, most: int = 300) -> str:
    r"""Any value as one line of printable text of at most ``most`` characters.

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
    """The distance of an attack; infinite where most attacks failed."""
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
    """A setting as the user gave it.

    >>> plain(0.25), plain(4.0), plain(10000.0)
    ('0.25', '4', '10000')
    """
    return NONE if value is None else f"{value:.10g}"


def duration(seconds: float | None) -> str:
    """A time in readable units.

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


def readable_json(value: Mapping[str, Any], most: int = 6000) -> str:
    """JSON with one entry per line, of at most ``most`` characters."""
    text = json.dumps(value, indent=1, ensure_ascii=False, default=str)
    return text if len(text) <= most else text[:most] + "…"
