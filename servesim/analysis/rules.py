"""The rules of a diagnosis, in the order in which they are asked; the first that holds names the budget that binds.

Each rule is a row: what must be seen (`when`, which returns the evidence in words, or None), which budget is then
short, which knob to turn first, what each metric will do, and what will change nothing. A test runs every row's case in
the simulator: turning the knob moves the metrics as the row says, and turning what it calls useless does not.

The order is the scheduler's own: a request waits for a seat, for tokens of the step, or for KV blocks, and a full cache
shows itself (usage at 1, preemptions), so that what is left over can be told by elimination.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from servesim.analysis import symptoms
from servesim.analysis.binding import BANDWIDTH, COMPUTE, KV_BLOCKS, SEQUENCES, STEP_TOKENS
from servesim.analysis.evidence import Evidence
from servesim.analysis.remedies import (
    A_FASTER_CLIENT,
    FEWER_STEP_TOKENS,
    LESS_ARITHMETIC,
    LESS_READING,
    LONGER_CONTEXT,
    MORE_KV,
    MORE_LOAD,
    MORE_SEQUENCES,
    MORE_STEP_TOKENS,
    PREFIX_CACHING,
    SHORTER_QUEUE_OR_MORE_SERVERS,
    Remedy,
)

CLIENT, CONTEXT, QUEUE = "client", "context length", "queue"

UP, DOWN = "up", "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the table."""

    name: str
    symptom: str  # what a person sees
    budget: str
    when: Callable[[Evidence], str | None]
    remedy: Remedy
    expect: dict[str, str]  # metric of a summary -> up, down
    useless: dict[str, str]  # option -> why turning it changes nothing
    source: str


_SEATS_ARE_FREE = "seats are not what is short: the KV blocks run out first, so the same requests run"
_KV_IS_FREE = "KV blocks are not what is short"

