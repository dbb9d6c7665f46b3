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
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from servesim.engine.adapters import AdapterCost, Adapters
from servesim.engine.blocks import BlockPool
from servesim.engine.closing import close
from servesim.engine.config import RULES, EngineConfig
from servesim.engine.decoding import Decoding
from servesim.engine.door import Door
from servesim.engine.observation import Observation, StepWatch
from servesim.engine.policy import POLICIES, Waiter, waiting_queue
from servesim.engine.screen import Screen
from servesim.engine.sequence import DECODE, ENDED, PREFILL, WAITING, Sequence
from servesim.engine.speculation import Speculation
from servesim.engine.tiers import Tiers
from servesim.errors import RunError
from servesim.records import EngineTotals, Outcome, Records, Run, StepLog
from servesim.workload.workload import Workload

if TYPE_CHECKING:
    from servesim.cost.model import CostModel

Chunk = tuple[Sequence, int]
"""Tokens of a prompt, or of what a preemption threw away, that one step computes."""

COMPLETED = int(Outcome.COMPLETED)

FEW = 4
"""Up to so many decoding sequences, the next to finish is found by looking at all of them."""


class Engine:
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
        screen: Screen | None = None,
        records: Records | None = None,
    ) -> None:
        requests = workload.requests
        self.config = config
        self.cost = cost
        self.workload = workload
        self.rules = RULES[config.rules]
        self.policy = POLICIES[config.policy]
        self.watch = None if observer is None else StepWatch(observer)
        self.now = 0.0
        self.until = math.inf  # how far it was last told to advance
        self.records = Records(len(requests)) if records is None else records
        self.abandoned: list[tuple[int, int]] = []  # as in `Records`, of this engine's steps
        self.log = StepLog()
        self.totals = EngineTotals(num_blocks=config.num_blocks)
        self.wasted_tokens = 0  # computed for clients that had left by the end
        self.screen = Screen(config, requests) if screen is None else screen
        self.targets = self.screen.targets
        self.running: dict[int, Sequence] = {}  # by order of admission
        self.waiting = waiting_queue(self.policy, requests, self.targets)
        self.blocked = False  # the head of `waiting` cannot enter until something changes
        self.decoding = Decoding(config.block_size)
        self.prefilling: list[Sequence] = []  # running, in mid-prefill, in their order
        self.ended: list[Sequence] = []  # asynchronous: last token sampled, not yet released
        self.stalled: set[Sequence] = set()  # decoding, but left out of the last step
        self.pool = BlockPool(
            config.num_blocks,
            config.block_size,
            keyless_to_front=self.rules.keyless_to_front or not config.prefix_caching,
            key_lag=int(config.async_scheduling),
            holders=self.holders,
            tiers=Tiers(config.kv_tiers) if config.kv_tiers and config.prefix_caching else None,
        )
        self.adapters: Adapters | None = None
        if config.adapters is not None and requests.adapters is not None:
            self.adapters = Adapters(config.adapters, requests.adapters)
            self.cost = AdapterCost(cost, self.adapters)
        self.speculation: Speculation | None = None
        if config.spec_tokens:
            self.speculation = Speculation(config.spec_tokens, config.acceptance, config.seed)
        self.door = Door(self)
        # Prefill and decode apart: what is left to a link to bring away, and what a link has brought.
        self.hand_over: Callable[[Sequence], None] | None = None
        self.handed: dict[int, Sequence] = {}  # out of `running`, but their blocks are still being read
        self.on_chunks: Callable[[list[Chunk], float, float], None] | None = None  # told after each step that has any
        self.incoming: dict[int, Sequence] = {}  # due requests whose KV has come from elsewhere
        self._contents = requests.content if config.prefix_caching else None
        self._admitted = 0  # admissions so far: the next sequence's order
        self._unordered = config.long_prefill_token_threshold > 0  # sequences may finish out of their order
        self._preempted: list[Sequence] = []  # in this step
        self._passed_over: list[Waiter] = []  # in this step: their adapters may not run
        self._fetch_s = 0.0  # what this step brings to the device takes: KV from tiers below, adapters
        self._drops_the_youngest = self.policy.victim is None and not config.prefix_caching and not self._unordered
        self._least_step_s = cost.decode(1, 1)
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

    def limit_to(self, screen: Screen) -> None:
        """Take other targets than the requests' own, before anything has run."""
        self.screen, self.targets = screen, screen.targets
        self.waiting = waiting_queue(self.policy, self.workload.requests, self.targets)

    def cached_tokens(self, sequence: Sequence) -> int:
        """Return how many tokens of a sequence that is not here yet its prefix cache holds now."""
        self.name_content(sequence)
        return self.pool.look_up(sequence, self.decoding.tick)[0] * self.config.block_size

    def name_content(self, sequence: Sequence) -> None:
        """Give `sequence` the chains of this engine's cache that it shares, if there is a prefix cache."""
        if self._contents is not None:
            adapter = None if self.adapters is None else self.adapters.names[sequence.index]
            sequence.segments = self.pool.segments(self._contents[sequence.index], adapter)

    def holders(self) -> Iterable[Sequence]:
        """Return every sequence that holds blocks."""
        return chain(self.running.values(), self.handed.values())

    def live_indices(self) -> Iterator[int]:
        """Yield the requests that are in the engine, running or waiting."""
        for sequence in self.running.values():
            yield sequence.index
        for waiter in self.waiting:
            yield waiter.index if isinstance(waiter, Sequence) else waiter

    def free_handed(self, sequence: Sequence) -> None:
        """Give back the blocks of a sequence that a link has brought away."""
        del self.handed[sequence.order]
        self.pool.release(sequence, -(-sequence.computed // self.config.block_size))
        self.blocked = False

    # Steps in which nothing but decoding happens

    def _steady(self, until: float) -> bool:
        """Run steps in which every decoding sequence takes one token and nothing else happens.

        Stops after a step that ends a sequence or reaches `until`. Returns False, having done nothing, if not even the
        first step finds its blocks.
        """
        decoding, pool, log = self.decoding, self.pool, self.log
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
        if count == 1:
            lone_s = self._lone_s
            if len(lone_s) <= context + steps:
                lone_s.extend(map(self.cost.decode, repeat(1), range(len(lone_s), context + steps + 1)))
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
                seconds = self.cost.step(served, context, work)
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
        elif self.waiting and not released and not self._preempted:
            if not self.handed:
                raise self._standstill()
            self.blocked = True  # until a link has brought away what lies in the head's way
        if self.watch is not None:
            self.watch.done(self, released if config.async_scheduling else finished)
            self.door.reset_wake()  # an observer may count steps for a workload that goes by them

    def _plan(self, chunks: list[Chunk], budget: int, threshold: int) -> bool:
        """Put into `chunks` what running prefills get; False if blocks, or tokens in the midst of `running`, run short.

        Without a threshold at most one running sequence is in mid-prefill, and it is the youngest.
        """
        if self.stalled:
            return False
        block_size, decoding = self.config.block_size, self.decoding
        budget -= decoding.count
        free = self.pool.free - decoding.blocks_needed()
        for sequence in self.prefilling:
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

    def _shed(self, chunks: list[Chunk], budget: int, step: int) -> bool:
        """Preempt the youngest until the blocks suffice for all others, and plan those: what `_contend` comes to where
        the victim is the last of `running`, nobody is cut short and no block is shared."""
        planned = False
        while not planned:
            chunks.clear()
            self._preempt(self.running[next(reversed(self.running))], step, 0, 0)
            planned = self._plan(chunks, budget, 0)
        return True

    def _contend(self, chunks: list[Chunk], step: int, budget: int, threshold: int) -> tuple[int, int, int, int]:
        """Serve `running` one by one where blocks or tokens run short, preempting until the blocks suffice.

        Returns how many decoding sequences are served, the sum of their contexts, how many of them had been left out
        of the step before, and the budget that is left.
        """
        block_size, pool, tick = self.config.block_size, self.pool, self.decoding.tick
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
            while need > pool.free and sequence.state != WAITING:
                victim = self._pick_victim(running)
                running.remove(victim)
                undone = served.pop(victim, 0)
                if undone:
                    budget += undone
                    position -= 1
                self._preempt(victim, step, undone, sequence.order - 1)
            if sequence.state == WAITING:  # it was its own victim: the loop over `running` ends
                break
            if sequence.state == DECODE:
                pool.take(need)
            else:
                self._compute(sequence, tokens)
            served[sequence] = tokens
            budget -= tokens
            position += 1

        decoding = [sequence for sequence in served if sequence.state == DECODE]
        chunks.extend((sequence, tokens) for sequence, tokens in served.items() if sequence.state == PREFILL)
        context = sum(sequence.base + tick + 1 for sequence in decoding)
        rejoined = sum(sequence in self.stalled for sequence in decoding)
        if served:
            left_out = [sequence for sequence in running if sequence.state == DECODE and sequence not in served]
            for sequence in left_out:
                self._stall(sequence, step, bool(decoding))
            self.stalled = set(left_out)
        return len(decoding), context, rejoined, budget

    def _pick_victim(self, running: list[Sequence]) -> Sequence:
        key = self.policy.victim
        if key is None:
            return running[-1]
        requests, targets = self.workload.requests, self.targets
        return max(running, key=lambda sequence: key(requests, targets, sequence.index))

    def _compute(self, sequence: Sequence, tokens: int) -> None:
        """Take the blocks for the next `tokens` of a running prefill and give the full ones their keys."""
        block_size = self.config.block_size
        before, after = sequence.computed, sequence.computed + tokens
        sequence.computed = after
        self.pool.take(-(-after // block_size) + -before // block_size)
        if self.config.prefix_caching:
            self.pool.give_keys(sequence, after // block_size, self.decoding.tick + 1, sequence.order)

    def _admit(self, chunks: list[Chunk], budget: int, threshold: int) -> None:
        """Admit from `waiting`; those whose adapter may not run now keep their places and let others pass."""
        self._admit_heads(chunks, budget, threshold)
        if self._passed_over:
            for waiter in reversed(self._passed_over):
                self.waiting.appendleft(waiter)
            self._passed_over.clear()
            self.blocked = False

    def _admit_heads(self, chunks: list[Chunk], budget: int, threshold: int) -> None:
        """Admit from the head of `waiting` until seats, budget or blocks end; the head blocks everybody behind it."""
        config, pool, running, waiting, records = self.config, self.pool, self.running, self.waiting, self.records
        prompts, targets, contents = self.workload.requests.prompt_tokens, self.targets, self._contents
        block_size, caching, max_num_seqs = config.block_size, config.prefix_caching, config.max_num_seqs
        door, totals, tick = self.door, self.totals, self.decoding.tick + 1
        whole = self.rules.whole_sequence_must_fit and config.reserve_full_isl
        while waiting and budget > 0:
            if len(running) >= max_num_seqs:
                self.blocked = True
                return
            head = waiting[0]
            sequence: Sequence | None = None
            if isinstance(head, Sequence):
                sequence, index = head, head.index
                length = sequence.prompt + sequence.outputs
            else:
                index = head
                length = prompts[index]
                if contents is not None and contents[index]:
                    sequence = Sequence(index, length, targets[index])
                    self.name_content(sequence)
            if self.adapters is not None and not self.adapters.admits(index):
                self._passed_over.append(waiting.popleft())
                continue
            hits = lying = 0
            if sequence is not None and sequence.segments:
                hits, lying = pool.look_up(sequence, tick)
            below = 0  # blocks that come back from the tiers below
            if pool.tiers is not None and sequence is not None and sequence.segments:
                below = sum(pool.tiers.look_up(sequence, hits, (length - 1) // block_size))
            cached = (hits + below) * block_size
            if sequence is not None and sequence.received and sequence.state != WAITING:
                if sequence.outputs == sequence.target:
                    self._hand_out_only_token(sequence)
                    continue
                cached = sequence.received - max(0, sequence.promised - cached)
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
                sequence = Sequence(index, length, targets[index])
            if self.watch is not None:
                self.watch.admissions.append((sequence, sequence.state == WAITING, length, cached))
            if self.adapters is not None:
                self._fetch_s += self.adapters.enter(index)
                self._lone_s.clear()
            self._admitted = order = self._admitted + 1
            sequence.order = order
            running[order] = sequence
            if sequence.state == WAITING:
                self._resume(sequence, cached)
            else:
                records.admitted_s[index] = self.now
                door.queued_tokens -= length
                if caching:
                    totals.looked_up_tokens += length
                    if hits or below:
                        records.cached_tokens[index] = (hits + below) * block_size
                        totals.hit_tokens += (hits + below) * block_size
                totals.saved_tokens += cached
            if hits:
                pool.hold(sequence, hits)
            if below:
                self._fetch_s += self._fetch(sequence, hits, (length - 1) // block_size)
            if first <= pool.keyless:
                pool.keyless -= first
            else:
                pool.take(first)
            sequence.computed = after
            if caching:
                pool.give_keys(sequence, after // block_size, tick)
            if after < length:
                self.prefilling.append(sequence)
            chunks.append((sequence, tokens))
            budget -= tokens

    def _fetch(self, sequence: Sequence, hits: int, cap: int) -> float:
        """Bring blocks back from the tiers below; return the seconds that takes."""
        tiers = self.pool.tiers
        assert tiers is not None
        counts = tiers.look_up(sequence, hits, cap)
        tiers.fetch(sequence, hits, cap)
        self.totals.fetched_tokens += sum(counts) * self.config.block_size
        return sum(count * tier.config.block_s for count, tier in zip(counts, tiers.tiers, strict=True))

    def _hand_out_only_token(self, sequence: Sequence) -> None:
        """Complete a request that came with its one token: nothing is left to compute."""
        self.waiting.popleft()
        self.records.admitted_s[sequence.index] = self.now
        self.records.outcome[sequence.index] = COMPLETED
        self.records.output_tokens[sequence.index] = 1
        self.totals.saved_tokens += sequence.prompt
        self.door.left([sequence])

    def _resume(self, sequence: Sequence, cached: int) -> None:
        sequence.state = PREFILL
        spans = self.records.preempted[sequence.index]
        spans[-1] = spans[-1][0], self.now
        self.totals.saved_tokens += max(0, cached - sequence.high_water)

    def _may_still_hit(self, sequence: Sequence | None, chunks: list[Chunk]) -> bool:
        """Tell whether a blocked head may find more blocks without anything being released."""
        if sequence is None or not sequence.segments:
            return False
        return bool(chunks or self.prefilling) or any(chain.tips for chain, _ in sequence.segments)

    def _tokens_in_flight(self) -> int:
        """Return the sum of `length` over running sequences, tokens on their way counted as known."""
        total = self.decoding.context + self.decoding.count
        if self.decoding.count < len(self.running):
            for sequence in self.running.values():
                if sequence.state != DECODE:
                    total += sequence.prompt + sequence.outputs
        return total

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
        self.blocked = False
        for sequence in sequences:
            computed = sequence.computed
            if sequence.state == WAITING:  # preempted while its last token was on its way
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
                    self._lone_s.clear()
            outcome[sequence.index] = COMPLETED
            output_tokens[sequence.index] = sequence.target
        self.door.left(sequences)

    def _preempt(self, victim: Sequence, step: int, undone: int, before: int) -> None:
        """Drop `victim`: its blocks are released, it waits at the front (or by its key) to be computed again."""
        self._interrupt(victim, step, undone, before)
        victim.state = WAITING
        self.waiting.appendleft(victim)
        self.records.preempted.setdefault(victim.index, []).append((self.now, math.nan))
        self.totals.preemptions += 1
        self._preempted.append(victim)

    def _interrupt(self, sequence: Sequence, step: int, undone: int = 0, before: int = 0) -> None:
        """Take a sequence out of `running` before `step` and give back its blocks.

        `undone`: tokens that this step had given it already; it has served those whose order is at most `before`.
        """
        block_size, pool, tick = self.config.block_size, self.pool, self.decoding.tick
        keyed = sequence.keyed
        if sequence.state == DECODE:
            self.decoding.remove(sequence)
            if sequence.piece < step:
                self.records.pieces.setdefault(sequence.index, []).append((sequence.piece, step - 1))
            self.stalled.discard(sequence)
            sequence.high_water = max(sequence.high_water, sequence.computed)
            sequence.computed += undone
            keyed = (sequence.computed - pool.key_lag) // block_size
        elif sequence in self.prefilling:
            self.prefilling.remove(sequence)
        if self.config.prefix_caching:
            pool.settle(sequence, keyed, tick + 1, before)
            if sequence.state != ENDED:
                pool.keep_for_resume(sequence)
        pool.release(sequence, -(-sequence.computed // block_size))
        sequence.computed = 0
        del self.running[sequence.order]
        if self.adapters is not None:
            self.adapters.leave(sequence.index)
            self._lone_s.clear()
        self.blocked = False

    def _stall(self, sequence: Sequence, step: int, ticking: bool) -> None:
        """Leave a decoding sequence out of `step`, in which others decode (`ticking`) or none does."""
        if sequence.piece < step:
            self.records.pieces.setdefault(sequence.index, []).append((sequence.piece, step - 1))
        sequence.piece = step + 1
        if ticking:
            self.pool.settle_chains(sequence, self.decoding.tick)
            self.decoding.hold_back(sequence)
            self._unordered = True

    def _join_pieces(self, sequence: Sequence, step: int) -> None:
        """Undo the break in a sequence's tokens if it lost no step: it came back after one that took no time."""
        pieces = self.records.pieces[sequence.index]
        if pieces[-1][1] == step - 1:
            sequence.piece, _ = pieces.pop()
            self.log.decodes[step] += 1
            if not pieces:
                del self.records.pieces[sequence.index]
