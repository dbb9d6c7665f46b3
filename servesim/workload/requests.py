"""The requests of a run as columns: a million of them are a handful of arrays, not a million objects.

A request is known by its index, which is also its submission number. What is unknown about content stays
unknown: tokens have no values here, only an identity by which two requests may share them.

A column is declared once, as a field of `Requests` (or of `runs.records.Records`): its name, what it is called in a
line of JSON, its type, what a request has that says nothing, its bounds. Trace formats, the saved run's writer and
reader and the JSON Schemas read that declaration.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

Content = tuple[tuple[int, int], ...]
"""Shared content as segments `(stream, end_token)`: tokens [previous end, end) are those of stream number `stream`.

Two requests with the same leading segments have the same tokens there. What lies beyond the last segment (the rest of
the prompt, and the output) is the request's own and unlike any other. A segment that ends at `OPEN_END` takes in the
output too: a session's next turn can then hit it. A stream's segment begins at the same token in every request.
"""

OPEN_END = 1 << 60

MAX_SPAN_S = 10 * 366 * 86400.0  # of a trace, and of a pause in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One fact about every request: `name` is the field that holds it, `key` its name in a line of JSON.

    `kind` is what a value is: a count, an integer, a number, seconds (NaN where unknown), a text; `runs.columns` lists
    them. `absent` is the value of a request of which nothing is known. A column that is `optional` is None, or an empty
    dict or set, as long as no request has a value; its key is left out of a line that has none.
    """

    name: str
    key: str
    kind: str
    about: str = ""
    typecode: str = ""  # of its array; "": a list, or whatever its field's own default is
    absent: Any = None
    optional: bool = False
    needs: str = ""  # the key without which this one means nothing
    low: float = 0  # bounds of what a trace may say
    high: float = 10**9

    def gather(self, values: Iterable[Any]) -> Any:
        """Return `values` as this column holds them."""
        return array(self.typecode, values) if self.typecode else list(values)


def column(kind: str, typecode: str, about: str = "", *, key: str = "", absent: Any = None) -> Any:
    """Declare the field of a column that has a value for every request."""
    made = Column(name="", key=key, kind=kind, typecode=typecode, about=about, absent=absent)
    return field(default_factory=lambda: array(typecode), metadata={"column": made})


def optional(kind: str, typecode: str = "", about: str = "", *, key: str = "", absent: Any = None, **more: Any) -> Any:
    """Declare the field of a column that is None as long as no request has a value."""
    made = Column(name="", key=key, kind=kind, typecode=typecode, about=about, absent=absent, optional=True, **more)
    return field(default=None, metadata={"column": made})


def columns_of(table: type) -> tuple[Column, ...]:
    """Return the columns that the fields of `table` declare, in their order."""
    declared = [(each.name, each.metadata["column"]) for each in fields(table) if "column" in each.metadata]
    return tuple(replace(made, name=name, key=made.key or name) for name, made in declared)


@dataclass(slots=True, eq=False, repr=False)
class Requests:
    """Columns of requests in submission order."""

    prompt_tokens: array[int] = column("count", "q")
    output_tokens: array[int] = column("count", "q")
    arrival_s: array[float] = column("seconds", "d")  # planned, from the run's start; NaN until a completion decides it
    ids: list[str] | None = optional("text", key="id")  # None: the index in decimal
    content: list[Content] | None = optional("content", absent=())
    priority: array[int] | None = optional("integer", "q", absent=0, low=-(2**31), high=2**31)  # lower is served first
    class_names: list[str | None] | None = optional("text", key="class")
    adapters: list[str | None] | None = optional("text", key="adapter")  # LoRA adapter by name; None: the base model
    sessions: list[str | None] | None = optional("text", key="session")
    turns: array[int] | None = optional("integer", "q", key="turn", absent=0, needs="session", low=1)
    think_s: array[float] | None = optional("number", "d", absent=0.0, needs="session", high=MAX_SPAN_S)

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def id(self, index: int) -> str:
        return str(index) if self.ids is None else self.ids[index]


REQUEST_COLUMNS = columns_of(Requests)

TRAITS = tuple(each for each in REQUEST_COLUMNS if each.optional and each.name != "ids")
"""What a request may have beside its id, its arrival and its lengths."""


def rows_of(requests: Requests, indices: Sequence[int]) -> Requests:
    """Return the requests at `indices`, in that order; what they share is numbered as it was."""
    chosen = Requests()
    for each in REQUEST_COLUMNS:
        values = getattr(requests, each.name)
        if values is not None:
            setattr(chosen, each.name, each.gather(map(values.__getitem__, indices)))
    return chosen


def of_session(what: Column) -> bool:
    """Return whether a column says which session a request belongs to, or what its place in it means."""
    return "session" in (what.key, what.needs)


def trait(requests: Requests, what: Column, index: int) -> Any:
    """Return what request `index` has in an optional column, the column's `absent` where nobody has anything."""
    values = getattr(requests, what.name)
    return what.absent if values is None else values[index]
