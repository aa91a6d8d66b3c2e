"""The templates of the report and of notebooks: text from files is escaped, and a missing value is an error."""

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


def _drawings(chart: Chart) -> Markup:
    return Markup(drawings(chart))  # noqa: S704 - names are escaped where they are drawn
