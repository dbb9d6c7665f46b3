"""Fewer points that look the same: what a picture of a million points needs of them.

A line keeps, in each column of the picture, where it came in, its lowest, its highest and where it left (the M4 of
Jugel et al., "M4: a visualization-oriented time series data aggregation", VLDB 2014): no spike is lost. A cloud of
points keeps one for each cell of a raster. Neither depends on the order of equal values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from servesim.report.figure import Panel
from servesim.report.series import Series
from servesim.report.svg import HEIGHT, WIDTH, Point

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
