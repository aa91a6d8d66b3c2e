"""Results that show themselves in notebooks. How they look is decided above, so that results know no page."""

from collections.abc import Callable
from typing import ClassVar


class Shown:
    """A result that a notebook shows as a figure and a table."""

    html: ClassVar[Callable[["Shown"], str]]
    """The HTML of a result. The package sets it to ``reporting.notebook.html``."""

    def _repr_html_(self) -> str:
        return Shown.html(self)
