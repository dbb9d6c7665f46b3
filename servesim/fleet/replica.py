"""One engine of a fleet, and the mailbox through which the fleet feeds it."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable

from servesim.config.engine import EngineConfig
from servesim.cost.model import CostModel
from servesim.cost.roofline import Roofline
from servesim.engine.engine import Engine
from servesim.engine.request_limits import RequestLimits
from servesim.runs.records import Records
from servesim.workload.requests import Requests
from servesim.workload.workload import Workload

ROUNDING = 1.0 - 1e-9
"""What a sum of many steps may come to less than their product."""

Finished = Callable[["Replica", int, float, "str | None"], bool]


class Mailbox(Workload):
    """The workload of one replica: what the fleet has sent it, in the order of sending, which is that of time."""

    __slots__ = ("_due", "_finished", "_index", "_next", "replica")

    def __init__(self, requests: Requests, finished: Finished) -> None:
        super().__init__(requests, reactive=True, duration_s=None)
        self._due = array("d")
        self._index = array("q")
        self._next = 0
        self._finished = finished
        self.replica: Replica

    def post(self, due: float, index: int) -> None:
        """Make request `index` due at time `due`."""
        self._due.append(due)
        self._index.append(index)

    def next_due(self) -> float:
        return self._due[self._next] if self._next < len(self._due) else math.inf

    def take(self, now: float) -> array[int]:
        first = self._next
        self._next = bisect_right(self._due, now, first)
        return self._index[first : self._next]

    def pending(self) -> array[int]:
        """Return the requests that have not been let in yet."""
        return self._index[self._next :]

    def finished(self, index: int, at: float, error: str | None = None) -> bool:
        return self._finished(self.replica, index, at, error)

    def withheld(self) -> tuple[int, ...]:
        return ()


class Replica:
    """One engine of a fleet. `in_flight` counts what it was sent and has not finished, as its client sees it."""

    __slots__ = (
        "_roofline",
        "accepts",
        "engine",
        "in_flight",
        "last_sent",
        "mailbox",
        "name",
        "number",
        "sent",
        "when_changed",
    )

    def __init__(
        self,
        number: int,
        name: str,
        config: EngineConfig,
        cost: CostModel,
        requests: Requests,
        limits: RequestLimits,
        records: Records,
        finished: Finished,
    ) -> None:
        self.number = number
        self.name = name
        self.mailbox = Mailbox(requests, finished)
        self.mailbox.replica = self
        self.engine = Engine(config, cost, self.mailbox, limits=limits, records=records)
        self.in_flight = 0
        self.sent = 0
        self.last_sent = 0  # the fleet's count of sent requests when it got its last one
        self.accepts = True
        self.when_changed: Callable[[Replica], None] | None = None  # the router that goes by its load
        self._roofline = cost if type(cost) is Roofline and _serves_all(config, limits) else None

    def count_on(self, counter: int) -> None:
        """Count a request that it is sent; `counter` is the fleet's count of things that happened."""
        self.in_flight += 1
        self.sent += 1
        self.last_sent = counter
        if self.when_changed is not None:
            self.when_changed(self)

    def count_off(self) -> None:
        """Count a request that is over."""
        self.in_flight -= 1
        if self.when_changed is not None:
            self.when_changed(self)

    def send(self, due: float, index: int) -> None:
        """Let request `index` arrive at time `due`."""
        self.mailbox.post(due, index)
        self.engine.workload_changed()

    def soonest_end(self, due: float, index: int) -> float | None:
        """Return a time before which request `index`, sent at `due`, is not over; None where that is not known.

        Its prompt is computed and then a token a step, each over at least the prompt's KV: whatever else the engine
        has to do only adds to that.
        """
        roofline = self._roofline
        if roofline is None:
            return None
        engine = self.engine
        prompt = engine.workload.requests.prompt_tokens[index]
        first_s = roofline.seconds(1 if engine.config.prefix_caching else prompt, prompt)
        more_s = (engine.limits.targets[index] - 1) * roofline.seconds(1, prompt)
        return due + (first_s + more_s) * ROUNDING

    def kv_fraction(self) -> float:
        """Return the part of its blocks that have holders, as of the step that it is in."""
        return self.engine.pool.used / self.engine.pool.num_blocks


def _serves_all(config: EngineConfig, limits: RequestLimits) -> bool:
    """Tell whether every request is served to its end, with a token a step."""
    is_bounded = config.max_num_queued_reqs is not None or config.max_num_queued_tokens is not None
    may_fail = is_bounded or config.client_timeout_s is not None or limits.may_refuse
    return not (may_fail or config.spec_tokens or config.kv_tiers or config.adapters is not None)
