"""The load generator watches itself: how late its stamps can be, and whether that spoils what it measured.

The verdict is `r` = stamp delay / median TPOT: `ok` to 0.3, `marginal` to 1, `saturated` above. The stamp delay is the
largest of three 99th percentiles, each an upper bound from another side:

- turn bound: how long data may have lain unread, counted from the last time that the selector said there was none;
- heartbeat lag: how late the loop noticed that 5 ms had passed (a process that was not given the CPU is late here);
- kernel read delay: how long data did lie, by the kernel's own receive time (Linux, plain TCP).

CPU share, lateness and coalesced reads are shown, not judged. Never divide by ITL p50: it is 0 once reads coalesce.
"""

from __future__ import annotations

import math
import struct
import sys
import time
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, compress
from operator import eq
from typing import Any

from servesim.runs.records import Run
from servesim.stats import nearest_rank
from servesim.summary.latency import Completed

HEARTBEAT_S = 0.005
OK_RATIO, MARGINAL_RATIO = 0.3, 1.0

KERNEL_STAMPS = sys.platform.startswith("linux")
SO_TIMESTAMPNS = 35  # include/uapi/asm-generic/socket.h; the socket module has no name for it
KERNEL_SAMPLE = 4  # one read in so many asks the kernel: often enough for a p99, and a third cheaper than each
TIMESPEC = struct.Struct("@ll")  # what the kernel stamps with: seconds, nanoseconds
_BUCKET_S, _BUCKETS = 50e-6, 20_000


class Lags:
    """Delays counted in buckets of 50 us up to 1 s, so that an hour of them takes no more room than a second."""

    __slots__ = ("counts", "longest_s")

    def __init__(self) -> None:
        self.counts = array("q", bytes(8 * (_BUCKETS + 1)))
        self.longest_s = 0.0

    def add(self, delay_s: float) -> None:
        bucket = int(delay_s / _BUCKET_S) if delay_s > 0.0 else 0
        self.counts[bucket if bucket < _BUCKETS else _BUCKETS] += 1
        if delay_s > self.longest_s:
            self.longest_s = delay_s

    def merge(self, other: Lags) -> None:
        for bucket, count in enumerate(other.counts):
            self.counts[bucket] += count
        self.longest_s = max(self.longest_s, other.longest_s)

    def percentile(self, percentile: float) -> float | None:
        """Return the upper edge of the bucket in which the percentile lies, in seconds; None for no data."""
        up_to = list(accumulate(self.counts))
        if not up_to[-1]:
            return None
        bucket = bisect_left(up_to, nearest_rank(percentile, up_to[-1]))
        return min((bucket + 1) * _BUCKET_S, self.longest_s) if bucket < _BUCKETS else self.longest_s


@dataclass(slots=True)
class Health:
    """What one loop notes about itself while it runs; several of them add up."""

    turn_bound: Lags = field(default_factory=Lags)
    heartbeat: Lags = field(default_factory=Lags)
    kernel_delay: Lags = field(default_factory=Lags)
    stale_reconnects: int = 0
    keeps_alive: bool = True  # the server lets a connection live on behind an answer
    cpu_s: float = 0.0
    wall_s: float = 0.0
    processes: int = 1
    _cpu_from_s: float = 0.0
    _wall_from_s: float = 0.0
    _offset_s: float = 0.0  # wall clock minus monotonic clock

    def begin(self) -> None:
        """Start the measured part."""
        self._cpu_from_s, self._wall_from_s = time.process_time(), time.monotonic()
        self.tie_clocks()

    def end(self) -> None:
        """End the measured part."""
        self.cpu_s = time.process_time() - self._cpu_from_s
        self.wall_s = time.monotonic() - self._wall_from_s

    def tie_clocks(self) -> None:
        """Note where the kernel's clock (wall time) stands against ours; every second, since wall time is corrected."""
        self._offset_s = min(time.time() - time.monotonic() for _ in range(3))

    def note_kernel_stamp(self, ancillary: Sequence[tuple[int, int, bytes]], stamp: float) -> None:
        """Note how long what was read at `stamp` had been in the kernel (the latest packet, where it was several)."""
        for _, kind, data in ancillary:
            if kind == SO_TIMESTAMPNS and len(data) == TIMESPEC.size:
                seconds, nanoseconds = TIMESPEC.unpack(data)
                self.kernel_delay.add(stamp + self._offset_s - seconds - nanoseconds * 1e-9)

    def merge(self, other: Health) -> None:
        """Add the notes of a loop that ran beside this one."""
        self.turn_bound.merge(other.turn_bound)
        self.heartbeat.merge(other.heartbeat)
        self.kernel_delay.merge(other.kernel_delay)
        self.stale_reconnects += other.stale_reconnects
        self.keeps_alive = self.keeps_alive and other.keeps_alive
        self.cpu_s += other.cpu_s
        self.wall_s = max(self.wall_s, other.wall_s)
        self.processes += other.processes

    def stamp_delay_s(self) -> float | None:
        """Return the largest of the three 99th percentiles; None before anything happened."""
        lags = (lag.percentile(99) for lag in (self.turn_bound, self.heartbeat, self.kernel_delay))
        return max((lag for lag in lags if lag is not None), default=None)


