"""Trace events as Perfetto and chrome://tracing read them: requests on lanes, steps, and the engine's counters.

The JSON object form of the Trace Event Format (Google, 2016). A run is a process. A request is a slice on a lane that
is free for all of its time, and its phases are slices inside it; so a lane never holds two requests at once, and as
many lanes are busy as requests are in flight. Times are us.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Any

from servesim.report.input import ReportInput, ReportRun
from servesim.report.series import Series, kv_use, preemption_times, running, step_tokens, waiting
from servesim.report.timeline import spans_of
from servesim.runs.records import Outcome
from servesim.units import us

STEPS = 1  # the thread of the engine's steps
FIRST_LANE = 2
MOST_STEPS = 200_000  # a run of more shows them as counters alone
MOST_VALUES = 50_000  # of one counter

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode
Event = dict[str, Any]


def chrome_trace(report: ReportInput) -> Iterator[str]:
    """Yield the trace in pieces: one JSON object, one event a line."""
    yield '{"displayTimeUnit":"ms","otherData":' + _encode({"title": report.title}) + ',"traceEvents":[\n'
    separator = ""
    for pid, named in enumerate(report.runs, 1):
        for event in _events(pid, named):
            yield separator + _encode(event)
            separator = ",\n"
    yield "\n]}\n"


def _events(pid: int, named: ReportRun) -> Iterator[Event]:
    yield _name(pid, 0, "process_name", f"{named.name} ({named.run.source})")
    yield from _steps(pid, named)
    yield from _requests(pid, named)
    for name, series, scale in (
        ("running", running(named.run), 1.0),
        ("waiting", waiting(named.run), 1.0),
        ("KV in use, %", kv_use(named.run), 100.0),
        ("tokens per step", step_tokens(named.run), 1.0),
    ):
        if series is not None:
            yield from _counter(pid, name, series, scale)
    for at in preemption_times(named.run) or ():
        yield {"name": "preemption", "ph": "i", "s": "p", "pid": pid, "tid": STEPS, "ts": us(at)}


def _steps(pid: int, named: ReportRun) -> Iterator[Event]:
    steps = named.run.steps
    if steps is None or len(steps) > MOST_STEPS:
        return
    yield _name(pid, STEPS, "thread_name", "steps")
    columns = (steps.end_s, steps.durations_s(), steps.decodes, steps.prefill_tokens, steps.kv_blocks)
    for number, (end_s, duration_s, decodes, prefill, blocks) in enumerate(zip(*columns, strict=True)):
        start = us(end_s - duration_s)
        yield {
            "name": "prefill step" if prefill else "decode step",
            "cat": "step",
            "ph": "X",
            "pid": pid,
            "tid": STEPS,
            "ts": start,
            "dur": max(0, us(end_s) - start),
            "args": {"step": number, "decodes": decodes, "prefill_tokens": prefill, "kv_blocks": blocks},
        }


def _requests(pid: int, named: ReportRun) -> Iterator[Event]:
    """Yield requests in order of their send, each on the lowest lane that is free by then."""
    run = named.run
    records = run.records
    order = sorted((at, index) for index, at in enumerate(records.sent_s) if at == at)
    busy: list[tuple[int, int]] = []  # (until, lane)
    free: list[int] = []
    lanes = 0
    for sent_s, index in order:
        spans = list(spans_of(run, index))
        start, end = us(sent_s), us(spans[-1][2] if spans else sent_s)
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if free:
            lane = heappop(free)
        else:
            lane, lanes = FIRST_LANE + lanes, lanes + 1
            yield _name(pid, lane, "thread_name", f"requests, lane {lane - FIRST_LANE + 1}")
        heappush(busy, (max(end, start + 1), lane))
        outcome = Outcome(records.outcome[index]).name.lower()
        args: Event = {
            "index": index,
            "outcome": outcome,
            "prompt_tokens": records.prompt_tokens[index],
            "output_tokens": records.output_tokens[index],
        }
        if index in records.reason:
            args["reason"] = records.reason[index]
        common = {"ph": "X", "pid": pid, "tid": lane}
        name = f"request {run.requests.id(index)}"
        yield {"name": name, "cat": "request", "ts": start, "dur": max(0, end - start), "args": args, **common}
        for phase, begun, ended in spans:
            yield {"name": phase, "cat": "phase", "ts": us(begun), "dur": us(ended) - us(begun), **common}


def _counter(pid: int, name: str, series: Series, scale: float) -> Iterable[Event]:
    times, values = series
    every = -(-len(times) // MOST_VALUES) or 1
    last: float | None = None
    for at, value in zip(times[::every], values[::every], strict=True):
        if value != last:
            yield {"name": name, "ph": "C", "pid": pid, "ts": us(at), "args": {"value": round(value * scale, 3)}}
            last = value


def _name(pid: int, tid: int, kind: str, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
