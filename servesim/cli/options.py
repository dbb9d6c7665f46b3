"""The options of a server and of a result, each defined once; how flags and `--config` become one set of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from servesim.catalog.hardware import load_hardware
from servesim.catalog.models import load_model
from servesim.cli.parser import Parser
from servesim.config.build import build_server
from servesim.config.document import read_config
from servesim.config.option import Option, count, groups_of, seconds, spec_of, text
from servesim.config.server import DERIVED, SERVER_CHECKS, ServerSpec
from servesim.errors import InputError, ServesimError
from servesim.units import suggest

DEVICE, LIMITS, QUEUE, TIERS, SPECULATION, ADAPTERS, COST = groups_of(ServerSpec)
SERVER_GROUPS = (DEVICE, LIMITS, QUEUE, SPECULATION, TIERS, ADAPTERS, COST)

CONFIG = Option("--config", "config_file", "take every option from a document servesim wrote; flags win", text, "FILE")
LIKE = Option("--like", "like", "start from a run that loadgen measured: its server and its load", text, "RUN")
JSON = Option("--json", "json", "print one JSON document instead of text", common=True)
OUTPUT = Option(
    "--output",
    "output",
    "write the result to FILE, whole or not at all",
    text,
    "FILE",
    aliases=("-o",),
    writes=True,
    common=True,
)
PLOT = Option("--plot", "plot", "draw it below the text: sparklines and a histogram, or bars of the rows")
QUIET = Option("--quiet", "quiet", "no progress, no notes, no warnings on stderr")
SAVE = Option(
    "--save", "save", "save every request's record to FILE (JSON lines)", text, "FILE", writes=True, common=True
)
TOKEN_TIMES = Option("--token-times", "token_times", "with --save: also the time of every token")
JOBS = Option("--jobs", "jobs", "processes; the result does not depend on it", count(maximum=1024), default="1")
SLO = Option(
    "--slo",
    "slo",
    "a limit on a share of the requests, such as ttft_p95=500ms; a comma list, or given again",
    text,
    "LIMIT",
    repeat=True,
    common=True,
)
HORIZON = Option(
    "--horizon",
    "horizon_s",
    "stop the simulation at TIME, whatever is unfinished",
    seconds(positive=True),
    "TIME",
    "run to the end",
    swept=True,
)

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
    check = option.check
    if not isinstance(value, list):
        return [check(value, name)] if option.repeat else check(value, name)
    if option.repeat or (lists and option.swept):
        return [check(item, name) for item in value]
    raise InputError(f"{name} is a list, and only sweep takes several values")


def _without_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out what the configured server would have had anyway, so that another device brings its own defaults."""
    asked = {key: value for key, value in values.items() if key not in DERIVED}
    try:
        server = build_server(spec_of(ServerSpec, asked)).spec
    except ServesimError:
        return values
    return asked | {key: values[key] for key in DERIVED if key in values and values[key] != getattr(server, key)}
