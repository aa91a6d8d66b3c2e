"""The page, rendered once, with style, script and facts inline; it loads nothing from other servers."""

import base64
import hashlib
from dataclasses import dataclass
from importlib.resources import files

import jinja2
from markupsafe import Markup

from heatsmooth.serving.studies import ServedNetwork
from heatsmooth.statistics.radii import round_down
from heatsmooth.version import VERSION


@dataclass(frozen=True)
class Page:
    """The page, and the content security policy that allows only its own script and style."""

    html: bytes
    policy: str


def page(served: ServedNetwork, *, examples: int, most_bytes: int, furthest: float) -> Page:
    """The page about a network.

    ``examples``: number of example images.
    ``most_bytes``: largest upload.
    ``furthest``: largest L2 distance of an attack.
    """
    own, report = files("heatsmooth.serving"), files("heatsmooth.reporting")
    style = (report / "page.css").read_text(encoding="utf-8") + (own / "page.css").read_text(encoding="utf-8")
    script = (own / "page.js").read_text(encoding="utf-8")
    settings = served.settings
    facts = {
        "sigma": settings.sigma,
        "alpha": settings.alpha,
        "samples": settings.n,
        "names": served.class_names or [f"class {number}" for number in range(served.classes)],
        "largestRadius": round_down(served.largest_radius, 4),
        "mostBytes": most_bytes,
        "furthest": furthest,
    }
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    html = environment.from_string((own / "page.html").read_text(encoding="utf-8")).render(
        style=Markup(style),  # noqa: S704
        script=Markup(script),  # noqa: S704
        facts=facts,
        served=served,
        examples=range(examples),
        version=VERSION,
    )
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html.encode(), policy)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
