"""Images as float32 in [0, 1], with labels or without."""

from heatsmooth.data.images import ImageSet, as_unit_interval, shifted_and_flipped
from heatsmooth.data.sources import load

__all__ = ["ImageSet", "as_unit_interval", "load", "shifted_and_flipped"]
