"""The figures of a run: the shape of a summary, and what parts of a server did that a run may be without.

A dataclass here is an object of the JSON documents: its fields are the keys, and what a field means stands beside its
type, from where the JSON Schema takes it. Each function reads a run and changes nothing in it; it returns None for what
was off: several engines, KV tiers, drafts, clients that come back. Where prefill and decode run on engines of their
own, the time to the first token is the sum of five stages:

| stage | from | to |
|---|---|---|
| `queue` | sent | start of the step that first admitted it at its prefill engine |
| `prefill` | that | its prompt is computed |
| `link_wait` | that | what is left of its KV sets out; nothing of it is, where all went during the prefill |
| `transfer` | that | the last of its KV has arrived |
| `decode_queue` | that | start of the step that admitted it at its decode engine: the first token |
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from itertools import compress
from operator import sub
from typing import Annotated, Any

from servesim.runs.as_json import NOT_IN_JSON, as_json
from servesim.runs.records import LinkTotals, Outcome, ReplicaTotals, Run, ScalingTotals, Source, TierTotals
from servesim.stats import Distribution, Values, describe
from servesim.summary.slo import Goodput, SloResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """Every request once."""

    offered: Annotated[int, "completed + failed + rejected + unfinished"]
    completed: int
    failed: int
    rejected: Annotated[int, "refused, for their size or a bounded queue"]
    unfinished: Annotated[int, "in flight when the run ended"]
    capped: Annotated[int, "of completed, ended by a length limit"]
    empty: Annotated[int, "of completed, without a token"]
    warmup: Annotated[int, "outside everything"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Tokens of completed requests; `per_event` is above 1 where a server sends several at once."""

    prompt: Annotated[int, "of completed requests"]
    output: Annotated[int, "of completed requests"]
    cached: Annotated[int | None, "of prompt, found in the prefix cache"]
    estimated: Annotated[int, "of output, counted from events for want of a usage report"]
    per_event: Annotated[float | None, "output tokens per token event"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    output_tokens_per_s: Annotated[float | None, "over duration_s"]
    total_tokens_per_s: Annotated[float | None, "prompt and output"]
    requests_per_s: Annotated[float | None, "completed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """What an engine says of itself; fractions of 1, None where the source cannot know."""

    steps: int | None
    mean_batch: Annotated[float | None, "scheduled requests per step"]
    kv_peak: Annotated[float | None, "fraction of the KV cache in use"]
    kv_mean: Annotated[float | None, "fraction, over time"]
    preemptions: int | None
    evictions: Annotated[int | None, "cached blocks that made room"]
    prefix_hit_rate: Annotated[float | None, "fraction of looked-up prompt tokens"]

    @property
    def is_known(self) -> bool:
        """Whether the source knows any of them."""
        return any(getattr(self, each.name) is not None for each in fields(self))


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
    normalized_latency_ms: Annotated[float | None, "mean E2E by output tokens"]
    errors: dict[str, int]
    goodput: Goodput | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Imbalance:
    """The largest load of a replica over the mean, 1 where all are alike."""

    requests: float | None
    computed_tokens: float | None
    busy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFigures(TierTotals):
    """What a KV tier did, beside its size and its share of the looked-up tokens."""

    size_bytes: int | None
    hit_rate: Annotated[float | None, "of the looked-up tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """What the tiers below the device's cache did."""

    tiers: list[TierFigures]
    device_hit_rate: float | None
    moved_bytes: int
    recompute_avoided_tokens: Annotated[int, "came over a link instead of being computed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How many drafted tokens became output."""

    drafted_tokens: int
    accepted_tokens: int
    accepted_fraction: float | None
    accepted_length: Annotated[float | None, "tokens that one verification added"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCounts:
    """What became of the attempts of one number; those that are none of these were sent again."""

    sent: int
    completed: int
    gave_up: int
    unfinished: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """What became of clients that come back: `attempts[k]` are the attempts with number k + 1."""

    attempts: list[AttemptCounts]
    wasted_tokens: Annotated[int, "computed for clients that had left"]
    wasted_fraction: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one run under the names of the JSON documents; None is unknown.

    What has a default was not asked for (`slo`), was off (`offload`) or has no source (`client`) where it is None, and
    is then left out of a document.
    """

    source: Source
    partial: bool = field(metadata=NOT_IN_JSON)  # a key of the document around it
    requests: RequestCounts
    attempts: Annotated[int, "sends, the retries too"]
    tokens: TokenCounts
    duration_s: Annotated[float | None, "first send to last token"]
    throughput: Throughput
    ttft_ms: Annotated[Distribution | None, "first token minus sent"]
    ttfo_ms: Annotated[Distribution | None, "first visible output minus sent"]
    tpot_ms: Annotated[Distribution | None, "last minus first token over the tokens between"]
    itl_ms: Annotated[Distribution | None, "gaps between tokens, pooled over requests"]
    e2e_ms: Annotated[Distribution | None, "last token minus sent"]
    queue_ms: Annotated[Distribution | None, "first admitting step minus sent"]
    lateness_ms: Annotated[Distribution | None, "sent minus planned"]
    ttft_from_planned_ms: Annotated[Distribution | None, "first token minus planned"]
    e2e_from_planned_ms: Annotated[Distribution | None, "last token minus planned"]
    prompt_tokens: Distribution | None
    output_tokens: Distribution | None
    errors: dict[str, int]
    engine: EngineFigures
    per_replica: list[ReplicaTotals] | None = None  # None: one engine
    imbalance: dict[str, Imbalance] | None = None  # by role
    stages_ms: dict[str, Distribution | None] | None = None  # None: not disaggregated
    link: LinkTotals | None = None
    offload: Offload | None = None
    speculation: Speculation | None = None
    overload: Overload | None = None
    scaling: ScalingTotals | None = None
    usage: dict[str, Any] | None = None
    classes: list[ClassFigures] | None = None  # None: no request has a class
    fairness: Annotated[float | None, "Jain's index over the classes"] = None  # of their normalised latencies
    slo: list[SloResult] | None = None  # None: not asked
    goodput: Goodput | None = None
    warnings: list[str]
    violations: Annotated[list[str], "a law that the run broke"]
    client: dict[str, Any] | None = None
    server: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        document: dict[str, Any] = as_json(self)
        return document


def offload_figures(run: Run) -> Offload | None:
    """Return what the tiers below the device's cache did; hit rates are shares of the tokens that were looked up."""
    totals = run.engine
    if totals is None or not run.offload:
        return None
    block_size = run.config.get("block_size") or 0
    looked_up = totals.looked_up_tokens
    return Offload(
        tiers=[
            TierFigures(
                **{each.name: getattr(tier, each.name) for each in fields(tier)},
                size_bytes=None if tier.blocks is None else tier.blocks * tier.block_bytes,
                hit_rate=tier.fetched_blocks * block_size / looked_up if looked_up else None,
            )
            for tier in run.offload
        ],
        device_hit_rate=max(0, totals.hit_tokens - totals.fetched_tokens) / looked_up if looked_up else None,
        moved_bytes=sum(tier.moved_bytes for tier in run.offload),
        recompute_avoided_tokens=totals.fetched_tokens,
    )


def speculation_figures(run: Run) -> Speculation | None:
    """Return how many drafted tokens became output, and the mean length that one verification added."""
    totals, drafts = run.engine, run.config.get("spec_tokens")
    if totals is None or not drafts:
        return None
    drafted, accepted = totals.drafted_tokens, totals.accepted_tokens
    return Speculation(
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        accepted_fraction=accepted / drafted if drafted else None,
        accepted_length=1 + accepted * drafts / drafted if drafted else None,
    )


def overload_figures(run: Run) -> Overload | None:
    """Return what became of every attempt, and the tokens computed for clients that had left.

    What was sent and neither completed, gave up nor is unfinished was sent again, so that the next attempt's `sent` is
    the rest. None where nobody came back and nothing was wasted.
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
        attempts.append(
            AttemptCounts(sent=left, **{name: ended[name] for name in ("completed", "gave_up", "unfinished")})
        )
        left -= ended.total()
    return Overload(
        attempts=attempts,
        wasted_tokens=wasted,
        wasted_fraction=wasted / totals.computed_tokens if totals is not None and totals.computed_tokens else None,
    )


_FATES = {
    Outcome.COMPLETED: "completed",
    Outcome.FAILED: "gave_up",
    Outcome.REJECTED: "gave_up",
    Outcome.UNFINISHED: "unfinished",
}


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
    """Return how long completed requests were in each stage, in ms; None where they run on the same engines."""
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


def imbalance(replicas: Iterable[ReplicaTotals]) -> dict[str, Imbalance] | None:
    """Return how uneven the load of the replicas of each role was; None for one engine."""
    by_role: dict[str, list[ReplicaTotals]] = {}
    for replica in replicas:
        by_role.setdefault(replica.role, []).append(replica)
    if not by_role:
        return None
    return {
        role: Imbalance(**{each.name: _most_over_mean(each.name, alike) for each in fields(Imbalance)})
        for role, alike in by_role.items()
    }


def _most_over_mean(load: str, replicas: list[ReplicaTotals]) -> float | None:
    values = [getattr(replica, load) or 0.0 for replica in replicas]
    total = sum(values)
    return max(values) * len(values) / total if total else None
