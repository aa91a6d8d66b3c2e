"""The addresses of the server, and what each answers. ``openapi`` describes the same addresses."""

import math
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from torch import Tensor

from heatsmooth.errors import InputError
from heatsmooth.serving.audience import Audience, Stream, as_line, as_sent_event
from heatsmooth.serving.events import (
    Attack,
    Attacked,
    Attacks,
    AverageCertificate,
    AverageClass,
    Certificate,
    Certificates,
    Event,
    Facts,
    Health,
    NetworkCertificate,
    Predicted,
    Predictions,
    Progress,
    Seen,
)
from heatsmooth.serving.guard import Guard, Token, refusal, unauthorised
from heatsmooth.serving.metrics import Counting
from heatsmooth.serving.openapi import document
from heatsmooth.serving.page import Page
from heatsmooth.serving.site import Site
from heatsmooth.serving.studies import FURTHEST, attacking, certifying, predicting
from heatsmooth.serving.uploads import read_uploads
from heatsmooth.serving.worker import FAILURE, BusyError, Study, report_failure
from heatsmooth.version import VERSION

LINES, SENT_EVENTS = "application/x-ndjson", "text/event-stream"
OPEN = ("/healthz",)
"""Answered without the token."""
Endpoint = Callable[[Request], Awaitable[Response]]
StudyOf = Callable[[Tensor, int], Study]
"""From an image and its number."""


def application(site: Site, *, host: str, url: str, token: str | None) -> Starlette:
    """The ASGI application; ``host``: the address that it is bound to, ``url``: that of the page."""
    routes = [Route(path, endpoint, methods=methods) for path, methods, endpoint in _addresses(site)]
    known = frozenset(route.path for route in routes if "{" not in route.path)
    middleware = [Middleware(Counting, metrics=site.metrics, known=known), Middleware(Guard, host=host, url=url)]
    if token is not None:
        middleware.append(Middleware(AuthenticationMiddleware, backend=Token(token, OPEN), on_error=unauthorised))
    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={
            HTTPException: _refused,
            InputError: lambda _, error: refusal(400, str(error)),
            BusyError: lambda *_: refusal(503, _BUSY, {"Retry-After": "5"}),
            ClientDisconnect: lambda *_: Response(status_code=400),
            Exception: _failed,
        },
    )
    app.router.redirect_slashes = False
    return app


def _addresses(site: Site) -> list[tuple[str, list[str], Endpoint]]:
    certify, attack = _Certify(site), _Attack(site)
    described = json_response(document(site.served))
    return [
        ("/", ["GET"], _html(lambda: site.page)),
        ("/api", ["GET"], _html(lambda: site.api_page)),
        ("/openapi.json", ["GET"], _always(described)),
        ("/examples/{number}.png", ["GET"], partial(_example, site)),
        ("/healthz", ["GET"], partial(_health, site)),
        ("/metrics", ["GET"], partial(_metrics, site)),
        ("/api/network", ["GET"], _always(json_response(_facts(site)))),
        ("/api/predict", ["POST"], partial(_predict, site)),
        ("/api/certify", ["POST"], certify.answer),
        ("/api/attack", ["POST"], attack.answer),
        ("/certify", ["POST"], partial(certify.answer, usual=LINES)),
        ("/attack", ["POST"], partial(attack.answer, usual=LINES)),
    ]


_BUSY = "too many images in progress; try again in a few seconds"


def json_response(value: object) -> Response:
    """A typed value, or a document, as JSON."""
    return Response(msgspec.json.encode(value) + b"\n", media_type="application/json")


def _html(page: Callable[[], Page]) -> Endpoint:
    async def answer(_: Request) -> Response:
        shown = page()
        return Response(shown.html, media_type="text/html", headers={"Content-Security-Policy": shown.policy})

    return answer


def _always(response: Response) -> Endpoint:
    async def answer(_: Request) -> Response:
        return response

    return answer


async def _example(site: Site, request: Request) -> Response:
    content = site.examples.get(request.path_params["number"])
    if content is None:
        raise HTTPException(404)
    return Response(content, media_type="image/png")


async def _health(site: Site, _: Request) -> Response:
    working = site.worker.is_working
    answer = json_response(Health(status="ok" if working else "stopping"))
    answer.status_code = 200 if working else 503
    return answer


