"""The configuration in force as a block of text: what was simulated, above what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.engine.offload import DEFAULT_LINK
from servesim.fleet.autoscale import FIGURES
from servesim.report.numbers import bandwidth
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
    lines = []
    for kind in (config.get("fleet") or {"replicas": [{"effective": config}]})["replicas"]:
        server = kind["effective"]
        lines += [
            ("server", [_count(kind) + _server(server), _cache(server), *_role(kind)]),
            ("limits", [f"{name} {server[name]:,}" for name in _LIMITS if server[name]]),
            ("scheduler", _scheduler(server)),
        ]
    together = _together(config)
    if together:
        lines.append(("fleet", together))
    beside = _beside(config)
    if beside:
        lines.append(("beside", beside))
    lines.append(("workload", _workload(config)))
    return "".join(f"{label:<{LABEL}}{'   '.join(parts)}\n" for label, parts in lines)


def _count(kind: Mapping[str, Any]) -> str:
    return f"{kind['count']:,} x " if "count" in kind else ""


def _role(kind: Mapping[str, Any]) -> list[str]:
    return [kind["role"]] if kind.get("role", "both") != "both" else []


def _together(config: Mapping[str, Any]) -> list[str]:
    """Return how many engines there are and what is between them; nothing for a lone engine."""
    ranks = config.get("data_parallel_size", 1)
    by_rank = f" x {ranks} data-parallel ranks" if ranks > 1 else ""
    if config.get("disagg"):
        prefill, _, decode = config["disagg"].partition(":")
        parts = [f"{prefill} prefill, {decode} decode engines{by_rank}"]
    elif config.get("fleet"):
        parts = [f"{sum(kind['count'] for kind in config['fleet']['replicas']):,} replicas{by_rank}"]
    elif config.get("replicas", 1) * ranks > 1:
        parts = [f"{config['replicas']:,} replicas{by_rank}"]
    else:
        return []
    parts.append(f"router {config['router']}")
    if config["link_bytes_per_s"] is not None:
        parts.append(f"link {bandwidth(config['link_bytes_per_s'])}, {config['link_scope']}")
        if config["link_latency_s"]:
            parts.append(f"latency {format_duration(config['link_latency_s'])}")
        if config["transfer_overlap"] != "none":
            parts.append(f"overlap {config['transfer_overlap']}")
    return parts


def _beside(config: Mapping[str, Any]) -> list[str]:
    """Return what is on of that which may be off: drafts, tiers below the device, adapters, growing and shrinking."""
    parts = []
    if config.get("spec_tokens"):
        parts.append(f"{config['spec_tokens']} drafted tokens, acceptance {config['acceptance']}")
    if config.get("kv_offload"):
        overlap = ", overlapped" if config.get("offload_overlap") else ""
        parts.append(f"KV tiers {config['kv_offload']} over {config.get('offload_link', DEFAULT_LINK)}{overlap}")
    if config.get("max_loras"):
        parts.append(f"{config['max_loras']} adapters of rank {config.get('adapter_rank', 16)}")
    if config.get("autoscale"):
        start, rest = (format_duration(config[key]) for key in ("cold_start_s", "cool_down_s"))
        on, at = config["scale_on"], config["scale_target"]
        target = format_duration(at) if on in FIGURES and FIGURES[on].is_time else f"{at:g}"
        parts.append(f"autoscale {config['autoscale']} on {on} {target}")
        parts.append(f"cold start {start}, cool-down {rest}")
    return parts


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
    if config.get("rate_schedule"):
        parts.append(f"rate schedule {config['rate_schedule']} {config['arrivals']}")
    if config.get("classes"):
        parts.append(f"classes {config['classes']}")
    if config.get("adapters"):
        parts.append(f"{config['adapters']:,} adapters")
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
        budget = f", budget {config['retry_budget']:g}" if config.get("retry_budget") is not None else ""
        parts.append(f"{config['retries']} retries{budget}")
    return [*parts, f"seed {config['seed']}"]
