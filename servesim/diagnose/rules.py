"""The rules of a diagnosis, in the order in which they are asked; the first that holds names the budget that binds.

Each rule is a row: what must be seen (`when`, which returns the evidence in words, or None), which budget is then
short, which knob to turn first, what each metric will do, and what will change nothing. A test runs every row's case in
the simulator: turning the knob moves the metrics as the row says, and turning what it calls useless does not.

The order is the scheduler's own: a request waits for a seat, for tokens of the step, or for KV blocks, and a full cache
shows itself (usage at 1, preemptions), so that what is left over can be told by elimination.

What gives more of each budget: the knobs of the three servers, in the order in which to turn them.

The same table serves a plan ("what would have to change") and a diagnosis ("which knob first").

What must be seen for a rule of a diagnosis to hold: each returns the evidence in words, or None.

A quantity that nobody reported decides nothing: a rule that needs it does not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from servesim.config.build import Server
from servesim.diagnose.binding import BANDWIDTH, COMPUTE, KV_BLOCKS, SEQUENCES, STEP_TOKENS
from servesim.diagnose.evidence import Evidence
from servesim.units import format_duration

Turn = Callable[[Server], dict[str, Any]]
"""Takes a simulated server, returns the options that change when the knob is turned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """How to get more of one budget. Knobs are the servers' own flags; None: that server has no such knob.

    `turn` is the same in the simulator, None where the knob is not one of its server's.
    """

    change: str
    vllm: str | None
    llama_cpp: str | None
    sglang: str | None
    turn: Turn | None = None

    def knobs(self) -> dict[str, str | None]:
        return {"vllm": self.vllm, "llama.cpp": self.llama_cpp, "sglang": self.sglang}


def _share_prefixes(server: Server) -> dict[str, Any]:
    return {"prefix_caching": True}


def _narrow_kv(server: Server) -> dict[str, Any]:
    return {"kv_cache_dtype": "fp8", "kv_tokens": _twice(server.spec.kv_tokens)}


def _double_devices(server: Server) -> dict[str, Any]:
    return {"tensor_parallel_size": 2 * server.spec.tensor_parallel_size}