async def _metrics(site: Site, _: Request) -> Response:
    return Response(site.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _facts(site: Site) -> Facts:
    served, settings = site.served, site.served.settings
    return Facts(
        classes=served.names,
        shape=served.shape,
        lipschitz=served.proof is not None,
        sigma=served.sigma,
        alpha=None if settings is None else settings.alpha,
        samples=None if settings is None else settings.n,
        version=VERSION,
    )


async def _predict(site: Site, request: Request) -> Response:
    uploads = await read_uploads(request, site)
    images, names = [upload.image for upload in uploads], [upload.name for upload in uploads]
    audience = Audience(site.worker, [lambda _: predicting(site.served, images, names)])
    ((event,),) = await audience.all_events(request)
    assert isinstance(event, Predicted)
    return json_response(Predictions(predictions=event.predictions))


class _Studied:
    """An endpoint with one study per image: whole as JSON, or event by event, as the request accepts."""

    def __init__(self, site: Site) -> None:
        self.site = site

    async def answer(self, request: Request, usual: str = "application/json") -> Response:
        study = self.study(request)
        uploads = await read_uploads(request, self.site)
        audience = Audience(self.site.worker, [partial(study, upload.image) for upload in uploads])
        accepted = request.headers.get("accept", "")
        kind = next((kind for kind in (SENT_EVENTS, LINES) if kind in accepted), usual)
        if kind == SENT_EVENTS:
            return Stream(audience, as_sent_event, SENT_EVENTS)
        if kind == LINES:
            return Stream(audience, as_line, LINES)
        told = await audience.all_events(request)
        return json_response(self.summary([(upload.name, some) for upload, some in zip(uploads, told, strict=True)]))

    def study(self, request: Request) -> StudyOf:
        raise NotImplementedError

    def summary(self, told: list[tuple[str, list[Event]]]) -> object:
        raise NotImplementedError


class _Certify(_Studied):
    def study(self, _: Request) -> StudyOf:
        return partial(certifying, self.site.served)

    def summary(self, told: list[tuple[str, list[Event]]]) -> Certificates:
        return Certificates(certificates=[_certificate(name, events) for name, events in told])


class _Attack(_Studied):
    def study(self, request: Request) -> StudyOf:
        return partial(attacking, self.site.served, eps=_distance(request.query_params.get("eps", "")))

    def summary(self, told: list[tuple[str, list[Event]]]) -> Attacks:
        return Attacks(attacks=[_attacked(name, events) for name, events in told])


def _certificate(name: str, events: list[Event]) -> Certificate:
    """The last word of the events of ``certifying``."""
    network = average = None
    for event in events:
        if isinstance(event, Seen) and event.deterministic is not None:
            claim = event.deterministic
            network = NetworkCertificate(
                predicted=event.top[0][0],
                abstain=claim.radius == 0,
                radius=claim.radius,
                subject=claim.subject,
                basis=claim.basis,
            )
        elif isinstance(event, Progress):
            facts = {field: getattr(event, field) for field in AverageCertificate.__struct_fields__}
            average = AverageCertificate(**facts)
    return Certificate(image=name, network=network, average=average)


def _attacked(name: str, events: list[Event]) -> Attacked:
    attack = next(event for event in events if isinstance(event, Attack))
    average = next((event for event in events if isinstance(event, AverageClass)), None)
    return Attacked(image=name, attack=attack, average=average)


def _distance(text: str) -> float:
    try:
        eps = float(text)
    except ValueError:
        eps = math.nan
    if not 0 < eps <= FURTHEST:
        raise InputError(f"eps: expected a distance above 0, at most {FURTHEST:g}, got {text[:20]!r}; use another")
    return eps


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    line, headers = error.detail, dict(error.headers or {})
    if error.status_code == 404 and request.method == "POST":
        line = "expected /certify, /attack, /api/predict, /api/certify or /api/attack, got another address; see /api"
    elif error.status_code == 404:
        line = "expected / or one of the examples, got another address; open / or /api"
    elif error.status_code == 405:
        line = f"expected the method {headers.get('Allow')}, got another; see /api"
    return refusal(error.status_code, line, headers)


async def _failed(_: Request, error: Exception) -> Response:
    report_failure(error)
    return refusal(500, FAILURE)
