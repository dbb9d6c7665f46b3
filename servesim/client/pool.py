"""Idle connections by target, and the threads that open more.

Idle connections stay registered with the loop's selector, so that a server's close is seen before they are used again.
Some servers close every connection behind its answer although the answer's head promised to keep it (llama.cpp does so
with streams): to use such a connection again is to race with its end, so after two of them none is.

DNS, TCP, proxy tunnel and TLS block, so connections are opened by threads, which wake the loop when one is there or has
failed. Threads live as long as something is to be opened, so that a process may fork whenever nothing is.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
from collections import deque

from servesim.client.connection import Connection, Heads, State, open_socket
from servesim.client.health import KERNEL_STAMPS, SO_TIMESTAMPNS
from servesim.client.target import Target

MAX_THREADS = 16


class Opener:
    """A few connector threads, none while there is nothing to open. `wakeup` is readable when `results` has news."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()  # of what the threads share
        self._requested: deque[Target] = deque()
        self._threads = 0
        self._closed = False
        self._opened: deque[tuple[Target, socket.socket | OSError]] = deque()
        self._outstanding: dict[Target, int] = {}
        self.wakeup, self._wake = socket.socketpair()
        self.wakeup.setblocking(False)
        self._wake.setblocking(False)

    def outstanding(self, target: Target) -> int:
        """Return how many connections to `target` were requested and are neither open nor failed yet."""
        return self._outstanding.get(target, 0)

    def open_one(self, target: Target) -> None:
        """Ask for one more connection to `target`."""
        self._outstanding[target] = self.outstanding(target) + 1
        with self._lock:
            self._requested.append(target)
            if self._threads == MAX_THREADS:
                return
            self._threads += 1
        threading.Thread(target=self._work, name="connector", daemon=True).start()

    def results(self) -> list[tuple[Target, socket.socket | OSError]]:
        """Return what was opened, or failed to, since the last time."""
        try:
            self.wakeup.recv(4096)
        except BlockingIOError:
            pass
        results = []
        while self._opened:
            target, result = self._opened.popleft()
            self._outstanding[target] -= 1
            results.append((target, result))
        return results

    def close(self) -> None:
        """Let the threads end; connections that come too late are closed."""
        with self._lock:
            self._closed = True
            self._requested.clear()
        for _, result in self.results():
            if isinstance(result, socket.socket):
                result.close()
        self.wakeup.close()
        self._wake.close()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._requested:
                    self._threads -= 1
                    return
                target = self._requested.popleft()
            result: socket.socket | OSError
            try:
                result = open_socket(target, self._timeout_s)
            except OSError as error:
                result = error
            with self._lock:
                if self._closed:
                    if isinstance(result, socket.socket):
                        result.close()
                    continue
                self._opened.append((target, result))
                try:
                    self._wake.send(b"\0")
                except BlockingIOError:
                    pass  # the loop has been woken often enough


def describe_failure(target: Target, error: OSError) -> tuple[str, str]:
    """Return the kind and the sentence for a connection that could not be opened."""
    where = target.url
    if isinstance(error, socket.gaierror):
        return "connect", f"cannot resolve {target.hop[0]!r}: {(error.strerror or str(error)).lower()}"
    if isinstance(error, ConnectionRefusedError):
        return "connect", target.refused
    if isinstance(error, TimeoutError):
        return "connect", f"cannot connect to {where}: timed out"
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "verify_message", "") or error.reason or str(error)
        return "tls", f"no TLS with {where}: {str(reason).lower()}; see --ca-file and --insecure"
    return "connect", f"cannot connect to {where}: {(error.strerror or str(error)).lower()}"


QUICK_CLOSE_S = 1.0  # a connection that ends so soon after its answer was never meant to be kept
QUICK_CLOSES = 2  # in a row, until the server is believed to close them all


class Pool:
    """Idle connections, the one used last on top: what is used often is not stale."""

    def __init__(self, stream_format: str, connect_timeout_s: float, selector: selectors.BaseSelector) -> None:
        self._stream_format = stream_format
        self._heads = Heads()
        self._selector = selector
        self._opener = Opener(connect_timeout_s)
        self._idle: dict[Target, list[Connection]] = {}
        self._quick_closes: dict[Target, int] = {}  # since a connection was last used twice
        selector.register(self._opener.wakeup, selectors.EVENT_READ, None)

    def fill(self, target: Target, count: int) -> None:
        """Open connections until `count` are idle, and wait for them. Raises OSError at the first failure."""
        self.open_more(target, count - len(self._idle.get(target, ())))
        while self._opener.outstanding(target):
            self._selector.select(1.0)
            for _, error in self.take_opened():
                raise error

    def open_more(self, target: Target, count: int) -> None:
        """See to it that `count` connections are being opened."""
        for _ in range(count - self._opener.outstanding(target)):
            self._opener.open_one(target)

    def take(self, target: Target, *, unused: bool = False) -> Connection | None:
        """Take an idle connection, `unused`: one that never carried a request; None when there is none."""
        idle = self._idle.get(target)
        while idle:
            connection = idle.pop()
            if not unused or not connection.uses:
                return connection
            self._close(connection)  # its sibling was stale, so it is too
        return None

    def give_back(self, connection: Connection, now: float) -> None:
        """Keep a connection whose exchange is over, if it can be used again."""
        if connection.state is State.IDLE and connection.uses > 1:
            self._quick_closes.pop(connection.target, None)
        if connection.state is State.IDLE and self.keeps_alive(connection.target):
            connection.idle_since_s = now
            self._idle.setdefault(connection.target, []).append(connection)
        else:
            self._close(connection)

    def keeps_alive(self, target: Target) -> bool:
        """Return whether the server lets connections live on behind an answer, for all we have seen."""
        return self._quick_closes.get(target, 0) < QUICK_CLOSES

    def note_close(self, connection: Connection, now: float) -> None:
        """Take note that the server closed a connection that had been given back."""
        if connection.uses and now - connection.idle_since_s < QUICK_CLOSE_S:
            self._quick_closes[connection.target] = self._quick_closes.get(connection.target, 0) + 1

    def forget(self, connection: Connection, now: float) -> None:
        """Close an idle connection that the server has closed."""
        self.note_close(connection, now)
        self._idle[connection.target].remove(connection)
        self._close(connection)

    def take_opened(self) -> list[tuple[Target, OSError]]:
        """Take in the connections that were opened; return what could not be."""
        failures = []
        for target, result in self._opener.results():
            if isinstance(result, OSError):
                failures.append((target, result))
                continue
            connection = Connection(target, result, self._stream_format, self._heads)
            if KERNEL_STAMPS and not connection.tls:
                result.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            self._selector.register(result, selectors.EVENT_READ, connection)
            self._idle.setdefault(target, []).append(connection)
        return failures

    def close(self) -> None:
        """Close every idle connection and let the connector threads end."""
        for idle in self._idle.values():
            for connection in idle:
                connection.sock.close()
        self._opener.close()

    def _close(self, connection: Connection) -> None:
        connection.state = State.CLOSED
        self._selector.unregister(connection.sock)
        connection.sock.close()
