"""How far a run's figures may lie from those of the next run of the same kind: 90 % intervals out of one run.

A figure is written as a mean over the run's requests in the order in which they were sent, and its noise taken from
contiguous batches of them (`noise`), at most 64, none shorter than a mean E2E latency where that leaves 24. A mean
latency is one already; a percentile q is the share of values at most q (Woodruff, JASA 47, 1952), a pooled ITL a share
of gaps, a throughput the tokens of equal spans of time. A percentile's interval is what lies between the ranks at
logit(p) -+ t x error, which stays within 0 and 1. The end of a closed loop adds noise of its own to a throughput: the
last of the requests in flight.

Where the method is known not to hold there is no interval but a reason: a run of fewer than 20 mean E2E latencies (for
a percentile 2 / (1 - p)), ends that weigh more than the noise between them, drift, a tail that comes from fewer than 5
stretches of the run. `python3 -m tests.coverage_of_compare` prints how often the intervals of equal runs really cover.
What changes from one run to the next (another machine, a warmer cache) is in no interval out of one run.

The noise of a mean of correlated values, out of one stretch of them: its standard error, or why there is none.

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
from functools import cached_property
from itertools import accumulate

from servesim.runs.records import Outcome, Run
from servesim.stats import PERCENTILES, STUDENT_T_95, Sample, Values, nearest_rank
from servesim.summary.latency import LATENCIES, METRICS, Completed, late_gaps, pooled_gaps

EDGE = 16  # one part in so many is left out at either end
DRIFT_COSINES, DRIFT_SHARE = 12, 2 / 3  # a straight line has 98 % of its power in the first cosine, noise 8 %


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
    error = STUDENT_T_95[degrees] * math.sqrt(variance * len(middle) / batches / size)
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


CONFIDENCE = 0.90
MIN_LATENCIES = 20  # the shortest run, in mean E2E latencies; a percentile p needs 2 / (1 - p)
MIN_STRETCHES = 5.0  # of the run, out of which the values beyond a percentile must come
MIN_BATCHES, MAX_BATCHES = 24, 64
CELLS = 256  # of time, over which tokens are spread for a throughput
DRAIN = 0.2  # variance of the maximum less the mean of 2 to 64 normal draws: 0.18 to 0.25

THROUGHPUTS = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")
FAILED_SHARE = "failed_share"


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a figure lies with 90 % confidence, in the figure's own unit."""

    low: float
    high: float


