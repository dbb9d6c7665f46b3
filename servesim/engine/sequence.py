"""A request in flight: the one mutable thing, and the engine its only writer."""

from __future__ import annotations

from servesim.engine.chain import Holder

PREFILL, DECODE, ENDED, WAITING = range(4)
"""Where a sequence is: computing what it lacks; one token a step; its last token sampled, but slot and blocks not yet
released (asynchronous scheduling only); preempted."""


class Sequence(Holder):
    """One attempt at one request, from its first admission to its end.

    `computed` is how many of its tokens have KV. While it decodes it is not visited: then `base + tick` takes the place
    of `computed`, with the engine's decode clock for `tick`, and `finish_tick - tick` tokens are still to come.
    """

    __slots__ = (
        "computed",
        "finish_tick",
        "high_water",
        "index",
        "outputs",
        "promised",
        "prompt",
        "received",
        "run_start",
        "state",
        "target",
    )

    def __init__(self, index: int, prompt: int, target: int) -> None:
        self.order = self.base = self.keyed = 0
        self.segments, self._singles = (), None
        self.index = index
        self.prompt = prompt
        self.target = target  # output tokens to produce
        self.outputs = 0  # produced; brought up to date when it stops decoding
        self.computed = 0
        self.state = PREFILL
        self.finish_tick = 0
        self.run_start = 0  # the step of the first token of the current unbroken run of tokens
        self.high_water = 0  # the most tokens it ever had computed: below it, computing is recomputing
        self.received = 0  # tokens whose KV came over a link, for its first admission
        self.promised = 0  # of those, tokens that did not cross it because they were here already

    def computed_at(self, tick: int) -> int:
        """Return how many of its tokens have KV when the decode clock is at `tick`."""
        return self.base + tick if self.state == DECODE else self.computed

    def outputs_at(self, tick: int) -> int:
        """Return how many output tokens it has produced when the decode clock is at `tick`."""
        return self.target - (self.finish_tick - tick) if self.state == DECODE else self.outputs
