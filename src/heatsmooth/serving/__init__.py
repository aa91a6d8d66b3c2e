"""A page on which one drops an image and watches its certified radius grow, and the server behind it."""

from heatsmooth.serving.server import Server
from heatsmooth.serving.studies import Subject

__all__ = ["Server", "Subject"]
