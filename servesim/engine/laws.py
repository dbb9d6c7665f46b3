"""What every simulated run must obey, checked at its end from two sides that do not know each other.

The step log, the block pool and the totals are counted while the engine runs; the records say what each request had.
The numbers of the laws are those of the README's "What always holds".
"""

from __future__ import annotations

import math
from itertools import islice
from operator import le, mul, sub
from typing import TYPE_CHECKING

from servesim.engine.sequence import DECODE, Sequence
from servesim.records import Outcome

if TYPE_CHECKING:
    from servesim.engine.engine import Engine


def broken_laws(engine: Engine) -> list[str]:
    """Return a sentence for each law that the engine's run breaks; none, if servesim is right."""
    checks = (_requests, _tokens, _blocks, _causality, _clock, _little)
    return [sentence for check in checks if (sentence := check(engine)) is not None]


def _requests(engine: Engine) -> str | None:
    """Law 1: whoever came is completed, failed, rejected, in the engine, or waits to come back; and only once."""
    records = engine.records
    came = sum(1 for sent_s in records.sent_s if sent_s == sent_s)
    over = sum(map(records.outcome.count, (Outcome.COMPLETED, Outcome.FAILED, Outcome.REJECTED)))
    inside = [sequence.index for sequence in engine.running.values()]
    inside += [waiter.index if isinstance(waiter, Sequence) else waiter for waiter in engine.waiting]
    away = came - over - len(inside)
    if len(set(inside)) < len(inside) or any(records.outcome[index] for index in inside) or not away >= 0:
        return f"law 1, requests: {came} came, {over} are over and {len(inside)} are in the engine"
    if away and not engine.door.lets_come_back:
        return f"law 1, requests: {away} of {came} requests vanished"
    return None


def _tokens(engine: Engine) -> str | None:
    """Law 2: tokens computed = those of every request, once, less what the cache spared, plus what was recomputed."""
    records, totals = engine.records, engine.totals
    done = sum(
        prompt + output - 1
        for prompt, output, outcome in zip(
            engine.workload.requests.prompt_tokens, records.output_tokens, records.outcome, strict=True
        )
        if outcome == Outcome.COMPLETED
    )
    live = [*engine.running.values(), *(waiter for waiter in engine.waiting if isinstance(waiter, Sequence))]
    for sequence in live:
        computed = sequence.base + engine.decoding.tick if sequence.state == DECODE else sequence.computed
        done += max(computed, sequence.high_water)
    expected = done + engine.wasted_tokens - totals.saved_tokens + totals.recomputed_tokens
    if totals.computed_tokens != expected:
        return f"law 2, tokens: the steps computed {totals.computed_tokens}, the requests account for {expected}"
    gaps = sum(map(sub, records.last, records.first)) + _in_pieces(engine)
    decoded = sum(engine.log.decodes)
    if decoded != gaps:
        return f"law 2, tokens: the steps decoded {decoded} tokens, the records hold {gaps}"
    return None


def _in_pieces(engine: Engine) -> int:
    """Return by how much last - first misses the gaps that lie inside of pieces and abandoned slices."""
    records = engine.records
    gaps = sum(last - first for first, last in engine.abandoned)
    for index, pieces in records.pieces.items():
        gaps += sum(last - first for first, last in pieces) - (records.last[index] - records.first[index])
    return gaps


def _blocks(engine: Engine) -> str | None:
    """Law 3: every block is free or held, and what is held is what the running sequences need."""
    pool, tick, size = engine.pool, engine.decoding.tick, engine.config.block_size
    held = shared = 0
    for sequence in engine.running.values():
        computed = sequence.base + tick if sequence.state == DECODE else sequence.computed
        held += -(-computed // size)
        shared += bool(sequence.segments)
    if pool.used > held or (not shared and pool.used != held) or pool.keyless < 0 or pool.cached < 0:
        return f"law 3, blocks: {pool.used} are in use, the running sequences hold {held}"
    if pool.cached != pool.count_cached():
        return f"law 3, blocks: {pool.cached} cached blocks are counted, {pool.count_cached()} are there"
    return None


def _causality(engine: Engine) -> str | None:
    """Law 4: nobody is admitted before it was sent, and no token comes before its admission."""
    records, times = engine.records, engine.log.end_s
    for name, earlier, later in (
        ("admitted before it was sent", records.sent_s, records.admitted_s),
        (
            "had a token before it was admitted",
            records.admitted_s,
            [times[i] if i >= 0 else math.nan for i in records.first],
        ),
    ):
        if all(map(le, earlier, later)):
            continue
        for index, (before, after) in enumerate(zip(earlier, later, strict=True)):
            if after < before:
                return f"law 4, causality: request {engine.workload.requests.id(index)} {name}"
    if not all(map(le, records.first, records.last)):
        return "law 4, causality: a request's last token comes before its first"
    return None


def _clock(engine: Engine) -> str | None:
    """Law 5: time never runs backwards, and every step takes some."""
    end_s = engine.log.end_s
    if end_s and not (end_s[0] >= 0.0 and all(map(le, end_s, islice(end_s, 1, None)))):
        return "law 5, clock: a step ended before the one in front of it"
    return None


def _little(engine: Engine) -> str | None:
    """Law 10, Little's: the integral of decoding sequences over time = the sum of the times that requests decoded."""
    records, log = engine.records, engine.log
    times = log.end_s
    if not times:
        return None
    integral = math.fsum(map(mul, log.decodes, log.durations_s()))
    at = times.__getitem__
    decoded = math.fsum(map(sub, map(at, records.last), map(at, records.first)))
    decoded += math.fsum(times[last] - times[first] for first, last in engine.abandoned)
    for index, pieces in records.pieces.items():
        decoded -= times[records.last[index]] - times[records.first[index]]
        decoded += math.fsum(times[last] - times[first] for first, last in pieces)
    if not math.isclose(integral, decoded, rel_tol=1e-6, abs_tol=1e-6):
        return f"law 10, Little's: sequences decoded for {decoded:.6f} s, the step log says {integral:.6f} s"
    return None
