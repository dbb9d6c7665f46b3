"""The servers that people run: what they call their metrics and options, and what vLLM chooses where nothing is set.

A metric's key is servesim's own word for it; its names are the server's, today's first and older ones behind. Names
that a server no longer has stay as aliases; a key without a name is what the server does not offer.

`vllm_defaults` are the limits and switches that `--like-vllm` fills in. Source: vllm/engine/arg_utils.py
(get_batch_defaults, _set_default_max_num_seqs_and_batched_tokens_args) and vllm/config/cache.py as of 0.32 and 0.18;
observed where a server could be run, read from the source elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from servesim.catalog.hardware import Hardware
from servesim.errors import InputError
from servesim.units import GIB, suggest

COUNTER, GAUGE, HISTOGRAM, INFO = "counter", "gauge", "histogram", "info"
SUM, MEAN = "sum", "mean"

# Bounds of vLLM's histograms, as its /metrics page has them from 0.18 to 0.33.
VLLM_TTFT_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
VLLM_ITL_BOUNDS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
VLLM_REQUEST_BOUNDS_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One quantity on a server's metric page."""

    names: tuple[str, ...]  # today's name, then older ones
    type: str  # counter, gauge, histogram or info
    across: str = SUM  # over several engines: counts add up, fractions are averaged (and their maximum is the peak)

    def __post_init__(self) -> None:
        if not self.names or self.type not in (COUNTER, GAUGE, HISTOGRAM, INFO) or self.across not in (SUM, MEAN):
            raise InputError(f"metric {self!r} makes no sense")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDialect:
    """What is particular to one server program."""

    name: str
    prefix: str  # of its metric names
    metrics: dict[str, Metric]
    knobs: dict[str, str]  # servesim's option -> the server's
    enable_metrics: str | None = None  # the flag without which there is no metric page
    source: str

    def names(self) -> frozenset[str]:
        """Return every sample name that a page of this server can hold for us, histograms' suffixes included."""
        found: set[str] = {PROCESS_START}
        for metric in self.metrics.values():
            suffixes = ("_bucket", "_sum", "_count") if metric.type == HISTOGRAM else ("",)
            found.update(name + suffix for name in metric.names for suffix in suffixes)
        return frozenset(found)


PROCESS_START = "process_start_time_seconds"  # of every Python client library: when it changes, all counters restarted


def _counter(*names: str) -> Metric:
    return Metric(names=names, type=COUNTER)


def _gauge(*names: str, across: str = SUM) -> Metric:
    return Metric(names=names, type=GAUGE, across=across)


def _histogram(*names: str) -> Metric:
    return Metric(names=names, type=HISTOGRAM)


LLAMA_CPP = ServerDialect(
    name="llama.cpp",
    prefix="llamacpp:",
    metrics={
        "running": _gauge("llamacpp:requests_processing"),
        "waiting": _gauge("llamacpp:requests_deferred"),
        "kv_usage": _gauge("llamacpp:kv_cache_usage_ratio", across=MEAN),  # older builds only
        "computed_prompt_tokens": _counter("llamacpp:prompt_tokens_total"),  # cached ones not among them
        "cached_prompt_tokens": _counter("llamacpp:prompt_tokens_cached_total"),
        "output_tokens": _counter("llamacpp:tokens_predicted_total"),
        "prompt_seconds": _counter("llamacpp:prompt_seconds_total"),
        "output_seconds": _counter("llamacpp:tokens_predicted_seconds_total"),
        "decodes": _counter("llamacpp:n_decode_total"),
        "mean_busy_slots": _gauge("llamacpp:n_busy_slots_per_decode", across=MEAN),  # a running mean since the start
    },
    knobs={
        "--max-num-seqs": "--parallel",
        "--kv-tokens": "--ctx-size",
        "--slots": "--parallel with --no-kv-unified: each slot has its own ctx-size / parallel tokens",
        "--max-num-batched-tokens": "--batch-size",
        "--prefix-caching": "--cache-prompt and --cache-reuse: per slot, not shared",
        "--max-model-len": "--ctx-size / --parallel",
    },
    enable_metrics="--metrics",
    source="tools/server/README.md and captures of build 11434",
)

