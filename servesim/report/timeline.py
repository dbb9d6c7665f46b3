"""What happened when, on the run's time axis: queue, cache and steps a panel each, and the lanes of single requests.

A lane shows where one request's time went, in the phases of `explain`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from servesim.report.explain import spans
from servesim.report.figure import Axis, Figure, Key, Panel, Tick, axis_of_counts, axis_of_time, linear, logarithmic
from servesim.report.input import ReportInput, ReportRun
from servesim.report.series import (
    Series,
    counted,
    evenly,
    in_flight,
    is_thinned,
    kv_use,
    line_points,
    means,
    output_rate,
    over_s,
    preemption_times,
    run_end_s,
    running,
    step_tokens,
    waiting,
)
from servesim.report.svg import HEIGHT, WIDTH, area_path, bars_path, line_path, steps_path
from servesim.runs.records import Outcome, Run

STYLES = 4
BINS = 100
PANEL_PX = 92


def timeline(report: ReportInput) -> Figure | None:
    """Return the figure of all runs, one line each in every panel; None without a run that took any time."""
    runs = report.runs[:STYLES]
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


def common_end_s(runs: Sequence[ReportRun]) -> float:
    """Return when the last of `runs` ended: where their common time axis ends."""
    return max((run_end_s(named.run) for named in runs), default=0.0)


def run_keys(runs: Sequence[ReportRun], swatch: str, more: str = "") -> list[Key]:
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


def _caption(runs: Sequence[ReportRun], end_s: float, *, banded: bool) -> str:
    parts = []
    if any(named.run.steps is not None for named in runs):
        parts.append(
            "Simulated: from every step and record. KV in use between schedule and output; tokens per step count "
            "decodes and prefills, and stand at the bottom while the engine is idle; of a fleet, all replicas together."
        )
    if any(named.run.steps is None for named in runs):
        parts.append(
            "Measured: running, waiting, KV and preemptions from the server's own metrics at each scrape, "
            "output tokens from what the client received."
        )
    if any(named.run.records.attempts for named in runs):
        parts.append(
            "Of a request that was sent again only the last attempt is known: until then it counts as waiting."
        )
    parts.append(f"Rates are means over {_stretch(end_s)}.")
    if banded:
        parts.append("A line before a pale band is the mean of what the band spans.")
    return " ".join(parts)


LANES = 64  # of one run; of several, together
REMARKABLE = 8  # lanes that are kept for each way of standing out
LANE_PX = 10
LABEL_PX = 12
ID_LENGTH = 7
SHORT = 6  # a run this many times as long as its longest request: lanes begin at their own send
PHASES = {
    "queue": "queued",
    "queue and prefill": "queued and prefill (not told apart from outside)",
    "prefill": "prefill",
    "link wait": "waiting for the link",
    "transfer": "transfer of the KV",
    "decode queue": "queued",
    "decode": "decode",
    "preempted": "preempted",
    "recompute": "recompute after a preemption",
}
LOOKS = {"queue and prefill": "queue", "decode queue": "queue", "link wait": "link"}


def request_lanes(report: ReportInput) -> Figure | None:
    """Return a panel a run; None without a request that was sent."""
    runs = report.runs[:STYLES]
    lanes = [(named, chosen) for named in runs if (chosen := chosen_lanes(named.run, LANES // len(runs)))]
    longest_s = max((_length_s(named.run, index) for named, chosen in lanes for index in chosen), default=0.0)
    end_s = common_end_s(runs)
    own_clock = longest_s * SHORT < end_s
    if not longest_s:
        return None
    x = axis_of_time(0.0, longest_s, "time since its send") if own_clock else axis_of_time(0.0, end_s)
    panels, seen, text = [], set[str](), []
    for named, chosen in lanes:
        panel, phases = _lane_panel(x, named, chosen, several=len(runs) > 1, own_clock=own_clock)
        panels.append(panel)
        seen |= phases
        text.append(len(chosen))
    panels[-1].titled = True
    keys = list(dict.fromkeys(Key(_classes(phase), "bar", name) for phase, name in PHASES.items() if phase in seen))
    if "lost" in seen:
        keys.append(Key("square failed", "square", "failed or rejected"))
    return Figure(
        name="requests", title="Requests", caption=_lane_caption(runs, text, own_clock), panels=panels, keys=keys
    )


def chosen_lanes(run: Run, most: int) -> list[int]:
    """Return at most `most` requests in the order in which they were sent.

    All of them, or an even sample with the slowest, the most often preempted and the lost ones beside it.
    """
    records = run.records
    sent = [index for index, at in enumerate(records.sent_s) if at == at]
    sent.sort(key=records.sent_s.__getitem__)
    if len(sent) <= most:
        return sent
    each = min(REMARKABLE, most // 6)
    slowest = sorted(sent, key=lambda index: records.sent_s[index] - over_s(run, index))[:each]
    often = sorted(records.preempted, key=lambda index: (-len(records.preempted[index]), index))[:each]
    lost = [index for index in sent if records.outcome[index] in (Outcome.FAILED, Outcome.REJECTED)]
    kept = {*slowest, *often, *evenly(lost, each)}
    others = [index for index in sent if index not in kept]
    kept |= set(evenly(others, most - len(kept)))
    return [index for index in sent if index in kept]


def spans_of(run: Run, index: int) -> Iterator[tuple[str, float, float]]:
    """Yield (phase, start, end) in seconds of a request, without visiting its tokens: their slices' ends suffice."""
    first, last = run.records.first[index], run.records.last[index]
    slices = run.records.slices.get(index) or ([(first, last)] if first >= 0 else [])
    edges = [run.times[at] for piece in slices for at in dict.fromkeys(piece)]
    text = list(spans(run, index, edges))
    sent_s, end_s = run.records.sent_s[index], over_s(run, index)
    if not text and end_s > sent_s:  # a client that left before anything was known of it
        text.append(("queue", sent_s, end_s))
    yield from text


