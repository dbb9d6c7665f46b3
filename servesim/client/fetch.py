"""One small request, answered whole: for what the load generator asks beside the load (models, health, metrics).

Blocking, by `http.client`, on a socket of its own: never used on the loop that stamps tokens.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from dataclasses import dataclass, field
from typing import Any

from servesim.client.target import Target
from servesim.errors import RunError

MAX_BODY_BYTES = 32 << 20


class FetchError(RunError):
    """No whole answer came. `kind`: refused, unresolvable, timeout, tls, or broken (anything else)."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(slots=True, frozen=True)
class Answer:
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

    def get(self, route: str) -> Answer:
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

    def _get(self, route: str) -> Answer:
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
        return Answer(response.status, body, response.headers.get("Server", ""))

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
