"""What one row of a trace may say, field by field, each checked in one place. Knows no other row and no file.

Names are those of servesim's own JSONL; formats with other names are mapped onto them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from servesim.errors import InputError
from servesim.units import parse_count, parse_finite, shown
from servesim.workload.lengths import MAX_TOKENS
from servesim.workload.requests import OPEN_END, Content
from servesim.workload.times import MAX_SPAN_S

Row = Mapping[str, Any]

TIME_FIELDS: dict[str, str | None] = {
    "arrival_s": "s",
    "arrival_ms": "ms",
    "arrival_us": "us",
    "arrival_ns": "ns",
    "timestamp": None,
}
"""Spellings of the arrival time, with the unit that the name says."""

OPTIONAL_FIELDS = frozenset(
    {
        "id",
        "prefix",
        "prefix_tokens",
        "hash_ids",
        "hash_block_tokens",
        "content",
        "session",
        "turn",
        "think_s",
        "priority",
        "class",
        "adapter",
    }
)
HASHES = frozenset({"hash_ids", "hash_block_tokens"})
_SHARING = frozenset({"prefix", "hash_ids", "content"})
_NEEDS = {
    "prefix_tokens": "prefix",
    "prefix": "prefix_tokens",
    "hash_block_tokens": "hash_ids",
    "hash_ids": "hash_block_tokens",
    "turn": "session",
    "think_s": "session",
}
FIELDS = frozenset({*TIME_FIELDS, "prompt_tokens", "output_tokens", *OPTIONAL_FIELDS})

MAX_NAME = 200  # characters of an id, a session, a prefix, a class


class Extras(NamedTuple):
    """The optional fields of one row, checked; None (or 0) where it says nothing. (A tuple: there may be millions.)"""

    id: str | None
    prefix: tuple[str, int] | None  # name, tokens
    chain: tuple[list[int], int] | None  # hash ids, tokens per block
    content: Content | None  # segments, as `write_trace` writes them
    session: str | None
    turn: int | None
    think_s: float
    priority: int
    class_name: str | None
    adapter: str | None


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
        turn=_whole(row, "turn", 1, 10**9) if "turn" in given else None,
        think_s=_number(row, "think_s", MAX_SPAN_S) if "think_s" in given else 0.0,
        priority=_whole(row, "priority", -(2**31), 2**31) if "priority" in given else 0,
        class_name=_name(row, "class") if "class" in given else None,
        adapter=_name(row, "adapter") if "adapter" in given else None,
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
