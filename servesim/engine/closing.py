"""From an engine that has stopped to the run that it made."""

from __future__ import annotations

import math
from operator import mul
from typing import TYPE_CHECKING, Any

from servesim.engine.door import write_tokens
from servesim.engine.laws import broken_laws
from servesim.engine.sequence import DECODE, Sequence
from servesim.records import Run

if TYPE_CHECKING:
    from servesim.engine.engine import Engine


def close(engine: Engine, config: dict[str, Any]) -> Run:
    """Write what is still in flight into the records, add up the totals, and return the run.

    `config` is the effective configuration that the run is to carry.
    """
    _close_unfinished(engine)
    log, totals, requests = engine.log, engine.totals, engine.workload.requests
    log.prefill_tokens.frombytes(bytes(log.prefill_tokens.itemsize * (len(log) - len(log.prefill_tokens))))
    log.starts.pop(len(log), None)  # it woke up for nothing
    engine.records.prompt_tokens = requests.prompt_tokens[:]
    totals.steps = len(log)
    if totals.steps:
        durations_s = log.durations_s()
        totals.busy_s = math.fsum(durations_s)
        totals.elapsed_s = log.end_s[-1]
        totals.kv_peak_blocks = max(log.kv_blocks)
        totals.kv_block_seconds = math.fsum(map(mul, log.kv_blocks, durations_s))
    totals.evictions = engine.pool.evictions
    return Run(
        source="simulated",
        requests=requests,
        records=engine.records,
        times=log.end_s,
        config=config,
        steps=log,
        engine=totals,
        violations=broken_laws(engine),
    )


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
            write_tokens(records, engine.log.end_s, index, pieces, outputs, engine.door.deadline(index))
