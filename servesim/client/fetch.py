"""One small request with its whole response: what the load generator asks beside the load (models, health, metrics).

Blocking, by `http.client`, on a socket of its own: never used on the loop that stamps tokens. `check_reachable` and
`wait_ready` (`--wait-ready`) find out with it whether the server is there and has loaded its model.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from servesim.client.target import Target
from servesim.errors import RunError
from servesim.units import format_duration
from servesim.wire.faults import error_from_body

MAX_BODY_BYTES = 32 << 20


class FetchError(RunError):
    """No whole answer came. `kind`: refused, unresolvable, timeout, tls, or broken (anything else)."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(slots=True, frozen=True)
class FetchedAnswer:
    """A status, a body and what the server calls itself."""

    status: int
    body: bytes
    server: str = ""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """Return the body's JSON value, None where it is none."""
        try:
            return json.loads(self.body.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            return None


@dataclass(slots=True)
class Fetcher:
    """Sends GETs over one connection that is kept open between them, opened again when the server has closed it."""

    target: Target
    timeout_s: float = 5.0
    _connection: http.client.HTTPConnection | None = field(default=None, repr=False)

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, route: str) -> FetchedAnswer:
        """Return the answer to `GET route`; raise FetchError when none came."""
        reused = self._connection is not None
        try:
            return self._get(route)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
            self.close()
            if not reused:
                raise self._failed(error) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._failed(error) from error
        try:  # the server had closed the idle connection
            return self._get(route)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the connection; the next `get` opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _get(self, route: str) -> FetchedAnswer:
        if self._connection is None:
            self._connection = self.target.connection(self.timeout_s)
        connection = self._connection
        headers = {**self.target.request_headers(), "Host": self.target.netloc}
        connection.request("GET", self.target.request_target(route), headers=headers)
        response = connection.getresponse()
        body = response.read(MAX_BODY_BYTES + 1)
        if len(body) > MAX_BODY_BYTES:
            raise http.client.HTTPException(f"{route} answers more than {MAX_BODY_BYTES} bytes")
        if response.length:  # `read(amount)` takes a body that is cut for a whole one
            raise http.client.IncompleteRead(body, response.length)
        return FetchedAnswer(response.status, body, response.headers.get("Server", ""))

    def _failed(self, error: Exception) -> FetchError:
        where = self.target.url
        if isinstance(error, socket.gaierror):
            return FetchError("unresolvable", f"cannot resolve {self.target.hop[0]!r}: {_reason(error)}")
        if isinstance(error, ConnectionRefusedError):
            return FetchError("refused", self.target.refused)
        if isinstance(error, TimeoutError):
            return FetchError("timeout", f"no answer from {where} within {self.timeout_s:g} s")
        if isinstance(error, ssl.SSLError):
            return FetchError("tls", f"no TLS with {where}: {_reason(error)}; see --ca-file and --insecure")
        return FetchError("broken", f"no answer from {where}: {_reason(error)}")


def _reason(error: Exception) -> str:
    text = getattr(error, "verify_message", "") or getattr(error, "strerror", None) or str(error)
    return str(text).lower() or type(error).__name__


HEALTH, MODELS = "/health", "/v1/models"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
ABSENT = (404, 405, 501)  # a server without this route
LOADING = (425, 429, 502, 503, 504)  # the server, or the proxy in front of it, says "not yet"


def check_reachable(target: Target, *, timeout_s: float = 10.0) -> None:
    """Open and close one connection. Raises RunError where it is refused or its name does not resolve.

    Anything else (a timeout, a TLS failure) is left to the requests, which will each say so.
    """
    connection = target.connection(timeout_s)
    try:
        connection.connect()
    except (OSError, ValueError) as error:
        failure = Fetcher(target, timeout_s)._failed(error)
        if failure.kind in ("refused", "unresolvable"):
            raise failure from error
    finally:
        connection.close()


def wait_ready(
    target: Target,
    limit_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    waiting: Callable[[str], None] = lambda why: None,
) -> float:
    """Poll `/health` and then `/v1/models` until both answer, or are not offered; return the seconds it took.

    A refused connection and a 503 are "not yet" (llama.cpp answers 503 on every path while it loads). `waiting` is
    called with the reason after every try. Raises RunError after `limit_s`, or at once when the server is there but
    refuses the key.
    """
    start = clock()
    pause = FIRST_PAUSE_S
    with Fetcher(target) as fetcher:
        while True:
            why = _not_ready(fetcher)
            waited = clock() - start
            if why is None:
                return waited
            if waited >= limit_s:
                raise RunError(f"{target.url} is not ready after {format_duration(limit_s)}: {why}")
            waiting(why)
            sleep(min(pause, limit_s - waited))
            pause = min(pause * 1.5, LONGEST_PAUSE_S)


def _not_ready(fetcher: Fetcher) -> str | None:
    """Return why the server is not ready, None when it is."""
    for route in (HEALTH, MODELS):
        try:
            answer = fetcher.get(route)
        except FetchError as error:
            return str(error)
        if answer.status in LOADING:
            return _says(route, answer)
        if answer.status in (401, 403):
            if route == MODELS:
                raise RunError(f"{_says(route, answer)}; give the key with --api-key-env")
        elif answer.status >= 500 and answer.status not in ABSENT:
            return _says(route, answer)
    return None


def _says(route: str, answer: FetchedAnswer) -> str:
    return f"{route} answers {answer.status}: {error_from_body(answer.body).message}"
