"""What more load buys: latency against throughput, point by point, with the knee; and what more length costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servesim.client.scan import AXES
from servesim.report.figure import Figure, Key, Panel, axis_of_counts, axis_of_seconds
from servesim.report.input import Grid, ReportInput, number_at, shown_value, swept_value
from servesim.report.series import evenly
from servesim.report.svg import dots_path, line_path
from servesim.report.timeline import STYLES

LATENCIES = {
    "E2E, mean": ("e2e_ms", "mean"),
    "TTFT, p95": ("ttft_ms", "p95"),
    "TPOT, p95": ("tpot_ms", "p95"),
    "queue, p95": ("queue_ms", "p95"),
}
LABELS = 9  # of the points of one curve

Curve = tuple[str, list[Mapping[str, Any]], int | None]  # name, rows in order of load, which of them is the knee


def throughput_curve(report: ReportInput) -> Figure | None:
    """Return latency against output tokens/s for every grid over a load; None without one of two rows or more."""
    grids = [grid for grid in report.grids if grid.load() is not None and grid.scan is None]
    curves = [curve for grid in grids for curve in _curves(grid, len(grids) > 1)][:STYLES]
    if not curves:
        return None
    panels = []
    for title, path in LATENCIES.items():
        places = [
            [(x, y / 1000) if x is not None and y is not None else None for x, y in map(_at(path), rows)]
            for _, rows, _ in curves
        ]
        known = [place for curve in places for place in curve if place is not None]
        if not any(y > 0 for _, y in known):
            continue
        x = axis_of_counts("output tokens per s", max(x for x, _ in known), whole=False)
        panel = Panel(x, axis_of_seconds(title, [y for _, y in known]), 190)
        for number, (curve, line) in enumerate(zip(curves, places, strict=True)):
            _draw_curve(panel, number, curve, line, labelled=len(curves) == 1)
        panels.append(panel)
    if not panels:
        return None
    keys = [Key(f"line s{number}", "line", name) for number, (name, _, _) in enumerate(curves) if name]
    if any(knee is not None for _, _, knee in curves):
        keys.append(Key("knee", "square", "knee: the most throughput per mean E2E (Kleinrock's power)"))
    load = next(key for grid in grids if (key := grid.load()))
    return Figure(
        name="curve",
        title="Throughput and latency",
        caption=f"One point for each {load}, joined in its order. Up to the knee more load buys throughput; "
        "beyond it, it mostly buys waiting.",
        panels=panels,
        keys=keys,
        columns=2,
    )


def length_scan(report: ReportInput) -> Figure | None:
    """Return E2E (and TTFT, of prompts) and tokens/s against length; None without a scan."""
    grids = [grid for grid in report.grids if grid.scan is not None][:STYLES]
    scans = [(grid, [row for row in _rows(grid) if _length(grid, row) is not None]) for grid in grids]
    scans = [(grid, rows) for grid, rows in scans if rows]
    if not scans:
        return None
    axis = str(scans[0][0].scan.get("axis"))  # type: ignore[union-attr]
    name = AXES.get(axis, "")
    x = axis_of_counts(f"{name} tokens", max(_length(grid, row) or 0 for grid, rows in scans for row in rows))
    panels = [_lengths(x, scans, "E2E, mean", "e2e_ms", fitted="e2e")]
    if axis == "prompt_tokens":
        panels.append(_lengths(x, scans, "TTFT, mean", "ttft_ms", fitted="ttft"))
    panels.append(_lengths(x, scans, "output tokens per s of one request", "tokens_per_s"))
    keys = [Key(f"dot big s{number}", "dot", grid.name) for number, (grid, _) in enumerate(scans) if len(scans) > 1]
    keys.append(Key("line s0", "line", "fitted line: fixed time + time per token"))
    return Figure(
        name="scan",
        title=f"Length of the {'answer' if axis == 'output_tokens' else 'prompt'}",
        caption=" ".join(filter(None, (_fits(grid, name, len(scans) > 1) for grid, _ in scans))),
        panels=[panel for panel in panels if panel.marks],
        keys=keys,
        columns=2,
    )


def _curves(grid: Grid, several: bool) -> list[Curve]:
    """Return the curves of a grid along its load, those with two rows or more."""
    load = grid.load()
    assert load is not None
    parts: list[Curve] = []
    for label, numbers in grid.curves(load):
        if len(numbers) < 2:
            continue
        numbers = sorted(numbers, key=lambda number: number_at(grid.rows[number], "swept", load) or 0.0)
        name = ": ".join(filter(None, (grid.name if several else "", label)))
        knee = numbers.index(grid.knee) if grid.knee in numbers else None
        rows = [grid.rows[number] for number in numbers]
        parts.append((name, [{**row, "load": swept_value(row, load)} for row in rows], knee))
    return parts


def _at(path: tuple[str, str]) -> Any:
    return lambda row: (number_at(row, "throughput", "output_tokens_per_s"), number_at(row, *path))


def _draw_curve(
    panel: Panel, number: int, curve: Curve, line: Sequence[tuple[float, float] | None], *, labelled: bool
) -> None:
    _, rows, knee = curve
    known = [place for place in line if place is not None]
    points = [panel.point(*place) for place in known]
    panel.mark(line_path(points), f"line s{number}")
    at_knee = line[knee] if knee is not None else None
    if at_knee is not None:
        panel.mark(dots_path([panel.point(*at_knee)]), "knee")
    panel.mark(dots_path(points), f"dot big s{number}")
    for place_number in evenly(range(len(rows)), LABELS) if labelled else [knee] if knee is not None else []:
        place = line[place_number]
        if place is not None:
            left = panel.x.share(place[0]) > 0.85
            panel.write(shown_value("load", rows[place_number]["load"]), *place, left=left)


def _rows(grid: Grid) -> list[Mapping[str, Any]]:
    rows = (grid.scan or {}).get("rows")
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _length(grid: Grid, row: Mapping[str, Any]) -> float | None:
    produced = number_at(row, "produced_tokens")
    return number_at(row, "asked_tokens") if produced is None else produced


def _lengths(
    x: Any, scans: Sequence[tuple[Grid, list[Mapping[str, Any]]]], title: str, key: str, *, fitted: str = ""
) -> Panel:
    scale = 0.001 if key.endswith("_ms") else 1.0
    clouds = [
        [
            (length, value * scale)
            for row in rows
            if (length := _length(grid, row)) is not None and (value := number_at(row, key)) is not None
        ]
        for grid, rows in scans
    ]
    values = [value for cloud in clouds for _, value in cloud]
    most = max(values, default=0.0)
    y = axis_of_seconds(title, values, log=False) if scale != 1 else axis_of_counts(title, most, whole=False)
    panel = Panel(x, y, 190)
    for number, ((grid, _), cloud) in enumerate(zip(scans, clouds, strict=True)):
        panel.mark(dots_path([panel.point(*place) for place in cloud]), f"dot big s{number}")
        fixed = number_at(grid.scan, fitted, "fixed_ms") if fitted else None
        slope = number_at(grid.scan, fitted, "per_token_ms") if fitted else None
        if fixed is not None and slope is not None and cloud:
            ends = [(at, (fixed + slope * at) * scale) for at in (min(cloud)[0], max(cloud)[0])]
            panel.mark(line_path([panel.point(*end) for end in ends]), f"line s{number}")
        elif not fitted:
            panel.mark(line_path([panel.point(*place) for place in sorted(cloud)]), f"line s{number}")
    return panel


def _fits(grid: Grid, name: str, several: bool) -> str:
    fixed, slope = number_at(grid.scan, "e2e", "fixed_ms"), number_at(grid.scan, "e2e", "per_token_ms")
    if fixed is None or slope is None:
        return ""
    who = f"{grid.name}: " if several else ""
    return f"{who}E2E = {fixed:,.1f} ms + {slope:,.3f} ms per {name} token."
