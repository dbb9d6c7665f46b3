"""Lines of JSON, one object each, decoded at the least cost.

servesim's own JSONL, whose names every other format is mapped onto.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from servesim.errors import InputError
from servesim.inputs import InputFile, Object
from servesim.units import shown
from servesim.workload.traces.format import Rows, TraceFacts, TraceFormat, TraceHead


def json_fault(error: json.JSONDecodeError) -> str:
    """Return what is wrong with a text that is no JSON, without its place."""
    return f"not JSON: {error.msg.lower().removesuffix(' starting at')}"


class NotFiniteError(InputError):
    """A number that JSON does not have: NaN or an infinity."""


def no_constant(text: str) -> float:
    """Refuse NaN and the infinities, which Python's decoder would take."""
    raise NotFiniteError(f"{text} is no JSON, numbers must be finite")


_decoder = json.JSONDecoder(parse_constant=no_constant)
_decode, _begin = _decoder.decode, _decoder.raw_decode


def _unique(pairs: list[tuple[str, Any]]) -> Object:
    row = dict(pairs)
    if len(row) != len(pairs):
        names = [name for name, _ in pairs]
        raise InputError(f"{next(name for name in names if names.count(name) > 1)} is given twice")
    return row


_decode_unique = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=no_constant).decode


def parse_json_line(text: str, *, unique: bool = False) -> Object:
    """Return the object on one line; raise InputError for anything else, NaN among it.

    `unique` refuses a key that is given twice, for rows that people write by hand.
    """
    try:
        row = _decode_unique(text) if unique else _decode_line(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{json_fault(error)} at column {error.colno}") from None
    except RecursionError:
        raise InputError("not a row: nested too deeply") from None
    except NotFiniteError as error:
        raise _named(text) or error from None
    except ValueError:  # an integer of thousands of digits
        raise _named(text) or InputError("not a row: a number is too long") from None
    if not isinstance(row, dict):
        raise InputError(f"not a row: {shown(row)}, must be an object with its fields")
    return row


class _Unreadable(str):
    """What a number that is none is, in a row that is decoded only to say which field has it."""


def _readable(text: str) -> int | _Unreadable:
    return int(text) if len(text) < 4000 else _Unreadable(f"a number of {len(text):,} digits, which is too long")


def _not_finite(text: str) -> _Unreadable:
    return _Unreadable(f"{text}, must be finite")


_decode_marked = json.JSONDecoder(parse_constant=_not_finite, parse_int=_readable).decode


def _named(text: str) -> InputError | None:
    """Return what is wrong with a row that has a number which is none, with its field; None where that is not clear."""
    try:
        for field, value in _decode_marked(text).items():
            for wrong in _unreadable(value):
                return InputError(f"{field} {'is' if value is wrong else 'holds'} {wrong}")
    except (AttributeError, ValueError, RecursionError):  # no object; worse beyond it
        pass
    return None


def _unreadable(value: Any) -> Iterator[_Unreadable]:
    if isinstance(value, _Unreadable):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _unreadable(part)


def _decode_line(text: str) -> Any:
    """Decode a line without asking a regular expression where its blanks are; most begin and end with none."""
    if text.startswith("{"):
        row, end = _begin(text)
        if text[end:] in ("\n", ""):
            return row
    return _decode(text)


def json_objects(file: InputFile, *, unique: bool = False) -> Iterator[tuple[int, Object | InputError]]:
    """Yield (line, object or what is wrong with it) of every line."""
    for line, text in file.lines():
        try:
            yield line, text if isinstance(text, InputError) else parse_json_line(text, unique=unique)
        except InputError as error:
            yield line, error


def _recognises(head: TraceHead) -> bool:
    keys = head.first.keys()
    return bool(keys & {"prompt_tokens", "output_tokens"}) and not keys & {"completion_tokens", "input_tokens"}


def _rows(file: InputFile, facts: TraceFacts) -> Rows:
    return json_objects(file, unique=True)


NATIVE = TraceFormat(
    summary="JSON lines: arrival_s, prompt_tokens, output_tokens; prefixes, hashes, sessions, priorities, classes, "
    "adapters",
    recognises=_recognises,
    rows=_rows,
)
