"""The runs of a plan: one deployment at one rate, judged by the objectives, and the units of work made of them.

Every rate and every candidate meets the same requests: the lengths and the pattern of arrivals of one seed, stretched
in time (common random numbers), so that two trials differ by the rate or the server and not by luck. A trial is ended
early once it is certain to miss: when more requests are known to be late than the percentile lets pass. Nothing that
comes later can take that back, so the verdict is the one that the whole run would have given.

A unit is complete in itself, so that any process or machine can do it, with one row out:

| unit | asks | row |
|---|---|---|
| `edge` | the highest rate a candidate sustains under one seed, within 5 % | that, the first that misses, what binds |
| `refine` | the same under any seed, within 2.5 %, from a rate that is nearly right | that, the first that misses |
| `at` | how a candidate does at one rate under one seed | the objectives and what the engine did |
| `fleet` | the same of replicas behind a router, which share the rate | the same |

A row depends on its unit and the plan's workload and objectives alone: not on who computes it, when, or beside what.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from typing import Any

from servesim.config.build import Server
from servesim.config.workload import WorkloadSpec, drive, load_requests
from servesim.diagnose.binding import binding_of, busiest_part
from servesim.engine.engine import Engine
from servesim.engine.simulate import arriving
from servesim.fleet.build import Deployment, build_deployment
from servesim.interrupts import leave_interrupts_to_the_parent
from servesim.plan.search import Found, Limit, ProbeOutcome, Search
from servesim.plan.space import Candidate, Prospect, prospect_of
from servesim.runs.records import Records, Run
from servesim.stats import Sample, Values, nearest_rank
from servesim.summary.latency import LATENCIES, Completed, pooled_gaps
from servesim.summary.slo import Slo, SloResult, judge
from servesim.summary.summary import summarize
from servesim.workload.requests import Requests
from servesim.workload.workload import OpenLoop, Workload

LOOKS = 64  # how often at least a running trial is checked for a certain miss


@dataclass(slots=True)
class Trial:
    """What one run came to. `cut` is why it was ended early, None if it was not; its figures are then of a part."""

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
    if deployment.single_engine is not None:
        run, cut = _run_engine(deployment.single_engine, workload, slos, load.seed)
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
        self.targets = engine.limits.targets
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


# Units of work

EDGE, REFINE, AT, FLEET = "edge", "refine", "at", "fleet"

RESOLUTION = {EDGE: 0.05, REFINE: 0.025}  # of a rate that was searched
GROWTH = {EDGE: 1.25, REFINE: 1.05}
FIRST_PROBE = 0.9  # of what the roofline allows: most edges lie a little below it
HIGHEST_PROBE = 16.0  # of it: above, the run is too short to miss anything

MOST_REQUESTS = 50_000  # of a whole fleet

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What all units of a plan have in common."""

    workload: WorkloadSpec
    slos: tuple[Slo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One piece of work. `rate`: where a refinement begins, or the rate to run at."""

    kind: str
    candidate: Candidate
    seed: int
    rate: float | None = None
    replicas: int = 1

    @property
    def id(self) -> str:
        rate = "" if self.rate is None else f":{self.rate!r}"
        rate += f":{self.replicas}" if self.replicas > 1 else ""
        return f"{self.kind}:{self.candidate.key}:{self.seed}{rate}"


def work(question: Question, unit: Unit) -> Row:
    """Do one unit and return its row."""
    load = load_of(_workload(question, unit), unit.seed)
    prospect = prospect_of(unit.candidate, load.requests, question.slos)
    row: Row = {"unit": unit.id, "kind": unit.kind, "candidate": unit.candidate.key, "seed": unit.seed}
    if unit.kind == FLEET:
        fleet = replace(unit.candidate.fleet, replicas=unit.replicas)
        deployment = build_deployment(unit.candidate.server, fleet)
        trial = run_trial(deployment, load, unit.rate or 1.0, question.slos)
        return {**row, "rate": unit.rate, "router": fleet.router, "at": figures(trial, question.slos)}
    if unit.kind == AT:
        assert prospect.deployment is not None and unit.rate is not None
        trial = run_trial(prospect.deployment, load, unit.rate, question.slos)
        at = {"rate": unit.rate, "met": False, "cut": trial.cut} if trial.cut else figures(trial, question.slos)
        return {**row, "rate": unit.rate, "at": at}
    if prospect.impossible is not None:
        return {**row, "impossible": prospect.impossible, "estimate": prospect.estimate, "rate": None}
    found = _search(question, unit, prospect, load)
    return {**row, **_edge_row(question, unit, prospect, found)}


def _workload(question: Question, unit: Unit) -> WorkloadSpec:
    """Return the workload of a unit: as many requests for each replica as one server is searched with."""
    spec = question.workload
    if spec.requests is None or spec.trace is not None:
        return spec
    return replace(spec, requests=min(spec.requests * unit.replicas, MOST_REQUESTS))


def _search(question: Question, unit: Unit, prospect: Prospect, load: Load) -> Found[Trial]:
    assert prospect.deployment is not None and prospect.estimate is not None
    deployment, highest = prospect.deployment, HIGHEST_PROBE * prospect.estimate
    start = unit.rate or on_grid(FIRST_PROBE * prospect.estimate)

    def probe(rate: float) -> tuple[ProbeOutcome, Trial]:
        trial = run_trial(deployment, load, rate, question.slos)
        return (ProbeOutcome.MET if trial.met else ProbeOutcome.MISSED), trial

    return Search(
        probe=probe,
        start=min(start, highest),
        maximum=highest,
        growth=GROWTH[unit.kind],
        resolution=RESOLUTION[unit.kind],
        votes=1,
    ).run()


def on_grid(rate: float) -> float:
    """Return the power of the search's growth that is nearest to `rate`.

    All searches begin on one grid, so that they come to the same rates, and candidates that do alike have one edge.
    """
    growth = GROWTH[EDGE]
    return float(growth ** round(math.log(rate, growth)))


def _edge_row(question: Question, unit: Unit, prospect: Prospect, found: Found[Trial]) -> Row:
    row: Row = {
        "impossible": None,
        "estimate": prospect.estimate,
        "rate": found.load,
        "next_rate": found.next_load,
        "too_short": found.limit is Limit.MAXIMUM,
        "probes": [[probe.load, probe.answer.value] for probe in found.probes],
    }
    missed = [probe.result for probe in found.probes if probe.load == found.next_load]
    if missed:
        row["missed"] = missed[-1].cut or "; ".join(
            f"{result.metric} p{result.percentile:g} above {result.limit_ms:g} ms"
            for result in missed[-1].slos
            if not result.met
        )
    if found.load is None:
        row["impossible"] = f"misses at {found.next_load:.3g} requests/s too: {row.get('missed')}"
        return row
    if unit.kind == EDGE:
        assert found.result is not None and prospect.server is not None
        row["at"] = figures(found.result, question.slos)
        if unit.candidate.fleet.disagg is not None:
            row["binds"] = busiest_part(found.result.run)
        elif prospect.deployment is not None and prospect.deployment.single_engine is not None:
            # Just above the edge the budget that is short shows best.
            binding = binding_of((missed[-1] if missed else found.result).run, prospect.server)
            row["binds"] = {**asdict(binding), "told": str(binding)}
    return row


@contextmanager
def workers(question: Question, jobs: int) -> Iterator[Callable[[Sequence[Unit]], Iterator[Row]]]:
    """Give a function that yields the row of each unit as it is done, computing `jobs` at a time in processes."""
    if jobs <= 1:
        yield lambda units: (work(question, unit) for unit in units)
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=leave_interrupts_to_the_parent)

    def run(units: Sequence[Unit]) -> Iterator[Row]:
        futures: list[Future[Row]] = [pool.submit(work, question, unit) for unit in units]
        for future in as_completed(futures):
            yield future.result()

    try:
        yield run
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
