"""HTTP/1.x requests from bytes that arrive split anywhere, and answers to bytes, by RFC 9112.

Nothing here touches a socket or a clock. Whatever is not plainly a request is refused, and every length is bounded, so
that what a connection can make the server hold is known beforehand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import unquote

from servesim.wire.faults import ProtocolError
from servesim.wire.http_body import BodyDecoder, ChunkedBody, LengthBody

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([!-~]{1,8192}) HTTP/(\d)\.(\d)")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_HOST_OF_TARGET = re.compile(r"https?://[^/?#]*", re.IGNORECASE)

Fields = Iterable[tuple[str, str]]


class HttpError(Exception):
    """A request that is refused before anyone looks at what it asks for; the connection ends with the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class HttpRequest:
    """One request, whole. Header names are in lower case; of equal ones the values are joined."""

    method: str
    path: str
    query: str
    minor: int  # of HTTP/1.x
    headers: dict[str, str]
    body: bytes = b""
    keep_alive: bool = True
    size_bytes: int = 0
    arrived_s: float = field(default=0.0)

    def header(self, name: str) -> str:
        return self.headers.get(name, "")


class RequestReader:
    """Bytes of one connection in, requests out, one after the other."""

    __slots__ = ("_body", "_buffer", "_max_body_bytes", "_pieces", "_request", "_searched", "_size", "expects_continue")

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._buffer = bytearray()
        self._searched = 0  # bytes of the buffer in which no head ends
        self._request: HttpRequest | None = None  # its head is there, its body is not
        self._body: BodyDecoder | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self.expects_continue = False  # the client waits for a word before it sends the body

    @property
    def held_bytes(self) -> int:
        """Return how many bytes are held that no request was made of yet."""
        return len(self._buffer) + self._size

    @property
    def begun(self) -> bool:
        """Whether a part of a request is there."""
        return self._request is not None or bool(self._buffer)

    @property
    def in_body(self) -> bool:
        """Whether a head is there, and its body is not."""
        return self._request is not None

    def feed(self, data: bytes) -> None:
        """Take bytes in."""
        self._buffer += data

    def next_request(self) -> HttpRequest | None:
        """Return the next request if it is all there. Raises HttpError."""
        if self._request is None and not self._take_head():
            return None
        request, body = self._request, self._body
        assert request is not None and body is not None
        if self._buffer and not body.complete:
            data, self._buffer = bytes(self._buffer), bytearray()
            try:
                piece = body.feed(data)
            except ProtocolError as error:
                raise HttpError(400, str(error)) from None
            self._size += len(piece)
            if self._size > self._max_body_bytes:
                raise HttpError(413, f"the body is longer than {self._max_body_bytes} bytes")
            self._pieces.append(piece)
            if body.complete:
                self._buffer += body.excess
        if not body.complete:
            return None
        request.body = b"".join(self._pieces)
        request.size_bytes = self._size
        self._request = self._body = None
        self._pieces = []
        self._size = self._searched = 0
        self.expects_continue = False
        return request

    def _take_head(self) -> bool:
        buffer = self._buffer
        while buffer[:2] == b"\r\n":  # clients of old send one too many
            del buffer[:2]
            self._searched = 0
        end = buffer.find(b"\r\n\r\n", max(0, self._searched - 3))
        if end < 0:
            if len(buffer) > MAX_HEAD_BYTES:
                raise HttpError(431, f"the head is longer than {MAX_HEAD_BYTES} bytes")
            if self._searched < 16 and len(buffer) >= 16 and not re.match(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+( |$)", buffer):
                raise HttpError(400, "not an HTTP request")
            self._searched = len(buffer)
            return False
        if end > MAX_HEAD_BYTES:
            raise HttpError(431, f"the head is longer than {MAX_HEAD_BYTES} bytes")
        lines = bytes(buffer[:end]).split(b"\r\n")
        del buffer[: end + 4]
        self._searched = 0
        self._request = _read_head(lines)
        self._body = self._open_body(self._request)
        self.expects_continue = (
            self._request.header("expect").lower() == "100-continue" and not self._body.complete and not buffer
        )
        return True

    def _open_body(self, request: HttpRequest) -> BodyDecoder:
        coding, length = request.headers.get("transfer-encoding"), request.headers.get("content-length")
        if coding is not None:
            if length is not None or request.minor == 0:
                raise HttpError(400, "transfer-encoding must not come with content-length or HTTP/1.0")
            if coding.strip().lower() != "chunked":
                raise HttpError(501, "transfer-encoding other than chunked is not implemented")
            return ChunkedBody()
        if length is None:
            return LengthBody(0)
        values = {part.strip() for part in length.split(",")}
        value = values.pop()
        if values or not (value.isascii() and value.isdigit() and len(value) <= 18):
            raise HttpError(400, "content-length is not one length")
        if int(value) > self._max_body_bytes:
            raise HttpError(413, f"the body is longer than {self._max_body_bytes} bytes")
        return LengthBody(int(value))


def _read_head(lines: list[bytes]) -> HttpRequest:
    found = _REQUEST_LINE.fullmatch(lines[0])
    if found is None:
        raise HttpError(400, "the request line is not one of HTTP")
    if found[3] != b"1":
        raise HttpError(505, "only HTTP/1.0 and HTTP/1.1 are spoken here")
    if len(lines) - 1 > MAX_HEADERS:
        raise HttpError(431, f"more than {MAX_HEADERS} header fields")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        field_found = _HEADER.fullmatch(line)
        if field_found is None:
            raise HttpError(400, "a header field cannot be read")
        name = field_found[1].decode("ascii").lower()
        value = field_found[2].decode("latin-1").rstrip(" \t")
        if name == "host" and name in headers:
            raise HttpError(400, "more than one host")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    minor = min(1, int(found[4]))
    if minor and "host" not in headers:
        raise HttpError(400, "a request of HTTP/1.1 must name its host")
    path, _, query = _HOST_OF_TARGET.sub("", found[2].decode("ascii")).partition("#")[0].partition("?")
    options = {option.strip().lower() for option in headers.get("connection", "").split(",")}
    keep_alive = "close" not in options and (minor == 1 or "keep-alive" in options)
    return HttpRequest(found[1].decode("ascii"), unquote(path) or "/", query, minor, headers, keep_alive=keep_alive)


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def answer_head(status: int, fields: Fields, *, date: str | None = None) -> bytes:
    """Return the head of an answer. Values come from us, but a stray line end is taken out all the same."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", f"date: {date or formatdate(usegmt=True)}", "server: servesim"]
    lines += [f"{name}: {value}" for name, value in fields]
    return ("\r\n".join(line.replace("\r", " ").replace("\n", " ") for line in lines) + "\r\n\r\n").encode(
        "latin-1", "replace"
    )
