"""What a run of several engines comes to beside its latencies: how even the load was, and the stages of a request.

Where prefill and decode are apart, the time to the first token is the sum of five stages:

| stage | from | to |
|---|---|---|
| `queue` | sent | start of the step that first admitted it at its prefill engine |
| `prefill` | that | its prompt is computed |
| `link_wait` | that | what is left of its KV sets out; nothing of it is, where all went during the prefill |
| `transfer` | that | the last of its KV has arrived |
| `decode_queue` | that | start of the step that admitted it at its decode engine: the first token |

A run is read and nothing in it is changed.

The figures of a run under the names of the JSON documents: what `summarize` fills in and every report reads.

What the parts of a server did that may be off: KV tiers, drafts, clients that come back. A run is read, not changed.

Each function returns the figures of one of them under the names of the JSON documents, None where it was off.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import compress
from operator import sub
from typing import Any

from servesim.runs.records import Outcome, Run
from servesim.stats import Distribution, Values, describe
from servesim.summary.slo import Goodput, SloResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """Every request once: offered = completed + failed + rejected + unfinished.

    `capped` (ended by a length limit) and `empty` (answered without a token) are parts of completed; warm-up requests
    are outside everything.
    """

    offered: int
    completed: int
    failed: int
    rejected: int
    unfinished: int
    capped: int
    empty: int
    warmup: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Tokens of completed requests. `estimated`: those of `output` that were counted from events for want of a usage
    report; `per_event`: output tokens per token event, above 1 where a server sends several at once."""

    prompt: int
    output: int
    cached: int | None
    estimated: int
    per_event: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    requests_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """What an engine says of itself; fractions of 1, None where the source cannot know."""

    steps: int | None = None
    mean_batch: float | None = None
    kv_peak: float | None = None
    kv_mean: float | None = None
    preemptions: int | None = None
    evictions: int | None = None
    prefix_hit_rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFigures:
    """The figures of one class of requests, by the same definitions; throughput is over the whole run's duration."""

    name: str | None  # None: the requests that have no class
    requests: RequestCounts
    attempts: int
    tokens: TokenCounts
    throughput: Throughput
    ttft_ms: Distribution | None
    tpot_ms: Distribution | None
    itl_ms: Distribution | None
    e2e_ms: Distribution | None
    queue_ms: Distribution | None
    normalized_latency_ms: float | None  # mean E2E by output tokens
    errors: dict[str, int]
    goodput: Goodput | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one run under the names of the JSON documents; None is unknown."""

    source: str
    partial: bool
    requests: RequestCounts
    attempts: int
    tokens: TokenCounts
    duration_s: float | None
    throughput: Throughput
    ttft_ms: Distribution | None
    ttfo_ms: Distribution | None
    tpot_ms: Distribution | None
    itl_ms: Distribution | None
    e2e_ms: Distribution | None
    queue_ms: Distribution | None
    lateness_ms: Distribution | None
    ttft_from_planned_ms: Distribution | None
    e2e_from_planned_ms: Distribution | None
    prompt_tokens: Distribution | None
    output_tokens: Distribution | None
    errors: dict[str, int]
    engine: EngineFigures
    per_replica: list[dict[str, Any]] | None  # None: one engine
    imbalance: dict[str, dict[str, float | None]] | None  # by role
    stages_ms: dict[str, Distribution | None] | None  # None: prefill and decode are not apart
    link: dict[str, Any] | None
    offload: dict[str, Any] | None  # None: off, as for the next ones
    speculation: dict[str, Any] | None
    overload: dict[str, Any] | None
    scaling: dict[str, Any] | None
    usage: dict[str, Any] | None
    classes: list[ClassFigures] | None  # None: no request has a class
    fairness: float | None  # Jain's index over the normalised latencies of the classes
    slo: list[SloResult] | None  # None: not asked
    goodput: Goodput | None
    warnings: list[str]
    violations: list[str]
    client: dict[str, Any] | None
    server: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as a JSON object; what was not asked (`slo`) or has no source (`client`) is left out."""
        document = asdict(self)
        del document["partial"]  # a key of the document around it
        for key in LEFT_OUT:
            if document[key] is None:
                del document[key]
        for result in document.get("slo", ()):
            if result["class_name"] is None:
                del result["class_name"]
        return document


LEFT_OUT = (
    *("per_replica", "imbalance", "stages_ms", "link", "offload", "speculation", "overload", "scaling", "usage"),
    *("classes", "fairness", "slo", "goodput", "client", "server"),
)
"""Keys of a summary that a document has only where there is something to say."""


