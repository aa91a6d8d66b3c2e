"""Who is answered: only requests for this server, from its own page or from no page, with the token if there is one."""

import base64
import binascii
import hmac

from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heatsmooth.serving.limits import is_own_name

SAFE = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every response that does not set its own."""


def refusal(status: int, line: str, headers: dict[str, str] | None = None) -> PlainTextResponse:
    """A refusal: one line of text."""
    return PlainTextResponse(f"{line}\n", status, headers)


class Guard:
    """ASGI middleware that refuses requests for other host names or from other sites, and adds the ``SAFE`` headers.

    Starlette's ``TrustedHostMiddleware`` compares with a list of names. This server must also accept every IP address
    if it is open to other machines, and none but its own if it is not.
    """

    def __init__(self, app: ASGIApp, host: str, url: str) -> None:
        self._app, self._host, self._url = app, host, url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE.items():
                    headers.setdefault(name, value)
            await send(message)

        line = self._objection(scope["method"], Headers(scope=scope))
        await (self._app if line is None else refusal(403, line))(scope, receive, send_safely)

    def _objection(self, method: str, headers: Headers) -> str | None:
        own = headers.get("host", "").lower()
        if not is_own_name(own, self._host) or len(headers.getlist("host")) > 1:
            return f"expected {self._url}, got another host; open that address"
        foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if method == "POST" and (foreign or headers.get("origin") not in (None, f"http://{own}", f"https://{own}")):
            return "expected a request from the page of this server, got one from another site; open its page"
        return None


class Token(AuthenticationBackend):
    """Requires the token, as ``Authorization: Bearer TOKEN`` or as the password of HTTP Basic, except at some paths."""

    def __init__(self, token: str, open_to_all: tuple[str, ...]) -> None:
        self._token, self._open = token.encode(), open_to_all

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        """The visitor, if they know the token; ``AuthenticationError`` otherwise."""
        if conn.scope["path"] in self._open:
            return None
        if not hmac.compare_digest(_password(conn.headers.get("authorization", "")), self._token):
            raise AuthenticationError("expected the token of this server, got none or another; ask who started it")
        return AuthCredentials(["token"]), SimpleUser("visitor")


def _password(header: str) -> bytes:
    """What an ``Authorization`` header gives as the token; nothing if it gives none.

    >>> _password("Bearer secret"), _password("Basic OnNlY3JldA=="), _password("Basic ?"), _password("")
    (b'secret', b'secret', b'', b'')
    """
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode()
    try:
        return base64.b64decode(value if scheme.lower() == "basic" else "", validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def unauthorised(_: HTTPConnection, error: AuthenticationError) -> PlainTextResponse:
    """The refusal without the token; a browser then asks for it."""
    return refusal(401, str(error), {"WWW-Authenticate": 'Basic realm="heatsmooth: the token is the password"'})
