"""From a request's number to the bytes that ask for it, made before the clock needs them.

A redirect (307, 308) keeps method and body; what the user gave as headers, credentials among it, stays behind when it
leads to another host.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from http.client import InvalidURL
from urllib.parse import urljoin, urlsplit

from servesim.client.connection import Exchange
from servesim.client.http1 import request_bytes
from servesim.client.target import Target, ascii_host

REDIRECTS = (307, 308)  # keep method and body (RFC 9110 sections 15.4.8 and 15.4.9)
MAX_HOPS = 3
AHEAD_REQUESTS, AHEAD_BYTES = 4096, 64 << 20

Payload = Callable[[int], bytes]
"""The JSON body of request `index`."""


class RequestMaker:
    """Makes exchanges, ahead of their time where there is time."""

    def __init__(
        self, target: Target, route: str, payload: Payload, size: int, waits: Callable[[int], bool] | None = None
    ) -> None:
        self._target = target
        self._route = route
        self._payload = payload
        self._size = size
        self._waits = waits  # says of which requests the payload cannot be known ahead
        self._headers = {**target.request_headers(), "Content-Type": "application/json"}
        self._ahead: dict[int, Exchange] = {}
        self._ahead_bytes = 0
        self._next = 0  # the first that was not made ahead

    def make(self, index: int) -> Exchange:
        """Return the exchange for request `index`."""
        exchange = self._ahead.pop(index, None)
        if exchange is None:
            self._next = max(self._next, index + 1)
            return self._make(index)
        self._ahead_bytes -= len(exchange.request)
        return exchange

    def make_ahead(self, until: float) -> bool:
        """Make some of the next requests, until the given monotonic time; return whether there is more to make."""
        while self._next < self._size and len(self._ahead) < AHEAD_REQUESTS and self._ahead_bytes < AHEAD_BYTES:
            index = self._next
            self._next += 1
            if self._waits is not None and self._waits(index):
                continue
            exchange = self._ahead[index] = self._make(index)
            self._ahead_bytes += len(exchange.request)
            if time.monotonic() >= until:
                return True
        return False

    def _make(self, index: int) -> Exchange:
        body, target = self._payload(index), self._target
        request = request_bytes("POST", target.request_target(self._route), target.netloc, self._headers, body)
        return Exchange(index, target, body, request)

    def redirect(self, exchange: Exchange) -> bool:
        """Make an exchange that was answered with a redirect ready to be sent again; False: it is an answer."""
        location = exchange.headers.get("location")
        if exchange.failure is not None or exchange.status not in REDIRECTS or not location:
            return False
        if exchange.hops == MAX_HOPS:
            exchange.failure, exchange.message = "redirect", f"more than {MAX_HOPS} redirects, the last to {location}"
            return False
        here = exchange.target
        try:
            target, path = _redirected(here, self._route if here == self._target else None, location)
            headers = {**target.request_headers(), "Content-Type": "application/json"}
            request = request_bytes("POST", path, target.netloc, headers, exchange.body)
        except (ValueError, InvalidURL):
            exchange.failure, exchange.message = "redirect", f"redirected to {location[:200]!r}, which is no address"
            return False
        exchange.resend(target, request)
        return True


def _redirected(here: Target, route: str | None, location: str) -> tuple[Target, str]:
    """Return the target that `location` means and the request target there. Raises ValueError if it is no address."""
    base = f"{here.scheme}://{here.netloc}{here.path(route) if route is not None else '/'}"
    parts = urlsplit(urljoin(base, location))
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(location)
    there = replace(here, scheme=parts.scheme, host=ascii_host(parts.hostname), port=port)
    if (there.scheme, there.host, there.port) != (here.scheme, here.host, here.port):
        upgraded = (here.scheme, here.port, there.scheme, there.port) == ("http", 80, "https", 443)
        if here.host != there.host or not upgraded:
            there = replace(there, headers=())
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    proxied = there.proxy is not None and not there.tls
    return there, f"{there.scheme}://{there.netloc}{path}" if proxied else path
