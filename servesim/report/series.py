"""What changed when: a run's queue, cache and pace as values over time, in as few points as a picture needs.

A series is (times, values): each value holds from its time until the next one's. A simulated run's come from its step
log and its records, a measured one's from its server's gauges and its token events. None: the run cannot know.

A line keeps, in each column of the picture, where it came in, its lowest, its highest and where it left (the M4 of
Jugel et al., "M4: a visualization-oriented time series data aggregation", VLDB 2014): no spike is lost. A cloud of
points keeps one for each cell of a raster. Neither depends on the order of equal values.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import accumulate, pairwise
from operator import add

from servesim.report.figure import Panel
from servesim.report.svg import HEIGHT, WIDTH, Point
from servesim.runs.records import Outcome, Run

Series = tuple[list[float], list[float]]

MOST_MARKS = 1_000_000  # of preemptions that a saved run claims: what is drawn or exported one by one


def run_end_s(run: Run) -> float:
    """Return when the last thing happened that the run knows of, in its own time; 0 of an empty run."""
    last = [max(run.times, default=0.0)]
    for column in (run.records.sent_s, run.records.end_s or ()):
        last.append(max((t for t in column if t == t), default=0.0))
    last.append(max((sample.at_s for sample in run.gauges), default=0.0))
    return max(last)


def over_s(run: Run, index: int) -> float:
    """Return when request `index` was over: its last token, or when it was given up; NaN if it was never sent."""
    records = run.records
    sent_s, last = records.sent_s[index], records.last[index]
    outcome = records.outcome[index]
    if outcome == Outcome.COMPLETED and last >= 0:
        return run.times[last]
    if outcome == Outcome.REJECTED:
        return sent_s
    if outcome == Outcome.UNFINISHED:
        return run_end_s(run) if sent_s == sent_s else math.nan
    known = [t for change in records.preempted.get(index, ()) for t in change if t == t]
    known += [sent_s] if last < 0 else [sent_s, run.times[last]]
    if records.end_s is not None and records.end_s[index] == records.end_s[index]:
        known.append(records.end_s[index])
    limit_s = run.config.get("client_timeout_s")
    if records.reason.get(index) == "timeout" and isinstance(limit_s, (int, float)):
        known.append(sent_s + limit_s * records.attempts.get(index, 1))
    return max(known)


def in_flight(run: Run) -> Series | None:
    """Return the requests that were sent and not over."""
    records = run.records
    sent = [t for t in records.sent_s if t == t]
    ended = [over_s(run, index) for index, t in enumerate(records.sent_s) if t == t]
    return _level(sent, ended) if sent else None


def running(run: Run) -> Series | None:
    """Return the requests that were admitted, not over and not preempted."""
    if run.steps is None:
        return _gauge(run, lambda sample: sample.running)
    records = run.records
    begun, ended = [], []
    for index, admitted_s in enumerate(records.admitted_s):
        if admitted_s == admitted_s:
            begun.append(admitted_s)
            ended.append(max(admitted_s, over_s(run, index)))
    for index, changes in records.preempted.items():
        ended += [at for at, _ in changes]
        begun += [resumed if resumed == resumed else over_s(run, index) for _, resumed in changes]
    return _level(begun, ended) if begun else None


def waiting(run: Run) -> Series | None:
    """Return the requests that were sent and not yet admitted, and the preempted ones."""
    if run.steps is None:
        return _gauge(run, lambda sample: sample.waiting)
    records = run.records
    begun, ended = [], []
    for index, (sent_s, admitted_s) in enumerate(zip(records.sent_s, records.admitted_s, strict=True)):
        if sent_s == sent_s:
            begun.append(sent_s)
            ended.append(admitted_s if admitted_s == admitted_s else over_s(run, index))
    for index, changes in records.preempted.items():
        begun += [at for at, _ in changes]
        ended += [resumed if resumed == resumed else over_s(run, index) for _, resumed in changes]
    return _level(begun, ended) if begun else None


def kv_use(run: Run) -> Series | None:
    """Return the share of KV blocks in use."""
    if run.steps is None:
        return _gauge(run, lambda sample: sample.kv_fraction)
    if run.engine is None or not run.engine.num_blocks:
        return None
    times, blocks = _per_step(run, run.steps.kv_blocks)
    return times, [value / run.engine.num_blocks for value in blocks]


def step_tokens(run: Run) -> Series | None:
    """Return the tokens that each step computed, decodes and prefills together."""
    if run.steps is None or not len(run.steps):
        return None
    return _per_step(run, map(add, run.steps.decodes, run.steps.prefill_tokens))


def preemption_times(run: Run) -> list[float] | None:
    """Return when preemptions happened, in order; of a measured run, when a scrape first counted them."""
    if run.steps is not None:
        return sorted(at for changes in run.records.preempted.values() for at, _ in changes)
    if not run.gauges:
        return None
    seen: list[float] = []
    for before, after in pairwise(run.gauges):
        seen += [after.at_s] * min(max(0, after.preemptions - before.preemptions), MOST_MARKS - len(seen))
    return seen


def output_rate(run: Run, low: float, high: float, bins: int) -> Series | None:
    """Return the token events per second in each of `bins` equal stretches of [low, high], over all requests."""
    if not len(run.times) or not high > low:
        return None
    width = (high - low) / bins
    counts = [0.0] * (bins + 1)
    for at, weight in zip(run.times, token_weights(run), strict=True):
        if weight and at >= low:
            counts[min(bins - 1, int((at - low) / width))] += weight
    return [low + number * width for number in range(bins + 1)], [count / width for count in counts]


def token_weights(run: Run) -> Iterator[int]:
    """Yield for each of the run's times how many requests had a token then, without visiting a token."""
    records = run.records
    changes = array("i", bytes(4 * (len(run.times) + 1)))
    for index, (first, last) in enumerate(zip(records.first, records.last, strict=True)):
        if first >= 0:
            for start, stop in records.slices.get(index) or ((first, last),):
                changes[start] += 1
                changes[stop + 1] -= 1
    changes.pop()
    return accumulate(changes)


