"""Replicas that come and go with the load.

Every `every_s` seconds (0: at every arrival) a figure is compared with its target, and the number of replicas follows
it as Kubernetes' horizontal autoscaler does: wanted = ceil(live x figure / target), within the limits and, like there,
left alone within a tolerance, a tenth of the target. A new replica is paid for from its launch and serves after its
cold start. Going down waits until nothing was changed for the cool-down; the replica with the fewest requests in flight
then drains: it gets nothing more, finishes what it holds, and is gone.

What it does not know: how long a real cluster takes to find a node, and replicas that fail.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from servesim.config.fleet import FleetSpec
from servesim.errors import InputError
from servesim.fleet.fleet import Fleet, Kind
from servesim.fleet.replica import Replica
from servesim.fleet.router import ROUTERS
from servesim.runs.records import ReplicaLife, Run, ScalingTotals
from servesim.stats import nearest_rank
from servesim.units import suggest
from servesim.workload.workload import Workload


@dataclass(slots=True, frozen=True, kw_only=True)
class Scaling:
    """How the number of replicas follows the load. Times in seconds."""

    minimum: int
    maximum: int
    on: str = "concurrency"  # a key of FIGURES
    target: float = 16.0
    cold_start_s: float = 90.0
    cool_down_s: float = 300.0
    every_s: float = 15.0
    tolerance: float = 0.1  # the band around the target in which nothing is changed
    window_s: float = 60.0  # of a latency: over requests sent so recently

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum:
            raise InputError(f"autoscale is {self.minimum}:{self.maximum}, must be from 1 up to as many or more")
        if self.on not in FIGURES:
            raise suggest("figure to scale on", self.on, FIGURES)
        if not 0.0 < self.target < math.inf:
            raise InputError(f"target is {self.target}, must be above 0")
        figure = FIGURES[self.on]
        if self.target > figure.most:
            raise InputError(f"target is {self.target:g}, must be at most {figure.most:g}; {self.on} is {figure.about}")
        for name in ("cold_start_s", "cool_down_s", "every_s", "window_s", "tolerance"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name)}, must be 0 or more")


def scaling_of(spec: FleetSpec) -> Scaling | None:
    """Return how the number of replicas follows the load, what was not given filled in; None where it does not.

    Raises `InputError` for a target that its figure cannot reach.
    """
    if spec.autoscale is None:
        return None
    fewest, most = map(int, spec.autoscale.split(":"))
    on = spec.scale_on or "concurrency"
    if on not in FIGURES:
        raise suggest("figure to scale on", on, FIGURES)
    given = {
        "target": FIGURES[on].target if spec.scale_target is None else spec.scale_target,
        "cold_start_s": spec.cold_start_s,
        "cool_down_s": spec.cool_down_s,
        "every_s": spec.scale_every_s,
    }
    return Scaling(minimum=fewest, maximum=most, on=on, **{k: v for k, v in given.items() if v is not None})


def with_scaling(spec: FleetSpec) -> FleetSpec:
    """Return `spec` with every value of its autoscaling in force. Raises `InputError` as `scaling_of` does."""
    scaling = scaling_of(spec)
    if scaling is None:
        return spec
    return replace(
        spec,
        scale_on=scaling.on,
        scale_target=scaling.target,
        cold_start_s=scaling.cold_start_s,
        cool_down_s=scaling.cool_down_s,
        scale_every_s=scaling.every_s,
    )


@dataclass(slots=True)
class Life:
    """One replica's time: from its launch (paid from here), over the end of its cold start, to its end."""

    replica: int
    launched_s: float
    ready_s: float
    drained_s: float | None = None  # got nothing more from here on
    ended_s: float | None = None

    def paid_s(self, end_s: float) -> float:
        """Return the seconds from its launch to its end, or that of the run; none if the run ended before it."""
        return max(0.0, (end_s if self.ended_s is None else self.ended_s) - self.launched_s)


