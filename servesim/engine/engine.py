"""One simulated engine: vLLM's iteration-level scheduling on a virtual clock.

There is no prefill phase and no decode phase, only sequences whose `computed` catches up with their `length`. Every
step serves `running` from its oldest member, then admits from the head of `waiting`, then takes as long as the cost
model says; a sequence whose `computed` has reached its `length` samples its next token.

A step costs what changes, not what exists. Nothing happens to a sequence between the step that starts its decode and
the step that ends it, so nobody visits it: decoding sequences are a count, a sum of contexts and a clock, `tick`, that
ticks once per step that decodes. A sequence that joins with r tokens to go is filed under tick + r; it needs a new
block whenever its context is a multiple of the block size, so the blocks that a step needs are one counter, by phase of
the clock. `_steady` runs the steps in which nothing else happens, `_glide` a stretch of them at one go, `_step` the
others. Who gets what is decided by `scheduler` (those that run) and `admission` (those that wait).

What it does not know: hardware (the cost model gives seconds), why requests arrive (the workload knows), what a client
does with its tokens.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable
from itertools import accumulate, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from servesim.config.engine import EngineConfig
from servesim.engine.adapters import AdapterCost
from servesim.engine.arrivals import Door
from servesim.engine.compressed import FEW, Folding
from servesim.engine.finalise import close
from servesim.engine.observation import Observation, StepWatch
from servesim.engine.request_limits import Screen
from servesim.engine.scheduler import Chunk
from servesim.engine.sequence import DECODE, ENDED, WAITING, Sequence
from servesim.engine.speculation import Speculation
from servesim.errors import RunError
from servesim.runs.records import Outcome, Records, Run
from servesim.runs.step_log import FoldedLog
from servesim.workload.workload import Workload

if TYPE_CHECKING:
    from servesim.cost.model import CostModel

COMPLETED = int(Outcome.COMPLETED)

EMPTY_STEPS = 10_000
"""So many steps one after another may compute nothing before the engine is taken to stand still; one or two do."""


class Engine(Folding):
    """One engine under `config`, fed by `workload`, with step times from `cost`.

    `advance(until)` runs every step that starts before `until`; `run()` then gives the run. An `observer` is called
    after each step with an `Observation`; it changes nothing but the speed. Engines of one fleet share `screen` and
    `records`.
    """

    def __init__(
        self,
        config: EngineConfig,
        cost: CostModel,
        workload: Workload,
        *,
        observer: Callable[[Observation], None] | None = None,
        watch: StepWatch | None = None,
        screen: Screen | None = None,
        records: Records | None = None,
    ) -> None:
        super().__init__(config, workload, screen, records)
        self.cost = cost if self.adapters is None else AdapterCost(cost, self.adapters)
        self.until = math.inf  # how far it was last told to advance
        self.watch = watch if observer is None else StepWatch(observer)
        self.on_chunks: Callable[[list[Chunk], float, float], None] | None = None  # told after each step that has any
        self.wasted_tokens = 0  # computed for clients that had left by the end
        self.speculation: Speculation | None = None
        if config.spec_tokens:
            self.speculation = Speculation(config.spec_tokens, config.acceptance, config.seed)
        self.door = Door(self)
        self._least_step_s = cost.decode(1, 1)
        self._empty = (0, 0)  # steps that computed nothing, and took no time, since the log had so many entries
        self._lone_s: list[float] = []  # seconds of a step of one decoding sequence, by its context

    # The clock

    def advance(self, until: float = math.inf) -> None:
        """Run every step that starts before `until`, or until nothing is left to do."""
        door, decoding = self.door, self.decoding
        self.until = until
        while self.now < self.until:
            if self.now >= door.wake:
                door.open()
            if self._idle():
                door.reset_wake()
                if door.wake == math.inf or door.wake >= self.until:
                    return
                self.now = max(self.now, door.wake)
                self.log.starts[len(self.log)] = self.now
            elif (
                not decoding.count
                or self.prefilling
                or self.ended
                or self.stalled
                or self.rested
                or (self.waiting and not self.blocked)
                or self.watch is not None
                or self.speculation is not None
                or not self._steady(min(self.until, door.wake))
            ):
                self._step()

    def _idle(self) -> bool:
        """Tell whether nothing happens before somebody comes, or a link has brought away what lies in the way."""
        return not self.running and (not self.waiting or (self.blocked and bool(self.handed)))

    def stop(self) -> None:
        """Make `advance` return after the step that it is in; for whoever hears of that step's end inside of it."""
        self.until = self.now

    def earliest_finish(self) -> float:
        """Return a time in seconds before which no request ends here, if none arrives in the meantime."""
        now, decoding, wake = self.now, self.decoding, self.door.wake
        if self.ended:
            return now
        if self._idle():
            return max(now, wake)
        if not (self.waiting or self.prefilling or decoding.count):
            return now  # only sequences whose clients have left
        steps = 1 if self.waiting or self.prefilling else min(decoding.buckets) - decoding.tick
        return min(now + steps * self._least_step_s, max(now, wake))

    def run(self, config: dict[str, Any] | None = None) -> Run:
        """Close the records of an engine that has been advanced as far as it shall be, and return its run.

        `config` is the effective configuration that the run is to carry.
        """
        self.drain()
        return close(self, config or {})

    def drain(self) -> None:
        """Process the output of the last step, if an asynchronous engine has yet to."""
        released, self.ended = self.ended, []
        self._release(released)

    def abort(self, sequence: Sequence) -> None:
        """End a running sequence whose client has left: its blocks are free at once."""
        if sequence.state == ENDED:
            self.records.pieces.setdefault(sequence.index, [(sequence.piece, len(self.log) - 1)])
        computed = sequence.base + self.decoding.tick if sequence.state == DECODE else sequence.computed
        self.wasted_tokens += max(computed, sequence.high_water)
        self._interrupt(sequence, len(self.log))

    # Steps in which nothing but decoding happens

    def _steady(self, until: float) -> bool:
        """Run steps in which every decoding sequence takes one token and nothing else happens.

        Stops after a step that ends a sequence or reaches `until`. Returns False, having done nothing, if not even the
        first step finds its blocks.
        """
        decoding, pool, log = self.decoding, self.pool, self.log
        if isinstance(log, FoldedLog):
            return self._fold(log, until)
        count, context, tick, now = decoding.count, decoding.context, decoding.tick, self.now
        if count <= FEW and self._glide(until):
            return True
        end_s, decodes, kv_blocks = log.end_s, log.decodes, log.kv_blocks
        needs, buckets, block_size, seconds = decoding.needs, decoding.buckets, decoding.block_size, self.cost.decode
        used = pool.used
        start = tick
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
            now += seconds(count, context)
            end_s.append(now)
            decodes.append(count)
            kv_blocks.append(used)
            if tick in buckets or now >= until:
                break
        if tick == start:
            return False
        decoding.context, decoding.tick, self.now = context, tick, now
        self._count_decodes(count * (tick - start))
        if tick in buckets:
            self._sample(len(end_s) - 1, [])
        return True

    def _glide(self, until: float) -> bool:
        """Run a steady stretch of a few sequences at one go, equal to stepping to the bit.

        Returns False, having done nothing, if the stretch may run short of blocks without a key.
        """
        decoding, pool, log = self.decoding, self.pool, self.log
        count, context, tick, block_size = decoding.count, decoding.context, decoding.tick, decoding.block_size
        steps = min(decoding.buckets) - tick
        if (steps // block_size + 1) * count > pool.keyless:
            return False
        if count == 1 and self.adapters is None:
            lone_s = self._lone_times_s(context + steps)
            durations_s: Iterable[float] = lone_s[context + 1 : context + steps + 1]
        else:
            contexts = range(context + count, context + count * steps + 1, count)
            durations_s = map(self.cost.decode, repeat(count), contexts)
        ends_s = list(accumulate(durations_s, initial=self.now))
        if ends_s[-1] >= until:
            steps = next(step for step in range(1, steps + 1) if ends_s[step] >= until)
            del ends_s[steps + 1 :]
        phase = tick % block_size
        cycle = decoding.needs[phase:] + decoding.needs[:phase]
        used = list(accumulate((cycle * (steps // block_size + 1))[:steps], initial=pool.used))
        pool.keyless -= used[-1] - used[0]
        log.end_s.extend(array("d", ends_s[1:]))
        log.kv_blocks.extend(array("i", used[1:]))
        log.decodes.extend(array("i", (count,)) * steps)
        self.now = ends_s[-1]
        decoding.context += count * steps
        decoding.tick += steps
        self._count_decodes(count * steps)
        if decoding.tick in decoding.buckets:
            self._sample(len(log) - 1, [])
        return True

    def _count_decodes(self, tokens: int) -> None:
        self.totals.scheduled += tokens
        self.totals.computed_tokens += tokens

    # One step

    def _step(self) -> None:
        """Schedule one step, let its time pass, process its output."""
        config, decoding, pool, log = self.config, self.decoding, self.pool, self.log
        step = len(log.end_s)
        threshold = config.long_prefill_token_threshold
        if threshold and self.rules.threshold_spares_lone and len(self.running) + len(self.waiting) == 1:
            threshold = 0
        budget = config.max_num_batched_tokens
        chunks: list[Chunk] = []
        rejoined = drafted = 0
        if self.speculation is not None and decoding.count:
            drafted = min(self.speculation.tokens, budget // decoding.count - 1)  # for each decoding sequence
            budget -= drafted * decoding.count
        self._preempted = []

        if self._plan(chunks, budget, threshold) or (self._drops_the_youngest and self._shed(chunks, budget, step)):
            served, context = decoding.count, decoding.context + decoding.count
            pool.take(decoding.blocks_needed())
            budget -= served
            for sequence, tokens in chunks:
                budget -= tokens
                self._compute(sequence, tokens)
        else:
            chunks.clear()
            served, context, rejoined, budget = self._contend(chunks, step, budget, threshold)
        if self.waiting and budget > 0 and not self._preempted and not self.blocked:
            self._admit(chunks, budget, threshold)
        used = pool.used
        if self.watch is not None:
            self.watch.scheduled(self, served, chunks, self._preempted)

        released, self.ended = self.ended, []  # asynchronous: the output of the step before
        if released:
            self._release(released)
        finished: list[Sequence] = []
        if served or chunks:
            if chunks or drafted:
                self._log_chunks(step, chunks)
                work = [(new, sequence.computed) for sequence, new in chunks]
                if drafted and served:
                    work.append((drafted * served, 0))  # they see the KV that the sequences read anyway
                seconds = self._joined_s(served, context, chunks) if self.receives else 0.0
                seconds = seconds or self.cost.step(served, context, work)
            else:
                seconds = self.cost.decode(served, context)
            if self._fetch_s:
                seconds = max(seconds, self._fetch_s) if config.kv_tiers_overlap else seconds + self._fetch_s
                self._fetch_s = 0.0
            start_s = self.now
            self.now += seconds
            if chunks and self.on_chunks is not None:
                self.on_chunks(chunks, start_s, self.now)
            log.end_s.append(self.now)
            log.decodes.append(served - rejoined)
            log.kv_blocks.append(used)
            if served:
                self._count_decodes(served)
                decoding.advance()
                if drafted:
                    self._verify(drafted)
            finished = self._sample(step, chunks)
        else:
            self._empty = (step, self._empty[1] + 1 if self._empty[0] == step else 0)
            stands = self.waiting and not released and not self._preempted
            if (stands and not self.handed) or self._empty[1] > EMPTY_STEPS:
                raise self._standstill()
            if stands:
                self.blocked = True  # until a link has brought away what lies in the head's way
        if self._learns_late:
            self._rest(bool(served or chunks))
        if self.watch is not None:
            self.watch.done(self, released if config.async_scheduling else finished)
            self.door.reset_wake()  # an observer may count steps for a workload that goes by them

    def _joined_s(self, served: int, context: int, chunks: list[Chunk]) -> float:
        """Return the seconds of a step that sequences join whose KV came over a link: they decode in it as the others
        do, where nothing of a prompt is computed. 0 where none joins."""
        work, joined = [], 0
        for sequence, new in chunks:
            if new == 1 and sequence.received and sequence.outputs == 1:
                joined += 1
                context += sequence.computed
            else:
                work.append((new, sequence.computed))
        if not joined:
            return 0.0
        served += joined
        return self.cost.step(served, context, work) if work else self.cost.decode(served, context)

    def _log_chunks(self, step: int, chunks: list[Chunk]) -> None:
        total = recomputed = 0
        for sequence, tokens in chunks:
            total += tokens
            after, high_water = sequence.computed, sequence.high_water
            if high_water:
                recomputed += max(0, min(after, high_water) - after + tokens)
            if after > high_water:
                sequence.high_water = after
        log, totals = self.log.prefill_tokens, self.totals
        if not chunks:
            return
        if len(log) < step:
            log.frombytes(bytes(log.itemsize * (step - len(log))))
        log.append(total)
        totals.scheduled += len(chunks)
        totals.computed_tokens += total
        totals.recomputed_tokens += recomputed

    def _verify(self, drafted: int) -> None:
        """Give every sequence that decoded in this step the drafted tokens that are accepted."""
        decoding, pool, size, totals = self.decoding, self.pool, self.config.block_size, self.totals
        assert self.speculation is not None
        self._unordered = True
        for sequence in self.running.values():
            if sequence.state != DECODE or sequence in self.stalled:
                continue
            totals.drafted_tokens += drafted
            accepted = min(self.speculation.accepted(drafted), sequence.finish_tick - decoding.tick)
            computed = sequence.base + decoding.tick
            room = -computed % size + pool.free * size
            accepted = min(accepted, room)
            if accepted:
                pool.take(-(-(computed + accepted) // size) + -computed // size)
                decoding.leap(sequence, accepted)
                totals.accepted_tokens += accepted
                totals.computed_tokens += accepted

    def _sample(self, step: int, chunks: list[Chunk]) -> list[Sequence]:
        """Let every sequence whose `computed` reached its `length` have its token; return those that are finished."""
        decoding, records, prefilling = self.decoding, self.records, self.prefilling
        finished = decoding.pop_finished() if decoding.tick in decoding.buckets else []
        for sequence, _ in chunks:
            if sequence.computed < sequence.prompt + sequence.outputs:
                continue
            if prefilling and sequence in prefilling:
                prefilling.remove(sequence)
            sequence.outputs += 1
            sequence.piece = step
            if sequence.outputs == 1:
                records.first[sequence.index] = step
            else:
                self._join_pieces(sequence, step)
            if sequence.outputs == sequence.target:
                finished.append(sequence)
            else:
                decoding.join(sequence)
                if sequence.segments:
                    self.pool.follow(sequence)
        if finished:
            self._finish(finished, step)
        return finished

    def _standstill(self) -> RunError:
        if not self.waiting:
            index = next(self.live_indices())
            return RunError(f"request {self.workload.requests.id(index)} gets no further: steps compute nothing")
        head = self.waiting[0]
        index = head if isinstance(head, int) else head.index
        return RunError(
            f"request {self.workload.requests.id(index)} can never be admitted: nothing runs and it does not fit "
            f"({self.pool.free} of {self.pool.num_blocks} blocks free)"
        )

    # How sequences end, stall and are dropped

    def _finish(self, sequences: list[Sequence], step: int) -> None:
        """Release sequences that had their last token: now, or after the next schedule if that one runs ahead."""
        if self._unordered and len(sequences) > 1:
            sequences.sort(key=attrgetter("order"))
        last, pieces = self.records.last, self.records.pieces
        for sequence in sequences:
            sequence.state = ENDED
            last[sequence.index] = step
            if pieces and sequence.index in pieces:
                pieces[sequence.index].append((sequence.piece, step))
        late = self.door.too_late(sequences)
        if late:
            sequences[:] = [sequence for sequence in sequences if sequence not in late]
            self._settle(late)
        if self.config.async_scheduling:
            self._settle(sequences)
            self.ended = sequences
        else:
            self._release(sequences)

    def _settle(self, sequences: list[Sequence]) -> None:
        """Give sequences that had their last token, but keep their blocks for now, the keys that are known by now."""
        if self.config.prefix_caching:
            for sequence in sequences:
                known = (sequence.computed - self.pool.key_lag) // self.config.block_size
                self.pool.settle(sequence, known, self.decoding.tick)

    def _release(self, sequences: list[Sequence]) -> None:
        """Give back seats and blocks of sequences that are done, in the order of scheduling; say so to the workload."""
        block_size, pool, running, records = self.config.block_size, self.pool, self.running, self.records
        caching, outcome, output_tokens = self.config.prefix_caching, records.outcome, records.output_tokens
        again: list[Sequence] = []
        self.blocked = False
        for sequence in sequences:
            computed = sequence.computed
            if sequence.state == WAITING:  # preempted while its last token was on its way
                if self.hand_over is not None:  # its KV is wanted elsewhere, and gone: once more
                    sequence.outputs = 0
                    again.append(sequence)
                    continue
                self.waiting.remove(sequence)
            else:
                if caching:
                    pool.settle(sequence, computed // block_size, self.decoding.tick + pool.key_lag)
                if self.hand_over is not None:
                    self.handed[sequence.order] = sequence
                    self.hand_over(sequence)
                elif caching:
                    pool.release(sequence, -(-computed // block_size))
                else:
                    pool.keyless -= -computed // block_size
                del running[sequence.order]
                if self.adapters is not None:
                    self.adapters.leave(sequence.index)
            outcome[sequence.index] = COMPLETED
            output_tokens[sequence.index] = sequence.target
        self.door.left([sequence for sequence in sequences if sequence not in again] if again else sequences)

    def _join_pieces(self, sequence: Sequence, step: int) -> None:
        """Undo the break in a sequence's tokens if it lost no step: it came back after one that took no time."""
        pieces = self.records.pieces[sequence.index]
        if pieces[-1][1] == step - 1:
            sequence.piece, _ = pieces.pop()
            self.log.decodes[step] += 1
            if not pieces:
                del self.records.pieces[sequence.index]
