"""ITL over time: the gaps between tokens, and which of them a prefill or a preemption made long."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from servesim.records import Outcome, Run
from servesim.report.axes import Axis, axis_of_seconds, axis_of_time
from servesim.report.figure import Figure, Key, Panel
from servesim.report.material import Material
from servesim.report.series import preemption_times
from servesim.report.svg import dots_path, stems_path
from servesim.report.thin import cloud_points
from servesim.report.timeline import STYLES, common_end_s

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


def itl_over_time(material: Material) -> Figure | None:
    """Return a panel a run, on common axes; None where no request had two tokens."""
    runs = material.runs[:STYLES]
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
            for at in preemption_times(named.run) or ():
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
    for index, slices in run.records.pieces.items():
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
    told = ["Each point is a gap that ended at that time; points that share a place are drawn once."]
    if any(run.steps is not None for run in runs):
        told.append("Simulated: one point a step that decodes, which all its sequences felt.")
    if any(run.steps is None for run in runs):
        told.append(
            f"Measured: a gap over {LONG:g} times the median in which another request's first token came is taken for "
            "one with a prefill; dashed uprights are scrapes that counted a preemption."
        )
    return " ".join(told)
