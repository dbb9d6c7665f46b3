"""What is in a trace: its pace and how bursty it is, its lengths, how much of its prompts is shared, its sessions.

Everything is that of the trace alone; what a server would make of it is `simulate`'s business.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass
from typing import Annotated

from servesim.stats import Distribution, Tally, Values, describe
from servesim.workload.requests import Requests
from servesim.workload.traces.trace import Trace
from servesim.workload.workload import link_turns


@dataclass(slots=True, frozen=True, kw_only=True)
class Pace:
    """When requests come; sessions' later turns without a time of their own are not in it.

    `burstiness` is the shape of gamma-distributed gaps with the same variation, as `--burstiness` takes it: 1 is
    Poisson, below it burstier; None where there are no gaps or all are equal.
    """

    span_s: float  # from the first arrival to the last
    requests_per_s: float | None  # None: all at one instant
    gap_variation: Annotated[float | None, "standard deviation of the gaps by their mean; 1 is Poisson"]
    burstiness: float | None
    busiest_second: int  # most arrivals in one second of the trace's clock
    busiest_minute: int
    most_at_once: Annotated[int, "arrivals at one instant"]  # the most
    times: Annotated[str | None, "how the file's times were read"] = None


@dataclass(slots=True, frozen=True, kw_only=True)
class Sharing:
    """What a cache that forgets nothing would find in the prompts, given in order of arrival; token by token.

    A cache of whole blocks finds a little less, and one that evicts less still.
    """

    shared_tokens: int  # prompt tokens that an earlier request had, too, in the same place
    fraction: float  # of all prompt tokens
    requests: int  # that share a head with an earlier one


@dataclass(slots=True, frozen=True, kw_only=True)
class Sessions:
    """Conversations; requests without a session are not among them."""

    count: int
    requests: int  # that are turns of one
    turns: Distribution | None
    think_s: Distribution | None  # pauses before later turns, where the trace says any


@dataclass(slots=True, frozen=True, kw_only=True)
class TraceDescription:
    """What a trace has, all of it known from its rows."""

    name: str
    format: str
    requests: int
    pace: Pace | None  # None: no arrival times
    prompt_tokens: Distribution | None
    output_tokens: Distribution | None
    total_prompt_tokens: int
    total_output_tokens: int
    sharing: Sharing | None  # None: no request says that it shares anything
    sessions: Sessions | None
    classes: dict[str, int]  # requests of each class
    priorities: dict[str, int]
    skipped: Annotated[int, "rows that could not be read"]
    notes: list[str]


def describe_trace(trace: Trace) -> TraceDescription:
    """Return what is in `trace`, of which there is at least one request."""
    requests = trace.requests
    return TraceDescription(
        name=trace.name,
        format=trace.format,
        requests=len(requests),
        pace=pace_of(requests.arrival_s, trace.times),
        prompt_tokens=describe(Tally(Counter(requests.prompt_tokens))),
        output_tokens=describe(Tally(Counter(requests.output_tokens))),
        total_prompt_tokens=sum(requests.prompt_tokens),
        total_output_tokens=sum(requests.output_tokens),
        sharing=sharing_of(requests),
        sessions=_sessions(requests),
        classes=dict(Counter(name for name in requests.class_names or () if name is not None).most_common()),
        priorities={str(level): count for level, count in sorted(Counter(requests.priority or ()).items())},
        skipped=trace.skipped,
        notes=list(trace.notes),
    )


def pace_of(arrival_s: array[float], times: str | None = None) -> Pace | None:
    """Return when requests come, None where no arrival is known; `times` says how a file's times were read."""
    known = sorted(at for at in arrival_s if at == at)
    if not known:
        return None
    span_s = known[-1] - known[0]
    variation = None
    if span_s > 0:
        mean_s = span_s / (len(known) - 1)
        squares = math.fsum((after - before - mean_s) ** 2 for before, after in zip(known, known[1:], strict=False))
        variation = math.sqrt(squares / (len(known) - 1)) / mean_s
    return Pace(
        span_s=span_s,
        requests_per_s=len(arrival_s) / span_s if span_s > 0 else None,
        gap_variation=variation,
        burstiness=1.0 / variation**2 if variation and variation > 1e-6 else None,
        busiest_second=max(Counter(int(at) for at in known).values()),
        busiest_minute=max(Counter(int(at / 60) for at in known).values()),
        most_at_once=max(Counter(known).values()),
        times=times,
    )


def sharing_of(requests: Requests) -> Sharing | None:
    """Walk the requests as they arrive: the head that an earlier one has had, segment by segment (see `Content`)."""
    if requests.content is None:
        return None
    known: dict[tuple[int, int], int] = {}  # (segment before, stream) -> number of the segment
    reach: list[int] = []  # of each segment, the token that any request so far has come to
    shared_tokens = sharers = 0
    for content, prompt_tokens, output_tokens in zip(
        requests.content, requests.prompt_tokens, requests.output_tokens, strict=True
    ):
        before, shared, unbroken = -1, 0, True
        for stream, end in content:
            segment = known.setdefault((before, stream), len(reach))
            if segment == len(reach):
                reach.append(0)
            if unbroken:
                shared = max(shared, min(end, prompt_tokens, reach[segment]))
                unbroken = shared >= end
            reach[segment] = max(reach[segment], min(end, prompt_tokens + output_tokens))
            before = segment
        shared_tokens += shared
        sharers += shared > 0
    return Sharing(shared_tokens=shared_tokens, fraction=shared_tokens / sum(requests.prompt_tokens), requests=sharers)


def _sessions(requests: Requests) -> Sessions | None:
    names = requests.sessions
    if names is None:
        return None
    turns = Counter(name for name in names if name is not None)
    think_s = None
    if requests.think_s is not None:
        _, following = link_turns(requests)
        think_s = describe(Values([requests.think_s[index] for index in following if index >= 0]))
    lengths = describe(Tally(Counter(turns.values())))
    return Sessions(count=len(turns), requests=turns.total(), turns=lengths, think_s=think_s)
