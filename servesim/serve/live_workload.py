"""The workload of a server: requests that nobody knew before they came, in rows that are used again.

An engine keeps one row of columns for each request of its workload. Here a fixed number of rows stands for those that
are in the house at any one time, so that a server that has been up for a month holds no more than one just started.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from servesim.workload.requests import Content, Requests
from servesim.workload.workload import Workload


class LiveWorkload(Workload):
    """Rows that are filled by `submit` and given back by `free`; `on_finished(row)` hears of every end."""

    __slots__ = ("_free", "_heap", "_on_finished", "_serial")

    def __init__(self, rows: int, *, on_finished: Callable[[int], None], caching: bool, priorities: bool) -> None:
        requests = Requests()
        requests.prompt_tokens = array("q", bytes(8 * rows))
        requests.output_tokens = array("q", bytes(8 * rows))
        requests.arrival_s = array("d", [math.nan]) * rows
        requests.content = [()] * rows if caching else None
        requests.priority = array("q", bytes(8 * rows)) if priorities else None
        super().__init__(requests, reactive=True, duration_s=None)
        self._on_finished = on_finished
        self._free = list(range(rows - 1, -1, -1))
        self._heap: list[tuple[float, int, int]] = []  # due, serial number, row
        self._serial = 0

    @property
    def free_rows(self) -> int:
        """How many requests can still be taken in."""
        return len(self._free)

    @property
    def pending(self) -> int:
        """Requests that are submitted and not yet in the engine."""
        return len(self._heap)

    def submit(self, *, due_s: float, prompt: int, output: int, content: Content = (), priority: int = 0) -> int:
        """Put a request that is due at `due_s` into a free row, and return the row."""
        row = self._free.pop()
        requests = self.requests
        requests.prompt_tokens[row] = prompt
        requests.output_tokens[row] = output
        requests.arrival_s[row] = due_s
        if requests.content is not None:
            requests.content[row] = content
        if requests.priority is not None:
            requests.priority[row] = priority
        self._serial += 1
        heappush(self._heap, (due_s, self._serial, row))
        return row

    def take_back(self, row: int) -> bool:
        """Take back a request that is not yet in the engine; False if it is."""
        kept = [entry for entry in self._heap if entry[2] != row]
        if len(kept) == len(self._heap):
            return False
        heapify(kept)
        self._heap = kept
        return True

    def hasten(self, now: float) -> None:
        """Make those that are due after `now` due at `now`: the clock that their times were read on has slipped."""
        for _, _, row in self._heap:
            self.requests.arrival_s[row] = min(self.requests.arrival_s[row], now)
        self._heap = [(min(due, now), serial, row) for due, serial, row in self._heap]
        heapify(self._heap)

    def free(self, row: int) -> None:
        """Give a row back."""
        if self.requests.content is not None:
            self.requests.content[row] = ()
        self._free.append(row)

    def next_due(self) -> float:
        return self._heap[0][0] if self._heap else math.inf

    def take(self, now: float) -> list[int]:
        taken = []
        while self._heap and self._heap[0][0] <= now:
            taken.append(heappop(self._heap)[2])
        return taken

    def finished(self, index: int, at: float, error: str | None = None) -> bool:
        self._on_finished(index)
        return False

    def withheld(self) -> Iterable[int]:
        return ()
