"""Where a step's time goes: the seconds of each term of a cost model, in one step or over a whole run.

Every cost model that can tell has `terms(sequences, context, chunks)`, whose values add up to the step; the roofline,
which takes the longer of two, is told here. `TermWatch` stands before a cost model and adds up the terms of every step
that an engine asks about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from servesim.cost.detailed import TERMS as DETAILED_TERMS
from servesim.cost.model import CostModel, FloorWatch
from servesim.cost.roofline import Roofline

Chunks = Sequence[tuple[int, int]]

TERMS: dict[str, str] = {
    **DETAILED_TERMS,
    "memory": "reading weights and KV cache, where it is the longer",
    "arithmetic": "2 x parameters x tokens, where it is the longer",
    "overhead": "the step overhead",
}
"""Every term of every cost model by name, and what it is."""


@runtime_checkable
class Explained(Protocol):
    """A cost model that can say where its time goes."""

    def terms(self, sequences: int, context_tokens: int, chunks: Chunks = (), /) -> dict[str, float]: ...


def terms_of(cost: CostModel, sequences: int, context_tokens: int, chunks: Chunks = ()) -> dict[str, float]:
    """Return the seconds of each term of one step; they add up to the step's. Empty for a model that cannot tell."""
    cost = _plain(cost)
    if isinstance(cost, Roofline):
        tokens = sequences + sum(new for new, _ in chunks)
        context = context_tokens + sum(computed for _, computed in chunks)
        compute, memory = tokens * cost.token_s, cost.weights_s + context * cost.context_s
        longer = {"arithmetic": compute} if compute > memory else {"memory": memory}
        return {**longer, "overhead": cost.overhead_s}
    return cost.terms(sequences, context_tokens, chunks) if isinstance(cost, Explained) else {}


class TermWatch:
    """A cost model that passes on another's answers and adds up where their time went, in `seconds` by term.

    Decode steps and steps with a prompt in them are told apart: they are ruled by different terms.
    """

    def __init__(self, inner: CostModel) -> None:
        self.inner = inner
        self.can_beat_floor = False  # who watches the floor stands behind it
        self.ingest_s: float = getattr(inner, "ingest_s", 0.0)
        self.reset()

    def reset(self) -> None:
        """Forget the steps so far."""
        self.decode_s: dict[str, float] = {}
        self.mixed_s: dict[str, float] = {}
        self.decode_steps = self.mixed_steps = 0

    def decode(self, sequences: int, context_tokens: int, /) -> float:
        """Return the inner model's seconds."""
        self.decode_steps += 1
        _add(self.decode_s, terms_of(self.inner, sequences, context_tokens))
        return self.inner.decode(sequences, context_tokens)

    def step(self, sequences: int, context_tokens: int, chunks: Chunks, /) -> float:
        """Return the inner model's seconds. A chunk of which nothing is computed is a draft, not a prompt."""
        terms = terms_of(self.inner, sequences, context_tokens, chunks)
        if any(computed for _, computed in chunks):
            self.mixed_steps += 1
            _add(self.mixed_s, terms)
        else:
            self.decode_steps += 1
            _add(self.decode_s, terms)
        return self.inner.step(sequences, context_tokens, chunks)


def _plain(cost: CostModel) -> CostModel:
    """Return the model itself from behind whoever watches it."""
    return cost.inner if isinstance(cost, FloorWatch) else cost


def _add(totals: dict[str, float], terms: dict[str, float]) -> None:
    for name, seconds in terms.items():
        totals[name] = totals.get(name, 0.0) + seconds
