"""Pictures in plain characters, for a terminal or a ticket: sparklines over time, a histogram, bars of a sweep.

Every column of a sparkline is the largest value of its stretch of time, so that no spike is lost; of a pace, the mean.
Where the terminal has no block characters, ASCII stands for them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from servesim.report.charts import sample_of
from servesim.report.figure import linear
from servesim.report.input import shown_name, shown_value
from servesim.report.series import (
    Series,
    at_time,
    counted,
    in_flight,
    kv_use,
    output_rate,
    preemption_times,
    run_end_s,
    running,
    waiting,
)
from servesim.runs.records import Run
from servesim.stats import Sample
from servesim.summary.summary import Summary
from servesim.units import format_duration, format_ms, format_number

COLUMNS = 64
LABEL = 13
BAR = 40
BINS = 12
BLOCKS, ASCII_BLOCKS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
FULL, ASCII_FULL = "█", "#"


def plot_run(run: Run, *, ascii_only: bool = False) -> str:
    """Return the sparklines of a run over its time and the histogram of its TTFT (of its E2E where it has none)."""
    end_s = run_end_s(run)
    if not end_s:
        return ""
    lines = [
        _spark_line(name, values, text, ascii_only)
        for name, values, text in _sparks(run, end_s)
        if any(values) or name != "preemptions"
    ]
    lines.append(f"{'':<{LABEL}}0 s{format_duration(end_s):>{COLUMNS - 3}}")
    for metric, name in (("ttft", "TTFT"), ("e2e", "E2E")):
        sample = sample_of(run, metric)
        if sample is not None and sample.count:
            lines += [
                "",
                f"{name} of {sample.count:,} request{'s' if sample.count > 1 else ''}",
                *histogram_lines(sample, ascii_only=ascii_only),
            ]
            break
    return "".join(f"{line.rstrip()}\n" for line in lines)


def plot_rows(
    points: Sequence[Mapping[str, Any]],
    summaries: Sequence[Summary],
    knee: int | None = None,
    *,
    ascii_only: bool = False,
) -> str:
    """Return two blocks of bars, one bar a row: output tokens/s and mean E2E; the knee is marked."""
    keys = list(dict.fromkeys(key for point in points for key in point))
    labels = [", ".join(shown_value(key, point.get(key)) for key in keys) for point in points]
    header = ", ".join(map(shown_name, keys))
    width = max(map(len, [*labels, header]), default=0)
    lines: list[str] = []
    for title, values, show in (
        ("output tok/s", [each.throughput.output_tokens_per_s for each in summaries], format_number),
        ("mean E2E", [each.e2e_ms.mean if each.e2e_ms else None for each in summaries], format_ms),
    ):
        lines += [*([""] if lines else []), f"{header:>{width}}  {title}"]
        most = max((value for value in values if value), default=0.0)
        for number, (label, value) in enumerate(zip(labels, values, strict=False)):
            mark = "   knee" if number == knee else ""
            lines.append(f"{label:>{width}}  {bar(value or 0.0, most, ascii_only=ascii_only)} {show(value)}{mark}")
    return "".join(f"{line.rstrip()}\n" for line in lines)


def sparkline(values: Sequence[float], top: float | None = None, *, ascii_only: bool = False) -> str:
    """Return one character a value, from nothing at 0 to full at `top` (default: the largest).

    >>> sparkline([0, 1, 4, 8], ascii_only=True)
    ' .=@'
    """
    levels = ASCII_BLOCKS if ascii_only else BLOCKS
    top = max(values, default=0.0) if top is None else top
    steps = len(levels) - 1

    def level(value: float) -> str:
        return levels[max(1, min(steps, round(value / top * steps))) if top and value > 0 else 0]  # seen, however small

    return "".join(map(level, values))


def bar(value: float, most: float, *, ascii_only: bool = False) -> str:
    """Return a bar of at most BAR characters; whatever is above 0 has at least one."""
    if not most or value <= 0:
        return ""
    return (ASCII_FULL if ascii_only else FULL) * max(1, round(value / most * BAR))


def histogram_lines(sample: Sample, *, ascii_only: bool = False) -> list[str]:
    """Return a line for each of about BINS equal ranges of a sample in seconds, with how many values lie in it."""
    low, high = sample.at(1), sample.at(sample.count)
    divisor, unit = (1.0, "s") if high >= 2 else (0.001, "ms")
    axis = linear("", low, high, divisor=divisor, ticks=BINS)
    edges = [axis.value(tick.share) for tick in axis.ticks]
    ends = [*edges[1:-1], high]  # rounding must not leave the largest value out
    below = [0, *(sample.up_to(edge) for edge in ends)]
    counts = [there - here for here, there in zip(below, below[1:], strict=False)]
    while not counts[-1]:  # of values that are all alike the axis goes on to somewhere
        counts.pop()
    labels = [tick.label for tick in axis.ticks]
    width = max(map(len, labels))
    return [
        f"{start:>{width}} - {end:>{width}} {unit}  {bar(count, max(counts), ascii_only=ascii_only):<{BAR}} {count:,}"
        for start, end, count in zip(labels, labels[1:], counts, strict=False)
    ]


def _sparks(run: Run, end_s: float) -> list[tuple[str, list[float], str]]:
    """Return (name, a value a column, what stands behind it) of everything that the run knows."""
    parts: list[tuple[str, list[float], str]] = []
    known = (("running", running(run)), ("waiting", waiting(run)))
    for name, series in known if any(series for _, series in known) else (("in flight", in_flight(run)),):
        if series is not None:
            values = _peaks(series, end_s)
            parts.append((name, values, f"max {max(values):,.0f}"))
    cache = kv_use(run)
    if cache is not None:
        values = _peaks(cache, end_s)
        parts.append(("KV cache", values, f"max {max(values) * 100:.1f}%"))
    preempted = preemption_times(run)
    if preempted is not None:
        _, counts = counted(preempted, 0.0, end_s, COLUMNS)
        parts.append(("preemptions", counts[:-1], f"{len(preempted):,}"))
    pace = output_rate(run, 0.0, end_s, COLUMNS)
    if pace is not None:
        parts.append(("tokens/s", pace[1][:-1], f"max {format_number(max(pace[1]))}"))
    return parts


def _spark_line(name: str, values: Sequence[float], text: str, ascii_only: bool) -> str:
    top = 1.0 if name == "KV cache" else None
    return f"{name:<{LABEL}}{sparkline(values, top, ascii_only=ascii_only):<{COLUMNS}}  {text}"


def _peaks(series: Series, end_s: float) -> list[float]:
    """Return the largest value that held in each of COLUMNS equal stretches of [0, end]."""
    times, values = series
    peaks = []
    for column in range(COLUMNS):
        start, stop = end_s * column / COLUMNS, end_s * (column + 1) / COLUMNS
        inside = values[bisect_left(times, start) : bisect_left(times, stop)]
        peaks.append(max([at_time(series, start), *inside]))
    return peaks