VLLM = ServerDialect(
    name="vllm",
    prefix="vllm:",
    metrics={
        "running": _gauge("vllm:num_requests_running"),
        "waiting": _gauge("vllm:num_requests_waiting"),
        "kv_usage": _gauge("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", across=MEAN),  # a fraction
        "preemptions": _counter("vllm:num_preemptions_total", "vllm:num_preemptions"),
        "prefix_queries": _counter("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        "prefix_hits": _counter("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        "prompt_tokens": _counter("vllm:prompt_tokens_total"),  # cached ones among them
        "output_tokens": _counter("vllm:generation_tokens_total"),
        "iterations": _counter("vllm:iteration_tokens_total_count"),
        "iteration_tokens": _counter("vllm:iteration_tokens_total_sum"),
        "ttft": _histogram("vllm:time_to_first_token_seconds"),
        "itl": _histogram("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        "tpot": _histogram("vllm:request_time_per_output_token_seconds"),
        "queue": _histogram("vllm:request_queue_time_seconds"),
        "e2e": _histogram("vllm:e2e_request_latency_seconds"),
        "setup": Metric(names=("vllm:cache_config_info",), type=INFO),
    },
    knobs={
        "--max-num-seqs": "--max-num-seqs",
        "--max-num-batched-tokens": "--max-num-batched-tokens",
        "--kv-blocks": "--num-gpu-blocks-override",
        "--block-size": "--block-size",
        "--gpu-memory-utilization": "--gpu-memory-utilization",
        "--prefix-caching": "--enable-prefix-caching",
        "--no-chunked-prefill": "--no-enable-chunked-prefill",
        "--max-model-len": "--max-model-len",
        "--policy": "--scheduling-policy",
    },
    source="captures of 0.32.0; older names from the changelogs of 0.6 to 0.18",
)

SGLANG = ServerDialect(
    name="sglang",
    prefix="sglang:",
    metrics={
        "running": _gauge("sglang:num_running_reqs"),
        "waiting": _gauge("sglang:num_queue_reqs"),
        "kv_usage": _gauge("sglang:token_usage", across=MEAN),
        "hit_rate": _gauge("sglang:cache_hit_rate", across=MEAN),  # of the last prefill batch, not a counter
        "preemptions": _counter("sglang:num_retracted_requests_total"),
        "prompt_tokens": _counter("sglang:prompt_tokens_total"),
        "cached_prompt_tokens": _counter("sglang:cached_tokens_total"),
        "output_tokens": _counter("sglang:generation_tokens_total"),
        "ttft": _histogram("sglang:time_to_first_token_seconds"),
        "itl": _histogram("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        "queue": _histogram("sglang:queue_time_seconds"),
        "e2e": _histogram("sglang:e2e_request_latency_seconds"),
    },
    knobs={
        "--max-num-seqs": "--max-running-requests",
        "--max-num-batched-tokens": "--chunked-prefill-size",
        "--gpu-memory-utilization": "--mem-fraction-static",
        "--kv-tokens": "--max-total-tokens",
        "--block-size": "--page-size",
        "--max-model-len": "--context-length",
        "--no-prefix-caching": "--disable-radix-cache",
    },
    enable_metrics="--enable-metrics",
    source="docs.sglang.io, production metrics and server arguments",
)

SERVERS: dict[str, ServerDialect] = {dialect.name: dialect for dialect in (LLAMA_CPP, VLLM, SGLANG)}


def dialect_of(metric_names: Iterable[str]) -> ServerDialect | None:
    """Return the dialect that a page with these metric names is written in, None for an unknown server."""
    for name in metric_names:
        for dialect in SERVERS.values():
            if name.startswith(dialect.prefix):
                return dialect
    return None


def metrics_hint() -> str:
    """Return which servers have a metric page only if they are started with a flag."""
    flags = (f"{each.name} with {each.enable_metrics}" for each in SERVERS.values() if each.enable_metrics)
    return f"some servers offer a metric page when told to: {', '.join(flags)}"


USAGES = ("server", "llm-class")  # `vllm serve`, and the Python class `LLM`


@dataclass(slots=True, frozen=True, kw_only=True)
class VllmDefaults:
    """vLLM's own choice for one device, before anything that the user sets."""

    max_num_batched_tokens: int
    max_num_seqs: int
    gpu_memory_utilization: float
    block_size: int
    prefix_caching: bool
    async_scheduling: bool


@dataclass(slots=True, frozen=True, kw_only=True)
class _Version:
    """What a range of versions changed: utilisation 0.92 since 0.20, the 160 GiB row since 0.28."""

    gpu_memory_utilization: float
    has_160_gib_row: bool


_VERSIONS = {
    "vllm-0.32": _Version(gpu_memory_utilization=0.92, has_160_gib_row=True),
    "vllm-0.18": _Version(gpu_memory_utilization=0.90, has_160_gib_row=False),
}


def vllm_defaults(
    hardware: Hardware, rules: str = "vllm-0.32", *, tensor_parallel: int = 1, usage: str = "server"
) -> VllmDefaults:
    """Return the defaults of vLLM under `rules` on `hardware`; `tensor_parallel` counts on CPUs only.

    A unified-memory device counts as a CPU: that is the backend vLLM has for it.
    """
    if rules not in _VERSIONS:
        raise suggest("rules", rules, _VERSIONS)
    if usage not in USAGES:
        raise suggest("usage", usage, USAGES)
    if tensor_parallel < 1:
        raise InputError(f"tensor_parallel_size is {tensor_parallel}, must be 1 or more")
    version = _VERSIONS[rules]
    is_gpu = hardware.kind == "gpu"
    tokens, seqs = _batch_defaults(hardware, version, usage == "server", tensor_parallel)
    return VllmDefaults(
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        gpu_memory_utilization=version.gpu_memory_utilization,
        block_size=16 if is_gpu else 128,
        prefix_caching=True,
        async_scheduling=is_gpu,  # on by default on GPUs by 0.14, always off on CPUs
    )


def _batch_defaults(hardware: Hardware, version: _Version, server: bool, world_size: int) -> tuple[int, int]:
    """Return (max_num_batched_tokens, max_num_seqs) by the device's memory; an A100 of any size is a small device."""
    if hardware.kind != "gpu":
        return (2048 * world_size, 128 * world_size) if server else (4096 * world_size, 256 * world_size)
    if hardware.memory_bytes >= 160 * GIB and version.has_160_gib_row:
        return 16384, 1024
    if hardware.memory_bytes >= 70 * GIB and "a100" not in hardware.name.lower():
        return (8192, 1024) if server else (16384, 1024)
    return (2048, 256) if server else (8192, 256)
