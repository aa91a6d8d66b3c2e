"""Images as float32 in [0, 1], with or without labels."""

from heatsmooth.data.hub import ImageStream, open_stream
from heatsmooth.data.images import ImageSet, as_unit_interval, shifted_and_flipped
from heatsmooth.data.sources import load_images

__all__ = ["ImageSet", "ImageStream", "as_unit_interval", "load_images", "open_stream", "shifted_and_flipped"]
