"""Every figure that a report can have, in order, and three of them: latencies as CDFs, TTFT and ITL over time.

| figure | shows |
|---|---|
| CDF of latencies | the share of requests (of gaps, for ITL) that took at most so long |
| TTFT over time | a point a request at the moment it was sent, the objective as a line, failures as stems |
| ITL over time | the gaps between tokens, and which of them a prefill or a preemption made long |

The others are in `timeline`, `curves` and `roofline`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from servesim.report.curves import length_scan, throughput_curve
from servesim.report.figure import Axis, Figure, Key, Panel, axis_of_seconds, axis_of_time, linear
from servesim.report.input import ReportInput
from servesim.report.roofline import roofline
from servesim.report.series import cloud_points, preemption_times
from servesim.report.svg import HEIGHT, WIDTH, Point, dots_path, line_path, stems_path, steps_path
from servesim.report.timeline import STYLES, common_end_s, request_lanes, run_keys, timeline
from servesim.runs.records import Outcome, Run
from servesim.stats import Sample, Values, nearest_rank
from servesim.summary.latency import LATENCIES, Completed, pooled_gaps

METRICS = {"ttft": "time to first token", "tpot": "time per output token", "itl": "inter-token latency", "e2e": "E2E"}
COLUMNS = 400
EXACT = 400  # values up to which every one is a step of its own


def latency_cdfs(report: ReportInput) -> Figure | None:
    """Return a panel for each latency that any run knows, one curve a run; SLO limits stand upright."""
    runs = report.runs[:STYLES]
    panels = []
    for metric, name in METRICS.items():
        samples = [
            (number, sample)
            for number, named in enumerate(runs)
            if (sample := sample_of(named.run, metric)) is not None and sample.count
        ]
        if not samples:
            continue
        limits = [slo for named in runs for slo in named.slos if slo.metric == metric]
        ends = [value for _, sample in samples for value in _typical(sample)]
        x = axis_of_seconds(name, [*ends, *(slo.limit_s for slo in limits)])
        panel = Panel(x, linear("share, %", 0.0, 1.0, divisor=0.01), 150)
        for number, sample in samples:
            panel.mark(steps_path(curve(panel.x, sample)), f"line s{number}")
        for row, slo in enumerate(dict.fromkeys(limits)):
            panel.upright(slo.limit_s, str(slo), row=row)
        panels.append(panel)
    if not panels:
        return None
    return Figure(
        name="latency",
        title="Latencies",
        caption="The share of completed requests (ITL: of all gaps between tokens) that took at most the time below. "
        "Percentiles are nearest rank; what failed is in no curve. A curve that ends on the right edge ends at 100 %.",
        panels=panels,
        keys=run_keys(runs, "line"),
        columns=2,
    )


def sample_of(run: Run, metric: str) -> Sample | None:
    """Return the values of a metric in seconds, ready to be asked by rank; None where nothing completed."""
    done = Completed(run)
    if not done.count:
        return None
    return pooled_gaps(run, done) if metric == "itl" else Values(LATENCIES[metric](done))


def curve(x: Axis, sample: Sample) -> list[Point]:
    """Return the points of a sample's distribution, from nothing to all of it; it never falls.

    Few values are each a step; of many, every so manieth place is one.
    """
    count, place = sample.count, x.placer(WIDTH)
    if count <= EXACT:
        steps = [(place(sample.at(rank)), rank) for rank in range(1, count + 1)]
    else:
        steps = [(at, sample.up_to(x.value(at / WIDTH))) for at in range(0, WIDTH + 1, WIDTH // COLUMNS)]
    return [(0, HEIGHT), *((at, HEIGHT - round(HEIGHT * rank / count)) for at, rank in steps), (WIDTH, 0)]


def _typical(sample: Sample) -> list[float]:
    """Return the percentiles that decide how an axis is drawn, with the smallest and the largest."""
    count = sample.count
    return [sample.at(rank) for rank in (1, *(nearest_rank(share, count) for share in range(5, 100, 5)), count)]


WINDOWS = 40
ENOUGH = 400  # completed requests from which the windows' p95 says more than the points do


def ttft_over_time(report: ReportInput) -> Figure | None:
    """Return the figure of all runs in one plot; None where no first token was seen."""
    runs = report.runs[:STYLES]
    clouds = [(number, first_tokens(named.run)) for number, named in enumerate(runs)]
    clouds = [(number, points) for number, points in clouds if points]
    if not clouds:
        return None
    limits = [slo for named in runs for slo in named.slos if slo.metric == "ttft"]
    values = [ttft_s for _, points in clouds for _, ttft_s in points]
    y = axis_of_seconds("time to first token", [*values, *(slo.limit_s for slo in limits)])
    lost = [lost_requests(named.run) for named in runs]
    sent = [at for _, points in clouds for at, _ in points] + [at for times in lost for at in times]
    panel = Panel(axis_of_time(0.0, max(sent) or 1.0), y, 240)
    keys = run_keys(runs, "dot", " big")
    for times in lost:
        panel.mark(stems_path([(x, 880) for x, _ in cloud_points(panel, [(at, y.low) for at in times])]), "stem failed")
    for number, points in clouds:
        size = " big" if len(points) < 1000 else ""
        panel.mark(dots_path(cloud_points(panel, points)), f"dot s{number}{size}")
    for number, points in clouds:
        if len(points) >= ENOUGH:
            panel.mark(line_path([panel.point(at, p95) for at, p95 in windows_p95(points)]), f"line s{number} p95")
            keys.append(Key(f"line s{number} p95", "line", f"p95 of each of {WINDOWS} windows, {runs[number].name}"))
    for slo in dict.fromkeys(limits):
        panel.level(slo.limit_s, str(slo))
    if any(lost):
        keys.append(Key("stem failed", "stem", f"{sum(map(len, lost)):,} failed or rejected, at their send"))
    return Figure(
        name="ttft",
        title="First token",
        caption="Each point is a completed request: across, when it was first sent; up, how long its first token took. "
        "A dashed line is an objective; points above it missed it.",
        panels=[panel],
        keys=keys,
    )


def first_tokens(run: Run) -> list[tuple[float, float]]:
    """Return (sent, TTFT) in seconds of the completed requests whose first token was seen, in order of index."""
    done = Completed(run)
    sent_s = map(run.records.sent_s.__getitem__, done.indices())
    return [(at, ttft_s) for at, ttft_s in zip(sent_s, done.ttft(), strict=True) if ttft_s == ttft_s and at == at]


def lost_requests(run: Run) -> list[float]:
    """Return when the requests were sent that failed or were rejected."""
    outcomes = zip(run.records.sent_s, run.records.outcome, strict=True)
    return [at for at, outcome in outcomes if at == at and outcome in (Outcome.FAILED, Outcome.REJECTED)]


def windows_p95(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return (middle of the window, nearest-rank p95 of the latencies in it) for each window with any."""
    low, high = min(at for at, _ in points), max(at for at, _ in points)
    width = (high - low) / WINDOWS or 1.0
    windows: dict[int, list[float]] = {}
    for at, latency_s in points:
        windows.setdefault(min(WINDOWS - 1, int((at - low) / width)), []).append(latency_s)
    parts = []
    for number, latencies in sorted(windows.items()):
        latencies.sort()
        parts.append((low + (number + 0.5) * width, latencies[nearest_rank(95, len(latencies)) - 1]))
    return parts


