"""llama.cpp's routes, answers and page of metrics: what `llama-server --metrics --slots` offers.

Names, types and help texts are those of a captured page of build 11434; the two throughput gauges are averages since
the last scrape, as there, so that scraping changes them. Times are wall seconds.

Answers are field by field as captured: `timings` come without being asked for, the role and the first token come in one
write, and so do the finish and the usage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from servesim.serve.answer import Choice, Context, Writes, encode
from servesim.serve.api_request import ApiRequest, Fields, read_chat, read_completion, read_json
from servesim.serve.app import Handler, Response
from servesim.serve.connection import Connection
from servesim.serve.engine_clock import EngineClock
from servesim.serve.errors import ApiError, bad_request, llamacpp_error
from servesim.serve.generation import EndedStep, Generation, StepTokens
from servesim.serve.http import HttpRequest
from servesim.serve.vllm import whole
from servesim.wire.events import Json
from servesim.wire.prometheus import CONTENT_TYPE, Family, format_page, single
from servesim.wire.sse import DONE

if TYPE_CHECKING:
    from servesim.serve.app import ServeApp

BUILD = "b0-servesim"


class LlamaCppFormat:
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


class LlamaCppChat(LlamaCppFormat):
    """`/v1/chat/completions`."""

    def _chunk(self, choice: Choice, delta: Json, reason: str | None) -> Json:
        last = {"finish_reason": reason, "index": choice.index, "delta": delta}
        return {"choices": [last]} | self._identity("chat.completion.chunk")

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


class LlamaCppCompletion(LlamaCppFormat):
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


class LlamaCppNative(LlamaCppFormat):
    """llama.cpp's own `/completion`; its streams end without `[DONE]`."""

    def opening(self, choice: Choice) -> Writes:
        return ()

    def token(self, choice: Choice, text: bytes) -> Writes:
        generation = choice.generation
        number = choice.speech.numbers(generation.made)[-1]
        end = b'","tokens":[%d],"stop":false,"id_slot":-1,"tokens_predicted":%d,"tokens_evaluated":%d}\n\n' % (
            number,
            generation.made,
            generation.prompt,
        )
        return (b'data: {"index":%d,"content":"' % choice.index + text + end,)

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


