"""The block that a person reads at the end of a run, below that of its configuration; the same for any source of a run.

One label a line, figures with their units, at most 100 columns. Unknown prints `-`. What is missing is shown as a sum:
offered = completed + failed + rejected + unfinished. What was off, and figures that a single engine does not have, are
left out: replicas, stages and link of a fleet; KV tiers, drafts, retries, scaling, costs and classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from servesim.config.offload import DEFAULT_OFFLOAD_LINK
from servesim.fleet.autoscale import FIGURES
from servesim.runs.records import ReplicaTotals, Run, ScalingTotals
from servesim.stats import Distribution
from servesim.summary.latency import Completed
from servesim.summary.metrics import ClassFigures, Offload, Overload, Speculation
from servesim.summary.slo import Slo, SloResult
from servesim.summary.summary import EngineFigures, RequestCounts, Summary
from servesim.units import bandwidth, format_duration, format_gb, format_ms, format_number, percent, whole

_LIMITS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "slots",
    "long_prefill_token_threshold",
    "watermark",
    "max_tokens_in_flight",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
)
_SWITCHES = (
    ("prefix_caching", True, "prefix caching"),
    ("async_scheduling", True, "async scheduling"),
    ("chunked_prefill", False, "no chunked prefill"),
    ("scheduler_reserve_full_isl", False, "first chunk must fit"),
    ("like_vllm", True, "vLLM's defaults"),
)


def setup_text(config: Mapping[str, Any]) -> str:
    """Return the lines of the configuration `config`; what is off or has no part in the run is left out."""
    lines = []
    for kind in (config.get("fleet") or {"replicas": [{"effective": config}]})["replicas"]:
        server = kind["effective"]
        lines += [
            ("server", [_count(kind) + _server(server), _cache(server), *_role(kind)]),
            ("limits", [f"{name} {server[name]:,}" for name in _LIMITS if server[name]]),
            ("scheduler", _scheduler(server)),
        ]
    together = _together(config)
    if together:
        lines.append(("fleet", together))
    beside = _beside(config)
    if beside:
        lines.append(("beside", beside))
    lines.append(("workload", _workload(config)))
    return "".join(f"{label:<{LABEL}}{'   '.join(parts)}\n" for label, parts in lines)


def _count(kind: Mapping[str, Any]) -> str:
    return f"{kind['count']:,} x " if "count" in kind else ""


def _role(kind: Mapping[str, Any]) -> list[str]:
    return [kind["role"]] if kind.get("role", "both") != "both" else []


def _together(config: Mapping[str, Any]) -> list[str]:
    """Return how many engines there are and what is between them; nothing for a single engine."""
    ranks = config.get("data_parallel_size", 1)
    by_rank = f" x {ranks} data-parallel ranks" if ranks > 1 else ""
    if config.get("disagg"):
        prefill, _, decode = config["disagg"].partition(":")
        parts = [f"{prefill} prefill, {decode} decode engines{by_rank}"]
    elif config.get("fleet"):
        parts = [f"{sum(kind['count'] for kind in config['fleet']['replicas']):,} replicas{by_rank}"]
    elif config.get("replicas", 1) * ranks > 1:
        parts = [f"{config['replicas']:,} replicas{by_rank}"]
    else:
        return []
    parts.append(f"router {config['router']}")
    if config["link_bytes_per_s"] is not None:
        parts.append(f"link {bandwidth(config['link_bytes_per_s'])}, {config['link_scope']}")
        if config["link_latency_s"]:
            parts.append(f"latency {format_duration(config['link_latency_s'])}")
        if config["transfer_overlap"] != "none":
            parts.append(f"overlap {config['transfer_overlap']}")
    return parts


def _beside(config: Mapping[str, Any]) -> list[str]:
    """Return what is on of that which may be off: drafts, tiers below the device, adapters, growing and shrinking."""
    parts = []
    if config.get("spec_tokens"):
        parts.append(f"{config['spec_tokens']} drafted tokens, acceptance {config['acceptance']}")
    if config.get("kv_offload"):
        overlap = ", overlapped" if config.get("offload_overlap") else ""
        parts.append(
            f"KV tiers {config['kv_offload']} over {config.get('offload_link', DEFAULT_OFFLOAD_LINK)}{overlap}"
        )
    if config.get("max_loras"):
        parts.append(f"{config['max_loras']} adapters of rank {config.get('adapter_rank', 16)}")
    if config.get("autoscale"):
        start, rest = (format_duration(config[key]) for key in ("cold_start_s", "cool_down_s"))
        on, at = config["scale_on"], config["scale_target"]
        target = format_duration(at) if on in FIGURES and FIGURES[on].is_time else f"{at:g}"
        parts.append(f"autoscale {config['autoscale']} on {on} {target}")
        parts.append(f"cold start {start}, cool-down {rest}")
    return parts


def _server(config: Mapping[str, Any]) -> str:
    """Return model, device and how many of them: of one data-parallel rank, which is what a run simulates."""
    devices = config["tensor_parallel_size"] * config.get("pipeline_parallel_size", 1)
    weights = f" in {config['quantization']}" if config.get("quantization") else ""
    return f"{config['model']}{weights} on {config['hardware']}" + (f" x {devices}" if devices > 1 else "")


def _cache(config: Mapping[str, Any]) -> str:
    return f"{config['num_blocks']:,} blocks of {config['block_size']} tokens"


def _scheduler(config: Mapping[str, Any]) -> list[str]:
    return [
        f"rules {config['rules']}",
        f"policy {config['policy']}" + (" (an oracle)" if config["policy"] == "sjf" else ""),
        *(text for name, shown_when, text in _SWITCHES if config[name] == shown_when),
    ]


def _workload(config: Mapping[str, Any]) -> list[str]:
    parts = []
    if config["trace"] is not None:
        parts.append(f"trace {config['trace']}" + (f" x {config['speed']:g}" if config["speed"] != 1 else ""))
    else:
        parts.append(f"{config['requests']:,} requests" if config["requests"] else "requests")
        parts.append(f"{config['prompt_tokens']} prompt, {config['output_tokens']} output tokens")
    if config["concurrency"] is not None:
        parts.append(f"concurrency {config['concurrency']:,}")
    if config["rate"] is not None:
        parts.append(f"{config['rate']:g}/s {config['arrivals']}")
    if config.get("rate_schedule"):
        parts.append(f"rate schedule {config['rate_schedule']} {config['arrivals']}")
    if config.get("classes"):
        parts.append(f"classes {config['classes']}")
    if config.get("adapters"):
        parts.append(f"{config['adapters']:,} adapters")
    if config.get("ramp_s"):
        parts.append(f"ramp {format_duration(config['ramp_s'])}")
    if config["shared_prefix_tokens"]:
        parts.append(f"{config['prefixes']:,} shared prefix of {config['shared_prefix_tokens']:,}")
    if config["turns"] != "1":
        parts.append(f"{config['turns']} turns")
    for name, text in (("client_timeout_s", "timeout"), ("duration_s", "duration"), ("horizon_s", "horizon")):
        if config.get(name) is not None:
            parts.append(f"{text} {format_duration(config[name])}")
    if config["retries"]:
        budget = f", budget {config['retry_budget']:g}" if config.get("retry_budget") is not None else ""
        parts.append(f"{config['retries']} retries{budget}")
    return [*parts, f"seed {config['seed']}"]


MOST_ROWS = 16
"""Up to so many replicas each have a line; of more, the range of their figures."""

_COLUMNS = ("requests", "busy", "mean batch", "KV peak", "KV mean", "preemptions", "hit rate")


def stages(summary: Summary) -> dict[str, Distribution | None]:
    """Return the stages of a first token after its queue, where a run is disaggregated."""
    return {name.replace("_", " "): time for name, time in (summary.stages_ms or {}).items() if name != "queue"}


def replica_lines(summary: Summary, label: int) -> Iterable[str]:
    """Yield the lines of replicas and link; `label` is the width of the first column."""
    for role, spread in (summary.imbalance or {}).items():
        replicas = [replica for replica in summary.per_replica or () if replica.role == role]
        named = "replicas" if role == "both" else role
        uneven = "   ".join(
            f"{name.replace('computed_', '')} {format_number(value, 2)}x" for name, value in asdict(spread).items()
        )
        yield f"{named:<{label}}{len(replicas):,}" + (f"   busiest over mean: {uneven}" if len(replicas) > 1 else "")
        yield from _table(replicas, label) if len(replicas) <= MOST_ROWS else _ranges(replicas, label)
    if summary.link is not None:
        link = summary.link
        yield (
            f"{'link':<{label}}{format_gb(link.moved_bytes)} moved in {link.transfers:,} transfers   "
            f"busy {percent(link.busy)}"
        )


def _table(replicas: Sequence[ReplicaTotals], label: int) -> Iterable[str]:
    kinds = {replica.name for replica in replicas}
    yield f"{'  number':<{label}}" + "".join(f"{name:>12}" for name in _COLUMNS)
    for replica in replicas:
        name = f"   {replica.name}" if len(kinds) > 1 else ""
        yield f"{replica.replica:>8}".ljust(label) + "".join(f"{cell:>12}" for cell in _cells(replica)) + name


def _ranges(replicas: Sequence[ReplicaTotals], label: int) -> Iterable[str]:
    for name, key, show in (
        ("requests", "requests", lambda value: f"{value:,}"),
        ("busy", "busy", percent),
        ("mean batch", "mean_batch", format_number),
        ("KV peak", "kv_peak", percent),
        ("preemptions", "preemptions", lambda value: f"{value:,}"),
    ):
        values = sorted(value for replica in replicas if (value := getattr(replica, key)) is not None)
        if values:
            yield f"{'':<{label}}{name} {show(values[0])} to {show(values[-1])}"


def _cells(replica: ReplicaTotals) -> tuple[str, ...]:
    return (
        f"{replica.requests:,}",
        percent(replica.busy),
        format_number(replica.mean_batch),
        percent(replica.kv_peak),
        percent(replica.kv_mean),
        f"{replica.preemptions:,}",
        percent(replica.prefix_hit_rate),
    )


MOST_ATTEMPTS = 8
"""So many attempts have a line of their own; those beyond are one line."""


def optional_lines(summary: Summary, label: int) -> Iterable[str]:
    """Yield the lines of everything that was on; `label` is the width of the first column."""
    if summary.speculation is not None:
        yield f"{'speculation':<{label}}{speculation_text(summary.speculation)}"
    if summary.offload is not None:
        yield from offload_lines(summary.offload, label)
    if summary.overload is not None:
        yield from _overload_lines(summary.overload, label)
    if summary.scaling is not None:
        yield f"{'scaling':<{label}}{_scaling_text(summary.scaling)}"
    if summary.usage is not None:
        yield from usage_lines(summary, label)
    if summary.classes is not None:
        yield from _class_lines(summary, label)


def speculation_text(figures: Speculation) -> str:
    return (
        f"accepted length {format_number(figures.accepted_length, 2)}   {figures.accepted_tokens:,} of "
        f"{figures.drafted_tokens:,} drafted tokens accepted ({percent(figures.accepted_fraction)})"
    )


def offload_lines(figures: Offload, label: int) -> Iterable[str]:
    """Yield what each tier held and gave back, and what that saved."""
    yield (
        f"{'kv tiers':<{label}}hit rate: device {percent(figures.device_hit_rate)}   "
        + "   ".join(f"{tier.tier} {percent(tier.hit_rate)}" for tier in figures.tiers)
    )
    for tier in figures.tiers:
        size = "no limit" if tier.size_bytes is None else format_gb(tier.size_bytes, 1)
        peak = format_gb(tier.peak_blocks * tier.block_bytes, 1)
        yield (
            f"{'':<{label}}{tier.tier} {size}   peak {peak}   moved {format_gb(tier.moved_bytes, 1)}   "
            f"fetching {format_duration(tier.fetch_s)}   dropped {tier.dropped_blocks:,} blocks"
        )
    yield f"{'':<{label}}recompute avoided: {figures.recompute_avoided_tokens:,} tokens"


def _overload_lines(figures: Overload, label: int) -> Iterable[str]:
    attempts = figures.attempts
    if len(attempts) > 1:
        yield f"{'attempt':<{label}}" + "".join(
            f"{name:>12}" for name in ("sent", "completed", "gave up", "unfinished")
        )
        for number, row in enumerate(attempts[:MOST_ATTEMPTS], start=1):
            cells = (row.sent, row.completed, row.gave_up, row.unfinished)
            yield f"{number:>8}".ljust(label) + "".join(f"{cell:>12,}" for cell in cells)
        if len(attempts) > MOST_ATTEMPTS:
            rest = sum(row.sent for row in attempts[MOST_ATTEMPTS:])
            yield f"{'':<{label}}and {rest:,} sent in attempts {MOST_ATTEMPTS + 1} to {len(attempts)}"
    yield (
        f"{'wasted':<{label}}{figures.wasted_tokens:,} tokens computed for clients that had left, "
        f"{percent(figures.wasted_fraction)} of all"
    )


def _scaling_text(scaling: ScalingTotals) -> str:
    hours = scaling.replica_seconds / 3600
    always = scaling.peak * scaling.end_s / 3600
    saved = f", {percent(1 - hours / always)} less than {scaling.peak:,} all the time" if always else ""
    return (
        f"{scaling.minimum:,} to {scaling.maximum:,} replicas   peak {scaling.peak:,}   "
        f"{len(scaling.lives):,} launches   {format_number(hours, 2)} replica-hours{saved}"
    )


def usage_lines(summary: Summary, label: int) -> Iterable[str]:
    """Yield device-hours and money beside what was attained, and the estimate of energy with its source."""
    used = summary.usage or {}
    text = f"{format_number(used['device_hours'], 2)} device-hours"
    if used.get("cost") is not None:
        text += (
            f"   {format_number(used['cost'], 2)} in money   "
            f"{format_number(used['cost_per_1m_output_tokens'], 2)} per 1M output tokens"
        )
    if summary.goodput is not None:
        text += f"   {percent(summary.goodput.fraction)} within the objectives"
    yield f"{'cost':<{label}}{text}"
    energy = used.get("energy")
    if energy is not None:
        yield (
            f"{'energy':<{label}}{format_number(energy['joules'] / 3.6e6, 3)} kWh   "
            f"{format_number(energy['joules_per_output_token'], 2)} J per output token   "
            f"{format_number(energy['joules_per_request'])} J per request   mean {format_number(energy['mean_w'], 0)} W"
        )
        yield f"{'':<{label}}{energy['method']}"
        for device, source in energy["source"].items():
            yield f"{'':<{label}}{device}: {source}"


def _class_lines(summary: Summary, label: int) -> Iterable[str]:
    classes = summary.classes or []
    goodput = any(one.goodput is not None for one in classes)
    columns = ["offered", "completed", "tok/s", "ttft p50", "ttft p95", "tpot p50", "e2e p95", "ms/token"]
    if goodput:
        columns.append("goodput")
    yield f"{'class':<{label}}" + "".join(f"{name:>10}" for name in columns)
    for one in classes:
        name = one.name if one.name is not None else "(none)"
        yield f"  {name:<{label - 3}} " + "".join(f"{cell:>10}" for cell in _class_cells(one, goodput))
    yield (
        f"{'fairness':<{label}}{format_number(summary.fairness, 3)} (Jain's index of the classes' E2E per output token)"
    )


def _class_cells(one: ClassFigures, goodput: bool) -> list[str]:
    cells = [
        f"{one.requests.offered:,}",
        f"{one.requests.completed:,}",
        format_number(one.throughput.output_tokens_per_s),
        _at(one.ttft_ms, "p50"),
        _at(one.ttft_ms, "p95"),
        _at(one.tpot_ms, "p50"),
        _at(one.e2e_ms, "p95"),
        format_number(one.normalized_latency_ms),
    ]
    return [*cells, percent(None if one.goodput is None else one.goodput.fraction)] if goodput else cells


def _at(distribution: Distribution | None, name: str) -> str:
    return format_number(_figure(distribution, name))


def _figure(distribution: Distribution | None, name: str) -> float | None:
    return None if distribution is None else float(getattr(distribution, name))


def gain_text(with_tiers: Summary, without: Summary, label: int) -> str:
    """Return the table of a run with its KV tiers and the same run without them."""
    lines = [f"{'with, without':<{label}}" + "".join(f"{name:>14}" for name in ("KV tiers", "none", "change"))]
    for name, here, there in (
        ("ttft p50 ms", _figure(with_tiers.ttft_ms, "p50"), _figure(without.ttft_ms, "p50")),
        ("ttft p95 ms", _figure(with_tiers.ttft_ms, "p95"), _figure(without.ttft_ms, "p95")),
        ("ttft mean ms", _figure(with_tiers.ttft_ms, "mean"), _figure(without.ttft_ms, "mean")),
        ("e2e mean ms", _figure(with_tiers.e2e_ms, "mean"), _figure(without.e2e_ms, "mean")),
        ("output tok/s", with_tiers.throughput.output_tokens_per_s, without.throughput.output_tokens_per_s),
    ):
        change = f"{(here / there - 1) * 100:+.1f}%" if here is not None and there else "-"
        cells = (format_number(here), format_number(there), change)
        lines.append(f"{name:<{label}}" + "".join(f"{cell:>14}" for cell in cells))
    rates = [summary.engine.prefix_hit_rate for summary in (with_tiers, without)]
    lines.append(f"{'hit rate':<{label}}" + "".join(f"{percent(rate):>14}" for rate in rates))
    return "".join(f"{line}\n" for line in lines)


def without_tiers(summary: Summary) -> dict[str, Any]:
    """Return what a run without its KV tiers came to, to stand beside the run with them."""
    document = summary.as_dict()
    names = ("ttft_ms", "e2e_ms", "throughput", "engine", "slo", "goodput")
    return {name: document[name] for name in names if name in document}


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
    return [*replica_lines(summary, LABEL), *optional_lines(summary, LABEL)]


def warmup_text(warmup: Run) -> str:
    """Return the warm-up requests, which no figure counts, one a line; the first one met a cold server."""
    done = Completed(warmup)
    rows = zip(done.indices(), done.ttft(), done.e2e(), strict=True)
    latencies = {index: (ttft_s, e2e_s) for index, ttft_s, e2e_s in rows}
    lines = []
    for index in range(len(warmup.records)):
        if index in latencies:
            ttft, e2e = (format_ms(None if value != value else value * 1000) for value in latencies[index])
            text = f"ttft {ttft}   e2e {e2e}"
        else:
            text = warmup.records.reason.get(index, "not completed")
        lines.append(_line("warm-up", f"{text}   (cold)" if index == 0 else text))
    return "".join(f"{line}\n" for line in lines)


def _line(label: str, text: str) -> str:
    return f"{label:<{LABEL}}{text}"


def _request_lines(requests: RequestCounts, attempts: int) -> Iterable[str]:
    text = f"{requests.completed:,} completed"
    if requests.completed != requests.offered:
        text = (
            f"{requests.offered:,} offered = {text} + {requests.failed:,} failed "
            f"+ {requests.rejected:,} rejected + {requests.unfinished:,} unfinished"
        )
    yield _line("requests", text)
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
    text = f"{tokens.prompt:,} prompt ({cached} cached)   {tokens.output:,} output"
    if tokens.estimated:
        text += f" ({tokens.estimated:,} estimated from events)"
    if tokens.per_event is not None and tokens.per_event != 1:
        text += f"   {tokens.per_event:.2f} per event"
    return text


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
    if not engine.is_known:
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
        text = (
            f"{format_number(summary.goodput.requests_per_s, 2)} req/s   {percent(summary.goodput.fraction)} of offered"
        )
        yield _line("goodput", text)


def slo_text(result: SloResult) -> str:
    """Return `ttft_p95 <= 500.0 ms: met (412.3 ms)`."""
    name = Slo(metric=result.metric, percentile=result.percentile, limit_s=result.limit_ms / 1000).name
    prefix = "" if result.class_name is None else f"{result.class_name}:"
    limit = f"{prefix}{name} <= {format_ms(result.limit_ms)}"
    if result.met is None:
        return f"{limit}: cannot be judged, no value is known"
    value = "requests that did not complete" if result.value_ms is None else format_ms(result.value_ms)
    return f"{limit}: {'met' if result.met else 'not met'} ({value})"
