"""Event streams by the letter of the WHATWG rules, from bytes that arrive split anywhere.

HTML Living Standard, section 9.2.6 "Interpreting an event stream". One rule is added for benchmarking: at the end of
the stream an event without its closing blank line is dispatched too, and flagged. Events keep their data as bytes:
what is in them is read later. `id` and `retry` are for clients that connect again, and are not kept.
"""

from __future__ import annotations

from typing import NamedTuple

from servesim.wire.faults import MAX_EVENT_BYTES, ProtocolError

DONE = b"data: [DONE]\n\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event: the stamp of the read that completed its last `data:` line, its data and its type."""

    stamp: float
    data: bytes
    name: str = ""


class SseDecoder:
    """Split an event stream into events. The stamp of a read is the caller's and only passed on."""

    __slots__ = (
        "_clean",
        "_data",
        "_data_bytes",
        "_event_name",
        "_skip_newline",
        "_stamp",
        "_start",
        "_tail",
        "_tail_bytes",
        "_tail_stamp",
        "unterminated",
    )

    def __init__(self) -> None:
        self._clean = True  # nothing pending: the next byte starts an event
        self._start: bytes | None = b""  # the first bytes, until it is known whether a byte-order mark opens the stream
        self._tail: list[bytes] = []  # pieces of a line that has not ended
        self._tail_bytes = 0
        self._tail_stamp = 0.0
        self._skip_newline = False  # the last line ended in a carriage return: a line feed belongs to it
        self._data: list[bytes] = []  # the pending event's data lines
        self._data_bytes = 0
        self._event_name = ""
        self._stamp = 0.0
        self.unterminated = False  # the last event came without its blank line

    def feed(self, data: bytes, stamp: float = 0.0) -> list[Event]:
        """Return the events that `data` completed. Raises ProtocolError for a line or event beyond the bound."""
        # The usual read is exactly one event of one line.
        if self._clean and data[:5] == b"data:" and data[-2:] == b"\n\n":
            stop = len(data) - 2
            if data.find(b"\n") == stop and b"\r" not in data:
                self._start = None
                return [Event(stamp, data[6:stop] if data[5:6] == b" " else data[5:stop])]
        return self._feed_lines(data, stamp)

    def eof(self) -> list[Event]:
        """Return the event that was pending when the stream ended, if any, and flag it."""
        events: list[Event] = []
        if self._tail:
            self._take_line(b"".join(self._tail), self._tail_stamp, events)
            self._tail.clear()
        if self._data:
            self.unterminated = True
            self._dispatch(events)
        return events

    def _feed_lines(self, data: bytes, stamp: float) -> list[Event]:
        if self._start is not None:
            data = self._start + data
            if len(data) < 3 and _BYTE_ORDER_MARK.startswith(data):
                self._start, self._clean = data, False
                return []
            self._start = None
            data = data.removeprefix(_BYTE_ORDER_MARK)
        events: list[Event] = []
        if self._skip_newline and data:
            data = data.removeprefix(b"\n")
            self._skip_newline = False
        self._take_lines(data, stamp, events)
        self._clean = not (self._tail or self._data or self._event_name or self._skip_newline)
        return events

    def _take_lines(self, data: bytes, stamp: float, events: list[Event]) -> None:
        # bytes.splitlines knows the three line ends of the rules and no others.
        for line in data.splitlines(keepends=True):
            ended = line.rstrip(b"\r\n")
            if len(ended) == len(line):
                self._keep_tail(line, stamp)
                return
            if self._tail:
                self._tail.append(ended)
                ended = b"".join(self._tail)
                self._tail.clear()
                self._tail_bytes = 0
            self._take_line(ended, stamp, events)
        self._skip_newline = data.endswith(b"\r")

    def _take_line(self, line: bytes, stamp: float, events: list[Event]) -> None:
        if not line:
            self._dispatch(events)
            return
        field, colon, value = line.partition(b":")
        if colon and not field:
            return  # a comment: a heartbeat
        if value[:1] == b" ":
            value = value[1:]
        if field == b"data":
            self._data_bytes += len(value) + 1
            if self._data_bytes > MAX_EVENT_BYTES:
                raise ProtocolError(f"an event is longer than {MAX_EVENT_BYTES} bytes")
            self._data.append(value)
            self._stamp = stamp
        elif field == b"event":
            self._event_name = value.decode("utf-8", "replace")

    def _dispatch(self, events: list[Event]) -> None:
        if self._data:
            events.append(Event(self._stamp, b"\n".join(self._data), self._event_name))
            self._data.clear()
            self._data_bytes = 0
        self._event_name = ""

    def _keep_tail(self, piece: bytes, stamp: float) -> None:
        self._tail_bytes += len(piece)
        if self._tail_bytes > MAX_EVENT_BYTES:
            raise ProtocolError(f"a line of the stream is longer than {MAX_EVENT_BYTES} bytes")
        self._tail.append(piece)
        self._tail_stamp = stamp
