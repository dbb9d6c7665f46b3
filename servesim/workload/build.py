"""From a description to a workload that can be driven: the way in for everyone who is not a test of its parts."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

from servesim.config.workload import WorkloadSpec
from servesim.workload.generate import generate_requests
from servesim.workload.requests import Requests
from servesim.workload.reshape import at_speed
from servesim.workload.traces.trace import Trace, read_trace
from servesim.workload.workload import ClosedLoop, OpenLoop, Retrying, SessionLoop, Workload


def build_workload(spec: WorkloadSpec, notes: list[str] | None = None) -> Workload:
    """Return a new workload for one run; `notes` receives what a person should know about the input.

    Raises InputError for a trace that cannot be read or understood.
    """
    return drive(spec, load_requests(spec, notes))


def load_requests(spec: WorkloadSpec, notes: list[str] | None = None) -> Requests:
    """Return the requests of `spec`, generated or read. They depend on the seed and the trace, not on who is served
    when, so that a sweep may load them once and `drive` them many times."""
    if spec.trace is None:
        return generate_requests(spec)
    trace = load_trace(spec)
    if notes is not None:
        notes.append(trace.describe())
        notes.extend(trace.notes)
    return trace.requests


def load_trace(spec: WorkloadSpec) -> Trace:
    """Return the trace of `spec`, with its arrivals at the speed asked for."""
    trace = read_trace(
        str(spec.trace),
        trace_format=spec.trace_format,
        time_unit=spec.time_unit,
        skip_bad_rows=spec.skip_bad_rows,
        arrivals_required=spec.concurrency is None,
        limit=spec.requests,
    )
    return trace if spec.speed == 1.0 else replace(trace, requests=at_speed(trace.requests, spec.speed))


def drive(spec: WorkloadSpec, requests: Requests) -> Workload:
    """Return a new workload over `requests`, whose columns it shares but for the arrivals, which are its own."""
    requests = copy(requests)
    requests.arrival_s = requests.arrival_s[:]
    workload: Workload
    if requests.sessions is not None:
        workload = SessionLoop(
            requests, concurrency=spec.concurrency, stagger_s=spec.stagger_s, duration_s=spec.duration_s
        )
    elif spec.concurrency is not None:
        workload = ClosedLoop(requests, spec.concurrency, stagger_s=spec.stagger_s, duration_s=spec.duration_s)
    else:
        workload = OpenLoop(requests, duration_s=spec.duration_s)
    if spec.retries:
        workload = Retrying(workload, retries=spec.retries, backoff_s=spec.backoff_s, budget=spec.retry_budget)
    return workload
