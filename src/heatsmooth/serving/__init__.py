"""A web page that shows how the certified radius of an image grows with the samples, its JSON interface, its server."""

from heatsmooth.serving.server import Server
from heatsmooth.serving.studies import ServedNetwork

__all__ = ["ServedNetwork", "Server"]
