"""What happened to every request: the hinge between whoever ran the requests and whoever reads the result.

A simulated and a measured run are the same thing with another `source`. A run holds one array of `times`; a request's
token times are a slice of it (a few slices where it was preempted or stalled), so a record needs integers, not a list.
Simulated: `times` is the step log's end times, shared by all requests. Measured: every request's own events, one
request after the other.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import InitVar, dataclass, field
from enum import IntEnum
from itertools import chain
from operator import mul, sub
from typing import Annotated, Any, Literal

from servesim.workload.requests import Column, Requests, column, columns_of, optional

NAN = float("nan")

Source = Literal["simulated", "measured"]


class Outcome(IntEnum):
    """How a request stands at the end: offered = completed + failed + rejected + unfinished."""

    UNFINISHED = 0
    COMPLETED = 1
    FAILED = 2
    REJECTED = 3
    WITHHELD = 4  # a time limit kept it back before it was due: it was never offered


def _filled(kind: str, default: type, about: str = "", *, low: float = 0) -> Any:
    """Declare the field of a column that is no array; a dict or a set has only the requests that have a value."""
    made = Column(name="", key="", kind=kind, about=about, optional=default is not bytearray, low=low)
    return field(default_factory=default, metadata={"column": made})


@dataclass(slots=True, eq=False, repr=False)
class Records:
    """One row a request, as columns; row `i` is request `i` of the run's `Requests`. Unknown times are NaN.

    `first` and `last` are indices into the run's `times` of the first and last token (or token event), -1 where there
    is none. `slices[i]` lists the inclusive index slices of a request whose token times are not one slice.
    """

    size: InitVar[int]
    outcome: bytearray = _filled("outcome", bytearray)  # of Outcome
    # When it should have been sent; latency "from planned" counts from here.
    planned_s: array[float] = column("seconds", "d", absent=NAN)
    sent_s: array[float] = column("seconds", "d", absent=NAN)  # when it was first sent (arrival at the engine)
    # Unknown for a measured run.
    admitted_s: array[float] = column("seconds", "d", "start of the step that first admitted it", absent=NAN)
    first: array[int] = column("token", "q", "first token", key="first_s", absent=-1)
    last: array[int] = column("token", "q", "last token", key="last_s", absent=-1)
    prompt_tokens: array[int] = column("count", "q", absent=0)
    # From the server's usage where there is one.
    output_tokens: array[int] = column("count", "q", "that were produced", absent=0)
    # -1: unknown.
    cached_tokens: array[int] = column("known count", "q", "prompt tokens hit at the first admission", absent=0)
    # A late usage chunk is in it.
    end_s: array[float] | None = optional("seconds", "d", "measured, when the stream ended", absent=NAN)
    # Failed or rejected: the kind; completed: a finish reason worth telling.
    reason: dict[int, str] = _filled("text", dict, "why it failed or was rejected")
    attempts: dict[int, int] = _filled("count", dict, "sends, where there was more than one", low=1)
    # Status, message, the server's own timings, ... A summary reads `estimated` (true: no usage came, output_tokens
    # counts events) and `non_stream` (true: one JSON answered, so no first token was seen).
    extra: dict[int, dict[str, Any]] = _filled("object", dict, "measured, what the server said of it")
    capped: set[int] = _filled("flag", set, "ended by a length limit")  # completed at a length limit
    # (preempted at, resumed at or NaN), in order.
    preempted: dict[int, list[tuple[float, float]]] = _filled("pauses", dict)

    # What follows is of the run's `times`, and in a line with the token times of its request.
    slices: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    visible: array[int] | None = None  # measured: index of the first event with visible content, or -1
    # Slices of `times` that are in no record: attempts whose client came back, and a token that came too late for
    # a client that had left (with the token before it).
    abandoned: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self, size: int) -> None:
        self.outcome = bytearray(size)
        for each in RECORD_COLUMNS:
            if each.typecode and not each.optional:
                setattr(self, each.name, array(each.typecode, [each.absent]) * size)

    def __len__(self) -> int:
        return len(self.outcome)

    def over(self) -> int:
        """Return how many requests are over, one way or the other."""
        return len(self.outcome) - self.outcome.count(Outcome.UNFINISHED)


RECORD_COLUMNS = columns_of(Records)


@dataclass(slots=True)
class StepLog:
    """Every step of a simulated engine that scheduled something, in order. A step begins where the last one ended,
    unless `starts` says otherwise: the engine had been idle."""

    end_s: array[float] = field(default_factory=lambda: array("d"))
    decodes: array[int] = field(default_factory=lambda: array("i"))  # sequences whose previous token was one step ago
    prefill_tokens: array[int] = field(default_factory=lambda: array("i"))  # prompt and recomputed tokens
    kv_blocks: array[int] = field(default_factory=lambda: array("i"))  # with holders, between schedule and output
    starts: MutableMapping[int, float] = field(default_factory=dict)  # step: its start, after an idle time

    def __len__(self) -> int:
        return len(self.end_s)

    def append(self, end_s: float, decodes: int, kv_blocks: int, prefill_tokens: int) -> None:
        """Add a step. The column of prefill tokens ends with the last step that had any, until `fill`."""
        if prefill_tokens:
            if len(self.prefill_tokens) < len(self.end_s):
                self.fill()
            self.prefill_tokens.append(prefill_tokens)
        self.end_s.append(end_s)
        self.decodes.append(decodes)
        self.kv_blocks.append(kv_blocks)

    def fill(self) -> None:
        """Bring the column of prefill tokens to the length of the others."""
        column = self.prefill_tokens
        column.frombytes(bytes(column.itemsize * (len(self.end_s) - len(column))))

    def clear(self) -> None:
        """Forget every step."""
        del self.end_s[:], self.decodes[:], self.prefill_tokens[:], self.kv_blocks[:]
        self.starts.clear()

    def steps(self) -> int:
        """Return how many steps there were."""
        return len(self.end_s)

    def decoded(self) -> int:
        """Return how many tokens came one step after another of the same request."""
        return sum(self.decodes)

    def positions(self) -> Sequence[int] | None:
        """Return the number of the step that each entry ends with; None where every entry is a step."""
        return None

    def start_pairs(self) -> Iterable[tuple[int, float]]:
        """Return the starts after an idle time, in order."""
        return self.starts.items()

    def durations_s(self) -> Sequence[float]:
        """Return the length of every step in seconds."""
        durations = list(map(sub, self.end_s, chain((0.0,), self.end_s)))
        for step, start_s in self.start_pairs():
            durations[step] = self.end_s[step] - start_s
        return durations

    def integrate_blocks(self, durations_s: Sequence[float]) -> float:
        """Return the integral of blocks with holders over the steps."""
        return math.fsum(map(mul, self.kv_blocks, durations_s))


@dataclass(slots=True)
class GaugeSample:
    """The state of an engine at one moment, as its `/metrics` page would show it."""

    at_s: float
    running: int
    waiting: int
    kv_blocks: int | None
    kv_fraction: float | None
    preemptions: int = 0
    output_tokens: int = 0


@dataclass(slots=True)
class EngineTotals:
    """What only the engine can count; None on a measured run whose server does not say."""

    steps: int = 0
    scheduled: Annotated[int, "requests, summed over steps"] = 0  # partial prefills included
    busy_s: float = 0.0
    num_blocks: int = 0
    kv_peak_blocks: int = 0
    kv_block_seconds: float = 0.0  # integral of blocks with holders; idle time counts 0
    elapsed_s: float = 0.0  # from time 0 to the end of the last step; what kv_block_seconds is averaged over
    preemptions: int = 0
    evictions: int = 0
    looked_up_tokens: int = 0  # prefix cache, first admissions only
    hit_tokens: int = 0
    computed_tokens: int = 0  # all tokens that steps computed
    recomputed_tokens: int = 0  # of those, tokens that had been computed before a preemption
    drafted_tokens: int = 0  # speculative decoding
    accepted_tokens: int = 0  # of those, the ones that became output
    fetched_tokens: int = 0  # of `hit_tokens` and resumptions, those that came from a tier below the device's cache
    saved_tokens: int = 0  # tokens that the prefix cache spared from ever being computed
    wasted_tokens: int = 0  # computed for clients that had left


@dataclass(slots=True, frozen=True, kw_only=True)
class ReplicaTotals:
    """What one engine of a fleet did."""

    replica: int
    name: str
    role: Annotated[str, "both, prefill or decode"]
    requests: int
    steps: int
    mean_batch: float | None
    busy: Annotated[float | None, "fraction of the run that it was in a step"]
    computed_tokens: int
    kv_peak: float | None
    kv_mean: float | None
    preemptions: int
    evictions: int
    prefix_hit_rate: float | None


@dataclass(slots=True, frozen=True, kw_only=True)
class LinkTotals:
    """What crossed the link between prefill and decode engines."""

    moved_bytes: int
    transfers: int
    busy_s: float
    busy: Annotated[float, "fraction of the run"]  # for which one of its pairs carried something


@dataclass(slots=True, frozen=True, kw_only=True)
class TierTotals:
    """What one KV tier below the device's cache did."""

    tier: Annotated[str, "host, disk"]
    block_bytes: int
    moved_bytes: Annotated[int, "over its link, both ways"]
    blocks: Annotated[int | None, "its size; null is no limit"]
    peak_blocks: int
    fallen_blocks: Annotated[int, "evicted into it"]
    fetched_blocks: Annotated[int, "that came back to the device"]
    dropped_blocks: int
    fetch_s: Annotated[float, "time of the fetches"]


