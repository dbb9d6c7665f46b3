"""HTTP/1.x bodies: where one ends and what is in it, from bytes that arrive split anywhere.

RFC 9112 sections 6 and 7. `open_body` reads the framing off a response's head and gives the decoder for it; request
lines and heads are `http.client`'s work. The writing direction is chunked only, which is what a stream needs.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Protocol

from servesim.wire.faults import MAX_CHUNK_HEADER_BYTES, MAX_INFLATED_BYTES, MAX_TRAILER_BYTES, ProtocolError

LAST_CHUNK = b"0\r\n\r\n"
_HEX = frozenset(b"0123456789abcdefABCDEF")
_MAX_SIZE_DIGITS = 16  # 64 bits of chunk


class BodyDecoder(Protocol):
    """Bytes off the socket in, bytes of the body out.

    `complete` turns true with the byte that ends the body; `excess` is what came after it and belongs to nobody: a
    connection that has any is not to be reused. Without `complete`, the end of the connection cut the body short.
    """

    @property
    def complete(self) -> bool: ...

    @property
    def excess(self) -> bytes: ...

    def feed(self, data: bytes) -> bytes:
        """Return the part of the body that `data` brought. Raises ProtocolError."""
        ...

    def eof(self) -> None:
        """Take note that the peer closed the connection; `complete` then says whether that was the end."""
        ...


class LengthBody:
    """A body of a known number of bytes, none among them."""

    __slots__ = ("_left", "excess")

    def __init__(self, length_bytes: int) -> None:
        self._left = length_bytes
        self.excess = b""

    @property
    def complete(self) -> bool:
        return self._left == 0

    def feed(self, data: bytes) -> bytes:
        if len(data) > self._left:
            self.excess += data[self._left :]
            data = data[: self._left]
        self._left -= len(data)
        return data

    def eof(self) -> None:
        """A body that lacks bytes stays incomplete."""


class CloseBody:
    """A body that lasts until the connection ends, as HTTP/1.0 servers and some proxies send it."""

    __slots__ = ("complete", "excess")

    def __init__(self) -> None:
        self.complete = False
        self.excess = b""

    def feed(self, data: bytes) -> bytes:
        return data

    def eof(self) -> None:
        self.complete = True


class ChunkedBody:
    """Chunked transfer coding, with extensions and trailers, both passed over."""

    __slots__ = ("_closing", "_ended", "_left", "_partial", "_trailer_bytes", "complete", "excess")

    def __init__(self) -> None:
        self._left = 0  # bytes of the current chunk still to come
        self._closing = b""  # what is still to come of the line end behind a chunk's bytes
        self._partial = b""  # the start of a size or trailer line
        self._ended = False  # the last chunk was seen: trailers follow
        self._trailer_bytes = 0
        self.complete = False
        self.excess = b""

    def feed(self, data: bytes) -> bytes:
        if not (self._left or self._closing or self._partial or self._ended):
            # The usual read is exactly one chunk.
            start = data.find(b"\r\n", 0, _MAX_SIZE_DIGITS + 2) + 2
            if start > 2 and data[-2:] == b"\r\n" and chunk_size(data[: start - 2]) == len(data) - start - 2 > 0:
                return data[start:-2]
        return self._feed_any(data)

    def eof(self) -> None:
        """A body whose last chunk did not come stays incomplete."""

    def _feed_any(self, data: bytes) -> bytes:
        if self.complete:
            self.excess += data
            return b""
        data, self._partial = self._partial + data, b""
        pieces: list[bytes] = []
        position, end = 0, len(data)
        while position < end:
            if self._left:
                piece = data[position : position + self._left]
                pieces.append(piece)
                self._left -= len(piece)
                position += len(piece)
            elif self._closing:
                found = data[position : position + len(self._closing)]
                if not self._closing.startswith(found):
                    raise ProtocolError(f"a chunk is followed by {found!r}, must be the end of a line")
                self._closing = self._closing[len(found) :]
                position += len(found)
            else:
                newline = data.find(b"\r\n", position)
                if newline < 0:
                    self._keep_partial(data[position:])
                    break
                self._take_line(data[position:newline])
                position = newline + 2
                if self.complete:
                    self.excess = data[position:]
                    break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take_line(self, line: bytes) -> None:
        """Take a chunk header, a trailer, or the blank line behind the last trailer."""
        if self._ended:
            self._count_trailer(len(line) + 2)
            self.complete = not line
            return
        if len(line) > MAX_CHUNK_HEADER_BYTES:
            raise ProtocolError(f"a chunk header is longer than {MAX_CHUNK_HEADER_BYTES} bytes")
        self._left = chunk_size(line)
        if self._left:
            self._closing = b"\r\n"
        else:
            self._ended = True

    def _keep_partial(self, line: bytes) -> None:
        if self._ended:
            if self._trailer_bytes + len(line) > MAX_TRAILER_BYTES:
                self._count_trailer(len(line))
        elif len(line) > MAX_CHUNK_HEADER_BYTES:
            raise ProtocolError(f"a chunk header is longer than {MAX_CHUNK_HEADER_BYTES} bytes")
        elif line.strip(b"\r"):
            chunk_size(line.rstrip(b" \t\r"))  # a body that only claims to be chunked is told at once
        self._partial = line

    def _count_trailer(self, size_bytes: int) -> None:
        self._trailer_bytes += size_bytes
        if self._trailer_bytes > MAX_TRAILER_BYTES:
            raise ProtocolError(f"the trailers are longer than {MAX_TRAILER_BYTES} bytes")


class CompressedBody:
    """Another body with a content coding on top: gzip or deflate, given out as soon as the coder flushed it."""

    __slots__ = ("_body", "_inflater", "_padding", "_seen", "_zlib_or_raw")

    def __init__(self, body: BodyDecoder, coding: str) -> None:
        self._body = body
        self._zlib_or_raw = coding == "deflate"  # meant to be zlib's format; some servers send the raw one
        self._inflater = zlib.decompressobj(zlib.MAX_WBITS if self._zlib_or_raw else zlib.MAX_WBITS | 16)
        self._seen = b""  # of a deflate stream, until its format is known
        self._padding = False  # what follows the last gzip member has begun

    @property
    def complete(self) -> bool:
        return self._body.complete

    @property
    def excess(self) -> bytes:
        return self._body.excess

    def feed(self, data: bytes) -> bytes:
        packed = self._body.feed(data)
        if self._zlib_or_raw and packed:
            self._seen += packed
            if len(self._seen) < 2:
                return b""
            packed, self._seen, self._zlib_or_raw = self._seen, b"", False
            if packed[0] & 0x0F != 8 or int.from_bytes(packed[:2], "big") % 31:  # RFC 1950 section 2.2
                self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        return self._inflate(packed) if packed else b""

    def eof(self) -> None:
        self._body.eof()

    def _inflate(self, packed: bytes) -> bytes:
        pieces: list[bytes] = []
        room = MAX_INFLATED_BYTES
        try:
            while packed and not self._padding:
                if self._inflater.eof:
                    if packed[:1] != b"\x1f":  # gzip members may follow one another; padding is passed over
                        self._padding = True
                        break
                    self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
                piece = self._inflater.decompress(packed, room)
                room -= len(piece)
                pieces.append(piece)
                if self._inflater.unconsumed_tail:
                    raise ProtocolError(f"one read inflates to more than {MAX_INFLATED_BYTES} bytes")
                packed = self._inflater.unused_data
        except zlib.error as error:
            raise ProtocolError(f"the body is not what its content-encoding says: {error}") from None
        return b"".join(pieces)


def open_body(status: int, headers: Iterable[tuple[str, str]], *, method: str = "POST") -> BodyDecoder:
    """Return the decoder for a response's body, framed by RFC 9112 section 6.3. Raises ProtocolError."""
    lengths: set[str] = set()
    transfer: list[str] = []
    content: list[str] = []
    for name, value in headers:
        match name.strip().lower():
            case "content-length":
                lengths.update(part.strip() for part in value.split(","))
            case "transfer-encoding":
                transfer += _codings(value)
            case "content-encoding":
                content += _codings(value)
    if method == "HEAD" or 100 <= status < 200 or status in (204, 304):
        return LengthBody(0)
    body: BodyDecoder
    if transfer:  # wins over any length
        chunked = transfer[-1] == "chunked"
        body = ChunkedBody() if chunked else CloseBody()
        content += transfer[:-1] if chunked else transfer
    elif lengths:
        body = LengthBody(_length(lengths))
    else:
        body = CloseBody()
    for coding in reversed(content):
        if coding not in ("gzip", "deflate"):
            raise ProtocolError(f"content-encoding {coding!r} was not asked for and cannot be read")
        body = CompressedBody(body, coding)
    return body


def chunk_size(line: bytes) -> int:
    """Return the size that a chunk header gives: hexadecimal digits and nothing else before any extension."""
    digits, semicolon, _ = line.partition(b";")
    if semicolon:
        digits = digits.rstrip(b" \t")  # the grammar's "bad whitespace"
    if not digits or len(digits) > _MAX_SIZE_DIGITS or not _HEX.issuperset(digits):
        raise ProtocolError(f"chunk size {bytes(digits[:32])!r} is not a hexadecimal number")
    return int(digits, 16)


def encode_chunk(data: bytes) -> bytes:
    """Return `data` as one chunk; nothing for no data, since an empty chunk would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def _codings(value: str) -> list[str]:
    """Return the codings of a header's value in order, under their own names, those that do nothing left out."""
    names = (part.partition(";")[0].strip().lower() for part in value.split(","))
    return [name.removeprefix("x-") for name in names if name not in ("", "identity")]


def _length(values: set[str]) -> int:
    if len(values) > 1:
        raise ProtocolError(f"content-length is {' and '.join(sorted(values))}, must be one number")
    (value,) = values
    if not (value.isascii() and value.isdigit() and len(value) <= 18):
        raise ProtocolError(f"content-length {value[:32]!r} is not a length")
    return int(value)
