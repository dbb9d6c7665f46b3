"""What is in a trace as a block of text, from the same figures that the JSON document has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.units import format_duration, format_number, format_si

LABEL = 13
COLUMNS = ("mean", "min", "p50", "p90", "p95", "p99", "max")


def trace_text(figures: Mapping[str, Any]) -> str:
    """Return the block of `trace describe`; it ends with a newline. What the trace does not say is left out."""
    lines = [
        ("trace", f"{figures['name']}   format {figures['format']}"),
        (
            "requests",
            f"{figures['requests']:,}" + (f"   {figures['skipped']:,} bad rows skipped" if figures["skipped"] else ""),
        ),
        *_pace(figures["pace"]),
        ("tokens", f"{figures['total_prompt_tokens']:,} prompt   {figures['total_output_tokens']:,} output"),
        ("lengths", "".join(f"{name:>10}" for name in COLUMNS)),
        *((name, _row(figures[f"{name}_tokens"])) for name in ("prompt", "output")),
        ("shared", _sharing(figures["sharing"])),
        *_sessions(figures["sessions"]),
    ]
    for label, counts in (("classes", figures["classes"]), ("priorities", figures["priorities"])):
        if counts:
            told = [f"{name} {count:,}" for name, count in list(counts.items())[:6]]
            lines.append((label, "   ".join(told) + (f"   and {len(counts) - 6:,} more" if len(counts) > 6 else "")))
    return "".join(f"{label:<{LABEL}}{text}\n" for label, text in lines)


def _row(distribution: Mapping[str, float]) -> str:
    return "".join(f"{distribution[name]:>10,.{1 if name == 'mean' else 0}f}" for name in COLUMNS)


def _pace(pace: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if pace is None:
        return [("arrivals", "no times in it: replay it with --concurrency, or give it some with trace scale --rate")]
    rate = "all at one instant" if pace["requests_per_s"] is None else f"{pace['requests_per_s']:.4g} requests/s"
    peaks = f"{pace['busiest_second']:,} in a second   {pace['busiest_minute']:,} in a minute"
    lines = [
        ("span", f"{format_duration(pace['span_s'])}   {rate}   times read as {pace['times']}"),
        ("peaks", f"{peaks}   {pace['most_at_once']:,} at one instant"),
    ]
    if pace["gap_variation"] is not None:
        told = f"gaps vary by {pace['gap_variation']:.2f} of their mean (Poisson: 1)"
        if pace["burstiness"] is not None:
            told += f"   like --burstiness {pace['burstiness']:.2g}"
        lines.append(("burstiness", told))
    return lines


def _sharing(sharing: Mapping[str, Any] | None) -> str:
    if sharing is None:
        return "nothing that the trace tells of"
    share = f"{100 * sharing['fraction']:.1f}% of prompt tokens ({format_si(sharing['shared_tokens'])})"
    return f"{share}, in {sharing['requests']:,} requests, were in an earlier one as well"


def _sessions(sessions: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if sessions is None:
        return []
    turns = sessions["turns"]
    told = f"{sessions['count']:,} with {sessions['requests']:,} requests"
    told += f"   turns mean {format_number(turns['mean'])}, p50 {turns['p50']:.0f}, max {turns['max']:.0f}"
    if sessions["think_s"] is not None:
        told += f"   pauses p50 {format_duration(sessions['think_s']['p50'])}"
    return [("sessions", told)]
