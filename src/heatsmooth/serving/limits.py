"""Which requests are allowed, and how often."""

import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("::1")
    (True, True, False, True)
    """
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_address(host: str) -> bool:
    """Whether ``host`` is an IP address, which no name server can redirect."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def name_in(authority: str) -> str | None:
    """The host in ``host:port``, in lower case; None if the text is not of that form.

    >>> name_in("LocalHost:8000"), name_in("[::1]:8000"), name_in("a b")
    ('localhost', '::1', None)
    """
    try:
        parts = urlsplit(f"//{authority}")
        _ = parts.port
    except ValueError:
        return None
    return parts.hostname if parts.netloc == authority and not set(authority) & set(" @\\") else None


def is_own_name(authority: str | None, bound: str) -> bool:
    """Whether a ``Host`` header names the server that is bound to ``bound``.

    This refuses DNS rebinding: a browser that a foreign name server sent here still states the foreign name. So a name
    must be ``localhost``, ``bound`` or that of this machine. An IP address must be a loopback address, unless the
    server is open to other machines.
    """
    name = name_in(authority or "")
    if name is None:
        return False
    if is_address(name):
        return is_loopback(name) or not is_loopback(bound)
    return name in {"localhost", bound.lower()} or (not is_loopback(bound) and name == socket.gethostname().lower())


class TokenBuckets:
    """At most ``burst`` requests of a client at once, and ``rate`` per second in the long run."""

    MOST = 10_000
    """Most clients remembered; those with a full bucket are forgotten first."""

    def __init__(self, *, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._known: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def wait(self, client: str) -> float:
        """0 if the request is allowed, which takes a token; otherwise the seconds until it is."""
        with self._lock:
            now = self._clock()
            if len(self._known) >= self.MOST:
                self._forget(now)
            tokens, before = self._known.get(client, (float(self._burst), now))
            tokens = min(self._burst, tokens + (now - before) * self._rate)
            self._known[client] = (tokens - 1 if tokens >= 1 else tokens, now)
            return 0.0 if tokens >= 1 else (1 - tokens) / self._rate

    def _forget(self, now: float) -> None:
        full = self._burst / self._rate
        recent = {client: state for client, state in self._known.items() if now - state[1] < full}
        self._known = dict(list(recent.items())[-self.MOST // 2 :])
