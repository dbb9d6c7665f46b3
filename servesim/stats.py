"""Nearest-rank percentiles, and the distributions that are made of them: the one place where a rank is chosen.

A percentile is always a value that was observed, and no data is `None`. A `Sample` can name the value at any rank
without saying how it stores them, so that a million counts and a hundred million gaps are summed up by the same words.
Nothing here knows what the values are or in what unit.
"""

from __future__ import annotations

import math
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Annotated, Protocol

PERCENTILES: dict[str, float] = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "p999": 99.9}

STUDENT_T_95 = {6: 1.943, 7: 1.895, 8: 1.860, 9: 1.833, 10: 1.812, 11: 1.796, 12: 1.782}
"""The 95 % quantile of Student's t, by degrees of freedom: 90 % lie between it and its negative."""

STUDENT_T_97_5 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""The 97.5 % quantile, between which and its negative 95 % lie."""


def nearest_rank(percentile: float, count: int) -> int:
    """Return the rank, from 1, of the value at `percentile` of `count` values in ascending order.

    It is the smallest rank that at least `percentile` % of the values do not exceed, in whole-number arithmetic to six
    decimals of the percentile: in floats, 99.9 % of 1,000 would be rank 1,000.

    >>> nearest_rank(95, 100), nearest_rank(99.9, 1000), nearest_rank(50, 1)
    (95, 999, 1)
    """
    return max(1, -(-count * round(percentile * 10**6) // 10**8))


class Sample(Protocol):
    """Values that can be asked for by rank."""

    @property
    def count(self) -> int: ...

    def total(self) -> float:
        """Return the sum of all values, correctly rounded, in whatever order they came."""
        ...

    def at(self, rank: int) -> float:
        """Return the value of the given rank, 1 the smallest, `count` the largest."""
        ...

    def up_to(self, value: float) -> int:
        """Return how many values are at most `value`."""
        ...


class Values:
    """A list of floats, which it takes over and sorts; NaN is an unknown value and left out."""

    __slots__ = ("_ordered", "_total")

    def __init__(self, values: list[float]) -> None:
        self._total = math.fsum(values)
        if math.isnan(self._total):
            values = [value for value in values if value == value]
            self._total = math.fsum(values)
        values.sort()
        self._ordered = values

    @property
    def count(self) -> int:
        return len(self._ordered)

    def total(self) -> float:
        return self._total

    def at(self, rank: int) -> float:
        return self._ordered[rank - 1]

    def up_to(self, value: float) -> int:
        return bisect_right(self._ordered, value)


class Tally:
    """Few distinct values, each with how often it occurred."""

    __slots__ = ("_counts", "_ranks", "_values")

    def __init__(self, counts: Mapping[int, int] | Mapping[float, int]) -> None:
        self._values: list[float] = sorted(counts)
        self._counts = [counts[value] for value in self._values]  # type: ignore[index]
        self._ranks = list(accumulate(self._counts))

    @property
    def count(self) -> int:
        return self._ranks[-1] if self._ranks else 0

    def total(self) -> float:
        return math.fsum(map(mul, self._values, self._counts))

    def at(self, rank: int) -> float:
        return self._values[bisect_left(self._ranks, rank)]

    def up_to(self, value: float) -> int:
        place = bisect_right(self._values, value)
        return self._ranks[place - 1] if place else 0


class Weighted:
    """Groups of values, where every value of a group occurred as often as the group's weight says.

    Takes the groups over: `groups[weight]` are the values that occurred `weight` times each, in any order.
    """

    __slots__ = ("_count", "_groups", "_total")

    def __init__(self, groups: dict[int, array[float]]) -> None:
        self._groups = groups
        self._count, totals = 0, []
        for weight, values in groups.items():
            totals.append(weight * math.fsum(values))
            self._count += weight * len(values)
            groups[weight] = array("d", sorted(values))  # one group at a time: lists of floats are large
        self._total = math.fsum(totals)

    @property
    def count(self) -> int:
        return self._count

    def total(self) -> float:
        return self._total

    def at(self, rank: int) -> float:
        """Bisect over floats, by their order as integers, for the smallest that `rank` values do not exceed."""
        groups = [(weight, values) for weight, values in self._groups.items() if values]
        low = min(_order(values[0]) for _, values in groups)
        high = max(_order(values[-1]) for _, values in groups)
        while low < high:
            middle = (low + high) // 2
            value = _float(middle)
            if sum(weight * bisect_right(values, value) for weight, values in groups) >= rank:
                high = middle
            else:
                low = middle + 1
        return _float(low)

    def up_to(self, value: float) -> int:
        return sum(weight * bisect_right(values, value) for weight, values in self._groups.items())


def _order(value: float) -> int:
    """Return an integer for a float such that integers are ordered as floats are, neighbours being neighbours."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits if bits >= 0 else -(bits + 2**63)


def _float(order: int) -> float:
    """Return the float whose `_order` is `order`."""
    value: float = struct.unpack("<d", struct.pack("<q", order if order >= 0 else -order - 2**63))[0]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """What is told of many values; percentiles are nearest rank, `p999` is the 99.9th."""

    count: Annotated[int, "values; percentiles are nearest rank, always a value that occurred"]
    mean: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float
    max: float


def describe(sample: Sample, scale: int = 1) -> Distribution | None:
    """Return the distribution of `sample`, every value multiplied by `scale`; None where there are no values."""
    count = sample.count
    if not count:
        return None
    return Distribution(
        count=count,
        mean=sample.total() / count * scale,
        min=sample.at(1) * scale,
        max=sample.at(count) * scale,
        **{name: sample.at(nearest_rank(percentile, count)) * scale for name, percentile in PERCENTILES.items()},
    )


def figure_at(distribution: Distribution | None, name: str) -> float | None:
    """Return a figure of a distribution, None where there is no data."""
    return None if distribution is None else getattr(distribution, name)
