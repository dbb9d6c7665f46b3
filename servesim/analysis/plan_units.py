"""The pieces of work of a plan: each complete in itself, so that any process or machine can do it, with one row out.

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any

from servesim.analysis.binding import binding_of, busiest_part
from servesim.analysis.plan_space import Candidate, Prospect, prospect_of
from servesim.analysis.search import Answer, Found, Limit, Search
from servesim.analysis.trial import Load, Trial, figures, load_of, run_trial
from servesim.fleet.build import build_deployment
from servesim.interrupts import leave_interrupts_to_the_parent
from servesim.slo import Slo
from servesim.workload.spec import WorkloadSpec

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

    def probe(rate: float) -> tuple[Answer, Trial]:
        trial = run_trial(deployment, load, rate, question.slos)
        return (Answer.MET if trial.met else Answer.MISSED), trial

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
        elif prospect.deployment is not None and prospect.deployment.lone is not None:
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