@dataclass(slots=True, frozen=True, kw_only=True)
class ReplicaLife:
    """One replica of a fleet that grows and shrinks, from its launch to the end of its drain."""

    replica: int
    launched_s: float
    ready_s: float | None
    drained_s: float | None
    ended_s: float | None


@dataclass(slots=True, frozen=True, kw_only=True)
class ScalingTotals:
    """How a fleet grew and shrank."""

    replica_seconds: Annotated[float, "from each launch to the end of its drain"]
    seconds: list[float]  # of each replica
    minimum: int
    maximum: int
    end_s: float
    peak: Annotated[int, "replicas at once"]
    lives: list[ReplicaLife]


TOTALS_SAID_WHEN_USED = frozenset({"drafted_tokens", "accepted_tokens", "fetched_tokens", "wasted_tokens"})
"""Totals that a saved run names only where they are not 0."""


@dataclass(slots=True)
class Run:
    """One run, whoever made it. `warnings` and `violations` are sentences for the person who reads the report."""

    source: Source
    requests: Requests
    records: Records
    times: array[float]
    config: dict[str, Any]  # effective configuration with its seed: the JSON `config`
    steps: StepLog | None = None
    engine: EngineTotals | None = None
    gauges: list[GaugeSample] = field(default_factory=list)
    setup: dict[str, Any] = field(default_factory=dict)  # facts about the server that was measured
    partial: bool = False
    warnings: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)  # laws that the run broke
    client: dict[str, Any] | None = None  # measured: the load generator's own health
    server: dict[str, Any] | None = None  # measured: the server's window from its /metrics
    warmup: Run | None = None  # measured: requests outside everything, printed apart
    replicas: list[ReplicaTotals] = field(default_factory=list)  # a fleet: what each replica did
    replica_of: dict[str, array[int]] = field(default_factory=dict)  # a fleet: columns of the replicas that served
    stages: dict[str, array[float]] = field(default_factory=dict)  # disaggregated: columns of times
    scaling: ScalingTotals | None = None  # a fleet that grows and shrinks: when each replica was there
    offload: list[TierTotals] = field(default_factory=list)  # KV tiers below the device: what each did
    link: LinkTotals | None = None  # disaggregated: what crossed it
    usage: dict[str, Any] | None = None  # where it was asked: device-hours, money, energy

    def token_times(self, index: int) -> list[float]:
        """Return the times of request `index`'s tokens (token events), in seconds, in order."""
        first = self.records.first[index]
        if first < 0:
            return []
        slices = self.records.slices.get(index) or [(first, self.records.last[index])]
        return [t for start, stop in slices for t in self.times[start : stop + 1]]
