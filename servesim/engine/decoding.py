"""The sequences that decode, as a count, a sum and a clock: none is visited between its first step and its last.

Nothing happens to a sequence between the step that starts its decode and the step that ends it, so a step in which 200
sequences decode must not cost 200 operations.
"""

from __future__ import annotations

from servesim.engine.sequence import DECODE, Sequence


class Decoding:
    """All decoding sequences, which advance together by one token a step.

    `tick` counts the steps that decoded. A sequence that joins at tick d with r tokens to go is filed in `buckets`
    under d + r. Its context is `base + tick`, and it needs a new block whenever that is a multiple of the block size:
    `needs` counts sequences by the tick, modulo the block size, at which they do.
    """

    __slots__ = ("block_size", "buckets", "context", "count", "needs", "tick")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.count = 0
        self.context = 0  # sum of the tokens that have KV
        self.tick = 0
        self.needs = [0] * block_size
        self.buckets: dict[int, list[Sequence]] = {}  # by the tick of the last token, in the order of joining

    def join(self, sequence: Sequence) -> None:
        """Take in a sequence that has had a token and has more to come."""
        computed, tick = sequence.computed, self.tick
        last = tick + sequence.target - sequence.outputs
        sequence.state = DECODE
        sequence.base = computed - tick
        sequence.finish_tick = last
        if last in self.buckets:
            self.buckets[last].append(sequence)
        else:
            self.buckets[last] = [sequence]
        self.needs[(tick - computed) % self.block_size] += 1
        self.count += 1
        self.context += computed

    def advance(self) -> None:
        """Count one step in which they all had a token."""
        self.tick += 1
        self.context += self.count

    def pop_finished(self) -> list[Sequence]:
        """Take out, and return, those that had their last token at this tick."""
        tick, needs, block_size = self.tick, self.needs, self.block_size
        finished = self.buckets.pop(tick, [])
        for sequence in finished:
            base = sequence.base
            needs[-base % block_size] -= 1
            sequence.computed = computed = base + tick
            sequence.outputs = sequence.target
            self.context -= computed
        self.count -= len(finished)
        return finished

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence before its end, with `computed` and `outputs` as they stand."""
        sequence.computed = sequence.base + self.tick
        sequence.outputs = sequence.target - (sequence.finish_tick - self.tick)
        self.needs[-sequence.base % self.block_size] -= 1
        self.count -= 1
        self.context -= sequence.computed
        self._unfile(sequence)

    def move_ahead(self, sequence: Sequence, tokens: int) -> None:
        """Let a sequence have `tokens` more than the others in the step that was just counted."""
        self._move(sequence, -tokens)

    def hold_back(self, sequence: Sequence) -> None:
        """Leave a sequence out of a step that the others take: they all advance, and it is put back by a tick."""
        self._move(sequence, 1)

    def _move(self, sequence: Sequence, ticks: int) -> None:
        """Put a sequence back by so many ticks of the clock."""
        self.needs[-sequence.base % self.block_size] -= 1
        self._unfile(sequence)
        sequence.base -= ticks
        sequence.finish_tick += ticks
        self.context -= ticks
        self.needs[-sequence.base % self.block_size] += 1
        self.buckets.setdefault(sequence.finish_tick, []).append(sequence)

    def _unfile(self, sequence: Sequence) -> None:
        bucket = self.buckets[sequence.finish_tick]
        bucket.remove(sequence)
        if not bucket:
            del self.buckets[sequence.finish_tick]
