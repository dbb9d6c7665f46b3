"""What a block pool counts instead of blocks: the blocks of one stream's content, runs of free ones, and holders.

All of these point at each other, so they stand together; what is done with them is `blocks` and `tiers`.
"""

from __future__ import annotations

from collections.abc import Iterable


class Holder:
    """What the pool knows of a sequence that holds blocks; the rest of it is `sequence.Sequence`."""

    __slots__ = ("_singles", "base", "keyed", "order", "segments")

    order: int  # its place in `running`: later admissions have larger numbers
    base: int  # while it decodes: its computed tokens, less the decode clock
    keyed: int  # how many of its first blocks have keys, as last brought up to date
    segments: tuple[tuple[Chain, int], ...]  # (chain, the block where the chain's part of it ends)
    _singles: dict[Chain, list[Block]] | None

    @property
    def singles(self) -> dict[Chain, list[Block]]:
        """Its blocks of the chains that were broken up; few sequences ever have any."""
        if self._singles is None:
            self._singles = {}
        return self._singles


class Block:
    """One block of a chain that was broken up."""

    __slots__ = ("extent", "holders", "index")

    def __init__(self, index: int, holders: int) -> None:
        self.index = index
        self.holders = holders
        self.extent: Extent | None = None  # where it is while nobody holds it


class Extent:
    """Free blocks that were released together: `size` of them, evicted deepest first."""

    __slots__ = ("blocks", "chain", "keyed", "size")

    def __init__(self, size: int, chain: Chain | None = None, *, keyed: bool = True) -> None:
        self.size = size
        self.chain = chain  # None: nobody can hit them
        self.keyed = keyed
        self.blocks: list[Block] | None = None  # of a broken-up chain: which ones, first to be evicted first


class Chain:
    """The blocks of one stream, by their index in a sequence: [start, alive) exist, [start, held) have holders.

    Free ones are `extents`, deepest first, which is also the order of their eviction. `depths` counts holders by how
    deep they hold.
    """

    __slots__ = ("alive", "depths", "extents", "held", "offloaded", "start", "table", "writers")

    def __init__(self, start: int) -> None:
        self.start = self.alive = self.held = start
        self.depths: dict[int, int] = {}
        self.extents: list[Extent] = []
        self.writers: list[Holder] = []  # sequences that decode along it
        self.offloaded: OffloadedTail | None = None  # what the tiers below the cache have of it
        self.table: list[list[Block]] | None = None  # broken up: the blocks with each key, oldest key first

    def has_other_writer(self, sequence: Holder) -> bool:
        """Tell whether a sequence other than this one decodes along the chain."""
        writers = self.writers
        return bool(writers) and (len(writers) > 1 or writers[0] is not sequence)

    @property
    def depth_alive(self) -> int:
        """The block behind the last one that exists; of a broken-up chain, with holes perhaps."""
        if self.table is None:
            return self.alive
        return max((self.start + at for at, copies in enumerate(self.table, 1) if copies), default=self.start)

    def enter(self, depth: int) -> None:
        """Count a holder of [start, depth)."""
        self.depths[depth] = self.depths.get(depth, 0) + 1

    def leave(self, depth: int) -> None:
        """Count off a holder of [start, depth)."""
        if self.depths[depth] == 1:
            del self.depths[depth]
        else:
            self.depths[depth] -= 1

    def evict(self, extent: Extent, count: int) -> None:
        """Forget the first `count` blocks of `extent`, whose size is already the smaller one."""
        if extent.blocks is None:
            self.alive -= count
            if not extent.size:
                self.extents.pop(0)
            return
        assert self.table is not None
        for block in extent.blocks[:count]:
            self.table[block.index - self.start].remove(block)
        del extent.blocks[:count]

    def break_up(self, holders: Iterable[Holder]) -> None:
        """Turn the chain into single blocks: one of them is about to exist twice."""
        table = [[Block(index, 0)] for index in range(self.start, self.alive)]
        for sequence in holders:
            for chain, end in sequence.segments:
                depth = min(end, sequence.keyed)
                if chain is self and depth > self.start:
                    held = [copies[0] for copies in table[: depth - self.start]]
                    for block in held:
                        block.holders += 1
                    sequence.singles[self] = held
        after = self.alive
        for extent in self.extents:  # deepest first
            extent.blocks = [table[index - self.start][0] for index in range(after - 1, after - extent.size - 1, -1)]
            for block in extent.blocks:
                block.extent = extent
            after -= extent.size
        self.table = table
        self.extents = []
        self.depths = {}


class OffloadedRun:
    """Blocks that were evicted together, deepest first; `chain` is None if nobody can hit them."""

    __slots__ = ("chain", "size")

    def __init__(self, chain: Chain | None, size: int) -> None:
        self.chain = chain
        self.size = size


class OffloadedTail:
    """What the tiers below the pool have of one chain: from block `start` on, `sizes` blocks tier by tier."""

    __slots__ = ("runs", "sizes", "start")

    def __init__(self, tiers: int) -> None:
        self.start = 0
        self.sizes = [0] * tiers
        self.runs: list[list[OffloadedRun]] = [[] for _ in range(tiers)]  # deepest first
