"""KV tiers below the cache of the device: evicted blocks that keep a key fall into host memory, and come back.

A tier is an LRU of whole blocks. What falls out of it falls into the next one, or is gone. A hit moves its blocks back
up: a block is in exactly one tier. The blocks of a chain fall deepest first, so what a tier has of a chain is one
stretch behind what the tier above it has, and one number says how long it is. Blocks that nobody can hit fall too: they
cost room like the others, since nothing tells them apart.

It does not know time: the engine adds what a fetch takes. Blocks fall beside the computation, at no cost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Listing
from typing import Any

from servesim.config.engine import TierConfig
from servesim.engine.chain import Chain, Holder, OffloadedRun, OffloadedTail


class Tier:
    """One tier's blocks, in order of falling."""

    __slots__ = ("config", "dropped", "fallen", "fetched", "lru", "peak", "used")

    def __init__(self, config: TierConfig) -> None:
        self.config = config
        self.lru: OrderedDict[OffloadedRun, None] = OrderedDict()
        self.used = self.peak = 0
        self.fallen = self.fetched = self.dropped = 0  # blocks: came in, went back up, fell out


class Tiers:
    """All tiers below one block pool, the nearest first."""

    def __init__(self, configs: Listing[TierConfig]) -> None:
        self.tiers = [Tier(config) for config in configs]

    def fall(self, chain: Chain | None, count: int) -> None:
        """Take in `count` blocks that were just evicted: of `chain` those that follow what is still alive of it."""
        if chain is not None:
            if chain.below is None:
                chain.below = OffloadedTail(len(self.tiers))
            chain.below.start = chain.alive
        self._fall(0, chain, count)

    def _fall(self, level: int, chain: Chain | None, count: int) -> None:
        if level == len(self.tiers):
            return
        tier = self.tiers[level]
        fallen = OffloadedRun(chain, count)
        tier.lru[fallen] = None
        tier.used += count
        tier.fallen += count
        if chain is not None and chain.below is not None:
            chain.below.sizes[level] += count
            chain.below.runs[level].append(fallen)
        limit = tier.config.blocks
        while limit is not None and tier.used > limit:
            oldest = next(iter(tier.lru))
            out = min(oldest.size, tier.used - limit)
            self._take(level, oldest, out, 0)
            tier.dropped += out
            self._fall(level + 1, oldest.chain, out)
        tier.peak = max(tier.peak, tier.used)

    def _take(self, level: int, fallen: OffloadedRun, count: int, end: int) -> None:
        """Take `count` blocks of `fallen` out of a tier; it lies at the `end` (0: deep, -1: shallow) of its chain's."""
        tier = self.tiers[level]
        tier.used -= count
        fallen.size -= count
        if not fallen.size:
            del tier.lru[fallen]
        if fallen.chain is not None and fallen.chain.below is not None:
            fallen.chain.below.sizes[level] -= count
            if not fallen.size:
                fallen.chain.below.runs[level].pop(end)

    def look_up(self, sequence: Holder, hits: int, cap: int) -> list[int]:
        """Return how many blocks behind the first `hits` each tier would bring back, `cap` blocks hit in all."""
        counts = [0] * len(self.tiers)
        for _, level, count in self._behind(sequence, hits, cap):
            counts[level] += count
        return counts

    def fetch(self, sequence: Holder, hits: int, cap: int) -> None:
        """Bring back what `look_up` found: the blocks are no longer here."""
        for chain, level, count in list(self._behind(sequence, hits, cap)):
            self.tiers[level].fetched += count
            self._take_shallow(chain, level, count)

    def _behind(self, sequence: Holder, hits: int, cap: int) -> list[tuple[Chain, int, int]]:
        found: list[tuple[Chain, int, int]] = []
        for chain, end in sequence.segments:
            if hits >= end:
                continue
            below, at = chain.below, max(hits, chain.start)
            if below is None or chain.table is not None or at != chain.alive or below.start != at:
                break
            depth = min(end, cap)
            for level, size in enumerate(below.sizes):
                count = min(size, depth - at)
                if count > 0:
                    found.append((chain, level, count))
                    at += count
                if count < size:
                    break
            hits = at
            if hits < end:
                break
        return found

    def _take_shallow(self, chain: Chain, level: int, count: int) -> None:
        assert chain.below is not None
        chain.below.start += count
        while count:
            fallen = chain.below.runs[level][-1]
            taken = min(fallen.size, count)
            self._take(level, fallen, taken, -1)
            count -= taken

    def overtaken(self, chain: Chain) -> None:
        """Drop the blocks that were computed again above: a block is in one tier only."""
        below = chain.below
        assert below is not None
        for level, size in enumerate(below.sizes):
            count = min(size, chain.alive - below.start)
            if count > 0:
                self._take_shallow(chain, level, count)

    def forget(self, chain: Chain) -> None:
        """Make a chain's blocks here unhittable: it was broken up, and single blocks are not kept below."""
        if chain.below is not None:
            for runs in chain.below.runs:
                for fallen in runs:
                    fallen.chain = None
            chain.below = None

    def describe(self) -> list[dict[str, Any]]:
        """Return what each tier did, for the report."""
        return [
            {
                "tier": tier.config.name,
                "block_bytes": tier.config.block_bytes,
                "moved_bytes": (tier.fallen + tier.fetched) * tier.config.block_bytes,
                "blocks": tier.config.blocks,
                "peak_blocks": tier.peak,
                "fallen_blocks": tier.fallen,
                "fetched_blocks": tier.fetched,
                "dropped_blocks": tier.dropped,
                "fetch_s": tier.fetched * tier.config.block_s,
            }
            for tier in self.tiers
        ]
