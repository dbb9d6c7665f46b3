"""The options of a server and of a result, each defined once; how flags and `--config` become one set of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from servesim.catalog.hardware import load_hardware
from servesim.catalog.models import load_model
from servesim.catalog.weights import KV_BYTES
from servesim.cli.parser import Group, Option, Parser
from servesim.config.build import DECIDED, build_server
from servesim.config.document import read_config
from servesim.config.engine import POLICIES, RULES
from servesim.config.offload import DEFAULT_LINK, JOIN
from servesim.config.server import SERVER_CHECKS, ServerSpec, count, switch, text
from servesim.cost.model import COST_MODELS
from servesim.errors import InputError, ServesimError
from servesim.units import suggest


def _server(
    flag: str, about: str, metavar: str = "N", default: str = "", *, key: str = "", swept: bool = True
) -> Option:
    key = key or flag.strip("-").replace("-", "_")
    return Option(flag, key, about, SERVER_CHECKS[key], metavar, default, swept=swept)


DEVICE = Group(
    "model and device",
    (
        _server(
            "--model", "a preset (servesim models), a config.json, its folder, or a .gguf file", "NAME", "llama-3.1-8b"
        ),
        _server("--hardware", "a preset (servesim hardware) or a device's JSON file", "NAME", "h100-sxm-80gb"),
        _server(
            "--quantization",
            "of the weights: fp8, awq, q4_k_m, ... (servesim models --formats)",
            "NAME",
            "as the model comes",
        ),
        _server(
            "--tensor-parallel-size", "devices that share the model; the roofline leaves communication out", default="1"
        ),
        _server("--pipeline-parallel-size", "stages that share the layers", default="1"),
        _server("--data-parallel-size", "ranks with a cache each; experts are shared over all", default="1"),
        Option("--enable-expert-parallel", "expert_parallel", "each device has whole experts, not a part of each"),
        _server(
            "--gpu-memory-utilization",
            "share of the device's memory that the server may use, 0 to 1",
            "X",
            "0.90; with --like-vllm 0.92, under the 0.18 rules 0.90",
        ),
        _server("--reserve-gib", "GiB kept for activations and the runtime", "GIB", "of the hardware preset"),
        _server("--block-size", "tokens in one KV block", default="16"),
        _server("--kv-cache-dtype", f"of the KV cache: {', '.join(KV_BYTES)}", "DTYPE", "of the model"),
        _server("--kv-tokens", "size of the KV cache in tokens, instead of what memory allows"),
        _server("--kv-blocks", "size of the KV cache as vLLM's log prints it, of which one block is vLLM's null block"),
    ),
)

COST = Group(
    "cost of a step",
    (
        _server("--mfu", "share of peak FLOP/s that is reached", "X", "of the hardware preset, mostly 0.50"),
        _server("--mbu", "share of peak bandwidth that is reached", "X", "of the hardware preset, mostly 0.75"),
        _server(
            "--step-overhead",
            "time of a step beside compute and memory",
            "TIME",
            "of the hardware preset, mostly 1ms",
            key="step_overhead_s",
        ),
        _server(
            "--cost-model",
            f"how a step's time is computed: {', '.join(COST_MODELS)}",
            "NAME",
            "roofline; of a device that calibrate fitted, the model it fitted",
        ),
    ),
)

LIMITS = Group(
    "limits of the engine",
    (
        _server("--max-num-seqs", "sequences that run at once", default="256, at most the token budget"),
        _server(
            "--max-num-batched-tokens",
            "token budget of one step",
            default="8192, at least a given --max-num-seqs",
        ),
        _server("--max-model-len", "longest prompt + output, in tokens", default="no limit"),
        Option("--no-chunked-prefill", "chunked_prefill", "a prompt enters a step whole or not at all", value=False),
        Option("--chunked-prefill", "chunked_prefill", "cut prompts at the token budget (default)"),
        _server("--long-prefill-token-threshold", "most tokens of one prompt in a step, 0: off", default="0"),
        _server("--watermark", "share of blocks kept free when admitting beside running requests", "X", "0"),
        Option(
            "--no-scheduler-reserve-full-isl",
            "scheduler_reserve_full_isl",
            "admit when the first chunk fits, not the whole sequence",
            value=False,
        ),
        Option(
            "--scheduler-reserve-full-isl",
            "scheduler_reserve_full_isl",
            "admit only when the whole sequence fits (default under the 0.32 rules)",
        ),
        Option("--prefix-caching", "prefix_caching", "reuse the KV of equal prefixes (default with --like-vllm)"),
        Option("--no-prefix-caching", "prefix_caching", "never reuse KV (default)", value=False),
        Option("--async-scheduling", "async_scheduling", "schedule one step ahead (default with --like-vllm on GPUs)"),
        Option("--no-async-scheduling", "async_scheduling", "schedule after each step (default)", value=False),
        Option("--like-vllm", "like_vllm", "what is not given has vLLM's own default for the device (vllm serve)"),
        _server("--rules", f"the scheduler's rules: {', '.join(RULES)}", "NAME", "vllm-0.32"),
        _server("--policy", f"who is served first: {', '.join(POLICIES)} (sjf is an oracle)", "NAME", "fcfs"),
        _server("--max-tokens-in-flight", "most tokens of all running requests at admission, 0: off", default="0"),
        _server("--slots", "N seats with their own share of the cache each, as llama.cpp's --parallel N"),
    ),
)

QUEUE = Group(
    "queue and clients",
    (
        _server("--max-num-queued-reqs", "arrivals beyond N waiting requests are refused (429)", default="no limit"),
        _server("--max-num-queued-tokens", "the same, in waiting prompt tokens", default="no limit"),
        _server("--client-timeout", "a client leaves after TIME", "TIME", "never", key="client_timeout_s"),
    ),
)

SPECULATION = Group(
    "speculative decoding",
    (
        _server("--spec-tokens", "drafted tokens that each step verifies beside the next one, 0: off", default="0"),
        _server(
            "--acceptance",
            "probability that a drafted token is accepted, with --spec-tokens; one, or one a position: 0.9:0.7:0.5",
            "A",
        ),
    ),
)

TIERS = Group(
    "KV tiers below the device",
    (
        Option(
            "--kv-offload",
            "kv_offload",
            "evicted prefixes fall into SIZE of host memory; give it again, or A+B, for a tier below that",
            SERVER_CHECKS["kv_offload"],
            "SIZE",
            "off",
            swept=True,
            join=JOIN,
        ),
        Option(
            "--offload-link",
            "offload_link",
            "bandwidth between a device and the tier; one for all tiers, or one for each",
            SERVER_CHECKS["offload_link"],
            "RATE",
            DEFAULT_LINK,
            swept=True,
            join=JOIN,
        ),
        Option("--offload-overlap", "offload_overlap", "KV comes back beside the step instead of before it"),
    ),
)

ADAPTERS = Group(
    "LoRA adapters",
    (
        _server("--max-loras", "adapters in one batch, each with room on the device", default="adapters cost nothing"),
        _server("--adapter-rank", "rank of every adapter: its bytes follow from the model's shapes", "R", "16"),
        _server("--adapter-load", "time to load one, or the bandwidth it is loaded with", "TIME|RATE", "25GB/s"),
    ),
)

SERVER_GROUPS = (DEVICE, LIMITS, QUEUE, SPECULATION, TIERS, ADAPTERS, COST)

CONFIG = Option("--config", "config_file", "take every option from a document servesim wrote; flags win", text, "FILE")
LIKE = Option("--like", "like", "start from a run that loadgen measured: its server and its load", text, "RUN")
JSON = Option("--json", "json", "print one JSON document instead of text")
OUTPUT = Option(
    "--output", "output", "write the result to FILE, whole or not at all", text, "FILE", aliases=("-o",), writes=True
)
PLOT = Option("--plot", "plot", "draw it below the text: sparklines and a histogram, or bars of the rows")
QUIET = Option("--quiet", "quiet", "no progress, no notes, no warnings on stderr")
SAVE = Option("--save", "save", "save every request's record to FILE (JSON lines)", text, "FILE", writes=True)
TOKEN_TIMES = Option("--token-times", "token_times", "with --save: also the time of every token")
JOBS = Option("--jobs", "jobs", "processes; the result does not depend on it", count(maximum=1024), default="1")

PRESETS: dict[str, Callable[[str], object]] = {"hardware": load_hardware, "model": load_model}

# What a flag puts out of a configuration from a file, since both cannot hold. A workload is one of three kinds.
_TRACE_KEYS = ("trace", "trace_format", "time_unit", "skip_bad_rows", "speed")
_GENERATED_KEYS = (
    "prompt_tokens",
    "output_tokens",
    "shared_prefix_tokens",
    "prefixes",
    "turns",
    "think_s",
    "priorities",
    "classes",
    "adapters",
)
_OPEN_KEYS = ("rate", "rate_schedule", "arrivals", "burstiness", "ramp_s")
_CLOSED_KEYS = ("concurrency", "stagger_s")
_LINK_KEYS = ("link_bytes_per_s", "link_latency_s", "link_scope", "transfer_overlap")
_REPLACES: dict[str, tuple[str, ...]] = {
    "concurrency": (*_OPEN_KEYS, "speed"),
    "rate": ("rate_schedule", *_CLOSED_KEYS, *_TRACE_KEYS),
    "rate_schedule": ("rate", "ramp_s", "requests", "duration_s", *_CLOSED_KEYS, *_TRACE_KEYS),
    "burstiness": ("arrivals",),
    "trace": ("requests", *_CLOSED_KEYS, *_OPEN_KEYS, *_GENERATED_KEYS, *_TRACE_KEYS),
    **dict.fromkeys(_GENERATED_KEYS, _TRACE_KEYS),
    "kv_tokens": ("kv_blocks",),
    "kv_blocks": ("kv_tokens",),
    "replicas": ("fleet", "disagg", *_LINK_KEYS),
    "fleet": ("replicas", "disagg", *_LINK_KEYS),
    "disagg": ("replicas", "fleet"),
}


def gather(parser: Parser, flags: dict[str, Any]) -> dict[str, Any]:
    """Return every value that was asked for, by key: those of `--config` or `--like`, and over them the flags."""
    path, like = flags.get("config_file"), flags.get("like")
    if path is None and like is None:
        return flags
    if like is not None:
        if path is not None:
            raise InputError("--config and --like both say what is run; give one of them")
        # Knows what servers tell, and so the load generator: nothing that another command should wait for.
        from servesim.cli.like import like_options

        path, (config, written) = like, (like_options(like), True)
    else:
        config, written = read_config(str(path))
    values: dict[str, Any] = {}
    options = parser.options
    for key, value in config.items():
        option = options.get(key)
        if option is None:
            if not written:
                raise suggest(f"option in {path}", key, options)
        elif value is not None:
            try:
                values[key] = _checked(option, value, f"{path}: {key}", lists=parser.lists)
                if key in PRESETS and option in DEVICE.options and key not in flags:
                    for name in [values[key]] if isinstance(values[key], str) else values[key]:
                        PRESETS[key](name)  # now, while it is known which file names it
            except InputError as error:
                raise error if str(error).startswith(f"{path}: ") else InputError(f"{path}: {error}") from None
    if like is None and flags.keys() & SERVER_CHECKS.keys():
        values = _without_defaults(values)
    dropped = {key for flag in flags for key in _REPLACES.get(flag, ())}
    return {key: value for key, value in values.items() if key not in dropped} | flags


def _checked(option: Option, value: Any, name: str, *, lists: bool) -> Any:
    check = option.check or switch
    if not isinstance(value, list):
        return [check(value, name)] if option.repeat else check(value, name)
    if option.repeat or (lists and option.swept):
        return [check(item, name) for item in value]
    raise InputError(f"{name} is a list, and only sweep takes several values")


def _without_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out what the configured server would have had anyway, so that another device brings its own defaults."""
    asked = {key: value for key, value in values.items() if key not in DECIDED}
    try:
        server = build_server(server_spec(asked)).spec
    except ServesimError:
        return values
    return asked | {key: values[key] for key in DECIDED if key in values and values[key] != getattr(server, key)}


def server_spec(values: dict[str, Any]) -> ServerSpec:
    """Return the server that `values` ask for."""
    return ServerSpec(**{key: values[key] for key in SERVER_CHECKS if key in values})
