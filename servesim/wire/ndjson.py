"""Answers that are JSON without an event stream around it: one object a line, or one object in all.

Both give the same events as `sse`, so that a client need not care. `open_stream` gives the decoder that a flavour asks
for; a server that ignores `stream: true` and answers one JSON object, under whatever content type, is noticed by the
first byte of its body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from servesim.wire.faults import MAX_EVENT_BYTES, ProtocolError
from servesim.wire.sse import Event, SseDecoder

_BLANK = b" \t\r\n\xef\xbb\xbf"  # JSON's white space, and the bytes of a byte-order mark


class EventDecoder(Protocol):
    """Bytes of a body in, events out."""

    @property
    def unterminated(self) -> bool: ...

    @property
    def feed(self) -> Callable[[bytes, float], list[Event]]: ...

    def eof(self) -> list[Event]: ...


class NdjsonDecoder:
    """One JSON object a line, as Ollama streams; blank lines are passed over."""

    __slots__ = ("_tail", "_tail_bytes", "_tail_stamp", "unterminated")

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._tail_stamp = 0.0
        self.unterminated = False

    def feed(self, data: bytes, stamp: float = 0.0) -> list[Event]:
        """Return the lines that `data` completed. Raises ProtocolError for a line beyond the bound."""
        *lines, tail = data.split(b"\n")
        if lines and self._tail:
            lines[0] = b"".join([*self._tail, lines[0]])
            self._tail.clear()
            self._tail_bytes = 0
        if tail:
            self._tail_bytes += len(tail)
            if self._tail_bytes > MAX_EVENT_BYTES:
                raise ProtocolError(f"a line of the stream is longer than {MAX_EVENT_BYTES} bytes")
            self._tail.append(tail)
            self._tail_stamp = stamp
        return [Event(stamp, text) for line in lines if (text := line.strip(_BLANK))]

    def eof(self) -> list[Event]:
        """Return the last line, if it came without its line end, and flag it."""
        text = b"".join(self._tail).strip(_BLANK)
        self._tail.clear()
        self.unterminated = bool(text)
        return [Event(self._tail_stamp, text)] if text else []


class JsonDecoder:
    """One JSON object in all: a single event at the end of the body, stamped with its last read."""

    __slots__ = ("_pieces", "_size_bytes", "_stamp", "unterminated")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size_bytes = 0
        self._stamp = 0.0
        self.unterminated = False  # its end is the body's end

    def feed(self, data: bytes, stamp: float = 0.0) -> list[Event]:
        """Keep `data`. Raises ProtocolError for an answer beyond the bound."""
        self._size_bytes += len(data)
        if self._size_bytes > MAX_EVENT_BYTES:
            raise ProtocolError(f"an answer is longer than {MAX_EVENT_BYTES} bytes")
        if data:
            self._pieces.append(data)
            self._stamp = stamp
        return []

    def eof(self) -> list[Event]:
        """Return the whole body as one event."""
        text = b"".join(self._pieces).strip(_BLANK)
        self._pieces.clear()
        return [Event(self._stamp, text)] if text else []


class StreamDecoder:
    """An event stream, unless the body turns out to be one JSON object: then `non_stream` is true.

    `feed` is the chosen decoder's own method once the first byte that is not blank has chosen it.
    """

    __slots__ = ("_decoder", "_head", "feed", "non_stream")

    feed: Callable[[bytes, float], list[Event]]

    def __init__(self) -> None:
        self._decoder: SseDecoder | JsonDecoder = SseDecoder()
        self._head: list[tuple[bytes, float]] = []  # blank reads before the choice
        self.non_stream = False
        self.feed = self._choose

    @property
    def unterminated(self) -> bool:
        return self._decoder.unterminated

    def eof(self) -> list[Event]:
        return self._decoder.eof()

    def _choose(self, data: bytes, stamp: float) -> list[Event]:
        self._head.append((data, stamp))
        first = data.lstrip(_BLANK)[:1]
        if not first and len(self._head) < 16:  # an event stream may open with blank lines, for as long as it likes
            return []
        if first in (b"{", b"["):
            self._decoder, self.non_stream = JsonDecoder(), True
        self.feed = self._decoder.feed
        return [event for piece, at in self._head for event in self._decoder.feed(piece, at)]


def open_stream(stream_format: str) -> EventDecoder:
    """Return a decoder for `stream_format`: "sse", "ndjson" or "json"."""
    if stream_format == "sse":
        return StreamDecoder()
    return NdjsonDecoder() if stream_format == "ndjson" else JsonDecoder()