class LlamaCppMetrics:
    """Counts what llama.cpp counts."""

    def __init__(self) -> None:
        self.prompt_tokens = self.cached_tokens = self.predicted_tokens = 0
        self.prompt_s = self.predicted_s = 0.0
        self.decodes = self.busy_slots = self.longest = 0
        self._bucket = [0.0] * 4  # prompt tokens and seconds, predicted tokens and seconds, since the last scrape

    def on_request(self, n: int, max_tokens: int) -> None:
        """llama.cpp counts no requests."""

    def on_refusal(self, reason: str) -> None:
        """Nor those it turns away."""

    def on_step(self, step: EndedStep, tokens: StepTokens) -> None:
        self.decodes += 1
        self.busy_slots += step.sequences
        for generation in tokens.firsts:
            computed, seconds = generation.prompt - generation.cached_tokens, generation.first_s - generation.admitted_s
            self.prompt_tokens += computed
            self.cached_tokens += generation.cached_tokens
            self.prompt_s += seconds
            self._bucket[0] += computed
            self._bucket[1] += seconds

    def on_over(self, generation: Generation, reason: str, now: float) -> None:
        seconds = generation.last_s - generation.first_s
        self.predicted_tokens += generation.made
        self.predicted_s += seconds
        self.longest = max(self.longest, generation.prompt + generation.made - 1)
        self._bucket[2] += generation.made
        self._bucket[3] += seconds

    def families(self, clock: EngineClock) -> list[Family]:
        bucket, self._bucket = self._bucket, [0.0] * 4
        totals, last = clock.engine.totals, clock.last
        rates = [tokens / seconds if seconds else 0.0 for tokens, seconds in (tuple(bucket[:2]), tuple(bucket[2:]))]
        counters = (
            ("prompt_tokens_total", "Number of prompt tokens processed, excluding cached tokens", self.prompt_tokens),
            ("prompt_tokens_cached_total", "Number of prompt tokens reused from the cache", self.cached_tokens),
            ("prompt_seconds_total", "Total time spent processing prompts", self.prompt_s),
            ("tokens_predicted_total", "Number of generation tokens processed", self.predicted_tokens),
            ("tokens_predicted_seconds_total", "Total time spent generating tokens", self.predicted_s),
            (
                "n_decode_total",
                "Total number of llama_decode() calls, excluding speculative decoding and multimodal decoding",
                self.decodes,
            ),
            ("n_tokens_max", "Largest observed sequence length (prompt + generation)", self.longest),
            (
                "spec_decode_num_draft_tokens_total",
                "Speculative: Total draft tokens generated",
                totals.drafted_tokens,
            ),
            (
                "spec_decode_num_accepted_tokens_total",
                "Speculative: Total draft tokens accepted by the target model",
                totals.accepted_tokens,
            ),
            (
                "spec_decode_num_drafts_total",
                "Speculative: Total speculative decoding verification steps",
                self.decodes if totals.drafted_tokens else 0,
            ),
        )
        gauges = (
            ("prompt_tokens_seconds", "Average prompt throughput in tokens/s", rates[0]),
            ("predicted_tokens_seconds", "Average generation throughput in tokens/s", rates[1]),
            ("requests_processing", "Number of requests processing", last.running),
            ("requests_deferred", "Number of requests deferred", last.waiting),
            (
                "n_busy_slots_per_decode",
                "Average number of busy slots per llama_decode() call",
                self.busy_slots / max(1, self.decodes),
            ),
        )
        return [
            single(f"llamacpp:{name}", kind, about, [({}, float(value))])
            for kind, rows in (("counter", counters), ("gauge", gauges))
            for name, about, value in rows
        ]


