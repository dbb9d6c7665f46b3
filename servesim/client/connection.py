"""One connection and the request that is on it: `OPENING -> IDLE -> WRITING -> HEAD -> BODY -> IDLE | CLOSED`.

A connection takes what was read from its socket with the stamp of the read, and files events with their stamps; the
loop owns the socket's readiness and decides when to read. What an event means is not looked at here: JSON is read when
there is time (`reading`).

`http.client` opens the connection (DNS, TCP, proxy tunnel, TLS; see `Target.connection`), turns a request into bytes
and interprets the head of the response. It never reads the socket: `getresponse()` would block the loop, swallow the
first body bytes and forget the socket on `Connection: close`.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from servesim.client.target import RECEIVE_BUFFER_BYTES, Target
from servesim.wire.faults import ProtocolError
from servesim.wire.http_body import BodyDecoder, open_body
from servesim.wire.ndjson import EventDecoder, open_stream
from servesim.wire.sse import Event

BLANK_LINE = re.compile(rb"\r?\n\r?\n")
INFORMATIONAL = re.compile(rb"HTTP/\d\.\d 1\d\d\b")
MAX_HEAD_BYTES = 1 << 20
MAX_KNOWN_HEADS = 64


class _Collector(http.client.HTTPConnection):
    """A connection whose `send` collects."""

    def __init__(self) -> None:
        super().__init__("collector.invalid")
        self.parts: list[bytes] = []

    def send(self, data: bytes) -> None:  # type: ignore[override]
        self.parts.append(data)


def request_bytes(method: str, request_target: str, host: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """Return a whole request as bytes; `host` is the value of the Host header."""
    collector = _Collector()
    collector.putrequest(method, request_target, skip_host=True, skip_accept_encoding=True)
    collector.putheader("Host", host)
    for name, value in headers.items():
        if name.lower() != "host":
            collector.putheader(name, value)
    if body is not None:
        collector.putheader("Content-Length", str(len(body)))
    collector.endheaders(body)
    return b"".join(collector.parts)


class _Block:
    """What HTTPResponse takes for a socket: a block of bytes to read."""

    def __init__(self, block: bytes) -> None:
        self._block = block

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._block)


@dataclass(slots=True, frozen=True, kw_only=True)
class Head:
    """The head of a response: status, header fields as they came, and whether the connection ends with the body."""

    status: int
    fields: tuple[tuple[str, str], ...]
    will_close: bool


class Heads:
    """Interprets heads of responses to POST. Those of one server are much alike: equal bytes are looked at once."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, Head] = {}

    def split(self, data: bytes) -> tuple[Head, bytes] | None:
        """Return the head that `data` begins with and the bytes that follow; None: it is not all there yet.

        Informational responses (any 1xx) are skipped. Raises ProtocolError.
        """
        while True:
            data = data.lstrip(b"\r\n")
            blank = BLANK_LINE.search(data)
            if blank is None:
                if len(data) > MAX_HEAD_BYTES:
                    raise ProtocolError("the response's head does not end")
                if not (data.startswith(b"HTTP/") or b"HTTP/".startswith(data)):
                    raise ProtocolError(f"not an HTTP response: {data[:40]!r}")
                return None
            block, data = data[: blank.end()], data[blank.end() :]
            if INFORMATIONAL.match(block):
                continue
            head = self._known.get(block)
            if head is None:
                if len(self._known) >= MAX_KNOWN_HEADS:
                    self._known.clear()
                head = self._known[block] = _interpret(block)
            return head, data


def _interpret(block: bytes) -> Head:
    response = http.client.HTTPResponse(_Block(block), method="POST")  # type: ignore[arg-type]
    try:
        response.begin()
    except (http.client.HTTPException, ValueError) as error:
        raise ProtocolError(f"not an HTTP response: {type(error).__name__}: {error}") from None
    return Head(status=response.status, fields=tuple(response.headers.items()), will_close=response.will_close)


def open_socket(target: Target, timeout_s: float) -> socket.socket:
    """Open one connection, non-blocking once it is there. Blocks: call it from a connector thread.

    Raises OSError (of which a refused connection, a name that cannot be resolved and a TLS failure are kinds).
    """
    connection = target.connection(timeout_s)
    try:
        connection.connect()
    except http.client.HTTPException as error:
        connection.close()
        raise OSError(f"proxy: {error}") from None
    except UnicodeError as error:  # the resolver takes no name with an empty part
        connection.close()
        raise OSError(str(error)) from None
    except BaseException:
        connection.close()
        raise
    opened: socket.socket = connection.sock
    connection.sock = None
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    except OSError:
        pass  # a hint, not a need
    opened.setblocking(False)
    return opened


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
        self.sent_s = 0.0  # just before the first byte was given to the kernel; 0: not yet
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