def offload_figures(run: Run) -> dict[str, Any] | None:
    """Return the tiers below the device's cache; hit rates are shares of the tokens that were looked up.

    `recompute_avoided_tokens` came over a link instead of being computed again.
    """
    totals = run.engine
    if totals is None or not run.offload:
        return None
    block_size = run.config.get("block_size") or 0
    looked_up = totals.looked_up_tokens
    tiers = [
        {
            **tier,
            "size_bytes": None if tier["blocks"] is None else tier["blocks"] * tier["block_bytes"],
            "hit_rate": tier["fetched_blocks"] * block_size / looked_up if looked_up else None,
        }
        for tier in run.offload
    ]
    return {
        "tiers": tiers,
        "device_hit_rate": max(0, totals.hit_tokens - totals.fetched_tokens) / looked_up if looked_up else None,
        "moved_bytes": sum(tier["moved_bytes"] for tier in tiers),
        "recompute_avoided_tokens": totals.fetched_tokens,
    }


def speculation_figures(run: Run) -> dict[str, Any] | None:
    """Return how many drafted tokens became output, and the mean length that one verification added."""
    totals, drafts = run.engine, run.config.get("spec_tokens")
    if totals is None or not drafts:
        return None
    drafted, accepted = totals.drafted_tokens, totals.accepted_tokens
    return {
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "accepted_fraction": accepted / drafted if drafted else None,
        "accepted_length": 1 + accepted * drafts / drafted if drafted else None,
    }


def overload_figures(run: Run) -> dict[str, Any] | None:
    """Return what became of every attempt, and the tokens computed for clients that had left.

    `attempts[k]` is {sent, completed, gave_up, unfinished} of attempt k + 1; what was sent and is none of these was
    sent again, so that the next attempt's `sent` is the rest. None where nobody came back and nothing was wasted.
    """
    records, totals = run.records, run.engine
    wasted = 0 if totals is None else totals.wasted_tokens
    if not records.attempts and not wasted:
        return None
    fates: dict[int, Counter[str]] = {}
    for index, outcome in enumerate(records.outcome):
        if outcome != Outcome.WITHHELD:
            fates.setdefault(records.attempts.get(index, 1), Counter())[_FATES[Outcome(outcome)]] += 1
    attempts = []
    left = sum(count.total() for count in fates.values())
    for number in range(1, max(fates, default=0) + 1):
        ended = fates.get(number, Counter())
        attempts.append({"sent": left, **{name: ended[name] for name in ("completed", "gave_up", "unfinished")}})
        left -= ended.total()
    return {
        "attempts": attempts,
        "wasted_tokens": wasted,
        "wasted_fraction": wasted / totals.computed_tokens if totals is not None and totals.computed_tokens else None,
    }


_FATES = {
    Outcome.COMPLETED: "completed",
    Outcome.FAILED: "gave_up",
    Outcome.REJECTED: "gave_up",
    Outcome.UNFINISHED: "unfinished",
}


LOADS = ("requests", "computed_tokens", "busy")
"""Figures of a replica whose spread over the replicas is the imbalance of a fleet."""

STAGES: dict[str, tuple[str, str]] = {
    "queue": ("sent_s", "admitted_s"),
    "prefill": ("admitted_s", "prefill_end_s"),
    "link_wait": ("prefill_end_s", "link_start_s"),
    "transfer": ("link_start_s", "transfer_end_s"),
    "decode_queue": ("transfer_end_s", "decode_start_s"),
}
"""Stage -> the columns of times between which it lies."""


def moments(run: Run) -> Callable[[str], array[float]]:
    """Return what gives the column of times of that name, of the run's records or of its stages."""
    known = {"sent_s": run.records.sent_s, "admitted_s": run.records.admitted_s, **run.stages}
    return known.__getitem__


def stages_ms(run: Run) -> dict[str, Distribution | None] | None:
    """Return how long completed requests were in each stage, in ms; None where prefill and decode are not apart."""
    if not run.stages:
        return None
    at = moments(run)
    is_completed = [outcome == Outcome.COMPLETED for outcome in run.records.outcome]

    def of_completed(name: str) -> Iterable[float]:
        return compress(at(name), is_completed)

    return {
        stage: describe(Values(list(map(sub, of_completed(end), of_completed(start)))), scale=1000)
        for stage, (start, end) in STAGES.items()
    }


def imbalance(replicas: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float | None]] | None:
    """Return for each role the largest load of a replica over the mean, 1 where all are alike; None for one engine."""
    by_role: dict[str, list[Mapping[str, Any]]] = {}
    for replica in replicas:
        by_role.setdefault(replica["role"], []).append(replica)
    if not by_role:
        return None
    return {role: {load: _worst(load, pool) for load in LOADS} for role, pool in by_role.items()}


def _worst(load: str, pool: list[Mapping[str, Any]]) -> float | None:
    values = [replica[load] for replica in pool]
    total = sum(values)
    return max(values) * len(values) / total if total else None
