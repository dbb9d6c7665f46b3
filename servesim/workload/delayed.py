"""A workload whose requests reach the engine some time after they were sent: HTTP, tokenizer, queues of processes.

The delay keeps nothing busy, so that it is no part of a step; it is in TTFT, and in the cycle of a closed loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from servesim.workload.workload import Workload


class Delayed(Workload):
    """`inner`, seen `delay_s` later; requests keep the time of their send, from which every metric counts."""

    __slots__ = ("_inner", "delay_s")

    def __init__(self, inner: Workload, delay_s: float) -> None:
        super().__init__(inner.requests, reactive=inner.reactive, duration_s=None)
        self._inner = inner
        self.delay_s = delay_s

    def next_due(self) -> float:
        return self._inner.next_due() + self.delay_s

    def take(self, now: float) -> Iterable[int]:
        """Return the requests that have arrived by `now`; asked one due time at a time, so that no rounding counts."""
        inner, arrived = self._inner, list[int]()
        while (due := inner.next_due()) + self.delay_s <= now and due < math.inf:
            arrived.extend(inner.take(due))
        return arrived

    def finished(self, index: int, at: float, error: str | None = None) -> bool:
        return self._inner.finished(index, at, error)

    def withheld(self) -> Iterable[int]:
        return self._inner.withheld()
