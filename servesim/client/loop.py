"""One `selectors` loop that never blocks on a socket: it stamps first and thinks later.

A turn: read and stamp every ready socket; then decode framing and events; then send at most 8 requests; then, only if
no socket is ready and at least every 100 ms, give 0.5 ms to whoever thinks (JSON, records). Nothing here knows a
workload, a metric or a file.
"""

from __future__ import annotations

import math
import selectors
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from servesim.client.connection import BLOCKED, Connection, Exchange, State
from servesim.client.health import HEARTBEAT_S, KERNEL_SAMPLE, KERNEL_STAMPS, Health
from servesim.client.pool import Pool, describe_failure
from servesim.client.target import Target
from servesim.console import reason

SENDS_A_TURN = 8
THINK_SLICE_S = 0.0005
THINK_AT_LEAST_EVERY_S = 0.1
EXPIRE_EVERY_S = 0.02
TIE_CLOCKS_EVERY_S = 1.0
POLL_BEFORE_SEND_S = 0.0012  # a selector rounds its timeout up to 1 ms: closer to a planned send than this, poll
READ_BUFFER_BYTES = 1 << 18  # shared by all sockets: a large `recv` per read is three times slower
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

Think = Callable[[float], bool]
"""Do postponed work until the given monotonic time; return whether there is more."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Timeouts:
    """How long to wait, in seconds: for the next event of an answer, for the whole of it, for a connection."""

    idle_s: float = math.inf
    total_s: float = math.inf
    connect_s: float = 10.0


class Loop:
    """All sockets of one process, and the exchanges that wait for one. Times are `time.monotonic()`."""

    def __init__(self, stream_format: str, timeouts: Timeouts) -> None:
        self.health = Health()
        self.think: Think = _nothing  # whoever drives the loop puts its postponed work here
        self._timeouts = timeouts
        self._thoughtful = False  # there is postponed work, for all we know
        self._selector = selectors.DefaultSelector()
        self._pool = Pool(stream_format, timeouts.connect_s, self._selector)
        self._waiting: deque[Exchange] = deque()
        self._busy: dict[Connection, None] = {}  # in order of sending
        self._starved = False  # all that waits, waits for a connection to be opened
        self._ended: list[Exchange] = []
        self._buffer = bytearray(READ_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._reads = 0
        now = monotonic()
        self._looked_at = now  # when the selector last said what is ready: what was not, came after it
        self._beat_at = now + HEARTBEAT_S
        self._wake_at = now  # when the last wait for a heartbeat was to end
        self._expire_at = self._thought_at = self._tied_at = now

    @property
    def in_flight(self) -> int:
        """Return how many exchanges are on a connection."""
        return len(self._busy)

    def exchanges(self) -> list[Exchange]:
        """Return what is on a connection, the oldest first."""
        return [connection.exchange for connection in self._busy if connection.exchange is not None]

    @property
    def unsent(self) -> int:
        """Return how many exchanges wait for a connection or their turn."""
        return len(self._waiting)

    def submit(self, exchange: Exchange) -> None:
        """Send `exchange` as soon as a turn comes to it; `turn` returns it when it is over."""
        self._waiting.append(exchange)

    def open_connections(self, target: Target, count: int) -> None:
        """Open connections until `count` are idle. Raises OSError with the first failure."""
        self._pool.fill(target, count)
        self.restart_health()

    def keeps_alive(self, target: Target) -> bool:
        """Return whether connections to `target` outlive an answer, for all that was seen."""
        return self._pool.keeps_alive(target)

    def restart_health(self) -> None:
        """Begin to note the loop's health anew, from now."""
        self.health = Health()
        self.health.begin()
        now = monotonic()
        self._looked_at, self._beat_at = now, now + HEARTBEAT_S

    def turn(self, wake_at: float) -> list[Exchange]:
        """Go round once, waiting for a socket or until about `wake_at`; return the exchanges that ended."""
        since = self._looked_at
        ready = self._selector.select(0)
        now = self._looked_at = monotonic()
        if not ready:
            since = now
            if self._thoughtful:
                self._thoughtful = self.think(now + THINK_SLICE_S)
                self._thought_at = now
            elif self._starved or not self._waiting:
                ready = self._wait(now, wake_at)
                now = since = self._looked_at = monotonic()
        elif self._thoughtful and now - self._thought_at > THINK_AT_LEAST_EVERY_S:
            self._thoughtful = self.think(now + THINK_SLICE_S)
            self._thought_at = now
        self._beat(now)
        if ready:
            self._decode(self._read(ready, since))
        if self._waiting:
            self._send()
        ended = self._ended
        if ended:
            self._ended = []
            self._thoughtful = True
        return ended

    def withdraw(self) -> list[Exchange]:
        """Take back what was not sent yet and return it."""
        unsent = list(self._waiting)
        self._waiting.clear()
        return unsent

    def abandon(self, kind: str) -> list[Exchange]:
        """End everything that is not over, now, with failure `kind`; return the exchanges."""
        now = monotonic()
        for connection in list(self._busy):
            self._fail(connection, now, kind, "")
        for exchange in self._waiting:
            exchange.end(now, kind)
        self._ended += self._waiting
        self._waiting.clear()
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Close every socket."""
        for connection in self._busy:
            connection.sock.close()
        self._pool.close()
        self._selector.close()

    # -- waiting -------------------------------------------------------------------------------------------------

    def _wait(self, now: float, wake_at: float) -> list[tuple[selectors.SelectorKey, int]]:
        """Sleep until a socket is ready, the heartbeat is due, or a planned send is near."""
        until_send = wake_at - now
        until_beat = self._beat_at - now
        if until_send < POLL_BEFORE_SEND_S:
            return self._selector.select(0)
        if until_send <= until_beat:
            return self._selector.select(math.floor(until_send * 1000.0 - 0.2) / 1000.0)
        if until_beat <= 0.0:
            return []
        until_beat = math.ceil(until_beat * 1000.0) / 1000.0
        self._wake_at = now + until_beat
        return self._selector.select(until_beat)

    def _beat(self, now: float) -> None:
        if now >= self._beat_at:
            # A selector cannot wake before a whole millisecond: its rounding is no lag.
            self.health.heartbeat.add(now - max(self._beat_at, self._wake_at))
            self._beat_at = now + HEARTBEAT_S
            if self._busy:
                self._thoughtful = True
                if now >= self._expire_at:
                    self._expire_at = now + EXPIRE_EVERY_S
                    self._expire(now)
            if now - self._tied_at > TIE_CLOCKS_EVERY_S:
                self._tied_at = now
                self.health.tie_clocks()

    def _expire(self, now: float) -> None:
        idle_s, total_s = self._timeouts.idle_s, self._timeouts.total_s
        for connection in list(self._busy):
            exchange = connection.exchange
            assert exchange is not None
            if now - exchange.sent_s > total_s:
                self._fail(connection, now, "total_timeout", f"not over after {total_s:g} s")
            elif now - exchange.last_heard_s > idle_s:
                self._fail(connection, now, "idle_timeout", f"no event for {idle_s:g} s")

    # -- reading -------------------------------------------------------------------------------------------------

    def _read(
        self, ready: list[tuple[selectors.SelectorKey, int]], since: float
    ) -> list[tuple[Connection, bytes | OSError, float]]:
        """Read and stamp every ready socket."""
        reads: list[tuple[Connection, bytes | OSError, float]] = []
        buffer, view, health = self._buffer, self._view, self.health
        note_bound = health.turn_bound.add
        for key, mask in ready:
            connection: Connection | None = key.data
            if connection is None:
                self._take_opened()
                continue
            if mask & WRITE:
                self._write(connection)
            if not mask & READ:
                continue
            sock = connection.sock
            data: bytes | OSError
            try:
                self._reads += 1
                if KERNEL_STAMPS and not self._reads % KERNEL_SAMPLE and not connection.tls:
                    size, ancillary, _, _ = sock.recvmsg_into((buffer,), 64)
                    stamp = monotonic()
                    health.note_kernel_stamp(ancillary, stamp)
                else:
                    size = sock.recv_into(buffer)
                    stamp = monotonic()
                data = bytes(view[:size])
                if connection.tls and size:
                    data += _drain(sock)
            except BLOCKED:
                continue
            except OSError as error:
                data, stamp = error, monotonic()
            if connection.exchange is not None:
                note_bound(stamp - since)
            reads.append((connection, data, stamp))
        return reads

    def _decode(self, reads: list[tuple[Connection, bytes | OSError, float]]) -> None:
        for connection, data, stamp in reads:
            if connection.state is State.CLOSED:
                continue
            if connection.state is State.IDLE:
                self._pool.forget(connection, stamp)  # closed by the server, or it talks out of turn
            elif isinstance(data, OSError):
                self._end_early(connection, stamp, "reset", reason(data))
            elif not data:
                self._end_early(connection, stamp, "stream_cut", "the server closed the connection")
            elif connection.receive(data, stamp):
                self._release(connection)

    def _end_early(self, connection: Connection, stamp: float, kind: str, message: str) -> None:
        """Take note that the server ended the connection. Once, a reused one that it had closed is replaced."""
        exchange = connection.exchange
        assert exchange is not None
        if connection.stale and not exchange.fresh:
            self.health.stale_reconnects += 1
            self._pool.note_close(connection, stamp)
            exchange.fresh = True
            connection.reusable = False
            self._release(connection, ended=False)
            self._waiting.appendleft(exchange)
            return
        connection.eof(stamp, kind, message)
        self._release(connection)

    def _fail(self, connection: Connection, now: float, kind: str, message: str) -> None:
        exchange = connection.exchange
        assert exchange is not None
        connection.eof(now, kind, message)
        exchange.end(now, kind, message)
        self._release(connection)

    def _release(self, connection: Connection, *, ended: bool = True) -> None:
        """Part a connection from its exchange; it is idle from now on, or gone."""
        exchange = connection.exchange
        assert exchange is not None
        del self._busy[connection]
        connection.release()
        self._pool.give_back(connection, monotonic())
        if ended:
            self._ended.append(exchange)

    # -- sending -------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send what waits, at most a few a turn; open connections for what finds none."""
        waiting = self._waiting
        passed: list[Exchange] = []
        for _ in range(min(len(waiting), SENDS_A_TURN)):
            exchange = waiting.popleft()
            connection = self._pool.take(exchange.target, unused=exchange.fresh)
            if connection is None:
                passed.append(exchange)
                continue
            connection.start(exchange)
            self._busy[connection] = None
            if not exchange.sent_s:
                exchange.sent_s = monotonic()
            self._write(connection)
        waiting.extendleft(reversed(passed))
        self._starved = len(passed) == min(len(waiting), SENDS_A_TURN)
        if passed:
            target = passed[0].target
            wanting = sum(exchange.target == target for exchange in waiting)
            self._pool.open_more(target, wanting)

    def _write(self, connection: Connection) -> None:
        exchange = connection.exchange
        if exchange is None or connection.state is not State.WRITING:
            return
        try:
            if connection.write():
                if self._selector.get_key(connection.sock).events != READ:
                    exchange.uploaded_s = monotonic()
                    self._selector.modify(connection.sock, READ, connection)
            else:
                self._selector.modify(connection.sock, READ | WRITE, connection)
        except OSError as error:
            # The server may have answered before it closed: what it said is read first.
            if connection.stale:
                self._end_early(connection, monotonic(), "reset", reason(error))
            else:
                connection.stop_writing()
                self._selector.modify(connection.sock, READ, connection)

    def _take_opened(self) -> None:
        """Take the connections that were opened; one that could not be fails the first that waits for it."""
        for target, error in self._pool.take_opened():
            for exchange in self._waiting:
                if exchange.target == target:
                    exchange.end(monotonic(), *describe_failure(target, error))
                    self._ended.append(exchange)
                    self._waiting.remove(exchange)
                    break


def _nothing(until: float) -> bool:
    return False


def _drain(sock: socket.socket) -> bytes:
    """Return what TLS has decrypted already: the selector would not tell of it."""
    assert isinstance(sock, ssl.SSLSocket)
    pieces = []
    while pending := sock.pending():
        pieces.append(sock.recv(pending))
    return b"".join(pieces)
