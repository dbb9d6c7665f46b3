"""When requests of an open loop come: arrival processes of a given mean rate, in a registry.

Each process turns a generator, a rate and a burstiness into an endless sequence of gaps. The work is bounded: a rate so
low that the last request would come in years, or so high that gaps vanish, is refused.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile

from servesim.errors import InputError
from servesim.units import format_duration, suggest
from servesim.workload.seeds import random_stream

MAX_RATE = 1e9  # requests per second
MAX_SPAN_S = 10 * 366 * 86400.0
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
