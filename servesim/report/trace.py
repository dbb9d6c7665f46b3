"""What is in a trace as a block of text."""

from __future__ import annotations

from servesim.stats import Distribution, figure_at
from servesim.units import format_duration, format_number, format_si
from servesim.workload.traces.describe import Pace, Sessions, Sharing, TraceDescription

LABEL = 13
COLUMNS = ("mean", "min", "p50", "p90", "p95", "p99", "max")


def trace_text(found: TraceDescription) -> str:
    """Return the block of `trace describe`; it ends with a newline. What the trace does not say is left out."""
    lines = [
        ("trace", f"{found.name}   format {found.format}"),
        (
            "requests",
            f"{found.requests:,}" + (f"   {found.skipped:,} bad rows skipped" if found.skipped else ""),
        ),
        *_pace(found.pace),
        ("tokens", f"{found.total_prompt_tokens:,} prompt   {found.total_output_tokens:,} output"),
        ("lengths", "".join(f"{name:>10}" for name in COLUMNS)),
        ("prompt", _row(found.prompt_tokens)),
        ("output", _row(found.output_tokens)),
        ("shared", _sharing(found.sharing)),
        *_sessions(found.sessions),
    ]
    for label, counts in (("classes", found.classes), ("priorities", found.priorities)):
        if counts:
            parts = [f"{name} {count:,}" for name, count in list(counts.items())[:6]]
            lines.append((label, "   ".join(parts) + (f"   and {len(counts) - 6:,} more" if len(counts) > 6 else "")))
    return "".join(f"{label:<{LABEL}}{text}\n" for label, text in lines)


def _row(lengths: Distribution | None) -> str:
    return "".join(format_number(figure_at(lengths, name), int(name == "mean")).rjust(10) for name in COLUMNS)


def _pace(pace: Pace | None) -> list[tuple[str, str]]:
    if pace is None:
        return [("arrivals", "no times in it: replay it with --concurrency, or give it some with trace scale --rate")]
    rate = "all at one instant" if pace.requests_per_s is None else f"{pace.requests_per_s:.4g} requests/s"
    peaks = f"{pace.busiest_second:,} in a second   {pace.busiest_minute:,} in a minute"
    lines = [
        ("span", f"{format_duration(pace.span_s)}   {rate}   times read as {pace.times}"),
        ("peaks", f"{peaks}   {pace.most_at_once:,} at one instant"),
    ]
    if pace.gap_variation is not None:
        text = f"gaps vary by {pace.gap_variation:.2f} of their mean (Poisson: 1)"
        if pace.burstiness is not None:
            text += f"   like --burstiness {pace.burstiness:.2g}"
        lines.append(("burstiness", text))
    return lines


def _sharing(sharing: Sharing | None) -> str:
    if sharing is None:
        return "nothing that the trace tells of"
    share = f"{100 * sharing.fraction:.1f}% of prompt tokens ({format_si(sharing.shared_tokens)})"
    return f"{share}, in {sharing.requests:,} requests, were in an earlier one as well"


def _sessions(sessions: Sessions | None) -> list[tuple[str, str]]:
    if sessions is None:
        return []
    mean, median, most = (figure_at(sessions.turns, name) for name in ("mean", "p50", "max"))
    text = f"{sessions.count:,} with {sessions.requests:,} requests"
    text += f"   turns mean {format_number(mean)}, p50 {format_number(median, 0)}, max {format_number(most, 0)}"
    if sessions.think_s is not None:
        text += f"   pauses p50 {format_duration(sessions.think_s.p50)}"
    return [("sessions", text)]
