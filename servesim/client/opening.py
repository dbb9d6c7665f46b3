"""Opening connections where nobody waits: DNS, TCP, proxy tunnel and TLS block, so they are threads' work.

The loop asks for connections and is woken when one is there or could not be made. Threads live as long as there are
wishes, so that a process may fork whenever no connection is being opened.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections import deque

from servesim.client.http1 import open_socket
from servesim.client.target import Target

MAX_THREADS = 16


class Opener:
    """A few connector threads, none while there is nothing to open. `wakeup` is readable when `answers` has news."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()  # of what the threads share
        self._wishes: deque[Target] = deque()
        self._threads = 0
        self._closed = False
        self._opened: deque[tuple[Target, socket.socket | OSError]] = deque()
        self._outstanding: dict[Target, int] = {}
        self.wakeup, self._wake = socket.socketpair()
        self.wakeup.setblocking(False)
        self._wake.setblocking(False)

    def outstanding(self, target: Target) -> int:
        """Return how many wishes for `target` are not answered yet."""
        return self._outstanding.get(target, 0)

    def wish(self, target: Target) -> None:
        """Ask for one more connection to `target`."""
        self._outstanding[target] = self.outstanding(target) + 1
        with self._lock:
            self._wishes.append(target)
            if self._threads == MAX_THREADS:
                return
            self._threads += 1
        threading.Thread(target=self._work, name="connector", daemon=True).start()

    def answers(self) -> list[tuple[Target, socket.socket | OSError]]:
        """Return what was opened, or failed to, since the last time."""
        try:
            self.wakeup.recv(4096)
        except BlockingIOError:
            pass
        answers = []
        while self._opened:
            target, result = self._opened.popleft()
            self._outstanding[target] -= 1
            answers.append((target, result))
        return answers

    def close(self) -> None:
        """Let the threads end; connections that come too late are closed."""
        with self._lock:
            self._closed = True
            self._wishes.clear()
        for _, result in self.answers():
            if isinstance(result, socket.socket):
                result.close()
        self.wakeup.close()
        self._wake.close()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._wishes:
                    self._threads -= 1
                    return
                target = self._wishes.popleft()
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
