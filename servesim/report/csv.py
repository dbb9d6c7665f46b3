"""Comma-separated values: one row a request of the runs, or one row a row of the grids.

Numbers are written in full, unknown is an empty cell. A text that a spreadsheet would take for a formula gets an
apostrophe in front, so that it stays text there.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any

from servesim.console import one_line
from servesim.report.input import Grid, ReportInput, ReportRun, swept_value
from servesim.report.series import over_s
from servesim.runs.records import Outcome

REQUEST_COLUMNS = (
    "run", "index", "id", "outcome", "reason", "planned_s", "sent_s", "admitted_s", "first_s", "last_s", "over_s",
    "prompt_tokens", "output_tokens", "cached_tokens", "preemptions", "attempts", "capped", "ttft_ms", "tpot_ms",
    "e2e_ms", "queue_ms", "lateness_ms",
)  # fmt: skip
GRID_COLUMNS = ("grid", "row", "knee")
FORMULA = ("=", "+", "-", "@", "\t", "\r")
CHUNK = 2000  # rows a piece


def to_csv(report: ReportInput) -> Iterator[str]:
    """Yield the table of all runs' requests; where there is no run, that of the grids' rows."""
    rows = _request_rows(report) if report.runs else _grid_rows(report)
    text, writer = StringIO(), None
    for number, row in enumerate(rows, 1):
        writer = writer or csv.writer(text, lineterminator="\n")
        writer.writerow([_cell(value) for value in row])
        if number % CHUNK == 0:
            yield text.getvalue()
            text, writer = StringIO(), None
    yield text.getvalue()


def _request_rows(report: ReportInput) -> Iterator[tuple[Any, ...]]:
    yield REQUEST_COLUMNS
    for named in report.runs:
        for index, outcome in enumerate(named.run.records.outcome):
            if outcome != Outcome.WITHHELD:
                yield _request_row(named, index)


def _request_row(named: ReportRun, index: int) -> tuple[Any, ...]:
    run = named.run
    records = run.records
    outcome, sent_s, planned_s = records.outcome[index], records.sent_s[index], records.planned_s[index]
    first, last = records.first[index], records.last[index]
    first_s, last_s = (None if at < 0 else run.times[at] for at in (first, last))
    tokens = records.output_tokens[index]
    seen = first_s if not records.extra.get(index, {}).get("non_stream") else None
    latencies: tuple[float | None, ...] = (None,) * 5
    if outcome == Outcome.COMPLETED:
        paced = seen is not None and last_s is not None and tokens > 1 and last > first
        latencies = (
            _ms(seen, sent_s),
            _ms(last_s, seen) / (tokens - 1) if paced else None,  # type: ignore[operator]
            _ms(last_s, sent_s),
            _ms(records.admitted_s[index], sent_s),
            _ms(sent_s, planned_s),
        )
    return (
        named.name,
        index,
        run.requests.id(index),
        Outcome(outcome).name.lower(),
        records.reason.get(index),
        planned_s,
        sent_s,
        records.admitted_s[index],
        first_s,
        last_s,
        over_s(run, index),
        records.prompt_tokens[index],
        tokens,
        records.cached_tokens[index] if records.cached_tokens[index] >= 0 else None,
        len(records.preempted.get(index, ())),
        records.attempts.get(index, 1),
        int(index in records.capped),
        *latencies,
    )


def _grid_rows(report: ReportInput) -> Iterator[tuple[Any, ...]]:
    flat = [
        [{key: swept_value(row, key) for key in grid.swept} | dict(_flattened(row)) for row in grid.rows]
        for grid in report.grids
    ]
    keys = list(dict.fromkeys(key for rows in flat for row in rows for key in row))
    yield (*GRID_COLUMNS, *keys)
    for grid, rows in zip(report.grids, flat, strict=True):
        for number, row in enumerate(rows):
            yield (grid.name, number, _is_knee(grid, number), *(row.get(key) for key in keys))


def _is_knee(grid: Grid, number: int) -> int | None:
    return None if grid.knee is None else int(grid.knee == number)


def _flattened(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number, text or flag in nested objects under its dotted name; lists are left out."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            if key not in ("swept", "config"):
                yield from _flattened(value, f"{prefix}{key}.")
        elif not isinstance(value, (list, tuple)):
            yield f"{prefix}{key}", value


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and value - value != 0):  # NaN or infinite
        return ""
    if isinstance(value, str):
        text = one_line(value)
        return f"'{text}" if text.startswith(FORMULA) else text
    return value


def _ms(later: float | None, earlier: float | None) -> float | None:
    if later is None or earlier is None:
        return None
    return (later - earlier) * 1000
