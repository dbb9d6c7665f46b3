"""The paged KV cache of one engine: who holds which block, what can be hit, what is evicted next.

The rules are vLLM's (vllm/v1/core/block_pool.py, kv_cache_manager.py): free blocks queue by last use, a released
request's blocks return last to first, a key is dropped when its block is taken for new content, and equal blocks
computed side by side both stay.

A cache of thousands of blocks must not cost thousands of operations, so blocks are counted, not visited:

- Blocks without a key are in front of all keyed ones, and their order cannot be observed: an integer, `keyless`.
- Behind them are `Extent`s: runs of keyed blocks that were released together, in order of last use.
- Content has a name, not a hash: (stream, block index). One `Chain` per stream that another request can hit. A holder
  always holds a chain from its start, and blocks come back deepest first, so what is alive of a chain is its head:
  one depth says which blocks can be hit, another which are held.
- Where a block comes to exist twice (a prompt that is an exact multiple of the block size and fully cached, a follower
  that overtakes its parent) that one chain is broken up into single `Block`s.
- A sequence that decodes along a chain (a writer of it) fills blocks unseen; the chain is brought up to date when one
  looks it up.

It does not know time, steps or budgets: the engine tells it where the decode clock stands.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from servesim.engine.chain import Block, Chain, Extent, Holder
from servesim.engine.sequence import Sequence
from servesim.engine.tiers import Tiers
from servesim.workload.requests import OPEN_END, Content

MANY_CHAINS = 4096

LAST = 1 << 62
"""An `order` behind every running sequence."""


class BlockPool:
    """The blocks of one engine. `free` blocks have no holder; those that keep a key among them can still be hit.

    >>> pool = BlockPool(100, 16)
    >>> pool.take(7); pool.free
    93
    >>> pool.give(7); pool.free
    100
    """

    __slots__ = (
        "_chains",
        "_holders",
        "_lru",
        "_many_chains",
        "_unhittable",
        "block_size",
        "cached",
        "evictions",
        "key_lag",
        "keyless",
        "keyless_to_front",
        "num_blocks",
        "tiers",
    )

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        keyless_to_front: bool = True,
        key_lag: int = 0,
        holders: Callable[[], Iterable[Holder]] | None = None,
        tiers: Tiers | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.keyless_to_front = keyless_to_front
        self.key_lag = key_lag  # steps until a decoded token is known: 1 under asynchronous scheduling
        self.keyless = num_blocks  # free blocks in front of the queue
        self.cached = 0  # free blocks in `_lru`
        self.evictions = 0  # blocks with a key that were taken for new content
        self.tiers = tiers  # where evicted blocks go
        self._holders = holders or tuple  # whoever holds blocks, or names chains
        self._lru: OrderedDict[Extent, None] = OrderedDict()
        self._unhittable: Extent | None = None  # the youngest extent, if nobody can hit it: the next one joins it
        self._chains: dict[int | tuple[int, str], Chain] = {}
        self._many_chains = MANY_CHAINS  # at so many it is time to forget some

    @property
    def free(self) -> int:
        """Blocks without a holder."""
        return self.keyless + self.cached

    @property
    def used(self) -> int:
        """Blocks with holders."""
        return self.num_blocks - self.keyless - self.cached

    def count_cached(self) -> int:
        """Return `cached` as the sum over the extents, to check it."""
        return sum(extent.size for extent in self._lru)

    # Free queue

    def take(self, count: int) -> None:
        """Take `count` free blocks for new content, from the front of the queue; there must be as many."""
        if count <= self.keyless:
            self.keyless -= count
            return
        count -= self.keyless
        self.keyless = 0
        self.cached -= count
        lru = self._lru
        while count:
            extent = next(iter(lru))
            taken = extent.size
            if taken > count:
                taken = count
            else:
                del lru[extent]
                if extent is self._unhittable:
                    self._unhittable = None
            extent.size -= taken
            count -= taken
            chain = extent.chain
            if chain is not None:
                chain.evict(extent, taken)
            if extent.keyed:
                self.evictions += taken
                if self.tiers is not None:
                    self.tiers.store(None if chain is None or chain.table is not None else chain, taken)

    def give(self, count: int, private_keyed: int = 0) -> None:
        """Give back `count` blocks that nobody else holds or can hit, the first `private_keyed` of them with keys."""
        keyless = count - private_keyed
        if self.keyless_to_front:
            self.keyless += keyless
        elif keyless:
            self._append(Extent(keyless, keyed=False))
        if not private_keyed:
            return
        self.cached += private_keyed
        if self._unhittable is None:
            self._unhittable = extent = Extent(private_keyed)
            self._lru[extent] = None
        else:
            self._unhittable.size += private_keyed

    def _append(self, extent: Extent) -> None:
        self.cached += extent.size
        self._lru[extent] = None
        self._unhittable = None

    # Prefix cache

    def segments(self, content: Content, adapter: str | None = None) -> tuple[tuple[Chain, int], ...]:
        """Return the chains of `content`, each with the block at which its part of the sequence ends.

        Equal tokens under different adapters have different KV.
        """
        found: list[tuple[Chain, int]] = []
        start = 0
        for stream, end_token in content:
            end = end_token // self.block_size
            if end > start:
                key = stream if adapter is None else (stream, adapter)
                chain = self._chains.get(key)
                if chain is None:
                    if len(self._chains) >= self._many_chains:
                        self._forget_chains(chain for chain, _ in found)
                    chain = self._chains[key] = Chain(start)
                found.append((chain, end))
            start = end
        return tuple(found)

    def _forget_chains(self, in_use: Iterable[Chain]) -> None:
        """Forget the chains of which nothing is left and that no sequence names: sessions end, memory must not grow."""
        named = {id(chain) for chain in in_use}
        named.update(id(chain) for sequence in self._holders() for chain, _ in sequence.segments)
        self._chains = {
            key: chain
            for key, chain in self._chains.items()
            if id(chain) in named or chain.depth_alive > chain.start or (chain.offloaded and any(chain.offloaded.sizes))
        }
        self._many_chains = max(MANY_CHAINS, 2 * len(self._chains))

    def depths_alive(self) -> dict[int | tuple[int, str], int]:
        """Return, for every stream of which blocks exist, up to which block of a sequence they do."""
        return {key: depth for key, chain in self._chains.items() if (depth := chain.depth_alive) > chain.start}

    def look_up(self, sequence: Sequence, tick: int) -> tuple[int, int]:
        """Return how many blocks `sequence` would hit now, and how many of those are in the free queue.

        At least one token must be computed, so a sequence of `length` tokens hits at most (length - 1) // block_size.
        Nothing is changed. `tick` is the decode clock, with this step's decodes counted.
        """
        cap = (sequence.prompt + sequence.outputs - 1) // self.block_size
        hits = free_hits = 0
        for chain, end in sequence.segments:
            depth = end if end < cap else cap
            if chain.writers:
                self._catch_up(chain, tick, LAST)
            if chain.table is None:
                if depth > chain.alive:
                    depth = chain.alive
                if depth > chain.start:
                    hits = depth
                    if depth > chain.held:
                        free_hits += depth - chain.held
            else:
                for copies in chain.table[: max(depth - chain.start, 0)]:
                    if not copies:
                        break
                    hits += 1
                    free_hits += not copies[0].holders
            if hits < end:
                break
        return hits, free_hits

    def hold(self, sequence: Holder, hits: int) -> None:
        """Make `sequence`, which holds nothing, a holder of the `hits` blocks that `look_up` found."""
        sequence.keyed = hits
        for chain, end in sequence.segments:
            depth = end if end < hits else hits
            if depth <= chain.start:
                return
            if chain.table is not None:
                mine = [copies[0] for copies in chain.table[: depth - chain.start]]
                for block in mine:
                    if not block.holders:
                        self._unfree(block)
                    block.holders += 1
                sequence.singles[chain] = mine
                continue
            chain.enter(depth)
            free_hits = depth - chain.held
            if free_hits > 0:
                chain.held = depth
                self.cached -= free_hits
                while free_hits:
                    extent = chain.extents[-1]
                    if extent.size > free_hits:
                        extent.size -= free_hits
                        break
                    free_hits -= extent.size
                    chain.extents.pop()
                    del self._lru[extent]

    def give_keys(self, sequence: Holder, keyed: int, tick: int, order: int = LAST) -> None:
        """Give keys to the first `keyed` blocks of `sequence`, as far as another request could hit them.

        `order` is the place in `running` up to which this step's decodes stand behind `tick`: those before it have had
        their token.
        """
        for chain, _ in sequence.segments:
            if chain.writers and chain.has_other_writer(sequence):
                self._catch_up(chain, tick, order)
        if keyed > sequence.keyed:
            if sequence.segments:
                self._key(sequence, keyed)
            else:
                sequence.keyed = keyed

    def start_writing(self, sequence: Holder) -> None:
        """Note that `sequence` decodes from now on: chains that it still fills are brought up to date on demand."""
        for chain, end in sequence.segments:
            if end > sequence.keyed:
                chain.writers.append(sequence)

    def settle(self, sequence: Holder, keyed: int, tick: int, order: int = LAST) -> None:
        """Bring the keys of `sequence` up to date for the last time: it stops decoding."""
        if keyed > sequence.keyed:
            self.give_keys(sequence, keyed, tick, order)
        for chain, _ in sequence.segments:
            if sequence in chain.writers:
                chain.writers.remove(sequence)

    def update_chains(self, sequence: Holder, tick: int) -> None:
        """Bring the chains along which `sequence` decodes up to date, before its clock is moved."""
        for chain, _ in sequence.segments:
            if chain.writers:
                self._catch_up(chain, tick, LAST)

    def release(self, sequence: Holder, blocks: int) -> None:
        """Give back all `blocks` of `sequence`, last to first; those that keep a key can be hit until taken."""
        keyed = sequence.keyed
        segments = sequence.segments
        if not segments:
            self.give(blocks, keyed)
            sequence.keyed = 0
            return
        own = segments[-1][1]  # from this block on nobody else can hit
        private = keyed - own if keyed > own else 0
        self.give(blocks - keyed + private, private)
        sequence.keyed = 0
        for chain, end in reversed(segments):
            depth = end if end < keyed else keyed
            if depth <= chain.start:
                continue
            if chain.table is not None:
                self._release_singles(chain, sequence.singles.pop(chain))
                continue
            chain.leave(depth)
            if depth == chain.held and depth not in chain.depths:
                chain.held = max(chain.depths, default=chain.start)
                extent = Extent(depth - chain.held, chain)
                chain.extents.append(extent)
                self._append(extent)

    def keep_for_resume(self, sequence: Holder) -> None:
        """Make the private keyed blocks of `sequence` a chain of its own, which it can hit when it comes back."""
        own = sequence.segments[-1][1] if sequence.segments else 0
        if sequence.keyed > own:
            chain = Chain(own)
            chain.alive = chain.held = sequence.keyed
            chain.depths[sequence.keyed] = 1
            sequence.segments += ((chain, OPEN_END),)

    # Inside

    def _catch_up(self, chain: Chain, tick: int, order: int) -> None:
        """Give the keys that the sequences decoding along `chain` have earned unseen, in the order of earning them."""
        size, lag = self.block_size, self.key_lag
        writer = chain.writers[0]
        if not any(other.has_other_writer(writer) for other, _ in writer.segments):
            keyed = (writer.base + tick - (writer.order > order) - lag) // size
            if keyed > writer.keyed:
                self._key(writer, keyed)
            return
        writers = list(chain.writers)
        for writer in writers:  # which grows by those they share other chains with
            for other, _ in writer.segments:
                writers += [more for more in other.writers if more not in writers]
        earned = []
        for writer in writers:
            keyed = (writer.base + tick - (writer.order > order) - lag) // size
            for after in range(writer.keyed + 1, keyed + 1):
                earned.append((after * size + lag - writer.base, writer.order, after, writer))
        earned.sort()
        for _, _, after, writer in earned:
            self._key(writer, after)

    def _key(self, sequence: Holder, keyed: int) -> None:
        for chain, end in sequence.segments:
            first = sequence.keyed if sequence.keyed > chain.start else chain.start
            after = keyed if keyed < end else end
            if after <= first:
                continue
            if chain.table is None and (first != chain.alive or chain.has_other_writer(sequence)):
                chain.break_up(self._holders())
                if self.tiers is not None:
                    self.tiers.forget(chain)
            if chain.table is None:
                if first > chain.start:
                    chain.leave(first)
                chain.enter(after)
                chain.alive = chain.held = after
                if chain.offloaded is not None and self.tiers is not None and after > chain.offloaded.start:
                    self.tiers.drop_recomputed(chain)
                continue
            mine = sequence.singles.setdefault(chain, [])
            for index in range(first, after):
                block = Block(index, 1)
                if index - chain.start == len(chain.table):
                    chain.table.append([])
                chain.table[index - chain.start].append(block)
                mine.append(block)
        sequence.keyed = keyed

    def _unfree(self, block: Block) -> None:
        extent = block.extent
        assert extent is not None and extent.blocks is not None
        extent.blocks.remove(block)
        extent.size -= 1
        self.cached -= 1
        if not extent.size:
            del self._lru[extent]
        block.extent = None

    def _release_singles(self, chain: Chain, blocks: Iterable[Block]) -> None:
        freed = []
        for block in reversed(list(blocks)):
            block.holders -= 1
            if not block.holders:
                freed.append(block)
        if freed:
            extent = Extent(len(freed), chain)
            extent.blocks = freed
            for block in freed:
                block.extent = extent
            self._append(extent)
