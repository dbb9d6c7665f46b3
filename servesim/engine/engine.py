"""One simulated engine: vLLM's iteration-level scheduling on a virtual clock.

There is no prefill phase and no decode phase, only sequences whose `computed` catches up with their `length`. Every
step serves `running` from its oldest member, then admits from the head of `waiting`, then takes as long as the cost
model says; a sequence whose `computed` has reached its `length` samples its next token.

A step costs what changes, not what exists. Nothing happens to a sequence between the step that starts its decode and
the step that ends it, so nobody visits it: decoding sequences are a count, a sum of contexts and a clock, `tick`, that
ticks once per step that decodes. A sequence that joins with r tokens to go is filed under tick + r; it needs a new
block whenever its context is a multiple of the block size, so the blocks that a step needs are one counter, by phase of
the clock. `_steady` runs the steps in which nothing else happens, `_step` the others, and `_contend` replaces the part
of `_step` that serves `running` where blocks or tokens run short: it walks the list, as the textbook does.

What it does not know: hardware (the cost model gives seconds), why requests arrive (the workload knows), what a client
does with its tokens.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable
from itertools import accumulate, repeat
from operator import attrgetter, mul
from typing import TYPE_CHECKING, Any

from servesim.engine.blocks import BlockPool
from servesim.engine.config import RULES, EngineConfig
from servesim.engine.door import Door, producible
from servesim.engine.policy import POLICIES, waiting_queue
from servesim.engine.sequence import DECODE, ENDED, PREFILL, WAITING, Sequence
from servesim.errors import RunError
from servesim.records import EngineTotals, Outcome, Records, Run, StepLog
from servesim.workload.workload import Workload

if TYPE_CHECKING:
    from servesim.cost.model import CostModel

Observation = dict[str, Any]
"""One step as an observer sees it: the keys of the golden traces, with request indices for ids."""

Chunk = tuple[Sequence, int]
"""Tokens of a prompt, or of what a preemption threw away, that one step computes."""

COMPLETED = int(Outcome.COMPLETED)

FEW = 4
"""Up to so many decoding sequences, the next to finish is found by looking at all of them."""


class Engine:
    """One engine under `config`, fed by `workload`, with step times from `cost`.

    `advance(until)` runs every step that starts before `until`. An `observer` is called after each step with an
    `Observation`; it changes nothing but the speed. `records`, `log` and `totals` hold what has happened so far.
    """

    def __init__(
        self,
        config: EngineConfig,
        cost: CostModel,
        workload: Workload,
        *,
        observer: Callable[[Observation], None] | None = None,
    ) -> None:
        requests = workload.requests
        self.config = config
        self.cost = cost
        self.workload = workload
        self.observer = observer
        self.rules = RULES[config.rules]
        self.policy = POLICIES[config.policy]
        self.now = 0.0
        self._until = math.inf  # how far it was last told to advance
        self.records = Records(len(requests))
        self.log = StepLog()
        self.totals = EngineTotals(num_blocks=config.num_blocks)
        self.targets = producible(requests, config.max_model_len)
        self.waiting = waiting_queue(self.policy, requests, self.targets)
        self.running: dict[int, Sequence] = {}  # by order of admission
        self.pool = BlockPool(
            config.num_blocks,
            config.block_size,
            keyless_to_front=self.rules.keyless_to_front or not config.prefix_caching,
            key_lag=int(config.async_scheduling),
        )
        self.pool.running = self.running
        self.door = Door(self)
        self.blocked = False  # the head of `waiting` cannot enter until something changes
        self._contents = requests.content if config.prefix_caching else None
        self._admitted = 0  # admissions so far: the next sequence's order
        self._prefilling: list[Sequence] = []  # running, in mid-prefill, in their order
        self._ended: list[Sequence] = []  # asynchronous: last token sampled, not yet released
        self._stalled: set[Sequence] = set()  # decoding, but left out of the last step
        self._unordered = config.long_prefill_token_threshold > 0  # sequences may end out of their order
        # The decoding sequences, none of them visited.
        self._decoding = 0
        self._context = 0  # sum of `computed`
        self._tick = 0
        self._buckets: dict[int, list[Sequence]] = {}  # by the tick of the last token
        self._needs = [0] * config.block_size  # how many need a block, by tick modulo block size
        self._lone: list[float] = []  # seconds of a step of one sequence, by its context
        # What an observer is told of a step.
        self._preempted: list[Sequence] = []
        self._admissions: list[tuple[Sequence, int, int]] = []
        self._resumed: set[Sequence] = set()
        self._steps_observed = 0

    # The clock

    def advance(self, until: float = math.inf) -> None:
        """Run every step that starts before `until`, or until nothing is left to do."""
        door = self.door
        self._until = until
        while self.now < until:
            if self.now >= door.wake:
                door.open()
            if not self.running and not self.waiting:
                door.reset_wake()
                if door.wake == math.inf or door.wake >= until:
                    return
                self.now = max(self.now, door.wake)
                self.log.starts[len(self.log)] = self.now
            elif (
                not self._decoding
                or self._prefilling
                or self._ended
                or self._stalled
                or (self.waiting and not self.blocked)
                or self.observer is not None
                or not self._steady(min(until, door.wake))
            ):
                self._step()

    def _steady(self, until: float) -> bool:
        """Run steps in which every decoding sequence takes one token and nothing else happens.

        Stops after a step that ends a sequence or reaches `until`. Returns False, having done nothing, if not even the
        first step finds its blocks.
        """
        count, context, tick, now = self._decoding, self._context, self._tick, self.now
        if count <= FEW and self._glide(until):
            return True
        pool, log = self.pool, self.log
        end_s, decodes, kv_blocks = log.end_s, log.decodes, log.kv_blocks
        needs, block_size, buckets, seconds = self._needs, self.config.block_size, self._buckets, self.cost.decode
        used = pool.used
        start_tick = tick
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
        if tick == start_tick:
            return False
        self._context, self._tick, self.now = context, tick, now
        self._count_decodes(count * (tick - start_tick))
        if tick in buckets:
            self._sample(len(end_s) - 1, count, [])
        return True

    def _glide(self, until: float) -> bool:
        """Run a steady stretch of a few sequences at one go, equal to stepping to the bit.

        Returns False, having done nothing, if the stretch may run short of blocks without a key.
        """
        log, pool, count, context, tick = self.log, self.pool, self._decoding, self._context, self._tick
        block_size = self.config.block_size
        steps = min(self._buckets) - tick
        if (steps // block_size + 1) * count > pool.keyless:
            return False
        if count == 1:
            lone = self._lone
            if len(lone) <= context + steps:
                lone.extend(map(self.cost.decode, repeat(1), range(len(lone), context + steps + 1)))
            durations: Iterable[float] = lone[context + 1 : context + steps + 1]
        else:
            contexts = range(context + count, context + count * steps + 1, count)
            durations = map(self.cost.decode, repeat(count), contexts)
        ends = list(accumulate(durations, initial=self.now))
        if ends[-1] >= until:
            steps = next(step for step in range(1, steps + 1) if ends[step] >= until)
            del ends[steps + 1 :]
        phase = tick % block_size
        cycle = self._needs[phase:] + self._needs[:phase]
        used = list(accumulate((cycle * (steps // block_size + 1))[:steps], initial=pool.used))
        pool.keyless -= used[-1] - used[0]
        log.end_s.extend(array("d", ends[1:]))
        log.kv_blocks.extend(array("i", used[1:]))
        log.decodes.extend(array("i", (count,)) * steps)
        self.now = ends[-1]
        self._context += count * steps
        self._tick += steps
        self._count_decodes(count * steps)
        if self._tick in self._buckets:
            self._sample(len(log) - 1, count, [])
        return True

    # One step

    def _step(self) -> None:
        """Schedule one step, let its time pass, process its output."""
        config, pool, log = self.config, self.pool, self.log
        step = len(log.end_s)
        threshold = config.long_prefill_token_threshold
        if threshold and self.rules.threshold_spares_lone and len(self.running) + len(self.waiting) == 1:
            threshold = 0
        budget = config.max_num_batched_tokens
        served, context, rejoined = self._decoding, self._context + self._decoding, 0
        chunks: list[Chunk] = []
        self._preempted = []

        need = self._needs[self._tick % config.block_size] if served else 0
        if not self._stalled and self._plan_prefills(chunks, budget - served, threshold, pool.free - need):
            pool.take(need)
            budget -= served
            for sequence, tokens in chunks:
                budget -= tokens
                self._compute(sequence, tokens, sequence.order)
        else:
            chunks.clear()
            served, context, rejoined, budget = self._contend(chunks, step, budget, threshold)
        if self.waiting and budget > 0 and not self._preempted and not self.blocked:
            self._admit(chunks, budget, threshold)
        log.kv_blocks.append(pool.used)
        report = self._observe_schedule(served, chunks) if self.observer is not None else None

        released, self._ended = self._ended, []
        if released:
            self._release(released)
        if served or chunks:
            if chunks:
                self._log_chunks(step, chunks)
                seconds = self.cost.step(served, context, [(new, sequence.computed) for sequence, new in chunks])
            else:
                seconds = self.cost.decode(served, context)
            log.decodes.append(served - rejoined)
            self.totals.scheduled += len(chunks)
            if served:
                self._count_decodes(served)
                self._tick += 1
                self._context += served
            self.now += seconds
            log.end_s.append(self.now)
            finished = self._sample(step, served, chunks)
        else:
            log.kv_blocks.pop()
            finished = []
            if not released and not self._preempted:
                raise self._standstill()
        if report is not None:
            self._report(report, released if config.async_scheduling else finished)

    def _plan_prefills(self, chunks: list[Chunk], budget: int, threshold: int, free: int) -> bool:
        """Put into `chunks` what running prefills get; False if blocks, or tokens in the midst of `running`, run short.

        Without a threshold at most one running sequence is in mid-prefill, and it is the youngest.
        """
        block_size = self.config.block_size
        for sequence in self._prefilling:
            tokens = sequence.prompt + sequence.outputs - sequence.computed
            if 0 < threshold < tokens:
                tokens = threshold
            if tokens > budget:
                if self.config.long_prefill_token_threshold:
                    return False
                tokens = budget
            if tokens > 0:
                budget -= tokens
                free -= -(-(sequence.computed + tokens) // block_size) + -sequence.computed // block_size
                chunks.append((sequence, tokens))
        return free >= 0

    def _contend(
        self, chunks: list[Chunk], step: int, budget: int, threshold: int
    ) -> tuple[int, int, int, int]:
        """Serve `running` one by one where blocks or tokens run short, preempting until the blocks suffice.

        Returns how many decoding sequences are served, the sum of their contexts, how many of them had been left out
        of the step before, and the budget that is left.
        """
        block_size, pool, tick = self.config.block_size, self.pool, self._tick
        running = list(self.running.values())
        served: dict[Sequence, int] = {}
        position = 0
        while position < len(running) and budget > 0:
            sequence = running[position]
            if sequence.state == ENDED:
                position += 1
                continue
            if sequence.state == DECODE:
                computed, tokens = sequence.base + tick, 1
            else:
                computed = sequence.computed
                tokens = sequence.prompt + sequence.outputs - computed
                if 0 < threshold < tokens:
                    tokens = threshold
                tokens = min(tokens, budget)
            need = -(-(computed + tokens) // block_size) + -computed // block_size
            while need > pool.free:
                victim = self._pick_victim(running)
                place = running.index(victim)
                del running[place]
                if place < position:
                    position -= 1
                undone = served.pop(victim, 0)
                budget += undone
                self._preempt(victim, step, undone, sequence.order - 1)
                if victim is sequence:
                    break
            if sequence.state == WAITING:
                break
            if sequence.state == DECODE:
                pool.take(need)
            else:
                self._compute(sequence, tokens, sequence.order)
            served[sequence] = tokens
            budget -= tokens
            position += 1
        decoding = [sequence for sequence in served if sequence.state == DECODE]
        chunks.extend((sequence, tokens) for sequence, tokens in served.items() if sequence.state == PREFILL)
        rejoined = sum(sequence in self._stalled for sequence in decoding)
        if served:
            left_out = [sequence for sequence in running if sequence.state == DECODE and sequence not in served]
            for sequence in left_out:
                self._stall(sequence, step, bool(decoding))
            self._stalled = set(left_out)
        return len(decoding), sum(sequence.base + tick + 1 for sequence in decoding), rejoined, budget

    def _pick_victim(self, running: list[Sequence]) -> Sequence:
        key = self.policy.victim
        if key is None:
            return running[-1]
        requests, targets = self.workload.requests, self.targets
        return max(running, key=lambda sequence: key(requests, targets, sequence.index))

    def _compute(self, sequence: Sequence, tokens: int, order: int) -> None:
        """Take the blocks for the next `tokens` of a running prefill and give the full ones their keys."""
        block_size = self.config.block_size
        computed = sequence.computed
        sequence.computed = after = computed + tokens
        self.pool.take(-(-after // block_size) + -computed // block_size)
        if self.config.prefix_caching:
            if sequence.segments:
                self.pool.give_keys(sequence, after // block_size, self._tick + 1, order)
            sequence.keyed = after // block_size

    def _admit(self, chunks: list[Chunk], budget: int, threshold: int) -> None:
        """Admit from the head of `waiting` until seats, budget or blocks end; the head blocks everybody behind it."""
        config, pool, running, waiting, records = self.config, self.pool, self.running, self.waiting, self.records
        prompts, targets, contents = self.workload.requests.prompt_tokens, self.targets, self._contents
        block_size, caching, door, totals = config.block_size, config.prefix_caching, self.door, self.totals
        whole = self.rules.whole_sequence_must_fit and config.reserve_full_isl
        while waiting and budget > 0:
            if len(running) >= config.max_num_seqs:
                self.blocked = True
                return
            head = waiting[0]
            if head.__class__ is int:
                length = prompts[head]
                sequence = None
                if contents is not None and contents[head]:
                    sequence = Sequence(head, length, targets[head])
                    sequence.segments = pool.segments(contents[head])
            else:
                sequence = head
                length = sequence.prompt + sequence.outputs
            hits = lying = 0
            if sequence is not None and sequence.segments:
                hits, lying = pool.look_up(sequence, self._tick + 1)
            cached = hits * block_size
            tokens = length - cached
            if 0 < threshold < tokens:
                tokens = threshold
            cut = tokens > budget
            if cut:
                if not config.chunked_prefill:
                    self.blocked = not chunks
                    return
                tokens = budget
            after = cached + tokens
            first = -(-after // block_size) - hits
            need = lying + (-(-length // block_size) - hits if whole else first)
            if running:
                need += config.watermark_blocks
            if need > pool.keyless + pool.cached or (
                config.max_tokens_in_flight and self._tokens_in_flight() + length > config.max_tokens_in_flight
            ):
                self.blocked = (whole or not cut) and not self._may_still_hit(sequence, chunks)
                return

            waiting.popleft()
            if sequence is None:
                sequence = Sequence(head, length, targets[head])
            self._admitted = order = self._admitted + 1
            sequence.order = order
            running[order] = sequence
            index = sequence.index
            if self.observer is not None:
                self._admissions.append((sequence, length, cached))
            if sequence.state == WAITING:
                self._resume(sequence, cached)
            else:
                records.admitted_s[index] = self.now
                if door.counting:
                    door.queued_tokens -= length
                if caching:
                    totals.looked_up_tokens += length
                    if hits:
                        records.cached_tokens[index] = cached
                        totals.hit_tokens += cached
                        totals.saved_tokens += cached
            if hits:
                pool.hold(sequence, hits)
            if first <= pool.keyless:
                pool.keyless -= first
            else:
                pool.take(first)
            sequence.computed = after
            if caching:
                if sequence.segments:
                    pool.give_keys(sequence, after // block_size, self._tick + 1)
                sequence.keyed = after // block_size
            if tokens < length - cached:
                self._prefilling.append(sequence)
            chunks.append((sequence, tokens))
            budget -= tokens

    def _resume(self, sequence: Sequence, cached: int) -> None:
        sequence.state = PREFILL
        spans = self.records.preempted[sequence.index]
        spans[-1] = spans[-1][0], self.now
        self.totals.saved_tokens += max(0, cached - sequence.high_water)
        self._resumed.add(sequence)

    def _may_still_hit(self, sequence: Sequence | None, chunks: list[Chunk]) -> bool:
        """Tell whether a blocked head may find more blocks without anything being released."""
        if sequence is None or not sequence.segments:
            return False
        return bool(chunks or self._prefilling) or any(chain.tips for chain, _ in sequence.segments)

    def _tokens_in_flight(self) -> int:
        """Return the sum of `length` over running sequences, tokens on their way counted as known."""
        total = self._context + self._decoding
        for sequence in self.running.values():
            if sequence.state != DECODE:
                total += sequence.prompt + sequence.outputs
        return total

    def _log_chunks(self, step: int, chunks: list[Chunk]) -> None:
        total = 0
        for sequence, tokens in chunks:
            total += tokens
            after = sequence.computed
            if after > sequence.high_water:
                self.totals.recomputed_tokens += max(0, sequence.high_water - after + tokens)
                sequence.high_water = after
            else:
                self.totals.recomputed_tokens += tokens
        log = self.log.prefill_tokens
        log.frombytes(bytes(log.itemsize * (step - len(log))))
        log.append(total)
        self.totals.computed_tokens += total

    def _sample(self, step: int, served: int, chunks: list[Chunk]) -> list[Sequence]:
        """Let every sequence whose `computed` reached its `length` have its token; return those that are finished."""
        tick = self._tick
        finished = self._buckets.pop(tick, []) if served else []
        if finished:
            self._leave_decode(finished, step)
        if chunks:
            buckets, needs, block_size = self._buckets, self._needs, self.config.block_size
            for sequence, _ in chunks:
                computed = sequence.computed
                if computed < sequence.prompt + sequence.outputs:
                    continue
                if sequence in self._prefilling:
                    self._prefilling.remove(sequence)
                sequence.outputs = outputs = sequence.outputs + 1
                sequence.piece = step
                if outputs == 1:
                    self.records.first[sequence.index] = step
                else:
                    self._join_pieces(sequence, step)
                last = tick + sequence.target - outputs
                if last == tick:
                    self._last_token(sequence, step)
                    finished.append(sequence)
                    continue
                sequence.state = DECODE
                sequence.base = computed - tick
                sequence.finish_tick = last
                if last in buckets:
                    buckets[last].append(sequence)
                else:
                    buckets[last] = [sequence]
                needs[(tick - computed) % block_size] += 1
                self._decoding += 1
                self._context += computed
                if sequence.segments:
                    self.pool.follow(sequence)
        if finished:
            self._finish(finished)
        return finished

    # Decoding sequences come and go

    def _count_decodes(self, tokens: int) -> None:
        self.totals.scheduled += tokens
        self.totals.computed_tokens += tokens

    def _leave_decode(self, sequences: list[Sequence], step: int) -> None:
        """Take sequences that had their last token in `step` out of the count."""
        tick, needs, block_size = self._tick, self._needs, self.config.block_size
        for sequence in sequences:
            base = sequence.base
            needs[-base % block_size] -= 1
            sequence.computed = computed = base + tick
            sequence.outputs = sequence.target
            self._context -= computed
            self._last_token(sequence, step)
        self._decoding -= len(sequences)

    def _last_token(self, sequence: Sequence, step: int) -> None:
        records, index = self.records, sequence.index
        sequence.state = ENDED
        records.last[index] = step
        if index in records.pieces:
            records.pieces[index].append((sequence.piece, step))

    def _join_pieces(self, sequence: Sequence, step: int) -> None:
        """Undo the break in a sequence's tokens if it lost no step: it came back after one that took no time."""
        pieces = self.records.pieces[sequence.index]
        if pieces[-1][1] == step - 1:
            sequence.piece, _ = pieces.pop()
            self.log.decodes[step] += 1
            if not pieces:
                del self.records.pieces[sequence.index]

    def _stall(self, sequence: Sequence, step: int, ticking: bool) -> None:
        """Leave a decoding sequence out of `step`: its clock stands still while the others' ticks."""
        if sequence.piece < step:
            self.records.pieces.setdefault(sequence.index, []).append((sequence.piece, step - 1))
        sequence.piece = step + 1
        if not ticking:
            return
        self.pool.settle_chains(sequence, self._tick)
        needs, block_size = self._needs, self.config.block_size
        needs[-sequence.base % block_size] -= 1
        sequence.base -= 1
        needs[-sequence.base % block_size] += 1
        self._unfile(sequence)
        sequence.finish_tick += 1
        self._buckets.setdefault(sequence.finish_tick, []).append(sequence)
        self._unordered = True

    def _unfile(self, sequence: Sequence) -> None:
        bucket = self._buckets[sequence.finish_tick]
        bucket.remove(sequence)
        if not bucket:
            del self._buckets[sequence.finish_tick]

    def _interrupt(self, sequence: Sequence, step: int, undone: int = 0, before: int = 0) -> None:
        """Take a sequence that loses its blocks before `step` out of whatever it was doing, and give them back.

        `undone`: tokens that this step had given it already; it has served those whose order is at most `before`.
        """
        block_size, pool, tick = self.config.block_size, self.pool, self._tick
        computed = sequence.computed
        if sequence.state == DECODE:
            computed = sequence.base + tick
            self._needs[-sequence.base % block_size] -= 1
            self._decoding -= 1
            self._context -= computed
            self._unfile(sequence)
            sequence.outputs = sequence.target - (sequence.finish_tick - tick)
            if sequence.piece < step:
                self.records.pieces.setdefault(sequence.index, []).append((sequence.piece, step - 1))
            self._stalled.discard(sequence)
            sequence.high_water = max(sequence.high_water, computed)
            computed += undone
            if self.config.prefix_caching:
                pool.settle(sequence, max(sequence.keyed, (computed - pool.key_lag) // block_size), tick + 1, before)
        elif sequence in self._prefilling:
            self._prefilling.remove(sequence)
        sequence.computed = 0
        if sequence.state != ENDED:
            pool.keep_for_resume(sequence)
        self._give_back(sequence, -(-computed // block_size))
        del self.running[sequence.order]
        self.blocked = False

    def _preempt(self, victim: Sequence, step: int, undone: int, before: int) -> None:
        """Drop `victim`: its blocks are released, it waits at the front (or by its key) to be computed again."""
        self._interrupt(victim, step, undone, before)
        victim.state = WAITING
        self.waiting.appendleft(victim)
        self.records.preempted.setdefault(victim.index, []).append((self.now, math.nan))
        self.totals.preemptions += 1
        self._preempted.append(victim)

    def _finish(self, sequences: list[Sequence]) -> None:
        """Release sequences that had their last token: now, or after the next schedule if that one runs ahead."""
        if self._unordered and len(sequences) > 1:
            sequences.sort(key=attrgetter("order"))
        late = self.door.too_late(sequences)
        if late:
            sequences[:] = [sequence for sequence in sequences if sequence not in late]
        if self.config.async_scheduling:
            self._settle(sequences)
            self._ended = sequences
        else:
            self._release(sequences)
        self._settle(late)

    def _settle(self, sequences: list[Sequence]) -> None:
        """Give sequences that had their last token, but keep their blocks for now, the keys that are known by now."""
        if self.config.prefix_caching:
            for sequence in sequences:
                known = (sequence.computed - self.pool.key_lag) // self.config.block_size
                self.pool.settle(sequence, max(sequence.keyed, known), self._tick)

    def _release(self, sequences: list[Sequence]) -> None:
        """Give back seats and blocks of sequences that are done, in the order of scheduling; say so to the workload."""
        block_size, pool, running, records = self.config.block_size, self.pool, self.running, self.records
        caching, outcome = self.config.prefix_caching, records.outcome
        self.blocked = False
        for sequence in sequences:
            computed = sequence.computed
            if sequence.state == WAITING:  # preempted while its last token was on its way
                self.waiting.remove(sequence)
            else:
                if not caching:
                    pool.keyless -= -computed // block_size
                else:
                    if sequence.segments:
                        pool.settle(sequence, computed // block_size, self._tick + pool.key_lag)
                    sequence.keyed = computed // block_size
                    self._give_back(sequence, -(-computed // block_size))
                del running[sequence.order]
            outcome[sequence.index] = COMPLETED
            records.output_tokens[sequence.index] = sequence.target
        self.door.left(sequences)

    def _give_back(self, sequence: Sequence, blocks: int) -> None:
        if sequence.segments:
            self.pool.release(sequence, blocks)
        else:
            self.pool.give(blocks, sequence.keyed)
            sequence.keyed = 0

    def abort(self, sequence: Sequence) -> None:
        """End a running sequence whose client has left: its blocks are free at once."""
        if sequence.state == ENDED and sequence.index not in self.records.pieces:
            self.records.pieces[sequence.index] = [(sequence.piece, len(self.log) - 1)]
        self._interrupt(sequence, len(self.log))

    def ends_in_time(self, sequence: Sequence) -> bool:
        """Tell whether a running sequence had its last token and only waits for its release."""
        return sequence in self._ended

    def run(self, config: dict[str, Any] | None = None) -> Run:
        """Close the records of an engine that has been advanced as far as it shall be, and return its run.

        `config` is the effective configuration that the run is to carry.
        """
        self._release(self._ended)
        self._ended = []
        self.door.close(self._until)
        records, log, totals, requests = self.records, self.log, self.totals, self.workload.requests
        self._close_unfinished()
        log.prefill_tokens.frombytes(bytes(log.prefill_tokens.itemsize * (len(log) - len(log.prefill_tokens))))
        records.prompt_tokens = requests.prompt_tokens[:]
        log.starts.pop(len(log), None)  # it woke up for nothing
        totals.steps = len(log)
        if totals.steps:
            durations_s = log.durations_s()
            totals.busy_s = math.fsum(durations_s)
            totals.elapsed_s = log.end_s[-1]
            totals.kv_peak_blocks = max(log.kv_blocks)
            totals.kv_block_seconds = math.fsum(map(mul, log.kv_blocks, durations_s))
        totals.evictions = self.pool.evictions
        return Run(
            source="simulated",
            requests=requests,
            records=records,
            times=log.end_s,
            config=config or {},
            steps=log,
            engine=totals,
        )

    def _close_unfinished(self) -> None:
        """Write into the records what requests that are still in the engine have had so far."""
        step, records = len(self.log), self.records
        waiting = [waiter for waiter in self.waiting if isinstance(waiter, Sequence)]
        for sequence in [*self.running.values(), *waiting]:
            index, outputs = sequence.index, sequence.outputs
            pieces = records.pieces.pop(index, [])
            if sequence.state == DECODE:
                outputs = sequence.target - (sequence.finish_tick - self._tick)
                if sequence.piece < step:
                    pieces.append((sequence.piece, step - 1))
            records.output_tokens[index] = outputs
            if pieces:
                records.last[index] = pieces[-1][1]
            if len(pieces) > 1:
                records.pieces[index] = pieces

    def _standstill(self) -> RunError:
        head = self.waiting[0]
        index = head if isinstance(head, int) else head.index
        return RunError(
            f"request {self.workload.requests.id(index)} can never be admitted: nothing runs and it does not fit "
            f"({self.pool.free} of {self.pool.num_blocks} blocks free)"
        )

    # What an observer sees

    def _observe_schedule(self, served: int, chunks: list[Chunk]) -> Observation:
        tokens = dict(chunks)
        scheduled = {}
        for sequence in self.running.values():
            if sequence in tokens:
                scheduled[sequence.index] = tokens[sequence]
            elif served and sequence.state == DECODE and sequence not in self._stalled:
                scheduled[sequence.index] = 1
        report: Observation = {
            "step": self._steps_observed,
            "arrived": self.door.arrived,
            "scheduled": scheduled,
            "admitted": [sequence.index for sequence, _, _ in self._admissions],
            "resumed": [sequence.index for sequence, _, _ in self._admissions if sequence in self._resumed],
            "preempted": [sequence.index for sequence in self._preempted],
            "free_blocks_at_schedule": self.pool.free,
        }
        if self.config.prefix_caching:
            report["prefix"] = {
                sequence.index: {"queries": length, "hits": cached} for sequence, length, cached in self._admissions
            }
        self.door.arrived, self._admissions, self._resumed = [], [], set()
        self._steps_observed += 1
        return report

    def _report(self, report: Observation, finished: list[Sequence]) -> None:
        assert self.observer is not None
        report["finished"] = [sequence.index for sequence in finished]
        report["running"] = [sequence.index for sequence in self.running.values()]
        report["waiting"] = [waiter if isinstance(waiter, int) else waiter.index for waiter in self.waiting]
        report["free_blocks"] = self.pool.free
        self.observer(report)
