"""The timeline: what the queue, the cache and the steps did, one quantity a panel, all on one time axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from servesim.records import Run
from servesim.report.axes import Axis, axis_of_counts, axis_of_time, linear, logarithmic
from servesim.report.figure import Figure, Key, Panel
from servesim.report.material import Material, NamedRun
from servesim.report.series import (
    Series,
    counted,
    in_flight,
    kv_use,
    output_rate,
    preemption_times,
    run_end_s,
    running,
    step_tokens,
    waiting,
)
from servesim.report.svg import area_path, line_path, steps_path
from servesim.report.thin import is_thinned, line_points, means

STYLES = 4
BINS = 100
PANEL_PX = 92


def timeline(material: Material) -> Figure | None:
    """Return the figure of all runs, one line each in every panel; None without a run that took any time."""
    runs = material.runs[:STYLES]
    end_s = common_end_s(runs)
    if not end_s:
        return None
    x = axis_of_time(0.0, end_s)
    panels = []
    for what, read, y_axis in _rows(end_s):
        if what == "in flight" and all(named.run.steps is not None or named.run.gauges for named in runs):
            continue  # running and waiting say more
        known = [(number, series) for number, named in enumerate(runs) if (series := read(named.run)) is not None]
        if known:
            panels.append(_panel(x, y_axis(known), known))
    if not panels:
        return None
    panels[-1].titled = True
    return Figure(
        name="timeline",
        title="Timeline",
        caption=_caption(runs, end_s, banded=any("band" in mark for panel in panels for mark in panel.marks)),
        panels=panels,
        keys=run_keys(runs, "line"),
    )


def common_end_s(runs: Sequence[NamedRun]) -> float:
    """Return when the last of `runs` ended: where their common time axis ends."""
    return max((run_end_s(named.run) for named in runs), default=0.0)


def run_keys(runs: Sequence[NamedRun], swatch: str, more: str = "") -> list[Key]:
    """Return a legend that names the runs; none for a single one, which the page's title names."""
    if len(runs) < 2:
        return []
    return [Key(f"{swatch} s{number}{more}", swatch, named.name) for number, named in enumerate(runs)]


def _rows(
    end_s: float,
) -> list[tuple[str, Callable[[Run], Series | None], Callable[[list[tuple[int, Series]]], Axis]]]:
    def preempted(run: Run) -> Series | None:
        times = preemption_times(run)
        return None if times is None else counted(times, 0.0, end_s, BINS)

    def pace(run: Run) -> Series | None:
        return output_rate(run, 0.0, end_s, BINS)

    return [
        ("in flight", in_flight, lambda known: axis_of_counts("requests in flight", _top(known))),
        ("running", running, lambda known: axis_of_counts("running requests", _top(known))),
        ("waiting", waiting, lambda known: axis_of_counts("waiting requests", _top(known))),
        ("kv", kv_use, lambda known: linear("KV cache in use, %", 0.0, 1.0, divisor=0.01)),
        ("preempted", preempted, lambda known: axis_of_counts(f"preemptions per {_stretch(end_s)}", _top(known))),
        ("step", step_tokens, lambda known: logarithmic("tokens per step (log)", 1.0, max(2.0, _top(known)))),
        ("pace", pace, lambda known: axis_of_counts("output tokens per s", _top(known), whole=False)),
    ]


def _panel(x: Axis, y: Axis, known: list[tuple[int, Series]]) -> Panel:
    panel = Panel(x, y, PANEL_PX, titled=False)
    for number, series in known:
        points = line_points(panel, series)
        if is_thinned(series):
            panel.mark(steps_path(points), f"band s{number}")
            averages = zip(*means(series, x.low, x.high), strict=True)
            panel.mark(line_path([panel.point(at, value) for at, value in averages]), f"line s{number}")
            continue
        if len(known) == 1:
            panel.mark(area_path(points, steps=True), f"area s{number}")
        panel.mark(steps_path(points), f"line s{number}")
    return panel


def _top(known: list[tuple[int, Series]]) -> float:
    return max((max(values, default=0.0) for _, (_, values) in known), default=0.0)


def _stretch(end_s: float) -> str:
    """Return the width of a bin as text: `0.81 s`."""
    width_s = end_s / BINS
    return f"{width_s:.3g} s" if width_s >= 0.1 else f"{width_s * 1000:.3g} ms"


def _caption(runs: Sequence[NamedRun], end_s: float, *, banded: bool) -> str:
    told = []
    if any(named.run.steps is not None for named in runs):
        told.append(
            "Simulated: from every step and record. KV in use between schedule and output; tokens per step count "
            "decodes and prefills, and stand at the bottom while the engine is idle; of a fleet, all replicas together."
        )
    if any(named.run.steps is None for named in runs):
        told.append(
            "Measured: running, waiting, KV and preemptions from the server's own metrics at each scrape, "
            "output tokens from what the client received."
        )
    if any(named.run.records.attempts for named in runs):
        told.append("Of a request that was sent again only the last attempt is known: until then it counts as waiting.")
    told.append(f"Rates are means over {_stretch(end_s)}.")
    if banded:
        told.append("A line before a pale band is the mean of what the band spans.")
    return " ".join(told)
