"""What is shown live: one set of metrics for every source, the charts that draw them, and the meter that counts them.

Rates and latencies are those of the last few seconds, gauges those of the moment; what a source does not report is
None. A `Meter` is exact, for sources that see every request; it takes the time from its caller, on any one clock that
never goes back.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from servesim.stats import nearest_rank

WINDOW_S = 5.0  # over which rates and latencies are taken


@dataclass(slots=True, frozen=True, kw_only=True)
class LiveFigures:
    """One source at one moment. A p95 of a scraped histogram is the upper bound of the bucket in which it lies."""

    output_tokens_per_s: float | None = None
    ttft_mean_s: float | None = None
    ttft_p95_s: float | None = None
    tpot_mean_s: float | None = None
    tpot_p95_s: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None  # share of the blocks
    prefix_hit_rate: float | None = None
    completed_per_s: float | None = None
    preempted_per_s: float | None = None
    failed_per_s: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        """Return the figures by name, rounded to what a chart can show."""
        return {name: None if value is None else float(f"{value:.5g}") for name, value in asdict(self).items()}


@dataclass(slots=True, frozen=True, kw_only=True)
class Chart:
    """Figures of one unit over time. `unit`: tok/s, s, share, requests or /s."""

    title: str
    unit: str
    lines: dict[str, str]  # a field of `LiveFigures` -> what the line is called

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


CHARTS: dict[str, Chart] = {
    "throughput": Chart(title="Throughput", unit="tok/s", lines={"output_tokens_per_s": "output"}),
    "ttft": Chart(title="Time to first token", unit="s", lines={"ttft_mean_s": "mean", "ttft_p95_s": "p95"}),
    "tpot": Chart(title="Time per output token", unit="s", lines={"tpot_mean_s": "mean", "tpot_p95_s": "p95"}),
    "queue": Chart(title="Requests", unit="requests", lines={"running": "running", "waiting": "waiting"}),
    "cache": Chart(title="KV cache", unit="share", lines={"kv_usage": "in use", "prefix_hit_rate": "prefix hits"}),
    "ended": Chart(
        title="Events",
        unit="/s",
        lines={"completed_per_s": "done", "preempted_per_s": "preempted", "failed_per_s": "failed"},
    ),
}


def shown(value: float | None, unit: str) -> str:
    """Return a figure as a person reads it.

    >>> shown(0.0312, "s"), shown(1234.5, "tok/s"), shown(0.5, "share"), shown(None, "s")
    ('31.2 ms', '1,234 tok/s', '50%', '-')
    """
    if value is None:
        return "-"
    if unit == "s":
        return f"{value * 1e3:.3g} ms" if value < 0.9995 else f"{value:,.2f} s" if value < 100 else f"{value:,.0f} s"
    if unit == "share":
        return f"{value * 100:.0f}%"
    if unit == "requests":
        return f"{value:,.0f}"
    return f"{value:,.{0 if value >= 100 or not value else 1 if value >= 1 else 2}f}{'' if unit == '/s' else ' '}{unit}"


MAX_HELD = 1 << 16  # latencies; beyond, the oldest are forgotten before their time


class Trail:
    """The last values of a running total that begins at 0, to tell how much it grew."""

    __slots__ = ("_points", "_window_s")

    def __init__(self, began_s: float, window_s: float = WINDOW_S) -> None:
        self._points: deque[tuple[float, float]] = deque([(began_s, 0.0)])
        self._window_s = window_s

    def add(self, at_s: float, total: float) -> None:
        """Take in how much it is now."""
        self._points.append((at_s, total))
        while self._points[1][0] <= at_s - self._window_s:
            self._points.popleft()

    @property
    def growth(self) -> float:
        """How much the total grew within the window, which begins with the last value that is as old."""
        return self._points[-1][1] - self._points[0][1]

    @property
    def rate(self) -> float:
        """How fast it grew, per second."""
        return self.growth / max(1e-3, self._points[-1][0] - self._points[0][0])


class _Latencies:
    """Times of the last few seconds."""

    __slots__ = ("_points", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=MAX_HELD)
        self._window_s = window_s

    def add(self, at_s: float, seconds: float) -> None:
        self._points.append((at_s, seconds))

    def mean_and_p95(self, now: float) -> tuple[float | None, float | None]:
        while self._points and self._points[0][0] < now - self._window_s:
            self._points.popleft()
        values = sorted(seconds for _, seconds in self._points)
        if not values:
            return None, None
        return math.fsum(values) / len(values), values[nearest_rank(95, len(values)) - 1]


class Meter:
    """One source's events."""

    def __init__(self, now: float, window_s: float = WINDOW_S) -> None:
        self._ttft = _Latencies(window_s)
        self._tpot = _Latencies(window_s)
        self._totals = {"tokens": 0.0, "completed": 0.0, "failed": 0.0}
        self._trails = {name: Trail(now, window_s) for name in self._totals}

    def tokens(self, count: float) -> None:
        """Output tokens came."""
        self._totals["tokens"] += count

    def first_token(self, at_s: float, ttft_s: float) -> None:
        """A request had its first token."""
        self._ttft.add(at_s, ttft_s)

    def completed(self, at_s: float, tpot_s: float | None) -> None:
        """A request had its last token."""
        self._totals["completed"] += 1
        if tpot_s is not None:
            self._tpot.add(at_s, tpot_s)

    def failed(self, count: float = 1.0) -> None:
        """Requests came to nothing."""
        self._totals["failed"] += count

    def figures(
        self,
        now: float,
        *,
        running: float | None = None,
        waiting: float | None = None,
        kv_usage: float | None = None,
        prefix_hit_rate: float | None = None,
        preempted_per_s: float | None = None,
    ) -> LiveFigures:
        """Return what there is to show, beside what the source knows from elsewhere."""
        for name, trail in self._trails.items():
            trail.add(now, self._totals[name])
        rates = {name: trail.rate for name, trail in self._trails.items()}
        ttft, tpot = self._ttft.mean_and_p95(now), self._tpot.mean_and_p95(now)
        return LiveFigures(
            output_tokens_per_s=rates["tokens"],
            ttft_mean_s=ttft[0],
            ttft_p95_s=ttft[1],
            tpot_mean_s=tpot[0],
            tpot_p95_s=tpot[1],
            running=running,
            waiting=waiting,
            kv_usage=kv_usage,
            prefix_hit_rate=prefix_hit_rate,
            completed_per_s=rates["completed"],
            preempted_per_s=preempted_per_s,
            failed_per_s=rates["failed"],
        )
