"""One client's connection: requests are read from it, one answer at a time is written to it, and nothing ever blocks.

What it holds is bounded: a request by its reader, requests that come before their turn by `MAX_PIPELINED_BYTES` (who
sends more is not waiting for an answer; to stop reading would be to miss that a client is gone), an answer that nobody
takes by `MAX_UNSENT_BYTES` and `WRITE_TIMEOUT_S`. Its owner, the loop, asks `deadline_s` now and then and says when the
socket is ready.

Bytes are stamped by the kernel's own clock where it tells (Linux), so that a loop that woke late does not make them
late: the receive time comes beside the data of a TCP socket (SO_TIMESTAMPNS, socket(7)), on the wall's calendar clock;
it is brought over to the monotonic one, and believed if it lies within the last second.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from enum import Enum, auto

from servesim.client.health import KERNEL_STAMPS, SO_TIMESTAMPNS, TIMESPEC
from servesim.serve.http import CONTINUE, Fields, HttpError, HttpRequest, RequestReader, answer_head
from servesim.wire.http_body import LAST_CHUNK, encode_chunk

ANCILLARY_BYTES = 64
_BELIEVED_S = 1.0

Ancillary = list[tuple[int, int, bytes]]


def ask_for_stamps(sock: socket.socket) -> None:
    """Make the kernel tell when bytes came, if it can."""
    if KERNEL_STAMPS:
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        except OSError:
            pass  # then they came when they were seen


def came_at(ancillary: Ancillary, seen_s: float) -> float:
    """Return when the bytes came that were seen at `seen_s`, on the monotonic clock."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == TIMESPEC.size:
            seconds, nanoseconds = TIMESPEC.unpack(data)
            came_s: float = time.monotonic() - (time.time() - (seconds + nanoseconds * 1e-9))
            if seen_s - _BELIEVED_S < came_s < seen_s:
                return came_s
    return seen_s


READ_BYTES = 1 << 16
MAX_PIPELINED_BYTES = 1 << 16
MAX_UNSENT_BYTES = 1 << 20  # of a stream
FIRST_BYTE_TIMEOUT_S = 10.0
HEAD_TIMEOUT_S = 10.0
BODY_TIMEOUT_S = 60.0
IDLE_TIMEOUT_S = 75.0
WRITE_TIMEOUT_S = 30.0
LINGER_S = 1.0
LINGER_BYTES = 1 << 20


class State(Enum):
    """What a connection is about: to be asked, to answer, to be closed."""

    READING = auto()
    ANSWERING = auto()
    LINGERING = auto()  # the last answer is out; what the client still sends is thrown away
    CLOSED = auto()


