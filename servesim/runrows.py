"""The requests of a saved run, put together from their lines: columns in order of index.

They come in whatever order they finished. Where indices are missing (a client that was killed never wrote the requests
in flight) the rows close up; their ids stay.
"""

from __future__ import annotations

from array import array
from typing import Any

from servesim.errors import InputError
from servesim.records import NAN, Outcome, Records, StepLog
from servesim.runlines import Line
from servesim.units import suggest
from servesim.workload.requests import Content, Requests

_OUTCOMES = {outcome.name.lower(): outcome for outcome in Outcome if outcome != Outcome.WITHHELD}
_APART_HOMES = ("prefill_replica", "decode_replica")
_STAGES = ("prefill_end_s", "link_start_s", "transfer_end_s", "decode_start_s")


class Rows:
    """The requests of a file, gathered line by line and then put in order of index."""

    def __init__(self, path: str, steps: StepLog, times: array[float]) -> None:
        self.path, self.steps, self.times = path, steps, times
        self.index = array("q")
        self.ids: list[str] = []
        self.requests, self.records = Requests(), Records(0)
        self.end_s, self.visible = array("d"), array("q")
        self.traits: dict[str, dict[int, Any]] = {}
        self.homes: dict[str, array[int]] = {}
        self.stages: dict[str, array[float]] = {}

    def __len__(self) -> int:
        return len(self.index)

    def add(self, line: Line) -> None:
        records, requests, row = self.records, self.requests, len(self.index)
        self.index.append(line.count("index"))
        self.ids.append(line.text("id"))
        outcome = line.text("outcome")
        if outcome not in _OUTCOMES:
            raise InputError(f"{line.where}: {suggest('outcome', outcome, _OUTCOMES)}")
        records.outcome.append(_OUTCOMES[outcome])
        for key, column in (
            ("planned_s", records.planned_s),
            ("sent_s", records.sent_s),
            ("admitted_s", records.admitted_s),
            ("end_s", self.end_s),
        ):
            column.append(line.time(key))
        records.prompt_tokens.append(line.count("prompt_tokens"))
        records.output_tokens.append(line.count("output_tokens"))
        records.cached_tokens.append(line.count("cached_tokens", default=-1))
        requests.prompt_tokens.append(line.count("asked_prompt_tokens", default=records.prompt_tokens[row]))
        requests.output_tokens.append(line.count("asked_output_tokens", default=records.output_tokens[row]))
        requests.arrival_s.append(line.time("arrival_s" if "arrival_s" in line.fields else "planned_s"))
        self._add_times(line, row)
        self._add_sparse(line, row)
        if "replica" in line.fields or "prefill_replica" in line.fields:
            self._add_fleet(line, row)

    def _add_fleet(self, line: Line, row: int) -> None:
        """Take in which replicas served a request and when it passed from one to the other."""
        apart = "prefill_replica" in line.fields
        for key in _APART_HOMES if apart else ("replica",):
            column = self.homes.setdefault(key, array("i", [0]) * row)
            column.append(line.count(key))
        for key in _STAGES if apart else ():
            times_s = self.stages.setdefault(key, array("d", [NAN]) * row)
            times_s.append(line.time(key))

    def _add_times(self, line: Line, row: int) -> None:
        """Take in the token times of a request: numbers of steps, or the times themselves."""
        records = self.records
        first = last = -1
        if "steps" in line.fields:
            slices = line.pairs("steps")
            flat = [step for slice_ in slices for step in slice_]
            handed_s = line.time("decode_start_s")
            is_handed = handed_s == handed_s
            if any(type(step) is not int for step in flat) or flat != sorted(flat) or min(flat, default=0) < 0:
                raise line.wrong("steps", "a list of pairs of step numbers in order")
            if flat and flat[-1] >= len(self.steps):
                raise InputError(
                    f"{line.where}: steps ends at step {flat[-1]}, but the file has {len(self.steps)} before it"
                )
            if is_handed:
                at = len(self.steps) + len(self.times)
                self.times.append(handed_s)
                slices = [(at, at), *slices]
            elif not flat:
                raise line.wrong("steps", "a list of one pair or more")
            first, last = slices[0][0], slices[-1][1]
            if len(slices) > 1:
                records.pieces[row] = slices
        elif "times_s" in line.fields:
            times = line.times("times_s")
            if times:
                first, last = len(self.times), len(self.times) + len(times) - 1
                self.times.extend(times)
        visible = line.count("visible", default=-1)
        if visible >= 0 and visible > last - first:
            raise line.wrong("visible", "the number of one of the request's token events")
        records.first.append(first)
        records.last.append(last)
        self.visible.append(first + visible if visible >= 0 and first >= 0 else -1)

    def _add_sparse(self, line: Line, row: int) -> None:
        records, known = self.records, line.fields
        if "reason" in known:
            records.reason[row] = line.text("reason")
        if "attempts" in known:
            records.attempts[row] = line.count("attempts", minimum=1)
        if "extra" in known:
            records.extra[row] = line.table("extra")
        if "preempted" in known:
            records.preempted[row] = [
                (float(at), NAN if resumed is None else float(resumed)) for at, resumed in line.pairs("preempted")
            ]
        if line.flag("capped"):
            records.capped.add(row)
        for key, read in (
            ("class", line.text),
            ("adapter", line.text),
            ("session", line.text),
            ("think_s", line.number),
        ):
            if key in known:
                self.traits.setdefault(key, {})[row] = read(key)
        for key in ("turn", "priority"):
            if key in known:
                self.traits.setdefault(key, {})[row] = line.integer(key, 0)
        if "content" in known:
            self.traits.setdefault("content", {})[row] = _content(line)

    def build(self) -> tuple[Requests, Records]:
        """Return the columns in order of index."""
        size, requests, records = len(self.index), self.requests, self.records
        order = sorted(range(size), key=self.index.__getitem__)
        for row, next_row in zip(order, order[1:], strict=False):
            if self.index[row] == self.index[next_row]:
                raise InputError(f"{self.path}: index {self.index[row]} is there twice, must be unique")
        if self.visible.count(-1) < size:
            records.visible = self.visible
        if any(end == end for end in self.end_s):
            records.end_s = self.end_s
        if order != list(range(size)):
            place = dict(zip(order, range(size), strict=True))
            _reorder(requests, order)
            _reorder(records, order)
            self.homes = {name: array("i", map(column.__getitem__, order)) for name, column in self.homes.items()}
            self.stages = {name: array("d", map(column.__getitem__, order)) for name, column in self.stages.items()}
            self.ids = [self.ids[row] for row in order]
            for name in ("pieces", "preempted", "reason", "attempts", "extra"):
                setattr(records, name, {place[row]: value for row, value in getattr(records, name).items()})
            records.capped = {place[row] for row in records.capped}
            self.traits = {
                key: {place[row]: value for row, value in column.items()} for key, column in self.traits.items()
            }
        if self.ids != [str(row) for row in range(size)]:
            requests.ids = self.ids
        requests.class_names = self._trait("class", None)
        requests.adapters = self._trait("adapter", None)
        requests.sessions = self._trait("session", None)
        requests.content = self._trait("content", ())
        requests.priority = self._array("q", "priority", 0)
        requests.turns = self._array("q", "turn", 0)
        requests.think_s = self._array("d", "think_s", 0.0)
        return requests, records

    def _trait(self, key: str, absent: Any) -> list[Any] | None:
        known = self.traits.get(key)
        return None if known is None else [known.get(row, absent) for row in range(len(self))]

    def _array(self, typecode: Any, key: str, absent: float) -> Any:
        column = self._trait(key, absent)
        return None if column is None else array(typecode, column)


def _reorder(columns: Requests | Records, order: list[int]) -> None:
    for name in columns.__slots__:
        column = getattr(columns, name)
        if isinstance(column, array):
            setattr(columns, name, array(column.typecode, map(column.__getitem__, order)))
        elif isinstance(column, bytearray):
            setattr(columns, name, bytearray(map(column.__getitem__, order)))


def _content(line: Line) -> Content:
    segments = line.pairs("content")
    if any(type(stream) is not int or type(end) is not int for stream, end in segments):
        raise line.wrong("content", "a list of pairs of a stream and its end")
    return tuple(segments)
