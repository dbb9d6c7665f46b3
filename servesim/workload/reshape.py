"""The same requests, fewer or at another pace: a window of time, a random sample, another speed, another rate.

Sessions stay whole in a sample, and a turn without a time of its own goes where the turn before it goes.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from copy import copy
from itertools import compress

from servesim.errors import InputError
from servesim.units import format_duration
from servesim.workload.arrivals import draw_arrivals
from servesim.workload.content import renumber
from servesim.workload.requests import MAX_SPAN_S, Requests, rows_of
from servesim.workload.seeds import random_stream
from servesim.workload.workload import link_turns


def select(requests: Requests, chosen: Sequence[int]) -> Requests:
    """Return the requests whose indices are in `chosen`, in that order."""
    picked = rows_of(requests, chosen)
    if picked.content is not None:
        picked.content = renumber(picked.content) if any(picked.content) else None
    return picked


def window(requests: Requests, from_s: float = 0.0, to_s: float = math.inf) -> Requests:
    """Return the requests that arrive in [`from_s`, `to_s`), with `from_s` as the new 0."""
    arrival_s = _known_arrivals(requests)
    chosen = [index for index, at in enumerate(arrival_s) if from_s <= at < to_s]
    if not chosen:
        until = "" if to_s == math.inf else f" and before {to_s:g} s"
        raise InputError(
            f"no request arrives at {from_s:g} s or later{until}; the last one does at {max(arrival_s):g} s"
        )
    picked = select(requests, chosen)
    picked.arrival_s = array("d", (at - from_s for at in picked.arrival_s))
    firsts, _ = link_turns(picked)
    for index in firsts:  # a turn that has lost the one before it is due when it was taken to be
        if math.isnan(picked.arrival_s[index]):
            picked.arrival_s[index] = arrival_s[chosen[index]] - from_s
    return picked


def sample(requests: Requests, count: int, seed: int) -> Requests:
    """Return about `count` requests at random, as they arrive: whole sessions, of which the last is kept whole, too."""
    firsts, following = link_turns(requests)
    random_stream(seed, "sample").shuffle(firsts)
    kept = bytearray(len(requests))
    left = count
    for index in firsts:
        if left <= 0:
            break
        while index >= 0:
            kept[index] = 1
            left -= 1
            index = following[index]
    return select(requests, list(compress(range(len(requests)), kept)))


def at_speed(requests: Requests, speed: float) -> Requests:
    """Return the requests with arrivals `speed` times as fast; the pauses between turns stay as they are."""
    changed = copy(requests)
    changed.arrival_s = array("d", (at / speed for at in requests.arrival_s))
    last_s = max((at for at in changed.arrival_s if at == at), default=0.0)
    if last_s > MAX_SPAN_S:
        raise InputError(f"speed is {speed:g}, so that the last request would come after {format_duration(last_s)}")
    return changed


def at_rate(requests: Requests, rate: float, seed: int) -> Requests:
    """Return the requests at a mean of `rate` per second: their own arrivals stretched.

    Where no request has one, sessions (or single requests) begin as a Poisson process instead.
    """
    known = [at for at in requests.arrival_s if at == at]
    if known:
        span_s = max(known) - min(known)
        if not span_s:
            raise InputError("all arrivals are at one instant, so that no speed gives another rate")
        return at_speed(requests, rate * span_s / len(requests))
    firsts, _ = link_turns(requests)
    starts = draw_arrivals("poisson", rate=rate, seed=seed, count=len(firsts))
    changed = copy(requests)
    changed.arrival_s = array("d", [math.nan]) * len(requests)
    for index, at in zip(firsts, starts, strict=True):
        changed.arrival_s[index] = at
    return changed


def _known_arrivals(requests: Requests) -> array[float]:
    """Return the arrivals, where a turn without one has that of the turn before it."""
    arrival_s = requests.arrival_s[:]
    firsts, following = link_turns(requests)
    if any(math.isnan(arrival_s[index]) for index in firsts):
        raise InputError("the trace has no arrival times, so that there is no window of time to cut out")
    for index in firsts:
        while (successor := following[index]) >= 0:
            if math.isnan(arrival_s[successor]):
                arrival_s[successor] = arrival_s[index]
            index = successor
    return arrival_s
