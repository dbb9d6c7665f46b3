"""The server's one thread: sockets, the engine's steps, timers, in that order of urgency from last to first.

A turn: wait for sockets, but not beyond the end of the step under way; hand out its tokens if it is over; read from
sockets that are ready, a few or as many as there is time for; let the engine decide on its next step. Sockets that are
ready are looked at before tokens are handed out and read afterwards, so that a request counts from when it came.

`select` rounds up to a millisecond: the last one before a step's end is slept through.
"""

from __future__ import annotations

import errno
import gc
import math
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

from servesim.errors import RunError
from servesim.serve.connection import READ_BYTES, Connection, State, ask_for_stamps
from servesim.serve.http import HttpError, HttpRequest

SWEEP_S = 0.25
GC_IDLE_S = 2.0  # collect garbage when nothing was under way for so long
GC_BUSY_S = 300.0  # and when something always is, so seldom
ACCEPTS_A_TURN = 64
LEAST_READS = 4  # a turn, however late it is: who leaves must be heard
BACKLOG = 1024
_CLOCK_TICK_S = 0.001


class Clock(Protocol):
    """What has to happen in time; see `EngineClock`."""

    @property
    def due_s(self) -> float: ...
    @property
    def free_until_s(self) -> float: ...
    @property
    def idle(self) -> bool: ...
    @property
    def awaited(self) -> set[object]: ...
    def hand_out(self, now: float) -> bool: ...
    def decide(self, now: float, *, more: bool = False) -> None: ...


class App(Protocol):
    """What answers requests."""

    @property
    def clock(self) -> Clock:
        """What has to happen in time. It may be another one from one turn to the next."""

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        """Answer a request, now or later."""

    def tidy(self) -> None:
        """Do what is to be done now and then."""

    def count_connections(self, count: int) -> None: ...

    draining: bool


