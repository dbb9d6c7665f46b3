"""What one event of a stream says, whichever API it comes from: a reader for every format, one `EventFact` out.

A reader takes the JSON object of one event, or of one whole answer that was not streamed, and fills an `EventFact`.
Absent, null and oddly typed fields say nothing; they are never an exception. Formats as in the API references of
OpenAI, vLLM, llama.cpp (tools/server/README.md), Ollama (docs/api.md) and TGI, and as seen in `fixtures/captures`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from servesim.wire.faults import ErrorFact, error_of

Json = dict[str, Any]
"""A JSON object as it is read or written at the border of an API."""
_NOTHING: Json = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The server's own token counts; None where it does not say."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None  # prompt tokens found in the prefix cache
    reasoning_tokens: int | None = None


@dataclass(slots=True, kw_only=True)
class EventFact:
    """What one event says. It is a token event (`is_token`) when it brings text of any kind, however little.

    Only the reader that fills it writes to it (a frozen one costs more to make than the JSON to parse).
    """

    text: str = ""  # visible to the reader: content, text, a refusal
    reasoning: str = ""  # generated, but thought rather than said
    tool: bool = False  # a piece of a tool or function call
    finish_reason: str | None = None  # the last one in the event, spelled as OpenAI does where there is a counterpart
    finished: tuple[int, ...] = ()  # indices of the choices that ended here
    choices: int = 0  # choices that the event speaks of
    done: bool = False  # the server said that this is the end: [DONE], `done`, `stop`, `response.completed`
    usage: Usage | None = None  # of the whole answer so far: the last one wins
    timings: dict[str, Any] | None = None  # the server's own measurements, under the server's names
    error: ErrorFact | None = None
    malformed: bool = False  # not the JSON that it should be; whatever could be read is in the other fields

    @property
    def is_token(self) -> bool:
        return bool(self.text or self.reasoning or self.tool)

    @property
    def is_visible(self) -> bool:
        return bool(self.text)


def read_event(data: bytes, reader: str = "chat", name: str = "") -> EventFact:
    """Read one event's data in the format that `reader` names; `name` is the event's type, where the stream gave one.

    >>> read_event(b'{"choices": [{"delta": {"content": "a"}}]}').text
    'a'
    """
    if data[:1] != b"{" and data.strip() == b"[DONE]":
        return EventFact(done=True)
    value, malformed = _load(data)
    if not isinstance(value, dict):
        value = value[0] if isinstance(value, list) and len(value) == 1 else None  # TGI wraps a whole answer so
        if not isinstance(value, dict):
            return EventFact(malformed=True)
    fact = EventFact(malformed=malformed)
    READERS[reader](value, fact)
    if fact.error is None:
        fact.error = error_of(value, named=name == "error")
    if fact.error is None and fact.finish_reason in ("error", "abort"):
        fact.error = ErrorFact(f"the server ended the answer with finish_reason {fact.finish_reason!r}", "aborted")
    return fact


def _load(data: bytes) -> tuple[Any, bool]:
    """Return the JSON value of `data` and whether it is malformed; a value that can be read anyway is read."""
    try:
        return json.loads(data.decode("utf-8")), False
    except (ValueError, RecursionError):
        pass
    try:  # raw control characters or broken UTF-8 inside a string
        return json.loads(data.decode("utf-8", "replace"), strict=False), True
    except (ValueError, RecursionError):
        return None, True


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else _NOTHING


def _objects(value: Any) -> Iterator[Json]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def _text(value: Any) -> str:
    """Return a field's text: a string, or the texts of a list of content parts."""
    if isinstance(value, str):
        return value
    if not value:
        return ""
    return "".join(_text(part.get("text")) for part in _objects(value))


def _count(source: Json, *names: str) -> int | None:
    """Return the first of these fields that holds a count."""
    for name in names:
        value = source.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**53:
            return int(value)
    return None


