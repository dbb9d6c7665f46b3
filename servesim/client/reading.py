"""What the events of a stream mean, read when there is time: from events as they came to a request's record.

The loop files events with their stamps; a `Reader` parses them in slices that the loop grants, the finished streams
first. What the events of one request have said so far (token stamps, usage, the end) is its `PartialAnswer`. Metrics
are not known here: the columns of a `Run` are filled.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from servesim.client.connection import Exchange
from servesim.runs.records import Outcome, Run
from servesim.wire.events import EventFact, Usage, read_event
from servesim.wire.faults import ErrorFact, error_from_body
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


class PartialAnswer:
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


EVENTS_A_STEP = 16  # between two looks at the clock
UNREAD_EVENTS = 64  # an answer that is not over is read when it has so many, for the room they take
INTERRUPTED = "interrupted"


class Reader:
    """Reads answers and files records. `filed` is called with the index of each request whose record is complete."""

    def __init__(
        self, run: Run, reader: str, start_s: float, filed: Callable[[int], None], *, keep_text: bool = False
    ) -> None:
        self._run = run
        self._reader = reader
        self._start_s = start_s
        self._filed = filed
        self._keep_text = keep_text
        self._answers: dict[Exchange, PartialAnswer] = {}
        self._ended: deque[Exchange] = deque()
        self._token_events = 0  # of what is filed
        self.errors = 0  # requests that failed, filed so far

    def take(self, exchange: Exchange) -> None:
        """Take an exchange that is over; its record is filed in due course."""
        self._ended.append(exchange)

    def think(self, until: float, in_flight: Iterable[Exchange] = ()) -> bool:
        """Read and file until the given monotonic time; return whether anything that is over is left."""
        while self._ended:
            exchange = self._ended[0]
            if self._read_some(exchange, exchange.events):
                self._ended.popleft()
                self.file(exchange)
            if time.monotonic() >= until:
                return bool(self._ended)
        for exchange in in_flight:
            if len(exchange.events) < UNREAD_EVENTS:
                continue
            ready = exchange.events[:-1]  # the last one says when the server was last heard
            del exchange.events[:-1]
            while not self._read_some(exchange, ready):
                if time.monotonic() >= until:
                    exchange.events[:0] = ready
                    return False
        return False

    def token_events(self, in_flight: Iterable[Exchange]) -> int:
        """Return how many tokens came so far; of answers that are not over, what is not read yet is taken for some."""
        begun = sum(len(answer.stamps) for answer in self._answers.values())
        return self._token_events + begun + sum(len(each.events) for each in chain(self._ended, in_flight))

    def outcome(self, exchange: Exchange) -> tuple[Outcome, str | None, str]:
        """Read the rest of an exchange that is over, now; return its outcome, the kind of failure and the message."""
        return judge(exchange, self.answer(exchange))

    def answer(self, exchange: Exchange) -> PartialAnswer:
        """Read the rest of an exchange that is over, now; return what its events have said."""
        answer = self._answer(exchange)
        answer.read(exchange.events, self._reader)
        exchange.events.clear()
        return answer

    def file(self, exchange: Exchange) -> None:
        """File the record of an exchange that is over."""
        answer = self._answer(exchange)
        self.outcome(exchange)
        del self._answers[exchange]
        self._token_events += len(answer.stamps)
        file_record(self._run, exchange, answer, self._start_s)
        self.errors += self._run.records.outcome[exchange.index] == Outcome.FAILED
        self._filed(exchange.index)

    def forget(self, exchange: Exchange) -> None:
        """Drop an attempt that another one follows."""
        self._answers.pop(exchange, None)

    def finish(self) -> None:
        """File all that is over."""
        while self._ended:
            self.file(self._ended.popleft())

    def _answer(self, exchange: Exchange) -> PartialAnswer:
        answer = self._answers.get(exchange)
        if answer is None:
            answer = self._answers[exchange] = PartialAnswer(keep_text=self._keep_text)
        return answer

    def _read_some(self, exchange: Exchange, events: list[Event]) -> bool:
        """Read a few of `events` and take them off; return whether none is left."""
        self._answer(exchange).read(events[:EVENTS_A_STEP], self._reader)
        del events[:EVENTS_A_STEP]
        return not events


def judge(exchange: Exchange, answer: PartialAnswer) -> tuple[Outcome, str | None, str]:
    """Return how an exchange stands: its outcome, the kind of failure, and a message where there is one.

    A stream that stops without `finish_reason` or an end mark is cut; one that is cut after it is whole.
    """
    failure = exchange.failure
    if failure == INTERRUPTED:
        return Outcome.UNFINISHED, failure, ""
    if failure not in (None, "stream_cut", "reset", "idle_timeout", "total_timeout"):
        return Outcome.FAILED, failure, exchange.message
    if exchange.status and not exchange.ok:
        fact = error_from_body(exchange.error_body)
        return Outcome.FAILED, f"http_{exchange.status}", fact.message
    if answer.error is not None:
        return Outcome.FAILED, "error_in_stream", answer.error.message
    if answer.ended:
        return Outcome.COMPLETED, None, ""
    if failure is None and exchange.non_stream:
        return Outcome.FAILED, "malformed", "the answer is not the JSON that was expected"
    return (
        Outcome.FAILED,
        failure or "stream_cut",
        exchange.message or "the stream ended without finish_reason or [DONE]",
    )


def file_record(run: Run, exchange: Exchange, answer: PartialAnswer, start_s: float) -> None:
    """Write what became of a request into the columns of `run`; times count from `start_s`."""
    records, index = run.records, exchange.index
    outcome, kind, message = judge(exchange, answer)
    records.outcome[index] = outcome
    if records.sent_s[index] != records.sent_s[index] and exchange.sent_s:  # NaN: the first attempt
        records.sent_s[index] = exchange.sent_s - start_s
    if answer.stamps:
        records.first[index] = len(run.times)
        run.times.extend([stamp - start_s for stamp in answer.stamps])
        records.last[index] = len(run.times) - 1
    if records.end_s is not None:
        records.end_s[index] = exchange.end_s - start_s
    if records.visible is not None and answer.visible >= 0:
        records.visible[index] = records.first[index] + answer.visible
    usage, requested = answer.usage, run.requests.output_tokens[index]
    estimated = usage.output_tokens is None
    output = len(answer.stamps) if usage.output_tokens is None else usage.output_tokens
    prompt = run.requests.prompt_tokens[index] if usage.prompt_tokens is None else usage.prompt_tokens
    records.prompt_tokens[index] = prompt
    records.output_tokens[index] = output
    records.cached_tokens[index] = -1 if usage.cached_tokens is None else usage.cached_tokens
    if outcome == Outcome.COMPLETED:
        if answer.finish_reason == "length" and output < requested:
            records.capped.add(index)
        elif answer.finish_reason not in ("stop", "length", None):
            records.reason[index] = answer.finish_reason
    elif kind is not None:
        records.reason[index] = kind
    extra = {
        "message": message or None,
        "status": exchange.status if exchange.status != 200 else None,
        "retry_after": exchange.headers.get("retry-after"),
        "estimated": estimated and bool(answer.stamps),
        "reasoning_tokens": usage.reasoning_tokens,
        "timings": answer.timings,
        "malformed_events": answer.malformed,
        "non_stream": exchange.non_stream,
        "unterminated": exchange.unterminated,
        "cut_after_end": exchange.failure is not None and outcome == Outcome.COMPLETED,
        "redirects": exchange.hops,
        "stale_reconnect": exchange.fresh,
        "upload_ms": _upload_ms(exchange),
    }
    said = {key: value for key, value in extra.items() if value}
    if said:
        records.extra[index] = said


def _upload_ms(exchange: Exchange) -> float | None:
    """Return how long the request took to go out, where the kernel did not take it all at once."""
    return (exchange.uploaded_s - exchange.sent_s) * 1000.0 if exchange.uploaded_s else None
