"""One value of a trace at a time: when a request came, how many tokens it has, and what else a row may say of it.

Arrival times come in seconds, another unit, as epoch times or as ISO 8601; out come seconds from a start. What could be
understood in two ways is refused with the option that settles it: a clock that has been told no unit takes numbers as
seconds if the field says so, and recognises epoch times by their size.

Names are those of servesim's own JSONL, onto which formats with other names are mapped; a value of such a format is
checked under the name that its own file gives it. Knows no other row and no file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

from servesim.errors import InputError
from servesim.inputs import Object
from servesim.units import parse_count, parse_finite, shown
from servesim.workload.lengths import MAX_TOKENS
from servesim.workload.requests import MAX_SPAN_S, OPEN_END, TRAITS, Column, Content

TIME_UNITS: dict[str, float] = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # per second

_EPOCH_FROM_S, _EPOCH_TO_S = 1e9, 4.2e9  # 2001 to 2103: what a number must be between to be an epoch time in seconds
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,12}))?\s?(Z|z|UTC|([+-])(\d\d):?(\d\d))?", re.ASCII
)


class TraceClock:
    """Turns the times of one trace into seconds since its first row's moment (epoch, ISO) or since 0 (relative).

    `unit` is what the user said and `unit_of_field` what the field's name says, None where nobody said anything.
    `understood` tells how times were read, once there was one.
    """

    __slots__ = ("_base", "_scale", "_unit", "_unit_of_field", "field", "understood")

    def __init__(self, field: str, *, unit: str | None = None, unit_of_field: str | None = None) -> None:
        self.field = field
        self.understood: str | None = None
        self._unit = unit
        self._unit_of_field = unit_of_field
        self._scale = 1.0
        self._base: int | float | None = None  # the first row's time, in the trace's own unit; nanoseconds for ISO

    @property
    def is_absolute(self) -> bool:
        """Whether times are moments of the calendar, to be shifted so that the first is 0."""
        return self.understood is not None and not self.understood.startswith("relative")

    def seconds(self, value: object) -> float:
        """Return `value` in seconds; raise InputError for what is no time, or another kind than the first was."""
        if isinstance(value, str):
            nanoseconds = parse_iso(value)
            if nanoseconds is None:
                raise InputError(f"{self.field} is {shown(value)}, must be a number or an ISO 8601 time")
            if self.understood is None:
                self.understood, self._scale, self._base = "ISO 8601", 1e9, nanoseconds
            if self.understood != "ISO 8601" or self._base is None:
                raise InputError(f"{self.field} is {shown(value)}, but the rows before have numbers")
            return self._within((nanoseconds - self._base) / 1e9, value)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise InputError(f"{self.field} is {shown(value)}, must be a number")
        if not -1e30 < value < 1e30:  # false for NaN, too
            raise InputError(f"{self.field} is {shown(value)}, must be a finite number")
        if self.understood is None:
            self._understand(value)
        elif self.understood == "ISO 8601":
            raise InputError(f"{self.field} is {shown(value)}, but the rows before have ISO 8601 times")
        if self._base is None:
            if value < 0:
                raise InputError(f"{self.field} is {shown(value)}, must be 0 or more")
            return self._within(value / self._scale, value)
        return self._within((value - self._base) / self._scale, value)

    def _understand(self, value: int | float) -> None:
        """Decide from the first number of the trace what its unit is, and whether it is an epoch time."""
        epoch = next((u for u, scale in TIME_UNITS.items() if _EPOCH_FROM_S <= value / scale <= _EPOCH_TO_S), None)
        unit = self._unit or self._unit_of_field or epoch
        if unit is None:
            raise InputError(
                f"{self.field} is {shown(value)}, in an unknown unit; say it with --time-unit {', '.join(TIME_UNITS)}"
            )
        if self._unit is None and epoch not in (None, unit):
            raise InputError(
                f"{self.field} is {shown(value)}, which looks like an epoch time in {epoch}; "
                f"say so with --time-unit {epoch}, or --time-unit {unit} if it is none"
            )
        self._scale = TIME_UNITS[unit]
        if _EPOCH_FROM_S <= value / self._scale <= _EPOCH_TO_S:
            self._base = value
            self.understood = f"epoch {unit}"
        else:
            self.understood = f"relative {unit}"

    def _within(self, seconds: float, value: object) -> float:
        if not -MAX_SPAN_S <= seconds <= MAX_SPAN_S:
            raise InputError(
                f"{self.field} is {shown(value)}, read as {self.understood} more than ten years from the start; "
                f"say its unit with --time-unit {', '.join(TIME_UNITS)}"
            )
        return seconds


def parse_iso(text: str) -> int | None:
    """Return the nanoseconds since 1970 of an ISO 8601 time, UTC where it names no zone; None if it is none.

    >>> parse_iso("1970-01-01T00:00:01.5Z")
    1500000000
    """
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, _, sign, zone_hours, zone_minutes = match.groups()[6:]
    try:
        whole = int(datetime(year, month, day, hour, minute, min(second, 59), tzinfo=timezone.utc).timestamp())
    except ValueError:
        return None
    if second > 60:
        return None
    whole += second == 60  # a leap second
    if sign:
        offset = int(zone_hours) * 3600 + int(zone_minutes) * 60
        whole += offset if sign == "-" else -offset
    return whole * 10**9 + int((fraction or "0").ljust(9, "0")[:9])


Row = Mapping[str, Any]

TIME_FIELDS: dict[str, str | None] = {
    "arrival_s": "s",
    "arrival_ms": "ms",
    "arrival_us": "us",
    "arrival_ns": "ns",
    "timestamp": None,
}
"""Spellings of the arrival time, with the unit that the name says."""

HASHES = frozenset({"hash_ids", "hash_block_tokens"})
OPTIONAL_FIELDS = HASHES | {"id", "prefix", "prefix_tokens", *(column.key for column in TRAITS)}
_SHARING = frozenset({"prefix", "hash_ids", "content"})
_NEEDS = {
    "prefix_tokens": "prefix",
    "prefix": "prefix_tokens",
    "hash_block_tokens": "hash_ids",
    "hash_ids": "hash_block_tokens",
    **{column.key: column.needs for column in TRAITS if column.needs},
}
FIELDS = frozenset({*TIME_FIELDS, "prompt_tokens", "output_tokens", *OPTIONAL_FIELDS})

MAX_NAME = 200  # characters of an id, a session, a prefix, a class


class Extras(NamedTuple):
    """The optional fields of one row, checked; None (or 0) where it says nothing. (A tuple: there may be millions.)"""

    id: str | None
    prefix: tuple[str, int] | None  # name, tokens
    chain: tuple[list[int], int] | None  # hash ids, tokens per block
    content: Content | None  # segments, as `trace_lines` writes them
    session: str | None
    turn: int | None
    others: list[tuple[str, Any]]  # (column of `Requests`, value) of what stands for itself: a priority, a class, ...


def parse_tokens(row: Row, field: str) -> int:
    """Return a count of tokens; a whole number may be written 3.0."""
    if row.get(field) is None:
        raise InputError(f"{field} is {'null' if field in row else 'missing'}, must be 1 or more")
    return _whole(row, field, 1, MAX_TOKENS)


def parse_extras(row: Row, prompt_tokens: int) -> Extras:
    """Return the optional fields of `row`; a field that is null is one that is not there."""
    given = row.keys() & OPTIONAL_FIELDS
    if None in row.values():
        given = {field for field in given if row[field] is not None}
    if len(given & _SHARING) > 1:
        raise InputError(f"{' and '.join(sorted(given & _SHARING))} are given, of which a row has one")
    for field, needed in _NEEDS.items():
        if field in given and needed not in given:
            raise InputError(f"{field} is given without {needed}")
    prefix = chain = None
    if "prefix" in given:
        prefix = (_name(row, "prefix"), _whole(row, "prefix_tokens", 0, MAX_TOKENS))
        if prefix[1] > prompt_tokens:
            raise InputError(f"prefix_tokens is {prefix[1]}, must be at most prompt_tokens ({prompt_tokens})")
    if "hash_ids" in given:
        chain = parse_chain(row, prompt_tokens)
    return Extras(
        id=_name(row, "id") if "id" in given else None,
        prefix=prefix,
        chain=chain,
        content=_segments(row["content"], prompt_tokens) if "content" in given else None,
        session=_name(row, "session") if "session" in given else None,
        turn=_take_turn(row) if "turn" in given else None,
        others=[(name, value_of(row)) for key, name, value_of in _PLAIN if key in given] if given & _PLAIN_KEYS else [],
    )


def _whole(row: Row, field: str, minimum: int, maximum: int) -> int:
    value = row[field]
    if type(value) is int and minimum <= value <= maximum:
        return value
    if isinstance(value, str):
        raise InputError(f"{field} is {shown(value)}, must be a number, not text")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1 != 0:
        raise InputError(f"{field} is {shown(value)}, must be a whole number")
    return parse_count(value, field, minimum=minimum, maximum=maximum)


def _number(row: Row, field: str, maximum: float) -> float:
    if isinstance(row[field], str):
        raise InputError(f"{field} is {shown(row[field])}, must be a number, not text")
    return parse_finite(row[field], field, minimum=0.0, maximum=maximum)


def _name(row: Row, field: str) -> str:
    value = row[field]
    if isinstance(value, str) and 1 <= len(value) <= MAX_NAME and value.isprintable():
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**64:
        return str(value)
    raise InputError(f"{field} is {shown(value)}, must be 1 to {MAX_NAME} printable characters or a whole number")


def _checked(column: Column) -> Callable[[Row], Any]:
    """Return what takes the value of `column` from a row, checked by what the column says of itself."""
    key, low, high = column.key, column.low, column.high
    if column.kind == "text":
        return lambda row: _name(row, key)
    if column.kind == "number":
        return lambda row: _number(row, key, high)
    least, most = int(low), int(high)
    return lambda row: _whole(row, key, least, most)


PLAIN = tuple(each for each in TRAITS if each.key not in ("content", "session", "turn"))
"""Columns whose values mean nothing to other rows: they are checked, and kept as they are."""

_PLAIN = tuple((each.key, each.name, _checked(each)) for each in PLAIN)
_PLAIN_KEYS = frozenset(each.key for each in PLAIN)
(_take_turn,) = (_checked(each) for each in TRAITS if each.key == "turn")


def parse_chain(row: Row, prompt_tokens: int) -> tuple[list[int], int]:
    block_tokens = _whole(row, "hash_block_tokens", 1, MAX_TOKENS)
    hash_ids = row["hash_ids"]
    if not isinstance(hash_ids, list) or not {*map(type, hash_ids)} <= {int}:
        raise InputError(f"hash_ids is {shown(hash_ids)}, must be a list of whole numbers")
    if len(hash_ids) > -(-prompt_tokens // block_tokens):
        raise InputError(
            f"hash_ids has {len(hash_ids)} blocks of {block_tokens}, more than prompt_tokens ({prompt_tokens}) fill"
        )
    return hash_ids, block_tokens


def _segments(value: object, prompt_tokens: int) -> Content:
    """Return `[[stream, end], ...]` as content; the last end may be null: open, the output is in the stream."""
    wrong = InputError(f"content is {shown(value)}, must be [[stream, end token], ...] with rising ends in the prompt")
    if not isinstance(value, list):
        raise wrong
    segments: list[tuple[int, int]] = []
    before = 0
    for item in value:
        if not isinstance(item, list) or len(item) != 2 or type(item[0]) is not int or not 0 <= item[0] < 2**53:
            raise wrong
        end = OPEN_END if item[1] is None else item[1]
        if type(end) is not int or not (before < end <= prompt_tokens or (before < end == OPEN_END)):
            raise wrong
        segments.append((item[0], end))
        before = end
    return tuple(segments)


_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_DIGITS = 15  # of a whole number that is taken without looking twice


def token_count(value: object, field: str, *, minimum: int = 1) -> int:
    """Return a JSON value as a count of tokens; a whole number may be written 3.0."""
    if type(value) is int and minimum <= value <= MAX_TOKENS:
        return value
    if isinstance(value, str):
        raise InputError(f"{field} is {shown(value)}, must be a number, not text")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1 != 0:
        raise InputError(f"{field} is {'null' if value is None else shown(value)}, must be a whole number")
    if value < minimum:
        raise InputError(f"{field} is {shown(value)}, must be {minimum} or more")
    if value > MAX_TOKENS:
        raise InputError(f"{field} is {shown(value)}, must be at most {MAX_TOKENS}")
    return int(value)


def tokens_of(row: Object, field: str, *, minimum: int = 1) -> int:
    """Return the count of tokens in `field` of a JSON object."""
    value = row.get(field)
    if type(value) is int and minimum <= value <= MAX_TOKENS:
        return value
    if field not in row:
        raise InputError(f"{field} is missing")
    return token_count(value, field, minimum=minimum)


def cell_tokens(cell: str, column: str, *, minimum: int = 1) -> int:
    """Return the count of tokens in a cell of a table."""
    number = cell_number(cell)
    if number is None:
        raise InputError(f"{column} is {shown(cell)}, must be a whole number")
    return (
        number
        if type(number) is int and minimum <= number <= MAX_TOKENS
        else token_count(number, column, minimum=minimum)
    )


def cell_time(cell: str) -> int | float | str:
    """Return a cell's time as the clock takes it: a number where it is one, else the text."""
    number = cell_number(cell)
    return cell if number is None else number


def cell_number(cell: str) -> int | float | None:
    """Return the number in a cell, None where it has none; whole ones stay whole."""
    if len(cell) <= _DIGITS and cell.isdigit() and cell.isascii():
        return int(cell)
    cell = cell.strip()
    if not _NUMBER.fullmatch(cell):
        return None
    return float(cell) if "." in cell or "e" in cell.lower() or len(cell) > 40 else int(cell)
