"""What may be off in the block that a person reads: tiers, drafts, retries, scaling, costs, classes. Lines, no sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from servesim.figures import ClassFigures, Summary
from servesim.report.numbers import percent
from servesim.stats import Distribution
from servesim.units import format_duration, format_gb, format_number

MOST_ATTEMPTS = 8
"""So many attempts have a line of their own; those beyond are told together."""


def feature_lines(summary: Summary, label: int) -> Iterable[str]:
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


def speculation_text(figures: Mapping[str, Any]) -> str:
    return (
        f"accepted length {format_number(figures['accepted_length'], 2)}   {figures['accepted_tokens']:,} of "
        f"{figures['drafted_tokens']:,} drafted tokens accepted ({percent(figures['accepted_fraction'])})"
    )


def offload_lines(figures: Mapping[str, Any], label: int) -> Iterable[str]:
    """Yield what each tier held and gave back, and what that saved."""
    yield (
        f"{'kv tiers':<{label}}hit rate: device {percent(figures['device_hit_rate'])}   "
        + "   ".join(f"{tier['tier']} {percent(tier['hit_rate'])}" for tier in figures["tiers"])
    )
    for tier in figures["tiers"]:
        size = "no limit" if tier["size_bytes"] is None else format_gb(tier["size_bytes"], 1)
        peak = format_gb(tier["peak_blocks"] * tier["block_bytes"], 1)
        yield (
            f"{'':<{label}}{tier['tier']} {size}   peak {peak}   moved {format_gb(tier['moved_bytes'], 1)}   "
            f"fetching {format_duration(tier['fetch_s'])}   dropped {tier['dropped_blocks']:,} blocks"
        )
    yield f"{'':<{label}}recompute avoided: {figures['recompute_avoided_tokens']:,} tokens"


def _overload_lines(figures: Mapping[str, Any], label: int) -> Iterable[str]:
    attempts = figures["attempts"]
    if len(attempts) > 1:
        yield f"{'attempt':<{label}}" + "".join(
            f"{name:>12}" for name in ("sent", "completed", "gave up", "unfinished")
        )
        for number, row in enumerate(attempts[:MOST_ATTEMPTS], start=1):
            cells = (row["sent"], row["completed"], row["gave_up"], row["unfinished"])
            yield f"{number:>8}".ljust(label) + "".join(f"{cell:>12,}" for cell in cells)
        if len(attempts) > MOST_ATTEMPTS:
            rest = sum(row["sent"] for row in attempts[MOST_ATTEMPTS:])
            yield f"{'':<{label}}and {rest:,} sent in attempts {MOST_ATTEMPTS + 1} to {len(attempts)}"
    yield (
        f"{'wasted':<{label}}{figures['wasted_tokens']:,} tokens computed for clients that had left, "
        f"{percent(figures['wasted_fraction'])} of all"
    )


def _scaling_text(scaling: Mapping[str, Any]) -> str:
    hours = scaling["replica_seconds"] / 3600
    always = scaling["peak"] * scaling["end_s"] / 3600
    saved = f", {percent(1 - hours / always)} less than {scaling['peak']:,} all the time" if always else ""
    return (
        f"{scaling['minimum']:,} to {scaling['maximum']:,} replicas   peak {scaling['peak']:,}   "
        f"{len(scaling['lives']):,} launches   {format_number(hours, 2)} replica-hours{saved}"
    )


def usage_lines(summary: Summary, label: int) -> Iterable[str]:
    """Yield device-hours and money beside what was attained, and the estimate of energy with its source."""
    used = summary.usage or {}
    told = f"{format_number(used['device_hours'], 2)} device-hours"
    if used.get("cost") is not None:
        told += (
            f"   {format_number(used['cost'], 2)} in money   "
            f"{format_number(used['cost_per_1m_output_tokens'], 2)} per 1M output tokens"
        )
    if summary.goodput is not None:
        told += f"   {percent(summary.goodput.fraction)} within the objectives"
    yield f"{'cost':<{label}}{told}"
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