def listen(host: str, port: int) -> socket.socket:
    """Open the socket on which clients come in. Raises RunError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        is_foreign = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        remedy = "give an address of this machine" if is_foreign else "choose another port"
        raise RunError(f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}; {remedy}") from None
    listener.setblocking(False)
    return listener


class Loop:
    """Serves `app` on `listener` until it is told to stop and has drained."""

    def __init__(
        self, app: App, listener: socket.socket, *, max_connections: int, max_body_bytes: int, grace_s: float = 30.0
    ) -> None:
        self._app = app
        self._listener = listener
        self._max_connections = max_connections
        self._max_body_bytes = max_body_bytes
        self._grace_s = grace_s
        self._selector = selectors.DefaultSelector()
        self._connections: dict[Connection, None] = {}  # in order of opening
        self._ready: deque[tuple[Connection, float]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._accepting = False
        self._stop_asked = False
        self._drain_by_s = math.inf
        self._next_sweep_s = 0.0
        self._busy_s = self._collected_s = time.monotonic()
        self.cut_off = 0  # answers that were not over when the grace was

    def stop(self) -> None:
        """Ask to stop, from any thread or signal handler."""
        self._stop_asked = True
        try:
            self._wake_out.send(b"x")
        except OSError:
            pass

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call `call` in `delay_s` seconds."""
        self._serial += 1
        heappush(self._timers, (time.monotonic() + delay_s, self._serial, call))

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Serve until `stop` or `should_stop`, then let what is under way finish for `grace_s`."""
        was_enabled = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._accept(True)
        try:
            while self._turn(should_stop):
                pass
        finally:
            for connection in list(self._connections):
                self.close(connection)
            self._accept(False)
            self._listener.close()
            self._selector.close()
            self._wake_in.close()
            self._wake_out.close()
            gc.unfreeze()
            if was_enabled:
                gc.enable()

    @property
    def _clock(self) -> Clock:
        return self._app.clock

    # A turn

    def _turn(self, should_stop: Callable[[], bool]) -> bool:
        clock = self._clock
        events = self._wait()
        seen_s = time.monotonic()
        handed_out = clock.hand_out(seen_s)
        for key, mask in events:
            self._take_event(key, mask, seen_s)
        reads = 0
        while self._ready and (reads < LEAST_READS or time.monotonic() < clock.free_until_s):
            connection, came_s = self._ready.popleft()
            connection.queued = False
            self._read(connection, came_s)
            reads += 1
        now = time.monotonic()
        clock.decide(now, more=bool(self._ready))
        while self._timers and self._timers[0][0] <= now:
            heappop(self._timers)[2]()
        if now >= self._next_sweep_s:
            self._sweep(now)
            self._collect(now, busy=handed_out or bool(events))
        if self._stop_asked or should_stop():
            self._begin_drain(now)
        return not (self._app.draining and self._drained(now))

    def _wait(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for sockets, until something is due at the latest."""
        now = time.monotonic()
        due_s = min(self._clock.due_s, self._next_sweep_s)
        if self._timers:
            due_s = min(due_s, self._timers[0][0])
        left_s = due_s - now
        if self._ready or left_s <= 0:
            return self._selector.select(0)
        if left_s > _CLOCK_TICK_S:
            found = self._selector.select(math.floor(left_s / _CLOCK_TICK_S) * _CLOCK_TICK_S - _CLOCK_TICK_S / 2)
            if found or time.monotonic() < due_s - _CLOCK_TICK_S:
                return found
            left_s = due_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        return self._selector.select(0)

    def _take_event(self, key: selectors.SelectorKey, mask: int, seen_s: float) -> None:
        connection = key.data
        if key.fileobj is self._listener:
            self._take_clients(seen_s)
        elif key.fileobj is self._wake_in:
            self._wake_in.recv(4096)
        elif connection.state is not State.CLOSED:
            if mask & selectors.EVENT_WRITE and not connection.flush(seen_s):
                self.close(connection)
                return
            if mask & selectors.EVENT_READ and not connection.queued:
                connection.queued = True
                self._ready.append((connection, seen_s))
            elif mask & selectors.EVENT_WRITE:
                self.watch(connection)

    def _read(self, connection: Connection, came_s: float) -> None:
        if connection.state is State.CLOSED:
            return
        if not connection.read(self._buffer, came_s):
            self.close(connection)
            return
        self.serve(connection, connection.came_s)

    def serve(self, connection: Connection, came_s: float) -> None:
        """Answer the next request of a connection, if it is there."""
        try:
            request = connection.take_request()
            if request is not None:
                request.arrived_s = came_s
                self._app.handle(connection, request)
        except HttpError as error:
            connection.refuse(error, time.monotonic())
        self.watch(connection)

    def over(self, connection: Connection) -> None:
        """Hear that an answer is over: the next request may be there already."""
        if connection.state is not State.ANSWERING:
            return
        if self._app.draining:
            connection.keep_alive = False
        now = time.monotonic()
        connection.next_turn(now)
        if connection.has_more and not connection.queued:
            self.later(0.0, lambda: self.serve(connection, time.monotonic()))
        self.watch(connection)

    def watch(self, connection: Connection) -> None:
        """Look for bytes, and for room where there is something to be sent."""
        if connection.state is State.CLOSED:
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.wants_write else 0)
        if self._selector.get_key(connection.sock).events != wanted:
            self._selector.modify(connection.sock, wanted, connection)

    def close(self, connection: Connection) -> None:
        """Close a connection at once; whoever was answering it hears that the client is gone."""
        if connection.state is State.CLOSED:
            return
        connection.state = State.CLOSED
        del self._connections[connection]
        self._selector.unregister(connection.sock)
        connection.sock.close()
        gone, connection.on_gone = connection.on_gone, None
        self._clock.awaited.discard(connection)
        if gone is not None:
            gone()
        if not self._app.draining:
            self._accept(True)

    # Clients

    def _accept(self, wanted: bool) -> None:
        if wanted != self._accepting:
            self._accepting = wanted
            if wanted:
                self._selector.register(self._listener, selectors.EVENT_READ, None)
            else:
                self._selector.unregister(self._listener)

    def _take_clients(self, now: float) -> None:
        for number in range(ACCEPTS_A_TURN):
            if len(self._connections) >= self._max_connections:
                if number:
                    return  # nobody knows yet whether there is another one
                if not self._make_room():
                    self._accept(False)
                    return
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM) and not self._make_room():
                    self._accept(False)
                    self.later(0.1, lambda: self._accept(not self._app.draining))
                return
            sock.setblocking(False)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                pass  # the client has left again
            ask_for_stamps(sock)
            connection = Connection(sock, self._max_body_bytes, now)
            self._connections[connection] = None
            self._selector.register(sock, selectors.EVENT_READ, connection)

    def _make_room(self) -> bool:
        """Close the connection that can best be spared: the longest idle, or else the longest without its request."""
        spared = [connection for connection in self._connections if connection.state is not State.ANSWERING]
        if not spared:
            return False
        self.close(min(spared, key=lambda connection: (not connection.idle, connection.begun_s)))
        return True

    # Now and then

    def _sweep(self, now: float) -> None:
        self._next_sweep_s = now + SWEEP_S
        for connection in [each for each in self._connections if each.deadline_s <= now]:
            if connection.state is State.READING and connection.reader.begun and not connection.wants_write:
                connection.refuse(HttpError(408, "the request did not come to an end"), now)
                self.watch(connection)
            else:
                self.close(connection)
        self._app.count_connections(len(self._connections))
        self._app.tidy()

    def _collect(self, now: float, *, busy: bool) -> None:
        if busy or not self._clock.idle:
            self._busy_s = now
        quiet = self._busy_s > self._collected_s and now - self._busy_s >= GC_IDLE_S
        if quiet or now - self._collected_s >= GC_BUSY_S:
            self._collected_s = now
            gc.collect(2 if quiet else 1)

    def _begin_drain(self, now: float) -> None:
        if self._app.draining:
            return
        self._app.draining = True
        self._drain_by_s = now + self._grace_s
        self._accept(False)
        self._listener.close()
        for connection in [each for each in self._connections if each.idle]:
            self.close(connection)

    def _drained(self, now: float) -> bool:
        answering = [each for each in self._connections if each.state is State.ANSWERING or each.wants_write]
        if answering and now >= self._drain_by_s:
            self.cut_off = len(answering)
            return True
        return not answering and self._clock.idle
