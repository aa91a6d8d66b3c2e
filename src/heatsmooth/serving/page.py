"""The page, put together once: its style, script and facts inline, nothing from elsewhere."""

import base64
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from heatsmooth.serving.studies import Subject
from heatsmooth.statistics.radii import round_down
from heatsmooth.version import VERSION


@dataclass(frozen=True)
class Page:
    """The page, and the policy that lets a browser run only what is in it."""

    html: bytes
    policy: str


def page(subject: Subject, *, examples: int, most_bytes: int, furthest: float) -> Page:
    """The page about a network; ``examples``: how many images it offers."""
    own, report = files("heatsmooth.serving"), files("heatsmooth.report")
    style = (report / "page.css").read_text(encoding="utf-8") + (own / "page.css").read_text(encoding="utf-8")
    script = (own / "page.js").read_text(encoding="utf-8")
    settings = subject.settings
    facts: dict[str, Any] = {
        "sigma": settings.sigma,
        "alpha": settings.alpha,
        "draws": settings.n,
        "names": subject.names or [f"class {number}" for number in range(subject.classes)],
        "largestRadius": round_down(subject.largest_radius, 4),
        "mostBytes": most_bytes,
        "furthest": furthest,
    }
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    html = environment.from_string((own / "page.html").read_text(encoding="utf-8")).render(
        style=Markup(style),  # noqa: S704
        script=Markup(script),  # noqa: S704
        facts=facts,
        subject=subject,
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
