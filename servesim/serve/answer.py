"""How one request for text is answered: its tokens, as the engine makes them, written to its connection.

A `ResponseFormat` writes the events of one answer; each item of what it returns is one write of the server, and so one
HTTP chunk. Faults that were drawn for the request happen here, at their share of the answer: for a while nothing is
sent, or the connection ends. What events look like is the dialect's business, when tokens come the engine clock's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from servesim.serve.connection import Connection
from servesim.serve.generation import Generation, InjectedFault
from servesim.serve.tokenizer import PretendedText
from servesim.wire.events import Json

Writes = tuple[bytes, ...]


@dataclass(slots=True)
class Choice:
    """One of the answers to a request: what it says, and how far it is."""

    index: int
    generation: Generation
    speech: PretendedText
    head: bytes = b""  # of the event of a token, up to its text
    tail: bytes = b""  # from behind it on

    @property
    def finish_reason(self) -> str:
        return self.generation.reason

    def text(self) -> str:
        """Return all of its text so far."""
        return self.speech.text(0, self.generation.made)


@dataclass(slots=True, kw_only=True)
class Context:
    """What every event of an answer repeats, and what its last one counts."""

    id: str
    created: int
    model: str
    fingerprint: str
    prompt_tokens: int
    n: int = 1  # choices of each prompt
    choices: list[Choice] = field(default_factory=list)
    include_usage: bool = False
    continuous_usage: bool = False
    report_cached: bool = False  # the usage has the cached tokens

    @property
    def completion_tokens(self) -> int:
        return sum(choice.generation.made for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        return sum(choice.generation.cached_tokens for choice in self.choices[:: self.n])

    def usage(self) -> Json:
        made = self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + made,
            "completion_tokens": made,
        }


def encode(value: object) -> bytes:
    """Return JSON as small as it can be written."""
    return json.dumps(value, separators=(",", ":")).encode()


class ResponseFormat(Protocol):
    """How an answer is written."""

    context: Context
    content_type: ClassVar[str]
    stream_fields: ClassVar[tuple[tuple[str, str], ...]]

    def opening(self, choice: Choice) -> Writes: ...
    def token(self, choice: Choice, text: bytes) -> Writes: ...
    def closing(self) -> Writes: ...
    def whole(self) -> bytes: ...


class Owner(Protocol):
    """Who started the answer and is called as it goes on."""

    def choice_over(self, answer: AnswerWriter, choice: Choice) -> None: ...
    def answer_over(self, answer: AnswerWriter, whole: bytes | None) -> None: ...
    def hang_up(self, answer: AnswerWriter, kind: str) -> None: ...
    def unsent(self, connection: Connection) -> None: ...
    def later(self, delay_s: float, call: Callable[[], None]) -> None: ...


class AnswerWriter:
    """Writes what the choices of one request say, streamed or whole."""

    __slots__ = (
        "_held",
        "_left",
        "_stall_s",
        "closed",
        "connection",
        "fate",
        "owner",
        "response_format",
        "stream",
        "total",
    )

    def __init__(
        self,
        owner: Owner,
        connection: Connection,
        response_format: ResponseFormat,
        *,
        stream: bool,
        fate: InjectedFault,
        stall_s: float,
    ) -> None:
        self.owner = owner
        self.connection = connection
        self.response_format = response_format
        self.stream = stream
        self.fate = fate
        self.closed = False
        self._stall_s = stall_s
        self._left = len(self.choices)
        self._held: list[bytes] | None = None  # while it stalls: what is not sent
        self.total = sum(choice.generation.target for choice in self.choices)

    @property
    def choices(self) -> list[Choice]:
        return self.response_format.context.choices

    @property
    def generations(self) -> list[Generation]:
        return [choice.generation for choice in self.choices]

    def receive(self, generation: Generation, first: int) -> None:
        """Take the tokens of one choice that were just made."""
        if self.closed:
            return
        choice = self.choices[generation.number]
        writes: Writes = ()
        if self.stream:
            writes = self.response_format.token(choice, choice.speech.json(first, generation.made))
            if not first:
                writes = self.response_format.opening(choice) + writes
        if generation.over:
            self._left -= 1
            self.owner.choice_over(self, choice)
            if not self._left and self.stream:
                writes += self.response_format.closing()
        if self.fate.stall_at is not None or self.fate.cut_at is not None:
            writes = self._apply_faults(writes)
            if self.closed:
                return
        if writes and not self.connection.write(writes):
            self.owner.hang_up(self, "slow")
            return
        if not self._left and self._held is None:
            self._finish()
        elif self.connection.wants_write:
            self.owner.unsent(self.connection)

    def _finish(self) -> None:
        self.closed = True
        if self.stream:
            self.connection.end()
        self.owner.answer_over(self, None if self.stream else self.response_format.whole())

    # Faults

    def _apply_faults(self, writes: Writes) -> Writes:
        """Apply the stall and the cut that are due and return what of `writes` is sent."""
        share = sum(choice.generation.made for choice in self.choices) / self.total
        if self.fate.cut_at is not None and share >= self.fate.cut_at:
            self.owner.hang_up(self, "cut")
            return ()
        if self._held is not None:
            self._held += writes
            return ()
        if self.fate.stall_at is not None and share >= self.fate.stall_at:
            self.fate = InjectedFault(cut_at=self.fate.cut_at)
            self._held = list(writes)
            self.owner.later(self._stall_s, self._resume)
            return ()
        return writes

    def _resume(self) -> None:
        if self.closed:
            return
        held, self._held = self._held, None
        if held and not self.connection.write(tuple(held)):
            self.owner.hang_up(self, "slow")
            return
        if not self._left:
            self._finish()
        elif self.connection.wants_write:
            self.owner.unsent(self.connection)
