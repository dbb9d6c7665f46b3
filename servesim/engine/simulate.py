"""A whole run in one call: a server and a workload in, a `Run` out. The way in for programs and for every verb."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from servesim.cost.model import CostModel, FloorWatch
from servesim.engine.engine import Engine
from servesim.engine.observation import Observation
from servesim.engine.server import Server, build_server
from servesim.engine.spec import SERVER_CHECKS, ServerSpec, seconds
from servesim.records import Run
from servesim.units import suggest
from servesim.workload.build import build_workload
from servesim.workload.delayed import Delayed
from servesim.workload.spec import WorkloadSpec
from servesim.workload.workload import Workload

DEFAULT_CONCURRENCY = 8
WATCHED_EVERY_S = 0.05  # of real time, about
LEAST_SLICE_S = 0.01  # of virtual time: about a step

Watch = Callable[[int], bool]
"""Is told, every now and then, how many requests are over; returns True to stop the run there."""


def simulate(
    *,
    horizon_s: float | None = None,
    observer: Callable[[Observation], None] | None = None,
    watch: Watch | None = None,
    **options: Any,
) -> Run:
    """Simulate one run and return it.

    `options` are the fields of `ServerSpec` and `WorkloadSpec`, the command line's options with underscores:

    >>> run = simulate(hardware="l4-24gb", requests=4, prompt_tokens="100", output_tokens="10", concurrency=2)
    >>> list(run.records.output_tokens)
    [10, 10, 10, 10]

    Without a concurrency, a rate or a trace the loop is closed at 8. `horizon_s` ends the run at that virtual time.
    Raises `InputError` for options that make no sense and `CapacityError` for a model that does not fit.
    """
    known = WorkloadSpec.__dataclass_fields__
    for name in options:
        if name not in SERVER_CHECKS and name not in known:
            raise suggest("option", name, [*SERVER_CHECKS, *known])
    server = build_server(ServerSpec(**{name: value for name, value in options.items() if name in SERVER_CHECKS}))
    load = {name: value for name, value in options.items() if name in known}
    if all(load.get(name) is None for name in ("concurrency", "rate", "trace")):
        load["concurrency"] = DEFAULT_CONCURRENCY
    return run_workload(server, WorkloadSpec(**load), horizon_s=horizon_s, observer=observer, watch=watch)


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
    engine = Engine(server.config, cost, arriving(workload or build_workload(spec, notes), cost), observer=observer)
    stopped = _advance(engine, math.inf if horizon_s is None else horizon_s, watch)
    run = engine.run(config)
    run.partial = stopped
    run.warnings[:0] = server.warnings
    if isinstance(cost, FloorWatch) and cost.steps_below_floor:
        hardware = server.hardware
        told = (
            f"{cost.steps_below_floor:,} of {len(engine.log):,} steps are faster than the datasheet of "
            f"{hardware.name} allows (mfu {hardware.mfu:g}, mbu {hardware.mbu:g})"
        )
        # Law 9: only efficiencies above 1, which somebody asked for by name, may do that.
        (run.warnings if max(hardware.mfu, hardware.mbu) > 1 else run.violations).append(told)
    return run


def arriving(workload: Workload, cost: CostModel) -> Workload:
    """Return the workload as the engine sees it: later than it was sent, where the cost model knows by how much."""
    delay_s: float = getattr(cost, "ingest_s", 0.0)
    return Delayed(workload, delay_s) if delay_s else workload


def _advance(engine: Engine, until: float, watch: Watch | None) -> bool:
    """Advance `engine` to `until`; where it is watched, in slices of virtual time that take about as long to compute.

    How a run is sliced changes nothing in it. Returns whether `watch` stopped it.
    """
    if watch is None:
        engine.advance(until)
        return False
    slice_s, at = 0.1, 0.0
    outcomes = engine.records.outcome
    while at < until:
        at = min(until, max(at, engine.now) + slice_s)
        start = time.perf_counter()
        engine.advance(at)
        if not engine.running and not engine.waiting:
            at = max(at, engine.door.wake)
            if at == math.inf:
                break
        if watch(len(outcomes) - outcomes.count(0)):
            return True
        took = time.perf_counter() - start
        if took < WATCHED_EVERY_S / 2:
            slice_s *= 2.0
        elif took > WATCHED_EVERY_S * 2:
            slice_s = max(LEAST_SLICE_S, slice_s / 2.0)
    return False