def counted(times: Iterable[float], low: float, high: float, bins: int) -> Series:
    """Return how many of `times` lie in each of `bins` equal stretches of [low, high]."""
    width = (high - low) / bins
    counts = [0.0] * (bins + 1)
    for at in times:
        counts[min(bins - 1, max(0, int((at - low) / width)))] += 1
    return [low + number * width for number in range(bins + 1)], counts


def at_time(series: Series, at_s: float) -> float:
    """Return the value that holds at `at_s`, 0 before the first."""
    place = bisect_right(series[0], at_s)
    return series[1][place - 1] if place else 0.0


def _level(begun: list[float], ended: list[float]) -> Series:
    """Return how many have begun and not ended, one value for each moment at which that changes."""
    begun.sort()
    ended.sort()
    times: list[float] = []
    values: list[float] = []
    level = 0
    for at, change in merge(((t, 1) for t in begun), ((t, -1) for t in ended)):
        level += change
        if times and times[-1] == at:
            values[-1] = level
        else:
            times.append(at)
            values.append(level)
    return times, values


def _per_step(run: Run, values: Iterable[int]) -> Series:
    """Return a value for each step, from its start on, and 0 for the idle times between; the sum over replicas.

    A fleet's log is that of each replica, one behind the other: where time falls back, the next replica begins.
    """
    assert run.steps is not None
    logs: list[tuple[list[float], list[float]]] = []
    times: list[float] = []
    parts: list[float] = []
    end_s = math.inf
    for step, value in enumerate(values):
        start_s = run.steps.starts.get(step, end_s if step else 0.0)
        if start_s < end_s:
            times, parts = [], []
            logs.append((times, parts))
        elif start_s > end_s:
            times.append(end_s)
            parts.append(0.0)
        times.append(start_s)
        parts.append(value)
        end_s = run.steps.end_s[step]
        if step + 1 == len(run.steps) or run.steps.starts.get(step + 1, end_s) < end_s:
            times.append(end_s)
            parts.append(0.0)
    return logs[0] if len(logs) == 1 else _summed(logs)


