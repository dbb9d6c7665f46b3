"""What the events of one answer have said so far: when tokens came, what the server counted, whether it is the end.

Reads JSON, as little of it as it can, and knows neither requests nor records.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

from servesim.wire.events import EventFact, Usage, read_event
from servesim.wire.faults import ErrorFact
from servesim.wire.sse import Event

TEXT_FIELDS = (b'"content":"', b'"text":"', b'"content": "', b'"text": "')


class Template:
    """Reads events that differ from an earlier one only in one plain text: a stream's usual event, without its JSON.

    If the bytes before and after the text are the same, and the text is a JSON string without escapes, then so is all
    that a reader would find, but for the text. (20 times faster than the parser, and exact.)
    """

    __slots__ = ("_fits", "_head", "_tail")

    def __init__(self) -> None:
        self._fits = False
        self._head = self._tail = b""

    def learn(self, data: bytes, fact: EventFact) -> None:
        """Take an event that says nothing but its text as the pattern for those that follow."""
        self._fits = False
        if fact != EventFact(text=fact.text, choices=1) or not fact.text.isascii() or not fact.text.isprintable():
            return
        text = fact.text.encode("ascii")
        for field in TEXT_FIELDS:
            head, found, rest = data.partition(field + text + b'"')
            if found and b'"' not in text and b"\\" not in text and not any(f in head + rest for f in TEXT_FIELDS):
                self._head, self._tail, self._fits = head + field, b'"' + rest, True
                return

    def text(self, data: bytes) -> bytes | None:
        """Return the text of an event that follows the pattern, None of any other."""
        if not self._fits or not data.startswith(self._head) or not data.endswith(self._tail):
            return None
        text = data[len(self._head) : -len(self._tail)]
        if not text.isascii() or b'"' in text or b"\\" in text or not text.decode("ascii").isprintable():
            return None
        return text


class Answer:
    """What the events of one exchange have said so far."""

    __slots__ = (
        "_template",
        "done",
        "error",
        "finish_reason",
        "malformed",
        "pieces",
        "stamps",
        "timings",
        "usage",
        "visible",
    )

    def __init__(self, *, keep_text: bool = False) -> None:
        self.stamps = array("d")  # of token events
        self.pieces: list[str] | None = [] if keep_text else None  # of visible text
        self.visible = -1  # number of the first token event with visible text
        self.usage = Usage()
        self.finish_reason: str | None = None
        self.done = False
        self.error: ErrorFact | None = None
        self.timings: dict[str, Any] | None = None
        self.malformed = 0
        self._template = Template()

    @property
    def ended(self) -> bool:
        """Return whether the server said that this is the end."""
        return self.done or self.finish_reason is not None

    def read(self, events: Iterable[Event], reader: str) -> None:
        """Read events in order."""
        template_text, stamps = self._template.text, self.stamps
        for stamp, data, name in events:
            text = template_text(data) if name != "error" else None
            if text is None:
                self._take(read_event(data, reader, name), stamp, data)
            elif text:
                if self.visible < 0:
                    self.visible = len(stamps)
                stamps.append(stamp)
                if self.pieces is not None:
                    self.pieces.append(text.decode())

    def _take(self, fact: EventFact, stamp: float, data: bytes) -> None:
        if self.pieces is not None and fact.text:
            self.pieces.append(fact.text)
        if fact.is_token:
            if self.visible < 0 and fact.is_visible:
                self.visible = len(self.stamps)
            self.stamps.append(stamp)
            self._template.learn(data, fact)
        self.malformed += fact.malformed
        self.done = self.done or fact.done
        self.finish_reason = fact.finish_reason or self.finish_reason
        self.error = self.error or fact.error
        self.timings = fact.timings or self.timings
        if fact.usage is not None:
            self.usage = _later(self.usage, fact.usage)


def _later(old: Usage, new: Usage) -> Usage:
    """Return the newer count of everything that was counted: the last one wins."""
    if None not in (new.prompt_tokens, new.output_tokens, new.cached_tokens, new.reasoning_tokens):
        return new
    return Usage(
        prompt_tokens=old.prompt_tokens if new.prompt_tokens is None else new.prompt_tokens,
        output_tokens=old.output_tokens if new.output_tokens is None else new.output_tokens,
        cached_tokens=old.cached_tokens if new.cached_tokens is None else new.cached_tokens,
        reasoning_tokens=old.reasoning_tokens if new.reasoning_tokens is None else new.reasoning_tokens,
    )
