"""The OpenAPI 3.1 document of the server: its schemas are made from the types of ``events``."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from heatsmooth.serving import events
from heatsmooth.serving.limits import BATCH, BURST, MOST_BYTES, SECONDS
from heatsmooth.serving.studies import FURTHEST, ServedNetwork
from heatsmooth.version import VERSION

Document = dict[str, Any]
"""A part of an OpenAPI document."""
REFUSALS = {
    "400": "The image or an option was refused; the line says why.",
    "401": "The server has a token, and the request does not give it.",
    "403": "The request is for another host, or from the page of another site.",
    "413": f"The request has more than {MOST_BYTES // 1_000_000} MB.",
    "429": f"The client sent more than {BURST} images within {SECONDS} seconds; Retry-After says how long to wait.",
    "503": "Too many images in progress, or the server is stopping; Retry-After says how long to wait.",
}
STREAMED = (events.Seen, events.Copies, events.Progress, events.Done, events.Waiting, events.Failed)
ATTACKED = (events.Attack, events.AverageClass, events.Waiting, events.Failed)


@dataclass(frozen=True)
class Operation:
    """One address: what it is for, and what it answers."""

    path: str
    summary: str
    answer: type | str
    """The type of the JSON answer, or the media type of another one."""
    method: str = "post"
    streamed: tuple[type, ...] = ()
    """Types of the events that it can send as they occur."""
    lines: bool = False
    """Whether it sends events as lines of JSON unless asked for something else."""
    parameters: tuple[Document, ...] = field(default=())


EPS: Document = {
    "name": "eps",
    "in": "query",
    "required": True,
    "description": "Largest L2 distance of the attack, in [0, 1] pixels.",
    "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": FURTHEST},
}
NUMBER: Document = {"name": "number", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 0}}
OPERATIONS = (
    Operation("/api/predict", "Class, probability and the radii that need no samples, in one pass", events.Predictions),
    Operation(
        "/api/certify", "Certified radius; as events, the radius while it grows", events.Certificates, streamed=STREAMED
    ),
    Operation(
        "/api/attack",
        "Attack the network within a distance, and test the average there",
        events.Attacks,
        streamed=ATTACKED,
        parameters=(EPS,),
    ),
    Operation("/certify", "/api/certify as lines of JSON", events.Certificates, streamed=STREAMED, lines=True),
    Operation(
        "/attack",
        "/api/attack as lines of JSON",
        events.Attacks,
        streamed=ATTACKED,
        lines=True,
        parameters=(EPS,),
    ),
    Operation("/api/network", "What is served", events.Facts, method="get"),
    Operation("/healthz", "Whether the server takes images; needs no token", events.Health, method="get"),
    Operation("/metrics", "Numbers for Prometheus", "text/plain", method="get"),
    Operation("/", "The page for people", "text/html", method="get"),
    Operation("/api", "This document as a page", "text/html", method="get"),
    Operation("/openapi.json", "This document", "application/json", method="get"),
    Operation("/examples/{number}.png", "An example image", "image/png", method="get", parameters=(NUMBER,)),
)


def document(served: ServedNetwork) -> Document:
    """The document of a server."""
    types = [kind for operation in OPERATIONS for kind in (operation.answer, *operation.streamed)]
    used = list(dict.fromkeys(kind for kind in types if not isinstance(kind, str)))
    _, components = msgspec.json.schema_components(used, ref_template="#/components/schemas/{name}")
    paths = {operation.path: {operation.method: _operation(operation)} for operation in OPERATIONS}
    channels, height, width = served.shape
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "heatsmooth serve",
            "version": VERSION,
            "description": f"A network of {served.classes} classes for images of {channels}×{height}×{width} pixels. "
            "Images of other sizes are resized and cropped. Radii are L2, with pixels from 0 to 1.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(operation: Operation) -> Document:
    described: Document = {"summary": operation.summary, "responses": {"200": _answer(operation)}}
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    refused = REFUSALS if operation.method == "post" else {"403": REFUSALS["403"]}
    described["responses"] |= {
        status: {"description": text, "content": {"text/plain": {"schema": {"type": "string"}}}}
        for status, text in refused.items()
    }
    if operation.method == "post":
        file = {"type": "string", "format": "binary"}
        images = {"type": "array", "items": file, "minItems": 1, "maxItems": BATCH}
        form = {"type": "object", "properties": {"images": images}, "required": ["images"]}
        described["requestBody"] = {
            "required": True,
            "description": f"One image file as the whole body, or a form of at most {BATCH} files.",
            "content": {"multipart/form-data": {"schema": form}, "image/*": {"schema": file}},
        }
    return described


def _answer(operation: Operation) -> Document:
    if isinstance(operation.answer, str):
        return {"description": operation.summary, "content": {operation.answer: {}}}
    whole = {"application/json": {"schema": _ref(operation.answer)}}
    event = {"oneOf": [_ref(kind) for kind in operation.streamed]}
    lines = {"application/x-ndjson": {"schema": event}}
    sent = {"text/event-stream": {"schema": event}}
    if not operation.streamed:
        return {"description": operation.summary, "content": whole}
    return {
        "description": f"{operation.summary}. The Accept header selects the form.",
        "content": lines | sent if operation.lines else whole | sent | lines,
    }


def _ref(kind: type | str) -> Document:
    assert isinstance(kind, type)
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
