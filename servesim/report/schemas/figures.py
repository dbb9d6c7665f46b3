"""The figures of runs: summaries, grids of them, searches, and what a report gathers."""

from __future__ import annotations

from typing import Any

from servesim.report.schemas.vocabulary import Many, Maybe, Part

DISTRIBUTION = {
    "count": "integer: values; percentiles are nearest rank, always a value that occurred",
    **dict.fromkeys(("mean", "min", "p50", "p90", "p95", "p99", "p999", "max"), "number"),
}

REQUESTS = {
    "offered": "integer: completed + failed + rejected + unfinished",
    "completed": "integer",
    "failed": "integer",
    "rejected": "integer: refused, for their size or a bounded queue",
    "unfinished": "integer: in flight when the run ended",
    "capped": "integer: of completed, ended by a length limit",
    "empty": "integer: of completed, without a token",
    "warmup": "integer: outside everything",
}

TOKENS = {
    "prompt": "integer: of completed requests",
    "output": "integer: of completed requests",
    "cached": "integer|null: of prompt, found in the prefix cache",
    "estimated": "integer: of output, counted from events for want of a usage report",
    "per_event": "number|null: output tokens per token event",
}

THROUGHPUT = {
    "output_tokens_per_s": "number|null: over duration_s",
    "total_tokens_per_s": "number|null: prompt and output",
    "requests_per_s": "number|null: completed",
}

ENGINE = {
    "steps": "integer|null",
    "mean_batch": "number|null: scheduled requests per step",
    "kv_peak": "number|null: fraction of the KV cache in use",
    "kv_mean": "number|null: fraction, over time",
    "preemptions": "integer|null",
    "evictions": "integer|null: cached blocks that made room",
    "prefix_hit_rate": "number|null: fraction of looked-up prompt tokens",
}

GOODPUT = {
    "requests_per_s": "number|null: requests within every limit",
    "fraction": "number|null: of the offered ones",
}

SLO = {
    "metric": "text",
    "percentile": "number",
    "limit_ms": "number",
    "value_ms": "number|null: null where it is infinite or unknown",
    "met": "flag|null",
    "class_name?": "text|null: the class of requests that it is asked of",
}

CLASS = {
    "name": "text|null",
    "requests": Part("requests"),
    "attempts": "integer",
    "tokens": Part("tokens"),
    "throughput": Part("throughput"),
    **{f"{name}_ms": Maybe(Part("distribution")) for name in ("ttft", "tpot", "itl", "e2e", "queue")},
    "normalized_latency_ms": "number|null: mean E2E by output tokens",
    "errors": Many("integer"),
    "goodput": Maybe(Part("goodput")),
}

REPLICA = {
    "replica": "integer",
    "name": "text",
    "role": "text: both, prefill or decode",
    "requests": "integer",
    "steps": "integer",
    "mean_batch": "number|null",
    "busy": "number|null: fraction of the run that it was in a step",
    "computed_tokens": "integer",
    "kv_peak": "number|null",
    "kv_mean": "number|null",
    "preemptions": "integer",
    "evictions": "integer",
    "prefix_hit_rate": "number|null",
}

LINK = {
    "moved_bytes": "integer",
    "transfers": "integer",
    "busy_s": "number",
    "busy": "number: fraction of the run",
}

TIER = {
    "tier": "text: host, disk",
    "block_bytes": "integer",
    "moved_bytes": "integer: over its link, both ways",
    "blocks": "integer|null: its size; null is no limit",
    "peak_blocks": "integer",
    "fallen_blocks": "integer: evicted into it",
    "fetched_blocks": "integer: that came back to the device",
    "dropped_blocks": "integer",
    "fetch_s": "number: time of the fetches",
}

OFFLOAD = {
    "tiers": [{**TIER, "size_bytes": "integer|null", "hit_rate": "number|null: of the looked-up tokens"}],
    "device_hit_rate": "number|null",
    "moved_bytes": "integer",
    "recompute_avoided_tokens": "integer: came over a link instead of being computed",
    "without?": Maybe(
        {
            "ttft_ms": Maybe(Part("distribution")),
            "e2e_ms": Maybe(Part("distribution")),
            "throughput": Part("throughput"),
            "engine": Part("engine"),
        }
    ),
}

SCALING = {
    "replica_seconds": "number: from each launch to the end of its drain",
    "seconds": ["number"],
    "minimum": "integer",
    "maximum": "integer",
    "end_s": "number",
    "peak": "integer: replicas at once",
    "lives": [
        {
            "replica": "integer",
            "launched_s": "number",
            "ready_s": "number|null",
            "drained_s": "number|null",
            "ended_s": "number|null",
        }
    ],
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

LATENCIES = {
    "ttft": "first token minus sent",
    "ttfo": "first visible output minus sent",
    "tpot": "last minus first token over the tokens between",
    "itl": "gaps between tokens, pooled over requests",
    "e2e": "last token minus sent",
    "queue": "first admitting step minus sent",
    "lateness": "sent minus planned",
    "ttft_from_planned": "first token minus planned",
    "e2e_from_planned": "last token minus planned",
}

SUMMARY: dict[str, Any] = {
    "source": ("simulated", "measured"),
    "requests": Part("requests"),
    "attempts": "integer: sends, the retries too",
    "tokens": Part("tokens"),
    "duration_s": "number|null: first send to last token",
    "throughput": Part("throughput"),
    **{f"{name}_ms": Maybe(Part("distribution"), about) for name, about in LATENCIES.items()},
    "prompt_tokens": Maybe(Part("distribution")),
    "output_tokens": Maybe(Part("distribution")),
    "errors": Many("integer"),
    "engine": Part("engine"),
    "per_replica?": [Part("replica")],
    "imbalance?": Many({"requests": "number|null", "computed_tokens": "number|null", "busy": "number|null"}),
    "stages_ms?": Many(Maybe(Part("distribution"))),
    "link?": Part("link"),
    "offload?": OFFLOAD,
    "speculation?": {
        "drafted_tokens": "integer",
        "accepted_tokens": "integer",
        "accepted_fraction": "number|null",
        "accepted_length": "number|null: tokens that one verification added",
    },
    "overload?": {
        "attempts": [{"sent": "integer", "completed": "integer", "gave_up": "integer", "unfinished": "integer"}],
        "wasted_tokens": "integer: computed for clients that had left",
        "wasted_fraction": "number|null",
    },
    "scaling?": SCALING,
    "usage?": USAGE,
    "classes?": [Part("class")],
    "fairness?": "number: Jain's index over the classes",
    "slo?": [Part("slo")],
    "goodput?": Part("goodput"),
    "warnings": ["text"],
    "violations": ["text: a law that the run broke"],
    "client?": Maybe(Part("client")),
    "server?": Maybe(Part("server")),
}

COST = {
    "what": "text",
    "steps": "integer",
    "step_ms": "number|null",
    "terms_ms": Many("number"),
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
