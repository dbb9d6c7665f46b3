"""A request in flight: the one mutable thing, and the engine its only writer."""

from __future__ import annotations

from servesim.engine.chain import Block, Chain

PREFILL, DECODE, ENDED, WAITING = range(4)
"""Where a sequence is: computing what it lacks; one token a step; its last token sampled, but seat and blocks not yet
released (asynchronous scheduling only); preempted."""


class Sequence:
    """One attempt at one request, from its first admission to its end.

    `computed` is how many of its tokens have KV. While it decodes nobody visits it: then `base + tick` takes the place
    of `computed`, with the engine's decode clock for `tick`, and `finish_tick - tick` tokens are still to come.
    """

    __slots__ = (
        "_singles",
        "base",
        "computed",
        "finish_tick",
        "high_water",
        "index",
        "keyed",
        "order",
        "outputs",
        "piece",
        "promised",
        "prompt",
        "received",
        "segments",
        "state",
        "target",
    )

    def __init__(self, index: int, prompt: int, target: int) -> None:
        self.index = index
        self.prompt = prompt
        self.target = target  # output tokens to produce
        self.outputs = 0  # produced; brought up to date when it stops decoding
        self.computed = 0
        self.order = 0  # its place in `running`: later admissions have larger numbers
        self.state = PREFILL
        self.base = 0
        self.finish_tick = 0
        self.piece = 0  # the step of the first token of the current unbroken run of tokens
        self.high_water = 0  # the most tokens it ever had computed: below it, computing is recomputing
        self.received = 0  # tokens whose KV came over a link, for its first admission
        self.promised = 0  # of those, tokens that did not cross it because they were here already
        self.keyed = 0  # how many of its first blocks have keys, as last brought up to date
        self.segments: tuple[tuple[Chain, int], ...] = ()  # (chain, the block where the chain's part of it ends)
        self._singles: dict[Chain, list[Block]] | None = None

    @property
    def singles(self) -> dict[Chain, list[Block]]:
        """Its blocks of the chains that were broken up; few sequences ever have any."""
        if self._singles is None:
            self._singles = {}
        return self._singles
