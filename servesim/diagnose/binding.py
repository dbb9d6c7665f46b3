"""Which budget a simulated run was short of, by its step log: what requests waited for, what steps took long for.

After `schedule()` a request can be waiting for one of three things only, in the scheduler's own order: one of the
`max_num_seqs` slots, tokens of this step, or KV blocks. What is left when nobody waits is the step itself: arithmetic,
or reading weights and KV.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import chain
from typing import Any

from servesim.config.build import Server
from servesim.runs.records import Run

SEQUENCES, STEP_TOKENS, KV_BLOCKS = "sequences", "tokens per step", "kv blocks"
COMPUTE, BANDWIDTH = "compute", "bandwidth"

QUEUED = 0.05  # of the busy time with somebody waiting: below it no admission budget is what binds


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What bound a run. Shares are of the time spent in steps; the waiting ones sum to `waiting`."""

    budget: str
    waiting: float
    for_sequences: float
    for_step_tokens: float
    for_kv_blocks: float
    compute: float  # in steps whose arithmetic takes longer than their reads
    bandwidth: float

    def __str__(self) -> str:
        for_what = {SEQUENCES: self.for_sequences, STEP_TOKENS: self.for_step_tokens, KV_BLOCKS: self.for_kv_blocks}
        if self.budget in for_what:
            return f"requests wait for {self.budget} {for_what[self.budget]:.0%} of the time"
        return f"{max(self.compute, self.bandwidth):.0%} of the time is in steps that {self.budget} decides"


def binding_of(run: Run, server: Server) -> Binding:
    """Return what bound the simulated `run` of one engine on `server`.

    An admission budget binds if requests wait for it and the steps meanwhile still have arithmetic to spare: else more
    of it would only make the steps longer, and compute binds.
    """
    assert run.steps is not None
    log, config, roofline = run.steps, server.config, server.roofline()
    sent, left = _queue_changes(run)
    admitted, released = _slot_changes(run)
    time_s = dict.fromkeys((SEQUENCES, STEP_TOKENS, KV_BLOCKS), 0.0)
    hard_s = dict.fromkeys(time_s, 0.0)  # of it, in steps that compute decides
    busy_s = compute_s = 0.0
    for end_s, duration_s, decodes, prefill, blocks in zip(
        log.end_s, log.durations_s(), log.decodes, log.prefill_tokens, log.kv_blocks, strict=True
    ):
        start_s = end_s - duration_s
        at = start_s + duration_s * 1e-6  # whatever the rounding of the difference did
        released_by = start_s - duration_s * 1e-6 if config.async_scheduling else at  # then a step later
        tokens = decodes + prefill
        computes = tokens * roofline.token_s > roofline.weights_s + blocks * config.block_size * roofline.context_s
        busy_s += duration_s
        compute_s += duration_s * computes
        if bisect_right(sent, at) <= bisect_right(left, at):
            continue
        if bisect_right(admitted, at) - bisect_right(released, released_by) >= config.max_num_seqs:
            budget = SEQUENCES
        elif tokens >= config.max_num_batched_tokens:
            budget = STEP_TOKENS
        else:
            budget = KV_BLOCKS
        time_s[budget] += duration_s
        hard_s[budget] += duration_s * computes
    if not busy_s:
        return Binding(
            budget=BANDWIDTH, waiting=0, for_sequences=0, for_step_tokens=0, for_kv_blocks=0, compute=0, bandwidth=0
        )
    most = max(time_s, key=lambda name: time_s[name])
    if sum(time_s.values()) < QUEUED * busy_s:
        binds = COMPUTE if 2 * compute_s > busy_s else BANDWIDTH
    else:
        binds = COMPUTE if 2 * hard_s[most] > time_s[most] else most
    return Binding(
        budget=binds,
        waiting=sum(time_s.values()) / busy_s,
        for_sequences=time_s[SEQUENCES] / busy_s,
        for_step_tokens=time_s[STEP_TOKENS] / busy_s,
        for_kv_blocks=time_s[KV_BLOCKS] / busy_s,
        compute=compute_s / busy_s,
        bandwidth=1 - compute_s / busy_s,
    )


def busiest_part(run: Run) -> dict[str, Any]:
    """Return which part of a disaggregated deployment was busiest: a pool of engines, or the link between them."""
    busy: dict[str, float] = {}
    for role in ("prefill", "decode"):
        shares = [replica.busy or 0.0 for replica in run.replicas if replica.role == role]
        busy[f"{role} engines"] = sum(shares) / len(shares) if shares else 0.0
    span_s = max(run.times, default=0.0)
    if run.link is not None and span_s:
        busy["link"] = run.link.busy_s / span_s
    part = max(busy, key=lambda name: busy[name])
    return {"budget": part, "told": ", ".join(f"{name} busy {share:.0%}" for name, share in busy.items())}


def _queue_changes(run: Run) -> tuple[list[float], list[float]]:
    """Return when requests entered the queue, and when they left it, each in order; preempted ones come back to it."""
    spans = list(chain.from_iterable(run.records.preempted.values()))
    sent = sorted(at for at in chain(run.records.sent_s, (start for start, _ in spans)) if at == at)
    left = sorted(at for at in chain(run.records.admitted_s, (end for _, end in spans)) if at == at)
    return sent, left


def _slot_changes(run: Run) -> tuple[list[float], list[float]]:
    """Return when requests took one of the `max_num_seqs` slots, and when they released it, each in order."""
    records = run.records
    spans = list(chain.from_iterable(records.preempted.values()))
    admitted = sorted(at for at in chain(records.admitted_s, (end for _, end in spans)) if at == at)
    ends = (
        run.times[last] for last, outcome in zip(records.last, records.outcome, strict=True) if outcome and last >= 0
    )
    return admitted, sorted(chain(ends, (start for start, _ in spans)))