class ScaledFleet(Fleet):
    """A fleet of one kind of replica that grows and shrinks; `lives` says when each was there."""

    def __init__(
        self, workload: Workload, kind: Kind, scaling: Scaling, *, router: str = "least-loaded", seed: int = 7
    ) -> None:
        everyone = Kind(name=kind.name, config=kind.config, cost=kind.cost, count=scaling.maximum)
        super().__init__(workload, [everyone], router=router, seed=seed)
        self.scaling = scaling
        self.lives: list[Life] = []
        self.ready: list[Replica] = []  # those that may be sent requests
        self.router = ROUTERS[router](self.ready, workload.requests, seed)
        self.recent: deque[tuple[float, int]] = deque()  # (sent, request), of the window
        self._life: dict[int, Life] = {}  # by replica, of those that are there
        self._starting: list[Replica] = []
        self._idle = list(reversed(self.replicas))
        self._changed_s = 0.0
        for replica in self.replicas:
            replica.accepts = False
        for _ in range(scaling.minimum):
            self._launch(0.0, cold_start_s=0.0)
        if scaling.every_s:
            self.at(scaling.every_s, self._control, scaling.every_s)

    # Decisions

    def _control(self, now: float) -> None:
        if self.workload.next_due() < math.inf or any(replica.in_flight for replica in self.replicas):
            self._decide(now)
            self.at(now + self.scaling.every_s, self._control, now + self.scaling.every_s)

    def _decide(self, now: float) -> None:
        scaling = self.scaling
        live = len(self.ready) + len(self._starting)
        ratio = FIGURES[scaling.on].value(self, now) / scaling.target
        wanted = live if abs(ratio - 1.0) <= scaling.tolerance else live * ratio  # which a tiny target makes endless
        wanted = math.ceil(min(max(wanted, scaling.minimum), scaling.maximum) - 1e-9)
        while live < wanted and self._idle:
            self._launch(now, scaling.cold_start_s)
            self._changed_s = now
            live += 1
        if live > wanted and now - self._changed_s >= scaling.cool_down_s:
            self._changed_s = now
            for _ in range(live - wanted):
                if len(self.ready) > 1:
                    self._drain(min(self.ready, key=lambda replica: (replica.in_flight, -replica.number)), now)

    def _launch(self, now: float, cold_start_s: float) -> None:
        replica = self._idle.pop()
        life = Life(replica.number, now, now + cold_start_s)
        self.lives.append(life)
        self._life[replica.number] = life
        self._starting.append(replica)
        if cold_start_s:
            self.at(life.ready_s, self._open, replica)
        else:
            self._open(replica)

    def _open(self, replica: Replica) -> None:
        self._starting.remove(replica)
        replica.accepts = True
        self.ready.append(replica)
        self.ready.sort(key=lambda other: other.number)

    def _drain(self, replica: Replica, now: float) -> None:
        replica.accepts = False
        self.ready.remove(replica)
        self._life[replica.number].drained_s = now
        self._end_if_drained(replica, now)

    def _end_if_drained(self, replica: Replica, now: float) -> None:
        life = self._life.get(replica.number)
        if life is not None and life.drained_s is not None and not replica.in_flight:
            life.ended_s = now
            del self._life[replica.number]
            self._idle.append(replica)

    # What the fleet tells it

    def receive(self, index: int) -> None:
        sent_s = self.workload.requests.arrival_s[index]
        if FIGURES[self.scaling.on].recent:
            self.recent.append((sent_s, index))
        if not self.scaling.every_s:
            self._decide(sent_s)
        super().receive(index)

    def count_off(self, replica: Replica) -> None:
        super().count_off(replica)
        self._end_if_drained(replica, self.now)

    # The end

    def gpu_seconds(self) -> float:
        """Return the replica-seconds paid for: from each launch to the end of its drain, or of the run."""
        end_s = self.end_s
        return math.fsum(life.paid_s(end_s) for life in self.lives)

    @property
    def end_s(self) -> float:
        """The end of the last step of any replica."""
        return max((replica.engine.log.end_s[-1] for replica in self.replicas if replica.engine.log.end_s), default=0.0)

    def run(self, config: dict[str, Any] | None = None) -> Run:
        end_s = self.end_s
        paid_s = self.gpu_seconds()
        seconds = [0.0] * len(self.replicas)
        for life in self.lives:
            seconds[life.replica] += life.paid_s(end_s)
        run = super().run(config)
        run.scaling = ScalingTotals(
            replica_seconds=paid_s,
            seconds=seconds,
            minimum=self.scaling.minimum,
            maximum=self.scaling.maximum,
            end_s=end_s,
            peak=most_at_once(self.lives, end_s),
            lives=[
                ReplicaLife(
                    replica=life.replica,
                    launched_s=life.launched_s,
                    ready_s=life.ready_s,
                    drained_s=life.drained_s,
                    ended_s=life.ended_s,
                )
                for life in self.lives
            ],
        )
        return run


