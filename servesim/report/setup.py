"""The configuration in force as a block of text: what was simulated, above what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.units import format_duration

LABEL = 13

_LIMITS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "slots",
    "long_prefill_token_threshold",
    "watermark",
    "max_tokens_in_flight",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
)
_SWITCHES = (
    ("prefix_caching", True, "prefix caching"),
    ("async_scheduling", True, "async scheduling"),
    ("chunked_prefill", False, "no chunked prefill"),
    ("scheduler_reserve_full_isl", False, "first chunk must fit"),
    ("like_vllm", True, "vLLM's defaults"),
)


def setup_text(config: Mapping[str, Any]) -> str:
    """Return the lines of the configuration `config`; what is off or has no part in the run is left out."""
    lines = [
        ("server", [_server(config), _cache(config)]),
        ("limits", [f"{name} {config[name]:,}" for name in _LIMITS if config[name]]),
        ("scheduler", _scheduler(config)),
        ("workload", _workload(config)),
    ]
    return "".join(f"{label:<{LABEL}}{'   '.join(parts)}\n" for label, parts in lines)


def _server(config: Mapping[str, Any]) -> str:
    """Return model, device and how many of them: of one data-parallel rank, which is what a run simulates."""
    devices = config["tensor_parallel_size"] * config.get("pipeline_parallel_size", 1)
    weights = f" in {config['quantization']}" if config.get("quantization") else ""
    return f"{config['model']}{weights} on {config['hardware']}" + (f" x {devices}" if devices > 1 else "")


def _cache(config: Mapping[str, Any]) -> str:
    return f"{config['num_blocks']:,} blocks of {config['block_size']} tokens"


def _scheduler(config: Mapping[str, Any]) -> list[str]:
    return [
        f"rules {config['rules']}",
        f"policy {config['policy']}" + (" (an oracle)" if config["policy"] == "sjf" else ""),
        *(told for name, shown_when, told in _SWITCHES if config[name] == shown_when),
    ]


def _workload(config: Mapping[str, Any]) -> list[str]:
    parts = []
    if config["trace"] is not None:
        parts.append(f"trace {config['trace']}" + (f" x {config['speed']:g}" if config["speed"] != 1 else ""))
    else:
        parts.append(f"{config['requests']:,} requests" if config["requests"] else "requests")
        parts.append(f"{config['prompt_tokens']} prompt, {config['output_tokens']} output tokens")
    if config["concurrency"] is not None:
        parts.append(f"concurrency {config['concurrency']:,}")
    if config["rate"] is not None:
        parts.append(f"{config['rate']:g}/s {config['arrivals']}")
    if config.get("ramp_s"):
        parts.append(f"ramp {format_duration(config['ramp_s'])}")
    if config["shared_prefix_tokens"]:
        parts.append(f"{config['prefixes']:,} shared prefix of {config['shared_prefix_tokens']:,}")
    if config["turns"] != "1":
        parts.append(f"{config['turns']} turns")
    for name, told in (("client_timeout_s", "timeout"), ("duration_s", "duration"), ("horizon_s", "horizon")):
        if config.get(name) is not None:
            parts.append(f"{told} {format_duration(config[name])}")
    if config["retries"]:
        parts.append(f"{config['retries']} retries")
    return [*parts, f"seed {config['seed']}"]
