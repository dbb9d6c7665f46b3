"""The roofline: a step takes the longer of its arithmetic and its memory traffic, plus a fixed overhead.

    compute = 2 x params x tokens / (TFLOP/s x 1e12 x mfu)
    memory  = (weights_bytes + context_tokens x kv_bytes_per_token) / (GB/s x 1e9 x mbu)
    step    = overhead + max(compute, memory)

`tokens` are all tokens scheduled in the step; `context_tokens` is, over the scheduled requests, the sum of `computed`
once the step is done. A mixture of experts computes with its active parameters and reads all of its weights. Tensor
parallelism divides FLOPs, weights and KV by its size and leaves communication out. The model is the default and its
numbers never change; richer models stand beside it under their own names.

Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from servesim.catalog.hardware import Hardware
from servesim.catalog.model import Model
from servesim.errors import InputError

TERMS: dict[str, str] = {
    "memory": "reading weights and KV cache, where it is the longer",
    "arithmetic": "2 x parameters x tokens, where it is the longer",
    "overhead": "the step overhead",
}
"""Every term of a step by name, and what it is."""


class Roofline:
    """Seconds of a step, from four constants; `seconds` is the formula, `decode` and `step` are how an engine asks."""

    __slots__ = ("can_beat_floor", "context_s", "floor_context_s", "floor_token_s", "floor_weights_s", "overhead_s",
                 "token_s", "weights_s")  # fmt: skip

    def __init__(
        self, model: Model, hardware: Hardware, tensor_parallel: int = 1, *, kv_bytes_per_token: int | None = None
    ) -> None:
        """Prepare the constants of `model` on `tensor_parallel` devices of `hardware`.

        `kv_bytes_per_token` (before sharding) replaces the model's own where its KV is not one figure per token:
        give `model.kv_bytes_per_token(context=...)`.
        """
        if tensor_parallel < 1:
            raise InputError(f"tensor_parallel_size is {tensor_parallel}, must be 1 or more")
        flop_per_token = 2 * model.compute_params / tensor_parallel
        weights_bytes = model.weights_bytes / tensor_parallel
        kv_bytes = (model.kv_bytes_per_token() if kv_bytes_per_token is None else kv_bytes_per_token) / tensor_parallel
        peak_flop_per_s = hardware.tflops * 1e12
        peak_bytes_per_s = hardware.bandwidth_gb_s * 1e9
        self.overhead_s: float = hardware.overhead_s
        self.token_s: float = flop_per_token / (peak_flop_per_s * hardware.mfu)  # compute of one token
        self.weights_s: float = weights_bytes / (peak_bytes_per_s * hardware.mbu)  # one read of the weights
        self.context_s: float = kv_bytes / (peak_bytes_per_s * hardware.mbu)  # one read of one cached token
        self.floor_token_s: float = flop_per_token / peak_flop_per_s
        self.floor_weights_s: float = weights_bytes / peak_bytes_per_s
        self.floor_context_s: float = kv_bytes / peak_bytes_per_s
        self.can_beat_floor: bool = hardware.mfu > 1 or hardware.mbu > 1

    def seconds(self, tokens: int, context_tokens: int) -> float:
        """Return the seconds of a step of `tokens` over `context_tokens`."""
        compute = tokens * self.token_s
        memory = self.weights_s + context_tokens * self.context_s
        return self.overhead_s + (compute if compute > memory else memory)

    decode = seconds  # a decoding sequence computes one token, so its number of sequences is its number of tokens

    def step(self, sequences: int, context_tokens: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Return the seconds of a step that decodes `sequences` and computes `chunks` of (new tokens, computed)."""
        for new_tokens, computed in chunks:
            sequences += new_tokens
            context_tokens += computed
        return self.seconds(sequences, context_tokens)

    def terms(self, sequences: int, context_tokens: int, chunks: Sequence[tuple[int, int]] = ()) -> dict[str, float]:
        """Return the seconds of each of `TERMS` that a step has: the longer of its two sides, and the overhead."""
        tokens = sequences + sum(new for new, _ in chunks)
        context = context_tokens + sum(computed for _, computed in chunks)
        compute, memory = tokens * self.token_s, self.weights_s + context * self.context_s
        longer = {"arithmetic": compute} if compute > memory else {"memory": memory}
        return {**longer, "overhead": self.overhead_s}

    def floor_seconds(self, tokens: int, context_tokens: int) -> float:
        """Return the least seconds that the datasheet's peaks allow: mfu and mbu of 1 and no overhead.

        No step is faster unless mfu or mbu is above 1, which `can_beat_floor` tells.
        """
        compute = tokens * self.floor_token_s
        memory = self.floor_weights_s + context_tokens * self.floor_context_s
        return compute if compute > memory else memory


def step_seconds(
    model: Model, hardware: Hardware, tokens: int, context_tokens: int = 0, tensor_parallel: int = 1
) -> float:
    """Return the seconds of one step of `tokens` scheduled tokens over `context_tokens` cached ones.

    Raises `InputError` for negative or not whole numbers.
    """
    for name, value in (("tokens", tokens), ("context_tokens", context_tokens)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InputError(f"{name} is {value!r}, must be a whole number of 0 or more")
    return Roofline(model, hardware, tensor_parallel).seconds(tokens, context_tokens)


def critical_batch(model: Model, hardware: Hardware, context: int = 0, tensor_parallel: int = 1) -> float | None:
    """Return the batch of decoding sequences at which compute takes as long as memory, effective figures.

    With `context` cached tokens per sequence KV reads grow with the batch too: `batch x token = weights + batch x
    context x kv`. None when a token's KV read takes as long as its arithmetic, so that no batch is compute-bound.
    """
    if context < 0:
        raise InputError(f"context is {context}, must be 0 or more")
    kv_bytes = model.kv_bytes_per_token(context=context) if context else None
    cost = Roofline(model, hardware, tensor_parallel, kv_bytes_per_token=kv_bytes)
    gain_s = cost.token_s - context * cost.context_s
    batch = cost.weights_s / gain_s if gain_s > 0 else math.inf
    return batch if math.isfinite(batch) else None