class RunNoise:
    """The intervals of one run's figures, each computed when asked for; names as in `names()`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._done = Completed(run)
        sent = run.records.sent_s
        self._indices = list(self._done.indices())
        self._order = sorted(range(self._done.count), key=lambda row: sent[self._indices[row]])
        self._e2e_s = [value for value in self._done.e2e() if value == value]
        self._columns: dict[str, list[float]] = {}
        received = [run.times[last] for last in run.records.last if last >= 0]
        started = [at for at in sent if at == at]
        self._start_s = min(started, default=0.0)
        self._duration_s = max(received, default=self._start_s) - self._start_s
        total_s = math.fsum(self._e2e_s)
        self.latencies = self._duration_s * len(self._e2e_s) / total_s if total_s > 0 else 0.0
        self._batches = min(MAX_BATCHES, max(MIN_BATCHES, int(self.latencies)))

    @staticmethod
    def names() -> list[str]:
        """Return the names of all figures that can have an interval."""
        latencies = [f"{metric}_{figure}" for metric in METRICS for figure in ("mean", *PERCENTILES)]
        return [*THROUGHPUTS, FAILED_SHARE, *latencies]

    def interval(self, name: str) -> Interval | NoInterval:
        """Return the interval of the figure `name`; latencies in milliseconds."""
        if name == FAILED_SHARE:
            return self._failed_share()
        if self.latencies < MIN_LATENCIES:
            return _too_short(self.latencies, MIN_LATENCIES)
        if name in THROUGHPUTS:
            return self._throughput(name)
        metric, _, figure = name.rpartition("_")
        if figure == "mean":
            return self._mean_gap() if metric == "itl" else self._mean(metric)
        percentile = PERCENTILES[figure]
        needed = round(200 / (100 - percentile))
        if self.latencies < needed:
            return _too_short(self.latencies, needed)
        return self._gap_percentile(percentile) if metric == "itl" else self._percentile(metric, percentile)

    def _column(self, metric: str) -> list[float]:
        """Return the known values of `metric` in seconds, in the order in which their requests were sent."""
        if metric not in self._columns:
            values = LATENCIES[metric](self._done)
            self._columns[metric] = [values[row] for row in self._order if values[row] == values[row]]
        return self._columns[metric]

    def _mean(self, metric: str) -> Interval | NoInterval:
        values = self._column(metric)
        if not values:
            return NoInterval("has no value")
        mean = math.fsum(values) / len(values)
        error = half_width([value - mean for value in values], self._batches, scale=mean)
        return error if isinstance(error, NoInterval) else _around(mean * 1000, error * 1000)

    def _percentile(self, metric: str, percentile: float) -> Interval | NoInterval:
        values = self._column(metric)
        if not values:
            return NoInterval("has no value")
        sample = Values(values[:])
        limit_s = sample.at(nearest_rank(percentile, sample.count))
        late = [float(value > limit_s) for value in values]
        return self._between_ranks(sample, percentile, late, [1.0] * len(late))

    @cached_property
    def _gaps(self) -> Sample:
        return pooled_gaps(self._run, self._done)

    def _mean_gap(self) -> Interval | NoInterval:
        if not self._gaps.count:
            return NoInterval("has no value")
        times, records = self._run.times, self._run.records
        mean = self._gaps.total() / self._gaps.count
        counts = [gaps for _, gaps in late_gaps(self._run, self._done, math.inf)]
        each = self._gaps.count / len(counts)
        excess = []
        for row in self._order:
            first, last = records.first[self._indices[row]], records.last[self._indices[row]]
            spent_s = times[last] - times[first] if first >= 0 else 0.0
            excess.append((spent_s - mean * counts[row]) / each)
        error = half_width(excess, self._batches, scale=mean)
        return error if isinstance(error, NoInterval) else _around(mean * 1000, error * 1000)

    def _gap_percentile(self, percentile: float) -> Interval | NoInterval:
        if not self._gaps.count:
            return NoInterval("has no value")
        limit_s = self._gaps.at(nearest_rank(percentile, self._gaps.count))
        rows = list(late_gaps(self._run, self._done, limit_s))
        late = [float(rows[row][0]) for row in self._order]
        return self._between_ranks(self._gaps, percentile, late, [float(rows[row][1]) for row in self._order])

    def _between_ranks(
        self, sample: Sample, percentile: float, late: list[float], counts: list[float]
    ) -> Interval | NoInterval:
        """Return the interval of a percentile; of each request, how many of its values are late, of how many."""
        share, each = sum(late) / sum(counts), sum(counts) / len(counts)
        if percentile >= 90 and share and (spread := stretches(late, self._batches)) < MIN_STRETCHES:
            return NoInterval(f"has a tail out of {spread:.1f} stretches of the run, must come from {MIN_STRETCHES:g}")
        excess = [(some - share * count) / each for some, count in zip(late, counts, strict=True)]
        error = half_width(excess, self._batches, scale=1.0)
        if isinstance(error, NoInterval):
            return error
        middle = percentile / 100
        logit, reach = math.log(middle / (1 - middle)), error / (middle * (1 - middle))
        low = math.floor(_logistic(logit - reach) * sample.count)
        high = math.floor(_logistic(logit + reach) * sample.count) + 1
        if not error:
            low = high = nearest_rank(percentile, sample.count)
        if low < 1 or high > sample.count:
            return NoInterval("has too few values beyond it")
        return Interval(sample.at(low) * 1000, sample.at(high) * 1000)

    def _failed_share(self) -> Interval | NoInterval:
        records = self._run.records
        over = [index for index, outcome in enumerate(records.outcome) if outcome in _OVER]
        failed = [
            float(records.outcome[index] != Outcome.COMPLETED)
            for index in sorted(over, key=records.planned_s.__getitem__)
        ]
        if not any(failed):
            return Interval(0.0, 0.0) if failed else NoInterval("has no value")
        if self.latencies < MIN_LATENCIES:
            return _too_short(self.latencies, MIN_LATENCIES)
        if (spread := stretches(failed, self._batches)) < MIN_STRETCHES:
            return NoInterval(f"comes from {spread:.1f} stretches of the run, must come from {MIN_STRETCHES:g}")
        share = sum(failed) / len(failed)
        error = half_width([value - share for value in failed], self._batches, scale=1.0)
        return error if isinstance(error, NoInterval) else _around(share, error)

    def _throughput(self, name: str) -> Interval | NoInterval:
        done, records, times = self._done, self._run.records, self._run.times
        amount = 0.0
        cells = _Cells(self._start_s, self._duration_s)
        for index in self._indices:
            sent, first, last = records.sent_s[index], records.first[index], records.last[index]
            if last < 0:
                continue
            begin = times[first] if first >= 0 else sent
            if name == "requests_per_s":
                cells.spread(1.0, sent, times[last])
                amount += 1.0
                continue
            cells.spread(records.output_tokens[index], begin, times[last])
            amount += records.output_tokens[index]
            if name == "total_tokens_per_s":
                cells.spread(records.prompt_tokens[index], sent, begin)
                amount += records.prompt_tokens[index]
        if not amount:
            return NoInterval("has no value")
        mean = amount / CELLS
        error = half_width([cell - mean for cell in cells.amounts], self._batches, scale=mean, ends_weigh=True)
        if isinstance(error, NoInterval):
            return error
        rate, relative = amount / self._duration_s, error / mean
        if done.count > 1.5 * self.latencies:  # more than one in flight on average: they do not end together
            degrees = degrees_of_freedom(self._batches)
            relative = math.hypot(
                relative, STUDENT_T_95[degrees] * math.sqrt(DRAIN) * _deviation(self._e2e_s) / self._duration_s
            )
        return _around(rate, rate * relative)


_OVER = (Outcome.COMPLETED, Outcome.FAILED, Outcome.REJECTED)


class _Cells:
    """Equal cells of time, over which amounts are spread evenly between two moments."""

    def __init__(self, start_s: float, duration_s: float) -> None:
        self.amounts = [0.0] * CELLS
        self._start_s, self._width_s = start_s, duration_s / CELLS

    def spread(self, amount: float, begin_s: float, end_s: float) -> None:
        begin, end = (begin_s - self._start_s) / self._width_s, (end_s - self._start_s) / self._width_s
        first, last = min(CELLS - 1, max(0, int(begin))), min(CELLS - 1, int(end))
        if first >= last:
            self.amounts[first] += amount
            return
        density = amount / (end - begin)
        self.amounts[first] += density * (first + 1 - begin)
        self.amounts[last] += density * (end - last)
        for cell in range(first + 1, last):
            self.amounts[cell] += density


def _deviation(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def _too_short(latencies: float, needed: int) -> NoInterval:
    return NoInterval(f"needs a run of {needed:,} mean E2E latencies, this one has {latencies:.0f}")


def _around(middle: float, error: float) -> Interval:
    return Interval(middle - error, middle + error)


def _logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0
