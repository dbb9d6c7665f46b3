"""A whole run of one engine: a server and a workload in, a `Run` out, or the seconds that each term of its steps took.

`servesim.fleet.simulate` runs any number of engines. Both can be watched while they run (`advance_watched`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from servesim.config.build import Server
from servesim.config.option import seconds
from servesim.config.workload import WorkloadSpec, build_workload
from servesim.cost.model import CostModel, FloorWatch, TermWatch
from servesim.engine.engine import Engine
from servesim.engine.trace import Observation
from servesim.runs.records import Run
from servesim.workload.workload import Delayed, Workload

WATCHED_EVERY_S = 0.05  # of real time, about
LEAST_SLICE_S = 0.01  # of virtual time: about a step

Watch = Callable[[int], bool]
"""Called every now and then with the number of requests that are over; returns True to stop the run there."""


def run_workload(
    server: Server,
    spec: WorkloadSpec,
    *,
    workload: Workload | None = None,
    horizon_s: float | None = None,
    observer: Callable[[Observation], None] | None = None,
    watch: Watch | None = None,
    notes: list[str] | None = None,
) -> Run:
    """Run `spec` on `server`; `workload` is what it was built to, if it was built before.

    `notes` receives what a person should know about the input. A run that `watch` stopped is partial.
    """
    if horizon_s is not None:
        horizon_s = seconds(positive=True)(horizon_s, "horizon_s")
    config = {**server.describe(), **spec.as_dict(), "horizon_s": horizon_s}
    cost = server.cost()
    engine = Engine(
        replace(server.config, seed=spec.seed),
        cost,
        arriving(workload or build_workload(spec, notes), cost),
        observer=observer,
    )
    stopped = advance_watched(engine, math.inf if horizon_s is None else horizon_s, watch)
    run = engine.run(config)
    run.partial = stopped
    run.warnings[:0] = server.warnings
    ranks = server.spec.data_parallel_size
    if ranks > 1:
        run.warnings.append(f"one of {ranks} data-parallel ranks is simulated: give it that share of the load")
    judge_floor(run, server, cost, len(engine.log))
    return run


def judge_floor(run: Run, server: Server, cost: CostModel, steps: int) -> None:
    """Say how many of the `steps` of this kind of server were faster than its datasheet allows, if any were."""
    if isinstance(cost, FloorWatch) and cost.steps_below_floor:
        hardware = server.hardware
        warning = (
            f"{cost.steps_below_floor:,} of {steps:,} steps are faster than the datasheet of "
            f"{hardware.name} allows (mfu {hardware.mfu:g}, mbu {hardware.mbu:g})"
        )
        # Law 9: only efficiencies above 1, which are asked for by name, may do that.
        (run.warnings if max(hardware.mfu, hardware.mbu) > 1 else run.violations).append(warning)


def arriving(workload: Workload, cost: CostModel) -> Workload:
    """Return the workload as the engine sees it: later than it was sent, where the cost model has a delay."""
    delay_s: float = getattr(cost, "ingest_s", 0.0)
    return Delayed(workload, delay_s) if delay_s else workload


class Watchable(Protocol):
    """What can be advanced in slices."""

    now: float
    """The time up to which it has come."""

    def advance(self, until: float, /) -> None:
        """Run every step that starts before `until`."""

    def rests_until(self) -> float:
        """Return a time before which nothing happens but steps, infinite when everything is over."""

    def over(self) -> int:
        """Return how many requests are over."""


def advance_watched(watched: Watchable, until: float, watch: Watch | None) -> bool:
    """Advance to `until`; with a `watch`, in slices of virtual time that take about as long to compute.

    How a run is sliced changes nothing in it. Returns whether `watch` stopped it.
    """
    if watch is None:
        watched.advance(until)
        return False
    slice_s, at = 0.1, 0.0
    while at < until:
        at = min(until, max(at, watched.now) + slice_s)
        start = time.perf_counter()
        watched.advance(at)
        at = max(at, watched.rests_until())
        if at == math.inf:
            break
        if watch(watched.over()):
            return True
        took = time.perf_counter() - start
        if took < WATCHED_EVERY_S / 2:
            slice_s *= 2.0
        elif took > WATCHED_EVERY_S * 2:
            slice_s = max(LEAST_SLICE_S, slice_s / 2.0)
    return False


def watch_terms(server: Server, workload: Workload, horizon_s: float | None = None) -> TermWatch:
    """Run `workload` (which is then used up) on one `server` and return the seconds of each term of its steps.

    The run is stepped one by one, as under an observer, so that each step asks the cost model exactly once.
    """
    watch = TermWatch(server.cost())
    engine = Engine(server.config, watch, arriving(workload, watch), observer=lambda observation: None)
    watch.reset()  # an engine may ask before it begins
    engine.advance(math.inf if horizon_s is None else horizon_s)
    return watch