LONG = 1.5  # times the median, from which a measured gap may be called a prefill's
STEMS = 400

Place = tuple[float, float]


@dataclass(slots=True)
class Gaps:
    """Gaps between tokens as (when they ended, seconds), by what happened inside them."""

    plain: list[Place] = field(default_factory=list)
    prefill: list[Place] = field(default_factory=list)  # the step, or the time, also had somebody's prefill
    preempted: list[Place] = field(default_factory=list)  # their own request was preempted, or stalled

    def all(self) -> Iterable[Place]:
        return (*self.plain, *self.prefill, *self.preempted)


KEYS = {
    "plain": Key("dot big s0", "dot", "gap between two tokens"),
    "prefill": Key("square prefill", "square", "with a prefill inside"),
    "preempted": Key("stem preempted", "stem", "own request preempted or stalled"),
}
"""What stands in the legend for each kind of gap."""


def itl_over_time(report: ReportInput) -> Figure | None:
    """Return a panel a run, on common axes; None where no request had two tokens."""
    runs = report.runs[:STYLES]
    known = [(named, gaps) for named in runs if any((gaps := gaps_of(named.run)).all())]
    if not known:
        return None
    limits = list(dict.fromkeys(slo for named in runs for slo in named.slos if slo.metric == "itl"))
    x = axis_of_time(0.0, common_end_s(runs))
    values = [gap for _, gaps in known for _, gap in gaps.all()]
    axis = axis_of_seconds("gap", [*values, *(slo.limit_s for slo in limits)], log=True)
    panels = []
    for named, gaps in known:
        y = axis if len(known) == 1 else _titled(axis, f"{axis.title}: {named.name}")
        panel = Panel(x, y, 240 if len(known) == 1 else 170, titled=False)
        panel.mark(dots_path(cloud_points(panel, gaps.plain)), "dot small s0")
        panel.mark(dots_path(cloud_points(panel, gaps.prefill)), "square prefill")
        stems = cloud_points(panel, gaps.preempted)
        if len(stems) <= STEMS:
            panel.mark(stems_path(stems), "stem preempted")
        panel.mark(dots_path(stems), "square preempted")
        if named.run.steps is None:
            for at in dict.fromkeys(preemption_times(named.run) or ()):
                panel.upright(at, "", "limit")
        for slo in limits:
            panel.level(slo.limit_s, str(slo))
        panels.append(panel)
    panels[-1].titled = True
    return Figure(
        name="itl",
        title="Gaps between tokens",
        caption=_caption([named.run for named, _ in known]),
        panels=panels,
        keys=[key for kind, key in KEYS.items() if any(getattr(gaps, kind) for _, gaps in known)],
    )


