"""Who is let in: vLLM's rules for `waiting`, from its head, with what the prefix cache holds."""

from __future__ import annotations

from servesim.engine.scheduler import Chunk, Scheduler
from servesim.engine.sequence import DECODE, PREFILL, WAITING, Sequence
from servesim.runs.records import Outcome

COMPLETED = int(Outcome.COMPLETED)


class Admission(Scheduler):
    """A scheduler that lets requests in."""

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
