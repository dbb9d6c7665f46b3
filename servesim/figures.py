"""The figures of a run under the names of the JSON documents: what `summarize` fills in and every report reads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from servesim.slo import Goodput, SloResult
from servesim.stats import Distribution


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
