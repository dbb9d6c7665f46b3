"""A workload: every option, checked, in one frozen value that is also the JSON `config`, and what is built from it."""

from __future__ import annotations

from array import array
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from servesim.config.option import (
    check_fields,
    count,
    number,
    one_of,
    option,
    seconds,
    switch,
    text,
    values_of,
)
from servesim.errors import InputError
from servesim.units import parse_count, shown
from servesim.workload.arrivals import (
    ARRIVALS,
    MAX_REQUESTS,
    check_arrivals,
    draw_arrivals,
    draw_scheduled,
    read_schedule,
)
from servesim.workload.classes import parse_classes
from servesim.workload.generate import RequestMix, generate_requests
from servesim.workload.lengths import LENGTHS, MAX_TOKENS, parse_lengths
from servesim.workload.requests import Requests
from servesim.workload.reshape import at_speed
from servesim.workload.traces.fields import TIME_UNITS
from servesim.workload.traces.trace import EXAMPLES, TRACE_FORMATS, Trace, read_trace
from servesim.workload.workload import ClosedLoop, OpenLoop, Retrying, SessionLoop, Workload

DEFAULT_CONCURRENCY = 8
DEFAULT_REQUESTS = 256
DEFAULT_PROMPT_TOKENS = "256-1024"
DEFAULT_OUTPUT_TOKENS = "64-256"
REQUESTS_OF_A_DURATION = 100_000  # at most so many in a closed loop that has a duration and no number of requests

MAX_TURNS = 10_000  # of a session
MAX_ADAPTERS = 100_000


LOADS = frozenset({"concurrency", "rate", "rate_schedule", "trace"})
"""Fields of which one at least says how much load there is."""

WORKLOAD = "workload"
TRACE = "trace"

LENGTHS_TEXT = "N, LOW-HIGH or a distribution: " + ", ".join(kind.usage for kind in LENGTHS.values())


def lengths(value: Any, name: str) -> str:
    """Check for a number of tokens, a range or a distribution of them (see lengths.LENGTHS)."""
    return parse_lengths(value if isinstance(value, str) else str(parse_count(value, name)), name).text


def request_classes(value: Any, name: str) -> str:
    """Check for classes of requests (see classes)."""
    parse_classes(text(value, name))
    return str(value)


@dataclass(slots=True, frozen=True, kw_only=True)
class WorkloadSpec:
    """Which requests come, and when.

    One of `concurrency`, `rate`, `rate_schedule` and `trace` is given, or `trace` with `concurrency`.

    What was not given is filled in, so that the value shows the effective configuration; None stays where an option
    has no part in the workload. A trace brings its own lengths, prefixes, sessions and priorities.
    """

    requests: int | None = option(
        None,
        count(maximum=MAX_REQUESTS),
        "how many requests",
        shown_default="256; every row of a trace",
        group=WORKLOAD,
        common=True,
    )
    prompt_tokens: str | None = option(  # a request's own, or what a turn adds
        None, lengths, f"tokens of a prompt: {LENGTHS_TEXT}", "LENGTH", shown_default=DEFAULT_PROMPT_TOKENS, common=True
    )
    output_tokens: str | None = option(
        None,
        lengths,
        "tokens of an answer, in the same forms",
        "LENGTH",
        shown_default=DEFAULT_OUTPUT_TOKENS,
        aliases=("--max-tokens",),
        common=True,
    )
    seed: int = option(7, count(minimum=0, maximum=2**63), "of every random draw")
    concurrency: int | None = option(
        None,
        count(maximum=MAX_REQUESTS),
        "closed loop: N requests (or sessions) in flight, each end releases the next",
        common=True,
    )
    stagger_s: float = option(0.0, seconds(), "closed loop: spread the first wave over TIME", "TIME")
    rate: float | None = option(
        None,
        number(above=0.0),
        "open loop: requests (or sessions) per second, whatever the server does",
        "R",
        common=True,
    )
    arrivals: str | None = option(
        None,
        one_of("arrival process", ARRIVALS),
        "open loop: {choices}",
        "NAME",
        shown_default="poisson; gamma with a --burstiness",
    )
    burstiness: float = option(
        1.0, number(above=0.0), "open loop: shape of gamma gaps, below 1 burstier than Poisson", "X"
    )
    ramp_s: float = option(0.0, seconds(), "open loop: the rate grows from 0 over TIME", "TIME")
    rate_schedule: str | None = option(
        None,
        text,
        "open loop: a rate that changes, from time,rate rows in FILE; once through, or to --requests or --duration",
        "FILE",
        swept=False,
        when_used=True,
    )
    trace: str | None = option(
        None,
        text,
        f"replay the requests of FILE, or an example: {', '.join(EXAMPLES)}",
        "FILE",
        swept=False,
        group=TRACE,
        common=True,
    )
    trace_format: str | None = option(
        None,
        one_of("trace format", TRACE_FORMATS),
        "instead of recognising it: {choices}",
        "NAME",
        swept=False,
    )
    time_unit: str | None = option(
        None,
        one_of("time unit", TIME_UNITS),
        "of the trace's times, where that is ambiguous: {choices}",
        "UNIT",
        swept=False,
    )
    skip_bad_rows: bool = option(False, switch, "leave out rows that cannot be read, and count them")
    speed: float = option(1.0, number(above=0.0, maximum=1e9), "replay the arrivals X times as fast", "X")
    shared_prefix_tokens: int = option(
        0,
        count(minimum=0, maximum=MAX_TOKENS),
        "tokens before the prompt that requests share",
        group=WORKLOAD,
    )
    prefixes: int = option(1, count(maximum=MAX_REQUESTS), "how many different shared prefixes there are")
    turns: str = option("1", lengths, "turns of a session, each prompt holding the earlier turns", "LENGTH")
    think_s: float = option(0.0, seconds(), "pause between the turns of a session", "TIME", flag="--think-time")
    priorities: int = option(1, count(maximum=2**31), "levels of priority, equally likely, for --policy priority")
    classes: str | None = option(
        None,
        request_classes,
        "classes of requests, a comma list: NAME=WEIGHT and, if they differ, /priority=P /prompt=LENGTH /output=LENGTH "
        "/adapter=NAME behind it",
        "CLASSES",
        swept=False,
        when_used=True,
    )
    adapters: int = option(
        0, count(minimum=0, maximum=MAX_ADAPTERS), "LoRA adapters, equally likely, for --max-loras", when_used=True
    )
    retries: int = option(0, count(minimum=0, maximum=1000), "how often a client comes back after a failure")
    retry_budget: float | None = option(
        None,
        number(minimum=0.0, maximum=1000.0),
        "retries of all clients per request of theirs",
        "X",
        shown_default="no limit",
        when_used=True,
    )
    backoff_s: float = option(1.0, seconds(), "pause before the first retry, doubled for each next", "TIME")
    duration_s: float | None = option(
        None,
        seconds(positive=True),
        "no arrivals after TIME",
        "TIME",
        shown_default="no limit",
        after="rate_schedule",
    )

    def __post_init__(self) -> None:
        check_fields(self)
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

    def as_dict(self) -> dict[str, Any]:
        """Return the options as JSON values, those of features that are off left out; they give the same spec back."""
        return values_of(self)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

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
    """Return the trace of `spec`, with its arrivals at the speed of the spec."""
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
