"""A whole run in one call: servers and a workload in, a `Run` out. The way in for programs and for every verb."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from servesim.config.fleet import FleetSpec
from servesim.config.option import checks_of, seconds, spec_of
from servesim.config.server import ServerSpec
from servesim.config.workload import DEFAULT_CONCURRENCY, LOADS, WorkloadSpec, build_workload
from servesim.engine.simulate import Watch, advance_watched, arriving, judge_floor, run_workload
from servesim.engine.trace import Observation
from servesim.fleet.build import Deployment, build_deployment
from servesim.fleet.usage import usage
from servesim.runs.records import Run
from servesim.units import suggest
from servesim.workload.workload import Workload

COMPRESS_FROM = 200_000


def simulate(
    *,
    horizon_s: float | None = None,
    observer: Callable[[Observation], None] | None = None,
    watch: Watch | None = None,
    **options: Any,
) -> Run:
    """Simulate one run and return it.

    `options` are the fields of `ServerSpec`, `FleetSpec` and `WorkloadSpec`, as they stand in the `config` of a
    document: the command line's options with underscores, a unit at their end (`client_timeout_s`, `link_bytes_per_s`):

    >>> run = simulate(hardware="l4-24gb", requests=4, prompt_tokens="100", output_tokens="10", concurrency=2)
    >>> list(run.records.output_tokens)
    [10, 10, 10, 10]
    >>> two = simulate(replicas=2, router="round-robin", requests=4, output_tokens="10", rate=9.0)
    >>> [replica.requests for replica in two.replicas]
    [2, 2]

    Without a concurrency, a rate or a trace the loop is closed at 8. `horizon_s` ends the run at that virtual time.
    An `observer` sees every step of a single engine. Raises `InputError` for options that make no sense and
    `CapacityError` for a model that does not fit.
    """
    known = [name for spec in (ServerSpec, FleetSpec, WorkloadSpec) for name in checks_of(spec)]
    for name in options:
        if name not in known:
            raise suggest("option", name, known)
    if all(options.get(name) is None for name in LOADS):
        options["concurrency"] = DEFAULT_CONCURRENCY
    deployment = build_deployment(spec_of(ServerSpec, options), spec_of(FleetSpec, options))
    load = spec_of(WorkloadSpec, options)
    return run_deployment(deployment, load, horizon_s=horizon_s, observer=observer, watch=watch)


def run_deployment(
    deployment: Deployment,
    spec: WorkloadSpec,
    *,
    workload: Workload | None = None,
    horizon_s: float | None = None,
    observer: Callable[[Observation], None] | None = None,
    watch: Watch | None = None,
    every_token: bool = True,
) -> Run:
    """Run `spec` on `deployment`; `workload` is what it was built to, if it was built before.

    A single engine is run as such, so that one replica is no other thing than none asked for. A run that `watch`
    stopped is partial. Where nobody asks for `every_token`'s time, a fleet of `COMPRESS_FROM` requests and more keeps a
    compressed log: the same figures from far less memory, but no times of the tokens between first and last.
    """
    server = deployment.single_engine
    if server is not None:
        run = run_workload(server, spec, workload=workload, horizon_s=horizon_s, observer=observer, watch=watch)
        run.config = {**deployment.describe(), **spec.as_dict(), "horizon_s": run.config["horizon_s"]}
        return _with_usage(run, deployment)
    if horizon_s is not None:
        horizon_s = seconds(positive=True)(horizon_s, "horizon_s")
    costs = [built.server.cost() for built in deployment.kinds]
    fleet = deployment.drive(arriving(workload or build_workload(spec), costs[0]), costs, spec.seed)
    if not every_token and len(fleet.workload.requests) >= COMPRESS_FROM and deployment.can_compress_log:
        fleet.compress_logs()
    stopped = advance_watched(fleet, math.inf if horizon_s is None else horizon_s, watch)
    run = fleet.run({**deployment.describe(), **spec.as_dict(), "horizon_s": horizon_s})
    run.partial = stopped
    run.warnings[:0] = deployment.warnings
    steps = {built.name: 0 for built in deployment.kinds}
    for replica in run.replicas:
        steps[replica.name] += replica.steps
    for built, cost in zip(deployment.kinds, costs, strict=True):
        judge_floor(run, built.server, cost, steps[built.name])
    return _with_usage(run, deployment)


def _with_usage(run: Run, deployment: Deployment) -> Run:
    """Say what a run used, where it was asked or the fleet grows and shrinks."""
    spec = deployment.spec
    if spec.autoscale is not None or spec.price is not None or spec.energy:
        run.usage = usage(run, deployment.worked(run), spec.price or (), energy=spec.energy)
        if spec.energy and run.usage["energy"] is None:
            run.warnings.append("no energy: the catalogue has no power at rest of a device (servesim hardware NAME)")
    return run
