"""Replicas behind a router, in one virtual time.

Each engine runs by itself for as long as nothing can reach it. Arrivals happen one after the other; before one is
routed, every engine that may have finished something by then (`earliest_finish` bounds it from below) is brought to
that time, so that the router sees what a router would see. Where a completion can cause an arrival (a closed loop, a
session's next turn) an engine also stops at each completion. What happens at one instant happens in the order of
a counter, so the same seed gives the same bytes.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from servesim.config.engine import EngineConfig
from servesim.cost.model import CostModel
from servesim.engine.request_limits import RequestLimits
from servesim.errors import InputError, RunError
from servesim.fleet.merge import merged_run
from servesim.fleet.replica import Replica
from servesim.fleet.router import ROUTERS, Router
from servesim.runs.records import Records, Run
from servesim.units import suggest
from servesim.workload.workload import Workload

EVENTS_AT_ONCE = 10_000
"""So many events, and 32 for every request, may happen at one moment before the fleet is taken to turn in a circle."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Kind:
    """`count` replicas of one kind."""

    name: str
    config: EngineConfig
    cost: CostModel
    count: int = 1


class Fleet:
    """Replicas of some kinds, fed by one workload through one router."""

    def __init__(
        self,
        workload: Workload,
        kinds: Sequence[Kind],
        *,
        router: str = "round-robin",
        seed: int = 7,
        targets: array[int] | None = None,
    ) -> None:
        if router not in ROUTERS:
            raise suggest("router", router, ROUTERS)
        self.workload = workload
        self.now = 0.0
        self.until = math.inf
        self.records = Records(len(workload.requests))
        self.replica_of = array("i", [0]) * len(workload.requests)  # the replica that each request was last sent to
        self._replicas: list[Replica] = []
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._counter = 0
        # (earliest finish, whether its engine cannot get there by itself, replica), not all of them still true.
        self._bounds: list[tuple[float, bool, int]] = []
        self._bound: list[float] = []  # the true ones, by replica
        self._reactive = workload.reactive
        self._sent_blindly = False
        self._foresees = True  # nothing comes of a request but its end
        self._delay_s: float = getattr(workload, "delay_s", 0.0)  # from a request's send to the router
        self._patience = EVENTS_AT_ONCE + 32 * len(workload.requests)
        self.replicas = self.add_replicas(kinds, self.records, self._hear, targets)
        self.router: Router = ROUTERS[router](self.replicas, workload.requests, seed)

    def compress_logs(self) -> None:
        """Write a steady stretch down as one entry, before anything has run; for runs of a billion steps."""
        for replica in self._replicas:
            replica.engine.compress_log()

    def add_replicas(
        self, kinds: Sequence[Kind], records: Records, finished: Callable[..., bool], targets: array[int] | None = None
    ) -> list[Replica]:
        """Make the replicas of `kinds`; `finished` hears from them. `targets`: the output tokens of each request, where
        they are not what the requests ask for."""
        if not sum(kind.count for kind in kinds):
            raise InputError("a fleet has no replicas, must have 1 or more")
        added = []
        for kind in kinds:
            limits = RequestLimits(kind.config, self.workload.requests, targets)
            for _ in range(kind.count):
                number = len(self._replicas)
                replica = Replica(
                    number, kind.name, kind.config, kind.cost, self.workload.requests, limits, records, finished
                )
                self._replicas.append(replica)
                self._bound.append(math.inf)
                added.append(replica)
        return added

    # Time

    def advance(self, until: float = math.inf) -> None:
        """Run every step that starts before `until`, on every replica."""
        self.until = until
        if self.router.blind and not self._reactive and not self._events and until == math.inf:
            self._send_everything()
        still = 0  # events since time last moved
        while True:
            still += 1
            if still > self._patience:
                raise self._standstill()
            due = self.workload.next_due()
            at = min(due, self._events[0][0]) if self._events else due
            bound = self._least_bound()
            if bound < until and (bound < at or (bound == at < math.inf and not self._bounds[0][1])):
                replica = self._replicas[heappop(self._bounds)[2]]
                limit = min(at, until)
                if self._reactive and bound < at:
                    limit = max(min(limit, self._least_bound()), math.nextafter(bound, math.inf))
                if self._run(replica, limit):
                    still = 0
                continue
            if at >= until or at == math.inf:
                break
            if at > self.now:
                still = 0
            self.now = at
            while self._events and self._events[0][0] <= at:
                still += 1
                if still > self._patience:
                    raise self._standstill()
                _, _, act, arguments = heappop(self._events)
                act(*arguments)
            self._let_in(at)
        if until < math.inf:
            for replica in self._replicas:
                replica.engine.advance(until)

    def over(self) -> int:
        """Return how many requests are over, as their clients see it."""
        return self.records.over()

    def rests_until(self) -> float:
        """Return a time before which nothing happens but steps, infinite when everything is over."""
        due = self.workload.next_due()
        return min(due, self._events[0][0] if self._events else math.inf, self._least_bound())

    def _standstill(self) -> RunError:
        for replica in self._replicas:
            for index in (*replica.engine.live_indices(), *replica.mailbox.pending()):
                return RunError(
                    f"request {self.workload.requests.id(index)} on replica {replica.number} ({replica.name}) gets no "
                    f"further: {self._patience:,} events, and the time is still {self.now:g} s"
                )
        return RunError(f"{self._patience:,} events, and the time is still {self.now:g} s")

    def at(self, time: float, act: Callable[..., None], *arguments: Any) -> None:
        """Call `act` when the fleet's clock is at `time`."""
        self._counter += 1
        heappush(self._events, (time, self._counter, act, arguments))

    def bring_to(self, replica: Replica, time: float) -> None:
        """Let a replica's engine run every step that starts before `time`; nothing of it may finish before."""
        if replica.engine.now < time:
            replica.engine.advance(time)

    def _run(self, replica: Replica, until: float) -> bool:
        """Let a replica's engine run every step that starts before `until`; return whether there was any."""
        before_s = replica.engine.now
        replica.engine.advance(until)
        moved = replica.engine.now > before_s
        self.reschedule(replica, rests=not moved)
        return moved

    def reschedule(self, replica: Replica, *, rests: bool = False) -> None:
        """Ask a replica anew how early it may finish something; `rests`: it was just asked to run, and did not."""
        bound = replica.engine.earliest_finish()
        self._bound[replica.number] = bound
        if bound < math.inf:
            heappush(self._bounds, (bound, rests or replica.engine.now >= bound, replica.number))
        if len(self._bounds) > 8 * len(self._replicas) + 64:
            self._bounds = [
                (bound, replica.engine.now >= bound, replica.number)
                for replica, bound in zip(self._replicas, self._bound, strict=True)
                if bound < math.inf
            ]
            heapify(self._bounds)

    def _least_bound(self) -> float:
        bounds = self._bounds
        while bounds and self._bound[bounds[0][2]] != bounds[0][0]:
            heappop(bounds)
        return bounds[0][0] if bounds else math.inf

    # Requests

    def _let_in(self, at: float) -> None:
        for index in self.workload.take(at):
            self.receive(index)

    def receive(self, index: int) -> None:
        """Route one request that is due."""
        due = self.workload.requests.arrival_s[index] + self._delay_s
        if self.router.looks_inside:
            for replica in self.replicas:
                self.bring_to(replica, due)
        self.send(self.router.choose(index), due, index)

    def send(self, replica: Replica, due: float, index: int) -> None:
        """Let a request arrive at a replica."""
        self._counter += 1
        replica.count_on(self._counter)
        self.replica_of[index] = replica.number
        replica.send(due, index)
        soonest = replica.soonest_end(due, index) if self._foresees else None
        if soonest is None:
            self.reschedule(replica)
        elif soonest < self._bound[replica.number]:
            self._bound[replica.number] = soonest
            heappush(self._bounds, (soonest, False, replica.number))

    def _send_everything(self) -> None:
        """Route an open loop through a router that looks at nothing: no replica can then reach another."""
        self._sent_blindly = True
        arrival_s = self.workload.requests.arrival_s
        for index in self.workload.take(math.inf):
            replica = self.router.choose(index)
            replica.sent += 1
            self.replica_of[index] = replica.number
            replica.mailbox.post(arrival_s[index] + self._delay_s, index)
        for replica in self._replicas:
            replica.engine.workload_changed()
            self.reschedule(replica)

    def _hear(self, replica: Replica, index: int, at: float, error: str | None) -> bool:
        """Hear that a request is over; return whether its client comes back."""
        if not self._sent_blindly:
            self.at(at, self.count_off, replica)
        comes_back = self.workload.finished(index, at, error)
        if error is not None and self.workload.next_due() <= replica.engine.now:
            self._let_in(replica.engine.now)  # it was the engine that found out, which may let in more at once
        if self._reactive:
            replica.engine.stop()
        return comes_back

    def count_off(self, replica: Replica) -> None:
        """Hear that a replica has one request less in flight."""
        replica.count_off()

    def run(self, config: dict[str, Any] | None = None) -> Run:
        """Close the records of a fleet that has been advanced as far as it shall be, and return its run."""
        for replica in self._replicas:
            replica.engine.until = self.until
            replica.engine.drain()
        return merged_run(self.workload, self.replicas, self.replica_of, self.records, config or {})
