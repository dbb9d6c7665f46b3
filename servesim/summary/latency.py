"""The latencies of completed requests, each defined once, for simulated and measured runs alike.

| metric | of one completed request |
|---|---|
| `ttft` | first token minus sent; absent where nothing, or everything at once, was answered |
| `ttfo` | first *visible* token (not reasoning) minus sent; a simulator's tokens are all visible |
| `tpot` | (last token - first token) / (output tokens - 1); absent under two tokens, or where all came in one event |
| `itl` | every gap between one token event and the next, a preemption's long one among them |
| `e2e` | last token minus sent |
| `queue` | start of the first admitting step minus sent; absent where nobody saw it |
| `lateness` | sent minus planned |
| `ttft_from_planned`, `e2e_from_planned` | from the planned send time, so that a late client cannot hide a queue |

Sent is the first send of a request that was sent again. Seconds throughout; NaN is "absent". What a percentile is, and
what a failure means for an SLO, is not known here.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, compress, islice, pairwise
from operator import sub

from servesim.runs.records import NAN, Outcome, Run
from servesim.runs.step_log import CompressedLog, compressed_gaps
from servesim.stats import Weighted

_IS_COMPLETED = bytes(code == Outcome.COMPLETED for code in range(256))


class Completed:
    """The completed requests of a run as columns, in order of index; nothing is copied that can be read in place."""

    __slots__ = ("_first", "_mask", "_times", "_visible", "count", "records")

    def __init__(self, run: Run) -> None:
        records = self.records = run.records
        self.count = records.outcome.count(Outcome.COMPLETED)
        self._mask = None if self.count == len(records) else records.outcome.translate(_IS_COMPLETED)
        unseen = [index for index, facts in records.extra.items() if facts.get("non_stream")]
        self._first = _without(records.first, unseen)
        self._visible = self._first if records.visible is None else _without(records.visible, unseen)
        self._times = run.times
        if any(min(indices, default=0) < 0 for indices in (self._first, records.last, self._visible)):
            self._times = run.times[:]
            self._times.append(NAN)  # index -1, no such token, reads NaN

    def column(self, values: Iterable[int]) -> Iterable[int]:
        """Return the values of the completed requests among one value a request."""
        return values if self._mask is None else compress(values, self._mask)

    def indices(self) -> Iterable[int]:
        return self.column(range(len(self.records)))

    def ttft(self) -> list[float]:
        return self._since(self._first, self.records.sent_s)

    def ttfo(self) -> list[float]:
        return self._since(self._visible, self.records.sent_s)

    def tpot(self) -> list[float]:
        times, records = self._times, self.records
        rows = zip(self.column(self._first), self.column(records.last), self.column(records.output_tokens), strict=True)
        return [
            (times[last] - times[first]) / (tokens - 1) if tokens > 1 and last != first else NAN
            for first, last, tokens in rows
        ]

    def e2e(self) -> list[float]:
        return self._since(self.records.last, self.records.sent_s)

    def queue(self) -> list[float]:
        return list(map(sub, self._floats(self.records.admitted_s), self._floats(self.records.sent_s)))

    def lateness(self) -> list[float]:
        return list(map(sub, self._floats(self.records.sent_s), self._floats(self.records.planned_s)))

    def ttft_from_planned(self) -> list[float]:
        return self._since(self._first, self.records.planned_s)

    def e2e_from_planned(self) -> list[float]:
        return self._since(self.records.last, self.records.planned_s)

    def twins(self) -> dict[str, str]:
        """Return the metrics that are another one in this run: metric -> the one computed before it."""
        twins = {}
        if self._visible is self._first:
            twins["ttfo"] = "ttft"
        if self.records.sent_s.tobytes() == self.records.planned_s.tobytes():
            twins["ttft_from_planned"] = "ttft"
            twins["e2e_from_planned"] = "e2e"
        return twins

    def _floats(self, values: array[float]) -> Iterable[float]:
        return values if self._mask is None else compress(values, self._mask)

    def _since(self, indices: array[int], start_s: array[float]) -> list[float]:
        return list(map(sub, map(self._times.__getitem__, self.column(indices)), self._floats(start_s)))


LATENCIES: dict[str, Callable[[Completed], list[float]]] = {
    "ttft": Completed.ttft,
    "ttfo": Completed.ttfo,
    "tpot": Completed.tpot,
    "e2e": Completed.e2e,
    "queue": Completed.queue,
    "lateness": Completed.lateness,
    "ttft_from_planned": Completed.ttft_from_planned,
    "e2e_from_planned": Completed.e2e_from_planned,
}
"""Metrics of which a request has at most one value: name -> the column of completed requests, NaN where absent."""

METRICS = (*LATENCIES, "itl")
"""Everything that an SLO can limit."""


def pooled_gaps(run: Run, done: Completed) -> Weighted:
    """Return all gaps between token events of completed requests, without visiting a token.

    Requests that share a step share its gap: a request with tokens [first, last] adds one to the weight of every gap
    between them, which a difference array records with two additions. Where its tokens are not one slice (preempted,
    stalled), the jump from slice to slice is one gap of its own.
    """
    times, records = run.times, run.records
    changes = array("i", bytes(4 * len(times)))
    for first, last in zip(done.column(records.first), done.column(records.last), strict=True):
        if first >= 0:
            changes[first] += 1
            changes[last] -= 1
    jumps = array("d")
    for index, slices in records.slices.items():
        if records.outcome[index] == Outcome.COMPLETED:
            for (_, stop), (start, _) in pairwise(slices):
                changes[stop] -= 1
                changes[start] += 1
                jumps.append(times[start] - times[stop])
    if isinstance(run.steps, CompressedLog):
        groups = compressed_gaps(run.steps, times, accumulate(changes))
    else:
        groups = defaultdict(lambda: array("d"))
        for gap, weight in zip(map(sub, islice(times, 1, None), times), accumulate(changes), strict=False):
            groups[weight].append(gap)
    groups.pop(0, None)
    groups[1].extend(jumps)
    return Weighted(groups)


def token_events(run: Run, done: Completed) -> int:
    """Return the number of token events of completed requests; each event but a request's first ends one gap."""
    records = run.records
    if isinstance(run.steps, CompressedLog):
        return sum(done.column(records.output_tokens))
    events = sum(done.column(records.last)) - sum(done.column(records.first)) + done.count
    events -= sum(1 for index in done.column(records.first) if index < 0)
    for index, slices in records.slices.items():
        if records.outcome[index] == Outcome.COMPLETED:
            events -= sum(start - stop - 1 for (_, stop), (start, _) in pairwise(slices))
    return events


def late_gaps(run: Run, done: Completed, limit_s: float) -> Iterator[tuple[int, int]]:
    """Yield (gaps above `limit_s`, gaps) of each completed request, in order of index; O(1) each."""
    times, records = run.times, run.records
    gaps = map(sub, islice(times, 1, None), times)
    late_until = array("q", accumulate(map(limit_s.__lt__, gaps), initial=0))  # [k]: late gaps that end at or before k
    for index in done.indices():
        first, last = records.first[index], records.last[index]
        if first < 0:
            yield 0, 0
            continue
        late, count = late_until[last] - late_until[first], last - first
        for (_, stop), (start, _) in pairwise(records.slices.get(index, ())):
            late += (times[start] - times[stop] > limit_s) - (late_until[start] - late_until[stop])
            count -= start - stop - 1
        yield late, count


def _without(indices: array[int], absent: list[int]) -> array[int]:
    """Return `indices` with -1 at the rows in `absent`."""
    if not absent:
        return indices
    indices = indices[:]
    for row in absent:
        indices[row] = -1
    return indices
