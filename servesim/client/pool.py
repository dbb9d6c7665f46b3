"""The connections that are open and idle, by target, and the wishes for more.

Idle connections stay registered with the loop's selector, so that a server's close is seen before they are used again.
"""

from __future__ import annotations

import selectors
import socket

from servesim.client.connection import Connection, State
from servesim.client.health import KERNEL_STAMPS, SO_TIMESTAMPNS
from servesim.client.http1 import Heads
from servesim.client.opening import Opener
from servesim.client.target import Target


class Pool:
    """Idle connections, the one used last on top: what is used often is not stale."""

    def __init__(self, stream_format: str, connect_timeout_s: float, selector: selectors.BaseSelector) -> None:
        self._stream_format = stream_format
        self._heads = Heads()
        self._selector = selector
        self._opener = Opener(connect_timeout_s)
        self._idle: dict[Target, list[Connection]] = {}
        selector.register(self._opener.wakeup, selectors.EVENT_READ, None)

    def fill(self, target: Target, count: int) -> None:
        """Open connections until `count` are idle, and wait for them. Raises OSError with the first failure."""
        self.wish(target, count - len(self._idle.get(target, ())))
        failures = []
        while self._opener.outstanding(target):
            self._selector.select(1.0)
            failures += self.take_opened()
        for _, error in failures:
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

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose exchange is over, if it can be used again."""
        if connection.state is State.IDLE:
            self._idle.setdefault(connection.target, []).append(connection)
        else:
            self._close(connection)

    def forget(self, connection: Connection) -> None:
        """Close an idle connection."""
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
