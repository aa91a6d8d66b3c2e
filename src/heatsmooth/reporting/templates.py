"""The templates of the report and of notebooks: text from files is escaped, and a missing value is an error."""

import base64
import hashlib
from importlib.resources import files

import jinja2
from markupsafe import Markup

from heatsmooth.reporting.audits import how_many
from heatsmooth.reporting.chart import Chart
from heatsmooth.reporting.formats import count_text, duration, one_line, percent, plain, radius_text, readable_json
from heatsmooth.reporting.svg import drawings


def templates() -> jinja2.Environment:
    """The templates of this package, with the formats of its numbers."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("heatsmooth", "reporting"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    shown = (count_text, duration, one_line, percent, plain, radius_text, readable_json)
    environment.filters |= {function.__name__: function for function in shown}
    environment.globals |= {"how_many": how_many, "drawings": _drawings}
    return environment


def style(*names: str) -> Markup:
    """Style sheets of this package, one after another."""
    here = files("heatsmooth.reporting")
    return Markup("".join(here.joinpath(name).read_text(encoding="utf-8") for name in names))  # noqa: S704


def script(*names: str) -> dict[str, str]:
    """Scripts of this package, one after another, and the hash by which a page allows them and no others."""
    here = files("heatsmooth.reporting")
    text = "".join(here.joinpath(name).read_text(encoding="utf-8") for name in names)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"script": Markup(text), "script_hash": digest}  # noqa: S704 - files of this package


def _drawings(chart: Chart) -> Markup:
    return Markup(drawings(chart))  # noqa: S704 - names are escaped where they are drawn
