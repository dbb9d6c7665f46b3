"""A fleet in the block that a person reads: its replicas, how even their load was, its stages and its link."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from servesim.report.numbers import percent
from servesim.stats import Distribution
from servesim.summary import Summary
from servesim.units import format_gb, format_number

MOST_ROWS = 16
"""Up to so many replicas each have a line; of more, the range of their figures is told."""

_COLUMNS = ("requests", "busy", "mean batch", "KV peak", "KV mean", "preemptions", "hit rate")


def stages(summary: Summary) -> dict[str, Distribution | None]:
    """Return the stages of a first token after its queue, where prefill and decode are apart."""
    return {name.replace("_", " "): time for name, time in (summary.stages_ms or {}).items() if name != "queue"}


def pool_lines(summary: Summary, label: int) -> Iterable[str]:
    """Yield the lines of replicas and link; `label` is the width of the first column."""
    for role, spread in (summary.imbalance or {}).items():
        pool = [replica for replica in summary.per_replica or () if replica["role"] == role]
        named = "replicas" if role == "both" else role
        uneven = "   ".join(
            f"{name.replace('computed_', '')} {format_number(value, 2)}x" for name, value in spread.items()
        )
        yield f"{named:<{label}}{len(pool):,}" + (f"   busiest over mean: {uneven}" if len(pool) > 1 else "")
        yield from _table(pool, label) if len(pool) <= MOST_ROWS else _ranges(pool, label)
    if summary.link is not None:
        link = summary.link
        yield (
            f"{'link':<{label}}{format_gb(link['moved_bytes'])} moved in {link['transfers']:,} transfers   "
            f"busy {percent(link['busy'])}"
        )


def _table(pool: Sequence[Mapping[str, Any]], label: int) -> Iterable[str]:
    kinds = {replica["name"] for replica in pool}
    yield f"{'  number':<{label}}" + "".join(f"{name:>12}" for name in _COLUMNS)
    for replica in pool:
        name = f"   {replica['name']}" if len(kinds) > 1 else ""
        yield f"{replica['replica']:>8}".ljust(label) + "".join(f"{cell:>12}" for cell in _cells(replica)) + name


def _ranges(pool: Sequence[Mapping[str, Any]], label: int) -> Iterable[str]:
    for name, key, show in (
        ("requests", "requests", lambda value: f"{value:,}"),
        ("busy", "busy", percent),
        ("mean batch", "mean_batch", format_number),
        ("KV peak", "kv_peak", percent),
        ("preemptions", "preemptions", lambda value: f"{value:,}"),
    ):
        values = sorted(value for replica in pool if (value := replica[key]) is not None)
        if values:
            yield f"{'':<{label}}{name} {show(values[0])} to {show(values[-1])}"


def _cells(replica: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{replica['requests']:,}",
        percent(replica["busy"]),
        format_number(replica["mean_batch"]),
        percent(replica["kv_peak"]),
        percent(replica["kv_mean"]),
        f"{replica['preemptions']:,}",
        percent(replica["prefix_hit_rate"]),
    )
