"""Who gets what in a step: vLLM's rules for `running`, for preemption and for admission from `waiting`.

There is no prefill phase and no decode phase, only sequences whose `computed` catches up with their `length`.
`schedule` serves `running` from its oldest member, then admits from the head of `waiting`; `update` gives every
sequence whose `computed` has reached its `length` its next token; `finish` and `release` let go of those that had their
last one.

A step costs what changes, not what exists. Sequences that decode are not visited: `decoding` counts them. So a step is
planned by looking at the few in mid-prefill (`_plan`) and committed at one go (`_commit`). Where blocks run short and
the youngest is the victim, it is dropped and the rest planned again (`_preempt_youngest`); wherever blocks or tokens
run short in the midst of `running`, the list is walked as the textbook does it (`_serve_one_by_one`).

The state, with who changes it. Outside of this file `Arrivals` has requests enqueued and withdrawn, and the engine sets
`blocked` behind a step that did nothing; everybody else reads.

| state | means | set by | taken back by |
|---|---|---|---|
| `waiting` | never admitted (an index), or preempted (a sequence) | `enqueue`, `_preempt` | `_admit`, `withdraw` |
| `running` | holds a slot; by order of admission | `_admit` | `release`, `_take_out` |
| `prefilling` | running, in mid-prefill, in their order | `_admit` | `update`, `_take_out` |
| `decoding` | running, a token a step: a count, a sum and a clock | `update` | `pop_finished`, `_take_out` |
| `stalled` | decoding, but there were no tokens left for them | `_serve_one_by_one`, each time | `_take_out` |
| `in_sync` | decoding, and no token of theirs is on its way | `note_known_tokens`, after each step | `_take_out` |
| `ended` | had their last token, but hold slot and blocks | `finish` | `release`, behind the next `schedule` |
| `in_transfer` | completed prompts whose blocks a link still reads | `release` | `free_transferred` |
| `prefilled_elsewhere` | about to arrive, KV from a link | `Engine.receive` | `enqueue`, `Engine.forget_received` |
| `blocked` | the head of `waiting` cannot be admitted before something changes | `_admit` | whatever changes it |
| `queued_tokens` | prompts in `waiting` that were never admitted | `enqueue` | `_admit`, `withdraw` |

- `blocked` saves looking at the head again in every step. It is reset by all that may let the head in: a release, a
  preemption, a withdrawal, the end of a transfer, and an arrival where a policy may make it the new head.
- `stalled` holds those that the last step with anything to compute left out. While there are any, a step is never
  planned but served one by one, which replaces the set: mostly by an empty one.
- `in_sync` is empty but for asynchronous scheduling with a prefix cache, where the content of a block depends on a
  token that is on its way when the next step is scheduled. After a step that left a sequence out, or computed nothing,
  no token of it is; its keys are then given with the step, not one step later.
- `ended` is for asynchronous scheduling: the next step is scheduled before the last tokens of this one are seen.
- `queued_tokens` is kept only where `max_num_queued_tokens` asks for it.

Of one sequence, `run_start` is the step of the first token of its current unbroken run of tokens. `update` sets it when
a run begins, `_stall` when one is broken without losing its blocks (the step after). Where a run ends it goes, with its
last step, into `slices` of the records; a request with one run only needs no entry there.

It does not know how long a step takes, when requests come, or which clients leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from servesim.config.engine import POLICIES, RULES, EngineConfig
from servesim.engine.adapters import Adapters
from servesim.engine.blocks import BlockPool
from servesim.engine.decoding import Decoding
from servesim.engine.request_limits import RequestLimits
from servesim.engine.sequence import DECODE, ENDED, PREFILL, WAITING, Sequence
from servesim.engine.speculation import Speculation
from servesim.engine.tiers import Tiers
from servesim.engine.waiting import Waiter, waiting_queue
from servesim.runs.records import EngineTotals, Outcome, Records
from servesim.workload.requests import Requests

Chunk = tuple[Sequence, int]
"""Tokens of a prompt, or of what a preemption threw away, that one step computes."""

COMPLETED = int(Outcome.COMPLETED)


class Admission(NamedTuple):
    """Who was let into `running`, with how many of its `length` tokens found in the cache."""

    sequence: Sequence
    resumed: bool  # it had been preempted
    length: int
    cached: int


class Step:
    """One step: what it computes is decided by `Scheduler.schedule`, what comes of it by `Scheduler.update`."""

    __slots__ = (
        "admissions",
        "chunks",
        "completed",
        "context",
        "decodes",
        "drafted",
        "fetch_s",
        "number",
        "preempted",
        "prefill_tokens",
        "start_s",
        "unbroken",
    )

    def __init__(self, number: int, start_s: float) -> None:
        self.number = number  # its place in the log, if it computes anything
        self.start_s = start_s
        self.decodes = 0  # sequences that get the next token of their output
        self.context = 0  # sum of their contexts, the token that they compute included
        self.unbroken = 0  # of `decodes`, those that had a token in the step before, too
        self.drafted = 0  # speculative tokens of each decoding sequence, beside its own
        self.chunks: list[Chunk] = []
        self.prefill_tokens = 0  # sum over `chunks`; known after `update`
        self.fetch_s = 0.0  # seconds until what is to come to the device is there: KV from tiers below, adapters
        self.preempted: tuple[Sequence, ...] = ()
        self.completed: tuple[Sequence, ...] = ()  # came with their only token: nothing was left to compute
        self.admissions: list[Admission] | None = None  # noted only where steps are watched


class Scheduler:
    """The sequences of one engine, what they hold, and the decisions about them; see the table above."""

    def __init__(
        self,
        config: EngineConfig,
        requests: Requests,
        limits: RequestLimits,
        records: Records,
        totals: EngineTotals,
        *,
        watched: bool = False,
    ) -> None:
        self.config = config
        self.rules = RULES[config.rules]
        self.policy = POLICIES[config.policy]
        self.requests = requests
        self.targets = limits.targets
        self.records = records
        self.totals = totals
        self.waiting = waiting_queue(self.policy, requests, self.targets)
        self.queued_tokens = 0
        self.blocked = False
        self.running: dict[int, Sequence] = {}
        self.prefilling: list[Sequence] = []
        self.decoding = Decoding(config.block_size)
        self.stalled: set[Sequence] = set()
        self.in_sync: set[Sequence] = set()
        self.ended: list[Sequence] = []
        self.in_transfer: dict[int, Sequence] = {}
        self.prefilled_elsewhere: dict[int, Sequence] = {}
        self.hand_over: Callable[[Sequence], None] | None = None  # called with each completed prompt
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
        self.speculation: Speculation | None = None
        if config.spec_tokens:
            self.speculation = Speculation(config.spec_tokens, config.acceptance, config.seed)
        self._watched = watched
        self._has_keys = self.policy.admission is not None  # `waiting` is in the order of a key
        self._counts_queued = config.max_num_queued_tokens is not None
        self._contents = requests.content if config.prefix_caching else None
        self._admitted = 0  # admissions so far: the next sequence's order
        self._unordered = config.long_prefill_token_threshold > 0  # sequences may finish out of their order
        self._victim_is_youngest = self.policy.victim is None and not config.prefix_caching and not self._unordered
        self._passed_over: list[Waiter] = []  # in this step: their adapters may not run
        self.tokens_lag = config.async_scheduling and config.prefix_caching  # content is known a step late

    # Who is there

    def is_idle(self) -> bool:
        """Tell whether nothing happens before a request comes, or a link has read the blocks that are in the way."""
        return not self.running and (not self.waiting or (self.blocked and bool(self.in_transfer)))

    def holders(self) -> Iterable[Sequence]:
        """Return every sequence that holds blocks, and those that were preempted."""
        preempted = (waiter for waiter in self.waiting if isinstance(waiter, Sequence))
        return chain(self.running.values(), self.in_transfer.values(), preempted)

    def live_indices(self) -> Iterator[int]:
        """Yield the requests that are in the engine, running or waiting."""
        for sequence in self.running.values():
            yield sequence.index
        for waiter in self.waiting:
            yield waiter.index if isinstance(waiter, Sequence) else waiter

    def has_ended(self, index: int) -> bool:
        """Tell whether request `index` had its last token in the last step and is not yet released."""
        return any(sequence.index == index for sequence in self.ended)

    def cached_tokens(self, sequence: Sequence) -> int:
        """Return how many tokens of a sequence that is not here yet the prefix cache holds now."""
        self.name_content(sequence)
        return self.pool.look_up(sequence, self.decoding.tick)[0] * self.config.block_size

    def name_content(self, sequence: Sequence) -> None:
        """Give `sequence` the chains of this engine's cache that it shares, if there is a prefix cache."""
        if self._contents is not None:
            adapter = None if self.adapters is None else self.adapters.names[sequence.index]
            sequence.segments = self.pool.segments(self._contents[sequence.index], adapter)

    # Who comes and who leaves between steps

    def enqueue(self, indices: Iterable[int]) -> None:
        """Let requests wait that have come, in this order."""
        if self.prefilled_elsewhere:
            self.waiting.extend(self.prefilled_elsewhere.pop(index, index) for index in indices)
        else:
            self.waiting.extend(indices)
        if self._has_keys:
            self.blocked = False  # there may be another head
        if self._counts_queued:
            self.queued_tokens += sum(map(self.requests.prompt_tokens.__getitem__, indices))

    def withdraw(self, index: int, step: int) -> Sequence | None:
        """Take a request whose client has left out of the engine before `step`: its blocks are free at once.

        It must be in the engine and not have ended. Returns its sequence, if it was ever admitted.
        """
        sequence = next((s for s in self.running.values() if s.index == index), None)
        if sequence is not None:
            if sequence.state == ENDED:
                self.records.slices.setdefault(sequence.index, [(sequence.run_start, step - 1)])
            self.totals.wasted_tokens += max(sequence.computed_at(self.decoding.tick), sequence.high_water)
            self._take_out(sequence, step)
            return sequence
        waiter = next(w for w in self.waiting if w == index or (w.__class__ is Sequence and w.index == index))
        if isinstance(waiter, Sequence):
            sequence = waiter
            self.totals.wasted_tokens += waiter.high_water
        else:
            self.queued_tokens -= self.requests.prompt_tokens[index]
        self.waiting.remove(waiter)
        self.blocked = False
        return sequence

    def free_transferred(self, sequence: Sequence) -> None:
        """Give back the blocks of a sequence that a link has read."""
        del self.in_transfer[sequence.order]
        self.pool.release(sequence, -(-sequence.computed // self.config.block_size))
        self.blocked = False

    # Before a step

    def schedule(self, number: int, now_s: float) -> Step:
        """Decide what the next step computes, and give those whom it serves their blocks."""
        config, decoding = self.config, self.decoding
        step = Step(number, now_s)
        if self._watched:
            step.admissions = []
        threshold = config.long_prefill_token_threshold
        if threshold and self.rules.threshold_spares_single and len(self.running) + len(self.waiting) == 1:
            threshold = 0
        budget = config.max_num_batched_tokens
        if self.speculation is not None and decoding.count:
            step.drafted = min(self.speculation.tokens, budget // decoding.count - 1)
            budget -= step.drafted * decoding.count
        if self._plan(step.chunks, budget, threshold) or (
            self._victim_is_youngest and self._preempt_youngest(step, budget)
        ):
            budget = self._commit(step, budget)
        else:
            budget = self._serve_one_by_one(step, budget, threshold)
        if budget > 0 and self.waiting and not self.blocked and not step.preempted:
            self._admit(step, budget, threshold)
            if self._passed_over:
                self._take_back_passed_over()
        return step

    def _plan(self, chunks: list[Chunk], budget: int, threshold: int) -> bool:
        """Put into `chunks` what running prefills get; False if blocks, or tokens in the midst of `running`, run short.

        Without a threshold at most one running sequence is in mid-prefill, and it is the youngest.
        """
        if self.stalled or self.in_sync:
            return False
        block_size, decoding, pool = self.config.block_size, self.decoding, self.pool
        budget -= decoding.count
        free = pool.keyless + pool.cached - decoding.needs[decoding.tick % block_size]
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

    def _commit(self, step: Step, budget: int) -> int:
        """Give everybody what was planned: a token to all that decode, `chunks` to the others; return what is left."""
        decoding = self.decoding
        served = decoding.count
        if served:
            step.decodes = step.unbroken = served
            step.context = decoding.context + served
            need = decoding.needs[decoding.tick % decoding.block_size]
            if need:
                self.pool.take(need)
            budget -= served
        for sequence, tokens in step.chunks:
            budget -= tokens
            self._compute(sequence, tokens)
        return budget

    def _preempt_youngest(self, step: Step, budget: int) -> bool:
        """Preempt the youngest until the blocks suffice for all others, and plan those.

        That is what `_serve_one_by_one` comes to where the victim is the last of `running`, nobody is cut short and no
        block is shared.
        """
        planned = False
        while not planned:
            step.chunks.clear()
            self._preempt(self.running[next(reversed(self.running))], step)
            planned = self._plan(step.chunks, budget, 0)
        return True

    def _serve_one_by_one(self, step: Step, budget: int, threshold: int) -> int:
        """Serve `running` one by one where blocks or tokens run short, preempting until the blocks suffice.

        Returns the budget that is left.
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
                if sequence in self.in_sync:  # the token that it computes is known, and with it the block's content
                    pool.give_keys(sequence, (computed + 1) // block_size, tick + 1, sequence.order)
            else:
                self._compute(sequence, tokens)
            served[sequence] = tokens
            budget -= tokens
            position += 1

        decoding = [sequence for sequence in served if sequence.state == DECODE]
        step.chunks = [(sequence, tokens) for sequence, tokens in served.items() if sequence.state == PREFILL]
        step.decodes = len(decoding)
        step.context = sum(sequence.base + tick + 1 for sequence in decoding)
        step.unbroken = step.decodes - sum(sequence in self.stalled for sequence in decoding)
        if served:
            left_out = [sequence for sequence in running if sequence.state == DECODE and sequence not in served]
            for sequence in left_out:
                self._stall(sequence, step.number, bool(decoding))
            self.stalled = set(left_out)
        return budget

    def _compute(self, sequence: Sequence, tokens: int) -> None:
        """Take the blocks for the next `tokens` of a running prefill and give the full ones their keys."""
        block_size = self.config.block_size
        before, after = sequence.computed, sequence.computed + tokens
        sequence.computed = after
        self.pool.take(-(-after // block_size) + -before // block_size)
        if self.config.prefix_caching:
            self.pool.give_keys(sequence, after // block_size, self.decoding.tick + 1, sequence.order)

    def _stall(self, sequence: Sequence, step: int, ticking: bool) -> None:
        """Leave a decoding sequence out of `step`, in which others decode (`ticking`) or none does."""
        if sequence.run_start < step:
            self.records.slices.setdefault(sequence.index, []).append((sequence.run_start, step - 1))
        sequence.run_start = step + 1
        if ticking:
            self.pool.update_chains(sequence, self.decoding.tick)
            self.decoding.hold_back(sequence)
            self._unordered = True

    # Preemption

    def _pick_victim(self, running: list[Sequence]) -> Sequence:
        key = self.policy.victim
        if key is None:
            return running[-1]
        requests, targets = self.requests, self.targets
        return max(running, key=lambda sequence: key(requests, targets, sequence.index))

    def _preempt(self, victim: Sequence, step: Step, undone: int = 0, before: int = 0) -> None:
        """Drop `victim`: its blocks are released, it waits at the front (or by its key) to be computed again."""
        self._take_out(victim, step.number, undone, before)
        victim.state = WAITING
        self.waiting.appendleft(victim)
        self.records.preempted.setdefault(victim.index, []).append((step.start_s, math.nan))
        self.totals.preemptions += 1
        step.preempted += (victim,)

    def _take_out(self, sequence: Sequence, step: int, undone: int = 0, before: int = 0) -> None:
        """Take a sequence out of `running` before `step` and give back its blocks.

        `undone`: tokens that this step had given it already; it has served those whose order is at most `before`.
        """
        block_size, pool, tick = self.config.block_size, self.pool, self.decoding.tick
        keyed = sequence.keyed
        if sequence.state == DECODE:
            self.decoding.remove(sequence)
            if sequence.run_start < step:
                self.records.slices.setdefault(sequence.index, []).append((sequence.run_start, step - 1))
            self.stalled.discard(sequence)
            self.in_sync.discard(sequence)
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

    # Admission

    def _admit(self, step: Step, budget: int, threshold: int) -> None:
        """Admit from the head of `waiting` until slots, budget or blocks end; the head blocks everybody behind it."""
        config, pool, running, waiting, records = self.config, self.pool, self.running, self.waiting, self.records
        prompts, targets, contents = self.requests.prompt_tokens, self.targets, self._contents
        block_size, caching, max_num_seqs = config.block_size, config.prefix_caching, config.max_num_seqs
        chunks, totals, tick = step.chunks, self.totals, self.decoding.tick + 1
        whole = self.rules.whole_sequence_must_fit and config.reserve_full_isl
        # An admission is most of what a request costs: in one loop, and what few requests need is elsewhere.
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
            hits = free_hits = below = cached = 0  # `below`: blocks that come back from the tiers below
            if sequence is not None:
                if sequence.segments:
                    hits, free_hits = pool.look_up(sequence, tick)
                    if pool.tiers is not None:
                        below = sum(pool.tiers.look_up(sequence, hits, (length - 1) // block_size))
                    cached = (hits + below) * block_size
                if sequence.received and sequence.state != WAITING:
                    if sequence.outputs == sequence.target:
                        self._complete_at_once(sequence, step)
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
            need = free_hits + (-(-length // block_size) - hits if whole else first)
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
            if step.admissions is not None:
                step.admissions.append(Admission(sequence, sequence.state == WAITING, length, cached))
            if self.adapters is not None:
                step.fetch_s += self.adapters.enter(index)
            self._admitted = order = self._admitted + 1
            sequence.order = order
            running[order] = sequence
            if sequence.state == WAITING:
                self._resume(sequence, cached, step.start_s)
            else:
                records.admitted_s[index] = step.start_s
                self.queued_tokens -= length
                if caching:
                    totals.looked_up_tokens += length
                    if hits or below:
                        records.cached_tokens[index] = (hits + below) * block_size
                        totals.hit_tokens += (hits + below) * block_size
                totals.saved_tokens += cached
            if hits:
                pool.hold(sequence, hits)
            if below:
                step.fetch_s += self._fetch(sequence, hits, (length - 1) // block_size)
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

    def _take_back_passed_over(self) -> None:
        """Give those whose adapters may not run now their places in `waiting` back; they let others pass."""
        for waiter in reversed(self._passed_over):
            self.waiting.appendleft(waiter)
        self._passed_over.clear()
        self.blocked = False

    def _fetch(self, sequence: Sequence, hits: int, cap: int) -> float:
        """Bring blocks back from the tiers below; return the seconds that takes."""
        tiers = self.pool.tiers
        assert tiers is not None
        counts = tiers.look_up(sequence, hits, cap)
        tiers.fetch(sequence, hits, cap)
        self.totals.fetched_tokens += sum(counts) * self.config.block_size
        return sum(count * tier.config.block_s for count, tier in zip(counts, tiers.tiers, strict=True))

    def _complete_at_once(self, sequence: Sequence, step: Step) -> None:
        """Complete a request that came with its one token: nothing is left to compute."""
        self.waiting.popleft()
        self.records.admitted_s[sequence.index] = step.start_s
        self.records.outcome[sequence.index] = COMPLETED
        self.records.output_tokens[sequence.index] = 1
        self.totals.saved_tokens += sequence.prompt
        step.completed += (sequence,)

    def _resume(self, sequence: Sequence, cached: int, now_s: float) -> None:
        sequence.state = PREFILL
        spans = self.records.preempted[sequence.index]
        spans[-1] = spans[-1][0], now_s
        self.totals.saved_tokens += max(0, cached - sequence.high_water)

    def _may_still_hit(self, sequence: Sequence | None, chunks: list[Chunk]) -> bool:
        """Tell whether a blocked head may find more blocks without anything being released."""
        if sequence is None or not sequence.segments:
            return False
        return bool(chunks or self.prefilling) or any(chain.writers for chain, _ in sequence.segments)

    def _tokens_in_flight(self) -> int:
        """Return the sum of `length` over running sequences, tokens on their way counted as known."""
        total = self.decoding.context + self.decoding.count
        if self.decoding.count < len(self.running):
            for sequence in self.running.values():
                if sequence.state != DECODE:
                    total += sequence.prompt + sequence.outputs
        return total

    # After a step

    def update(self, step: Step) -> list[Sequence]:
        """Give every sequence whose `computed` reached its `length` its token; return those that had their last."""
        decoding, records, totals, prefilling, number = (
            self.decoding,
            self.records,
            self.totals,
            self.prefilling,
            step.number,
        )
        if step.decodes:
            totals.scheduled += step.decodes
            totals.computed_tokens += step.decodes
            decoding.advance()
            if step.drafted:
                self._verify(step.drafted)
        finished = decoding.pop_finished() if decoding.tick in decoding.buckets else []
        total = 0
        for sequence, tokens in step.chunks:
            total += tokens
            after, high_water = sequence.computed, sequence.high_water
            if high_water:
                totals.recomputed_tokens += max(0, min(after, high_water) - after + tokens)
            if after > high_water:
                sequence.high_water = after
            if after < sequence.prompt + sequence.outputs:
                continue
            if prefilling and sequence in prefilling:
                prefilling.remove(sequence)
            sequence.outputs += 1
            sequence.run_start = number
            if sequence.outputs == 1:
                records.first[sequence.index] = number
            else:
                self._join_runs(sequence, step)
            if sequence.outputs == sequence.target:
                finished.append(sequence)
            else:
                decoding.join(sequence)
                if sequence.segments:
                    self.pool.start_writing(sequence)
        if total:
            step.prefill_tokens = total
            totals.scheduled += len(step.chunks)
            totals.computed_tokens += total
        return finished

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
                decoding.move_ahead(sequence, accepted)
                totals.accepted_tokens += accepted
                totals.computed_tokens += accepted

    def _join_runs(self, sequence: Sequence, step: Step) -> None:
        """Undo the break in a sequence's tokens if it lost no step: it came back after one that took no time."""
        slices = self.records.slices[sequence.index]
        if slices[-1][1] == step.number - 1:
            sequence.run_start, _ = slices.pop()
            step.unbroken += 1
            if not slices:
                del self.records.slices[sequence.index]

    def finish(self, finished: list[Sequence], step: int, late: Iterable[Sequence] = ()) -> list[Sequence]:
        """Note that sequences had their last token in `step`; return those that are released at once.

        The clients of those that are `late` had left before it: they stay until they are withdrawn. An asynchronous
        engine schedules its next step before it sees the tokens of this one: till then all others stay in `ended`.
        """
        if self._unordered and len(finished) > 1:
            finished.sort(key=attrgetter("order"))
        last, slices = self.records.last, self.records.slices
        for sequence in finished:
            sequence.state = ENDED
            last[sequence.index] = step
            if slices and sequence.index in slices:
                slices[sequence.index].append((sequence.run_start, step))
        if late:
            self._settle(late)
            finished[:] = [sequence for sequence in finished if sequence not in late]
        if self.config.async_scheduling:
            self._settle(finished)
            self.ended = finished
            return []
        return self.release(finished)

    def _settle(self, sequences: Iterable[Sequence]) -> None:
        """Give sequences that had their last token, but keep their blocks for now, the keys that are known by now."""
        if self.config.prefix_caching:
            for sequence in sequences:
                known = (sequence.computed - self.pool.key_lag) // self.config.block_size
                self.pool.settle(sequence, known, self.decoding.tick)

    def release(self, sequences: list[Sequence]) -> list[Sequence]:
        """Take back slots and blocks of sequences that are done, in the order of scheduling; return the completed."""
        block_size, pool, running = self.config.block_size, self.pool, self.running
        caching, outcome, output_tokens = self.config.prefix_caching, self.records.outcome, self.records.output_tokens
        again: list[Sequence] = []
        self.ended = []
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
                    self.in_transfer[sequence.order] = sequence
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
        return [sequence for sequence in sequences if sequence not in again] if again else sequences

    def note_known_tokens(self, computed: bool) -> None:
        """Note whose tokens are all known: those that this step left out, or all if it `computed` nothing.

        Their last token, on its way when the step was scheduled, is known by its end, and keys are given by it.
        """
        self.in_sync = set()
        if computed and not self.stalled:
            return
        pool, tick = self.pool, self.decoding.tick
        for sequence in self.running.values():
            if sequence.state == DECODE and (not computed or sequence in self.stalled):
                self.in_sync.add(sequence)
                pool.give_keys(sequence, (sequence.base + tick) // pool.block_size, tick)
