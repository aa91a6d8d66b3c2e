"""What all settings share: checks of their fields, and the documentation of each field.

Settings are small frozen dataclasses. The library takes them, the command line is derived from them, and their
attribute docstrings are the help. An error names the field in backquotes; the command line shows its flag instead.
"""

import ast
import inspect
import textwrap
from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin, get_type_hints

from heatsmooth.errors import require

Noise = Literal["gaussian", "laplace", "uniform"]
"""The distribution of the noise, independent for each value of an image; σ is its standard deviation."""
Norm = Literal["l2", "l1", "linf"]
"""How the length of a perturbation is measured."""
NORMS: dict[Noise, tuple[Norm, ...]] = {
    "gaussian": ("l2", "l1", "linf"),
    "laplace": ("l1",),
    "uniform": ("l1", "linf"),
}
"""By noise, the norms of its radii; the first one is its own."""
NORM_NAMES: dict[Norm, str] = {"l2": "L2", "l1": "L1", "linf": "L∞"}


def norm_of(noise: Noise, norm: Norm | None) -> Norm:
    """The norm that is asked for, or that of the noise; an error where the noise has no radius in that norm."""
    known = NORMS[noise]
    require(
        norm in (None, *known),
        f"`norm`: expected {alternatives(known)} with {noise} noise, got {norm}; choose another norm or noise",
    )
    return norm or known[0]


def check_positive(settings: object, *names: str) -> None:
    """Refuse fields that are not above 0; None is allowed."""
    for name, value in _values(settings, names):
        require(value > 0, f"`{name}`: expected a positive number, got {value}")


def check_at_least(settings: object, least: float, *names: str) -> None:
    """Refuse fields below ``least`` and numbers that are not finite; None is allowed."""
    expected = f"at least {least:g}" if least > 0 else "0 or more"
    for name, value in _values(settings, names):
        require(least <= value < float("inf"), f"`{name}`: expected {expected}, got {value}")


def check_choices(settings: Any) -> None:
    """Refuse a field declared as ``Literal`` that holds none of its values."""
    for name, kind in get_type_hints(type(settings)).items():
        value = getattr(settings, name)
        if get_origin(kind) is Literal:
            choices = get_args(kind)
            require(value in choices, f"`{name}`: expected {alternatives(choices)}, got {value!r}")


def alternatives(names: tuple[str, ...]) -> str:
    """The names in one phrase.

    >>> alternatives(("pgd", "ddn")), alternatives(("a", "b", "c"))
    ('pgd or ddn', 'a, b or c')
    """
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def _values(settings: object, names: tuple[str, ...]) -> list[tuple[str, Any]]:
    values = [(name, getattr(settings, name)) for name in names]
    return [(name, value) for name, value in values if value is not None]


@cache
def documentation(kind: Any) -> dict[str, str]:
    """By field of a dataclass, its attribute docstring as one line."""
    texts = {}
    for base in reversed(kind.__mro__[:-1]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, text in pairwise(definition.body):
            match statement, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    texts[name] = " ".join(words.split())
    return {item.name: texts.get(item.name, "") for item in fields(kind)}
