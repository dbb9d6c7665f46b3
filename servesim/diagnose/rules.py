"""The rules of a diagnosis, in the order in which they are asked; the first that holds names the budget that binds.

Each rule is a row: what must be seen (`when`, which returns the evidence in words, or None), which budget is then
short, which knob to turn first (`remedy`), what each metric will do, and what will change nothing. A quantity that
nobody reported decides nothing: a rule that needs it does not hold. A test runs every row's case in the simulator:
turning the knob moves the metrics as the row says, and turning what it calls useless does not.

The order is the scheduler's own: a request waits for one of `max_num_seqs` slots, for tokens of the step, or for KV
blocks, and a full cache shows itself (usage at 1, preemptions), so that the rest follows by elimination.

Below stand, in this order: the remedies, with the knobs of the three servers (a plan takes its "what would have to
change" from the same table), what must be seen for each rule, and the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from servesim.config.build import Server
from servesim.diagnose.binding import BANDWIDTH, COMPUTE, KV_BLOCKS, SEQUENCES, STEP_TOKENS
from servesim.diagnose.state import ServerState
from servesim.units import format_duration

CLIENT, CONTEXT, QUEUE = "client", "context length", "queue"
"""Budgets beside those of `binding`."""

UP, DOWN = "up", "down"

STUTTER_S = 0.1  # a pause between two tokens that a reader notices

# Remedies

Fix = Callable[[Server], dict[str, Any]]
"""Takes a simulated server, returns the options that change when the knob is turned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """How to get more of one budget. Knobs are the servers' own flags, with what to do with them.

    `fix` is the same in the simulator, None where the knob is not one of its server's.
    """

    change: str
    vllm: str
    llama_cpp: str
    sglang: str
    fix: Fix | None = None

    def knobs(self) -> dict[str, str]:
        return {"vllm": self.vllm, "llama.cpp": self.llama_cpp, "sglang": self.sglang}


def _share_prefixes(server: Server) -> dict[str, Any]:
    return {"prefix_caching": True}


def _narrow_kv(server: Server) -> dict[str, Any]:
    return {"kv_cache_dtype": "fp8", "kv_tokens": _twice(server.spec.kv_tokens)}


def _double_devices(server: Server) -> dict[str, Any]:
    return {"tensor_parallel_size": 2 * server.spec.tensor_parallel_size}


def _double_sequences(server: Server) -> dict[str, Any]:
    doubled = 2 * server.config.max_num_seqs
    return {"max_num_seqs": doubled, "max_num_batched_tokens": max(doubled, server.config.max_num_batched_tokens)}


def _double_step_tokens(server: Server) -> dict[str, Any]:
    return {"max_num_batched_tokens": 2 * server.config.max_num_batched_tokens}


