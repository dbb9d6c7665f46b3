"""The queue of those who wait: a deque where arrivals go to the back, a heap where a policy gives each a key."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from servesim.config.engine import Key, Policy
from servesim.engine.sequence import Sequence
from servesim.workload.requests import Requests

Waiter: TypeAlias = "int | Sequence"
"""Who waits: a request that was never admitted (its index), or one that was preempted."""


class KeyedQueue:
    """`waiting` in the order of an admission key, with the verbs of `deque` that the engine uses.

    A preempted request re-enters by its key: `appendleft` does what `append` does.
    """

    __slots__ = ("_heap", "_key")

    def __init__(self, key: Callable[[int], Key]) -> None:
        self._key = key
        self._heap: list[tuple[Key, Waiter]] = []

    def append(self, waiter: Waiter) -> None:
        index = waiter if isinstance(waiter, int) else waiter.index
        heappush(self._heap, (self._key(index), waiter))

    appendleft = append

    def extend(self, waiters: Iterable[Waiter]) -> None:
        for waiter in waiters:
            self.append(waiter)

    def popleft(self) -> Waiter:
        return heappop(self._heap)[1]

    def remove(self, waiter: Waiter) -> None:
        self._heap = [entry for entry in self._heap if entry[1] is not waiter and entry[1] != waiter]
        heapify(self._heap)

    def __getitem__(self, position: int) -> Waiter:
        """Return the head (position 0) in O(1)."""
        return self._heap[0][1] if position == 0 else sorted(self._heap)[position][1]

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Waiter]:
        return iter([waiter for _, waiter in sorted(self._heap, key=lambda entry: entry[0])])


def waiting_queue(policy: Policy, requests: Requests, targets: array[int]) -> deque[Waiter] | KeyedQueue:
    """Return the empty queue in which requests wait under `policy`."""
    admission = policy.admission
    if admission is None:
        return deque()
    return KeyedQueue(lambda index: admission(requests, targets, index))
