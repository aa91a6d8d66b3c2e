"""Make a pretrained image classifier robust in one epoch without labels; say how large a perturbation it withstands."""

import importlib
from typing import TYPE_CHECKING, Any

from heatsmooth.errors import InputError
from heatsmooth.version import VERSION as __version__

if TYPE_CHECKING:
    from heatsmooth.attacks import Adversarial, GaussianAverage, ddn, pgd
    from heatsmooth.training import smooth

_HOMES = {
    "Adversarial": "attacks",
    "GaussianAverage": "attacks",
    "ddn": "attacks",
    "pgd": "attacks",
    "smooth": "training",
}

__all__ = ["Adversarial", "GaussianAverage", "InputError", "__version__", "ddn", "pgd", "smooth"]


def __getattr__(name: str) -> Any:
    """Import what needs torch only when it is asked for: help texts and reports do without."""
    if name not in _HOMES:
        raise AttributeError(f"module 'heatsmooth' has no attribute {name!r}")
    return getattr(importlib.import_module(f"heatsmooth.{_HOMES[name]}"), name)
