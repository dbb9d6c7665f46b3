"""Reads a saved run back: the same `Run` as before, whoever made it, up to where its file was cut.

Three steps, one below the other: `Line` is one line and knows what a field of it must be; `Rows` puts the lines of
requests together into columns, in order of index; `read_saved` knows what the lines mean together. Every error names
file, line and field.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from operator import le
from typing import Any, TypeVar, cast, get_args, get_type_hints

from servesim.errors import InputError
from servesim.inputs import InputFile
from servesim.runs.as_json import is_optional
from servesim.runs.columns import OUTCOMES, RARE, RECORDS, REPLICA, REPLICA_PAIR, STAGES, TOKENS
from servesim.runs.records import (
    NAN,
    RECORD_COLUMNS,
    EngineTotals,
    GaugeSample,
    LinkTotals,
    Outcome,
    Records,
    ReplicaLife,
    ReplicaTotals,
    Run,
    ScalingTotals,
    Source,
    StepLog,
    TierTotals,
)
from servesim.runs.writer import SCHEMA
from servesim.units import MAX_COUNT, refuse_constant, shown, suggest
from servesim.workload.requests import REQUEST_COLUMNS, TRAITS, Column, Content, Requests

LONGEST_LINE = 64 * 2**20  # bytes; a request of a million token times is a third of it
LARGEST = 1e15  # of any time and figure, so that no arithmetic on them overflows


class Line:
    """One line: a JSON object, and where it stands."""

    __slots__ = ("fields", "where")

    def __init__(self, where: str, fields: dict[str, Any]) -> None:
        self.where = where
        self.fields = fields

    def wrong(self, key: str, remedy: str) -> InputError:
        """Return the error that says what `key` is and what it must be."""
        if key not in self.fields:
            return InputError(f"{self.where}: {key} is missing, must be {remedy}")
        return InputError(f"{self.where}: {key} is {shown(self.fields[key])}, must be {remedy}")

    def time(self, key: str) -> float:
        """Return a time in seconds, NaN where it is null or absent."""
        value = self.fields.get(key)
        if value is None:
            return math.nan
        if type(value) is not float and type(value) is not int:
            raise self.wrong(key, "a number of seconds or null")
        return self._float(key, value)

    def number(self, key: str) -> float:
        value = self.fields.get(key)
        if type(value) is not float and type(value) is not int:
            raise self.wrong(key, "a number")
        return self._float(key, value)

    def count(self, key: str, default: int | None = None, minimum: int = 0) -> int:
        """Return a whole number, `default` where it is null or absent and there is a default."""
        value = self.fields.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not minimum <= value <= MAX_COUNT:
            raise self.wrong(key, f"a whole number of {minimum} or more")
        return value

    def integer(self, key: str, default: int) -> int:
        value = self.fields.get(key, default)
        if type(value) is not int or abs(value) > MAX_COUNT:
            raise self.wrong(key, "a whole number")
        return value

    def flag(self, key: str) -> bool:
        value = self.fields.get(key, False)
        if type(value) is not bool:
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str) -> str:
        value = self.fields.get(key)
        if type(value) is not str:
            raise self.wrong(key, "a text")
        return value

    def table(self, key: str) -> dict[str, Any]:
        value = self.fields.get(key, {})
        if type(value) is not dict:
            raise self.wrong(key, "an object")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.fields.get(key, [])
        if type(value) is not list or any(type(item) is not str for item in value):
            raise self.wrong(key, "a list of texts")
        return value

    def times(self, key: str) -> list[float]:
        """Return a list of times in seconds that never falls."""
        value = self.fields.get(key)
        if type(value) is not list or any(type(item) not in (float, int) for item in value):
            raise self.wrong(key, "a list of numbers of seconds")
        times = [self._float(key, item) for item in value]
        if not all(map(le, times, times[1:])):
            raise InputError(f"{self.where}: {key} falls, must be a list of times in order")
        return times

    def numbers(self, key: str) -> list[float]:
        value = self.fields.get(key)
        if type(value) is not list or any(type(item) not in (float, int) for item in value):
            raise self.wrong(key, "a list of numbers")
        return [self._float(key, item) for item in value]

    def objects(self, key: str) -> list[Line]:
        """Return the objects of a list, each as a line of its own in the same place."""
        value = self.fields.get(key, [])
        if type(value) is not list or any(type(item) is not dict for item in value):
            raise self.wrong(key, "a list of objects")
        return [Line(self.where, item) for item in value]

    def counts(self, key: str) -> list[int]:
        value = self.fields.get(key)
        if type(value) is not list or any(type(item) is not int or not 0 <= item < 2**31 for item in value):
            raise self.wrong(key, "a list of whole numbers")
        return value

    def pairs(self, key: str) -> list[tuple[Any, Any]]:
        """Return a list of pairs of numbers, in which the second may be null."""
        value = self.fields.get(key, [])
        if type(value) is not list or not all(
            type(pair) is list
            and len(pair) == 2
            and type(pair[0]) in (int, float)
            and (pair[1] is None or type(pair[1]) in (int, float))
            for pair in value
        ):
            raise self.wrong(key, "a list of pairs of numbers")
        numbers = [number for pair in value for number in pair if number is not None]
        if not all(abs(number) <= (LARGEST if type(number) is float else 2**64) for number in numbers):
            raise self.wrong(key, f"a list of pairs of numbers of at most {LARGEST:g}")
        return [(first, second) for first, second in value]

    def _float(self, key: str, value: float) -> float:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not abs(number) <= LARGEST:
            raise self.wrong(key, f"a number of at most {LARGEST:g}")
        return number


def read_lines(path: str) -> Iterator[Line]:
    """Yield the lines of `path`, plain or gzip, up to where it was cut: a last line without its end that is no JSON.

    Raises `InputError` for a file that cannot be read and for a line that is wrong in itself.
    """
    with InputFile(path, may_be_cut=True) as file:
        yield from _parse(path, file)


def _parse(path: str, file: InputFile) -> Iterator[Line]:
    decode = json.JSONDecoder(parse_constant=refuse_constant).decode
    number = 0
    while True:
        raw = file.read_line(LONGEST_LINE)
        number += 1
        if not raw:
            return
        where = f"{path}:{number}"
        if len(raw) == LONGEST_LINE and not raw.endswith(b"\n"):
            raise InputError(f"{where}: the line is longer than {LONGEST_LINE // 2**20} MiB; is this a saved run?")
        try:
            fields = decode(raw.decode("utf-8").rstrip("\r\n"))
        except (ValueError, RecursionError) as error:
            if not raw.endswith(b"\n"):
                return
            cause = "not valid UTF-8" if isinstance(error, UnicodeDecodeError) else "not valid JSON"
            raise InputError(f"{where}: {cause}; a saved run has one JSON object a line") from None
        if type(fields) is not dict:
            raise InputError(f"{where}: the line is {shown(fields)}, must be a JSON object")
        yield Line(where, fields)


Take = Callable[[Line], Any]
Totals = TypeVar("Totals")


def _take(column: Column) -> Take:
    """Return what reads the value of `column` from a line, and raises `InputError` for one that it cannot have."""
    key, kind, low = column.key, column.kind, int(column.low)
    if kind == "seconds":
        return lambda line: line.time(key)
    if kind == "known count":
        return lambda line: line.count(key, default=-1)
    if kind == "count" or (kind == "integer" and low >= 0):
        return lambda line: line.count(key, minimum=low)
    return {
        "integer": lambda line: line.integer(key, 0),
        "number": lambda line: line.number(key),
        "text": lambda line: line.text(key),
        "flag": lambda line: line.flag(key),
        "object": lambda line: line.table(key),
        "outcome": _outcome,
        "content": _content,
        "pauses": _pauses,
    }[kind]


def _outcome(line: Line) -> Outcome:
    outcome = line.text("outcome")
    if outcome not in OUTCOMES:
        raise InputError(f"{line.where}: {suggest('outcome', outcome, OUTCOMES)}")
    return OUTCOMES[outcome]


def _content(line: Line) -> Content:
    segments = line.pairs("content")
    if any(type(stream) is not int or type(end) is not int for stream, end in segments):
        raise line.wrong("content", "a list of pairs of a stream and its end")
    return tuple(segments)


def _pauses(line: Line) -> list[tuple[float, float]]:
    return [(float(at), NAN if resumed is None else float(resumed)) for at, resumed in line.pairs("preempted")]


_READ = tuple((column.name, _take(column)) for column in RECORDS if column.kind != "token")
_RARE = tuple((column, _take(column)) for column in RARE)
_TRAITS = tuple((column, _take(column)) for column in TRAITS)
_SOMETIMES = frozenset(column.key for column in (*RARE, *TRAITS))
_FLEET = {column.key: (column, _take(column)) for column in (*REPLICA, *REPLICA_PAIR, *STAGES)}


class Rows:
    """The requests of a file, gathered line by line and then put in order of index.

    They come in whatever order they finished. Where indices are missing (a client that was killed never wrote the
    requests in flight) the rows close up; their ids stay.
    """

    def __init__(self, path: str, steps: StepLog, times: array[float]) -> None:
        self.path, self.steps, self.times = path, steps, times
        self.index = array("q")
        self.ids: list[str] = []
        self.requests, self.records = Requests(), Records(0)
        self.visible = array("q")
        self.fleet: dict[str, array[Any]] = {}
        self._read = [(take, getattr(self.records, name).append) for name, take in _READ]

    def __len__(self) -> int:
        return len(self.index)

    def add(self, line: Line) -> None:
        records, requests, row = self.records, self.requests, len(self.index)
        self.index.append(line.count("index"))
        self.ids.append(line.text("id"))
        for take, append in self._read:
            append(take(line))
        requests.prompt_tokens.append(line.count("asked_prompt_tokens", default=records.prompt_tokens[row]))
        requests.output_tokens.append(line.count("asked_output_tokens", default=records.output_tokens[row]))
        requests.arrival_s.append(line.time("arrival_s" if "arrival_s" in line.fields else "planned_s"))
        self._add_tokens(line, row)
        if not _SOMETIMES.isdisjoint(line.fields):
            for table, columns in ((records, _RARE), (requests, _TRAITS)):
                for column, take in columns:
                    if column.key in line.fields:
                        self._keep(table, column, row, take(line))
        if "prefill_replica" in line.fields:
            self._add_fleet(line, row, (*REPLICA_PAIR, *STAGES))
        elif "replica" in line.fields:
            self._add_fleet(line, row, REPLICA)

    @staticmethod
    def _keep(table: Requests | Records, column: Column, row: int, value: Any) -> None:
        """Keep what only some requests have a value of."""
        values = getattr(table, column.name)
        if isinstance(values, dict):
            values[row] = value
        elif isinstance(values, set):
            if value:
                values.add(row)
        else:
            if values is None:
                values = column.gather(())
                setattr(table, column.name, values)
            _fill(values, column, row)
            values.append(value)

    def _add_fleet(self, line: Line, row: int, columns: tuple[Column, ...]) -> None:
        """Take in which replicas served a request and when it passed from one to the other."""
        for column in columns:
            values = self.fleet.setdefault(column.key, column.gather(()))
            _fill(values, column, row)
            values.append(_FLEET[column.key][1](line))

    def _add_tokens(self, line: Line, row: int) -> None:
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
                records.slices[row] = slices
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

    def build(self) -> tuple[Requests, Records]:
        """Return the columns in order of index."""
        size, requests, records = len(self.index), self.requests, self.records
        order = sorted(range(size), key=self.index.__getitem__)
        for row, next_row in zip(order, order[1:], strict=False):
            if self.index[row] == self.index[next_row]:
                raise InputError(f"{self.path}: index {self.index[row]} is there twice, must be unique")
        if self.visible.count(-1) < size:
            records.visible = self.visible
        if records.end_s is not None and not any(end == end for end in records.end_s):
            records.end_s = None
        for table, columns in ((requests, TRAITS), (records, RARE)):
            for column in columns:
                values = getattr(table, column.name)
                if isinstance(values, (list, array)):
                    _fill(values, column, size)
        for key, values in self.fleet.items():
            _fill(values, _FLEET[key][0], size)
        if order != list(range(size)):
            place = dict(zip(order, range(size), strict=True))
            for table, columns in ((requests, REQUEST_COLUMNS), (records, (*RECORD_COLUMNS, *TOKENS))):
                for column in columns:
                    if column.name:
                        setattr(table, column.name, _reordered(getattr(table, column.name), order, place))
            self.fleet = {key: _reordered(values, order, place) for key, values in self.fleet.items()}
            self.ids = [self.ids[row] for row in order]
        if self.ids != [str(row) for row in range(size)]:
            requests.ids = self.ids
        return requests, records

    def of_fleet(self, columns: Sequence[Column]) -> dict[str, array[Any]]:
        """Return those of `columns` that the file has, by their names."""
        return {column.name: self.fleet[column.key] for column in columns if column.key in self.fleet}


def _fill(values: Any, column: Column, size: int) -> None:
    """Give the rows up to `size` that have no value yet the one that stands for none."""
    if len(values) < size:
        values.extend([column.absent] * (size - len(values)))


def _reordered(values: Any, order: list[int], place: dict[int, int]) -> Any:
    """Return a column with its rows in `order`; `place` is where each row goes."""
    if isinstance(values, array):
        return array(values.typecode, map(values.__getitem__, order))
    if isinstance(values, bytearray):
        return bytearray(map(values.__getitem__, order))
    if isinstance(values, dict):
        return {place[row]: value for row, value in values.items()}
    if isinstance(values, set):
        return {place[row] for row in values}
    return None if values is None else list(map(values.__getitem__, order))


_SCHEMA_NAME, _SCHEMA_NUMBER = SCHEMA.split("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """A run and what its file says around it; `whole` is False where the run or its file ended early."""

    path: str
    command: str
    version: str
    whole: bool
    run: Run


def read_run(path: str) -> Run:
    """Return the run saved in `path`; `partial` where the run or its file ended early. Raises `InputError`."""
    return read_saved(path).run


def read_saved(path: str) -> SavedRun:
    """Return the run saved in `path` with the facts of its header. Raises `InputError` in one line."""
    lines = read_lines(path)
    header = _check_header(path, next(lines, None))
    steps = StepLog()
    times: array[float] = array("d")
    rows, warmup_rows = Rows(path, steps, times), Rows(path, steps, times)
    engine, gauges, footer, facts = None, [], None, None
    replicas: list[ReplicaTotals] = []
    link: LinkTotals | None = None
    for line in lines:
        if footer is not None:
            raise InputError(f"{line.where}: the run ended on the line before; is this two files in one?")
        kind = line.fields.get("kind")
        if kind == "request":
            rows.add(line)
        elif kind == "warmup":
            warmup_rows.add(line)
        elif kind == "steps":
            _add_steps(steps, line)
        elif kind == "gauge":
            gauges.append(_totals(line, GaugeSample))
        elif kind == "engine":
            engine = _totals(line, EngineTotals)
        elif kind == "facts":
            facts = line
        elif kind == "replica":
            replicas.append(_totals(line, ReplicaTotals))
        elif kind == "link":
            link = _totals(line, LinkTotals)
        elif kind == "footer":
            footer = line
        else:
            raise line.wrong("kind", "request, warmup, steps, gauge, engine, facts, replica, link or footer")
    requests, records = rows.build()
    run = Run(
        source=_source(header),
        requests=requests,
        records=records,
        times=_all_times(steps, times),
        config=header.table("config"),
        steps=steps if len(steps) else None,
        engine=engine,
        gauges=gauges,
        setup=header.table("setup"),
        replicas=replicas,
        replica_of=rows.of_fleet((*REPLICA, *REPLICA_PAIR)),
        stages=rows.of_fleet(STAGES),
        link=link,
    )
    if facts is not None:
        _add_facts(run, facts)
    if len(warmup_rows):
        warmup_requests, warmup_records = warmup_rows.build()
        run.warmup = Run(run.source, warmup_requests, warmup_records, run.times, run.config, steps=run.steps)
    whole = footer is not None and _add_footer(run, footer, len(records))
    if footer is None:
        run.warnings.append(f"{path} was cut: {len(records):,} requests were read, those behind the cut are lost")
    run.partial = not whole
    return SavedRun(path=path, command=header.text("command"), version=header.text("servesim"), whole=whole, run=run)


def _source(header: Line) -> Source:
    source = header.text("source")
    if source not in get_args(Source):
        raise header.wrong("source", "simulated or measured")
    return cast(Source, source)


def _check_header(path: str, line: Line | None) -> Line:
    if line is None:
        raise InputError(f"{path}: no header, must be a saved run (--save)")
    name, _, number = str(line.fields.get("schema")).partition("/")
    if line.fields.get("kind") != "header" or name != _SCHEMA_NAME:
        raise InputError(f"{line.where}: no header of a saved run; schema is {shown(line.fields.get('schema'))}")
    if number != _SCHEMA_NUMBER:
        raise InputError(f"{line.where}: schema is {name}/{number}, this version of servesim reads {SCHEMA}")
    for key in ("source", "command", "servesim"):
        line.text(key)
    line.table("config")
    line.table("setup")
    return line


def _add_steps(steps: StepLog, line: Line) -> None:
    if line.count("from") != len(steps):
        raise line.wrong("from", f"{len(steps)}, where the lines before it end")
    end_s = line.times("end_s")
    for key, column in (
        ("decodes", steps.decodes),
        ("prefill_tokens", steps.prefill_tokens),
        ("kv_blocks", steps.kv_blocks),
    ):
        counts = line.counts(key)
        if counts and len(counts) != len(end_s):
            raise InputError(f"{line.where}: {key} has {len(counts)} values, must have {len(end_s)} as end_s has")
        column.extend(counts)
    steps.end_s.extend(end_s)
    for step, start_s in line.pairs("starts"):
        if type(step) is not int or not 0 <= step < len(steps) or start_s is None:
            raise line.wrong("starts", "a list of pairs of a step number and its start")
        steps.starts[step] = float(start_s)


def _all_times(steps: StepLog, times: array[float]) -> array[float]:
    """Return the ends of the steps and, behind them, the times that are in no step."""
    return steps.end_s + times if len(steps) and len(times) else steps.end_s if len(steps) else times


@cache
def _takes(kind: type) -> tuple[tuple[str, bool, Callable[[Line, str], Any]], ...]:
    """Return for each field of a dataclass its name, whether it may be absent, and what reads it from a line."""
    hints = get_type_hints(kind)
    return tuple((each.name, is_optional(each), _BY_HINT[hints[each.name]]) for each in fields(kind))


def _totals(line: Line, kind: type[Totals]) -> Totals:
    """Return a line, or an object in one, as a dataclass of numbers and texts."""
    takes: Iterable[tuple[str, bool, Callable[[Line, str], Any]]] = _takes(kind)  # type: ignore[arg-type]
    return kind(**{name: take(line, name) for name, optional, take in takes if not optional or name in line.fields})


def _lives(line: Line, key: str) -> list[ReplicaLife]:
    return [_totals(each, ReplicaLife) for each in line.objects(key)]


_BY_HINT: dict[Any, Callable[[Line, str], Any]] = {
    int: Line.count,
    float: Line.number,
    str: Line.text,
    int | None: lambda line, key: None if line.fields.get(key) is None else line.count(key),
    float | None: lambda line, key: None if line.fields.get(key) is None else line.number(key),
    list[float]: Line.numbers,
    list[ReplicaLife]: _lives,
}


def _add_facts(run: Run, line: Line) -> None:
    run.offload = [_totals(each, TierTotals) for each in line.objects("offload")]
    scaling = line.table("scaling")
    run.scaling = _totals(Line(line.where, scaling), ScalingTotals) if scaling else None
    run.usage = line.table("usage") or None


def _add_footer(run: Run, footer: Line, requests: int) -> bool:
    """Take over what the footer says; return whether the run was whole."""
    if footer.count("requests") != requests:
        raise footer.wrong("requests", f"{requests}, the number of requests before it")
    run.warnings.extend(footer.texts("warnings"))
    run.violations.extend(footer.texts("violations"))
    run.setup = footer.table("setup") or run.setup
    run.client = footer.table("client") or None
    run.server = footer.table("server") or None
    return footer.flag("whole")