def report_health(health: Health, run: Run, *, concurrency: int | None) -> dict[str, Any]:
    """Return the JSON `client` object of a measured run; `concurrency` is what was asked, None for an open loop."""
    delay_s, scale_s = health.stamp_delay_s(), median_gap_s(run)
    ratio = None if delay_s is None or not scale_s else delay_s / scale_s
    mean, most = achieved_concurrency(run)
    asked_rate, achieved_rate = rates(run)
    return {
        "verdict": None if ratio is None else verdict(ratio),
        "stamp_delay_ratio": ratio,
        "stamp_delay_ms": _ms(delay_s),
        "loop_lag_ms": _ms(health.heartbeat.percentile(99)),
        "loop_lag_max_ms": _ms(health.heartbeat.longest_s),
        "turn_bound_ms": _ms(health.turn_bound.percentile(99)),
        "kernel_delay_ms": _ms(health.kernel_delay.percentile(99)),
        "coalesced_fraction": coalesced_fraction(run),
        "cpu_fraction": health.cpu_s / health.wall_s if health.wall_s else None,
        "cpu_s": health.cpu_s,
        "concurrency": {"asked": concurrency, "mean": mean, "max": most},
        "rate": {"asked": asked_rate if concurrency is None else None, "achieved": achieved_rate},
        "stale_reconnects": health.stale_reconnects,
        "keep_alive": health.keeps_alive,
        "processes": health.processes,
    }


def verdict(ratio: float) -> str:
    """Say what a stamp delay of `ratio` median TPOTs means for the figures.

    >>> verdict(0.3), verdict(0.31), verdict(1.1)
    ('ok', 'marginal', 'saturated')
    """
    return "ok" if ratio <= OK_RATIO else "marginal" if ratio <= MARGINAL_RATIO else "saturated"


def median_gap_s(run: Run) -> float | None:
    """Return what the stamp delay is held against: the median TPOT, or the median E2E where that says nothing.

    It says nothing where no answer has one, and where it is 0: answers that were read in one piece, whoever put them
    together. A client that did so by being late was late by most of the E2E, so the verdict still finds it.
    """
    done = Completed(run)
    for column in (done.tpot(), done.e2e()):
        known = sorted(value for value in column if value == value)
        if known and (median := known[nearest_rank(50, len(known)) - 1]) > 0.0:
            return median
    return None


def coalesced_fraction(run: Run) -> float | None:
    """Return the share of token events that were read together with an earlier one of the same answer."""
    records, times = run.records, run.times
    events = together = 0
    for first, last in zip(records.first, records.last, strict=True):
        if first >= 0:
            events += last - first + 1
            together += sum(map(eq, times[first:last], times[first + 1 : last + 1]))
    return together / events if events else None


def achieved_concurrency(run: Run) -> tuple[float | None, int | None]:
    """Return the mean and the largest number of requests in flight, from the first send to the last end."""
    sent_s, end_s = run.records.sent_s, run.records.end_s
    if end_s is None:
        return None, None
    known = [not math.isnan(sent) and not math.isnan(end) for sent, end in zip(sent_s, end_s, strict=True)]
    sends, ends = sorted(compress(sent_s, known)), sorted(compress(end_s, known))
    if not sends or ends[-1] <= sends[0]:
        return None, None
    most = over = 0
    for number, sent in enumerate(sends, start=1):
        while ends[over] <= sent:
            over += 1
        most = max(most, number - over)
    return (math.fsum(ends) - math.fsum(sends)) / (ends[-1] - sends[0]), most


def rates(run: Run) -> tuple[float | None, float | None]:
    """Return requests per second as they were planned and as they were sent, each over its own span."""
    sent = [not math.isnan(at) for at in run.records.sent_s]
    planned_s, sent_s = (sorted(compress(column, sent)) for column in (run.records.planned_s, run.records.sent_s))
    return _rate(planned_s), _rate(sent_s)


def _rate(times_s: Sequence[float]) -> float | None:
    """Return events per second from sorted times: gaps, not events, over the span."""
    span_s = times_s[-1] - times_s[0] if times_s else 0.0
    return (len(times_s) - 1) / span_s if span_s > 0.0 else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000.0