def most_at_once(lives: Sequence[Life], end_s: float) -> int:
    """Return the largest number of replicas that were paid for at one time."""
    changes = [(life.launched_s, 1) for life in lives]
    changes += [(end_s if life.ended_s is None else life.ended_s, -1) for life in lives]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


# What to scale on


@dataclass(slots=True, frozen=True)
class Figure:
    """One figure of the live replicas, to be held at a target; `recent`: it looks at the requests sent lately."""

    about: str
    value: Callable[[ScaledFleet, float], float]
    target: float  # where none is given
    recent: bool = False
    most: float = math.inf  # that it can be
    is_time: bool = False


def _waiting(fleet: ScaledFleet, now: float) -> float:
    for replica in fleet.ready:
        fleet.bring_to(replica, now)
    return _per_replica(fleet, sum(replica.engine.num_waiting for replica in fleet.ready))


def _kv(fleet: ScaledFleet, now: float) -> float:
    for replica in fleet.ready:
        fleet.bring_to(replica, now)
    return _per_replica(fleet, sum(replica.kv_fraction() for replica in fleet.ready))


def _concurrency(fleet: ScaledFleet, now: float) -> float:
    # At an arrival (every_s 0) the request that is about to be sent counts.
    arriving = 0 if fleet.scaling.every_s else 1
    return _per_replica(fleet, sum(replica.in_flight for replica in fleet.ready) + arriving)


def _per_replica(fleet: ScaledFleet, total: float) -> float:
    """Return a sum per replica that is or will be ready, so that one that is starting counts as help on its way."""
    return total / max(1, len(fleet.ready) + len(fleet._starting))


def _ttft_p95(fleet: ScaledFleet, now: float) -> float:
    """Return the p95 of the time to the first token, in seconds; who still waits has waited at least so long."""
    recent, first = fleet.recent, fleet.records.first
    while recent and recent[0][0] < now - fleet.scaling.window_s:
        recent.popleft()
    for replica in fleet.replicas:
        if replica.in_flight:
            fleet.bring_to(replica, now)
    waits = []
    for sent_s, index in recent:
        step = first[index]
        at = now if step < 0 else fleet.replicas[fleet.replica_of[index]].engine.log.end_s[step]
        waits.append(min(at, now) - sent_s)
    return sorted(waits)[nearest_rank(95, len(waits)) - 1] if waits else 0.0


FIGURES: dict[str, Figure] = {
    "waiting": Figure("waiting requests per replica", _waiting, 4.0),
    "kv": Figure("part of the KV blocks in use, 0 to 1", _kv, 0.7, most=1.0),
    "concurrency": Figure("requests in flight per replica", _concurrency, 16.0),
    "ttft_p95": Figure("p95 of TTFT over the window, a time", _ttft_p95, 1.0, recent=True, is_time=True),
}
