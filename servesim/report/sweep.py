"""The table of a sweep, one row a point, with the line of its knee; and the table of a length scan.

The columns are those of one server under more and more load; columns that would be alike in every row (nothing failed,
no objective was asked) are left out. Where the knee lies is decided elsewhere. A scan has the same table whether a
simulator or a server was scanned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from servesim.client.scan import AXES, Line, Scan, ScanRow
from servesim.report.input import shown_name, shown_value
from servesim.stats import Distribution, figure_at
from servesim.summary.summary import Summary
from servesim.units import bandwidth, format_number, percent

Cell = Callable[[Summary], str]


def _plain(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _of(distribution: Distribution | None, name: str) -> str:
    return "-" if distribution is None else _plain(getattr(distribution, name))


COLUMNS: dict[str, Cell] = {
    "output tok/s": lambda s: _plain(s.throughput.output_tokens_per_s),
    "TTFT p50 ms": lambda s: _of(s.ttft_ms, "p50"),
    "TPOT p50": lambda s: _of(s.tpot_ms, "p50"),
    "TPOT p95": lambda s: _of(s.tpot_ms, "p95"),
    "queue p95": lambda s: _of(s.queue_ms, "p95"),
    "mean batch": lambda s: _plain(s.engine.mean_batch),
    "KV peak": lambda s: percent(s.engine.kv_peak),
    "preemptions": lambda s: _plain(s.engine.preemptions, 0),
}

# Beside them where a run is disaggregated: what that is for, and what it costs.
DISAGGREGATED: dict[str, Cell] = {
    "TTFT p95": lambda s: _of(s.ttft_ms, "p95"),
    "ITL p99": lambda s: _of(s.itl_ms, "p99"),
    "link busy": lambda s: percent(s.link.busy if s.link else None),
}

# Beside them where something that may be off is on: a test whether it is, and its columns.
OPTIONAL: tuple[tuple[Callable[[Summary], object], dict[str, Cell]], ...] = (
    (
        lambda s: s.speculation,
        {"accepted length": lambda s: _plain(s.speculation.accepted_length if s.speculation else None, 2)},
    ),
    (
        lambda s: s.offload,
        {
            "TTFT mean": lambda s: _of(s.ttft_ms, "mean"),
            "device hits": lambda s: percent(s.offload.device_hit_rate if s.offload else None),
            "tier hits": lambda s: percent(_tier_hits(s)),
        },
    ),
    (
        lambda s: s.overload,
        {"wasted tokens": lambda s: percent(s.overload.wasted_fraction if s.overload else None)},
    ),
    (lambda s: s.usage, {"device hours": lambda s: _plain((s.usage or {}).get("device_hours"), 2)}),
    (lambda s: (s.usage or {}).get("cost"), {"cost": lambda s: _plain((s.usage or {}).get("cost"), 2)}),
    (
        lambda s: (s.usage or {}).get("energy"),
        {"J/ token": lambda s: _plain(((s.usage or {}).get("energy") or {}).get("joules_per_output_token"), 2)},
    ),
    (lambda s: s.classes, {"class fairness": lambda s: _plain(s.fairness, 3)}),
)


def _tier_hits(summary: Summary) -> float | None:
    tiers = summary.offload.tiers if summary.offload is not None else ()
    rates = [tier.hit_rate for tier in tiers if tier.hit_rate is not None]
    return sum(rates) if rates else None


NOT_DISAGGREGATED = ("TPOT p50", "mean batch")  # of engines that do different things; and for want of room

LOST: Cell = lambda s: str(s.requests.offered - s.requests.completed)  # noqa: E731
GOODPUT: Cell = lambda s: percent(None if s.goodput is None else s.goodput.fraction)  # noqa: E731
SLO: Cell = lambda s: "met" if all(result.met for result in s.slo or ()) else "missed"  # noqa: E731


def sweep_text(
    points: Sequence[Mapping[str, Any]],
    summaries: Sequence[Summary],
    knee: int | None = None,
    crossings: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] = (),
) -> str:
    """Return the table of `summaries`, each at its point of swept values, and the knee's line; ends with a newline.

    Headers stand on two lines, the last word below. `knee` is the number of a row; `crossings` are told for the rest
    of the point at which each curve lies.
    """
    columns = dict(COLUMNS)
    if any(summary.link for summary in summaries):
        columns = {name: cell for name, cell in columns.items() if name not in NOT_DISAGGREGATED} | DISAGGREGATED
    for is_on, own in OPTIONAL:
        if any(is_on(summary) for summary in summaries):
            columns |= own
    if any(summary.requests.offered != summary.requests.completed for summary in summaries):
        columns["not completed"] = LOST
    if any(summary.slo for summary in summaries):
        columns |= {"slo": SLO, "goodput": GOODPUT}
    swept = list(dict.fromkeys(key for point in points for key in point))
    headers = [shown_name(key) for key in swept] + list(columns)
    tops, bottoms = zip(*(header.rpartition(" ")[::2] for header in headers), strict=True)
    rows = [
        [shown_value(key, point.get(key)) for key in swept] + [cell(summary) for cell in columns.values()]
        for point, summary in zip(points, summaries, strict=True)
    ]
    table = [list(tops), list(bottoms), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    if knee is not None:
        lines += ["", knee_text(points, summaries, knee)]
    if crossings:
        lines += ["", *(crossing_text(point, found, several=len(crossings) > 1) for point, found in crossings)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def knee_text(points: Sequence[Mapping[str, Any]], summaries: Sequence[Summary], knee: int) -> str:
    """Return the line that names the row of the knee, and what the next row of the same curve costs."""
    text = f"knee: {_point(points[knee])}, the most throughput per latency"
    if knee == len(points) - 1:
        return f"{text}; the last row: the real one may lie beyond"
    if sum(points[knee].get(key) != value for key, value in points[knee + 1].items()) != 1:
        return text
    here, there = summaries[knee], summaries[knee + 1]
    more = _times(there.throughput.output_tokens_per_s, here.throughput.output_tokens_per_s)
    slower = _times(figure_at(there.e2e_ms, "mean"), figure_at(here.e2e_ms, "mean"))
    return f"{text}; next row: {more} output tok/s, {slower} mean E2E"


def crossing_text(point: Mapping[str, Any], found: Mapping[str, Any], *, several: bool) -> str:
    """Return the line that tells from which bandwidth on disaggregated engines are as good as colocated engines."""
    text = f"{_point(point)}: crossing" if several and point else "crossing"
    reached, worse = found["bytes_per_s"], found["worse_bytes_per_s"]
    together = f"{found['engines']} colocated engines (TTFT p95 {_plain(found['colocated_ttft_p95_ms'])} ms)"
    if reached is None:
        return f"{text}: none up to {bandwidth(worse)}, {together} win throughout"
    if worse is None:
        return f"{text}: none down to {bandwidth(reached)}, {together} win nowhere"
    return f"{text}: {bandwidth(reached)}, below it {together} win"


def pays_text(size: str | None, share: float) -> str:
    """Return the line that tells from which size of KV tiers on more lowers the mean TTFT by less than `share`."""
    if size is None:
        return "kv tiers: the largest size still pays: the mean TTFT falls to the last row"
    return f"kv tiers: {size} is where more stops paying: no larger size lowers the mean TTFT by {share:.0%}"


def _point(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{shown_name(key)} {shown_value(key, value)}" for key, value in point.items())


def _times(numerator: float | None, denominator: float | None) -> str:
    return f"{numerator / denominator:.2f}x" if numerator is not None and denominator else "-"


SCAN_COLUMNS = ("asked", "got", "prompt", "TTFT ms", "TPOT ms", "E2E ms", "E2E min - max", "tok/s", "extra E2E ms")
WIDTHS = (6, 7, 7, 8, 8, 9, 19, 7, 12)


def scan_text(scan: Scan) -> str:
    """Return the table of a scan with its fitted lines; it fits 100 columns and ends with a newline.

    For a scan of prompts the column that tells the other side's tokens is `output`.
    """
    name = AXES[scan.axis]
    header = [column if column != "prompt" or scan.axis == "output_tokens" else "output" for column in SCAN_COLUMNS]
    lines = [f"scan of {name} tokens", _cells(header), *(_cells(_row(scan.axis, row)) for row in scan.rows)]
    for label, line in (("TTFT", scan.ttft if scan.axis == "prompt_tokens" else None), ("E2E", scan.e2e)):
        if line is not None:
            lines.append(f"{label:<4} = {_line(line, name)}")
    return "\n".join(lines) + "\n"


def _row(axis: str, row: ScanRow) -> list[str]:
    other = row.prompt_tokens if axis == "output_tokens" else row.output_tokens
    span = "-"
    if row.e2e_min_ms is not None and row.e2e_max_ms is not None:
        span = f"{format_number(row.e2e_min_ms)} - {format_number(row.e2e_max_ms)}"
    return [
        f"{row.asked_tokens:,}",
        format_number(row.produced_tokens),
        format_number(other),
        format_number(row.ttft_ms),
        format_number(row.tpot_ms, 2),
        format_number(row.e2e_ms),
        span,
        format_number(row.tokens_per_s),
        format_number(row.extra_e2e_ms),
    ]


def _cells(cells: list[str]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True)).rstrip()


def _line(line: Line, name: str) -> str:
    fixed, per_token = format_number(line.fixed_ms), format_number(line.per_token_ms, 3)
    return f"{fixed} ms fixed + {per_token} ms per {name} token (rows within {format_number(line.worst_ms)} ms)"
