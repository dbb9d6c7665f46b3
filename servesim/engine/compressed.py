"""Steady stretches for a folded log: as many steps as `Engine` would make one by one, noted down as one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate, repeat
from typing import TYPE_CHECKING

from servesim.engine.admission import Admission
from servesim.engine.scheduler import Chunk
from servesim.engine.sequence import Sequence
from servesim.runs.step_log import FoldedLog

if TYPE_CHECKING:
    from servesim.cost.model import CostModel

FEW = 4
"""Up to so many decoding sequences, the next to finish is found by looking at all of them."""


class Folding(Admission):
    """An engine whose steady stretches are one entry of its log."""

    cost: CostModel
    _lone_s: list[float]

    def _sample(self, step: int, chunks: list[Chunk]) -> list[Sequence]:
        raise NotImplementedError

    def _fold(self, log: FoldedLog, until: float) -> bool:
        """Run a steady stretch, to the bit as step by step. Returns False, having done nothing, if not even the first
        step finds its blocks."""
        decoding = self.decoding
        count, context, tick = decoding.count, decoding.context, decoding.tick
        steps = 0
        if count <= FEW:
            steps = self._fold_few(log, until)
        if not steps:
            steps = self._fold_many(log, until)
        if not steps:
            return False
        log.fold(self.now, count, self.pool.used, steps, context)
        decoding.context = context + count * steps
        decoding.tick = tick + steps
        tokens = count * steps
        self.totals.scheduled += tokens
        self.totals.computed_tokens += tokens
        if tick + steps in decoding.buckets:
            self._sample(len(log.end_s) - 1, [])
        return True

    def _fold_few(self, log: FoldedLog, until: float) -> int:
        """Go through the steps of a few sequences at one go; return how many there were, none if blocks may not do."""
        decoding, pool, now_s = self.decoding, self.pool, self.now
        count, context, tick, block_size = decoding.count, decoding.context, decoding.tick, decoding.block_size
        steps = min(decoding.buckets) - tick
        if (steps // block_size + 1) * count > pool.keyless:
            return 0
        if count == 1:
            lone_s = self._lone_times_s(context + steps)
            if until < now_s + steps * lone_s[context + 1]:  # no step is shorter than the first
                steps = min(steps, int((until - now_s) / lone_s[context + 1]) + 2)
            durations_s: Iterable[float] = lone_s[context + 1 : context + steps + 1]
        else:
            contexts = range(context + count, context + count * steps + 1, count)
            durations_s = map(self.cost.decode, repeat(count), contexts)
        ends_s = list(accumulate(durations_s, initial=now_s))
        if ends_s[-1] >= until:
            steps = bisect_left(ends_s, until, 1)
        end_s = self.now = ends_s[steps]
        blocks_s, taken, rest = pool.used * (end_s - now_s), 0, count
        needs, first = decoding.needs, tick % block_size
        for phase in range(min(block_size, steps)):
            need = needs[(first + phase) % block_size]
            if need:  # every block_size steps from here on, each of which holds its blocks to the end
                starts_s = ends_s[phase:steps:block_size]
                taken += need * len(starts_s)
                blocks_s += need * (len(starts_s) * end_s - sum(starts_s))
                rest -= need
                if not rest:
                    break
        pool.keyless -= taken
        log.block_seconds += blocks_s
        return steps

    def _lone_times_s(self, context: int) -> list[float]:
        """Return the seconds of a step of one decoding sequence by its context, known up to `context` at least."""
        lone_s = self._lone_s
        if len(lone_s) <= context:
            lone_s.extend(map(self.cost.decode, repeat(1), range(len(lone_s), context + 1)))
        return lone_s

    def _fold_many(self, log: FoldedLog, until: float) -> int:
        """Go through steps one by one up to one that ends a sequence, finds no blocks or ends at `until`."""
        decoding, pool, now_s = self.decoding, self.pool, self.now
        count, context, start = decoding.count, decoding.context, decoding.tick
        needs, buckets, block_size, seconds = decoding.needs, decoding.buckets, decoding.block_size, self.cost.decode
        used, blocks_s, tick = pool.used, 0.0, start
        while True:
            need = needs[tick % block_size]
            if need:
                if need <= pool.keyless:
                    pool.keyless -= need
                elif need <= pool.free:
                    pool.take(need)
                else:
                    break
                used += need
            context += count
            tick += 1
            duration_s = seconds(count, context)
            blocks_s += used * duration_s
            now_s += duration_s
            if tick in buckets or now_s >= until:
                break
        self.now = now_s
        log.block_seconds += blocks_s
        return tick - start
