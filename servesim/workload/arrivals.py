"""When the requests of an open loop come: arrival processes of a mean rate, and rates that change with time.

A process (`ARRIVALS`) turns a generator, a rate and a burstiness into an endless sequence of times. The work is
bounded: a rate so low that the last request would come in years, or so high that gaps vanish, is refused.

A rate schedule is rows of a time and a rate, with straight lines between them; behind the last row it begins anew:

    time,rate        a day of traffic: the rate, in requests per second, at these moments
    0h,2.5
    4h,0.8
    14h,12
    24h,2.5

Its arrivals come by time rescaling: of a process with one arrival a second, the one at u comes when the integral of
the rate has reached u (Brown et al., "The time-rescaling theorem and its application to neural spike train data
analysis", 2002). A steady Poisson process becomes the inhomogeneous one of this rate; evenly spaced arrivals stay
evenly spread.
"""

from __future__ import annotations

import csv
import math
import random
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise, takewhile

from servesim.errors import InputError
from servesim.inputs import InputFile
from servesim.units import format_duration, parse_duration, parse_finite, shown, suggest
from servesim.workload.requests import MAX_SPAN_S
from servesim.workload.seeds import random_stream

MAX_RATE = 1e9  # requests per second
MAX_REQUESTS = 100_000_000
MIN_BURSTINESS, MAX_BURSTINESS = 1e-3, 1e6

Process = Callable[[random.Random, float, float], Iterator[float]]


@dataclass(slots=True, frozen=True, kw_only=True)
class ArrivalKind:
    """An arrival process: what it is, and `times(rng, rate, burstiness)`, arrival times in seconds without end."""

    summary: str
    times: Process
    takes_burstiness: bool = False


def _constant(rng: random.Random, rate: float, burstiness: float) -> Iterator[float]:
    k = 0
    while True:
        yield k / rate  # not a running sum, which would drift
        k += 1


def _poisson(rng: random.Random, rate: float, burstiness: float) -> Iterator[float]:
    uniform, log = rng.random, math.log
    at = 0.0
    while True:
        at -= log(1.0 - uniform()) / rate
        yield at


def _gamma(rng: random.Random, rate: float, burstiness: float) -> Iterator[float]:
    """Yield times whose gaps are gamma with shape `burstiness` and mean 1 / `rate`, as `vllm bench serve` does."""
    if burstiness == 1.0:
        return _poisson(rng, rate, burstiness)
    gaps = _gamma_below_one(rng, burstiness) if burstiness < 1.0 else _gamma_above_one(rng, burstiness)
    scale = 1.0 / (rate * burstiness)
    return accumulate(gap * scale for gap in gaps)


def _gamma_above_one(rng: random.Random, shape: float) -> Iterator[float]:
    """Yield gamma variates of `shape` > 1 and scale 1: Cheng, "The generation of gamma variables", 1977."""
    uniform, log, exp = rng.random, math.log, math.exp
    lam = math.sqrt(2.0 * shape - 1.0)
    b, c, d = shape - math.log(4.0), shape + lam, 1.0 + math.log(4.5)
    while True:
        u = uniform()
        if not 1e-7 < u < 0.9999999:
            continue
        second = 1.0 - uniform()
        v = log(u / (1.0 - u)) / lam
        x = shape * exp(v)
        z = u * u * second
        r = b + c * v - x
        if r + d - 4.5 * z >= 0.0 or r >= log(z):
            yield x


def _gamma_below_one(rng: random.Random, shape: float) -> Iterator[float]:
    """Yield gamma variates of `shape` < 1 and scale 1: Ahrens and Dieter, algorithm GS, 1974."""
    uniform, log, exp = rng.random, math.log, math.exp
    b = (math.e + shape) / math.e
    inverse, less_one = 1.0 / shape, shape - 1.0
    while True:
        p = b * uniform()
        second = uniform()
        if p > 1.0:
            x = -log((b - p) * inverse)
            if second <= x**less_one:
                yield x
        else:
            x = p**inverse
            if second <= exp(-x):
                yield x


ARRIVALS: dict[str, ArrivalKind] = {
    "poisson": ArrivalKind(summary="independent users: exponential gaps", times=_poisson),
    "gamma": ArrivalKind(
        summary="gamma gaps of shape `burstiness`: below 1 burstier than Poisson, above 1 more even",
        times=_gamma,
        takes_burstiness=True,
    ),
    "constant": ArrivalKind(summary="equal gaps, the first request at 0", times=_constant),
}


def check_arrivals(kind: str, rate: float, burstiness: float) -> None:
    """Raise InputError unless the process exists and its rate and burstiness can be worked with."""
    if kind not in ARRIVALS:
        raise suggest("arrival process", kind, ARRIVALS)
    if not 0.0 < rate <= MAX_RATE:
        raise InputError(f"rate is {rate:g}, must be above 0 and at most {MAX_RATE:g} requests per second")
    if not MIN_BURSTINESS <= burstiness <= MAX_BURSTINESS:
        raise InputError(f"burstiness is {burstiness:g}, must be from {MIN_BURSTINESS:g} to {MAX_BURSTINESS:g}")
    if burstiness != 1.0 and not ARRIVALS[kind].takes_burstiness:
        raise InputError(f"burstiness is {burstiness:g}, but {kind} arrivals have none; use gamma arrivals")


