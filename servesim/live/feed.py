"""The feed of the live page: server-sent events to every viewer, with the recent history for those who come late.

A viewer receives `hello` (what is shown, and the last minutes of it), then `sample` twice a second, `mark` when
something was changed, `state` when a control moved, and `end` when there is no more to come. The number of viewers is
bounded, and one who does not read is let go.
"""

from __future__ import annotations

import json
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from servesim.live.meter import LiveFigures
from servesim.serve.app import Response
from servesim.serve.connection import Connection

SAMPLE_S = 0.5
HISTORY = 240  # samples: two minutes
MARKS = 40
MAX_VIEWERS = 32
RETRY_MS = 1000  # after which a viewer who lost us asks again


class Sockets(Protocol):
    """Whoever owns the connections: the loop."""

    def watch(self, connection: Connection) -> None: ...
    def close(self, connection: Connection) -> None: ...
    def over(self, connection: Connection) -> None: ...


def event(name: str, data: Mapping[str, Any]) -> bytes:
    """Return one event of a stream, as the HTML standard (9.2, server-sent events) has it."""
    return f"event: {name}\ndata: {json.dumps(data, allow_nan=False, separators=(',', ':'))}\n\n".encode()


class Feed:
    """Sends viewers what happens. `describe` returns what their `hello` holds beside the history."""

    def __init__(self, describe: Callable[[], dict[str, Any]], limit: int = MAX_VIEWERS) -> None:
        self.sockets: Sockets | None = None
        self.limit = limit  # of viewers
        self._describe = describe
        self._id = secrets.token_hex(8)  # a viewer who comes again learns whether it is still the same server
        self._viewers: dict[Connection, None] = {}
        self._samples: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self._marks: deque[dict[str, Any]] = deque(maxlen=MARKS)

    def attend(self, connection: Connection) -> Response | None:
        """Begin a stream on the connection, or return why not."""
        if len(self._viewers) >= self.limit:
            return Response(503, b"too many viewers\n", "text/plain; charset=utf-8", (("retry-after", "5"),))
        fields = [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-store")]
        connection.begin(200, [*fields, ("x-content-type-options", "nosniff")])
        connection.on_gone = lambda: self._forget(connection)
        self._viewers[connection] = None
        hello = {"id": self._id, **self._describe(), "history": list(self._samples), "marks": list(self._marks)}
        self._write(connection, f"retry: {RETRY_MS}\n".encode() + event("hello", hello))
        return None

    def sample(self, at_s: float, sources: Mapping[str, LiveFigures]) -> None:
        """Send the figures of every source at Unix time `at_s`."""
        sample = {"at_s": round(at_s, 3)} | {name: figures.as_dict() for name, figures in sources.items()}
        self._samples.append(sample)
        self.send("sample", sample)

    def mark(self, at_s: float, text: str) -> None:
        """Send a moment that every chart shows."""
        mark = {"at_s": round(at_s, 3), "text": text}
        self._marks.append(mark)
        self.send("mark", mark)

    def send(self, name: str, data: Mapping[str, Any]) -> None:
        """Send an event to everybody."""
        if self._viewers:
            written = event(name, data)
            for connection in list(self._viewers):
                self._write(connection, written)

    def end(self) -> None:
        """End every stream."""
        for connection in list(self._viewers):
            self._forget(connection)
            connection.end()
            assert self.sockets is not None
            self.sockets.over(connection)

    def _forget(self, connection: Connection) -> None:
        self._viewers.pop(connection, None)

    def _write(self, connection: Connection, data: bytes) -> None:
        assert self.sockets is not None
        if not connection.write((data,)):
            self.sockets.close(connection)
        elif connection.wants_write:
            self.sockets.watch(connection)
