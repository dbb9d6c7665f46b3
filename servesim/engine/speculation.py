"""Speculative decoding: a draft of K tokens for each decoding sequence, verified together with its next token.

A step computes K + 1 tokens for each sequence and yields 1 + A of them, where A counts the draft's tokens up to the
first that is rejected: token i is accepted with its position's probability if all before it were. The expected length
is 1 + sum over i of (a_1 x ... x a_i), 1 + sum(a^i) for one probability (Leviathan et al., "Fast Inference from
Transformers via Speculative Decoding", 2023, with unlimited output).

What it does not know: the cost of making the draft (n-gram and MTP drafts are nearly free, a draft model is not), and
that vLLM reserves KV slots for the whole draft when it schedules: here blocks are taken for what is accepted, and a
draft that would need a block that is not there is cut.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from servesim.errors import InputError
from servesim.workload.seeds import random_stream


class Speculation:
    """How many drafted tokens are accepted: one random stream for the whole engine."""

    __slots__ = ("_random", "_reach", "tokens")

    def __init__(self, tokens: int, acceptance: tuple[float, ...], seed: int) -> None:
        if len(acceptance) not in (1, tokens) or not all(0.0 <= a <= 1.0 for a in acceptance):
            raise InputError(
                f"acceptance is {':'.join(map(str, acceptance))}, must be one probability or one for each of "
                f"{tokens} positions, from 0 to 1"
            )
        self.tokens = tokens
        each = acceptance * tokens if len(acceptance) == 1 else acceptance
        self._reach = list(accumulate(each, mul))  # probability that at least i + 1 are accepted
        self._random = random_stream(seed, "speculation").random

    def accepted(self, drafted: int) -> int:
        """Draw how many of `drafted` tokens are accepted."""
        draw, count = self._random(), 0
        while count < drafted and draw < self._reach[count]:
            count += 1
        return count
