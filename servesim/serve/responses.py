"""What answers look like: the JSON of vLLM 0.32, streamed and whole, field by field as captured.

A response format writes the events of one answer; each item of what it returns is one write of the server, and so one
HTTP chunk. A token's event is put together from prepared bytes, since that happens thousands of times a second.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

from servesim.serve.generation import Generation
from servesim.serve.tokenizer import PretendedText
from servesim.wire.sse import DONE

Json = dict[str, Any]
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
    """What every event of an answer repeats, and what it has to tell at its end."""

    id: str
    created: int
    model: str
    fingerprint: str
    prompt_tokens: int
    n: int = 1  # choices of each prompt
    choices: list[Choice] = field(default_factory=list)
    include_usage: bool = False
    continuous_usage: bool = False
    tell_cached: bool = False  # cached tokens are told in the usage

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


class VllmFormat:
    """What vLLM's two routes have in common."""

    object: ClassVar[str]
    chunk_object: ClassVar[str]
    content_type: ClassVar[str] = "text/event-stream; charset=utf-8"
    stream_fields: ClassVar[tuple[tuple[str, str], ...]] = ()
    usage_details: ClassVar[bytes] = b""  # at the end of a usage in the midst of a stream

    def __init__(self, context: Context) -> None:
        self.context = context

    def _event(self, body: Json) -> bytes:
        return b"data: %b\n\n" % encode(self._start(self.chunk_object) | body)

    def _start(self, kind: str) -> Json:
        context = self.context
        return {"id": context.id, "object": kind, "created": context.created, "model": context.model}

    def _usage_tail(self, made: int) -> bytes:
        prompt = self.context.prompt_tokens
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}}\n\n' % (
            prompt,
            prompt + made,
            made,
            self.usage_details,
        )

    def opening(self, choice: Choice) -> Writes:
        """Return what comes in front of a choice's first token."""
        return ()

    def _prepare(self, choice: Choice) -> None:
        """Fill in the head and the tail of the event of a token."""
        raise NotImplementedError

    def _last(self, choice: Choice) -> bytes:
        """Return the tail of the event of the last token."""
        raise NotImplementedError

    def token(self, choice: Choice, text: bytes) -> Writes:
        """Return the event of tokens with the JSON text `text`; of the last one, the choice's end is in it."""
        generation = choice.generation
        if not choice.head:
            self._prepare(choice)
        tail = self._last(choice) if generation.over else choice.tail
        end = self._usage_tail(generation.made) if self.context.continuous_usage else b"}\n\n"
        return (choice.head + text + tail + end,)

    def closing(self) -> Writes:
        """Return what comes behind the last choice's end."""
        if not self.context.include_usage:
            return (DONE,)
        usage = self.context.usage()
        if self.context.tell_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": self.context.cached_tokens}
        told = {"choices": [], "usage": usage, "system_fingerprint": self.context.fingerprint}
        return (self._event(told), DONE)

    def _choice(self, choice: Choice) -> Json:
        raise NotImplementedError

    def whole(self) -> bytes:
        """Return the answer in one."""
        context = self.context
        details = None
        if context.tell_cached:
            cached = context.cached_tokens
            details = {"cached_tokens": cached, "created_cache_tokens": None, "multimodal_tokens": None}
        usage = context.usage() | {"prompt_tokens_details": details, "completion_tokens_details": None}
        body = self._start(self.object) | {
            "choices": [self._choice(choice) for choice in context.choices],
            "service_tier": None,
            "system_fingerprint": context.fingerprint,
            "usage": usage,
        }
        return encode(body | self._whole_tail())

    def _whole_tail(self) -> Json:
        return {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


class VllmChat(VllmFormat):
    """`/v1/chat/completions`."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    usage_details = b',"completion_tokens_details":null'

    def opening(self, choice: Choice) -> Writes:
        delta = {"role": "assistant", "content": ""}
        body: Json = {"choices": [{"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}]}
        if self.context.continuous_usage:
            prompt = self.context.prompt_tokens
            usage = {"prompt_tokens": prompt, "total_tokens": prompt, "completion_tokens": 0}
            body["usage"] = usage | {"completion_tokens_details": None}
        return (self._event(body | {"prompt_token_ids": None, "prompt_text": None}),)

    def _prepare(self, choice: Choice) -> None:
        start = encode(self._start(self.chunk_object))[:-1]
        choice.head = b'data: %b,"choices":[{"index":%d,"delta":{"content":"' % (start, choice.index)
        choice.tail = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]'

    def _last(self, choice: Choice) -> bytes:
        reasons = choice.finish_reason.encode(), json.dumps(choice.speech.stopped_by).encode()
        return b'"},"logprobs":null,"finish_reason":"%b","stop_reason":%b,"token_ids":null}]' % reasons

    def _choice(self, choice: Choice) -> Json:
        message = {"role": "assistant", "content": choice.text(), "refusal": None, "annotations": None}
        message |= {"audio": None, "function_call": None, "reasoning": None}
        return {
            "index": choice.index,
            "message": message,
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.speech.stopped_by,
            "token_ids": None,
            "routed_experts": None,
        }

    def _whole_tail(self) -> Json:
        return {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None} | super()._whole_tail()


class VllmCompletion(VllmFormat):
    """`/v1/completions`."""

    object = chunk_object = "text_completion"

    def _prepare(self, choice: Choice) -> None:
        start = encode(self._start(self.chunk_object))[:-1]
        choice.head = b'data: %b,"choices":[{"index":%d,"text":"' % (start, choice.index)
        choice.tail = (
            b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
        )

    def _last(self, choice: Choice) -> bytes:
        reasons = choice.finish_reason.encode(), json.dumps(choice.speech.stopped_by).encode()
        told = b'","logprobs":null,"finish_reason":"%b","stop_reason":%b,' % reasons
        return told + b'"prompt_token_ids":null,"token_ids":null}]'

    def _choice(self, choice: Choice) -> Json:
        return {
            "index": choice.index,
            "text": choice.text(),
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.speech.stopped_by,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "routed_experts": None,
        }


def encode(value: object) -> bytes:
    """Return JSON as small as it can be written."""
    return json.dumps(value, separators=(",", ":")).encode()
