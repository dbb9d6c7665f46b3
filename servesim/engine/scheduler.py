"""Who gets what in a step, of those that run: vLLM's rules for `running`, preemption, and what a sequence holds.

`_plan` says what a step comes to where nobody is cut short; `_shed` drops the youngest where that is all there is to
it; `_contend` walks the list, as the textbook does, wherever blocks or tokens run short in its midst. Who is let in is
`admission`; what time a step takes, and what comes out of it, is `engine`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from servesim.config.engine import POLICIES, RULES, EngineConfig
from servesim.engine.adapters import Adapters
from servesim.engine.blocks import BlockPool
from servesim.engine.decoding import Decoding
from servesim.engine.request_limits import Screen
from servesim.engine.sequence import DECODE, ENDED, PREFILL, WAITING, Sequence
from servesim.engine.tiers import Tiers
from servesim.engine.waiting import Waiter, waiting_queue
from servesim.runs.records import EngineTotals, Records, StepLog
from servesim.workload.workload import Workload

if TYPE_CHECKING:
    from servesim.engine.arrivals import Door
    from servesim.engine.observation import StepWatch

Chunk = tuple[Sequence, int]
"""Tokens of a prompt, or of what a preemption threw away, that one step computes."""


class Scheduler:
    """The sequences of one engine and what they hold. `now` is the engine's clock, in seconds."""

    door: Door
    watch: StepWatch | None

    def __init__(
        self, config: EngineConfig, workload: Workload, screen: Screen | None, records: Records | None
    ) -> None:
        requests = workload.requests
        self.config = config
        self.workload = workload
        self.rules = RULES[config.rules]
        self.policy = POLICIES[config.policy]
        self.now = 0.0
        self.records = Records(len(requests)) if records is None else records
        self.abandoned: list[tuple[int, int]] = []  # as in `Records`, of this engine's steps
        self.log = StepLog()
        self.totals = EngineTotals(num_blocks=config.num_blocks)
        self.screen = Screen(config, requests) if screen is None else screen
        self.targets = self.screen.targets
        self.running: dict[int, Sequence] = {}  # by order of admission
        self.waiting = waiting_queue(self.policy, requests, self.targets)
        self.blocked = False  # the head of `waiting` cannot enter until something changes
        self.decoding = Decoding(config.block_size)
        self.prefilling: list[Sequence] = []  # running, in mid-prefill, in their order
        self.ended: list[Sequence] = []  # asynchronous: last token sampled, not yet released
        self.stalled: set[Sequence] = set()  # decoding, but left out of the last step
        self.rested: set[Sequence] = set()  # decoding, but no token of theirs is on its way: all are known
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
        # Prefill and decode apart: what is left to a link to bring away, and what a link has brought.
        self.hand_over: Callable[[Sequence], None] | None = None
        self.handed: dict[int, Sequence] = {}  # out of `running`, but their blocks are still being read
        self.incoming: dict[int, Sequence] = {}  # due requests whose KV has come from elsewhere
        self.receives = False  # whether any does
        self._contents = requests.content if config.prefix_caching else None
        self._admitted = 0  # admissions so far: the next sequence's order
        self._unordered = config.long_prefill_token_threshold > 0  # sequences may finish out of their order
        self._preempted: list[Sequence] = []  # in this step
        self._passed_over: list[Waiter] = []  # in this step: their adapters may not run
        self._fetch_s = 0.0  # what this step brings to the device takes: KV from tiers below, adapters
        self._learns_late = config.async_scheduling and config.prefix_caching
        self._drops_the_youngest = self.policy.victim is None and not config.prefix_caching and not self._unordered

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
        """Return every sequence that holds blocks, and those that were preempted."""
        preempted = (waiter for waiter in self.waiting if isinstance(waiter, Sequence))
        return chain(self.running.values(), self.handed.values(), preempted)

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

    # Serving those that run

    def _plan(self, chunks: list[Chunk], budget: int, threshold: int) -> bool:
        """Put into `chunks` what running prefills get; False if blocks, or tokens in the midst of `running`, run short.

        Without a threshold at most one running sequence is in mid-prefill, and it is the youngest.
        """
        if self.stalled or self.rested:
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
                if sequence in self.rested:  # the token that it computes is known, and with it the block's content
                    pool.give_keys(sequence, (computed + 1) // block_size, tick + 1, sequence.order)
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
            self.rested.discard(sequence)
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
        self.blocked = False

    def _rest(self, scheduled: bool) -> None:
        """Note which decoding sequences this step left out, or all if it scheduled nobody: their last token, on its way
        when the step was scheduled, is known by its end, and keys are given by it."""
        pool, tick = self.pool, self.decoding.tick
        rested = self.running.values() if self.stalled or not scheduled else ()
        self.rested = set()
        for sequence in rested:
            if sequence.state == DECODE and (not scheduled or sequence in self.stalled):
                self.rested.add(sequence)
                pool.give_keys(sequence, (sequence.base + tick) // pool.block_size, tick)

    def _stall(self, sequence: Sequence, step: int, ticking: bool) -> None:
        """Leave a decoding sequence out of `step`, in which others decode (`ticking`) or none does."""
        if sequence.piece < step:
            self.records.pieces.setdefault(sequence.index, []).append((sequence.piece, step - 1))
        sequence.piece = step + 1
        if ticking:
            self.pool.settle_chains(sequence, self.decoding.tick)
            self.decoding.hold_back(sequence)
            self._unordered = True
