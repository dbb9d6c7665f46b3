"""One sequence in the engine of a server, from the moment it was asked for to its last token."""

from __future__ import annotations

from typing import Protocol

from servesim.workload.requests import Content


class Reader(Protocol):
    """Whoever waits for a generation's tokens."""

    def receive(self, generation: Generation, first: int) -> None:
        """Take tokens [first, generation.made), which were just made; they are the last ones if it is `over`."""


class _Nobody:
    def receive(self, generation: Generation, first: int) -> None:
        """Let the tokens go."""


NOBODY = _Nobody()


class Generation:
    """What a client asked of the engine once, and how far it is. Wall times are seconds on the monotonic clock."""

    __slots__ = (
        "admitted_s",
        "arrived_s",
        "cached_tokens",
        "content",
        "first_s",
        "gone",
        "last_s",
        "made",
        "number",
        "preemptions",
        "priority",
        "prompt",
        "reader",
        "reason",
        "row",
        "target",
    )

    def __init__(self, *, number: int, prompt: int, target: int, arrived_s: float) -> None:
        self.reader: Reader = NOBODY
        self.number = number  # among the choices of its request
        self.prompt = prompt  # tokens
        self.target = target  # output tokens
        self.content: Content = ()
        self.priority = 0
        self.reason = "length"  # why it will end: its limit, or "stop"
        self.gone = False  # nobody waits for it any more
        self.row = -1  # in the engine's columns, while it is there
        self.made = 0  # output tokens handed to the reader
        self.cached_tokens = 0  # of the prompt, found in the prefix cache
        self.preemptions = 0
        self.arrived_s = arrived_s
        self.admitted_s = 0.0
        self.first_s = 0.0
        self.last_s = 0.0

    @property
    def over(self) -> bool:
        """Whether the reader has all its tokens."""
        return self.made == self.target
