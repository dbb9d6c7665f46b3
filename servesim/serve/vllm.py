"""vLLM 0.32's dialect: its page of metrics, its response format and its routes, field by field as captured.

Names, types, labels and buckets of the metrics are as version 0.32 writes them, by a captured page of 0.32.0
(vllm/v1/metrics/loggers.py). Times are wall seconds. What the simulated engine has none of (adapters to wait for,
offloaded or transferred KV, sleep, images) is there and stays at 0. A token's event is put together from prepared
bytes, since that happens thousands of times a second.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from servesim.catalog.servers import VLLM_ITL_BOUNDS_S, VLLM_REQUEST_BOUNDS_S, VLLM_TTFT_BOUNDS_S
from servesim.config.build import Server
from servesim.serve.answer import Choice, Context, Writes, encode
from servesim.serve.api_request import ApiRequest, Fields, read_chat, read_completion, read_json
from servesim.serve.app import Handler, Response
from servesim.serve.connection import Connection
from servesim.serve.engine_clock import EngineClock
from servesim.serve.errors import ApiError, bad_request, missing, unknown_model
from servesim.serve.generation import EndedStep, Generation, StepTokens
from servesim.serve.http import HttpRequest
from servesim.serve.metrics import Counter, Histogram, Instrument, Labels, in_order
from servesim.serve.tokenizer import chat_tokens, cut
from servesim.wire.events import Json
from servesim.wire.prometheus import Family, single
from servesim.wire.sse import DONE

if TYPE_CHECKING:
    from servesim.serve.app import ServeApp

ITERATION_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PREEMPTION_BOUNDS = (1, 2, 3, 4, 5, 10, 20)
FINISHED = ("stop", "length", "abort", "error", "repetition")
_OTHER_CONFIG = """
cache_hit_alignment_tokens enable_mamba_shared_prefix_checkpoint hash_block_size is_attention_free
kv_cache_dtype_skip_layers kv_cache_layout kv_offloading_backend kv_offloading_size kv_sharing_fast_prefill
mamba_block_size mamba_cache_dtype mamba_cache_mode mamba_page_size_padded mamba_ssm_cache_dtype num_cpu_blocks
prefix_cache_retention_interval prefix_match_unit replayssm_buffer_len skip_page_size_padded sliding_window
swa_bounded_replay use_kda_recoverssm use_replayssm""".split()
_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
_TIERS = ("device", "host", "p2p", "disk", "external_unspecified")


def token_bounds(longest: int) -> tuple[int, ...]:
    """Return the bounds 1, 2, 5, 10, ... up to `longest`.

    >>> token_bounds(120)
    (1, 2, 5, 10, 20, 50, 100)
    """
    bounds: list[int] = []
    power = 1
    while power <= longest:
        bounds += [digit * power for digit in (1, 2, 5) if digit * power <= longest]
        power *= 10
    return tuple(bounds)


def _rows(label: str, values: Iterable[str]) -> list[Labels]:
    return [{label: value} for value in values]


class VllmMetrics:
    """Counts what vLLM's loggers count and writes it under their names."""

    def __init__(self, server: Server, *, model_name: str, max_model_len: int) -> None:
        self._server = server
        self._labels = {"engine": "0", "model_name": model_name}
        self._created_s = time.time()
        tokens = token_bounds(max_model_len)
        found: list[Instrument] = []

        def counter(
            name: str, about: str, label: str = "", values: Iterable[str] = (), kind: str = "counter"
        ) -> Counter:
            made = Counter(f"vllm:{name}", about, kind, _rows(label, values) if label else ({},))
            found.append(made)
            return made

        def gauge(name: str, about: str, label: str = "", values: Iterable[str] = ()) -> Counter:
            return counter(name, about, label, values, "gauge")

        def histogram(name: str, about: str, bounds: Iterable[float]) -> Histogram:
            made = Histogram(f"vllm:{name}", about, tuple(bounds))
            found.append(made)
            return made

        per_gpu = "per GPU (for Model Flops Utilization calculations)."
        counter("estimated_flops_per_gpu_total", f"Estimated number of floating point operations {per_gpu}")
        counter("estimated_read_bytes_per_gpu_total", f"Estimated number of bytes read from memory {per_gpu}")
        counter("estimated_write_bytes_per_gpu_total", f"Estimated number of bytes written to memory {per_gpu}")
        self._running = gauge("num_requests_running", "Number of requests in model execution batches.")
        self._waiting = gauge("num_requests_waiting", "Number of requests waiting to be processed.")
        self._waiting_by = gauge(
            "num_requests_waiting_by_reason",
            "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
            "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). "
            "Sum of all reasons equals vllm:num_requests_waiting.",
            "reason",
            ("capacity", "deferred"),
        )
        sleep = gauge(
            "engine_sleep_state",
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
            "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
            "sleep_state",
            ("awake", "weights_offloaded", "discard_all"),
        )
        sleep.set(1.0, sleep_state="awake")
        self._kv_usage = gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        self._queries = counter(
            "prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens."
        )
        self._hits = counter("prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.")
        external = "from KV connector cross-instance cache sharing, in terms of number of"
        counter("external_prefix_cache_queries_total", f"External prefix cache queries {external} queried tokens.")
        counter("external_prefix_cache_hits_total", f"External prefix cache hits {external} cached tokens.")
        counter("mm_cache_queries_total", "Multi-modal cache queries, in terms of number of queried items.")
        counter("mm_cache_hits_total", "Multi-modal cache hits, in terms of number of cached items.")
        self._preemptions = counter("num_preemptions_total", "Cumulative number of preemption from the engine.")
        self._prompt_tokens = counter("prompt_tokens_total", "Number of prefill tokens processed.")
        self._by_source = counter(
            "prompt_tokens_by_source_total", "Number of prompt tokens by source.", "source", _SOURCES
        )
        self._cached = counter("prompt_tokens_cached_total", "Number of cached prompt tokens (local + external).")
        self._cached_by = counter(
            "prompt_tokens_cached_by_source_total",
            "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to "
            "DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; "
            "sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
            "source",
            _TIERS,
        )
        self._generated = counter("generation_tokens_total", "Number of generation tokens processed.")
        self._success = counter(
            "request_success_total", "Count of successfully processed requests.", "finished_reason", FINISHED
        )
        self._rejections = Counter(
            "vllm:admission_rejections_total",
            "Number of admission attempts rejected by a queue limit, by reason.",
            rows=_rows("reason", ("max_num_queued_reqs", "max_num_queued_tokens")),
        )
        found.append(self._rejections)
        self._prompts = histogram("request_prompt_tokens", "Number of prefill tokens processed.", tokens)
        self._outputs = histogram("request_generation_tokens", "Number of generation tokens processed.", tokens)
        self._iterations = histogram(
            "iteration_tokens_total", "Histogram of number of tokens per engine_step.", ITERATION_BOUNDS
        )
        self._longest = histogram(
            "request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.", tokens
        )
        self._params_n = histogram("request_params_n", "Histogram of the n request parameter.", (1, 2, 5, 10, 20))
        self._params_max = histogram(
            "request_params_max_tokens", "Histogram of the max_tokens request parameter.", tokens
        )
        self._ttft = histogram(
            "time_to_first_token_seconds", "Histogram of time to first token in seconds.", VLLM_TTFT_BOUNDS_S
        )
        self._itl = histogram(
            "inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", VLLM_ITL_BOUNDS_S
        )
        self._tpot = histogram(
            "request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            VLLM_ITL_BOUNDS_S,
        )
        self._e2e = histogram(
            "e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", VLLM_REQUEST_BOUNDS_S
        )
        spent = "Histogram of time spent in {} phase for request."
        self._queue = histogram("request_queue_time_seconds", spent.format("WAITING"), VLLM_REQUEST_BOUNDS_S)
        self._inference = histogram("request_inference_time_seconds", spent.format("RUNNING"), VLLM_REQUEST_BOUNDS_S)
        self._prefill = histogram("request_prefill_time_seconds", spent.format("PREFILL"), VLLM_REQUEST_BOUNDS_S)
        self._decode = histogram("request_decode_time_seconds", spent.format("DECODE"), VLLM_REQUEST_BOUNDS_S)
        self._preempted = histogram(
            "request_num_preemptions", "Histogram of the number of times a request was preempted.", PREEMPTION_BOUNDS
        )
        self._computed = histogram(
            "request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
            tokens,
        )
        self._instruments = found

    def on_request(self, n: int, max_tokens: int) -> None:
        """Count a request that was taken in: its choices, and the most tokens it asked for."""
        self._params_n.observe(n)
        self._params_max.observe(max_tokens)

    def on_step(self, step: EndedStep, tokens: StepTokens) -> None:
        """Count a step, the first tokens in it and the gaps since the ones before."""
        computed = 0
        for generation in tokens.firsts:
            cached = generation.cached_tokens
            computed += generation.prompt - cached
            self._prompt_tokens.add(generation.prompt)
            self._by_source.add(generation.prompt - cached, source="local_compute")
            if cached:
                self._by_source.add(cached, source="local_cache_hit")
                self._cached.add(cached)
                self._cached_by.add(cached, source="device")
            self._ttft.observe(generation.first_s - generation.arrived_s)
        self._generated.add(tokens.count)
        self._iterations.observe(computed + tokens.count)
        if tokens.followers:
            self._itl.observe(tokens.gap_s, tokens.followers)
        for gap_s in tokens.gaps_s:
            self._itl.observe(gap_s)

    def on_over(self, generation: Generation, reason: str, now: float) -> None:
        """Count the end of a generation. One that nobody waits for is no success, and has no times."""
        if reason == "abort":
            return
        self._success.add(finished_reason=reason)
        made = generation.made
        self._prompts.observe(generation.prompt)
        self._outputs.observe(made)
        if not generation.number:
            self._longest.observe(generation.target)
        self._e2e.observe(now - generation.arrived_s)
        self._queue.observe(max(0.0, generation.admitted_s - generation.arrived_s))
        self._inference.observe(now - generation.admitted_s)
        self._prefill.observe(generation.first_s - generation.admitted_s)
        self._decode.observe(now - generation.first_s)
        if made > 1:
            self._tpot.observe((now - generation.first_s) / (made - 1))
        self._preempted.observe(generation.preemptions)
        self._computed.observe(generation.prompt - generation.cached_tokens)

    def on_refusal(self, reason: str) -> None:
        """Count a request that the bounds of the queue kept out."""
        self._rejections.add(reason=reason)

    def families(self, clock: EngineClock) -> list[Family]:
        last, totals = clock.last, clock.engine.totals
        self._running.set(last.running)
        self._waiting.set(last.waiting)
        self._waiting_by.set(last.waiting, reason="capacity")
        self._kv_usage.set(1.0 - last.free_blocks / clock.config.num_blocks)
        self._queries.set(totals.looked_up_tokens)
        self._hits.set(totals.hit_tokens)
        self._preemptions.set(totals.preemptions)
        families = []
        for instrument in self._instruments:
            labels = self._labels if instrument is not self._rejections else {"model_name": self._labels["model_name"]}
            families += instrument.families(labels, self._created_s)
        return [*families, self._cache_config()]

    def _cache_config(self) -> Family:
        spec, plan, config = self._server.spec, self._server.plan, self._server.config
        blocks = config.num_blocks + 1  # vLLM counts its null block
        longest = config.max_model_len or config.num_blocks * config.block_size
        labels = dict.fromkeys(_OTHER_CONFIG, "None") | {
            "_block_size_resolved": "True",
            "block_size": str(config.block_size),
            "cache_dtype": str(spec.kv_cache_dtype or "auto"),
            "effective_attention_block_size": str(config.block_size),
            "enable_prefix_caching": str(config.prefix_caching),
            "gpu_memory_utilization": str(spec.gpu_memory_utilization),
            "kv_cache_max_concurrency": str(blocks / -(-longest // config.block_size)),
            "kv_cache_memory_bytes": str(int(plan.kv_cache_bytes)),
            "kv_cache_size_tokens": str(blocks * config.block_size),
            "num_gpu_blocks": str(blocks),
            "num_gpu_blocks_override": "None" if spec.kv_blocks is None else str(spec.kv_blocks),
            "prefix_caching_hash_algo": "blake2b",
            "user_specified_block_size": "True",
        }
        return single(
            "vllm:cache_config_info",
            "gauge",
            "Information of the LLMEngine CacheConfig",
            [(in_order({"engine": "0"}, labels), 1.0)],
        )


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
        if self.context.report_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": self.context.cached_tokens}
        last = {"choices": [], "usage": usage, "system_fingerprint": self.context.fingerprint}
        return (self._event(last), DONE)

    def _choice(self, choice: Choice) -> Json:
        raise NotImplementedError

    def whole(self) -> bytes:
        """Return the answer in one."""
        context = self.context
        details = None
        if context.report_cached:
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
        end = b'","logprobs":null,"finish_reason":"%b","stop_reason":%b,' % reasons
        return end + b'"prompt_token_ids":null,"token_ids":null}]'

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


VERSIONS = {"vllm-0.32": "0.32.0", "vllm-0.18": "0.18.1"}
METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class VllmApi:
    """vLLM's OpenAI-compatible server."""

    def __init__(self, app: ServeApp) -> None:
        self._app = app
        self.metrics = VllmMetrics(app.server, model_name=app.model_name, max_model_len=app.max_model_len)

    def routes(self) -> Mapping[str, Mapping[str, Handler]]:
        return {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completion},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/health": {"GET": _nothing},
            "/ping": {"GET": _nothing, "POST": _nothing},
            "/load": {"GET": self._load},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics},
        }

    def reword(self, error: ApiError) -> ApiError:
        return error

    def is_open(self, path: str) -> bool:
        return not path.startswith("/v1")

    def _read(self, request: HttpRequest, read: Any) -> ApiRequest:
        api_request: ApiRequest = read(read_json(request.body))
        self._check_model(api_request.model)
        return api_request

    def _check_model(self, api_request: str | None) -> None:
        if api_request is not None and api_request != self._app.model_name:
            raise unknown_model(api_request, self._app.model_name)

    def _chat(self, connection: Connection, request: HttpRequest) -> None:
        self._app.generate(connection, request, self._read(request, read_chat), VllmChat, "chatcmpl-")

    def _completion(self, connection: Connection, request: HttpRequest) -> None:
        self._app.generate(connection, request, self._read(request, read_completion), VllmCompletion, "cmpl-")

    def _models(self, connection: Connection, request: HttpRequest) -> Response:
        app = self._app
        permission = {"id": "modelperm-servesim", "object": "model_permission", "created": app.started_s}
        permission |= {"allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True}
        permission |= {"allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False}
        permission |= {"organization": "*", "group": None, "is_blocking": False}
        model = {"id": app.model_name, "object": "model", "created": int(time.time()), "owned_by": "vllm"}
        model |= {"root": app.server.spec.model, "parent": None, "max_model_len": app.max_model_len}
        return whole({"object": "list", "data": [model | {"permission": [permission]}]})

    def _tokenize(self, connection: Connection, request: HttpRequest) -> Response:
        body = read_json(request.body)
        fields = Fields(body)
        self._check_model(fields.text("model"))
        if "messages" in body:
            (messages,) = read_chat({"messages": body["messages"]}).prompts
            numbers = self._app.tokenizer.encode_chat(messages)  # type: ignore[arg-type]
            texts = list(chat_tokens(messages)) if body.get("return_token_strs") else None  # type: ignore[arg-type]
        else:
            if "prompt" not in body:
                fields.problems.append(missing("prompt", body))
            text = fields.text("prompt")
            fields.check()
            if text is None:
                raise bad_request("prompt must be a text.", "prompt")
            numbers = self._app.tokenizer.encode(text)
            texts = list(cut(text)) if body.get("return_token_strs") else None
        reply: Json = {"count": len(numbers), "max_model_len": self._app.max_model_len}
        return whole(reply | {"tokens": list(numbers), "token_strs": texts})

    def _load(self, connection: Connection, request: HttpRequest) -> Response:
        return whole({"server_load": len(self._app.answers)})

    def _version(self, connection: Connection, request: HttpRequest) -> Response:
        return whole({"version": VERSIONS[self._app.server.spec.rules]})

    def _metrics(self, connection: Connection, request: HttpRequest) -> Response:
        return Response(200, self._app.metrics.page(self._app.clock).encode(), METRICS_TYPE)


def whole(body: Json) -> Response:
    """Return a body as the answer."""
    return Response(200, encode(body))


def _nothing(connection: Connection, request: HttpRequest) -> Response:
    return Response(200, b"")
