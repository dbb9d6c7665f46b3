"""What a cost model is, which there are, and two that stand before another one and watch it.

`FloorWatch` counts the steps that are faster than physics; `TermWatch` adds up where the time of all steps went.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from servesim.catalog.hardware import Hardware
from servesim.catalog.model import Model
from servesim.cost.roofline import Roofline

Chunks = Sequence[tuple[int, int]]  # of prompts: (new tokens, computed after)


class CostModel(Protocol):
    """Seconds of a step. An engine asks once per step, millions of times in a run: an answer costs about 0.1 us."""

    def decode(self, sequences: int, context_tokens: int, /) -> float:
        """Return the seconds of a step in which each of `sequences` requests computes one token.

        `context_tokens` is the sum of their `computed` once the step is done.
        """
        ...

    def step(self, sequences: int, context_tokens: int, chunks: Chunks, /) -> float:
        """Return the seconds of a step that also computes `chunks` of prompts, each (new tokens, computed after)."""
        ...


@runtime_checkable
class Explained(Protocol):
    """A cost model that can say where its time goes: the seconds of each term, which add up to the step's."""

    def terms(self, sequences: int, context_tokens: int, chunks: Chunks = (), /) -> dict[str, float]: ...


def _detailed(*arguments: Any, **keywords: Any) -> CostModel:
    from servesim.cost.detailed import Detailed  # that most commands never ask for

    return Detailed(*arguments, **keywords)


# Name -> what makes the model of (model, hardware, tensor_parallel, kv_bytes_per_token=None); all but the roofline also
# take pipeline_parallel and expert_parallel.
COST_MODELS: dict[str, Callable[..., CostModel]] = {"roofline": Roofline, "detailed": _detailed}


class FloorWatch:
    """A cost model that passes on another's answers and counts those below the datasheet's floor.

    It is worth its cost only where a fit claims more than the datasheet (`Roofline.can_beat_floor`), or where the
    inner model is not a roofline at all.
    """

    __slots__ = ("_floor_seconds", "_inner", "steps_below_floor")

    def __init__(
        self,
        inner: CostModel,
        model: Model,
        hardware: Hardware,
        tensor_parallel: int = 1,
        *,
        kv_bytes_per_token: int | None = None,
    ) -> None:
        self._inner = inner
        floor = Roofline(model, hardware, tensor_parallel, kv_bytes_per_token=kv_bytes_per_token)
        self._floor_seconds = floor.floor_seconds
        self.steps_below_floor = 0

    @property
    def inner(self) -> CostModel:
        """The model whose answers are passed on."""
        return self._inner

    def decode(self, sequences: int, context_tokens: int, /) -> float:
        """Return the inner model's seconds."""
        seconds = self._inner.decode(sequences, context_tokens)
        if seconds < self._floor_seconds(sequences, context_tokens):
            self.steps_below_floor += 1
        return seconds

    def step(self, sequences: int, context_tokens: int, chunks: Chunks, /) -> float:
        """Return the inner model's seconds."""
        seconds = self._inner.step(sequences, context_tokens, chunks)
        for new_tokens, computed in chunks:
            sequences += new_tokens
            context_tokens += computed
        if seconds < self._floor_seconds(sequences, context_tokens):
            self.steps_below_floor += 1
        return seconds


def terms_of(cost: CostModel, sequences: int, context_tokens: int, chunks: Chunks = ()) -> dict[str, float]:
    """Return the seconds of each term of one step; they add up to the step's. Empty for a model that cannot tell."""
    watched = cost.inner if isinstance(cost, FloorWatch) else cost
    return watched.terms(sequences, context_tokens, chunks) if isinstance(watched, Explained) else {}


class TermWatch:
    """A cost model that passes on another's answers and adds up where their time went, in `seconds` by term.

    Decode steps are kept separate from steps with a prompt in them, whose terms are others.
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


def _add(totals: dict[str, float], terms: dict[str, float]) -> None:
    for name, seconds in terms.items():
        totals[name] = totals.get(name, 0.0) + seconds
