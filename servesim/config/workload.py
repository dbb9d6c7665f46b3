"""A workload: every option, checked, in one frozen value that is also the JSON `config`, and what is built from it."""

from __future__ import annotations

import math
from array import array
from copy import copy
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from servesim.errors import InputError
from servesim.units import parse_count, parse_finite, shown, suggest
from servesim.workload.arrivals import MAX_REQUESTS, check_arrivals, draw_arrivals, draw_scheduled, read_schedule
from servesim.workload.classes import parse_classes
from servesim.workload.generate import RequestMix, generate_requests
from servesim.workload.lengths import MAX_TOKENS, parse_lengths
from servesim.workload.requests import MAX_SPAN_S, Requests
from servesim.workload.reshape import at_speed
from servesim.workload.traces.fields import TIME_UNITS
from servesim.workload.traces.trace import TRACE_FORMATS, Trace, read_trace
from servesim.workload.workload import ClosedLoop, OpenLoop, Retrying, SessionLoop, Workload

DEFAULT_REQUESTS = 256
DEFAULT_PROMPT_TOKENS = "256-1024"
DEFAULT_OUTPUT_TOKENS = "64-256"
REQUESTS_OF_A_DURATION = 100_000  # at most so many in a closed loop that has a duration and no number of requests

MAX_TURNS = 10_000  # of a session
MAX_ADAPTERS = 100_000


LOADS = frozenset({"concurrency", "rate", "rate_schedule", "trace"})
"""Fields of which one at least says how much load there is."""

SAID_WHEN_USED = frozenset("rate_schedule classes adapters retry_budget".split())
"""Fields that a configuration names only where they are used."""


@dataclass(slots=True, frozen=True, kw_only=True)
class WorkloadSpec:
    """What is asked and when. One of `concurrency`, `rate`, `rate_schedule` and `trace` is given, or `trace` with
    `concurrency`.

    What was not given is filled in, so that the value shows the effective configuration; None stays where an option
    has no part in the workload. A trace brings its own lengths, prefixes, sessions and priorities.
    """

    requests: int | None = None  # 256; all rows of a trace; what the duration allows
    prompt_tokens: str | None = None  # "256-1024"; a request's own, a turn's addition (see lengths.LENGTHS)
    output_tokens: str | None = None  # "64-256"
    seed: int = 7
    concurrency: int | None = None  # closed loop: requests, or sessions, in flight
    stagger_s: float = 0.0  # closed loop: over how long the first wave is spread
    rate: float | None = None  # open loop: requests, or sessions, per second
    arrivals: str | None = None  # a key of ARRIVALS: "poisson", or "gamma" where a burstiness is given
    burstiness: float = 1.0
    ramp_s: float = 0.0  # open loop: over how long the rate grows from 0
    rate_schedule: str | None = None  # open loop: a file of times and rates (see schedule)
    trace: str | None = None
    trace_format: str | None = None  # a key of TRACE_FORMATS; None: recognised
    time_unit: str | None = None  # of the trace's times
    skip_bad_rows: bool = False
    speed: float = 1.0  # 2 replays a trace's arrivals in half the time
    shared_prefix_tokens: int = 0  # on top of prompt_tokens
    prefixes: int = 1
    turns: str = "1"  # per session (see lengths.LENGTHS)
    think_s: float = 0.0
    priorities: int = 1  # levels, equally likely
    classes: str | None = None  # who asks what (see classes)
    adapters: int = 0  # LoRA adapters, equally likely; 0: the base model
    retries: int = 0
    retry_budget: float | None = None  # retries allowed per request; None: no limit
    backoff_s: float = 1.0
    duration_s: float | None = None  # no arrivals after it

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.trace is not None:
            self._check_trace()
        elif sum(load is not None for load in (self.concurrency, self.rate, self.rate_schedule)) != 1:
            raise InputError("a workload has either a concurrency or a rate, or is a trace")
        if self.concurrency is None and self.stagger_s:
            raise InputError("stagger_s is given without a concurrency")
        if self.rate is not None or self.rate_schedule is not None:
            self._set("arrivals", self.arrivals or ("poisson" if self.burstiness == 1.0 else "gamma"))
            check_arrivals(str(self.arrivals), self.rate or 1.0, self.burstiness)
        elif self.arrivals is not None or self.burstiness != 1.0:
            raise InputError("arrivals and burstiness belong to a rate; give a rate")
        if self.rate is None and self.ramp_s:
            raise InputError("ramp_s belongs to a rate; stagger_s spreads the first wave of a concurrency")
        if self.trace is None:
            if self.trace_format or self.time_unit or self.skip_bad_rows or self.speed != 1.0:
                raise InputError("trace_format, time_unit, skip_bad_rows and speed belong to a trace; give a trace")
            self._fill_in_lengths()
        if self.turns == "1" and self.think_s:
            raise InputError("think_s is the pause between turns; give turns")
        if self.prefixes != 1 and not self.shared_prefix_tokens:
            raise InputError(f"prefixes is {self.prefixes}, but shared_prefix_tokens is 0")
        if self.retry_budget is not None and not self.retries:
            raise InputError("retry_budget limits retries; give retries")
        if self.classes is not None:
            parse_classes(self.classes)

    def as_dict(self) -> dict[str, Any]:
        """Return the options as JSON values; `WorkloadSpec(**values)` gives the same workload back."""
        options = asdict(self)
        for field in fields(self):
            if field.name in SAID_WHEN_USED and options[field.name] == field.default:
                del options[field.name]
        return options

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_numbers(self) -> None:
        for name, minimum, maximum in (
            ("requests", 1, MAX_REQUESTS),
            ("concurrency", 1, MAX_REQUESTS),
            ("seed", 0, 2**63),
            ("shared_prefix_tokens", 0, MAX_TOKENS),
            ("prefixes", 1, MAX_REQUESTS),
            ("priorities", 1, 2**31),
            ("adapters", 0, MAX_ADAPTERS),
            ("retries", 0, 1000),
        ):
            if getattr(self, name) is not None:
                self._set(name, parse_count(getattr(self, name), name, minimum=minimum, maximum=maximum))
        for name, above, maximum_s in (
            ("rate", True, math.inf),
            ("burstiness", True, math.inf),
            ("speed", True, 1e9),
            ("think_s", False, MAX_SPAN_S),
            ("backoff_s", False, MAX_SPAN_S),
            ("stagger_s", False, MAX_SPAN_S),
            ("ramp_s", False, MAX_SPAN_S),
            ("duration_s", True, MAX_SPAN_S),
            ("retry_budget", False, 1000.0),
        ):
            value = getattr(self, name)
            if value is not None:
                limits = {"above": 0.0} if above else {"minimum": 0.0}
                self._set(name, parse_finite(value, name, maximum=maximum_s, **limits))

    def _check_trace(self) -> None:
        if self.rate is not None or self.rate_schedule is not None:
            raise InputError("a trace has its own arrivals; leave out the rate, or change it with the speed")
        for name, default in (
            ("prompt_tokens", None),
            ("output_tokens", None),
            ("shared_prefix_tokens", 0),
            ("turns", "1"),
            ("priorities", 1),
            ("classes", None),
            ("adapters", 0),
        ):
            if getattr(self, name) != default:
                raise InputError(
                    f"{name} is {shown(getattr(self, name))}, but the trace says what it is; leave one out"
                )
        if self.concurrency is not None and self.speed != 1.0:
            raise InputError("speed changes arrivals, but in a closed loop a completion decides them; leave one out")
        for name, choices in (("trace_format", TRACE_FORMATS), ("time_unit", TIME_UNITS)):
            value = getattr(self, name)
            if value is not None and value not in choices:
                raise suggest(name.replace("_", " "), str(value), choices)

    def _fill_in_lengths(self) -> None:
        if self.requests is None:
            if self.rate_schedule is not None:
                pass  # its own span, once through, or the duration
            elif self.duration_s is None:
                self._set("requests", DEFAULT_REQUESTS)
            elif self.concurrency is not None:
                self._set("requests", REQUESTS_OF_A_DURATION)
        self._set("prompt_tokens", self.prompt_tokens or DEFAULT_PROMPT_TOKENS)
        self._set("output_tokens", self.output_tokens or DEFAULT_OUTPUT_TOKENS)
        for name in ("prompt_tokens", "output_tokens", "turns"):
            self._set(name, parse_lengths(getattr(self, name), name).text)
        if parse_lengths(self.turns, "turns").high > MAX_TURNS:
            raise InputError(f"turns is {self.turns!r}, must be bounded by {MAX_TURNS:,} turns or fewer")


