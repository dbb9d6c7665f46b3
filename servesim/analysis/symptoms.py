"""What must be seen for a rule of a diagnosis to hold: each returns the evidence in words, or None.

A quantity that nobody reported decides nothing: a rule that needs it does not hold.
"""

from __future__ import annotations

from servesim.analysis.evidence import Evidence
from servesim.units import format_duration

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