class Connection:
    """A socket with its reader and what is still to be sent. `on_gone` is called when a client leaves an answer."""

    __slots__ = (
        "_broken",
        "_chunked",
        "_linger_bytes",
        "_out",
        "begun_s",
        "came_s",
        "keep_alive",
        "on_gone",
        "progress_s",
        "queued",
        "reader",
        "request",
        "sent_bytes",
        "sock",
        "state",
        "status",
        "used",
    )

    def __init__(self, sock: socket.socket, max_body_bytes: int, now: float) -> None:
        self.sock = sock
        self.reader = RequestReader(max_body_bytes)
        self.state = State.READING
        self.request: HttpRequest | None = None  # the one that is being answered
        self.keep_alive = True
        self.on_gone: Callable[[], None] | None = None
        self.begun_s = now  # opened, or went idle, or the first byte of a request came
        self.came_s = now  # when the bytes that were read last came
        self.progress_s = now  # of sending
        self.queued = False  # the loop has it on its list of sockets to read
        self.used = False
        self.status = 0
        self.sent_bytes = 0  # of the answer
        self._out = bytearray()
        self._chunked = False
        self._broken = False  # nothing can be sent any more
        self._linger_bytes = 0

    @property
    def wants_write(self) -> bool:
        return bool(self._out)

    @property
    def idle(self) -> bool:
        """Whether it could be closed without anybody missing anything."""
        return self.state is State.READING and not self.reader.begun and not self._out

    @property
    def has_more(self) -> bool:
        """Whether there are bytes of a next request already."""
        return self.state is State.READING and self.reader.begun

    @property
    def deadline_s(self) -> float:
        """When patience ends, on the loop's clock."""
        if self._out:
            return self.progress_s + WRITE_TIMEOUT_S
        if self.state is State.LINGERING:
            return self.begun_s + LINGER_S
        if self.state is State.ANSWERING:
            return math.inf
        if self.reader.in_body:
            return self.begun_s + BODY_TIMEOUT_S
        if self.reader.begun:
            return self.begun_s + HEAD_TIMEOUT_S
        return self.begun_s + (IDLE_TIMEOUT_S if self.used else FIRST_BYTE_TIMEOUT_S)

    # Reading

    def read(self, buffer: memoryview, now: float) -> bool:
        """Take what the socket has, up to a buffer's worth. Returns False if the client is gone, or too eager."""
        try:
            count, ancillary, _, _ = self.sock.recvmsg_into((buffer,), ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        if not count:
            return False
        if self.state is State.LINGERING:
            self._linger_bytes += count
            return self._linger_bytes <= LINGER_BYTES
        if self.state is State.READING and not self.reader.begun:
            self.begun_s = now
        self.came_s = came_at(ancillary, now)
        self.reader.feed(bytes(buffer[:count]))
        return self.state is not State.ANSWERING or self.reader.held_bytes <= MAX_PIPELINED_BYTES

    def take_request(self) -> HttpRequest | None:
        """Return the next request and be its answer's connection. Raises HttpError."""
        if self.state is not State.READING:
            return None
        request = self.reader.next_request()
        if request is None:
            if self.reader.expects_continue:
                self.reader.expects_continue = False
                self._send(CONTINUE)
            return None
        self.state = State.ANSWERING
        self.request = request
        self.keep_alive = request.keep_alive
        self.used = True
        self.sent_bytes = 0
        return request

    # Writing

    def answer(self, status: int, fields: Fields, body: bytes) -> None:
        """Send an answer whole and be done with it."""
        self.status = status
        head = answer_head(status, [*fields, ("content-length", str(len(body))), *self._close_field()])
        self.sent_bytes = len(body)
        if self.request is not None and self.request.method == "HEAD":
            body = b""
        self._send(head + body)

    def refuse(self, error: HttpError, now: float) -> None:
        """Answer what is not a request of HTTP; the connection ends with it."""
        self.keep_alive = False
        self.answer(error.status, [("content-type", "text/plain; charset=utf-8")], f"{error}\n".encode())
        self.linger(now)

    def begin(self, status: int, fields: Fields) -> None:
        """Send the head of an answer that will be streamed; a client of HTTP/1.0 is told its end by the close."""
        self.status = status
        self._chunked = self.request is None or self.request.minor > 0
        if not self._chunked:
            self.keep_alive = False
        framing = [("transfer-encoding", "chunked")] if self._chunked else []
        self._send(answer_head(status, [*fields, *framing, *self._close_field()]))

    def write(self, pieces: tuple[bytes, ...]) -> bool:
        """Send pieces of a streamed answer, a chunk each. Returns False if the client takes nothing any more."""
        self.sent_bytes += sum(map(len, pieces))
        self._send(b"".join(map(encode_chunk, pieces)) if self._chunked else b"".join(pieces))
        return not self._broken and len(self._out) <= MAX_UNSENT_BYTES

    def end(self) -> None:
        """End a streamed answer."""
        if self._chunked:
            self._send(LAST_CHUNK)

    def next_turn(self, now: float) -> None:
        """Be ready for the next request, or begin to close."""
        self.request = None
        self.on_gone = None
        self.begun_s = now
        if self.keep_alive:
            self.state = State.READING
        else:
            self.linger(now)

    def linger(self, now: float) -> None:
        """Begin to close: a close with unread bytes would take the answer away from the client."""
        self.state = State.LINGERING
        self.begun_s = now
        if not self._out:
            self._shut()

    def flush(self, now: float) -> bool:
        """Send more of what is to be sent, now that the socket takes it. Returns False if the client is gone."""
        try:
            sent = self.sock.send(self._out)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        del self._out[:sent]
        self.progress_s = now
        if not self._out and self.state is State.LINGERING:
            self._shut()
        return True

    def _close_field(self) -> list[tuple[str, str]]:
        if self.keep_alive:
            return [("connection", "keep-alive")] if self.request is not None and not self.request.minor else []
        return [("connection", "close")]

    def _send(self, data: bytes) -> None:
        if self.state is State.CLOSED:
            return
        if not self._out:
            try:
                sent = self.sock.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                self._broken = True
                return
            if sent == len(data):
                return
            data = data[sent:]
        self._out += data

    def _shut(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass
