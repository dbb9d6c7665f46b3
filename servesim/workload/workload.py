"""When each request is due: open loop, closed loop, sessions, retries, delays. The one place where a load's plan lives.

A workload is more than a list, since a closed loop's next request, a session's next turn and a retry exist only once
something has finished. Whoever drives it (engine, fleet, client, test) asks `next_due`, `take`s what is due, and says
what has `finished`. A workload is driven once: build another one for another run.

Requests that are due at the same time come in order of submission number (the index), whatever made them due. Times
given to `finished` need not be in order, so that several servers can share one workload.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import islice, pairwise
from operator import le

from servesim.errors import InputError
from servesim.workload.requests import Requests

NEVER_RETRIED = frozenset(
    {"rejected", "prompt_too_long", "over_max_tokens_in_flight", "over_kv_cache", "over_token_budget"}
)
"""Kinds of error that would meet the same answer again: what is too big today is too big in a second."""


CREDIT = 100.0
"""Retries that clients with a retry budget may save up."""


class Workload(ABC):
    """What is asked of a server and when.

    `requests` are the columns; `requests.arrival_s[i]` is the due (planned) time of request `i` once `take` has given
    it out, of its latest attempt if there are retries. `reactive` says that `finished` can make requests due; where it
    is false the call may be left out. `duration_s` is the last moment at which a request may become due.
    """

    __slots__ = ("duration_s", "reactive", "requests")

    requests: Requests
    reactive: bool
    duration_s: float

    def __init__(self, requests: Requests, *, reactive: bool, duration_s: float | None) -> None:
        self.requests = requests
        self.reactive = reactive
        self.duration_s = math.inf if duration_s is None else duration_s

    @abstractmethod
    def next_due(self) -> float:
        """Return the time in seconds of the next due request, `math.inf` when nothing is due by itself."""

    @abstractmethod
    def take(self, now: float) -> Iterable[int]:
        """Return the requests due at or before `now` that were not given out yet, by due time, then by number."""

    @abstractmethod
    def finished(self, index: int, at: float, error: str | None = None) -> bool:
        """Hear that request `index` is over at time `at`: completed, or ended by an error of the named kind.

        Return True if the client will send it again: it is not over yet, and its record stays open.
        """

    @abstractmethod
    def withheld(self) -> Iterable[int]:
        """Return the requests that the time limit kept back: they were never due, so they are not offered load."""


class OpenLoop(Workload):
    """Requests come at the given times, whatever the server does; `requests.arrival_s` must be in order."""

    __slots__ = ("_due", "_next", "_size")

    def __init__(self, requests: Requests, *, duration_s: float | None = None) -> None:
        super().__init__(requests, reactive=False, duration_s=duration_s)
        arrival_s = requests.arrival_s
        if not all(map(le, arrival_s, islice(arrival_s, 1, None))) or (arrival_s and not arrival_s[0] >= 0.0):
            raise InputError("arrival times must be 0 or more and in order")
        self._due = arrival_s[: bisect_right(arrival_s, self.duration_s)]
        self._size = len(self._due)
        self._due.extend((math.inf, math.nan))  # where `next_due` and the loop of `take` end
        self._next = 0

    def next_due(self) -> float:
        return self._due[self._next]

    def take(self, now: float) -> range:
        first = after = self._next
        due = self._due
        while due[after] <= now:
            after += 1
        if after > self._size:  # `now` is infinite
            after = self._size
        self._next = after
        return range(first, after)

    def finished(self, index: int, at: float, error: str | None = None) -> bool:
        return False

    def withheld(self) -> range:
        return range(self._size, len(self.requests))


class ClosedLoop(Workload):
    """At most `concurrency` requests in flight: each end, of whatever outcome, releases the next at that instant.

    The first wave is due at time 0, or spread evenly over `stagger_s` seconds.
    """

    __slots__ = ("_pending", "_taken", "_unreleased")

    def __init__(
        self, requests: Requests, concurrency: int, *, stagger_s: float = 0.0, duration_s: float | None = None
    ) -> None:
        super().__init__(requests, reactive=True, duration_s=duration_s)
        if concurrency < 1:
            raise InputError(f"concurrency is {concurrency}, must be 1 or more")
        wave = min(concurrency, len(requests))
        # Due times of released requests. Who is released is decided by `take`: the next number goes to the earliest.
        self._pending = deque(t for k in range(wave) if (t := k * stagger_s / concurrency) <= self.duration_s)
        self._taken = 0
        self._unreleased = len(requests) - len(self._pending)
        requests.arrival_s = array("d", [math.nan]) * len(requests)

    def next_due(self) -> float:
        return self._pending[0] if self._pending else math.inf

    def take(self, now: float) -> range:
        pending = self._pending
        arrival_s = self.requests.arrival_s
        first = after = self._taken
        while pending and pending[0] <= now:
            arrival_s[after] = pending.popleft()
            after += 1
        self._taken = after
        return range(first, after)

    def finished(self, index: int, at: float, error: str | None = None) -> bool:
        if self._unreleased and at <= self.duration_s:
            self._unreleased -= 1
            pending = self._pending
            if pending and at < pending[-1]:
                insort(pending, at)
            else:
                pending.append(at)
        return False

    def withheld(self) -> range:
        size = len(self.requests)
        return range(size if self.duration_s == math.inf else self._taken, size)


class SessionLoop(Workload):
    """Sessions: turn k > 1 is due at the later of its `arrival_s` (if any) and its predecessor's end + `think_s`.

    A turn that failed or was rejected ends like any other: the person reads the error, thinks and asks on. So every
    turn is sent. A request without a session is a session of one turn.

    Open loop (`concurrency` None): a session begins at the `arrival_s` of its first turn. Closed loop: at most
    `concurrency` sessions at once, the first ones spread over `stagger_s` seconds; the end of one begins the next, in
    order of submission of their first turns. Arrivals given beforehand then mean nothing.
    """

    __slots__ = ("_begun", "_firsts", "_following", "_heap", "_taken")

    def __init__(
        self,
        requests: Requests,
        *,
        concurrency: int | None = None,
        stagger_s: float = 0.0,
        duration_s: float | None = None,
    ) -> None:
        super().__init__(requests, reactive=True, duration_s=duration_s)
        if concurrency is not None and concurrency < 1:
            raise InputError(f"concurrency is {concurrency}, must be 1 or more")
        firsts, self._following = link_turns(requests)
        if concurrency is None:
            arrival_s = requests.arrival_s
            if any(math.isnan(arrival_s[index]) for index in firsts):
                raise InputError("a session's first turn needs an arrival_s in an open loop")
            self._heap = [(arrival_s[index], index) for index in firsts if arrival_s[index] <= self.duration_s]
            heapify(self._heap)
            self._firsts: list[int] = []
        else:
            requests.arrival_s = array("d", [math.nan]) * len(requests)
            wave = enumerate(firsts[:concurrency])
            self._heap = [(t, index) for k, index in wave if (t := k * stagger_s / concurrency) <= self.duration_s]
            self._firsts = firsts
        self._begun = len(self._heap)  # how many of `_firsts` have begun
        self._taken = bytearray(len(requests))

    def next_due(self) -> float:
        return self._heap[0][0] if self._heap else math.inf

    def take(self, now: float) -> list[int]:
        heap = self._heap
        arrival_s = self.requests.arrival_s
        taken = []
        while heap and heap[0][0] <= now:
            due, index = heappop(heap)
            arrival_s[index] = due
            self._taken[index] = 1
            taken.append(index)
        return taken

    def finished(self, index: int, at: float, error: str | None = None) -> bool:
        following = self._following[index]
        if following >= 0:
            requests = self.requests
            due = at if requests.think_s is None else at + requests.think_s[following]
            planned = requests.arrival_s[following]
            if planned > due:  # false where the plan is NaN: decided by the predecessor alone
                due = planned
        elif self._begun < len(self._firsts):
            following = self._firsts[self._begun]
            self._begun += 1
            due = at
        else:
            return False
        if due <= self.duration_s:
            heappush(self._heap, (due, following))
        return False

    def withheld(self) -> list[int]:
        if self.duration_s == math.inf:
            return []
        return [index for index, taken in enumerate(self._taken) if not taken]


class Retrying(Workload):
    """Clients that come back: attempt k that fails at `at` is followed by another at `at + backoff_s * 2**(k-1)`.

    Wraps any other workload, which hears of a request's end only after its last attempt: a closed loop's client that
    waits to come back still holds its place. A retry is made even when it falls after the time limit, since its
    request was offered before. `attempts` counts the sends of the requests that were sent more than once.

    With a `budget` all clients together retry at most so often per request that they send for the first time: each
    adds `budget` to a credit, a retry takes 1 from it, and no more than `CREDIT` is saved up (as Finagle's retry
    budgets and gRPC's retry throttling do). Who finds no credit gives up.
    """

    __slots__ = ("_backoff_s", "_budget", "_credit", "_heap", "_inner", "_retries", "attempts")

    def __init__(self, inner: Workload, *, retries: int, backoff_s: float, budget: float | None = None) -> None:
        super().__init__(inner.requests, reactive=True, duration_s=inner.duration_s)
        if retries < 0 or not 0.0 <= backoff_s < math.inf:
            raise InputError(f"retries is {retries} with a backoff of {backoff_s} s, both must be 0 or more")
        self._inner = inner
        self._retries = retries
        self._backoff_s = backoff_s
        self._budget = budget
        self._credit = 0.0
        self._heap: list[tuple[float, int]] = []
        self.attempts: dict[int, int] = {}

    def next_due(self) -> float:
        due = self._inner.next_due()
        return min(due, self._heap[0][0]) if self._heap else due

    def take(self, now: float) -> Iterable[int]:
        heap = self._heap
        taken = self._inner.take(now)
        if self._budget is not None:
            taken = list(taken)
            self._credit = min(CREDIT, self._credit + self._budget * len(taken))
        if not heap or heap[0][0] > now:
            return taken
        arrival_s = self.requests.arrival_s
        due = [(arrival_s[index], index) for index in taken]
        while heap and heap[0][0] <= now:
            at, index = heappop(heap)
            arrival_s[index] = at
            due.append((at, index))
        return [index for _, index in sorted(due)]

    def finished(self, index: int, at: float, error: str | None = None) -> bool:
        if error is None or error in NEVER_RETRIED:
            return self._inner.finished(index, at, error)
        attempt = self.attempts.get(index, 1)
        if attempt > self._retries:
            return self._inner.finished(index, at, error)
        if self._budget is not None:
            if self._credit < 1.0:
                return self._inner.finished(index, at, error)
            self._credit -= 1.0
        self.attempts[index] = attempt + 1
        heappush(self._heap, (at + self._backoff_s * 2.0 ** (attempt - 1), index))
        return True

    def withheld(self) -> Iterable[int]:
        return self._inner.withheld()


class Delayed(Workload):
    """A workload whose requests reach the engine `delay_s` after they were sent: HTTP, tokenizer, queues of processes.

    The delay keeps no device busy, so that it is no part of a step. Requests keep the time of their send, from which
    every metric counts: it is in TTFT, and in the cycle of a closed loop.
    """

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


def link_turns(requests: Requests) -> tuple[list[int], array[int]]:
    """Return the first turns, in submission order, and for each request the index of its next turn or -1.

    Turns follow each other by turn number, or in submission order where no turns are given.
    """
    following = array("q", [-1]) * len(requests)
    sessions, turns = requests.sessions, requests.turns
    if sessions is None:
        return list(range(len(requests))), following
    members: dict[str, list[int]] = {}
    firsts = []
    for index, session in enumerate(sessions):
        if session is None:
            firsts.append(index)
        else:
            members.setdefault(session, []).append(index)
    for indices in members.values():
        if turns is not None:
            indices.sort(key=turns.__getitem__)
        firsts.append(indices[0])
        for index, successor in pairwise(indices):
            following[index] = successor
    firsts.sort()
    return firsts, following
