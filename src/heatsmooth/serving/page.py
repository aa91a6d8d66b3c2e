"""The pages, rendered once, with style, script and facts inline; they load nothing from other servers."""

import base64
import hashlib
from dataclasses import dataclass
from importlib.resources import files

import jinja2
from markupsafe import Markup

from heatsmooth.serving.limits import BATCH, MOST_BYTES
from heatsmooth.serving.openapi import document
from heatsmooth.serving.studies import FURTHEST, ServedNetwork
from heatsmooth.statistics.radii import round_down
from heatsmooth.version import VERSION

OWN = files("heatsmooth.serving")


@dataclass(frozen=True)
class Page:
    """A page, and the content security policy that allows only its own script and style."""

    html: bytes
    policy: str


def page(served: ServedNetwork, *, examples: int) -> Page:
    """The page about a network; ``examples``: number of example images."""
    settings = served.settings
    facts = {
        "sigma": served.sigma,
        "alpha": None if settings is None else settings.alpha,
        "samples": None if settings is None else settings.n,
        "names": served.names,
        "largestRadius": round_down(served.largest_radius, 4),
        "mostBytes": MOST_BYTES,
        "mostImages": BATCH,
        "furthest": FURTHEST,
    }
    script = (OWN / "page.js").read_text(encoding="utf-8")
    return _rendered("page.html", script, facts=facts, served=served, examples=range(examples))


def api_page(served: ServedNetwork) -> Page:
    """The page about the JSON interface, from its OpenAPI document."""
    return _rendered("api.html", "", api=document(served))


def _rendered(template: str, script: str, **values: object) -> Page:
    report = files("heatsmooth.reporting")
    sheets = (report / "parts.css", report / "page.css", OWN / "page.css")
    style = "".join(sheet.read_text(encoding="utf-8") for sheet in sheets)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    html = environment.from_string((OWN / template).read_text(encoding="utf-8")).render(
        style=Markup(style),  # noqa: S704
        script=Markup(script),  # noqa: S704
        version=VERSION,
        **values,
    )
    allowed = f"'{_hash(script)}'" if script else "'none'"
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src '{_hash(style)}'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html.encode(), policy)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
