"""What an engine that never ends must do now and then: forget the steps that nobody will ask for again.

A run's step log and records grow with it. A server that has been up for a month needs neither; its rows of records are
used again (see `servesim.serve.engine_clock`), and its steps begin anew at 0.

From an engine that has stopped to the run that it made.
"""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Any

from servesim.engine.arrivals import write_tokens
from servesim.engine.laws import Facts, broken_laws
from servesim.engine.sequence import DECODE, Sequence
from servesim.runs.records import NAN, Outcome, Records, Run
from servesim.workload.workload import Workload


def close(engine: Engine, config: dict[str, Any]) -> Run:
    """Write what is still in flight into the records, add up the totals, and return the run.

    `config` is the effective configuration that the run is to carry.
    """
    close_engine(engine)
    records = engine.records
    records.abandoned = engine.abandoned
    close_records(records, engine.workload, engine.screen.targets, set(engine.live_indices()))
    return Run(
        source="simulated",
        requests=engine.workload.requests,
        records=records,
        times=engine.log.end_s,
        config=config,
        steps=engine.log,
        engine=engine.totals,
        offload=[] if engine.pool.tiers is None else engine.pool.tiers.describe(),
        violations=broken_laws(Facts([engine], engine.workload.requests, records, engine.log)),
    )


if TYPE_CHECKING:
    from servesim.engine.engine import Engine


def close_engine(engine: Engine) -> None:
    """Write what is still in flight into the records; complete the step log and the totals."""
    engine.door.close()
    _close_unfinished(engine)
    log, totals = engine.log, engine.totals
    log.prefill_tokens.frombytes(bytes(log.prefill_tokens.itemsize * (len(log) - len(log.prefill_tokens))))
    log.starts.pop(len(log), None)  # it woke up for nothing
    totals.steps = log.steps()
    if totals.steps:
        durations_s = log.durations_s()
        totals.busy_s = math.fsum(durations_s)
        totals.elapsed_s = log.end_s[-1]
        totals.kv_peak_blocks = max(log.kv_blocks)
        totals.kv_block_seconds = log.integrate_blocks(durations_s)
    totals.evictions = engine.pool.evictions
    totals.wasted_tokens = engine.wasted_tokens


def close_records(records: Records, workload: Workload, targets: array[int], live: set[int]) -> None:
    """Fill in the columns that need no step to be known: when requests were sent, what they asked, who was capped.

    `live` are the requests that are still in an engine.
    """
    requests = workload.requests
    records.prompt_tokens = requests.prompt_tokens[:]
    if all(map(math.isnan, records.sent_s)):  # nobody wrote them down one by one: all were sent when they were due
        records.sent_s = requests.arrival_s[:]
        if Outcome.UNFINISHED in records.outcome:
            for index, outcome in enumerate(records.outcome):
                if outcome == Outcome.UNFINISHED and index not in live:
                    records.sent_s[index] = math.nan
    else:  # in a fleet of several kinds, only the doors that may refuse somebody write it down
        for index, sent_s in enumerate(records.sent_s):
            if sent_s != sent_s and (records.outcome[index] != Outcome.UNFINISHED or index in live):
                records.sent_s[index] = requests.arrival_s[index]
    records.planned_s = records.sent_s[:]
    for index in workload.withheld():
        records.outcome[index] = Outcome.WITHHELD
    if targets is not requests.output_tokens:
        records.capped = {
            index
            for index, (target, asked) in enumerate(zip(targets, requests.output_tokens, strict=True))
            if target < asked and records.outcome[index] == Outcome.COMPLETED
        }


def _close_unfinished(engine: Engine) -> None:
    step, records = len(engine.log), engine.records
    waiting = [waiter for waiter in engine.waiting if isinstance(waiter, Sequence)]
    for sequence in [*engine.running.values(), *waiting]:
        index, outputs = sequence.index, sequence.outputs
        pieces = records.pieces.pop(index, [])
        if sequence.state == DECODE:
            outputs = sequence.target - (sequence.finish_tick - engine.decoding.tick)
            if sequence.piece < step:
                pieces.append((sequence.piece, step - 1))
        if pieces:
            write_tokens(engine, index, pieces, outputs, engine.door.deadline(index))


def forget_steps(engine: Engine) -> None:
    """Forget every step so far, between two of them: the next is step 0, what is in flight began before it."""
    log, pieces, steps = engine.log, engine.records.pieces, len(engine.log)
    for column in (log.end_s, log.decodes, log.kv_blocks, log.prefill_tokens):
        del column[:]
    log.starts.clear()
    engine.abandoned.clear()
    for sequence in engine.holders():
        sequence.piece -= steps
    for index, slices in pieces.items():
        first, last = slices[-1]
        pieces[index] = [(first - steps, last - steps)]


def clear_row(engine: Engine, index: int) -> None:
    """Make row `index` of the records as good as new, for the next request that is given it."""
    records = engine.records
    records.planned_s[index] = records.sent_s[index] = records.admitted_s[index] = NAN
    records.first[index] = records.last[index] = -1
    records.output_tokens[index] = records.cached_tokens[index] = 0
    records.outcome[index] = 0
    for sparse in (records.pieces, records.preempted, records.reason, records.attempts):
        sparse.pop(index, None)
