"""What a trace format is: how a file's head gives it away, and how its lines become rows.

Rows have the field names of servesim's own JSONL (`fields`); an arrival in any other clock is `timestamp`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from servesim.errors import InputError
from servesim.inputs import InputFile, Object
from servesim.workload.traces.fields import Row

Item = TypeVar("Item")
Rows = Iterator[tuple[int, "Row | InputError"]]
"""(line, row or the InputError of a bad row), so that bad rows can be skipped."""

_KEY = re.compile(r'"([^"\\]{1,60})"\s*:')


class TraceHead:
    """The first 64 KiB of a file, looked at once: by its columns if it is a table, by its keys if it is JSON."""

    __slots__ = ("columns", "first", "keys", "text")

    def __init__(self, head: bytes) -> None:
        self.text = head.decode("utf-8", "replace").lstrip()
        line = self.text.partition("\n")[0]
        self.first: Object = {}  # the object on the first line, empty if there is none
        self.columns: frozenset[str] = frozenset()  # as `plain` has them
        self.keys: frozenset[str] = frozenset()  # of the first object; of any depth where it is longer than a line
        if not self.text.startswith(("{", "[")):
            self.columns = frozenset(plain(cell) for cell in line.split(","))
            return
        try:
            first = json.loads(line)
        except (ValueError, RecursionError):
            first = None
        if isinstance(first, dict):
            self.first = first
            self.keys = frozenset(first)
        else:
            self.keys = frozenset(_KEY.findall(self.text))


class TraceFacts:
    """What a format knows or finds out about a file beside its rows: its clock, and what a person should be told."""

    __slots__ = ("_left_out", "_notes", "time_field", "time_unit")

    def __init__(self) -> None:
        self.time_field: str | None = None  # what the file calls the arrival; None: what the row calls it
        self.time_unit: str | None = None  # the unit that the format lays down, a key of TIME_UNITS
        self._notes: dict[str, None] = {}
        self._left_out: dict[str, int] = {}

    def note(self, text: str) -> None:
        """Say `text` once, however often it is noted."""
        self._notes[text] = None

    def left_out(self, why: str) -> None:
        """Count one thing that is no request and no mistake, such as `failed requests (Response tokens is 0)`."""
        self._left_out[why] = self._left_out.get(why, 0) + 1

    @property
    def notes(self) -> list[str]:
        return [*self._notes, *(f"left out {count:,} {why}" for why, count in self._left_out.items())]


@dataclass(slots=True, frozen=True, kw_only=True)
class TraceFormat:
    """A trace format: one entry of `TRACE_FORMATS`."""

    summary: str
    recognises: Callable[[TraceHead], bool]
    rows: Callable[[InputFile, TraceFacts], Rows]


def map_rows(items: Iterable[tuple[int, Item | InputError]], parse: Callable[[Item], Row | None]) -> Rows:
    """Yield what `parse` makes of each item: a row, nothing where it returns None, a bad row where it raises."""
    for line, item in items:
        row: Row | InputError | None
        if isinstance(item, InputError):
            row = item
        else:
            try:
                row = parse(item)
            except InputError as error:
                row = error
        if row is not None:
            yield line, row


def plain(column: str) -> str:
    """Return the name of a column as it is compared: without case, blanks and underscores.

    >>> plain(" Session ID")
    'sessionid'
    """
    return "".join(column.lower().replace("_", "").split()).strip('"')
