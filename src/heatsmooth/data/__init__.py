"""Images as float32 in [0, 1], with labels or without."""

from heatsmooth.data.hub import ImageStream, open_stream
from heatsmooth.data.images import ImageSet, as_unit_interval, shifted_and_flipped
from heatsmooth.data.sources import load

__all__ = ["ImageSet", "ImageStream", "as_unit_interval", "load", "open_stream", "shifted_and_flipped"]