def _summed(logs: Iterable[Series]) -> Series:
    """Return the sum of whole values that change at different times."""
    changes = (
        ((at, after - before) for at, before, after in zip(times, [0.0, *values], values, strict=False))
        for times, values in logs
    )
    times: list[float] = []
    sums: list[float] = []
    total = 0.0
    for at, change in merge(*changes):
        total += change
        if times and times[-1] == at:
            sums[-1] = total
        else:
            times.append(at)
            sums.append(total)
    return times, sums


def _gauge(run: Run, read: Callable[..., float | None]) -> Series | None:
    """Return a gauge of a measured run's server, scrape by scrape."""
    seen = [(sample.at_s, value) for sample in run.gauges if (value := read(sample)) is not None]
    if not seen:
        return None
    times, values = [at for at, _ in seen], [float(value) for _, value in seen]
    return [*times, max(times[-1], run_end_s(run))], [*values, values[-1]]


COLUMNS = 800
MEANS = 200
CELL = (10, 12)  # of a cloud, in the plot's units: two or three pixels
MOST_POINTS = 3000


def line_points(panel: Panel, series: Series) -> list[Point]:
    """Return the points of a step line on `panel` that are worth drawing."""
    x, y = panel.x.placer(WIDTH), panel.y.placer(HEIGHT)
    points = [(x(at), HEIGHT - y(value)) for at, value in zip(*series, strict=True)]
    if not is_thinned(series):
        return points
    return _per_column(points, WIDTH // COLUMNS)


def is_thinned(series: Series) -> bool:
    """Return whether a line of `series` stands for more points than it shows."""
    return len(series[0]) >= MOST_POINTS


def means(series: Series, low: float, high: float) -> Series:
    """Return the mean of a step line over each of MEANS equal stretches of [low, high], weighted by time."""
    times, values = series
    width = (high - low) / MEANS
    sums = [0.0] * MEANS
    for at, until, value in zip(times, [*times[1:], high], values, strict=True):
        start, place = max(at, low), int((max(at, low) - low) / width)
        while start < until and place < MEANS:
            end = min(until, low + (place + 1) * width)
            sums[place] += value * max(0.0, end - start)
            start, place = end, place + 1
    return [low + (number + 0.5) * width for number in range(MEANS)], [total / width for total in sums]


def cloud_points(panel: Panel, places: Iterable[tuple[float, float]]) -> list[Point]:
    """Return one point for each cell of the raster that has any of `places`, in order of x; few are where they are."""
    places = list(places)
    wide, high = CELL if len(places) > MOST_POINTS else (1, 1)
    across, up = panel.x.placer(WIDTH // wide), panel.y.placer(HEIGHT // high)
    cells = {(across(x), up(y)) for x, y in places}
    return sorted((column * wide, max(0, HEIGHT - row * high)) for column, row in cells)


def evenly(items: Sequence[int], most: int) -> list[int]:
    """Return at most `most` of `items`, evenly spaced, the first and the last among them.

    >>> evenly(range(10), 4)
    [0, 3, 6, 9]
    """
    if len(items) <= most:
        return list(items)
    if most < 2:
        return list(items[:most])
    return [items[round(number * (len(items) - 1) / (most - 1))] for number in range(most)]


def _per_column(points: Sequence[Point], width: int) -> list[Point]:
    kept: list[Point] = []
    column, first, low, high, last = -1, 0, 0, 0, 0

    def close() -> None:
        x = column * width
        kept.extend((x, y) for y in dict.fromkeys((first, low, high, last)))
        if kept[-1][1] != last:
            kept.append((x, last))

    for x, y in points:
        if x // width != column:
            if column >= 0:
                close()
            column, first, low, high = x // width, y, y, y
        elif y < low:
            low = y
        elif y > high:
            high = y
        last = y
    close()
    return kept
