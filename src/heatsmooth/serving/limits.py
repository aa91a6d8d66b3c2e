"""Which requests are allowed, and how often."""

import ipaddress
import socket
import time
from urllib.parse import urlsplit

from limits import RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

MOST_BYTES = 10_000_000
"""Largest upload."""
BATCH = 32
"""Most images of one request."""
STUDIES = 256
"""Most studies at a time."""
UPLOADED, UPLOADED_BY_ONE = 64 * MOST_BYTES, 8 * MOST_BYTES
"""Most bytes of uploads in memory at a time, of all clients and of one."""
BURST, SECONDS = 100, 50
"""Most images of one client in any so many seconds."""


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


class Rate:
    """At most ``images`` images of a client in any ``seconds`` seconds."""

    MOST = 10_000
    """Most clients remembered; the older half is forgotten first."""

    def __init__(self, images: int, seconds: int) -> None:
        self._limit, self._clients = RateLimitItemPerSecond(images, seconds), MemoryStorage()
        self._window = MovingWindowRateLimiter(self._clients)

    def wait(self, client: str, images: int = 1) -> float:
        """0 if so many further images are allowed, which counts them; otherwise the seconds until one is."""
        known = self._clients.events
        if len(known) >= self.MOST:
            for key in list(known)[: self.MOST // 2]:
                with self._clients.locks[key]:  # the storage removes old entries in a thread of its own
                    self._clients.clear(key)
        if self._window.hit(self._limit, client, cost=images):
            return 0.0
        return max(0.01, self._window.get_window_stats(self._limit, client).reset_time - time.time())
