"""One deployment at one rate: the run that a search asks for, and whether it meets the objectives.

Every rate and every candidate meets the same requests: the lengths and the pattern of arrivals of one seed, stretched
in time (common random numbers), so that two answers differ by the rate or the server and not by luck.

A trial is ended early once it is certain to miss: when more requests are known to be late than the percentile lets
pass. Nothing that comes later can take that back, so the answer is the one that the whole run would have given.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from servesim.engine.engine import Engine
from servesim.engine.server import Server
from servesim.engine.simulate import arriving
from servesim.fleet.build import Deployment
from servesim.latency import LATENCIES, Completed, pooled_gaps
from servesim.records import Records, Run
from servesim.slo import Slo, SloResult, judge
from servesim.stats import Sample, Values, nearest_rank
from servesim.summary import summarize
from servesim.workload.build import drive, load_requests
from servesim.workload.requests import Requests
from servesim.workload.spec import WorkloadSpec
from servesim.workload.workload import OpenLoop, Workload

LOOKS = 64  # how often at least a trial is looked at while it runs


@dataclass(slots=True)
class Trial:
    """What one run said. `cut` tells that it was ended early, with the reason; its figures are then of a part."""

    rate: float
    run: Run
    slos: list[SloResult]
    cut: str | None = None

    @property
    def met(self) -> bool:
        return self.cut is None and all(result.met for result in self.slos)


@dataclass(slots=True)
class Load:
    """The requests of one seed, and the rate at which they were drawn."""

    spec: WorkloadSpec
    seed: int
    requests: Requests
    rate: float = field(init=False)

    def __post_init__(self) -> None:
        arrivals = [at for at in self.requests.arrival_s if at == at]
        span_s = arrivals[-1] if arrivals else 0.0
        self.rate = self.spec.rate or (len(arrivals) / span_s if span_s > 0 else 1.0)

    def at(self, rate: float, count: int | None = None) -> Workload:
        """Return the first `count` requests as they come at `rate` a second."""
        requests = self.requests if count is None else head(self.requests, count)
        requests = copy(requests)
        stretch = self.rate / rate
        requests.arrival_s = array("d", (at * stretch for at in requests.arrival_s))
        return drive(self.spec, requests)


def load_of(spec: WorkloadSpec, seed: int) -> Load:
    """Return the requests of `spec` under `seed`; a trace is the same under any."""
    spec = WorkloadSpec(**{**spec.as_dict(), "seed": seed})
    return Load(spec, seed, load_requests(spec))


def head(requests: Requests, count: int) -> Requests:
    """Return the first `count` requests."""
    cut = Requests()
    for name in Requests.__slots__:
        column = getattr(requests, name)
        setattr(cut, name, None if column is None else column[:count])
    return cut


def run_trial(deployment: Deployment, load: Load, rate: float, slos: Sequence[Slo], count: int | None = None) -> Trial:
    """Run `deployment` at `rate` and judge it by `slos`."""
    workload = load.at(rate, count)
    cut = None
    if deployment.lone is not None:
        run, cut = _run_engine(deployment.lone, workload, slos, load.seed)
    else:
        costs = [built.server.cost() for built in deployment.kinds]
        fleet = deployment.drive(arriving(workload, costs[0]), costs, load.seed)
        fleet.advance()
        run = fleet.run()
    return Trial(rate, run, [] if cut else _judge(run, slos), cut)


def figures(trial: Trial, slos: Sequence[Slo]) -> dict[str, Any]:
    """Return what a plan tells of a whole trial, as JSON."""
    summary = summarize(trial.run, slos)
    return {
        "rate": trial.rate,
        "met": trial.met,
        "slo": [
            {"name": slo.name, "limit_ms": result.limit_ms, "value_ms": result.value_ms, "met": result.met}
            for slo, result in zip(slos, trial.slos, strict=True)
        ],
        "share_of_limit": share_of_limit(trial.slos),
        "output_tokens_per_s": summary.throughput.output_tokens_per_s,
        "mean_batch": summary.engine.mean_batch,
        "kv_peak": summary.engine.kv_peak,
        "preemptions": summary.engine.preemptions,
        "prefix_hit_rate": summary.engine.prefix_hit_rate,
        "failed": summary.requests.offered - summary.requests.completed,
    }


def share_of_limit(results: Sequence[SloResult]) -> float | None:
    """Return the largest share of a limit that is used up, None where a value is infinite or unknown."""
    shares = [None if result.value_ms is None else result.value_ms / result.limit_ms for result in results]
    return None if None in shares or not shares else max(share for share in shares if share is not None)


def _run_engine(server: Server, workload: Workload, slos: Sequence[Slo], seed: int) -> tuple[Run, str | None]:
    cost = server.cost()
    engine = Engine(replace(server.config, seed=seed), cost, arriving(workload, cost))
    certain = [] if workload.reactive else _watches(engine, workload, slos)
    if certain:
        arrivals = workload.requests.arrival_s
        span_s = arrivals[-1] if arrivals else 0.0
        at = slice_s = span_s / LOOKS or 1.0
        while at < 2 * span_s:
            engine.advance(at)
            for watch in certain:
                if cut := watch(engine.now):
                    return engine.run(), cut
            at = max(at, engine.now) + slice_s
    engine.advance()
    return engine.run(), None


def _judge(run: Run, slos: Sequence[Slo]) -> list[SloResult]:
    """Judge a run that is over, looking at nothing but the metrics that are asked about."""
    if any(slo.metric == "itl" for slo in slos):
        return summarize(run, slos).slo or []
    done = Completed(run)
    incomplete = len(run.records) - done.count
    samples: dict[str, Sample] = {}
    for metric in {slo.metric for slo in slos}:
        samples[metric] = pooled_gaps(run, done) if metric == "itl" else Values(LATENCIES[metric](done))
    return [judge(slo, samples[slo.metric], incomplete) for slo in slos]


# Certain to miss

Watch = Callable[[float], "str | None"]


def _watches(engine: Engine, workload: Workload, slos: Sequence[Slo]) -> list[Watch]:
    """Return for every objective that allows it a function that tells, at a time, whether it is lost for certain."""
    if not isinstance(workload, OpenLoop):
        return []
    made = {"ttft": _Late, "ttfo": _Late, "queue": _LateQueue, "e2e": _LateEnd, "tpot": _LatePace}
    return [made[slo.metric](engine, workload.requests, slo).look for slo in slos if slo.metric in made]


class _Late:
    """Counts late requests in their order of arrival, each looked at once: when its deadline has passed."""

    def __init__(self, engine: Engine, requests: Requests, slo: Slo) -> None:
        self.slo = slo
        self.records: Records = engine.records
        self.end_s = engine.log.end_s
        self.targets = engine.targets
        self.arrival_s = requests.arrival_s
        self.next = 0
        self.late = 0
        self.allowed = len(requests) - nearest_rank(slo.percentile, len(requests))

    def look(self, now: float) -> str | None:
        """Return why the objective is lost, None while it is not for certain."""
        while self.next < len(self.arrival_s):
            late = self.is_late(self.next, now)
            if late is None:
                return None
            self.next += 1
            self.late += late
            if self.late > self.allowed:
                return (
                    f"{self.late:,} of {len(self.arrival_s):,} requests later than {self.slo.limit_s * 1000:g} ms, "
                    f"{self.slo.name} lets {self.allowed:,} pass"
                )
        return None

    def is_late(self, index: int, now: float) -> bool | None:
        """Return whether request `index` is late; None if it is too early to say."""
        deadline_s = self.arrival_s[index] + self.slo.limit_s
        if now <= deadline_s:
            return None
        return self._missed(self.records.first[index], deadline_s)

    def _missed(self, step: int, deadline_s: float) -> bool:
        return step < 0 or self.end_s[step] > deadline_s


class _LateEnd(_Late):
    def is_late(self, index: int, now: float) -> bool | None:
        deadline_s = self.arrival_s[index] + self.slo.limit_s
        return None if now <= deadline_s else self._missed(self.records.last[index], deadline_s)


class _LateQueue(_Late):
    def is_late(self, index: int, now: float) -> bool | None:
        deadline_s = self.arrival_s[index] + self.slo.limit_s
        # NaN, not admitted yet, is not within the deadline.
        return None if now <= deadline_s else not self.records.admitted_s[index] <= deadline_s


class _LatePace(_Late):
    """A request's pace is known to be too slow once the time that its tokens may take is over."""

    def is_late(self, index: int, now: float) -> bool | None:
        first = self.records.first[index]
        if first < 0:
            return None
        gaps = self.targets[index] - 1
        if gaps < 1:
            return False
        deadline_s = self.end_s[first] + self.slo.limit_s * gaps
        return None if now <= deadline_s else self._missed(self.records.last[index], deadline_s)