def _double_seats(server: Server) -> dict[str, Any]:
    seats = 2 * server.config.max_num_seqs
    return {"max_num_seqs": seats, "max_num_batched_tokens": max(seats, server.config.max_num_batched_tokens)}


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
    turn=_double_seats,
)
MORE_STEP_TOKENS = Remedy(
    change="more tokens per step",
    vllm="--max-num-batched-tokens, higher",
    llama_cpp="--batch-size and --ubatch-size, higher",
    sglang="--chunked-prefill-size, higher",
    turn=_double_step_tokens,
)
FEWER_STEP_TOKENS = Remedy(
    change="fewer tokens per step, so that prompts delay the others' tokens less",
    vllm="--max-num-batched-tokens, lower",
    llama_cpp="--batch-size, lower",
    sglang="--chunked-prefill-size, lower",
    turn=_quarter_step_tokens,
)
PREFIX_CACHING = Remedy(
    change="share the KV of equal prefixes",
    vllm="--enable-prefix-caching",
    llama_cpp="--cache-prompt (on by default) and --cache-reuse: per slot, so keep a user on a slot (id_slot)",
    sglang="leave out --disable-radix-cache",
    turn=_share_prefixes,
)
MORE_KV = Remedy(
    change="a larger KV cache",
    vllm="--gpu-memory-utilization, higher; --kv-cache-dtype fp8; quantised weights",
    llama_cpp="--ctx-size, higher; --cache-type-k q8_0 --cache-type-v q8_0",
    sglang="--mem-fraction-static, higher; --kv-cache-dtype fp8_e4m3",
    turn=_narrow_kv,
)
LESS_READING = Remedy(
    change="fewer bytes to read per step",
    vllm="--quantization (fp8, awq) or --tensor-parallel-size, higher",
    llama_cpp="a model file with fewer bits (Q4_K_M)",
    sglang="--quantization or --tp-size, higher",
    turn=_narrow_weights,
)
LESS_ARITHMETIC = Remedy(
    change="less arithmetic per device",
    vllm="another replica, or --tensor-parallel-size, higher; --quantization fp8 where the device computes in it",
    llama_cpp="another server, or a faster device",
    sglang="another replica, or --tp-size, higher",
    turn=_double_devices,
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


STUTTER_S = 0.1  # a pause between two tokens that a reader notices


def client_saturated(e: Evidence) -> str | None:
    if e.client_verdict == "saturated":
        return "the load generator's own verdict is saturated: what it measured is partly itself"
    return None


def slot_too_small(e: Evidence) -> str | None:
    count = sum(e.errors.get(kind, 0) for kind in ("prompt_too_long", "over_kv_cache"))
    if not count:
        return None
    most = "" if e.max_model_len is None else f"; a request may have {e.max_model_len:,} tokens"
    return f"{count:,} requests were refused for their length{most}"


def preempts(e: Evidence) -> str | None:
    if not e.preemptions or e.kv_full is False:
        return None
    use = "" if e.kv_peak is None else f", KV use {e.kv_peak:.0%} at its peak"
    return f"{e.preemptions:,} preemptions{use}{_waiting(e)}"


def preempts_uncached(e: Evidence) -> str | None:
    return preempts(e) if e.prefix_caching is False or (e.prefix_caching is None and not e.prefix_hit_rate) else None


def _kv_queue(e: Evidence) -> str | None:
    if not e.queueing or e.kv_full is not True or e.seats_full:
        return None
    return f"KV use {e.kv_peak:.0%} at its peak{_waiting(e)}"


def kv_queue_uncached(e: Evidence) -> str | None:
    return _kv_queue(e) if e.prefix_caching is False or (e.prefix_caching is None and not e.prefix_hit_rate) else None


def kv_queue_cached(e: Evidence) -> str | None:
    return None if e.compute_bound else _kv_queue(e)  # more requests at once would only make each step longer


def compute(e: Evidence) -> str | None:
    if not e.compute_bound or e.tokens_per_step is None or e.critical_tokens is None:
        return None
    if not (e.queueing or e.missed or _slow_steps(e)):
        return None
    return (
        f"{e.tokens_per_step:,.0f} tokens per step on average: arithmetic takes longer than reading the weights "
        f"from {e.critical_tokens:,.0f} on{_waiting(e)}"
    )


def seats(e: Evidence) -> str | None:
    if not e.queueing or e.kv_full:
        return None
    if e.seats_full:
        most = e.running_max if e.running_max is not None else e.mean_batch
        return f"{most:,.0f} running of {e.max_num_seqs:,} seats{_waiting(e)}{_kv_room(e)}"
    if e.dialect == "llama.cpp":
        return f"llama.cpp defers requests for want of a slot only{_waiting(e)}"
    if e.max_num_seqs is None and e.running and e.kv_peak is not None and e.running == e.running_max:
        return f"{e.running:,.0f} running, no more and no fewer{_waiting(e)}{_kv_room(e)}; seats by elimination"
    return None


def step_tokens(e: Evidence) -> str | None:
    if not e.queueing or e.kv_full or e.seats_full is not False:
        return None
    if e.tokens_per_step is None or e.max_num_batched_tokens is None:
        return None
    if e.tokens_per_step < 0.5 * e.max_num_batched_tokens:
        return None
    return (
        f"{e.tokens_per_step:,.0f} tokens per step of {e.max_num_batched_tokens:,} allowed"
        f"{_waiting(e)}, with seats and KV blocks left"
    )


def spikes(e: Evidence) -> str | None:
    if e.preemptions or not e.itl_p50_s or e.itl_p99_s is None or e.itl_p99_s < 4 * e.itl_p50_s:
        return None
    if e.itl_p99_s < STUTTER_S or (e.max_num_batched_tokens is not None and e.max_num_batched_tokens <= 512):
        return None
    return (
        f"ITL p99 {format_duration(e.itl_p99_s)} against p50 {format_duration(e.itl_p50_s)} without a preemption: "
        "a long prompt in a step delays everybody's token"
    )


def bandwidth(e: Evidence) -> str | None:
    slow = [name for name in e.missed if name.startswith(("tpot", "itl", "e2e"))]
    if not slow or e.queueing or e.preemptions:
        return None
    if e.compute_bound is not False or e.tokens_per_step is None or e.critical_tokens is None:
        return None
    floor = "" if e.floor_step_s is None else f", {format_duration(e.floor_step_s)} of which one sequence alone takes"
    return (
        f"{', '.join(slow)} missed with nobody waiting: {e.tokens_per_step:,.0f} tokens per step are below the "
        f"{e.critical_tokens:,.0f} where arithmetic begins to decide, so a step is the reading of weights and KV{floor}"
    )


def refused(e: Evidence) -> str | None:
    count = e.errors.get("queue_full", 0)
    return f"{count:,} requests were refused because the queue was full" if count else None


def client_limits(e: Evidence) -> str | None:
    if e.concurrency is None or e.max_num_seqs is None or e.missed or e.queueing or e.preemptions or e.kv_full:
        return None
    busy = e.in_flight if e.in_flight is not None else e.mean_batch
    if e.concurrency > 0.5 * e.max_num_seqs or busy is None or busy < 0.8 * e.concurrency:
        return None
    if e.critical_tokens is not None and e.tokens_per_step is not None and e.tokens_per_step > e.critical_tokens / 2:
        return None
    return (
        f"{busy:,.1f} of {e.concurrency:,} requests in flight run, and none waits: the client sends no more than that"
        f"{_kv_room(e)}"
    )


def _waiting(e: Evidence) -> str:
    if e.waiting:
        return f", {e.waiting:,.0f} waiting"
    if e.queueing and e.queue_p95_s is not None:
        return f", queue p95 {format_duration(e.queue_p95_s)}"
    return ""


def _kv_room(e: Evidence) -> str:
    return "" if e.kv_peak is None else f", KV use {e.kv_peak:.0%}"


def _slow_steps(e: Evidence) -> bool:
    """Whether a token takes twice as long as it would alone."""
    return e.floor_step_s is not None and e.tpot_p50_s is not None and e.tpot_p50_s > 2 * e.floor_step_s


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
        useless={"max_num_seqs": _SEATS_ARE_FREE},
        source="vllm/v1/core/sched/scheduler.py: out of blocks, the youngest is dropped and computed again",
    ),
    Rule(
        name="kv-preemptions-cached",
        symptom="preemptions although prefixes are shared",
        budget=KV_BLOCKS,
        when=preempts,
        remedy=MORE_KV,
        expect={"preemptions": DOWN, "ttft_p95": DOWN, "throughput": UP},
        useless={"max_num_seqs": _SEATS_ARE_FREE},
        source="the same; the cache is on and what is shared is shared",
    ),
    Rule(
        name="kv-queue",
        symptom="a long queue, no preemptions, the cache full",
        budget=KV_BLOCKS,
        when=kv_queue_uncached,
        remedy=PREFIX_CACHING,
        expect={"ttft_p95": DOWN, "queue_p95": DOWN, "throughput": UP, "prefix_hit_rate": UP},
        useless={"max_num_seqs": _SEATS_ARE_FREE},
        source="scheduler.py: the head of the queue is admitted only if its whole sequence fits",
    ),
    Rule(
        name="kv-queue-cached",
        symptom="a long queue, the cache full although prefixes are shared",
        budget=KV_BLOCKS,
        when=kv_queue_cached,
        remedy=MORE_KV,
        expect={"ttft_p95": DOWN, "queue_p95": DOWN, "throughput": UP},
        useless={"max_num_seqs": _SEATS_ARE_FREE},
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
        when=seats,
        remedy=MORE_SEQUENCES,
        expect={"queue_p95": DOWN, "ttft_p95": DOWN, "throughput": UP, "tpot_p50": UP},
        useless={"kv_tokens": _KV_IS_FREE, "max_num_batched_tokens": "steps are not full"},
        source="scheduler.py: admission stops at max_num_seqs",
    ),
    Rule(
        name="step-tokens",
        symptom="a queue with seats and KV blocks left",
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
        useless={"max_num_seqs": "nobody waits for a seat", "max_num_batched_tokens": "steps are not full"},
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
        useless={"max_num_seqs": "seats are empty as it is", "kv_tokens": _KV_IS_FREE},
        source="Little's law: throughput is what is in flight over the time it takes",
    ),
)
