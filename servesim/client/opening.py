"""Opening connections where nobody waits: DNS, TCP, proxy tunnel and TLS block, so they are threads' work.

The loop asks for connections and is woken when one is there or could not be made. Threads start with the first wish, so
that a process may fork before.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections import deque
from queue import SimpleQueue

from servesim.client.http1 import open_socket
from servesim.client.target import Target

MAX_THREADS = 16


class Opener:
    """A few connector threads. `wakeup` becomes readable when `opened` has something new."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._wishes: SimpleQueue[Target | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._outstanding: dict[Target, int] = {}
        self.opened: deque[tuple[Target, socket.socket | OSError]] = deque()
        self.wakeup, self._wake = socket.socketpair()
        self.wakeup.setblocking(False)
        self._wake.setblocking(False)

    def outstanding(self, target: Target) -> int:
        """Return how many wishes for `target` are not answered yet."""
        return self._outstanding.get(target, 0)

    def wish(self, target: Target) -> None:
        """Ask for one more connection to `target`."""
        self._outstanding[target] = self.outstanding(target) + 1
        self._wishes.put(target)
        if len(self._threads) < min(MAX_THREADS, sum(self._outstanding.values())):
            thread = threading.Thread(target=self._work, name="connector", daemon=True)
            self._threads.append(thread)
            thread.start()

    def answers(self) -> list[tuple[Target, socket.socket | OSError]]:
        """Return what was opened, or failed to, since the last time."""
        try:
            self.wakeup.recv(4096)
        except BlockingIOError:
            pass
        answers = []
        while self.opened:
            target, result = self.opened.popleft()
            self._outstanding[target] -= 1
            answers.append((target, result))
        return answers

    def close(self) -> None:
        """Let the threads end; connections that come too late are closed."""
        for _ in self._threads:
            self._wishes.put(None)
        for _, result in self.answers():
            if isinstance(result, socket.socket):
                result.close()
        self.wakeup.close()
        self._wake.close()

    def _work(self) -> None:
        while (target := self._wishes.get()) is not None:
            result: socket.socket | OSError
            try:
                result = open_socket(target, self._timeout_s)
            except OSError as error:
                result = error
            self.opened.append((target, result))
            try:
                self._wake.send(b"\0")
            except BlockingIOError:
                pass  # it is awake already
            except OSError:  # the loop is gone
                if isinstance(result, socket.socket):
                    result.close()
                return


def describe_failure(target: Target, error: OSError) -> tuple[str, str]:
    """Return the kind and the sentence for a connection that could not be opened."""
    where = target.url
    if isinstance(error, socket.gaierror):
        return "connect", f"cannot resolve {target.host!r}: {(error.strerror or str(error)).lower()}"
    if isinstance(error, ConnectionRefusedError):
        return "connect", f"cannot connect to {where}: connection refused; is the server running?"
    if isinstance(error, TimeoutError):
        return "connect", f"cannot connect to {where}: timed out"
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "verify_message", "") or error.reason or str(error)
        return "tls", f"no TLS with {where}: {str(reason).lower()}; see --ca-file and --insecure"
    return "connect", f"cannot connect to {where}: {(error.strerror or str(error)).lower()}"
