"""The built-in networks by name."""

from torch import nn

from heatsmooth.models.lipschitz import LIPSCHITZ
from heatsmooth.models.resnet import RESNETS
from heatsmooth.models.spec import NetworkSpec

ARCHITECTURES = RESNETS | LIPSCHITZ
"""Each takes ``classes`` and ``channels``; those of ``LIPSCHITZ`` also ``size``, that of their images."""


def built_in(spec: NetworkSpec) -> nn.Module:
    """The built-in network of a spec, with random weights from the global torch generator."""
    sized = {} if spec.size is None or spec.architecture not in LIPSCHITZ else {"size": spec.size}
    return ARCHITECTURES[spec.architecture](classes=spec.classes, channels=spec.channels, **sized)
