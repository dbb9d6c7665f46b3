"""What is known of a server under load, whatever it was read from: a metric page, a report, a row of a sweep, flags.

One value per quantity in the same words, None where nobody said. Where a histogram gives an interval for a percentile,
its lower end is taken: what is found slow is at least that slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from servesim.catalog.servers import PROCESS_START, dialect_of
from servesim.client.window import server_window, setup_facts
from servesim.config.build import Server
from servesim.cost.roofline import step_seconds
from servesim.errors import ServesimError
from servesim.units import parse_count, parse_finite
from servesim.wire.prometheus import Page, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """One server over one stretch of time. Fractions are of 1, times in seconds."""

    source: str
    dialect: str | None = None
    since_start: bool = False  # counters are totals since the server started, not of a window
    window_s: float | None = None
    counter_resets: int | None = None  # None: they only grew
    # What the server says of itself
    running: float | None = None
    running_max: float | None = None
    waiting: float | None = None
    waiting_max: float | None = None
    kv_mean: float | None = None
    kv_peak: float | None = None
    preemptions: int | None = None
    prefix_hit_rate: float | None = None
    mean_batch: float | None = None
    tokens_per_step: float | None = None
    # What its clients see
    completed: int | None = None
    prompt_tokens: float | None = None  # mean of a request
    output_tokens: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    tpot_p50_s: float | None = None
    itl_p50_s: float | None = None
    itl_p99_s: float | None = None
    queue_p95_s: float | None = None
    errors: Mapping[str, int] = field(default_factory=dict)
    missed: tuple[str, ...] = ()  # objectives that were not met
    client_verdict: str | None = None
    in_flight: float | None = None  # requests that the client kept in flight
    concurrency: int | None = None  # closed loop: at most so many
    # What it was told to do
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    max_num_queued_reqs: int | None = None
    slots: int | None = None
    prefix_caching: bool | None = None
    num_blocks: int | None = None
    block_size: int | None = None
    # What model and device come to
    floor_step_s: float | None = None  # a decode step of one sequence
    critical_tokens: float | None = None  # tokens of a step from which on arithmetic decides

    def as_dict(self) -> dict[str, Any]:
        """Return what is known, as JSON."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value not in (None, (), {})}

    @property
    def kv_tokens(self) -> int | None:
        return None if self.num_blocks is None or self.block_size is None else self.num_blocks * self.block_size

    @property
    def knows_queue(self) -> bool:
        """Whether anything says if requests wait to be admitted."""
        return self.waiting is not None or None not in (self.queue_p95_s, self.ttft_p95_s)

    @property
    def queueing(self) -> bool:
        """Whether requests wait to be admitted: half a request on average, or longer than most of the TTFT."""
        if self.waiting is not None:
            return self.waiting >= 0.5
        return (
            self.queue_p95_s is not None
            and self.ttft_p95_s is not None
            and self.ttft_p95_s > 0
            and self.queue_p95_s > 0.5 * self.ttft_p95_s
        )

    @property
    def kv_full(self) -> bool | None:
        """Whether the KV cache is as good as full at its fullest; None if nobody said."""
        return None if self.kv_peak is None else self.kv_peak >= 0.9

    @property
    def compute_bound(self) -> bool | None:
        """Whether the mean step has so many tokens that arithmetic decides its length; None if that is unknown."""
        if self.critical_tokens is None or self.tokens_per_step is None:
            return None
        return self.tokens_per_step >= self.critical_tokens

    @property
    def max_num_seqs_reached(self) -> bool | None:
        """Whether `max_num_seqs` requests ran at some time; None if the limit, or how many ran, is unknown."""
        if self.max_num_seqs is None:
            return None
        if self.running_max is not None:
            return self.running_max >= self.max_num_seqs
        # A mean has the run's begin and end in it.
        return None if self.mean_batch is None else self.mean_batch >= 0.85 * self.max_num_seqs