def read_usage(value: Any) -> Usage | None:
    """Read a usage object under OpenAI's old and new names and DeepSeek's; None when it counts nothing."""
    if not value or not isinstance(value, dict):
        return None
    source: Json = value
    prompt = _object(source.get("prompt_tokens_details") or source.get("input_tokens_details"))
    output = _object(source.get("completion_tokens_details") or source.get("output_tokens_details"))
    usage = Usage(
        prompt_tokens=_count(source, "prompt_tokens", "input_tokens"),
        output_tokens=_count(source, "completion_tokens", "output_tokens"),
        cached_tokens=_count({**source, **prompt}, "cached_tokens", "prompt_cache_hit_tokens"),
        reasoning_tokens=_count({**source, **output}, "reasoning_tokens"),
    )
    return None if usage.prompt_tokens is None and usage.output_tokens is None else usage


def _timings(measured: Json) -> dict[str, Any] | None:
    """Return the numbers among what a server has measured itself, under its own names."""
    return {
        name: value
        for name, value in measured.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    } or None


def _finish(fact: EventFact, index: int, reason: Any) -> None:
    if isinstance(reason, dict):  # SGLang's native form
        reason = reason.get("type")
    if isinstance(reason, str) and reason:
        fact.finish_reason = reason
        fact.finished += (index,)


def _read_message(message: Json, fact: EventFact) -> None:
    """Read a chat delta or message: the same names in both."""
    thought = ""
    for name, value in message.items():  # most hold one field: asking for each by name would cost more
        if not value:
            continue
        if name in ("content", "refusal"):
            fact.text += _text(value)
            thought = thought or "".join(_text(part.get("thinking")) for part in _objects(value))
        elif name in ("reasoning_content", "reasoning", "thinking"):
            thought = thought or _text(value)  # some servers send one thought under two names
        elif name in ("tool_calls", "function_call"):
            fact.tool = True
    fact.reasoning += thought


def _read_choices(value: Json, fact: EventFact) -> None:
    """Read chat completions and text completions, streamed or whole."""
    for position, choice in enumerate(_objects(value.get("choices"))):
        fact.choices += 1
        fact.text += _text(choice.get("text"))
        _read_message(_object(choice.get("delta") or choice.get("message")), fact)
        if choice.get("finish_reason"):
            index = _count(choice, "index")
            _finish(fact, position if index is None else index, choice["finish_reason"])
    fact.usage = read_usage(value.get("usage"))
    fact.timings = _timings(_object(value.get("timings")))


def _read_response(value: Json, fact: EventFact) -> None:
    """Read the responses API: its events are told apart by `type`; a whole answer is a `response` object."""
    kind = _text(value.get("type"))
    if kind.endswith(".delta"):
        fact.choices = 1
        delta = _text(value.get("delta"))
        if "reasoning" in kind:
            fact.reasoning = delta
        elif kind in ("response.output_text.delta", "response.refusal.delta"):
            fact.text = delta
        elif not kind.startswith("response.audio"):
            fact.tool = bool(delta)  # function, custom tool, MCP and code arguments
        return
    whole = value.get("object") == "response"
    response = value if whole else _object(value.get("response"))
    fact.usage = read_usage(response.get("usage"))
    fact.timings = _timings(_object(value.get("timings")))  # llama.cpp's
    if kind == "error":
        fact.error = error_of(value, named=True)
    elif kind == "response.failed" or response.get("status") == "failed":
        fact.error = error_of(response, named=True)
    status = response.get("status")
    if status in ("completed", "incomplete", "cancelled") and (whole or kind in _RESPONSE_ENDS):
        reason = _text(_object(response.get("incomplete_details")).get("reason"))
        _finish(fact, 0, {"max_output_tokens": "length", "": "stop"}.get(reason, reason))
        if status == "cancelled":
            fact.finish_reason = "abort"
        fact.done = True
    if whole:
        fact.choices = 1
        for item in _objects(value.get("output")):
            if item.get("type") == "reasoning":
                fact.reasoning += _text(item.get("content")) or _text(item.get("summary"))
            elif item.get("type") == "message":
                fact.text += _text(item.get("content"))
            else:
                fact.tool = True


