"""The block pool and its chains by themselves, against a pool of real blocks that are visited one by one."""

from __future__ import annotations

import doctest
import random
import unittest
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import servesim.engine.blocks as blocks
from servesim.engine.blocks import BlockPool
from servesim.engine.sequence import DECODE, Sequence
from servesim.workload.requests import OPEN_END, Content
from tests.extent import seeds


@dataclass(eq=False)
class NaiveBlock:
    key: Any = None
    holders: int = 0


@dataclass
class NaivePool:
    """vLLM's pool as it reads: a queue of free blocks, a table of keys, nothing counted."""

    num_blocks: int
    keyless_to_front: bool
    evictions: int = 0
    free: deque[NaiveBlock] = field(default_factory=deque)
    table: dict[Any, list[NaiveBlock]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free.extend(NaiveBlock() for _ in range(self.num_blocks))

    def take(self, count: int) -> list[NaiveBlock]:
        taken = [self.free.popleft() for _ in range(count)]
        for block in taken:
            block.holders = 1
            if block.key is not None:
                self.evictions += 1
                self.table[block.key].remove(block)
                block.key = None
        return taken

    def look_up(self, keys: Iterable[Any]) -> list[NaiveBlock]:
        hits: list[NaiveBlock] = []
        for key in keys:
            if not self.table.get(key):
                break
            hits.append(self.table[key][0])
        return hits

    def hold(self, hits: list[NaiveBlock]) -> None:
        for block in hits:
            if not block.holders:
                self.free.remove(block)
            block.holders += 1

    def give_keys(self, held: list[NaiveBlock], keys: list[Any], keyed: int, upto: int) -> None:
        for i in range(keyed, upto):
            held[i].key = keys[i]
            self.table.setdefault(keys[i], []).append(held[i])

    def release(self, held: list[NaiveBlock]) -> None:
        freed = []
        for block in reversed(held):
            block.holders -= 1
            if not block.holders:
                freed.append(block)
        if self.keyless_to_front:
            self.free.extendleft(block for block in freed if block.key is None)
            freed = [block for block in freed if block.key is not None]
        self.free.extend(freed)


class Both:
    """A pool and its naive twin, driven alike. Sequences compute what they are told to, or decode tick by tick."""

    def __init__(self, num_blocks: int, block_size: int, *, keyless_to_front: bool = True) -> None:
        self.size = block_size
        self.running: dict[int, Sequence] = {}
        self.pool = BlockPool(num_blocks, block_size, keyless_to_front=keyless_to_front, holders=self.running.values)
        self.naive = NaivePool(num_blocks, keyless_to_front)
        self.held: dict[Sequence, list[NaiveBlock]] = {}
        self.keyed: dict[Sequence, int] = {}
        self.content: dict[Sequence, Content] = {}
        self.tick = 0
        self.made = 0

    def make(self, prompt: int, content: Content = ()) -> Sequence:
        self.made += 1
        sequence = Sequence(self.made, prompt, 10**9)
        sequence.segments = self.pool.segments(content)
        self.content[sequence] = content
        return sequence

    def keys(self, sequence: Sequence, count: int) -> list[Any]:
        """Return the keys of its first `count` blocks: all tokens up to the block's end."""
        keys: list[Any] = []
        for i in range(count):
            tokens = tuple(self.token(sequence, at) for at in range(i * self.size, (i + 1) * self.size))
            keys.append((keys[-1] if keys else None, tokens))
        return keys

    def token(self, sequence: Sequence, at: int) -> tuple[object, ...]:
        for stream, end in self.content[sequence]:
            if at < end:
                return stream, at
        return "own", sequence.index, at

    def look_up(self, sequence: Sequence) -> tuple[int, int]:
        """Return hits and how many of them lie free, as both pools see them."""
        found = self.pool.look_up(sequence, self.tick)
        hits = self.naive.look_up(self.keys(sequence, (sequence.prompt + sequence.outputs - 1) // self.size))
        assert found == (len(hits), sum(not block.holders for block in hits)), (found, len(hits))
        return found

    def needs(self, sequence: Sequence, computed: int) -> int:
        hits, free_hits = self.look_up(sequence)
        return max(-(-computed // self.size) - hits, 0) + free_hits

    def admit(self, sequence: Sequence, computed: int) -> None:
        hits, _ = self.look_up(sequence)
        found = self.naive.look_up(self.keys(sequence, hits))
        sequence.order = self.made = self.made + 1
        self.running[sequence.order] = sequence
        if hits:
            self.pool.hold(sequence, hits)
        self.naive.hold(found)
        self.held[sequence], self.keyed[sequence] = found, hits
        sequence.computed = hits * self.size
        self.compute(sequence, computed)

    def compute(self, sequence: Sequence, computed: int) -> None:
        new = -(-computed // self.size) - len(self.held[sequence])
        self.pool.take(new)
        self.pool.give_keys(sequence, computed // self.size, self.tick)
        self.compute_naively(sequence, computed, new)
        sequence.computed = computed

    def compute_naively(self, sequence: Sequence, computed: int, new: int) -> None:
        self.held[sequence] += self.naive.take(new)
        full = computed // self.size
        self.naive.give_keys(self.held[sequence], self.keys(sequence, full), self.keyed[sequence], full)
        self.keyed[sequence] = max(self.keyed[sequence], full)

    def start_decode(self, sequence: Sequence) -> None:
        sequence.state = DECODE
        sequence.base = sequence.computed - self.tick
        self.pool.start_writing(sequence)

    def decoding(self) -> list[Sequence]:
        return [sequence for sequence in self.running.values() if sequence.state == DECODE]

    def blocks_of_a_tick(self) -> int:
        return sum((sequence.base + self.tick) % self.size == 0 for sequence in self.decoding())

    def decode(self) -> None:
        """Let every decoding sequence compute one token; the pool is not told which."""
        self.pool.take(self.blocks_of_a_tick())
        for sequence in self.decoding():
            computed = sequence.base + self.tick
            self.compute_naively(sequence, computed + 1, int(computed % self.size == 0))
        self.tick += 1

    def release(self, sequence: Sequence, *, resumes: bool = False) -> None:
        if sequence.state == DECODE:
            sequence.computed = sequence.base + self.tick
            sequence.outputs = max(sequence.computed + 1 - sequence.prompt, 0)
        self.pool.settle(sequence, sequence.computed // self.size, self.tick)
        if resumes:
            self.pool.keep_for_resume(sequence)
        self.pool.release(sequence, -(-sequence.computed // self.size))
        del self.running[sequence.order]
        sequence.state = sequence.computed = 0
        self.naive.release(self.held.pop(sequence))

    def check(self) -> None:
        pool = self.pool
        assert pool.free == len(self.naive.free), (pool.free, len(self.naive.free))
        assert pool.used + pool.free == pool.num_blocks
        assert pool.cached == pool.count_cached()
        assert pool.evictions == self.naive.evictions, (pool.evictions, self.naive.evictions)
        if pool.keyless_to_front:
            assert pool.keyless == sum(block.key is None for block in self.naive.free)


def random_content(rng: random.Random, prompt: int) -> Content:
    """Return content that meets others': a head, a head and a branch, a history, whole prompts, or nothing."""
    end = rng.choice((5, 16, 20, 37))
    kind = rng.randrange(5)
    if kind == 0 or prompt <= end:
        return () if rng.random() < 0.5 else ((9, min(prompt, 60)),)
    if kind == 1:
        return ((100 + end, end),)
    if kind == 2:
        return ((100 + end, end), (200 + end + rng.randrange(2), rng.choice((end + 9, end + 40, prompt))))
    if kind == 3:
        return ((100 + end, end), (300 + end, OPEN_END))
    return ((rng.randrange(3), OPEN_END),)


class AgainstBlocksOneByOne(unittest.TestCase):
    def test_every_look_up_count_and_eviction_is_the_same(self) -> None:
        hits = evictions = broken = 0
        for seed in seeds(300):
            with self.subTest(seed=seed):
                rng = random.Random(seed)
                both = Both(rng.randint(4, 60), rng.choice((1, 4, 4, 16)), keyless_to_front=rng.random() < 0.6)
                waiting: list[Sequence] = []
                for _ in range(rng.randint(5, 120)):
                    hits += self.move(rng, both, waiting)
                    both.check()
                    if rng.random() < 0.2:
                        probes = [((stream, OPEN_END),) for stream in range(3)]
                        probes += [((100 + end, end), (300 + end, OPEN_END)) for end in (5, 16)]
                        both.look_up(both.make(200, rng.choice(probes)))
                evictions += both.pool.evictions
                broken += sum(chain.table is not None for s in waiting for chain, _ in s.segments)
                for sequence in list(both.running.values()):
                    both.release(sequence)
                    both.check()
                self.assertEqual(both.pool.used, 0)
        self.assertTrue(hits and evictions and broken, (hits, evictions, broken))

    def move(self, rng: random.Random, both: Both, waiting: list[Sequence]) -> int:
        """Do one thing at random, if there is room for it; return the blocks that were hit."""
        choice = rng.random()
        running = list(both.running.values())
        if choice < 0.35:
            if waiting and rng.random() < 0.4:
                sequence = waiting.pop(rng.randrange(len(waiting)))
            else:
                prompt = rng.randint(1, 90)
                sequence = both.make(prompt, random_content(rng, prompt))
            length = sequence.prompt + sequence.outputs
            hits, _ = both.look_up(sequence)
            computed = rng.choice((length, rng.randint(hits * both.size + 1, length)))
            if both.needs(sequence, computed) <= both.pool.free:
                both.admit(sequence, computed)
                if sequence.computed == length:
                    both.start_decode(sequence)
                return hits
            waiting.append(sequence)
        elif choice < 0.45 and running:
            sequence = rng.choice(running)
            length = sequence.prompt + sequence.outputs
            if sequence.state != DECODE:
                computed = rng.randint(sequence.computed, length)
                if -(-computed // both.size) - len(both.held[sequence]) <= both.pool.free:
                    both.compute(sequence, computed)
                    if computed == length:
                        both.start_decode(sequence)
        elif choice < 0.85:
            for _ in range(rng.choice((1, 1, 5, 20))):
                if both.blocks_of_a_tick() <= both.pool.free:
                    both.decode()
        elif running:
            sequence = rng.choice(running)
            resumes = rng.random() < 0.5
            both.release(sequence, resumes=resumes)
            if resumes:
                waiting.append(sequence)
        return 0


class PoolByHand(unittest.TestCase):
    def test_the_docstrings_are_true(self) -> None:
        self.assertEqual(doctest.testmod(blocks).failed, 0)

    def test_counts_alone_never_make_an_extent(self) -> None:
        pool = BlockPool(10, 16)
        pool.take(10)
        self.assertEqual((pool.free, pool.used), (0, 10))
        pool.give(4)
        self.assertEqual((pool.free, pool.keyless, pool.cached, pool.evictions), (4, 4, 0, 0))

    def test_blocks_without_a_key_are_taken_before_any_that_can_be_hit(self) -> None:
        both = Both(10, 4)
        first, second = both.make(17, ((0, 16),)), both.make(20)
        both.admit(first, 17)
        both.release(first)  # four keyed blocks at the end of the queue, one keyless in front
        both.admit(second, 20)
        both.check()
        self.assertEqual(both.pool.evictions, 0)
        self.assertEqual(both.look_up(both.make(17, ((0, 16),))), (4, 4))

    def test_under_the_older_rules_they_wait_their_turn(self) -> None:
        both = Both(5, 4, keyless_to_front=False)
        first, second = both.make(17, ((0, 16),)), both.make(4)
        both.admit(first, 17)
        both.release(first)  # the keyless last block came back first, so it goes first
        both.admit(second, 4)
        self.assertEqual(both.pool.evictions, 0)
        both.release(second)
        both.admit(both.make(8), 8)
        both.check()
        self.assertEqual(both.pool.evictions, 2)

    def test_the_deepest_block_is_evicted_first_and_the_rest_still_hit(self) -> None:
        both = Both(8, 4)
        first = both.make(33, ((0, 32),))
        both.admit(first, 32)
        both.release(first)
        for taken in range(1, 8):
            both.admit(both.make(4), 4)
            both.check()
            self.assertEqual(both.look_up(both.make(33, ((0, 32),))), (8 - taken, 8 - taken))

    def test_what_is_held_is_neither_evicted_nor_lying(self) -> None:
        both = Both(8, 4)
        holder = both.make(17, ((0, 16),))
        both.admit(holder, 16)
        both.admit(both.make(16), 16)
        self.assertEqual(both.pool.free, 0)
        self.assertEqual(both.look_up(both.make(99, ((0, 16),))), (4, 0))

    def test_at_least_one_token_is_computed_and_of_a_whole_prompt_the_last_block(self) -> None:
        both = Both(20, 16)
        first = both.make(48, ((0, 48),))
        both.admit(first, 48)
        for length, hits in ((48, 2), (49, 3), (47, 2), (16, 0), (17, 1), (1, 0)):
            self.assertEqual(both.look_up(both.make(length, ((0, min(length, 48)),)))[0], hits)

    def test_a_look_up_changes_nothing(self) -> None:
        both = Both(8, 4)
        first = both.make(17, ((0, OPEN_END),))
        both.admit(first, 17)
        both.start_decode(first)
        for _ in range(9):
            both.decode()
            before = (both.pool.free, both.pool.keyless, both.pool.cached, both.pool.evictions)
            self.assertEqual(both.look_up(both.make(99, ((0, OPEN_END),))), ((17 + both.tick) // 4, 0))
            self.assertEqual((both.pool.free, both.pool.keyless, both.pool.cached, both.pool.evictions), before)

    def test_two_that_fill_the_same_blocks_side_by_side_keep_one_each(self) -> None:
        both = Both(20, 4)
        twins = [both.make(8, ((0, OPEN_END),)) for _ in range(2)]
        for twin in twins:  # the second hits one block of two and computes the other again
            both.admit(twin, 8)
            both.start_decode(twin)
        for _ in range(8):
            both.decode()
        self.assertEqual(both.pool.used, 4 + 3)
        self.assertEqual(both.look_up(both.make(99, ((0, OPEN_END),))), (4, 0))
        both.release(twins[0])
        both.check()
        self.assertEqual(both.look_up(both.make(99, ((0, OPEN_END),))), (4, 3))

    def test_of_two_on_one_stream_the_block_of_the_one_ahead_is_hit(self) -> None:
        both = Both(30, 4)
        behind, ahead = both.make(5, ((0, OPEN_END),)), both.make(11, ((0, OPEN_END),))
        for sequence in (behind, ahead):
            both.admit(sequence, sequence.prompt)
            both.start_decode(sequence)
        for _ in range(12):  # nobody looks meanwhile
            both.decode()
        both.release(ahead)
        both.check()
        self.assertEqual(both.look_up(both.make(99, ((0, OPEN_END),))), (5, 4))

    def test_a_preempted_sequence_hits_its_own_private_blocks_and_nobody_else_does(self) -> None:
        both = Both(20, 4)
        mine = both.make(18, ((0, 8),))
        both.admit(mine, 18)
        both.release(mine, resumes=True)
        self.assertEqual(both.look_up(mine), (4, 4))
        self.assertEqual(both.look_up(both.make(18, ((0, 8),))), (2, 2))


if __name__ == "__main__":
    unittest.main()
