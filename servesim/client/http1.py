"""HTTP/1.1 as `http.client` knows it, without its hands on the socket.

`http.client` opens the connection (DNS, TCP, proxy tunnel, TLS; see `Target.connection`), turns a request into bytes
and interprets the head of the response. It never reads the socket: `getresponse()` would block the loop, swallow the
first body bytes and forget the socket on `Connection: close`.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from servesim.client.target import RECEIVE_BUFFER_BYTES, Target
from servesim.wire.limits import ProtocolError

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
