"""The options that verbs share, each defined once, and the frozen specs that they become."""

from __future__ import annotations

from typing import Any

from servesim.catalog.model import KV_BYTES
from servesim.cli.document import read_config
from servesim.cli.parser import Check, Group, Option, Parser
from servesim.engine.config import RULES
from servesim.engine.policy import POLICIES
from servesim.engine.server import DECIDED, build_server
from servesim.engine.spec import SERVER_CHECKS, ServerSpec, count, one_of, seconds, switch, text
from servesim.errors import InputError, ServesimError
from servesim.units import parse_count, parse_finite, suggest
from servesim.workload.arrivals import ARRIVALS
from servesim.workload.lengths import LENGTHS, parse_lengths
from servesim.workload.spec import WorkloadSpec
from servesim.workload.times import TIME_UNITS
from servesim.workload.trace import TRACE_FORMATS


def _server(
    flag: str, about: str, metavar: str = "N", default: str = "", *, key: str = "", swept: bool = True
) -> Option:
    key = key or flag.strip("-").replace("-", "_")
    return Option(flag, key, about, SERVER_CHECKS[key], metavar, default, swept=swept)


DEVICE = Group(
    "model and device",
    (
        _server("--model", "a preset of the README's table", "NAME", "llama-3.1-8b"),
        _server("--hardware", "a preset of the README's table", "NAME", "h100-sxm-80gb"),
        _server("--tensor-parallel-size", "devices that share the model; communication is left out", default="1"),
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
        _server("--cost-model", "how a step's time is computed", "NAME", "roofline"),
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

SERVER_GROUPS = (DEVICE, LIMITS, QUEUE, COST)


def _lengths(value: Any, name: str) -> str:
    return parse_lengths(value if isinstance(value, str) else str(parse_count(value, name)), name).text


def _rate(value: Any, name: str) -> float:
    return parse_finite(value, name, above=0.0)


def _load(
    flag: str, about: str, check: Check, metavar: str = "N", default: str = "", *, key: str = "", swept: bool = True
) -> Option:
    key = key or flag.strip("-").replace("-", "_")
    aliases = ("--max-tokens",) if flag == "--output-tokens" else ()
    return Option(flag, key, about, check, metavar, default, aliases=aliases, swept=swept)


LENGTHS_TEXT = "N, LOW-HIGH or a distribution: " + ", ".join(kind.usage for kind in LENGTHS.values())

WORKLOAD = Group(
    "workload",
    (
        _load("--requests", "how many requests", count(), default="256; every row of a trace"),
        _load("--prompt-tokens", f"tokens of a prompt: {LENGTHS_TEXT}", _lengths, "LENGTH", "256-1024"),
        _load("--output-tokens", "tokens of an answer, in the same forms", _lengths, "LENGTH", "64-256"),
        _load("--seed", "of every random draw", count(minimum=0, maximum=2**63), default="7"),
        _load("--concurrency", "closed loop: N requests in flight, each end releases the next", count()),
        _load("--stagger", "closed loop: spread the first wave over TIME", seconds(), "TIME", "0s", key="stagger_s"),
        _load("--rate", "open loop: requests per second, whatever the server does", _rate, "R"),
        _load(
            "--arrivals", f"open loop: {', '.join(ARRIVALS)}", one_of("arrival process", ARRIVALS), "NAME", "poisson"
        ),
        _load("--burstiness", "open loop: shape of gamma gaps, below 1 burstier than Poisson", _rate, "X", "1"),
        _load("--duration", "no arrivals after TIME", seconds(positive=True), "TIME", "no limit", key="duration_s"),
        _load("--shared-prefix-tokens", "tokens before the prompt that requests share", count(minimum=0), default="0"),
        _load("--prefixes", "how many different shared prefixes there are", count(), default="1"),
        _load("--turns", "turns of a session, each prompt holding the earlier turns", _lengths, "LENGTH", "1"),
        _load("--think-time", "pause between the turns of a session", seconds(), "TIME", "0s", key="think_s"),
        _load("--priorities", "levels of priority, equally likely, for --policy priority", count(), default="1"),
        _load("--retries", "how often a client comes back after a failure", count(minimum=0), default="0"),
        _load(
            "--backoff", "pause before the first retry, doubled for each next", seconds(), "TIME", "1s", key="backoff_s"
        ),
    ),
)

TRACE = Group(
    "trace",
    (
        _load("--trace", "replay the requests of FILE", text, "FILE", swept=False),
        _load(
            "--trace-format",
            f"instead of recognising it: {', '.join(TRACE_FORMATS)}",
            one_of("trace format", TRACE_FORMATS),
            "NAME",
            swept=False,
        ),
        _load(
            "--time-unit",
            f"of the trace's times, where that is ambiguous: {', '.join(TIME_UNITS)}",
            one_of("time unit", TIME_UNITS),
            "UNIT",
            swept=False,
        ),
        Option("--skip-bad-rows", "skip_bad_rows", "leave out rows that cannot be read, and count them"),
        _load("--speed", "replay the arrivals X times as fast", _rate, "X", "1"),
    ),
)

HORIZON = _load(
    "--horizon", "stop the simulation at TIME, whatever is unfinished", seconds(positive=True), "TIME", key="horizon_s"
)

WORKLOAD_GROUPS = (WORKLOAD, TRACE)

CONFIG = Option("--config", "config_file", "take every option from a document servesim wrote; flags win", text, "FILE")
JSON = Option("--json", "json", "print one JSON document instead of text")
OUTPUT = Option("--output", "output", "write the result to FILE, whole or not at all", text, "FILE", aliases=("-o",))
QUIET = Option("--quiet", "quiet", "no progress, no notes, no warnings on stderr")
SAVE = Option("--save", "save", "save every request's record to FILE (JSON lines)", text, "FILE")
SLO = Option(
    "--slo",
    "slo",
    "a limit on a share of the requests, such as ttft_p95=500ms; a comma list, or given again",
    text,
    "LIMIT",
    repeat=True,
)
JOBS = Option("--jobs", "jobs", "processes; the result does not depend on it", count(maximum=1024), default="1")

_TRACE_KEYS = ("trace", "trace_format", "time_unit", "skip_bad_rows", "speed")
_GENERATED_KEYS = (
    "prompt_tokens",
    "output_tokens",
    "shared_prefix_tokens",
    "prefixes",
    "turns",
    "think_s",
    "priorities",
)
_OPEN_KEYS = ("rate", "arrivals", "burstiness")

_REPLACES: dict[str, tuple[str, ...]] = {
    "concurrency": (*_OPEN_KEYS, "speed"),
    "rate": ("concurrency", "stagger_s", *_TRACE_KEYS),
    "burstiness": ("arrivals",),
    "trace": ("requests", "concurrency", "stagger_s", *_OPEN_KEYS, *_GENERATED_KEYS, *_TRACE_KEYS),
    **dict.fromkeys(_GENERATED_KEYS, _TRACE_KEYS),
    "kv_tokens": ("kv_blocks",),
    "kv_blocks": ("kv_tokens",),
}
"""What a flag puts out of a configuration from a file, since both cannot hold."""


def gather(parser: Parser, flags: dict[str, Any]) -> dict[str, Any]:
    """Return every value that was asked for, by key: those of `--config`, and over them the flags."""
    path = flags.get("config_file")
    if path is None:
        return flags
    config, written = read_config(path)
    values: dict[str, Any] = {}
    options = parser.options
    for key, value in config.items():
        option = options.get(key)
        if option is None:
            if not written:
                raise suggest(f"option in {path}", key, options)
        elif value is not None:
            values[key] = _checked(option, value, f"{path}: {key}", lists=parser.lists)
    if flags.keys() & SERVER_CHECKS.keys():
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


def workload_spec(values: dict[str, Any]) -> WorkloadSpec:
    """Return the workload that `values` ask for."""
    known = [option.key for group in WORKLOAD_GROUPS for option in group.options]
    return WorkloadSpec(**{key: values[key] for key in known if key in values})