_RESPONSE_ENDS = frozenset({"response.completed", "response.incomplete", "response.cancelled", "response.done"})
_LLAMACPP_STOPS = {"limit": "length", "eos": "stop", "word": "stop"}


def _read_llamacpp(value: Json, fact: EventFact) -> None:
    """Read llama.cpp's `/completion`: a token an event, then one event with `stop` and the counts."""
    fact.choices = 1
    fact.text = _text(value.get("content"))
    fact.timings = _timings(_object(value.get("timings")))
    if value.get("stop") is not True:
        return
    fact.done = True
    old = "length" if value.get("stopped_limit") is True else "stop"  # before `stop_type`
    _finish(fact, 0, _LLAMACPP_STOPS.get(_text(value.get("stop_type")), old))
    prompt, output = _count(value, "tokens_evaluated"), _count(value, "tokens_predicted")
    if prompt is not None or output is not None:
        # `tokens_cached` is what the slot holds by now, not what was found there.
        cached = _count(_object(value.get("timings")), "cache_n")
        fact.usage = Usage(prompt_tokens=prompt, output_tokens=output, cached_tokens=cached)


def _read_ollama(value: Json, fact: EventFact) -> None:
    """Read Ollama's `/api/chat` and `/api/generate` lines; durations stay nanoseconds under their own names."""
    fact.choices = 1
    fact.text = _text(value.get("response"))
    _read_message(_object(value.get("message")), fact)
    if value.get("done") is not True:
        return
    fact.done = True
    _finish(fact, 0, value.get("done_reason") or "stop")
    prompt, output = _count(value, "prompt_eval_count"), _count(value, "eval_count")
    if prompt is not None or output is not None:
        fact.usage = Usage(prompt_tokens=prompt, output_tokens=output)
    fact.timings = _timings({name: value[name] for name in value if name.endswith("_duration")})


_TGI_STOPS = {"eos_token": "stop", "stop_sequence": "stop"}


def _read_tgi(value: Json, fact: EventFact) -> None:
    """Read TGI's `/generate_stream` and `/generate`: the last token's event has the counts."""
    fact.choices = 1
    token = _object(value.get("token"))
    if token:
        fact.text = "" if token.get("special") is True else _text(token.get("text"))
    else:
        fact.text = _text(value.get("generated_text"))
    details = _object(value.get("details"))
    reason = details.get("finish_reason")
    _finish(fact, 0, _TGI_STOPS.get(reason, reason) if isinstance(reason, str) else None)
    fact.done = isinstance(value.get("generated_text"), str)
    prompt, output = _count(details, "input_length"), _count(details, "generated_tokens")
    if prompt is None and isinstance(details.get("prefill"), list) and details["prefill"]:
        prompt = len(details["prefill"])
    if prompt is not None or output is not None:
        fact.usage = Usage(prompt_tokens=prompt, output_tokens=output)


def _read_generate(value: Json, fact: EventFact) -> None:
    """Read the one JSON object of a plain `POST /generate`, with the latency that the server saw."""
    fact.choices = 1
    fact.text = _text(value.get("text"))
    fact.usage = read_usage(value)
    fact.timings = _timings({name: value[name] for name in ("latency_s", "tokens_per_second") if name in value})
    fact.done = "text" in value


READERS: dict[str, Callable[[Json, EventFact], None]] = {
    "chat": _read_choices,
    "completions": _read_choices,
    "responses": _read_response,
    "llamacpp": _read_llamacpp,
    "ollama": _read_ollama,
    "tgi": _read_tgi,
    "generate": _read_generate,
}
