"""Counters, gauges and histograms with labels, as a Prometheus client library keeps them, and no more than that."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from servesim.wire.prometheus import Family, Sample, format_number

Labels = Mapping[str, str]


class Counter:
    """A number that grows, or a gauge that is set; one for each set of labels that was ever named."""

    __slots__ = ("_rows", "about", "kind", "name")

    def __init__(self, name: str, about: str, kind: str = "counter", rows: Iterable[Labels] = ({},)) -> None:
        self.name = name
        self.about = about
        self.kind = kind
        self._rows: dict[tuple[tuple[str, str], ...], float] = {tuple(row.items()): 0.0 for row in rows}

    def add(self, amount: float = 1.0, **labels: str) -> None:
        key = tuple(labels.items())
        self._rows[key] = self._rows.get(key, 0.0) + amount

    def set(self, value: float, **labels: str) -> None:
        self._rows[tuple(labels.items())] = value

    def value(self, **labels: str) -> float:
        return self._rows.get(tuple(labels.items()), 0.0)

    def families(self, common: Labels, created_s: float | None) -> list[Family]:
        """Return it as a family; a counter has a second one that says when it began, as the Python client writes it."""
        found = [self._family(self.name, self.kind, common, None)]
        if created_s is not None and self.kind == "counter":
            found.append(self._family(f"{self.name.removesuffix('_total')}_created", "gauge", common, created_s))
        return found

    def _family(self, name: str, kind: str, common: Labels, fixed: float | None) -> Family:
        samples = tuple(
            Sample(name, in_order(common, dict(key)), value if fixed is None else fixed)
            for key, value in self._rows.items()
        )
        return Family(name=name, kind=kind, about=self.about, samples=samples)


class Histogram:
    """Counts of observed values by bucket; one for each set of labels that was ever named.

    A "summary" shows only how many there were and their sum.
    """

    __slots__ = ("_rows", "about", "bounds", "kind", "name")

    def __init__(
        self, name: str, about: str, bounds: Sequence[float], rows: Iterable[Labels] = ({},), kind: str = "histogram"
    ) -> None:
        self.name = name
        self.about = about
        self.kind = kind
        self.bounds = tuple(bounds)
        self._rows: dict[tuple[tuple[str, str], ...], tuple[list[int], list[float]]] = {
            tuple(row.items()): self._empty() for row in rows
        }

    def _empty(self) -> tuple[list[int], list[float]]:
        return [0] * (len(self.bounds) + 1), [0.0]

    def observe(self, value: float, count: int = 1, **labels: str) -> None:
        row = self._rows.get(tuple(labels.items()))
        if row is None:
            row = self._rows[tuple(labels.items())] = self._empty()
        row[0][bisect_left(self.bounds, value)] += count
        row[1][0] += value * count

    def count(self, **labels: str) -> int:
        return sum(self._rows[tuple(labels.items())][0])

    def quantile_bound(self, fraction: float) -> float:
        """Return the upper bound of the bucket in which the quantile lies; infinite beyond the last, 0 without data."""
        counts = [sum(column) for column in zip(*(row[0] for row in self._rows.values()), strict=True)]
        left = math.ceil(fraction * sum(counts))
        for bound, count in zip((*self.bounds, math.inf), counts, strict=True):
            left -= count
            if left <= 0:
                return bound if sum(counts) else 0.0
        return math.inf

    def families(self, common: Labels, created_s: float | None) -> list[Family]:
        samples: list[Sample] = []
        created: list[Sample] = []
        for key, (counts, total) in self._rows.items():
            labels, running = dict(key), 0
            for bound, count in zip((*self.bounds, math.inf), counts, strict=True):
                running += count
                if self.kind == "summary":
                    continue
                le = {"le": format_number(bound)}
                samples.append(Sample(f"{self.name}_bucket", in_order(common, labels, le), float(running)))
            samples.append(Sample(f"{self.name}_count", in_order(common, labels), float(running)))
            samples.append(Sample(f"{self.name}_sum", in_order(common, labels), total[0]))
            created.append(Sample(f"{self.name}_created", in_order(common, labels), created_s or 0.0))
        found = [Family(name=self.name, kind=self.kind, about=self.about, samples=tuple(samples))]
        if created_s is not None:
            found.append(Family(name=f"{self.name}_created", kind="gauge", about=self.about, samples=tuple(created)))
        return found


Instrument = Counter | Histogram


def in_order(*labels: Labels) -> dict[str, str]:
    """Return all labels in one, by name, as pages have them."""
    return dict(sorted(item for some in labels for item in some.items()))