def of_pages(
    before: Page | None, after: Page, *, window_s: float | None = None, source: str = "metrics"
) -> ServerState:
    """Return what two pages of one server say of the time between them; one page alone, since its start.

    Of several engines behind one page it is what one of them sees on average: limits are an engine's own.
    """
    first = before or _zeroed(after)
    window = server_window(first, after, [after] if before is None else [before, after], window_s=window_s)
    facts = setup_facts(after)
    done = (window["e2e"] or {}).get("count")
    blocks = _count(facts.get("num_gpu_blocks"))
    caching = {"True": True, "False": False}.get(facts.get("enable_prefix_caching", ""))
    return ServerState(
        source=source,
        since_start=before is None,
        completed=done,
        num_blocks=None if blocks is None else blocks - 1,  # vLLM's null block
        block_size=_count(facts.get("block_size")),
        prefix_caching=caching,
        prompt_tokens=_ratio(window["prompt_tokens"], done),
        output_tokens=_ratio(window["output_tokens"], done),
        **_of_one_engine(_window_figures(window), engines_of(after)),
    )


def engines_of(page: Page) -> int:
    """Return how many engines a page tells of: series of running requests."""
    dialect = dialect_of(page.samples)
    metric = dialect.metrics.get("running") if dialect else None
    return max([1, *(len(page.samples.get(name, ())) for name in (metric.names if metric else ()))])


def _of_one_engine(figures: dict[str, Any], engines: int) -> dict[str, Any]:
    counted = ("running", "running_max", "waiting", "waiting_max")
    return figures | {name: figures[name] / engines for name in counted if figures[name] is not None}


def of_summary(document: Mapping[str, Any], config: Mapping[str, Any], *, source: str) -> ServerState:
    """Return what one summary says (`simulate`, `loadgen`, a row of a `sweep`), under its configuration."""
    engine, requests, tokens = document["engine"], document["requests"], document["tokens"]
    server, client = document.get("server") or {}, document.get("client") or {}
    completed, steps = requests["completed"], engine.get("steps")
    computed = tokens["prompt"] - (tokens.get("cached") or 0) + tokens["output"]
    closed = client.get("concurrency") or {}
    limits: dict[str, Any] = {name: config.get(name) for name in _LIMITS}
    known = _window_figures(server)
    known |= {name: value for name in _OF_ENGINE if (value := engine.get(name)) is not None}
    known |= {name: value for name, value in _latencies(document).items() if value is not None}
    if steps:
        known["tokens_per_step"] = computed / steps
    return ServerState(
        **known,
        source=source,
        completed=completed,
        prompt_tokens=_ratio(tokens["prompt"], completed),
        output_tokens=_ratio(tokens["output"], completed),
        errors=dict(document.get("errors") or {}),
        missed=tuple(_missed(document)),
        client_verdict=client.get("verdict"),
        in_flight=closed.get("mean"),
        concurrency=_first(closed.get("asked"), config.get("concurrency")),
        **limits,
    )


def with_server(state: ServerState, server: Server) -> ServerState:
    """Return the state with what model, device and limits of `server` add; what the server itself said stands."""
    spec, config = server.spec, server.config
    floor_s = step_seconds(server.model, server.hardware, 1, tensor_parallel=spec.tensor_parallel_size)
    from_server: dict[str, Any] = {
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_model_len": config.max_model_len,
        "prefix_caching": config.prefix_caching,
        "num_blocks": config.num_blocks,
        "block_size": config.block_size,
        "slots": spec.slots,
    }
    return replace(
        state,
        floor_step_s=floor_s,
        critical_tokens=_critical_tokens(server),
        **{name: _first(getattr(state, name), value) for name, value in from_server.items()},
    )


