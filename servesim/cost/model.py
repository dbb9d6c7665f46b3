"""What a cost model is, which there are, and the wrapper that counts steps faster than physics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from servesim.catalog.hardware import Hardware
from servesim.catalog.model import Model
from servesim.cost.roofline import Roofline


class CostModel(Protocol):
    """Seconds of a step. An engine asks once per step, millions of times in a run: an answer costs about 0.1 us."""

    def decode(self, sequences: int, context_tokens: int, /) -> float:
        """Return the seconds of a step in which each of `sequences` requests computes one token.

        `context_tokens` is the sum of their `computed` once the step is done.
        """
        ...

    def step(self, sequences: int, context_tokens: int, chunks: Sequence[tuple[int, int]], /) -> float:
        """Return the seconds of a step that also computes `chunks` of prompts, each (new tokens, computed after)."""
        ...


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

    def step(self, sequences: int, context_tokens: int, chunks: Sequence[tuple[int, int]], /) -> float:
        """Return the inner model's seconds."""
        seconds = self._inner.step(sequences, context_tokens, chunks)
        for new_tokens, computed in chunks:
            sequences += new_tokens
            context_tokens += computed
        if seconds < self._floor_seconds(sequences, context_tokens):
            self.steps_below_floor += 1
        return seconds