def _quarter_step_tokens(server: Server) -> dict[str, Any]:
    config = server.config
    return {"max_num_batched_tokens": max(256, config.max_num_seqs, config.max_num_batched_tokens // 4)}


def _narrow_weights(server: Server) -> dict[str, Any]:
    return {"quantization": "fp8"}


def _twice(value: int | None) -> int | None:
    return None if value is None else 2 * value


MORE_SEQUENCES = Remedy(
    change="more sequences at once",
    vllm="--max-num-seqs, higher",
    llama_cpp="--parallel, higher, with --kv-unified or a --ctx-size that grows with it",
    sglang="--max-running-requests, higher",
    fix=_double_sequences,
)
MORE_STEP_TOKENS = Remedy(
    change="more tokens per step",
    vllm="--max-num-batched-tokens, higher",
    llama_cpp="--batch-size and --ubatch-size, higher",
    sglang="--chunked-prefill-size, higher",
    fix=_double_step_tokens,
)
FEWER_STEP_TOKENS = Remedy(
    change="fewer tokens per step, so that prompts delay the others' tokens less",
    vllm="--max-num-batched-tokens, lower",
    llama_cpp="--batch-size, lower",
    sglang="--chunked-prefill-size, lower",
    fix=_quarter_step_tokens,
)
PREFIX_CACHING = Remedy(
    change="share the KV of equal prefixes",
    vllm="--enable-prefix-caching",
    llama_cpp="--cache-prompt (on by default) and --cache-reuse: per slot, so keep a user on a slot (id_slot)",
    sglang="leave out --disable-radix-cache",
    fix=_share_prefixes,
)
MORE_KV = Remedy(
    change="a larger KV cache",
    vllm="--gpu-memory-utilization, higher; --kv-cache-dtype fp8; quantised weights",
    llama_cpp="--ctx-size, higher; --cache-type-k q8_0 --cache-type-v q8_0",
    sglang="--mem-fraction-static, higher; --kv-cache-dtype fp8_e4m3",
    fix=_narrow_kv,
)
LESS_READING = Remedy(
    change="fewer bytes to read per step",
    vllm="--quantization (fp8, awq) or --tensor-parallel-size, higher",
    llama_cpp="a model file with fewer bits (Q4_K_M)",
    sglang="--quantization or --tp-size, higher",
    fix=_narrow_weights,
)
LESS_ARITHMETIC = Remedy(
    change="less arithmetic per device",
    vllm="another replica, or --tensor-parallel-size, higher; --quantization fp8 where the device computes in it",
    llama_cpp="another server, or a faster device",
    sglang="another replica, or --tp-size, higher",
    fix=_double_devices,
)

MORE_LOAD = Remedy(
    change="more load from the client",
    vllm="none: the server waits for requests; raise the client's concurrency or rate",
    llama_cpp="none: raise the client's concurrency",
    sglang="none: raise the client's concurrency",
)
A_FASTER_CLIENT = Remedy(
    change="a load generator that keeps up",
    vllm="none: give the load generator more --processes, or another machine",
    llama_cpp="none: the same",
    sglang="none: the same",
)
LONGER_CONTEXT = Remedy(
    change="room for longer requests",
    vllm="--max-model-len, higher",
    llama_cpp="--ctx-size, higher, or fewer --parallel, or --kv-unified: a slot has ctx-size / parallel tokens",
    sglang="--context-length, higher",
)
SHORTER_QUEUE_OR_MORE_SERVERS = Remedy(
    change="more replicas; a longer queue only turns refusals into waiting",
    vllm="another replica; not --max-num-queued-reqs",
    llama_cpp="another server",
    sglang="another replica; not --max-queued-requests",
)

REMEDIES: dict[str, Remedy] = {
    SEQUENCES: MORE_SEQUENCES,
    STEP_TOKENS: MORE_STEP_TOKENS,
    KV_BLOCKS: MORE_KV,
    COMPUTE: LESS_ARITHMETIC,
    BANDWIDTH: LESS_READING,
}
"""The first remedy of each budget of `binding`."""


# What must be seen


def client_saturated(s: ServerState) -> str | None:
    if s.client_verdict == "saturated":
        return "the load generator's own verdict is saturated: what it measured is partly itself"
    return None


def slot_too_small(s: ServerState) -> str | None:
    count = sum(s.errors.get(kind, 0) for kind in ("prompt_too_long", "over_kv_cache"))
    if not count:
        return None
    most = "" if s.max_model_len is None else f"; a request may have {s.max_model_len:,} tokens"
    return f"{count:,} requests were refused for their length{most}"


def preempts(s: ServerState) -> str | None:
    if not s.preemptions or s.kv_full is False:
        return None
    use = "" if s.kv_peak is None else f", KV use {s.kv_peak:.0%} at its peak"
    return f"{s.preemptions:,} preemptions{use}{_waiting(s)}"


def preempts_uncached(s: ServerState) -> str | None:
    return preempts(s) if s.prefix_caching is False or (s.prefix_caching is None and not s.prefix_hit_rate) else None


def _kv_queue(s: ServerState) -> str | None:
    if not s.queueing or s.kv_full is not True or s.max_num_seqs_reached:
        return None
    return f"KV use {s.kv_peak:.0%} at its peak{_waiting(s)}"


def kv_queue_uncached(s: ServerState) -> str | None:
    return _kv_queue(s) if s.prefix_caching is False or (s.prefix_caching is None and not s.prefix_hit_rate) else None


def kv_queue_cached(s: ServerState) -> str | None:
    return None if s.compute_bound else _kv_queue(s)  # more requests at once would only make each step longer


def compute(s: ServerState) -> str | None:
    if not s.compute_bound or s.tokens_per_step is None or s.critical_tokens is None:
        return None
    if not (s.queueing or s.missed or _slow_steps(s)):
        return None
    return (
        f"{s.tokens_per_step:,.0f} tokens per step on average: arithmetic takes longer than reading the weights "
        f"from {s.critical_tokens:,.0f} on{_waiting(s)}"
    )


def sequences(s: ServerState) -> str | None:
    if not s.queueing or s.kv_full:
        return None
    if s.max_num_seqs_reached:
        most = s.running_max if s.running_max is not None else s.mean_batch
        return f"{most:,.0f} running of {s.max_num_seqs:,} max_num_seqs slots{_waiting(s)}{_kv_room(s)}"
    if s.dialect == "llama.cpp":
        return f"llama.cpp defers requests for want of a slot only{_waiting(s)}"
    if s.max_num_seqs is None and s.running and s.kv_peak is not None and s.running == s.running_max:
        return f"{s.running:,.0f} running, no more and no fewer{_waiting(s)}{_kv_room(s)}; slots by elimination"
    return None


def step_tokens(s: ServerState) -> str | None:
    if not s.queueing or s.kv_full or s.max_num_seqs_reached is not False:
        return None
    if s.tokens_per_step is None or s.max_num_batched_tokens is None:
        return None
    if s.tokens_per_step < 0.5 * s.max_num_batched_tokens:
        return None
    return (
        f"{s.tokens_per_step:,.0f} tokens per step of {s.max_num_batched_tokens:,} allowed"
        f"{_waiting(s)}, with max_num_seqs slots and KV blocks left"
    )


def spikes(s: ServerState) -> str | None:
    if s.preemptions or not s.itl_p50_s or s.itl_p99_s is None or s.itl_p99_s < 4 * s.itl_p50_s:
        return None
    if s.itl_p99_s < STUTTER_S or (s.max_num_batched_tokens is not None and s.max_num_batched_tokens <= 512):
        return None
    return (
        f"ITL p99 {format_duration(s.itl_p99_s)} against p50 {format_duration(s.itl_p50_s)} without a preemption: "
        "a long prompt in a step delays everybody's token"
    )


def bandwidth(s: ServerState) -> str | None:
    slow = [name for name in s.missed if name.startswith(("tpot", "itl", "e2e"))]
    if not slow or s.queueing or s.preemptions:
        return None
    if s.compute_bound is not False or s.tokens_per_step is None or s.critical_tokens is None:
        return None
    floor = "" if s.floor_step_s is None else f", {format_duration(s.floor_step_s)} of which one sequence alone takes"
    return (
        f"{', '.join(slow)} missed with nobody waiting: {s.tokens_per_step:,.0f} tokens per step are below the "
        f"{s.critical_tokens:,.0f} where arithmetic begins to decide, so a step is the reading of weights and KV{floor}"
    )


def refused(s: ServerState) -> str | None:
    count = s.errors.get("queue_full", 0)
    return f"{count:,} requests were refused because the queue was full" if count else None


def client_limits(s: ServerState) -> str | None:
    if s.concurrency is None or s.max_num_seqs is None or s.missed or s.queueing or s.preemptions or s.kv_full:
        return None
    busy = s.in_flight if s.in_flight is not None else s.mean_batch
    if s.concurrency > 0.5 * s.max_num_seqs or busy is None or busy < 0.8 * s.concurrency:
        return None
    if s.critical_tokens is not None and s.tokens_per_step is not None and s.tokens_per_step > s.critical_tokens / 2:
        return None
    return (
        f"{busy:,.1f} of {s.concurrency:,} requests in flight run, and none waits: the client sends no more than that"
        f"{_kv_room(s)}"
    )


def _waiting(s: ServerState) -> str:
    if s.waiting:
        return f", {s.waiting:,.0f} waiting"
    if s.queueing and s.queue_p95_s is not None:
        return f", queue p95 {format_duration(s.queue_p95_s)}"
    return ""


def _kv_room(s: ServerState) -> str:
    return "" if s.kv_peak is None else f", KV use {s.kv_peak:.0%}"


def _slow_steps(s: ServerState) -> bool:
    """Whether a token takes twice as long as it would alone."""
    return s.floor_step_s is not None and s.tpot_p50_s is not None and s.tpot_p50_s > 2 * s.floor_step_s


# The rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the table."""

    name: str
    symptom: str  # what a person sees
    budget: str
    when: Callable[[ServerState], str | None]
    remedy: Remedy
    expect: dict[str, str]  # metric of a summary -> up, down
    useless: dict[str, str]  # option -> why turning it changes nothing
    source: str


_SLOTS_ARE_FREE = "slots are not what is short: the KV blocks run out first, so the same requests run"
_KV_IS_FREE = "KV blocks are not what is short"

RULES: tuple[Rule, ...] = (
    Rule(
        name="client-saturated",
        symptom="latencies that no server setting changes",
        budget=CLIENT,
        when=client_saturated,
        remedy=A_FASTER_CLIENT,
        expect={},
        useless={"max_num_seqs": "the server is not what is slow"},
        source="the client's verdict: stamp delay against TPOT",
    ),
    Rule(
        name="kv-preemptions",
        symptom="a spinner, streams that stop for seconds, preemptions that climb",
        budget=KV_BLOCKS,
        when=preempts_uncached,
        remedy=PREFIX_CACHING,
        expect={"preemptions": DOWN, "kv_peak": DOWN, "ttft_p95": DOWN, "throughput": UP, "prefix_hit_rate": UP},
        useless={"max_num_seqs": _SLOTS_ARE_FREE},
        source="vllm/v1/core/sched/scheduler.py: out of blocks, the youngest is dropped and computed again",
    ),
    Rule(
        name="kv-preemptions-cached",
        symptom="preemptions although prefixes are shared",
        budget=KV_BLOCKS,
        when=preempts,
        remedy=MORE_KV,
        expect={"preemptions": DOWN, "ttft_p95": DOWN, "throughput": UP},
        useless={"max_num_seqs": _SLOTS_ARE_FREE},
        source="the same; the cache is on and what is shared is shared",
    ),
    Rule(
        name="kv-queue",
        symptom="a long queue, no preemptions, the cache full",
        budget=KV_BLOCKS,
        when=kv_queue_uncached,
        remedy=PREFIX_CACHING,
        expect={"ttft_p95": DOWN, "queue_p95": DOWN, "throughput": UP, "prefix_hit_rate": UP},
        useless={"max_num_seqs": _SLOTS_ARE_FREE},
        source="scheduler.py: the head of the queue is admitted only if its whole sequence fits",
    ),
    Rule(
        name="kv-queue-cached",
        symptom="a long queue, the cache full although prefixes are shared",
        budget=KV_BLOCKS,
        when=kv_queue_cached,
        remedy=MORE_KV,
        expect={"ttft_p95": DOWN, "queue_p95": DOWN, "throughput": UP},
        useless={"max_num_seqs": _SLOTS_ARE_FREE},
        source="the same; the cache is on and what is shared is shared",
    ),
    Rule(
        name="compute",
        symptom="everything slows down together as load grows",
        budget=COMPUTE,
        when=compute,
        remedy=LESS_ARITHMETIC,
        expect={"ttft_p95": DOWN, "tpot_p50": DOWN, "throughput": UP},
        useless={"kv_tokens": _KV_IS_FREE + ": a larger batch would only make each step longer"},
        source="the roofline: 2 x params x tokens over FLOP/s against weights over bandwidth",
    ),
    Rule(
        name="sequences",
        symptom="a queue while the KV cache is half empty",
        budget=SEQUENCES,
        when=sequences,
        remedy=MORE_SEQUENCES,
        expect={"queue_p95": DOWN, "ttft_p95": DOWN, "throughput": UP, "tpot_p50": UP},
        useless={"kv_tokens": _KV_IS_FREE, "max_num_batched_tokens": "steps are not full"},
        source="scheduler.py: admission stops at max_num_seqs",
    ),
    Rule(
        name="step-tokens",
        symptom="a queue with max_num_seqs slots and KV blocks left",
        budget=STEP_TOKENS,
        when=step_tokens,
        remedy=MORE_STEP_TOKENS,
        expect={"queue_p95": DOWN, "ttft_p95": DOWN, "throughput": UP},
        useless={"kv_tokens": _KV_IS_FREE},
        source="scheduler.py: admission stops when the step's token budget is spent",
    ),
    Rule(
        name="prefill-spikes",
        symptom="streams that stutter whenever a long prompt arrives",
        budget=STEP_TOKENS,
        when=spikes,
        remedy=FEWER_STEP_TOKENS,
        expect={"itl_p99": DOWN, "ttft_p50": UP},
        useless={"max_num_seqs": "it is one step's length, not the number of sequences", "kv_tokens": _KV_IS_FREE},
        source="Sarathi-Serve (arXiv:2403.02310): chunked prefill bounds the time between tokens",
    ),
    Rule(
        name="bandwidth",
        symptom="every token is slow, even with few users",
        budget=BANDWIDTH,
        when=bandwidth,
        remedy=LESS_READING,
        expect={"tpot_p50": DOWN, "itl_p50": DOWN},
        useless={"max_num_seqs": "nobody waits for a slot", "max_num_batched_tokens": "steps are not full"},
        source="the roofline: a decode step reads every weight, however few sequences share it",
    ),
    Rule(
        name="refused-by-length",
        symptom="400s: the prompt is too long",
        budget=CONTEXT,
        when=slot_too_small,
        remedy=LONGER_CONTEXT,
        expect={"rejected": DOWN, "completed": UP},
        useless={"max_num_batched_tokens": "a refusal by length comes before scheduling"},
        source="captures: exceed_context_size_error of llama.cpp, maximum context length of vLLM",
    ),
    Rule(
        name="refused-by-queue",
        symptom="429s",
        budget=QUEUE,
        when=refused,
        remedy=SHORTER_QUEUE_OR_MORE_SERVERS,
        expect={"rejected": DOWN, "ttft_p95": DOWN},
        useless={"max_num_queued_reqs": "served are as many as before: the throughput stays, the waiting grows"},
        source="queueing: a server that is offered more than it can do refuses or delays, whatever the queue's length",
    ),
    Rule(
        name="client-limits",
        symptom="throughput far below what the device could do",
        budget=CLIENT,
        when=client_limits,
        remedy=MORE_LOAD,
        expect={"throughput": UP, "mean_batch": UP},
        useless={"max_num_seqs": "slots are empty as it is", "kv_tokens": _KV_IS_FREE},
        source="Little's law: throughput is what is in flight over the time it takes",
    ),
)