def _length_s(run: Run, index: int) -> float:
    return over_s(run, index) - run.records.sent_s[index]


def _lane_panel(
    x: Axis, named: ReportRun, chosen: list[int], *, several: bool, own_clock: bool
) -> tuple[Panel, set[str]]:
    run, count = named.run, len(chosen)
    height_px = max(40, LANE_PX * count)
    every = -(-LABEL_PX * count // height_px)  # a label needs more room than a lane
    labels = tuple(
        Tick(share=1 - (place + 0.5) / count, label=_short(run.requests.id(index)))
        for place, index in enumerate(chosen)
        if place % every == 0
    )
    title = f"request: {named.name}" if several else "request"
    y = Axis(title=title, low=0.0, high=1.0, ticks=labels)
    panel = Panel(x, y, height_px, titled=False, rows=True)
    bars: dict[str, list[tuple[int, int, int]]] = {}
    lost = []
    for place, index in enumerate(chosen):
        height = round((place + 0.5) / count * HEIGHT)
        zero_s = run.records.sent_s[index] if own_clock else 0.0
        for phase, start, end in spans_of(run, index):
            left, right = (round(x.share(at - zero_s) * WIDTH) for at in (start, end))
            bars.setdefault(phase, []).append((min(left, WIDTH - 2), max(right, min(left, WIDTH - 2) + 2), height))
        if run.records.outcome[index] in (Outcome.FAILED, Outcome.REJECTED):
            lost.append((round(x.share(over_s(run, index) - zero_s) * WIDTH), height))
    for phase in PHASES:
        panel.mark(bars_path(bars.get(phase, ())), _classes(phase))
    panel.mark("".join(f"M{at} {height}h0" for at, height in lost), "square failed")
    return panel, {*bars, *(["lost"] if lost else [])}


def _classes(phase: str) -> str:
    return f"bar {LOOKS.get(phase, phase)}"


def _short(name: str) -> str:
    return name if len(name) <= ID_LENGTH else f"{name[: ID_LENGTH - 1]}…"


def _lane_caption(runs: list[ReportRun], text: list[int], own_clock: bool) -> str:
    clock = " Each lane begins when its request was sent." if own_clock else ""
    whole = sum(sum(at == at for at in named.run.records.sent_s) for named in runs)
    if sum(text) == whole:
        if whole == 1:
            return f"The only request.{clock}"
        return f"All {whole:,} requests, in the order in which they were sent.{clock}"
    return (
        f"{sum(text):,} of {whole:,} requests, in the order in which they were sent: an even sample, with the slowest, "
        f"the most often preempted and some of the lost ones added.{clock}"
    )
