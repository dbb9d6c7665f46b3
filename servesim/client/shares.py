"""A workload split among several processes: each drives a share, under the request numbers of the whole.

A session stays with one worker, and a closed loop's concurrency is split too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from servesim.workload.requests import Requests, rows_of
from servesim.workload.workload import Retrying, Workload

Build = Callable[[Requests, int], Workload]
"""Make the workload of some of the requests; the number is the share's concurrency (0 in an open loop)."""


class Share(Workload):
    """The requests `numbers` of a whole, driven by a workload of their own."""

    __slots__ = ("_inner", "_local", "concurrency", "numbers")

    def __init__(self, inner: Workload, whole: Requests, numbers: Sequence[int], concurrency: int) -> None:
        super().__init__(whole, reactive=inner.reactive, duration_s=inner.duration_s)
        self._inner = inner
        self.numbers = numbers
        self.concurrency = concurrency  # the share's part of it; 0 in an open loop
        self._local = {number: local for local, number in enumerate(numbers)}

    @property
    def attempts(self) -> dict[int, int] | None:
        """Return how often each request was sent that was sent more than once; None when nothing is retried."""
        attempts = attempts_of(self._inner)
        return None if attempts is None else {self.numbers[local]: count for local, count in attempts.items()}

    def next_due(self) -> float:
        return self._inner.next_due()

    def take(self, now: float) -> list[int]:
        taken = []
        for local in self._inner.take(now):
            number = self.numbers[local]
            self.requests.arrival_s[number] = self._inner.requests.arrival_s[local]
            taken.append(number)
        return taken

    def finished(self, index: int, at: float, error: str | None = None) -> bool:
        return self._inner.finished(self._local[index], at, error)

    def withheld(self) -> Iterable[int]:
        return [self.numbers[local] for local in self._inner.withheld()]


def attempts_of(workload: Workload) -> dict[int, int] | None:
    """Return how often requests were sent, of those sent more than once; None when the workload retries nothing."""
    return workload.attempts if isinstance(workload, (Retrying, Share)) else None


def deal(requests: Requests, build: Build, *, workers: int, concurrency: int | None) -> list[Share]:
    """Deal `requests` out to at most `workers` shares, none of them empty."""
    workers = max(1, min(workers, len(requests) if concurrency is None else min(concurrency, len(requests))))
    numbers = _deal_numbers(requests, workers)
    shares = []
    for worker in range(workers):
        own = 0 if concurrency is None else concurrency // workers + (worker < concurrency % workers)
        if numbers[worker]:
            shares.append(Share(build(rows_of(requests, numbers[worker]), own), requests, numbers[worker], own))
    return shares


def _deal_numbers(requests: Requests, workers: int) -> list[list[int]]:
    numbers: list[list[int]] = [[] for _ in range(workers)]
    holder: dict[str, int] = {}
    dealt = 0
    for number in range(len(requests)):
        session = None if requests.sessions is None else requests.sessions[number]
        if session in holder:
            numbers[holder[session]].append(number)
            continue
        if session is not None:
            holder[session] = dealt % workers
        numbers[dealt % workers].append(number)
        dealt += 1
    return numbers
