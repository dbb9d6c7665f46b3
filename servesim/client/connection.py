"""One connection and the request that is on it: `OPENING -> IDLE -> WRITING -> HEAD -> BODY -> IDLE | CLOSED`.

It is told what the socket gave and when, and files events with their stamps; the loop owns the socket's readiness and
decides when to read. What an event means is not looked at here: JSON is read when there is time (`reading`).
"""

from __future__ import annotations

import socket
import ssl
from enum import IntEnum

from servesim.client.http1 import Heads
from servesim.client.target import Target
from servesim.wire.http_body import BodyDecoder, open_body
from servesim.wire.limits import ProtocolError
from servesim.wire.ndjson import EventDecoder, open_stream
from servesim.wire.sse import Event

MAX_ERROR_BODY_BYTES = 1 << 16
BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class State(IntEnum):
    """Where a connection is. OPENING is a connector thread's: the loop sees the connection from IDLE on."""

    IDLE = 0
    WRITING = 1
    HEAD = 2
    BODY = 3
    CLOSED = 4


class Exchange:
    """One request on its way: what goes out, and what the loop notes while the clock runs."""

    __slots__ = (
        "body",
        "end_s",
        "error_body",
        "events",
        "failure",
        "fresh",
        "headers",
        "hops",
        "index",
        "message",
        "non_stream",
        "request",
        "sent_s",
        "status",
        "target",
        "unterminated",
        "uploaded_s",
    )

    def __init__(self, index: int, target: Target, body: bytes, request: bytes) -> None:
        self.index = index
        self.target = target
        self.body = body
        self.request = request  # head and body as they go out
        self.sent_s = 0.0  # just before the first byte was handed to the kernel; 0: not yet
        self.uploaded_s = 0.0  # when the last byte was, if the kernel did not take it all at once
        self.events: list[Event] = []
        self.status = 0
        self.headers: dict[str, str] = {}  # of the answer: those worth keeping, lower-case names
        self.error_body = b""  # of an answer that is no 2xx
        self.non_stream = False
        self.unterminated = False
        self.failure: str | None = None  # kind of what the transport met; the events may still say that it was whole
        self.message = ""
        self.end_s = 0.0  # when it was over; 0: not yet
        self.hops = 0  # redirects followed
        self.fresh = False  # wants a connection of its own: the last one was stale

    @property
    def last_heard_s(self) -> float:
        """Return when the last event came (heartbeats do not count), or when the request went out."""
        return self.events[-1].stamp if self.events else self.sent_s

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def resend(self, target: Target, request: bytes) -> None:
        """Become a redirected request: nothing has come yet, but the clock has run since the first send."""
        self.target, self.request = target, request
        self.hops += 1
        self.fresh = False
        self.status, self.headers, self.error_body = 0, {}, b""
        self.end_s = 0.0

    def end(self, at: float, failure: str | None = None, message: str = "") -> None:
        """Note that nothing more will come."""
        self.end_s = at
        if failure is not None:
            self.failure = failure
            self.message = message


class Connection:
    """A socket, non-blocking, and at most one exchange on it."""

    __slots__ = (
        "_body",
        "_head",
        "_heads",
        "_refused",
        "_stream",
        "_stream_format",
        "_unsent",
        "exchange",
        "idle_since_s",
        "reusable",
        "sock",
        "state",
        "target",
        "tls",
        "uses",
    )

    def __init__(self, target: Target, sock: socket.socket, stream_format: str, heads: Heads) -> None:
        self.target = target
        self.sock = sock
        self.tls = isinstance(sock, ssl.SSLSocket)
        self.state = State.IDLE
        self.exchange: Exchange | None = None
        self.uses = 0  # exchanges that began on it
        self.idle_since_s = 0.0  # when its last exchange was over
        self.reusable = False
        self._stream_format = stream_format
        self._heads = heads
        self._unsent = memoryview(b"")
        self._refused = False
        self._head = b""
        self._body: BodyDecoder | None = None
        self._stream: EventDecoder | None = None

    @property
    def stale(self) -> bool:
        """Return whether an end now would be the server's close of an idle connection, not an answer."""
        return self.uses > 1 and not self._head and self.state in (State.WRITING, State.HEAD)

    def start(self, exchange: Exchange) -> None:
        """Put `exchange` on an idle connection; `write` sends it."""
        self.exchange = exchange
        self.uses += 1
        self.state = State.WRITING
        self._unsent = memoryview(exchange.request)
        self._head = b""
        self._body = self._stream = None

    def write(self) -> bool:
        """Send what the kernel takes; return whether the whole request is out. Raises OSError."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self.sock.send(self._unsent) :]
        except BLOCKED:
            return False
        self.state = State.HEAD
        return True

    def stop_writing(self) -> None:
        """Take note that the peer takes no more bytes: what it said before it closed is still to be read."""
        self.state = State.HEAD
        self._refused = True

    def receive(self, data: bytes, stamp: float) -> bool:
        """Take what one read gave at `stamp`; return whether the exchange is over.

        An exchange whose answer is no HTTP ends with the failure `malformed`.
        """
        exchange = self.exchange
        assert exchange is not None
        try:
            if self._body is None:
                data = self._take_head(data, exchange)
                if self._body is None:
                    return False
            payload = self._body.feed(data)
            if self._stream is not None:
                if payload:
                    events = self._stream.feed(payload, stamp)
                    if events:
                        exchange.events += events
            elif len(exchange.error_body) < MAX_ERROR_BODY_BYTES:
                exchange.error_body += payload
            if not self._body.complete:
                return False
            self._end_stream(exchange)
        except ProtocolError as error:
            self.reusable = False
            exchange.end(stamp, "malformed", str(error))
            return True
        self.reusable = self.reusable and not self._body.excess
        exchange.end(stamp)
        return True

    def eof(self, stamp: float, failure: str = "stream_cut", message: str = "") -> None:
        """Take note that the connection is over; the exchange, if there is one, ends here, whole or not."""
        self.state, exchange = State.CLOSED, self.exchange
        self.reusable = False
        if exchange is None:
            return
        if self._body is None:
            exchange.end(stamp, "no_response" if failure == "stream_cut" else failure, message)
            return
        try:
            self._body.eof()
            self._end_stream(exchange)
        except ProtocolError as error:
            exchange.end(stamp, "malformed", str(error))
            return
        whole = self._body.complete and failure == "stream_cut"
        exchange.end(stamp, None if whole else failure, message)

    def release(self) -> None:
        """Let go of an exchange that is over: the connection is idle, or closed if it cannot be used again."""
        self.exchange = None
        self._body = self._stream = None
        self.state = State.IDLE if self.reusable else State.CLOSED

    def _take_head(self, data: bytes, exchange: Exchange) -> bytes:
        """Take bytes of the response's head; return those of its body once the head is whole."""
        self._head += data
        found = self._heads.split(self._head)
        if found is None:
            return b""
        head, rest = found
        exchange.status = head.status
        exchange.headers = {name.lower(): value for name, value in head.fields}
        self._body = open_body(head.status, head.fields)
        # A server that answers before it has the whole request does not want the rest of it.
        self.reusable = not head.will_close and self.state is State.HEAD and not self._refused
        self.state = State.BODY
        if exchange.ok:
            self._stream = open_stream(self._stream_format)
        return rest

    def _end_stream(self, exchange: Exchange) -> None:
        if self._stream is not None:
            exchange.events += self._stream.eof()
            exchange.unterminated = self._stream.unterminated
            exchange.non_stream = self._stream_format == "json" or getattr(self._stream, "non_stream", False)
