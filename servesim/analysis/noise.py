"""The noise of a mean of correlated values, out of one stretch of them: its standard error, or why there is none.

The values of a run are correlated: neighbours waited in the same queue. So noise is never taken from single values but
from contiguous batches of them:

1. Leave out a sixteenth of the values at either end and cut the rest into batches of equal size.
2. Take out the first-order correlation of the batches' means (prewhitening: Andrews and Monahan, Econometrica 60,
   1992).
3. The long-run variance is the mean square of the first 6 to 12 cosine coefficients of what is left, each one
   independent estimate of it, so that Student's t with as many degrees of freedom applies (Lazarus, Lewis, Stock and
   Watson, JBES 36, 2018).

Plain and overlapping batch means cover as well in light load and 5 to 10 points less near saturation. Ends that weigh
more than the noise between them, and drift, are found and give no error but a reason. Knows nothing of runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

EDGE = 16  # one part in so many is left out at either end
DRIFT_COSINES, DRIFT_SHARE = 12, 2 / 3  # a straight line has 98 % of its power in the first cosine, noise 8 %

# Student's t, 95 % one-sided, by degrees of freedom: 90 % lie within.
T_95 = {6: 1.943, 7: 1.895, 8: 1.860, 9: 1.833, 10: 1.812, 11: 1.796, 12: 1.782}


@dataclass(frozen=True, slots=True)
class NoInterval:
    """Why nothing can be said of the noise of a figure: what follows its name and a colon."""

    reason: str


def half_width(excess: Sequence[float], batches: int, *, scale: float, ends_weigh: bool = False) -> float | NoInterval:
    """Return half the width of the interval of the mean of `excess`, whose mean over the whole run is 0.

    `scale` is the size of the figure: what rounding leaves of equal values is no noise. With `ends_weigh` the ends may
    weigh more than noise, since the caller knows what noise they have.
    """
    size = len(excess)
    cut = size // EDGE
    middle = excess[cut : size - cut]
    if len(middle) < 2 * batches:
        return NoInterval(f"has {size:,} values, must have {math.ceil(2 * batches / (1 - 2 / EDGE)):,}")
    means = batch_means(middle, batches)
    within = math.fsum(middle) / len(middle)
    variance, degrees = long_run_variance([value - within for value in means])
    error = T_95[degrees] * math.sqrt(variance * len(middle) / batches / size)
    if not ends_weigh and abs(within) > error + 1e-9 * abs(scale):
        return NoInterval("is moved by the run's start and end more than by noise; a longer run helps")
    power = cosine_power([value - within for value in means], DRIFT_COSINES)
    if sum(power) > (1e-9 * scale) ** 2 and power[0] > DRIFT_SHARE * sum(power):
        return NoInterval("drifts over the run: overload, or a load that changes")
    return error


def batch_means(values: Sequence[float], batches: int) -> list[float]:
    """Return the means of `batches` contiguous stretches of `values`, as equal as they can be."""
    sums = [0.0, *accumulate(values)]
    edges = [len(values) * number // batches for number in range(batches + 1)]
    return [(sums[stop] - sums[start]) / (stop - start) for start, stop in zip(edges, edges[1:], strict=False)]


def long_run_variance(series: Sequence[float]) -> tuple[float, int]:
    """Return the long-run variance of a series of mean 0 and the degrees of freedom of that estimate.

    >>> variance, degrees = long_run_variance([1.0, -1.0] * 32)
    >>> round(variance, 2), degrees
    (0.02, 12)
    """
    degrees = degrees_of_freedom(len(series))
    power = math.fsum(value * value for value in series)
    if not power:
        return 0.0, degrees
    lag = math.fsum(a * b for a, b in zip(series, series[1:], strict=False)) / power
    lag += (1 + 3 * max(lag, 0.0)) / len(series)  # its bias in a short series (Kendall, Biometrika 41, 1954)
    lag = min(max(lag, 0.0), 0.97)
    rest = [after - lag * before for before, after in zip(series, series[1:], strict=False)]
    mean = math.fsum(rest) / len(rest)
    spectrum = cosine_power([value - mean for value in rest], degrees)
    return math.fsum(spectrum) / degrees / (1 - lag) ** 2, degrees


def cosine_power(series: Sequence[float], count: int) -> list[float]:
    """Return the squares of the first `count` cosine coefficients of `series`; of white noise each has its variance."""
    size = len(series)
    return [
        2 / size * math.fsum(v * math.cos(math.pi * number * (i + 0.5) / size) for i, v in enumerate(series)) ** 2
        for number in range(1, count + 1)
    ]


def degrees_of_freedom(batches: int) -> int:
    """Return how many cosines a series of so many batches has at its low end, where its spectrum is still flat."""
    return max(6, batches * 3 // 16)


def stretches(late: Sequence[float], batches: int) -> float:
    """Return out of how many batches, in effect, the late values come: all where they are spread evenly, 1 of a burst.

    `late` are counts of 0 or more, some above 0.
    """
    shares = batch_means(late, min(batches, len(late)))
    return sum(shares) ** 2 / math.fsum(share * share for share in shares)
