"""Make a pretrained image classifier robust in one epoch without labels; say how large a perturbation it withstands."""

import importlib
from typing import TYPE_CHECKING, Any

from heatsmooth.errors import InputError
from heatsmooth.version import VERSION as __version__

if TYPE_CHECKING:
    from heatsmooth.attacks import Adversarial, GaussianAverage, ddn, pgd
    from heatsmooth.certification.certificates import certify
    from heatsmooth.export import export_onnx
    from heatsmooth.results.certificates import Certificates
    from heatsmooth.statistics.radii import l_bound
    from heatsmooth.training import smooth

_HOMES = {
    "Adversarial": "attacks",
    "Certificates": "results.certificates",
    "GaussianAverage": "attacks",
    "certify": "certification.certificates",
    "ddn": "attacks",
    "export_onnx": "export",
    "l_bound": "statistics.radii",
    "pgd": "attacks",
    "smooth": "training",
}

__all__ = [
    "Adversarial",
    "Certificates",
    "GaussianAverage",
    "InputError",
    "__version__",
    "certify",
    "ddn",
    "export_onnx",
    "l_bound",
    "pgd",
    "smooth",
]


def __getattr__(name: str) -> Any:
    """Import what needs torch only when it is asked for: help texts and reports do without."""
    if name not in _HOMES:
        raise AttributeError(f"module 'heatsmooth' has no attribute {name!r}")
    return getattr(importlib.import_module(f"heatsmooth.{_HOMES[name]}"), name)
