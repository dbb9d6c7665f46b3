"""The bodies of documents: those of their dataclasses, and tables for what no dataclass holds.

A run's summary and what stands beside it, grids of summaries, searches, reports; models, devices and formats.
"""

from __future__ import annotations

from typing import Any, get_type_hints

from servesim.client.prompts import PromptAccuracy
from servesim.client.scan import Scan
from servesim.report.loadgen import Failure, Repeats
from servesim.report.schemas.answers import FITTED
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
    "prompt_accuracy?": Maybe(PromptAccuracy),
    "warmup?": [Part("request")],
    "failures?": [Failure],
    "setup?": "object: what the server told of itself",
    "repeats?": Many(Repeats),
}

ROW = {"swept": "object: the swept values of the row, which stand beside its summary as well", **SUMMARY}

SWEEP = {
    "rows": [ROW],
    "knee": "integer|null: the row with the most throughput per latency, counted from 0",
    "scan?": Scan,
    "stops_paying?": "integer|null: the size of the KV tiers from which more does not pay",
    "crossings?": [
        {
            "engines": "integer",
            "colocated_ttft_p95_ms": "number|null",
            "apart_ttft_p95_ms": "number|null",
            "bytes_per_s": "number|null: below it, colocated engines win",
            "worse_bytes_per_s": "number|null",
        }
    ],
}

FIND = {
    "found": {
        "searched": ("concurrency", "rate"),
        "concurrency?": "number|null: the highest that meets the objectives",
        "rate?": "number|null: the highest that meets the objectives",
        "next": "number|null: the lowest above it that was tried",
        "limit": ("slo", "client", "maximum", "probes"),
        "probes": [
            {
                "concurrency?": "number",
                "rate?": "number",
                "answer": ("met", "missed", "discarded"),
                "slo": [Part("slo")],
            }
        ],
    },
    "summary": Maybe(Part("summary")),
}

NAMED = {"name": "text", "path": "text", "command": "text", "partial": "flag", "config": "object"}

REPORT = {
    "title": "text",
    "runs": [{**NAMED, **SUMMARY}],
    "grids": [{**NAMED, "rows": ["object: as in the document that it was read from"], "knee": "integer|null"}],
}

DEVICE_FIELDS = {
    "name": "text",
    "base?": "text: the preset that it came from",
    "memory_gib": "number",
    "bandwidth_gb_s": "number",
    "tflops": "number: dense 16-bit",
    "fp8_tflops": "number|null: null where it has no such units",
    "reserve_gib": "number",
    "mfu": "number: share of the arithmetic that is reached",
    "mbu": "number: share of the bandwidth that is reached",
    "overhead_ms": "number: of a step",
    "bus_gb_s": "number|null: between devices, one way",
    "peak_w": "number|null",
    "idle_w": "number|null",
    "power_source": "text",
    "kind": "text: gpu, unified or cpu",
    "source": "text",
    "date": "text",
    "detailed": Maybe(Many("number: a parameter of --cost-model detailed")),
    "fitted": "text: how the figures came about",
    "fitted_for": "text: the cost model that they were fitted for",
    "note": "text",
}

DEVICE = {**DEVICE_FIELDS, "provenance?": {"files": ["text"], **FITTED}}

HARDWARE = {"devices": [{"schema": "text", **DEVICE_FIELDS}]}

MODELS = {
    "models?": [
        {
            "name": "text",
            "params": "integer",
            "active_params": "integer: of one token",
            "attention": [
                {
                    "layers": "integer",
                    "kv_heads": "integer",
                    "head_dim": "integer",
                    "value_dim": "integer|null",
                    "latent_dim": "integer|null",
                    "index_bytes": "integer|null",
                    "window": "integer|null: tokens that it looks back",
                    "state_bytes": "integer|null",
                    "idle": "flag",
                }
            ],
            "heads": "integer",
            "hidden": "integer",
            "intermediate": "integer",
            "mlp_layers": "integer|null",
            "gated": "flag",
            "vocab": "integer",
            "tied_embeddings": "flag",
            "experts": Maybe(
                {
                    "layers": "integer",
                    "count": "integer",
                    "top_k": "integer",
                    "intermediate": "integer",
                    "shared": "integer",
                    "shared_intermediate": "integer|null",
                }
            ),
            "weight_dtype": "text",
            "kept_params": "integer: that quantisation leaves as they are",
            "kept_dtype": "text",
            "file_bytes": "integer|null",
            "kv_dtype": "text",
            "source": "text",
            "date": "text",
            "compute_params": "integer",
            "layers": "integer",
            "parts": Many("integer: parameters"),
            "weights_bytes": "integer",
            "kv_bytes_per_token": "integer|null: null where it depends on the length",
            "kv_bytes_of_4096_tokens": "integer",
        }
    ],
    "formats?": [
        {
            "name": "text",
            "bits": "number: of a weight, scales included",
            "covers": "text",
            "compute": "text",
            "source": "text",
        }
    ],
}

SCHEMAS_THERE_ARE = {
    "schemas": [
        {
            "name": "text",
            "id": "text: as in a document's schema",
            "about": "text",
            "lines": "flag: of one line of a file",
        }
    ]
}