def ramped(at: float, ramp_s: float) -> float:
    """Return when an arrival of a steady process comes if the rate first grows evenly from 0 over `ramp_s` seconds.

    The time change that makes an inhomogeneous Poisson process of a steady one: the expected arrivals up to then are
    the same, `t^2 / (2 ramp_s)` steady seconds' worth during the ramp and `t - ramp_s / 2` after it.

    >>> [ramped(at, 8.0) for at in (0.0, 1.0, 4.0, 5.0)]
    [0.0, 4.0, 8.0, 9.0]
    """
    return math.sqrt(2.0 * ramp_s * at) if at < ramp_s / 2.0 else at + ramp_s / 2.0


def draw_arrivals(
    kind: str,
    *,
    rate: float,
    seed: int,
    count: int | None = None,
    until_s: float | None = None,
    burstiness: float = 1.0,
    ramp_s: float = 0.0,
) -> array[float]:
    """Return arrival times in seconds, in order: the first `count`, and only those up to `until_s`.

    The rate grows evenly from 0 to `rate` over the first `ramp_s` seconds and stays there.

    Raises InputError where the process is unknown, `rate` or `burstiness` is out of bounds, or the work would have
    no sensible end: a span of more than ten years, more than a hundred million requests.
    """
    check_arrivals(kind, rate, burstiness)
    if count is None and until_s is None:
        raise InputError("an arrival process needs a number of requests or a duration")
    span_s = min(math.inf if count is None else count / rate + ramp_s, math.inf if until_s is None else until_s)
    if not span_s <= MAX_SPAN_S:
        raise InputError(f"rate is {rate:g}, so that the last request would come after {format_duration(span_s)}")
    requests = min(math.inf if count is None else count, math.inf if until_s is None else until_s * rate)
    if requests > MAX_REQUESTS:
        raise InputError(f"a rate of {rate:g} for {format_duration(span_s)} is {requests:.3g} requests; too many")
    times = ARRIVALS[kind].times(random_stream(seed, "arrivals"), rate, burstiness)
    if count is not None:
        times = islice(times, count)
    if ramp_s:
        times = (ramped(at, ramp_s) for at in times)
    if until_s is not None:
        limit = until_s
        times = takewhile(lambda at: at <= limit, times)
    return array("d", times)


MAX_ROWS = 1_000_000


@dataclass(slots=True, frozen=True)
class RateSchedule:
    """`rates[k]` requests per second at `times_s[k]`; times rise from 0."""

    times_s: tuple[float, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.times_s) < 2 or self.times_s[0] != 0.0:
            raise InputError("a rate schedule must have two rows or more, the first at time 0")
        for earlier, later in pairwise(self.times_s):
            if not earlier < later:
                raise InputError(f"a rate schedule's times must rise, but {later:g} s follows {earlier:g} s")
        if not self.span_s <= MAX_SPAN_S:
            raise InputError(f"a rate schedule of {self.span_s:g} s is longer than ten years")
        if not all(0.0 <= rate <= MAX_RATE for rate in self.rates):
            raise InputError(f"a rate schedule's rates must be from 0 to {MAX_RATE:g} requests per second")
        if not self.requests > 0.0:
            raise InputError("a rate schedule has a rate of 0 throughout")

    @property
    def span_s(self) -> float:
        return self.times_s[-1]

    @property
    def requests(self) -> float:
        """The expected number of requests, once through.

        >>> RateSchedule((0.0, 10.0, 20.0), (1.0, 3.0, 1.0)).requests
        40.0
        """
        return math.fsum(requests for _, _, _, requests in self._pieces())

    @property
    def peak(self) -> float:
        return max(self.rates)

    def _pieces(self) -> list[tuple[float, float, float, float]]:
        """Return (start, length, rate at the start, expected requests) between each row and the next."""
        rows = pairwise(zip(self.times_s, self.rates, strict=True))
        return [(t0, t1 - t0, r0, (t1 - t0) * (r0 + r1) / 2) for (t0, r0), (t1, r1) in rows]

    def rescale(self, steady: Iterable[float]) -> Iterator[float]:
        """Yield when the arrivals of a process of rate 1, given in order, come under this schedule, in seconds.

        >>> list(RateSchedule((0.0, 10.0), (0.0, 2.0)).rescale([0.0, 2.5, 10.0, 12.5]))
        [0.0, 5.0, 10.0, 15.0]
        """
        pieces = self._pieces()
        place, begins_s, before = 0, 0.0, 0.0  # the piece we are in, when its round began, expected requests before it
        for at in steady:
            start_s, length_s, rate, requests = pieces[place]
            while at - before > requests:
                before += requests
                place += 1
                if place == len(pieces):
                    place = 0
                    begins_s += self.span_s
                start_s, length_s, rate, requests = pieces[place]
            wanted = at - before
            if wanted > 0.0:
                slope = 2.0 * (requests - rate * length_s) / length_s**2
                # The root of rate x + slope x^2 / 2 = wanted, in the form that loses nothing where the slope is small.
                root = math.sqrt(max(0.0, rate * rate + 2.0 * slope * wanted))
                yield begins_s + start_s + min(length_s, 2.0 * wanted / (rate + root))
            else:
                yield begins_s + start_s


