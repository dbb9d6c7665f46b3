"""Ctrl-C: once means stop sending, let what is in flight finish and report; twice means at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupts:
    """Counts Ctrl-C instead of raising, while it is entered (in the main thread; elsewhere it counts nothing)."""

    def __init__(self, number: signal.Signals = signal.SIGINT) -> None:
        self.count = 0
        self._number = number
        self._before: object = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(self._number, self._count)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(self._number, self._before)  # type: ignore[arg-type]

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
