"""What every simulated run must obey, checked at its end from two sides that do not know each other.

The step log, the block pool and the totals are counted while the engine runs; the records say what each request had.
The numbers of the laws are those of "What always holds" in the guide `model` (`servesim help model`).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import le, mul, sub

from servesim.engine.scheduler import Scheduler
from servesim.engine.sequence import Sequence as Live
from servesim.runs.records import Outcome, Records, StepLog
from servesim.workload.requests import Requests

COMPLETED = int(Outcome.COMPLETED)


@dataclass(slots=True, frozen=True)
class Facts:
    """What ran: the engines' schedulers, the requests' records, and the steps of all engines, one after the other."""

    schedulers: Sequence[Scheduler]
    requests: Requests
    records: Records
    log: StepLog
    away: bool = False  # requests may be neither over nor in an engine: on a link, or their clients wait to try again


def broken_laws(facts: Facts) -> list[str]:
    """Return a sentence for each law that a run breaks; none, if servesim is right."""
    durations_s = facts.log.durations_s()
    found = [check(facts) for check in (_requests, _tokens, _blocks, _causality)]
    found += [check(facts, durations_s) for check in (_clock, _little)]
    return [sentence for sentence in found if sentence is not None]


def _requests(facts: Facts) -> str | None:
    """Law 1: whoever came is completed, failed, rejected, in an engine, or waits to come back; and only once."""
    records = facts.records
    came = len(records) - sum(map(math.isnan, records.sent_s))
    over = sum(map(records.outcome.count, (Outcome.COMPLETED, Outcome.FAILED, Outcome.REJECTED)))
    inside = [index for scheduler in facts.schedulers for index in scheduler.live_indices()]
    away = came - over - len(inside)
    if len(set(inside)) < len(inside) or any(records.outcome[index] for index in inside) or away < 0:
        return f"law 1, requests: {came} came, {over} are over and {len(inside)} are in the engine"
    if away and not facts.away:
        return f"law 1, requests: {away} of {came} requests vanished"
    return None


def _tokens(facts: Facts) -> str | None:
    """Law 2: tokens computed = those of every request, once, less what was spared, plus what was recomputed."""
    records = facts.records
    computed = expected = 0
    for scheduler in facts.schedulers:
        totals = scheduler.totals
        computed += totals.computed_tokens
        expected += totals.wasted_tokens - totals.saved_tokens + totals.recomputed_tokens
        for sequence in scheduler.running.values():
            expected += max(sequence.computed_at(scheduler.decoding.tick), sequence.high_water)
        expected += sum(waiter.high_water for waiter in scheduler.waiting if isinstance(waiter, Live))
    columns = zip(facts.requests.prompt_tokens, records.output_tokens, records.outcome, strict=True)
    expected += sum(prompt + output - 1 for prompt, output, outcome in columns if outcome == COMPLETED)
    if computed != expected:
        return f"law 2, tokens: the steps computed {computed}, the requests account for {expected}"
    gaps = _gaps(records, facts.log.positions())
    decoded = facts.log.decoded()
    if decoded != gaps:
        return f"law 2, tokens: the steps decoded {decoded} tokens, the records hold {gaps}"
    return None


def _gaps(records: Records, step: Sequence[int] | None) -> int:
    """Return how many tokens came one step after another; `step` is the number of each entry's step, if not its own."""
    if step is None:
        at: Callable[[int], int] = int
        gaps: int = sum(map(sub, records.last, records.first))
    else:
        at = step.__getitem__
        gaps = sum(map(sub, map(at, records.last), map(at, records.first)))
    gaps += sum(at(last) - at(first) for first, last in records.abandoned)
    for index, slices in records.slices.items():
        gaps += sum(at(last) - at(first) for first, last in slices) - (
            at(records.last[index]) - at(records.first[index])
        )
    return gaps


def _blocks(facts: Facts) -> str | None:
    """Law 3: every block is free or held, and what is held is what the sequences in the engine need."""
    for scheduler in facts.schedulers:
        pool, tick, size = scheduler.pool, scheduler.decoding.tick, scheduler.config.block_size
        held = shared = 0
        for sequence in scheduler.holders():
            held += -(-sequence.computed_at(tick) // size)
            shared += bool(sequence.segments)
        if pool.used > held or (not shared and pool.used != held) or pool.keyless < 0 or pool.cached < 0:
            return f"law 3, blocks: {pool.used} are in use, the sequences in the engine hold {held}"
        if pool.cached != pool.count_cached():
            return f"law 3, blocks: {pool.cached} cached blocks are counted, {pool.count_cached()} are there"
        for tier in pool.tiers.tiers if pool.tiers is not None else ():
            if tier.used != tier.count():
                return f"law 3, blocks: tier {tier.config.name} counts {tier.used} blocks and has others"
    return None


def _causality(facts: Facts) -> str | None:
    """Law 4: nobody is admitted before it was sent, and no token comes before its admission."""
    records, times = facts.records, facts.log.end_s
    first_s = array("d", (times[step] if step >= 0 else math.nan for step in records.first))
    for what, earlier, later in (
        ("was admitted before it was sent", records.sent_s, records.admitted_s),
        ("had a token before it was admitted", records.admitted_s, first_s),
        ("had its last token before its first", records.first, records.last),
    ):
        if not all(map(le, earlier, later)):  # false, too, where a time is unknown
            for index, (before, after) in enumerate(zip(earlier, later, strict=True)):
                if after < before:
                    return f"law 4, causality: request {facts.requests.id(index)} {what}"
    return None


def _clock(facts: Facts, durations_s: Sequence[float]) -> str | None:
    """Law 5: time never runs backwards: no step ends before it starts."""
    if any(map((0.0).__gt__, durations_s)):
        return "law 5, clock: a step ended before it began"
    return None


def _little(facts: Facts, durations_s: Sequence[float]) -> str | None:
    """Law 10, Little's: the integral of decoding sequences over time = the sum of the times that requests decoded."""
    records, times = facts.records, facts.log.end_s
    if len(times) < 2:
        return None
    integral = math.fsum(map(mul, facts.log.decodes, durations_s))
    at = times.__getitem__
    decoded = math.fsum(map(sub, map(at, records.last), map(at, records.first)))
    decoded += math.fsum(times[last] - times[first] for first, last in records.abandoned)
    for index, slices in records.slices.items():
        decoded -= times[records.last[index]] - times[records.first[index]]
        decoded += math.fsum(times[last] - times[first] for first, last in slices)
    if not math.isclose(integral, decoded, rel_tol=1e-6, abs_tol=1e-6):
        return f"law 10, Little's: sequences decoded for {decoded:.6f} s, the step log says {integral:.6f} s"
    return None
