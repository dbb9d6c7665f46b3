"""Steady stretches: the steps in which every decoding sequence takes one token and nothing else happens.

Most steps are of that kind, and no sequence is visited in them: a step is a price, and at times a few blocks. Many
sequences are stepped in one tight loop, up to the first that has its last token. A few are taken at one go, since their
stretches are long and no list of them is. Both are equal to stepping to the bit, and both write either kind of log: of
every step its end and blocks, or of the whole stretch one entry (`runs.step_log`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate, repeat

from servesim.cost.model import CostModel
from servesim.engine.blocks import BlockPool
from servesim.engine.decoding import Decoding
from servesim.runs.records import EngineTotals, StepLog
from servesim.runs.step_log import CompressedLog

FEW = 4
"""Up to so many decoding sequences, the next to finish is found by looking at all of them."""


class Steady:
    """Runs the steady stretches of one engine, and writes them into `log`.

    `is_fixed` tells that the price of a step depends on its sequences and context alone.
    """

    def __init__(
        self,
        decoding: Decoding,
        pool: BlockPool,
        cost: CostModel,
        log: StepLog,
        totals: EngineTotals,
        *,
        is_fixed: bool = True,
    ) -> None:
        self.write_to(log)
        self._decoding = decoding
        self._pool = pool
        self._cost = cost
        self._totals = totals
        self._is_fixed = is_fixed
        self._single_s: list[float] = []  # seconds of a step of one decoding sequence, by its context

    def write_to(self, log: StepLog) -> None:
        """Write into `log` from now on."""
        self._log = log
        self._compressed = log if isinstance(log, CompressedLog) else None

    def run(self, now_s: float, until_s: float) -> float | None:
        """Run a stretch that begins at `now_s`, up to a step that ends a sequence, ends at `until_s` or lacks blocks.

        Returns the time at its end; None, having done nothing, if not even the first step finds its blocks.
        """
        decoding, pool = self._decoding, self._pool
        count, before, start = decoding.count, decoding.context, decoding.tick
        ends_s = self._run_few(now_s, until_s) if count <= FEW else None
        if ends_s is not None:
            now_s, tick = ends_s[-1], start + len(ends_s) - 1
        else:
            log, compressed = self._log, self._compressed
            step_ends_s, decodes, kv_blocks = log.end_s, log.decodes, log.kv_blocks
            needs, buckets, block_size, price = decoding.needs, decoding.buckets, decoding.block_size, self._cost.decode
            context, tick, used, block_seconds = before, start, pool.used, 0.0
            while True:  # the innermost loop of a run: what it repeats of `pool` and `decoding` is here for its speed
                need = needs[tick % block_size]
                if need:
                    if need <= pool.keyless:
                        pool.keyless -= need
                    elif need <= pool.keyless + pool.cached:
                        pool.take(need)
                    else:
                        break
                    used += need
                context += count
                tick += 1
                duration_s = price(count, context)
                now_s += duration_s
                if compressed is None:
                    step_ends_s.append(now_s)
                    decodes.append(count)
                    kv_blocks.append(used)
                else:
                    block_seconds += used * duration_s
                if tick in buckets or now_s >= until_s:
                    break
            if tick == start:
                return None
            if compressed is not None:
                compressed.block_seconds += block_seconds
                compressed.append_stretch(now_s, count, used, tick - start, before)
        tokens = count * (tick - start)
        decoding.tick = tick
        decoding.context = before + tokens
        self._totals.scheduled += tokens
        self._totals.computed_tokens += tokens
        return now_s

    def _run_few(self, now_s: float, until_s: float) -> list[float] | None:
        """Write down a stretch of a few sequences at one go, and return its start and the ends of its steps.

        Returns None, having done nothing, if it may run short of blocks without a key.
        """
        decoding, pool, log = self._decoding, self._pool, self._log
        count, block_size = decoding.count, decoding.block_size
        steps = min(decoding.buckets) - decoding.tick
        if (steps // block_size + 1) * count > pool.keyless:
            return None
        ends_s = self._ends_s(now_s, until_s, steps)
        if ends_s[-1] >= until_s:
            del ends_s[bisect_left(ends_s, until_s, 1) + 1 :]
        steps = len(ends_s) - 1
        if self._compressed is not None:
            taken, block_seconds = self._block_seconds(ends_s)
            pool.keyless -= taken
            self._compressed.block_seconds += block_seconds
            self._compressed.append_stretch(ends_s[-1], count, pool.used, steps, decoding.context)
        else:
            phase = decoding.tick % block_size
            cycle = decoding.needs[phase:] + decoding.needs[:phase]
            used = list(accumulate((cycle * (steps // block_size + 1))[:steps], initial=pool.used))
            pool.keyless -= used[-1] - used[0]
            log.end_s.extend(array("d", ends_s[1:]))
            log.kv_blocks.extend(array("i", used[1:]))
            log.decodes.extend(array("i", (count,)) * steps)
        return ends_s

    def _ends_s(self, now_s: float, until_s: float, steps: int) -> list[float]:
        """Return the ends of `steps` steps, behind their start; where it is easy to tell, not many after `until_s`."""
        decoding = self._decoding
        count, context = decoding.count, decoding.context
        if count == 1 and self._is_fixed:
            single_s = self._single_s
            missing = range(len(single_s), context + steps + 1)
            if missing:
                single_s.extend(map(self._cost.decode, repeat(1), missing))
            least_s = single_s[context + 1]
            if until_s < now_s + steps * least_s:
                steps = min(steps, int((until_s - now_s) / least_s) + 2)
            durations_s: Iterable[float] = single_s[context + 1 : context + steps + 1]
        else:
            contexts = range(context + count, context + count * steps + 1, count)
            durations_s = map(self._cost.decode, repeat(count), contexts)
        return list(accumulate(durations_s, initial=now_s))

    def _block_seconds(self, ends_s: list[float]) -> tuple[int, float]:
        """Return the blocks that a stretch takes, and the integral of blocks in use over it."""
        decoding, used = self._decoding, self._pool.used
        block_size, steps, end_s = decoding.block_size, len(ends_s) - 1, ends_s[-1]
        needs, first = decoding.needs, decoding.tick % block_size
        block_seconds, taken, rest = used * (end_s - ends_s[0]), 0, decoding.count
        for phase in range(min(block_size, steps)):
            need = needs[(first + phase) % block_size]
            if need:  # every block_size steps from here on, each of which holds its blocks to the end
                starts_s = ends_s[phase:steps:block_size]
                taken += need * len(starts_s)
                block_seconds += need * (len(starts_s) * end_s - sum(starts_s))
                rest -= need
                if not rest:
                    break
        return taken, block_seconds
