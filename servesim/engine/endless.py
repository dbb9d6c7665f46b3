"""What an engine that never ends must do now and then: forget the steps that nobody will ask for again.

A run's step log and records grow with it. A server that has been up for a month needs neither; its rows of records are
used again (see `servesim.serve.live_workload`), and its steps begin anew at 0.
"""

from __future__ import annotations

from servesim.engine.engine import Engine
from servesim.records import NAN


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