def gaps_of(run: Run) -> Gaps:
    """Return the gaps of a run: of a simulated one, one for each step that decoded; of a measured one, every gap."""
    return _gaps_of_steps(run) if run.steps is not None else _gaps_of_events(run)


def _gaps_of_steps(run: Run) -> Gaps:
    assert run.steps is not None
    gaps, steps = Gaps(), run.steps
    rows = zip(steps.end_s, steps.durations_s(), steps.decodes, steps.prefill_tokens, strict=True)
    for end_s, duration_s, decodes, prefill_tokens in rows:
        if decodes:
            (gaps.prefill if prefill_tokens else gaps.plain).append((end_s, duration_s))
    for index, slices in run.records.slices.items():
        for (_, stop), (start, _) in pairwise(slices):
            crossed = stop >= len(steps) and index not in run.records.preempted  # a first token behind a link
            (gaps.plain if crossed else gaps.preempted).append((run.times[start], run.times[start] - run.times[stop]))
    return gaps


def _gaps_of_events(run: Run) -> Gaps:
    """Sort measured gaps: a long one in which another request's first token came was shared with a prefill."""
    records, times, gaps = run.records, run.times, Gaps()
    rows = [(records.first[index], records.last[index]) for index, outcome in enumerate(records.outcome)
            if outcome == Outcome.COMPLETED and records.first[index] >= 0]  # fmt: skip
    every = sorted(times[k + 1] - times[k] for first, last in rows for k in range(first, last))
    if not every:
        return gaps
    long_s = LONG * every[len(every) // 2]
    firsts = array("d", sorted(times[first] for first, _ in rows))
    for first, last in rows:
        for k in range(first, last):
            gap = times[k + 1] - times[k]
            # Somebody's first token comes out of the same step that ends this gap, a moment before or after it.
            late = times[k + 1] + gap * 0.25
            shared = gap > long_s and bisect_right(firsts, late) > bisect_left(firsts, times[k + 1] - gap * 0.75)
            (gaps.prefill if shared else gaps.plain).append((times[k + 1], gap))
    return gaps


def _titled(axis: Axis, title: str) -> Axis:
    return Axis(title=title, low=axis.low, high=axis.high, log=axis.log, ticks=axis.ticks)


def _caption(runs: list[Run]) -> str:
    parts = ["Each point is a gap that ended at that time; points that share a place are drawn once."]
    if any(run.steps is not None for run in runs):
        parts.append("Simulated: one point a step that decodes, which all its sequences felt.")
    if any(run.steps is None for run in runs):
        parts.append(
            f"Measured: a gap over {LONG:g} times the median in which another request's first token came is taken for "
            "one with a prefill; dashed uprights are scrapes that counted a preemption."
        )
    return " ".join(parts)


FIGURES: dict[str, Callable[[ReportInput], Figure | None]] = {
    "curve": throughput_curve,
    "scan": length_scan,
    "timeline": timeline,
    "latency": latency_cdfs,
    "ttft": ttft_over_time,
    "itl": itl_over_time,
    "requests": request_lanes,
    "roofline": roofline,
}
"""Each draws what it can of the report, or None where there is nothing to draw."""


def draw(report: ReportInput, names: Iterable[str] = FIGURES) -> list[Figure]:
    """Return the figures called `names` that the report allows, in the order of the registry."""
    wanted = set(names)
    drawn = (make(report) for name, make in FIGURES.items() if name in wanted)
    return [figure for figure in drawn if figure is not None]
