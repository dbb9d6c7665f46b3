"""The figures of runs: summaries, grids of them, searches, and what a report gathers."""

from __future__ import annotations

from typing import Any, get_type_hints

from servesim.report.schemas.vocabulary import Many, Maybe, Part, fields_of
from servesim.stats import Distribution
from servesim.summary.metrics import EngineFigures, Offload, Summary, Throughput
from servesim.summary.slo import SloResult

SLO = fields_of(SloResult) | {"class_name?": get_type_hints(SloResult, include_extras=True)["class_name"]}
"""An objective; the probes of a search name no class with null."""

OFFLOAD = {
    **fields_of(Offload),
    "without?": Maybe(
        {
            "ttft_ms": Distribution | None,
            "e2e_ms": Distribution | None,
            "throughput": Throughput,
            "engine": EngineFigures,
        }
    ),
}

USAGE = {
    "device_hours": "number",
    "device_hours_by_kind": Many("number"),
    "device_seconds_per_request": "number|null",
    "cost?": "number: in the unit of the prices",
    "cost_per_1m_output_tokens?": "number|null",
    "cost_per_1k_requests?": "number|null",
    "energy?": Maybe(
        {
            "joules": "number",
            "mean_w": "number|null",
            "at_roofline": "number|null: fraction of the time",
            "joules_per_output_token": "number|null",
            "joules_per_request": "number|null",
            "method": "text",
            "source": Many("text"),
        }
    ),
}

HISTOGRAM = {
    "count": "integer|null",
    "mean": "number|null: seconds",
    **{
        name: Maybe({"gt": "number|null: seconds, above", "le": "number|null: seconds, at most"})
        for name in ("p50", "p90", "p95", "p99")
    },
}

CLIENT = {
    "verdict": "text|null: ok, marginal or saturated",
    "stamp_delay_ratio": "number|null: stamp delay by median TPOT, which the verdict is of",
    "stamp_delay_ms": "number|null: the largest of the three p99 below",
    "loop_lag_ms": "number|null: p99 of the heartbeat's lateness",
    "loop_lag_max_ms": "number|null",
    "turn_bound_ms": "number|null: p99 of the time between two looks at the sockets",
    "kernel_delay_ms": "number|null: p99 of the time that data lay in the kernel",
    "coalesced_fraction": "number|null: token events read together with an earlier one",
    "cpu_fraction": "number|null",
    "cpu_s": "number|null",
    "concurrency": {"asked": "integer|null", "mean": "number|null", "max": "integer|null"},
    "rate": {"asked": "number|null", "achieved": "number|null"},
    "stale_reconnects": "integer",
    "keep_alive": "flag|null",
    "processes": "integer",
}

SERVER = {
    "dialect": "text|null",
    "version": "text|null",
    "window_s": "number|null",
    "mean_batch": "number|null",
    "mean_batch_from": "text|null",
    "tokens_per_step": "number|null",
    "running": {"mean": "number|null", "max": "number|null"},
    "waiting": {"mean": "number|null", "max": "number|null"},
    "kv_mean": "number|null",
    "kv_peak": "number|null",
    "preemptions": "integer|null",
    "prefix_hit_rate": "number|null",
    "prompt_tokens": "integer|null",
    "cached_tokens": "integer|null",
    "output_tokens": "integer|null",
    **{name: Maybe(Part("histogram")) for name in ("ttft", "itl", "tpot", "queue", "e2e")},
    "counter_resets": "integer",
    "scrapes": "integer",
}

SUMMARY: dict[str, Any] = {
    **fields_of(Summary),
    "offload?": OFFLOAD,
    "usage?": USAGE,
    "client?": Maybe(Part("client")),
    "server?": Maybe(Part("server")),
}

BESIDE_A_SUMMARY: dict[str, Any] = {
    "explanation?": {
        "index": "integer",
        "id": "text",
        "outcome": "text",
        "reason": "text|null",
        "attempts": "integer",
        "prompt_tokens": "integer",
        "cached_tokens": "integer|null",
        "output_tokens": "integer",
        "sent_s": "number|null",
        "e2e_ms": "number|null",
        "phases_ms": Many("number"),
        "longest_gap_ms": "number|null",
        "longest_gap_after_token": "integer|null",
        "timeline": [{"phase": "text", "start_ms": "number", "end_ms": "number|null"}],
    },
    "cost?": [Part("cost")],
    "server_difference?": Maybe(Many("number|null: by how much the client's mean exceeds the server's, in ms")),
    "server_timings?": Many("number: mean over completed requests of what the server measured of each, in its words"),
    "prompt_accuracy?": Maybe(
        {
            "count": "integer",
            "within_tolerance": "number: fraction",
            "mean_error_tokens": "number",
            "max_error_tokens": "integer",
        }
    ),
    "warmup?": [Part("request")],
    "failures?": [{"kind": "text", "message": "text", "count": "integer"}],
    "setup?": "object: what the server told of itself",
    "repeats?": Many({"values": ["number|null"], "spread": "number|null: largest minus smallest, by the mean"}),
}