def build_workload(spec: WorkloadSpec, notes: list[str] | None = None) -> Workload:
    """Return a new workload for one run; `notes` receives what a person should know about the input.

    Raises InputError for a trace that cannot be read or understood.
    """
    return drive(spec, load_requests(spec, notes))


def load_requests(spec: WorkloadSpec, notes: list[str] | None = None) -> Requests:
    """Return the requests of `spec`, generated or read. They depend on the seed and the trace, not on who is served
    when, so that a sweep may load them once and `drive` them many times."""
    if spec.trace is None:
        return _generated(spec)
    trace = _read_trace(spec)
    if notes is not None:
        notes.append(trace.describe())
        notes.extend(trace.notes)
    return trace.requests


def _generated(spec: WorkloadSpec) -> Requests:
    """Return the requests of a `spec` without a trace. With turns, its rate is that at which sessions begin."""
    mix = RequestMix(
        seed=spec.seed,
        requests=spec.requests,
        prompt_tokens=parse_lengths(spec.prompt_tokens, "prompt_tokens"),
        output_tokens=parse_lengths(spec.output_tokens, "output_tokens"),
        turns=parse_lengths(spec.turns, "turns"),
        think_s=spec.think_s,
        shared_prefix_tokens=spec.shared_prefix_tokens,
        prefixes=spec.prefixes,
        priorities=spec.priorities,
        adapters=spec.adapters,
        classes=() if spec.classes is None else parse_classes(spec.classes),
    )
    return generate_requests(mix, _starts(spec))


def _starts(spec: WorkloadSpec) -> array[float] | None:
    """Return when requests, or sessions, begin in an open loop; None in a closed one."""
    if spec.rate_schedule is not None:
        return draw_scheduled(
            str(spec.arrivals),
            read_schedule(spec.rate_schedule),
            seed=spec.seed,
            burstiness=spec.burstiness,
            count=spec.requests,
            until_s=spec.duration_s,
        )
    if spec.rate is None:
        return None
    return draw_arrivals(
        str(spec.arrivals),
        rate=spec.rate,
        seed=spec.seed,
        burstiness=spec.burstiness,
        ramp_s=spec.ramp_s,
        count=spec.requests,
        until_s=spec.duration_s,
    )


def _read_trace(spec: WorkloadSpec) -> Trace:
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
