"""A simulated case for each rule of a diagnosis: a server on which it holds, the knob turned, and the useless ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from servesim import simulate
from servesim.config.build import build_server
from servesim.config.option import given_of
from servesim.config.server import ServerSpec
from servesim.diagnose.diagnose import metrics_of
from servesim.diagnose.state import ServerState, of_summary, with_server
from servesim.summary.slo import parse_slos
from servesim.summary.summary import Summary, summarize


@dataclass(frozen=True, kw_only=True)
class RuleCase:
    """Options of a run on which the rule holds, what turning its knob is, and the useless changes."""

    base: dict[str, Any]
    turned: dict[str, Any]
    useless: dict[str, dict[str, Any]] = field(default_factory=dict)
    slo: tuple[str, ...] = ()


BURST = {"hardware": "l4-24gb", "trace": "fixtures/burst.jsonl"}
CROWD = {"hardware": "l4-24gb", "requests": 64, "concurrency": 64}
OWN = {**CROWD, "concurrency": 32, "prompt_tokens": "1000-1500", "output_tokens": "200-400", "prefix_caching": True}
SHARED = {**CROWD, "prompt_tokens": "200-400", "output_tokens": "4", "shared_prefix_tokens": 1024}
WATERMARK = {
    "concurrency": 64,
    "requests": 200,
    "kv_tokens": 20_000,
    "watermark": 0.28,  # admits late enough that nobody is preempted
    "prompt_tokens": "500",
    "output_tokens": "200",
    "prefix_caching": True,
}
MORE_SEATS = {"max_num_seqs": {"max_num_seqs": 512}}

CASES: dict[str, RuleCase] = {
    "kv-preemptions": RuleCase(base=BURST, turned={"prefix_caching": True}, useless=MORE_SEATS),
    "kv-preemptions-cached": RuleCase(base=OWN, turned={"kv_cache_dtype": "fp8"}, useless=MORE_SEATS),
    "kv-queue": RuleCase(base=SHARED, turned={"prefix_caching": True}, useless=MORE_SEATS),
    "kv-queue-cached": RuleCase(base=WATERMARK, turned={"kv_tokens": 40_000}, useless=MORE_SEATS),
    "compute": RuleCase(
        base={"rate": 40, "requests": 600},
        turned={"tensor_parallel_size": 2},
        useless={"kv_tokens": {"kv_tokens": 400_000}},
    ),
    "sequences": RuleCase(
        base={"max_num_seqs": 16, "concurrency": 64, "requests": 256},
        turned={"max_num_seqs": 64},
        useless={"kv_tokens": {"kv_tokens": 400_000}, "max_num_batched_tokens": {"max_num_batched_tokens": 16384}},
    ),
    "step-tokens": RuleCase(
        base={
            "max_num_batched_tokens": 64,
            "max_num_seqs": 64,
            "rate": 10,
            "requests": 200,
            "prompt_tokens": "1000",
            "output_tokens": "16",
        },
        turned={"max_num_batched_tokens": 512},
        useless={"kv_tokens": {"kv_tokens": 400_000}},
    ),
    "prefill-spikes": RuleCase(
        base={"rate": 2, "requests": 200, "prompt_tokens": "4000-8000", "output_tokens": "100"},
        turned={"max_num_batched_tokens": 512},
        useless={"kv_tokens": {"kv_tokens": 400_000}, **MORE_SEATS},
    ),
    "bandwidth": RuleCase(
        base={"hardware": "l4-24gb", "rate": 0.2, "requests": 40},
        turned={"quantization": "awq"},
        useless={**MORE_SEATS, "max_num_batched_tokens": {"max_num_batched_tokens": 16384}},
        slo=("tpot_p50=50ms",),
    ),
    "refused-by-length": RuleCase(
        base={"slots": 4, "kv_tokens": 4096, "requests": 8, "prompt_tokens": "1500", "output_tokens": "8"},
        turned={"slots": 2},
        useless={"max_num_batched_tokens": {"max_num_batched_tokens": 16384}},
    ),
    "refused-by-queue": RuleCase(
        base={"hardware": "l4-24gb", "rate": 3, "requests": 300, "max_num_queued_reqs": 16},
        turned={"rate": 1.5},  # what a second replica leaves to each
        useless={"max_num_queued_reqs": {"max_num_queued_reqs": 64}},
    ),
    "client-limits": RuleCase(
        base={"concurrency": 4, "requests": 64},
        turned={"concurrency": 16},
        useless={"kv_tokens": {"kv_tokens": 400_000}, **MORE_SEATS},
    ),
}

NOT_SIMULATED = {"client-saturated"}  # a property of the load generator, which a simulation does not have


def run_case(options: dict[str, Any], slo: tuple[str, ...] = ()) -> tuple[Summary, ServerState]:
    """Simulate and return the summary and what a diagnosis knows of it."""
    run = simulate(**options)
    summary = summarize(run, parse_slos(slo))
    asked = given_of(ServerSpec, run.config)
    server = build_server(ServerSpec(**asked))
    return summary, with_server(of_summary(summary.as_dict(), run.config, source="simulated"), server)


def metrics(summary: Summary) -> dict[str, float]:
    """Return the metrics that rules make promises about."""
    return metrics_of(summary.as_dict())
