"""KV tiers below the cache of the device: evicted blocks that keep a key go to host memory, and can come back.

A tier is an LRU of whole blocks. What it has no room for goes to the next one, or is dropped. A hit moves its blocks
back to the device: a block is in exactly one place. The blocks of a chain are evicted deepest first, so what a tier has
of a chain is one stretch behind what the tier above it has, and one number says how long it is. Blocks that nobody can
hit are moved too: they take room like the others, since nothing tells them apart.

It does not know time: the engine adds what a fetch takes. Blocks leave the device beside the computation, at no cost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Listing

from servesim.config.engine import TierConfig
from servesim.engine.chain import Chain, Holder, OffloadedRun, OffloadedTail
from servesim.runs.records import TierTotals


class Tier:
    """One tier's blocks, those that came first in front."""

    __slots__ = ("config", "dropped", "fetched", "peak", "runs", "stored", "used")

    def __init__(self, config: TierConfig) -> None:
        self.config = config
        self.runs: OrderedDict[OffloadedRun, None] = OrderedDict()
        self.used = self.peak = 0  # blocks
        self.stored = self.fetched = self.dropped = 0  # blocks that came in, that went back up, that went further down

    def count(self) -> int:
        """Return `used` as the sum over the runs, to check it."""
        return sum(run.size for run in self.runs)


class Tiers:
    """All tiers below one block pool, the nearest first."""

    def __init__(self, configs: Listing[TierConfig]) -> None:
        self.tiers = [Tier(config) for config in configs]

    def store(self, chain: Chain | None, count: int) -> None:
        """Take in `count` blocks that were just evicted: of `chain` those that follow what still exists of it."""
        if chain is not None:
            if chain.offloaded is None:
                chain.offloaded = OffloadedTail(len(self.tiers))
            chain.offloaded.start = chain.alive
        self._store(0, chain, count)

    def _store(self, level: int, chain: Chain | None, count: int) -> None:
        if level == len(self.tiers):
            return
        tier = self.tiers[level]
        run = OffloadedRun(chain, count)
        tier.runs[run] = None
        tier.used += count
        tier.stored += count
        if chain is not None and chain.offloaded is not None:
            chain.offloaded.sizes[level] += count
            chain.offloaded.runs[level].append(run)
        limit = tier.config.blocks
        while limit is not None and tier.used > limit:
            oldest = next(iter(tier.runs))
            excess = min(oldest.size, tier.used - limit)
            self._remove(level, oldest, excess, 0)
            tier.dropped += excess
            self._store(level + 1, oldest.chain, excess)
        tier.peak = max(tier.peak, tier.used)

    def _remove(self, level: int, run: OffloadedRun, count: int, end: int) -> None:
        """Remove `count` blocks of `run` from a tier; it is at the `end` (0: deep, -1: shallow) of its chain's runs."""
        tier = self.tiers[level]
        tier.used -= count
        run.size -= count
        if not run.size:
            del tier.runs[run]
        if run.chain is not None and run.chain.offloaded is not None:
            run.chain.offloaded.sizes[level] -= count
            if not run.size:
                run.chain.offloaded.runs[level].pop(end)

    def look_up(self, sequence: Holder, hits: int, cap: int) -> list[int]:
        """Return how many blocks behind the first `hits` each tier would bring back, `cap` blocks hit in all."""
        counts = [0] * len(self.tiers)
        for _, level, count in self._found(sequence, hits, cap):
            counts[level] += count
        return counts

    def fetch(self, sequence: Holder, hits: int, cap: int) -> None:
        """Bring back what `look_up` found: the blocks are no longer here."""
        for chain, level, count in list(self._found(sequence, hits, cap)):
            self.tiers[level].fetched += count
            self._remove_shallow(chain, level, count)

    def _found(self, sequence: Holder, hits: int, cap: int) -> list[tuple[Chain, int, int]]:
        """Return (chain, tier, blocks) of what continues the first `hits` blocks of `sequence`, in their order."""
        found: list[tuple[Chain, int, int]] = []
        for chain, end in sequence.segments:
            if hits >= end:
                continue
            tail, at = chain.offloaded, max(hits, chain.start)
            if tail is None or chain.table is not None or at != chain.alive or tail.start != at:
                break
            depth = min(end, cap)
            for level, size in enumerate(tail.sizes):
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

    def _remove_shallow(self, chain: Chain, level: int, count: int) -> None:
        """Remove the first `count` blocks that a tier has of a chain."""
        tail = chain.offloaded
        assert tail is not None
        tail.start += count
        while count:
            run = tail.runs[level][-1]
            taken = min(run.size, count)
            self._remove(level, run, taken, -1)
            count -= taken

    def drop_recomputed(self, chain: Chain) -> None:
        """Drop the blocks of a chain that were computed again on the device: a block is in one place only."""
        tail = chain.offloaded
        assert tail is not None
        for level, size in enumerate(tail.sizes):
            count = min(size, chain.alive - tail.start)
            if count > 0:
                self._remove_shallow(chain, level, count)

    def forget(self, chain: Chain) -> None:
        """Make a chain's blocks here unhittable: it was broken up, and single blocks are not kept below."""
        if chain.offloaded is not None:
            for runs in chain.offloaded.runs:
                for run in runs:
                    run.chain = None
            chain.offloaded = None

    def describe(self) -> list[TierTotals]:
        """Return what each tier did, for the report."""
        return [
            TierTotals(
                tier=tier.config.name,
                block_bytes=tier.config.block_bytes,
                moved_bytes=(tier.stored + tier.fetched) * tier.config.block_bytes,
                blocks=tier.config.blocks,
                peak_blocks=tier.peak,
                fallen_blocks=tier.stored,
                fetched_blocks=tier.fetched,
                dropped_blocks=tier.dropped,
                fetch_s=tier.fetched * tier.config.block_s,
            )
            for tier in self.tiers
        ]
