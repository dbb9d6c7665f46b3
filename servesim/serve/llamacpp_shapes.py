"""What answers of llama.cpp look like, field by field as captured: `timings` come unasked.

The role and the first token come in one write, and so do the finish and the usage.
"""

from __future__ import annotations

from typing import ClassVar

from servesim.serve.shapes import Choice, Context, Json, Writes, encode
from servesim.wire.sse import DONE

BUILD = "b0-servesim"


class LlamaCppShape:
    """What llama.cpp's routes have in common."""

    content_type: ClassVar[str] = "text/event-stream"
    stream_fields: ClassVar[tuple[tuple[str, str], ...]] = (("x-accel-buffering", "no"),)

    def __init__(self, context: Context) -> None:
        self.context = context

    def _timings(self) -> Json:
        """Return the times of the first choice; llama.cpp tells those of a slot."""
        generation = self.context.choices[0].generation
        cached, made = generation.cached_tokens, generation.made
        computed = max(1, generation.prompt - cached)
        prompt_ms = max(1e-3, (generation.first_s - generation.admitted_s) * 1e3)
        predicted_ms = max(1e-3, (generation.last_s - generation.first_s) * 1e3)
        return {
            "cache_n": cached,
            "prompt_n": computed,
            "prompt_ms": round(prompt_ms, 3),
            "prompt_per_token_ms": prompt_ms / computed,
            "prompt_per_second": computed / prompt_ms * 1e3,
            "predicted_n": made,
            "predicted_ms": round(predicted_ms, 3),
            "predicted_per_token_ms": predicted_ms / max(1, made - 1),
            "predicted_per_second": max(1, made - 1) / predicted_ms * 1e3,
        }

    def _usage(self) -> Json:
        usage = {"completion_tokens": self.context.completion_tokens} | self.context.usage()
        return usage | {"prompt_tokens_details": {"cached_tokens": self.context.cached_tokens}}

    def _identity(self, kind: str) -> Json:
        context = self.context
        identity = {"created": context.created, "id": context.id, "model": context.model}
        return identity | {"system_fingerprint": BUILD, "object": kind}

    def _end(self, chunk: Json, usage: Json) -> Writes:
        """Return the last writes: the finish, and the usage if it was asked for; the timings are in the last."""
        if not self.context.include_usage:
            return (event(chunk | {"timings": self._timings()}), DONE)
        return (event(chunk) + event(usage | {"usage": self._usage(), "timings": self._timings()}), DONE)


class LlamaCppChat(LlamaCppShape):
    """`/v1/chat/completions`."""

    def _chunk(self, choice: Choice, delta: Json, reason: str | None) -> Json:
        told = {"finish_reason": reason, "index": choice.index, "delta": delta}
        return {"choices": [told]} | self._identity("chat.completion.chunk")

    def opening(self, choice: Choice) -> Writes:
        return ()

    def token(self, choice: Choice, text: bytes) -> Writes:
        first = b""
        if not choice.head:
            first = event(self._chunk(choice, {"role": "assistant", "content": None}, None))
            mark = encode(self._chunk(choice, {"content": "\0"}, None))
            choice.head, choice.tail = (b"data: " + mark + b"\n\n").split(b"\\u0000")
        writes: Writes = (first + choice.head + text + choice.tail,)
        if choice.generation.over and choice.index < len(self.context.choices) - 1:
            writes += (event(self._chunk(choice, {}, choice.finish_reason)),)
        return writes

    def closing(self) -> Writes:
        last = self.context.choices[-1]
        usage: Json = {"choices": []} | self._identity("chat.completion.chunk")
        return self._end(self._chunk(last, {}, last.finish_reason), usage)

    def whole(self) -> bytes:
        choices = [
            {
                "finish_reason": choice.finish_reason,
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.text()},
            }
            for choice in self.context.choices
        ]
        body = {"choices": choices} | self._identity("chat.completion")
        return encode(body | {"usage": self._usage(), "timings": self._timings()})


class LlamaCppCompletion(LlamaCppShape):
    """`/v1/completions`."""

    def _choice(self, choice: Choice, text: str, reason: str | None) -> Json:
        return {"text": text, "index": choice.index, "logprobs": None, "finish_reason": reason}

    def opening(self, choice: Choice) -> Writes:
        return ()

    def token(self, choice: Choice, text: bytes) -> Writes:
        if not choice.head:
            mark = encode({"choices": [self._choice(choice, "\0", None)]} | self._identity("text_completion"))
            choice.head, choice.tail = (b"data: " + mark + b"\n\n").split(b"\\u0000")
        return (choice.head + text + choice.tail,)

    def closing(self) -> Writes:
        ends = [self._choice(choice, "", choice.finish_reason) for choice in self.context.choices]
        body: Json = {"choices": ends} | self._identity("text_completion")
        if self.context.include_usage:
            body["usage"] = self._usage()
        return (event(body | {"timings": self._timings()}), DONE)

    def whole(self) -> bytes:
        choices = [self._choice(choice, choice.text(), choice.finish_reason) for choice in self.context.choices]
        body = {"choices": choices} | self._identity("text_completion")
        return encode(body | {"usage": self._usage(), "timings": self._timings()})


class LlamaCppNative(LlamaCppShape):
    """llama.cpp's own `/completion`; its streams end without `[DONE]`."""

    def opening(self, choice: Choice) -> Writes:
        return ()

    def token(self, choice: Choice, text: bytes) -> Writes:
        generation = choice.generation
        number = choice.speech.numbers(generation.made)[-1]
        told = b'","tokens":[%d],"stop":false,"id_slot":-1,"tokens_predicted":%d,"tokens_evaluated":%d}\n\n' % (
            number,
            generation.made,
            generation.prompt,
        )
        return (b'data: {"index":%d,"content":"' % choice.index + text + told,)

    def _final(self, choice: Choice, content: str) -> Json:
        generation = choice.generation
        stopped_by = choice.speech.stopped_by
        kind = "limit" if choice.finish_reason == "length" else "eos" if stopped_by is None else "word"
        return {
            "index": choice.index,
            "content": content,
            "tokens": [],
            "id_slot": 0,
            "stop": True,
            "model": self.context.model,
            "tokens_predicted": generation.made,
            "tokens_evaluated": generation.prompt,
            "truncated": False,
            "stop_type": kind,
            "stopping_word": stopped_by or "",
            "tokens_cached": generation.prompt + generation.made - 1,
            "timings": self._timings(),
        }

    def closing(self) -> Writes:
        return tuple(event(self._final(choice, "")) for choice in self.context.choices)

    def whole(self) -> bytes:
        (choice,) = self.context.choices
        return encode(self._final(choice, choice.text()))


def event(body: Json) -> bytes:
    """Return a body as an event."""
    return b"data: %b\n\n" % encode(body)
