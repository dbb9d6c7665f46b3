"""The tables of a report, for every form that shows tables, and the report as Markdown.

Cells are text, unknown is `-`. Text from elsewhere stays text in Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from servesim.report.input import Grid, ReportInput, ReportRun, number_at, shown_name, shown_swept
from servesim.report.loadgen import failures_of
from servesim.report.svg import plain
from servesim.report.text import fleet_lines, slo_text, stages
from servesim.stats import Distribution, figure_at
from servesim.summary.summary import EngineFigures, Summary
from servesim.units import format_duration, format_ms, format_number, percent, whole

PERCENTILES = ("mean", "p50", "p90", "p95", "p99", "max")
LATENCIES = ("ttft", "ttfo", "tpot", "itl", "e2e", "queue", "lateness")


@dataclass(slots=True, kw_only=True)
class Table:
    """Rows under columns, the first column the name of a row."""

    title: str = ""
    columns: Sequence[str]
    rows: Sequence[Sequence[str]] = ()
    wide: tuple[int, ...] = ()  # columns that a narrow page may leave out
    marked: int | None = None  # the row that matters most


def key_figures(summary: Summary) -> list[tuple[str, str, str]]:
    """Return (label, figure, what stands beside it) of what a person looks at first."""
    requests, throughput, engine = summary.requests, summary.throughput, summary.engine
    lost = requests.failed + requests.rejected + requests.unfinished
    parts = [
        ("completed", f"{requests.completed:,}", f"of {requests.offered:,}" + (f", {lost:,} lost" if lost else "")),
        ("duration", format_duration(summary.duration_s), f"{format_number(throughput.requests_per_s, 2)} requests/s"),
        (
            "output tokens/s",
            format_number(throughput.output_tokens_per_s),
            f"{format_number(throughput.total_tokens_per_s)} in all",
        ),
        ("TTFT p50", _ms(summary.ttft_ms, "p50"), f"p95 {_ms(summary.ttft_ms, 'p95')}"),
        ("TPOT p50", _ms(summary.tpot_ms, "p50"), f"p95 {_ms(summary.tpot_ms, 'p95')}"),
        ("E2E p50", _ms(summary.e2e_ms, "p50"), f"p95 {_ms(summary.e2e_ms, 'p95')}"),
    ]
    if engine.kv_peak is not None:
        parts.append(("KV cache peak", percent(engine.kv_peak), f"mean {percent(engine.kv_mean)}"))
    if engine.preemptions is not None:
        parts.append(("preemptions", f"{engine.preemptions:,}", f"mean batch {format_number(engine.mean_batch)}"))
    if summary.goodput is not None:
        parts.append(
            ("goodput", percent(summary.goodput.fraction), f"{format_number(summary.goodput.requests_per_s, 2)} req/s")
        )
    return parts


def outcome_table(runs: Sequence[ReportRun]) -> Table:
    """Return what was offered and what became of it, one run a row."""
    columns = ("run", "offered", "completed", "failed", "rejected", "unfinished", "output tok/s", "req/s", "duration")
    rows = []
    for named in runs:
        requests, throughput = named.summary.requests, named.summary.throughput
        counts = (requests.offered, requests.completed, requests.failed, requests.rejected, requests.unfinished)
        rows.append(
            (
                named.name,
                *(f"{count:,}" for count in counts),
                format_number(throughput.output_tokens_per_s),
                format_number(throughput.requests_per_s, 2),
                format_duration(named.summary.duration_s),
            )
        )
    return Table(title="Requests", columns=columns, rows=rows, wide=(5, 8))


def latency_table(runs: Sequence[ReportRun]) -> Table:
    """Return the latencies in ms; of several runs, one row each below its metric."""
    rows = []
    parts = [_latencies(named.summary) for named in runs]
    for metric in dict.fromkeys(metric for latencies in parts for metric in latencies):
        for named, latencies in zip(runs, parts, strict=True):
            distribution = latencies.get(metric)
            if _is_noise(metric, named.summary, distribution):
                continue
            name = f"{metric}, {named.name}" if len(runs) > 1 else metric
            cells = (figure_at(distribution, percentile) for percentile in PERCENTILES)
            rows.append((name, *(format_number(cell) for cell in cells)))
    return Table(title="Latency, ms", columns=("metric", *PERCENTILES), rows=rows, wide=(3,))


def _latencies(summary: Summary) -> dict[str, Distribution | None]:
    return {metric: getattr(summary, f"{metric}_ms") for metric in LATENCIES} | stages(summary)


def engine_table(runs: Sequence[ReportRun]) -> Table | None:
    """Return what the engines say of themselves; None where none says anything."""
    if not any(named.summary.engine.is_known for named in runs):
        return None
    figures: list[tuple[str, Callable[[EngineFigures], str]]] = [
        ("steps", lambda engine: whole(engine.steps)),
        ("mean batch", lambda engine: format_number(engine.mean_batch)),
        ("KV peak", lambda engine: percent(engine.kv_peak)),
        ("KV mean", lambda engine: percent(engine.kv_mean)),
        ("preemptions", lambda engine: whole(engine.preemptions)),
        ("evictions", lambda engine: whole(engine.evictions)),
        ("prefix hits", lambda engine: percent(engine.prefix_hit_rate)),
    ]
    rows = [(named.name, *(read(named.summary.engine) for _, read in figures)) for named in runs]
    return Table(title="Engine", columns=("run", *(name for name, _ in figures)), rows=rows, wide=(1, 6))


def grid_table(grid: Grid) -> Table:
    """Return a row for each row of a grid: where it was made, throughput, latencies, how the cache fared."""
    figures: list[tuple[str, tuple[str, ...], int]] = [
        ("output tok/s", ("throughput", "output_tokens_per_s"), 1),
        ("TTFT p50, ms", ("ttft_ms", "p50"), 1),
        ("TTFT p95", ("ttft_ms", "p95"), 1),
        ("TPOT p95", ("tpot_ms", "p95"), 1),
        ("E2E mean", ("e2e_ms", "mean"), 1),
        ("mean batch", ("engine", "mean_batch"), 1),
        ("preemptions", ("engine", "preemptions"), 0),
    ]
    rows = [
        (
            *(shown_swept(row, key) for key in grid.swept or ("run",)),
            *(format_number(number_at(row, *path), digits) for _, path, digits in figures),
        )
        for row in grid.rows
    ]
    swept = [shown_name(key) for key in grid.swept] or ["run"]
    title = f"{grid.name}: {grid.command}" + (" (partial)" if grid.partial else "")
    if grid.knee is not None:
        title += "; the knee is marked"
    first = len(swept)
    columns = (*swept, *(name for name, _, _ in figures))
    return Table(title=title, columns=columns, rows=rows, wide=(first + 1, first + 5), marked=grid.knee)


def _is_noise(metric: str, summary: Summary, distribution: Distribution | None) -> bool:
    """Return whether a row would say nothing: all of it unknown, zero, or the same as the metric it refines."""
    if distribution is None:
        return metric not in ("ttft", "tpot", "itl", "e2e")
    if metric == "lateness":
        return (distribution.min, distribution.max) == (0.0, 0.0)
    return metric == "ttfo" and distribution == summary.ttft_ms


def _ms(distribution: Distribution | None, name: str) -> str:
    """Return a latency as a person would say it: `43.6 ms`, `17.68 s`."""
    value_ms = figure_at(distribution, name)
    if value_ms is None or value_ms < 10_000:
        return format_ms(value_ms)
    return format_duration(value_ms / 1000)


_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+!|~$&@:])")


def markdown(report: ReportInput) -> Iterator[str]:
    """Yield the report in pieces, in order."""
    yield f"# {escape_markdown(report.title)}\n"
    yield from (f"\n> {escape_markdown(note)}\n" for note in report.notes)
    runs = report.runs
    if runs:
        tables = [outcome_table(runs), latency_table(runs), engine_table(runs)]
        yield from (_table(table) for table in tables if table is not None)
    for named in runs:
        who = f"{named.name}: " if len(runs) > 1 else ""
        parts = [f"objective {slo_text(result)}" for result in named.summary.slo or ()]
        parts += [f"warning: {text}" for text in named.summary.warnings]
        parts += [f"law broken: {text}" for text in named.summary.violations]
        parts += [
            f"{each.count:,} {each.kind}" + (f": {each.message}" if each.message else "")
            for each in failures_of(named.run)[:10]
        ]
        if lines := fleet_lines(named.summary):
            yield f"\n**{escape_markdown(who)}More of the run**\n\n" + "".join(f"    {plain(line)}\n" for line in lines)
        if parts:
            yield "\n" + "".join(f"- {escape_markdown(who + line)}\n" for line in parts)
    yield from (_table(grid_table(grid)) for grid in report.grids)


def escape_markdown(text: object) -> str:
    r"""Return `text` so that Markdown shows it as it is, in a table too.

    >>> print(escape_markdown("a|b *c*"))
    a\|b \*c\*
    """
    return _SPECIAL.sub(r"\\\1", plain(text))


def _table(table: Table) -> str:
    lines = [
        "",
        f"**{escape_markdown(table.title)}**" if table.title else "",
        "",
        "| " + " | ".join(map(escape_markdown, table.columns)) + " |",
        "| --- |" + " ---: |" * (len(table.columns) - 1),
    ]
    for number, row in enumerate(table.rows):
        cells = [escape_markdown(cell) for cell in row]
        if number == table.marked:
            cells = [f"**{cell}**" for cell in cells]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
