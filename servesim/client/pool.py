"""The connections that are open and idle, by target, and the wishes for more.

Idle connections stay registered with the loop's selector, so that a server's close is seen before they are used again.
Some servers close every connection behind its answer although the answer's head promised to keep it (llama.cpp does so
with streams): to use such a connection again is to race with its end, so after two of them none is.
"""

from __future__ import annotations

import selectors
import socket

from servesim.client.connection import Connection, State
from servesim.client.health import KERNEL_STAMPS, SO_TIMESTAMPNS
from servesim.client.http1 import Heads
from servesim.client.opening import Opener
from servesim.client.target import Target

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
        self.wish(target, count - len(self._idle.get(target, ())))
        while self._opener.outstanding(target):
            self._selector.select(1.0)
            for _, error in self.take_opened():
                raise error

    def wish(self, target: Target, count: int) -> None:
        """See to it that `count` connections are being opened."""
        for _ in range(count - self._opener.outstanding(target)):
            self._opener.wish(target)

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
        for target, result in self._opener.answers():
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