RULES: tuple[Rule, ...] = (
    Rule(
        name="client-saturated",
        symptom="latencies that no server setting changes",
        budget=CLIENT,
        when=symptoms.client_saturated,
        remedy=A_FASTER_CLIENT,
        expect={},
        useless={"max_num_seqs": "the server is not what is slow"},
        source="the client's verdict: stamp delay against TPOT",
    ),
    Rule(
        name="kv-preemptions",
        symptom="a spinner, streams that stop for seconds, preemptions that climb",
        budget=KV_BLOCKS,
        when=symptoms.preempts_uncached,
        remedy=PREFIX_CACHING,
        expect={"preemptions": DOWN, "kv_peak": DOWN, "ttft_p95": DOWN, "throughput": UP, "prefix_hit_rate": UP},
        useless={"max_num_seqs": _SEATS_ARE_FREE},
        source="vllm/v1/core/sched/scheduler.py: out of blocks, the youngest is dropped and computed again",
    ),
    Rule(
        name="kv-preemptions-cached",
        symptom="preemptions although prefixes are shared",
        budget=KV_BLOCKS,
        when=symptoms.preempts,
        remedy=MORE_KV,
        expect={"preemptions": DOWN, "ttft_p95": DOWN, "throughput": UP},
        useless={"max_num_seqs": _SEATS_ARE_FREE},
        source="the same; the cache is on and what is shared is shared",
    ),
    Rule(
        name="kv-queue",
        symptom="a long queue, no preemptions, the cache full",
        budget=KV_BLOCKS,
        when=symptoms.kv_queue_uncached,
        remedy=PREFIX_CACHING,
        expect={"ttft_p95": DOWN, "queue_p95": DOWN, "throughput": UP, "prefix_hit_rate": UP},
        useless={"max_num_seqs": _SEATS_ARE_FREE},
        source="scheduler.py: the head of the queue is admitted only if its whole sequence fits",
    ),
    Rule(
        name="kv-queue-cached",
        symptom="a long queue, the cache full although prefixes are shared",
        budget=KV_BLOCKS,
        when=symptoms.kv_queue_cached,
        remedy=MORE_KV,
        expect={"ttft_p95": DOWN, "queue_p95": DOWN, "throughput": UP},
        useless={"max_num_seqs": _SEATS_ARE_FREE},
        source="the same; the cache is on and what is shared is shared",
    ),
    Rule(
        name="compute",
        symptom="everything slows down together as load grows",
        budget=COMPUTE,
        when=symptoms.compute,
        remedy=LESS_ARITHMETIC,
        expect={"ttft_p95": DOWN, "tpot_p50": DOWN, "throughput": UP},
        useless={"kv_tokens": _KV_IS_FREE + ": a larger batch would only make each step longer"},
        source="the roofline: 2 x params x tokens over FLOP/s against weights over bandwidth",
    ),
    Rule(
        name="sequences",
        symptom="a queue while the KV cache is half empty",
        budget=SEQUENCES,
        when=symptoms.seats,
        remedy=MORE_SEQUENCES,
        expect={"queue_p95": DOWN, "ttft_p95": DOWN, "throughput": UP, "tpot_p50": UP},
        useless={"kv_tokens": _KV_IS_FREE, "max_num_batched_tokens": "steps are not full"},
        source="scheduler.py: admission stops at max_num_seqs",
    ),
    Rule(
        name="step-tokens",
        symptom="a queue with seats and KV blocks left",
        budget=STEP_TOKENS,
        when=symptoms.step_tokens,
        remedy=MORE_STEP_TOKENS,
        expect={"queue_p95": DOWN, "ttft_p95": DOWN, "throughput": UP},
        useless={"kv_tokens": _KV_IS_FREE},
        source="scheduler.py: admission stops when the step's token budget is spent",
    ),
    Rule(
        name="prefill-spikes",
        symptom="streams that stutter whenever a long prompt arrives",
        budget=STEP_TOKENS,
        when=symptoms.spikes,
        remedy=FEWER_STEP_TOKENS,
        expect={"itl_p99": DOWN, "ttft_p50": UP},
        useless={"max_num_seqs": "it is one step's length, not the number of sequences", "kv_tokens": _KV_IS_FREE},
        source="Sarathi-Serve (arXiv:2403.02310): chunked prefill bounds the time between tokens",
    ),
    Rule(
        name="bandwidth",
        symptom="every token is slow, even with few users",
        budget=BANDWIDTH,
        when=symptoms.bandwidth,
        remedy=LESS_READING,
        expect={"tpot_p50": DOWN, "itl_p50": DOWN},
        useless={"max_num_seqs": "nobody waits for a seat", "max_num_batched_tokens": "steps are not full"},
        source="the roofline: a decode step reads every weight, however few sequences share it",
    ),
    Rule(
        name="refused-by-length",
        symptom="400s: the prompt is too long",
        budget=CONTEXT,
        when=symptoms.slot_too_small,
        remedy=LONGER_CONTEXT,
        expect={"rejected": DOWN, "completed": UP},
        useless={"max_num_batched_tokens": "a refusal by length comes before scheduling"},
        source="captures: exceed_context_size_error of llama.cpp, maximum context length of vLLM",
    ),
    Rule(
        name="refused-by-queue",
        symptom="429s",
        budget=QUEUE,
        when=symptoms.refused,
        remedy=SHORTER_QUEUE_OR_MORE_SERVERS,
        expect={"rejected": DOWN, "ttft_p95": DOWN},
        useless={"max_num_queued_reqs": "served are as many as before: the throughput stays, the waiting grows"},
        source="queueing: a server that is offered more than it can do refuses or delays, whatever the queue's length",
    ),
    Rule(
        name="client-limits",
        symptom="throughput far below what the device could do",
        budget=CLIENT,
        when=symptoms.client_limits,
        remedy=MORE_LOAD,
        expect={"throughput": UP, "mean_batch": UP},
        useless={"max_num_seqs": "seats are empty as it is", "kv_tokens": _KV_IS_FREE},
        source="Little's law: throughput is what is in flight over the time it takes",
    ),
)
