"""From the logs of several engines to one run: step logs one after the other, records that point into all of them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import reduce
from itertools import zip_longest
from typing import Any

from servesim.engine.finalise import close_records
from servesim.engine.laws import Facts, broken_laws
from servesim.fleet.replica import Replica
from servesim.runs.records import EngineTotals, Records, ReplicaTotals, Run, StepLog, TierTotals
from servesim.runs.step_log import CompressedLog
from servesim.workload.workload import Workload


def merged_run(
    workload: Workload, replicas: Sequence[Replica], replica_of: array[int], records: Records, config: dict[str, Any]
) -> Run:
    """Return the run of replicas that serve whole requests; `replica_of` has that of each request."""
    log = merge_logs(replicas, replica_of, records)
    totals = add_totals(replicas)
    live = {index for replica in replicas for index in replica.engine.live_indices()}
    close_records(records, workload, targets_of(replicas, replica_of), live)
    return Run(
        source="simulated",
        requests=workload.requests,
        records=records,
        times=log.end_s,
        config=config,
        steps=log,
        engine=totals,
        replicas=[figures_of(replica, totals.elapsed_s) for replica in replicas] if len(replicas) > 1 else [],
        replica_of={"replica": replica_of} if len(replicas) > 1 else {},
        offload=add_tiers(replicas),
        violations=broken_laws(facts_of(replicas, workload, records, log)),
    )


def facts_of(
    replicas: Sequence[Replica], workload: Workload, records: Records, log: StepLog, *, away: bool = False
) -> Facts:
    """Return what the laws are checked on; `away`: requests may be on their way between engines."""
    engines = [replica.engine for replica in replicas]
    away = away or any(engine.arrivals.clients_may_return for engine in engines)
    return Facts([engine.scheduler for engine in engines], workload.requests, records, log, away)


def targets_of(replicas: Sequence[Replica], replica_of: array[int]) -> array[int]:
    """Return how many tokens each request may have where it was sent to."""
    kinds = {replica.number: replica.engine.limits.targets for replica in replicas}
    first = replicas[0].engine.limits.targets
    if all(targets is first for targets in kinds.values()):
        return first
    return array("q", [kinds.get(number, first)[index] for index, number in enumerate(replica_of)])


def merge_logs(replicas: Sequence[Replica], replica_of: array[int], records: Records) -> StepLog:
    """Close the engines, put their step logs one behind the other and make `records` point into the result."""
    for replica in replicas:
        replica.engine.close()
    if len(replicas) == 1:
        engine = replicas[0].engine
        records.abandoned = engine.arrivals.abandoned
        if isinstance(engine.log, CompressedLog):
            engine.log.pad()
            engine.log.prices = [(0, engine.cost.decode)]
        return engine.log
    log: StepLog = CompressedLog() if isinstance(replicas[0].engine.log, CompressedLog) else StepLog()
    offsets = [0] * (max(replica.number for replica in replicas) + 1)
    for replica in replicas:
        own, offset = replica.engine.log, len(log)
        offsets[replica.number] = offset
        append_log(log, own)
        if isinstance(own, CompressedLog) and isinstance(log, CompressedLog):
            price = replica.engine.cost.decode
            if not log.prices or log.prices[-1][1] != price:
                log.prices.append((offset, price))
        records.abandoned += [
            (offset + first, offset + last) for first, last in replica.engine.arrivals.abandoned if first >= 0
        ]
        own.clear()  # so that no step is there twice
    log.starts.pop(len(log), None)
    for name in ("first", "last"):
        column = getattr(records, name)
        moved = (step + offsets[number] if step >= 0 else step for step, number in zip(column, replica_of, strict=True))
        setattr(records, name, array("q", moved))
        del column
    for index, slices in records.slices.items():
        offset = offsets[replica_of[index]]
        records.slices[index] = [(a + offset, b + offset) if a >= 0 else (a, b) for a, b in slices]
    return log


def append_log(log: StepLog, part: StepLog) -> None:
    """Put the steps of another engine behind those of `log`."""
    offset = len(log)
    log.starts[offset] = 0.0
    for step, start_s in part.start_pairs():
        log.starts[offset + step] = start_s
    if isinstance(part, CompressedLog) and isinstance(log, CompressedLog):
        part.pad()
        log.ticks.extend(part.ticks)
        log.contexts.extend(part.contexts)
        log.block_seconds += part.block_seconds
        log.prices += [(offset + first, price) for first, price in part.prices]
    log.end_s.extend(part.end_s)
    log.decodes.extend(part.decodes)
    log.prefill_tokens.extend(part.prefill_tokens)
    log.kv_blocks.extend(part.kv_blocks)


def add_totals(replicas: Sequence[Replica]) -> EngineTotals:
    """Return the sums of the replicas' totals; the KV peak is that of the replica that came closest to its limit."""
    total = EngineTotals()
    for replica in replicas:
        own = replica.engine.totals
        for field in fields(EngineTotals):
            setattr(total, field.name, getattr(total, field.name) + getattr(own, field.name))
    total.elapsed_s = max(replica.engine.totals.elapsed_s for replica in replicas)
    fullest = max(replica.engine.totals.kv_peak_blocks / replica.engine.totals.num_blocks for replica in replicas)
    total.kv_peak_blocks = round(fullest * total.num_blocks)
    return total


def add_tiers(replicas: Sequence[Replica]) -> list[TierTotals]:
    """Return the sums of what the replicas' KV tiers did, level by level; an endless tier stays endless."""
    described = [replica.engine.pool.tiers.describe() for replica in replicas if replica.engine.pool.tiers is not None]
    return [reduce(_add_tier, level) for level in zip_longest(*described)]


def _add_tier(one: TierTotals | None, other: TierTotals | None) -> TierTotals | None:
    """Return the sum of two tiers of one level, of which a replica may have none."""
    if one is None or other is None:
        return one or other
    added: dict[str, Any] = {}
    for each in fields(TierTotals):
        pair = (getattr(one, each.name), getattr(other, each.name))
        if each.name not in ("tier", "block_bytes"):
            added[each.name] = None if None in pair else sum(pair)
    return replace(one, **added)


def figures_of(replica: Replica, elapsed_s: float, role: str = "both") -> ReplicaTotals:
    """Return what one replica did in the `elapsed_s` that the fleet ran; fractions of 1."""
    totals = replica.engine.totals
    return ReplicaTotals(
        replica=replica.number,
        name=replica.name,
        role=role,
        requests=replica.sent,
        steps=totals.steps,
        mean_batch=totals.scheduled / totals.steps if totals.steps else None,
        busy=totals.busy_s / elapsed_s if elapsed_s else 0.0,
        computed_tokens=totals.computed_tokens,
        kv_peak=totals.kv_peak_blocks / totals.num_blocks,
        kv_mean=totals.kv_block_seconds / (totals.num_blocks * elapsed_s) if elapsed_s else 0.0,
        preemptions=totals.preemptions,
        evictions=totals.evictions,
        prefix_hit_rate=totals.hit_tokens / totals.looked_up_tokens if totals.looked_up_tokens else None,
    )
