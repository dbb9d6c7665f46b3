"""Ctrl-C: it is counted while there is work in hand that can stop by itself and say what it has."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Interrupts:
    """Counts presses of Ctrl-C while it is entered, instead of raising; beyond `patience` they raise after all.

    Only the main thread of a program may say what a signal does: elsewhere nothing is counted. `number` is another
    signal to count, for a process that is told to stop by its parent.
    """

    def __init__(self, *, patience: int = 1, number: signal.Signals = signal.SIGINT) -> None:
        self.count = 0
        self._patience = patience
        self._number = number
        self._mine = False

    @property
    def asked(self) -> bool:
        """Return whether the work should come to an end."""
        return self.count > 0

    def __enter__(self) -> Interrupts:
        self._mine = threading.current_thread() is threading.main_thread()
        if self._mine:
            self._before = signal.signal(self._number, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        if self._mine:
            signal.signal(self._number, self._before)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > self._patience:
            raise KeyboardInterrupt


def leave_interrupts_to_the_parent() -> None:
    """Make a worker process deaf to Ctrl-C, which its terminal sends to it as well."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
