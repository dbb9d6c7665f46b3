"""TTFT against time: one point a request at the moment it was sent, the objective as a line, failures as stems."""

from __future__ import annotations

from collections.abc import Sequence

from servesim.latency import Completed
from servesim.records import Outcome, Run
from servesim.report.axes import axis_of_seconds, axis_of_time
from servesim.report.figure import Figure, Key, Panel
from servesim.report.material import Material
from servesim.report.svg import dots_path, line_path, stems_path
from servesim.report.thin import cloud_points
from servesim.report.timeline import STYLES, run_keys
from servesim.stats import nearest_rank

WINDOWS = 40
ENOUGH = 400  # completed requests from which the windows' p95 says more than the points do


def ttft_over_time(material: Material) -> Figure | None:
    """Return the figure of all runs in one plot; None where no first token was seen."""
    runs = material.runs[:STYLES]
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
    told = []
    for number, latencies in sorted(windows.items()):
        latencies.sort()
        told.append((low + (number + 0.5) * width, latencies[nearest_rank(95, len(latencies)) - 1]))
    return told