class LlamaCppApi:
    """llama.cpp's server."""

    def __init__(self, app: ServeApp) -> None:
        self._app = app
        self.metrics = LlamaCppMetrics()

    def routes(self) -> Mapping[str, Mapping[str, Handler]]:
        found: dict[str, Mapping[str, Handler]] = {
            "/completion": {"POST": self._native},
            "/tokenize": {"POST": self._tokenize},
            "/health": {"GET": self._health},
            "/v1/health": {"GET": self._health},
            "/props": {"GET": self._props},
            "/slots": {"GET": self._slots},
            "/metrics": {"GET": self._metrics},
        }
        for path, method, handler in (
            ("/chat/completions", "POST", self._chat),
            ("/completions", "POST", self._completion),
            ("/models", "GET", self._models),
        ):
            found[path] = found[f"/v1{path}"] = {method: handler}
        return found

    def reword(self, error: ApiError) -> ApiError:
        inner = error.body.get("error")
        if isinstance(inner, dict) and inner.get("param") == "input_tokens":
            prompt = int(str(inner["message"]).rsplit("value=", 1)[1].rstrip(")"))
            return llamacpp_error(error, prompt=prompt, longest=self._app.max_model_len)
        return llamacpp_error(error)

    def is_open(self, path: str) -> bool:
        return path in ("/health", "/v1/health", "/models", "/v1/models")

    def _chat(self, connection: Connection, request: HttpRequest) -> None:
        body = read_json(request.body)
        if not isinstance(body.get("messages"), list):
            raise bad_request("Expected 'messages' to be an array")
        self._start(connection, request, read_chat(self._unlimited(body)), LlamaCppChat)

    def _completion(self, connection: Connection, request: HttpRequest) -> None:
        api_request = read_completion(self._unlimited(read_json(request.body)))
        self._start(connection, request, api_request, LlamaCppCompletion)

    def _native(self, connection: Connection, request: HttpRequest) -> None:
        api_request = read_completion(self._unlimited(read_json(request.body)) | {"n": 1})
        if len(api_request.prompts) != 1:
            raise bad_request("Expected one prompt")
        self._start(connection, request, api_request, LlamaCppNative)

    def _start(
        self, connection: Connection, request: HttpRequest, api_request: ApiRequest, response_format: type
    ) -> None:
        if api_request.max_tokens is not None:  # what is longer than the context ends with it
            api_request.max_tokens = min(api_request.max_tokens, self._app.max_model_len)
        self._app.generate(connection, request, api_request, response_format, "chatcmpl-")

    def _unlimited(self, body: Json) -> Json:
        """Return a body with llama.cpp's own limit, `n_predict`, and without those that mean none (-1)."""
        limit = body.get("max_tokens", body.get("n_predict"))
        if isinstance(limit, int) and limit < 0:
            limit = None
        return body | {"max_tokens": limit}

    def _tokenize(self, connection: Connection, request: HttpRequest) -> Response:
        fields = Fields(read_json(request.body))
        text = fields.text("content")
        fields.check()
        return whole({"tokens": list(self._app.tokenizer.encode(text or ""))})

    def _health(self, connection: Connection, request: HttpRequest) -> Response:
        return whole({"status": "ok"})

    def _models(self, connection: Connection, request: HttpRequest) -> Response:
        app = self._app
        model, name = app.server.model, app.model_name
        details = {"parent_model": "", "format": "gguf", "family": "", "families": [""]}
        details |= {"parameter_size": "", "quantization_level": ""}
        listed: Json = {"name": name, "model": name, "modified_at": "", "size": "", "digest": "", "type": "model"}
        listed |= {"description": "", "tags": [""], "capabilities": ["completion"], "parameters": ""}
        meta = {"vocab_type": 2, "n_vocab": model.vocab, "n_ctx": app.max_model_len, "n_ctx_train": app.max_model_len}
        meta |= {"n_embd": model.hidden, "n_params": model.params, "size": int(app.server.plan.weights_bytes)}
        data: Json = {"id": name, "aliases": [name], "tags": [], "object": "model"}
        data |= {"architecture": {"input_modalities": ["text"], "output_modalities": ["text"]}}
        data |= {"created": app.started_s, "owned_by": "llamacpp", "meta": meta}
        return whole({"models": [listed | {"details": details}], "object": "list", "data": [data]})

    def _props(self, connection: Connection, request: HttpRequest) -> Response:
        app = self._app
        params = {"seed": app.spec.seed, "temperature": 0.8, "max_tokens": -1, "n_predict": -1, "stream": False}
        return whole(
            {
                "default_generation_settings": {"params": params, "n_ctx": app.max_model_len},
                "total_slots": app.server.config.max_num_seqs,
                "model_alias": app.model_name,
                "model_path": app.server.spec.model,
                "modalities": {"vision": False, "audio": False},
                "chat_template": "",
                "bos_token": "<|begin|>",
                "eos_token": "<|end|>",
                "build_info": BUILD,
            }
        )

    def _slots(self, connection: Connection, request: HttpRequest) -> Response:
        app = self._app
        busy = [generation for answer in app.answers for generation in answer.generations if generation.admitted_s]
        slots = []
        for number in range(app.server.config.max_num_seqs):
            slot: Json = {"id": number, "n_ctx": app.max_model_len, "speculative": False, "is_processing": False}
            if number < len(busy):
                made = busy[number].made
                slot["is_processing"] = True
                slot["next_token"] = [
                    {"has_next_token": True, "n_remain": busy[number].target - made, "n_decoded": made}
                ]
            slots.append(slot)
        return Response(200, whole({"slots": slots}).body[len(b'{"slots":') : -1])

    def _metrics(self, connection: Connection, request: HttpRequest) -> Response:
        clock, metrics = self._app.clock, self._app.metrics
        page = format_page([*self.metrics.families(clock), *metrics.own.families(clock)])
        return Response(200, page.encode(), CONTENT_TYPE)
