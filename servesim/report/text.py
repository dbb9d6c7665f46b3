"""The block that a person reads at the end of a run: the same for a simulated and a measured one.

One label a line, figures with their units, at most 100 columns. Unknown prints `-`. What is missing is shown as a sum:
offered = completed + failed + rejected + unfinished.
"""

from __future__ import annotations

from collections.abc import Iterable

from servesim.latency import Completed
from servesim.records import Run
from servesim.report.features import feature_lines
from servesim.report.numbers import percent as percent
from servesim.report.numbers import whole
from servesim.report.pools import pool_lines, stages
from servesim.slo import Slo, SloResult
from servesim.stats import Distribution
from servesim.summary import EngineFigures, RequestCounts, Summary
from servesim.units import format_duration, format_ms, format_number

LABEL = 13
COLUMNS = ("mean", "p50", "p90", "p95", "p99", "p999", "max")


def summary_text(summary: Summary) -> str:
    """Return the block of one run; it ends with a newline."""
    lines = [
        _line("source", summary.source + (" (partial: the run ended early)" if summary.partial else "")),
        *_request_lines(summary.requests, summary.attempts),
        *(
            [_line("errors", "   ".join(f"{n:,} {kind}" for kind, n in summary.errors.items()))]
            if summary.errors
            else []
        ),
        _line("duration", format_duration(summary.duration_s)),
        _line("throughput", _throughput(summary)),
        _line("tokens", _tokens(summary)),
        *_latency_lines(summary),
        *_engine_lines(summary.engine),
        *fleet_lines(summary),
        *_slo_lines(summary),
        *(_line("warning", text) for text in summary.warnings),
        *(_line("law broken", text) for text in summary.violations),
    ]
    return "\n".join(lines) + "\n"


def fleet_lines(summary: Summary) -> list[str]:
    """Return the lines of replicas and link, and of everything that may be off and was on; mostly none."""
    return [*pool_lines(summary, LABEL), *feature_lines(summary, LABEL)]


def warmup_text(warmup: Run) -> str:
    """Return the warm-up requests, which no figure counts, one a line; the first one met a cold server."""
    done = Completed(warmup)
    rows = zip(done.indices(), done.ttft(), done.e2e(), strict=True)
    latencies = {index: (ttft_s, e2e_s) for index, ttft_s, e2e_s in rows}
    lines = []
    for index in range(len(warmup.records)):
        if index in latencies:
            ttft, e2e = (format_ms(None if value != value else value * 1000) for value in latencies[index])
            told = f"ttft {ttft}   e2e {e2e}"
        else:
            told = warmup.records.reason.get(index, "not completed")
        lines.append(_line("warm-up", f"{told}   (cold)" if index == 0 else told))
    return "".join(f"{line}\n" for line in lines)


def _line(label: str, text: str) -> str:
    return f"{label:<{LABEL}}{text}"


def _request_lines(requests: RequestCounts, attempts: int) -> Iterable[str]:
    told = f"{requests.completed:,} completed"
    if requests.completed != requests.offered:
        told = (
            f"{requests.offered:,} offered = {told} + {requests.failed:,} failed "
            f"+ {requests.rejected:,} rejected + {requests.unfinished:,} unfinished"
        )
    yield _line("requests", told)
    beside = [
        (requests.capped, "capped by a length limit"),
        (requests.empty, "empty"),
        (requests.warmup, "warm-up, not counted"),
        (attempts if attempts != requests.offered else 0, "attempts"),
    ]
    if any(count for count, _ in beside):
        yield _line("", "   ".join(f"{count:,} {what}" for count, what in beside if count))


def _throughput(summary: Summary) -> str:
    throughput = summary.throughput
    return (
        f"{format_number(throughput.output_tokens_per_s)} output tok/s   "
        f"{format_number(throughput.total_tokens_per_s)} total tok/s   "
        f"{format_number(throughput.requests_per_s, 2)} req/s"
    )


def _tokens(summary: Summary) -> str:
    tokens = summary.tokens
    cached = "-" if tokens.cached is None else f"{tokens.cached:,}"
    told = f"{tokens.prompt:,} prompt ({cached} cached)   {tokens.output:,} output"
    if tokens.estimated:
        told += f" ({tokens.estimated:,} estimated from events)"
    if tokens.per_event is not None and tokens.per_event != 1:
        told += f"   {tokens.per_event:.2f} per event"
    return told


def _latency_lines(summary: Summary) -> Iterable[str]:
    """Yield the table of latencies; a variant that is no different from its plain metric is left out."""
    yield f"{'latency ms':<{LABEL}}" + "".join(f"{name.replace('p999', 'p99.9'):>11}" for name in COLUMNS)
    rows: list[tuple[str, Distribution | None, bool]] = [
        ("ttft", summary.ttft_ms, True),
        ("ttfo", summary.ttfo_ms, summary.ttfo_ms != summary.ttft_ms),
        ("tpot", summary.tpot_ms, True),
        ("itl", summary.itl_ms, True),
        ("e2e", summary.e2e_ms, True),
        ("queue", summary.queue_ms, True),
        *((stage, distribution, True) for stage, distribution in stages(summary).items()),
    ]
    late = summary.lateness_ms is not None and (summary.lateness_ms.min, summary.lateness_ms.max) != (0.0, 0.0)
    if late:
        rows += [
            ("ttft planned", summary.ttft_from_planned_ms, summary.ttft_from_planned_ms != summary.ttft_ms),
            ("e2e planned", summary.e2e_from_planned_ms, summary.e2e_from_planned_ms != summary.e2e_ms),
            ("lateness", summary.lateness_ms, True),
        ]
    for label, distribution, is_told in rows:
        if is_told:
            cells = ("-" if distribution is None else format_number(getattr(distribution, name)) for name in COLUMNS)
            yield f"{label:<{LABEL}}" + "".join(f"{cell:>11}" for cell in cells)


def _engine_lines(engine: EngineFigures) -> Iterable[str]:
    if engine == EngineFigures():
        return
    steps = [] if engine.steps is None else [f"{engine.steps:,} steps"]
    yield _line(
        "engine",
        "   ".join(
            [
                *steps,
                f"mean batch {format_number(engine.mean_batch)}",
                f"KV peak {percent(engine.kv_peak)}",
                f"KV mean {percent(engine.kv_mean)}",
            ]
        ),
    )
    yield _line(
        "",
        f"preemptions {whole(engine.preemptions)}   evictions {whole(engine.evictions)}   "
        f"prefix hit rate {percent(engine.prefix_hit_rate)}",
    )


def _slo_lines(summary: Summary) -> Iterable[str]:
    for result in summary.slo or ():
        yield _line("slo", slo_text(result))
    if summary.goodput is not None:
        told = (
            f"{format_number(summary.goodput.requests_per_s, 2)} req/s   {percent(summary.goodput.fraction)} of offered"
        )
        yield _line("goodput", told)


def slo_text(result: SloResult) -> str:
    """Return `ttft_p95 <= 500.0 ms: met (412.3 ms)`."""
    name = Slo(metric=result.metric, percentile=result.percentile, limit_s=result.limit_ms / 1000).name
    prefix = "" if result.class_name is None else f"{result.class_name}:"
    limit = f"{prefix}{name} <= {format_ms(result.limit_ms)}"
    if result.met is None:
        return f"{limit}: cannot be judged, no value is known"
    value = "requests that did not complete" if result.value_ms is None else format_ms(result.value_ms)
    return f"{limit}: {'met' if result.met else 'not met'} ({value})"