def draw_scheduled(
    kind: str,
    schedule: RateSchedule,
    *,
    seed: int,
    count: int | None = None,
    until_s: float | None = None,
    burstiness: float = 1.0,
) -> array[float]:
    """Return arrival times in seconds, in order, of a process (a key of ARRIVALS) under `schedule`.

    The first `count`, and only those up to `until_s`; with neither, those of the schedule once through. Raises
    `InputError` where that would be more than a hundred million requests or ten years.
    """
    check_arrivals(kind, 1.0, burstiness)
    if count is None and until_s is None:
        until_s = schedule.span_s
    rounds = min(
        math.inf if count is None else count / schedule.requests,
        math.inf if until_s is None else until_s / schedule.span_s,
    )
    if rounds * schedule.span_s > MAX_SPAN_S or rounds * schedule.requests > MAX_REQUESTS:
        raise InputError(f"the rate schedule comes to {rounds * schedule.requests:.3g} requests; too many, or too slow")
    times = schedule.rescale(ARRIVALS[kind].times(random_stream(seed, "arrivals"), 1.0, burstiness))
    if count is not None:
        times = islice(times, count)
    if until_s is not None:
        times = takewhile(until_s.__ge__, times)
    return array("d", times)


def schedule_of(arrival_s: Iterable[float], every_s: float) -> RateSchedule:
    """Return the curve of arrivals, in requests per second: a row every `every_s`, its rate that of the stretches
    before and behind it, scaled so that it expects as many requests as there are. Unknown arrivals are left out.

    >>> schedule_of([0.0, 1.0, 2.0, 3.0, 10.0, 15.0], 10.0)
    RateSchedule(times_s=(0.0, 10.0, 20.0), rates=(0.4, 0.3, 0.2))
    """
    counts: list[int] = []
    for at in arrival_s:
        if at == at:
            place = int(at // every_s)
            if place >= MAX_ROWS - 1:
                raise InputError(f"a row every {every_s:g} s comes to more than {MAX_ROWS:,} rows")
            counts.extend([0] * (place + 1 - len(counts)))
            counts[place] += 1
    if not counts:
        raise InputError("a trace without times has no rates")
    around = zip((counts[0], *counts), (*counts, counts[-1]), strict=True)
    rates = [(before + after) / (2 * every_s) for before, after in around]
    curve = RateSchedule(tuple(place * every_s for place in range(len(rates))), tuple(rates))
    scale = sum(counts) / curve.requests
    return RateSchedule(curve.times_s, tuple(rate * scale for rate in curve.rates))


def read_schedule(path: str) -> RateSchedule:
    """Return the schedule in the file at `path`: `time,rate` rows, a time in seconds or with its unit.

    A first row of names and lines that begin with # are left out. Raises `InputError` with file and line.
    """
    times_s: list[float] = []
    rates: list[float] = []
    with InputFile(path, "rate schedule") as file:
        for line, text in file.lines():
            if isinstance(text, InputError):
                raise InputError(f"{file.name}:{line}: {text}")
            cells = [cell.strip() for cell in next(csv.reader([text]), [])]
            if not any(cells) or cells[0].startswith("#") or (not times_s and cells[0].lower().startswith("time")):
                continue
            if len(times_s) == MAX_ROWS:
                raise InputError(f"{file.name}: more than {MAX_ROWS:,} rows")
            try:
                time_s, rate = _row(cells)
            except InputError as error:
                raise InputError(f"{file.name}:{line}: {error}") from None
            times_s.append(time_s)
            rates.append(rate)
    try:
        return RateSchedule(tuple(times_s), tuple(rates))
    except InputError as error:
        raise InputError(f"{file.name}: {error}") from None


def _row(cells: list[str]) -> tuple[float, float]:
    if len(cells) != 2:
        raise InputError(f"{shown(','.join(cells))} must be a time and a rate")
    time, rate = cells
    if time[-1:].isdigit() or time.endswith("."):
        time_s = parse_finite(time, "time", minimum=0.0, maximum=MAX_SPAN_S)
    else:
        time_s = parse_duration(time, "time")
    return time_s, parse_finite(rate, "rate", minimum=0.0, maximum=MAX_RATE)
