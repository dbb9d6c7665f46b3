"""What the textbook scheduler works on: real blocks in a real free queue, live requests, one step's batch.

See `tests.reference`, which has the rules.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from servesim.config.engine import Rules
from servesim.runs.records import Outcome, Records
from servesim.workload.requests import Content

RETRY_SHARES_ITS_OWN_TOKENS = False
"""Whether a retry's own tokens (those outside shared streams) equal those of the attempt before."""


@dataclass(slots=True, eq=False)
class Block:
    """A block of the KV cache; with no holders it lies in the free queue, where its key, if any, can still be hit."""

    number: int
    holders: int = 0
    key: int | None = None


class Cache:
    """All blocks, the queue of the free ones, and the table that finds blocks by key."""

    def __init__(self, num_blocks: int, rules: Rules) -> None:
        self.rules = rules
        self.free: deque[Block] = deque(Block(number) for number in range(num_blocks))
        self.table: dict[int, list[Block]] = {}  # the block that got the key first is in front
        self.evictions = 0

    def find(self, keys: list[int]) -> list[Block]:
        """Return the blocks of the longest known head of `keys`."""
        hits = []
        for key in keys:
            if key not in self.table:
                break
            hits.append(self.table[key][0])
        return hits

    def hold(self, hit: Block) -> None:
        if hit.holders == 0:
            self.free.remove(hit)
        hit.holders += 1

    def take(self) -> Block:
        """Take the block at the front of the free queue for new content; its key is gone with its old content."""
        block = self.free.popleft()
        if block.key is not None:
            same = self.table[block.key]
            same.remove(block)
            if not same:
                del self.table[block.key]
            block.key = None
            self.evictions += 1
        block.holders = 1
        return block

    def give_key(self, block: Block, key: int) -> None:
        block.key = key
        self.table.setdefault(key, []).append(block)

    def release(self, blocks: list[Block]) -> None:
        """Let go of a request's blocks, from its last to its first."""
        for block in reversed(blocks):
            block.holders -= 1
            if block.holders == 0:
                if block.key is None and self.rules.keyless_to_front:
                    self.free.appendleft(block)
                else:
                    self.free.append(block)


@dataclass(slots=True, eq=False)
class Live:
    """One attempt of one request, from its arrival to its end."""

    index: int
    attempt: int
    arrival_s: float
    deadline_s: float
    prompt: int
    target: int  # output tokens it will produce
    content: Content
    priority: int

    outputs: int = 0  # tokens known
    in_flight: int = 0  # tokens sampled by a step whose output was not processed yet
    computed: int = 0
    blocks: list[Block] = field(default_factory=list)
    keyed: int = 0  # how many of its first blocks have a key
    chain: list[int] = field(default_factory=list)  # keys of its blocks, as far as they were asked for
    prefilling: bool = True  # between an admission and the step that samples
    computed_before: int = 0  # the furthest it was computed before a preemption
    gone: bool = False

    admitted_s: float = math.nan
    cached: int = 0
    tokens: list[int] = field(default_factory=list)  # the step of each token
    sampled_step: int = -2
    preempted: list[tuple[float, float]] = field(default_factory=list)

    @property
    def length(self) -> int:
        return self.prompt + self.outputs

    @property
    def ends_with_what_is_in_flight(self) -> bool:
        return self.outputs + self.in_flight == self.target


@dataclass(slots=True, eq=False)
class Batch:
    """What one step was planned to do and did, in scheduling order."""

    planned: dict[Live, int] = field(default_factory=dict)
    sampled: set[Live] = field(default_factory=set)
    admitted: list[Live] = field(default_factory=list)
    resumed: list[Live] = field(default_factory=list)
    preempted: list[Live] = field(default_factory=list)
    lookups: dict[int, dict[str, int]] = field(default_factory=dict)
    number: int = -1  # of its row in the step log
    end_s: float = math.nan


def token_identity(live: Live, position: int) -> tuple[object, ...]:
    """Return what makes a token equal to another: its stream and its place, or else whose own it is and its place."""
    for stream, end in live.content:
        if position < end:
            return stream, position
    attempt = 1 if RETRY_SHARES_ITS_OWN_TOKENS else live.attempt
    return "own", live.index, attempt, position


def slices_of(steps: list[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers in an ascending list, as inclusive pairs."""
    slices: list[tuple[int, int]] = []
    for number in steps:
        if slices and slices[-1][1] == number - 1:
            slices[-1] = (slices[-1][0], number)
        else:
            slices.append((number, number))
    return slices


def write_record(records: Records, live: Live, outcome: Outcome, kind: str | None, asked: int) -> None:
    """Write the row of a request that is over, or that the run's end found unfinished."""
    index = live.index
    records.prompt_tokens[index] = live.prompt
    records.output_tokens[index] = len(live.tokens)
    records.cached_tokens[index] = live.cached
    records.admitted_s[index] = live.admitted_s
    records.outcome[index] = outcome
    if live.tokens:
        records.first[index], records.last[index] = live.tokens[0], live.tokens[-1]
        slices = slices_of(live.tokens)
        if len(slices) > 1:
            records.slices[index] = slices
    if live.preempted:
        records.preempted[index] = live.preempted
    if kind is not None:
        records.reason[index] = kind
    if outcome is Outcome.COMPLETED and live.target < asked:
        records.capped.add(index)
