"""A step log in which a steady stretch is one entry, for runs of a billion steps.

In a stretch the same sequences decode, so that the times between its tokens follow from their number and their context
by the cost model: an entry needs no more than those, the number of its steps and its end. Every request has its first
and its last token at the end of an entry, so records point into a compressed log as into any other. What is lost are
the times of the tokens in between, and with them whatever asks for one request's gaps.

Gaps within a stretch are the cost model's own durations; the clock's, from which a plain log has them, are rounded
to what a double holds of the time of day: they agree to some 1e-11 s.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, pairwise
from operator import sub

from servesim.runs.records import StepLog

Price = Callable[[int, int], float]
"""Seconds of a step of (sequences, context tokens), as a cost model's `decode`."""


class Starts(MutableMapping[int, float]):
    """The starts of steps after an idle time, as two columns; steps come in order."""

    __slots__ = ("_start_s", "_step")

    def __init__(self) -> None:
        self._step = array("q")
        self._start_s = array("d")

    def __setitem__(self, step: int, start_s: float) -> None:
        if self._step and self._step[-1] == step:
            self._start_s[-1] = start_s
        else:
            self._step.append(step)
            self._start_s.append(start_s)

    def __getitem__(self, step: int) -> float:
        if not self._step or self._step[-1] != step:
            raise KeyError(step)  # only the last one is ever asked for
        return self._start_s[-1]

    def __delitem__(self, step: int) -> None:
        if not self._step or self._step[-1] != step:
            raise KeyError(step)
        self._step.pop()
        self._start_s.pop()

    def clear(self) -> None:
        del self._step[:], self._start_s[:]

    def __iter__(self) -> Iterator[int]:
        return iter(self._step)

    def __len__(self) -> int:
        return len(self._step)

    def pairs(self) -> Iterator[tuple[int, float]]:
        return zip(self._step, self._start_s, strict=True)


@dataclass(slots=True)
class CompressedLog(StepLog):
    """A `StepLog` whose entries are steps or stretches of them; `decodes` is then the number of those that decode, and
    `kv_blocks` what is in use in its last step."""

    starts: MutableMapping[int, float] = field(default_factory=Starts)
    ticks: array[int] = field(default_factory=lambda: array("i"))  # steps of a stretch; 0, or nothing: a plain step
    contexts: array[int] = field(default_factory=lambda: array("q"))  # tokens that have KV before a stretch
    prices: list[tuple[int, Price]] = field(default_factory=list)  # (first entry, price of the steps from there on)
    block_seconds: float = 0.0  # integral of blocks in use over all stretches

    def append_stretch(self, end_s: float, decodes: int, kv_blocks: int, ticks: int, context: int) -> None:
        """Append a stretch."""
        own, contexts = self.ticks, self.contexts
        missing = len(self.end_s) - len(own)
        if missing == 1:  # as a rule: the step that began the stretch
            own.append(0)
            contexts.append(0)
        elif missing:
            self.pad()
        self.end_s.append(end_s)
        self.decodes.append(decodes)
        self.kv_blocks.append(kv_blocks)
        own.append(ticks)
        contexts.append(context)

    def clear(self) -> None:
        StepLog.clear(self)
        del self.ticks[:], self.contexts[:], self.prices[:]
        self.block_seconds = 0.0

    def pad(self) -> None:
        """Bring the columns that only stretches fill to the length of the others."""
        for column in (self.ticks, self.contexts):
            missing = len(self.end_s) - len(column)
            if missing > 0:
                column.frombytes(bytes(column.itemsize * missing))

    def steps(self) -> int:
        return len(self.end_s) + sum(self.ticks) - (len(self.ticks) - self.ticks.count(0))

    def decoded(self) -> int:
        plain = sum(self.decodes)
        return plain + sum(count * (ticks - 1) for count, ticks in zip(self.decodes, self.ticks, strict=False) if ticks)

    def positions(self) -> Sequence[int]:
        self.pad()
        steps = array("q", accumulate(ticks or 1 for ticks in self.ticks))
        steps.extend((0, 0))  # at -1 and -2, which stand for no step
        return steps

    def durations_s(self) -> Sequence[float]:
        """Return the length of every entry in seconds; a column, since a list of them would be the largest thing."""
        durations = array("d", map(sub, self.end_s, chain((0.0,), self.end_s)))
        for entry, start_s in self.start_pairs():
            durations[entry] = self.end_s[entry] - start_s
        return durations

    def integrate_blocks(self, durations_s: Sequence[float]) -> float:
        self.pad()
        plain = (
            blocks * seconds
            for blocks, seconds, ticks in zip(self.kv_blocks, durations_s, self.ticks, strict=True)
            if not ticks
        )
        return math.fsum(plain) + self.block_seconds

    def start_pairs(self) -> Iterator[tuple[int, float]]:
        assert isinstance(self.starts, Starts)
        return self.starts.pairs()


def compressed_gaps(log: CompressedLog, times: array[float], weights: Iterator[int]) -> defaultdict[int, array[float]]:
    """Return the gaps between tokens by how often each occurred; `weights` are of the gap behind each entry.

    A stretch of n sequences from context c goes through the contexts c + n, c + 2n, ...: two changes to what is known
    of n sequences, whose sums then tell how often each context was gone through.
    """
    log.pad()
    groups: defaultdict[int, array[float]] = defaultdict(lambda: array("d"))
    spans: dict[int, defaultdict[int, int]] = {}
    bounds = [*log.prices, (len(log), None)]
    rows = zip(
        times,
        islice(times, 1, None),
        weights,
        islice(log.ticks, 1, None),
        islice(log.decodes, 1, None),
        islice(log.contexts, 1, None),
        strict=False,
    )
    entry = 1
    for (_, price), (after, _) in pairwise(bounds):
        assert price is not None
        for before_s, end_s, weight, ticks, count, context in islice(rows, max(0, after - entry)):
            if not weight:
                continue
            if not ticks:
                groups[weight].append(end_s - before_s)
                continue
            span = spans.get(count)
            if span is None:
                span = spans[count] = defaultdict(int)
            span[context + count] += weight
            span[context + count * (ticks + 1)] -= weight
        entry = max(entry, after)
        for count, span in spans.items():
            _add_spans(groups, count, span, price)
        spans.clear()
    return groups


def _add_spans(groups: defaultdict[int, array[float]], count: int, span: dict[int, int], price: Price) -> None:
    contexts = sorted(span, key=lambda context: (context % count, context))
    weight = 0
    for context, after in pairwise(contexts):
        weight += span[context]
        if weight:
            groups[weight].extend(price(count, at) for at in range(context, after, count))
