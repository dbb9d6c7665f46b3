"""Ctrl-C: the first asks the work to stop and report what there is, the second stops it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Interrupt:
    """While entered, `asked` tells whether the person has pressed Ctrl-C; a second press is a `KeyboardInterrupt`."""

    def __init__(self) -> None:
        self.asked = False
        # Only the main thread of a program may say what a signal does.
        self._mine = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Interrupt:
        if self._mine:
            self._before = signal.signal(signal.SIGINT, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        if self._mine:
            signal.signal(signal.SIGINT, self._before)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
