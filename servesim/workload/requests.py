"""The requests of a run as columns: a million of them are a handful of arrays, not a million objects.

A request is known by its index, which is also its submission number. What is unknown about content stays
unknown: tokens have no values here, only an identity by which two requests may share them.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass

Content = tuple[tuple[int, int], ...]
"""Shared content as segments `(stream, end_token)`: tokens [previous end, end) are those of stream number `stream`.

Two requests with the same leading segments have the same tokens there. What lies beyond the last segment (the rest of
the prompt, and the output) is the request's own and unlike any other. A segment that ends at `OPEN_END` takes in the
output too: a session's next turn can then hit it. A stream's segment begins at the same token in every request.
"""

OPEN_END = 1 << 60


@dataclass(slots=True, frozen=True, kw_only=True)
class Request:
    """One request as a person reads it; made on demand from the columns of `Requests`."""

    index: int
    id: str
    arrival_s: float | None  # None: decided by a completion (closed loop, a session's later turn)
    prompt_tokens: int
    output_tokens: int
    content: Content = ()
    priority: int = 0
    class_name: str | None = None
    adapter: str | None = None
    session: str | None = None
    turn: int | None = None
    think_s: float = 0.0


class Requests:
    """Columns of requests in submission order; optional columns are None when no request uses them."""

    __slots__ = (
        "adapters",
        "arrival_s",
        "class_names",
        "content",
        "ids",
        "output_tokens",
        "priority",
        "prompt_tokens",
        "sessions",
        "think_s",
        "turns",
    )

    def __init__(self) -> None:
        self.prompt_tokens = array("q")
        self.output_tokens = array("q")
        self.arrival_s = array("d")  # planned arrival in seconds from the run's start; NaN until it is known
        self.ids: list[str] | None = None  # None: the index in decimal
        self.content: list[Content] | None = None
        self.priority: array[int] | None = None  # lower is served first
        self.class_names: list[str | None] | None = None
        self.adapters: list[str | None] | None = None  # LoRA adapter by name; None: the base model
        self.sessions: list[str | None] | None = None
        self.turns: array[int] | None = None
        self.think_s: array[float] | None = None

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def id(self, index: int) -> str:
        return str(index) if self.ids is None else self.ids[index]

    def __getitem__(self, index: int) -> Request:
        arrival = self.arrival_s[index]
        return Request(
            index=index,
            id=self.id(index),
            arrival_s=None if math.isnan(arrival) else arrival,
            prompt_tokens=self.prompt_tokens[index],
            output_tokens=self.output_tokens[index],
            content=() if self.content is None else self.content[index],
            priority=0 if self.priority is None else self.priority[index],
            class_name=None if self.class_names is None else self.class_names[index],
            adapter=None if self.adapters is None else self.adapters[index],
            session=None if self.sessions is None else self.sessions[index],
            turn=None if self.turns is None else self.turns[index],
            think_s=0.0 if self.think_s is None else self.think_s[index],
        )