def with_flags(state: ServerState, values: Mapping[str, Any]) -> ServerState:
    """Return the state with the limits that a command line gives; a page's own word on its cache stands."""
    given = {name: values[name] for name in _LIMITS if name in values}
    if state.num_blocks is None and "kv_tokens" in values:
        block_size = state.block_size or values.get("block_size") or 1
        given |= {"num_blocks": values["kv_tokens"] // block_size, "block_size": block_size}
    if state.prefix_caching is not None:
        given.pop("prefix_caching", None)
    return replace(state, **given)


_LIMITS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "max_num_queued_reqs",
    "slots",
    "prefix_caching",
    "num_blocks",
    "block_size",
)


_OF_ENGINE = ("kv_mean", "kv_peak", "preemptions", "prefix_hit_rate", "mean_batch")


def _latencies(document: Mapping[str, Any]) -> dict[str, float | None]:
    asked = (("ttft", "p50"), ("ttft", "p95"), ("tpot", "p50"), ("itl", "p50"), ("itl", "p99"), ("queue", "p95"))
    return {f"{metric}_{name}_s": _seconds(document, f"{metric}_ms", name) for metric, name in asked}


def _window_figures(window: Mapping[str, Any]) -> dict[str, Any]:
    running, waiting = window.get("running") or {}, window.get("waiting") or {}
    return {
        "dialect": window.get("dialect"),
        "window_s": window.get("window_s"),
        "counter_resets": window.get("counter_resets") or None,
        "running": running.get("mean"),
        "running_max": running.get("max"),
        "waiting": waiting.get("mean"),
        "waiting_max": waiting.get("max"),
        "kv_mean": window.get("kv_mean"),
        "kv_peak": window.get("kv_peak"),
        "preemptions": window.get("preemptions"),
        "prefix_hit_rate": window.get("prefix_hit_rate"),
        "mean_batch": window.get("mean_batch"),
        "tokens_per_step": window.get("tokens_per_step"),
        "ttft_p50_s": _at_least(window, "ttft", "p50"),
        "ttft_p95_s": _at_least(window, "ttft", "p95"),
        "tpot_p50_s": _at_least(window, "tpot", "p50"),
        "itl_p50_s": _at_most(window, "itl", "p50"),
        "itl_p99_s": _at_least(window, "itl", "p99"),
        "queue_p95_s": _at_least(window, "queue", "p95"),
    }


def _zeroed(page: Page) -> Page:
    """Return the page as it was when its server started: the same series, all 0."""
    samples = {
        name: found if name == PROCESS_START else [Sample(each.name, each.labels, 0.0) for each in found]
        for name, found in page.samples.items()
    }
    return Page(samples=samples, types=page.types)


def is_server_page(page: Page) -> bool:
    """Whether a page is one of a server that is known."""
    return dialect_of(page.samples) is not None


def _critical_tokens(server: Server) -> float | None:
    """Return the tokens of a step from which on its arithmetic takes longer than reading the weights."""
    roofline = server.roofline()
    return roofline.weights_s / roofline.token_s if roofline.token_s > 0 else None


def _missed(document: Mapping[str, Any]) -> list[str]:
    return [f"{each['metric']}_p{each['percentile']:g}" for each in document.get("slo") or () if each["met"] is False]


def _seconds(document: Mapping[str, Any], metric: str, percentile: str) -> float | None:
    value = (document.get(metric) or {}).get(percentile)
    return None if value is None else value / 1000


def _at_least(window: Mapping[str, Any], key: str, percentile: str) -> float | None:
    interval = (window.get(key) or {}).get(percentile)
    return None if interval is None else interval["gt"] or 0.0


def _at_most(window: Mapping[str, Any], key: str, percentile: str) -> float | None:
    interval = (window.get(key) or {}).get(percentile)
    return None if interval is None else interval["le"]


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _count(text: str | None) -> int | None:
    try:
        return None if text is None else parse_count(text)
    except ServesimError:  # "None", as vLLM writes what is not set
        return None


def number_of(facts: Mapping[str, str], name: str) -> float | None:
    """Return the number that a server's facts have under `name`, None where there is none."""
    try:
        return parse_finite(facts[name], name) if name in facts else None
    except ServesimError:
        return None
