"""The size of a LoRA adapter: two thin matrices beside every matrix that it adapts.

An adapter of rank r adds r x (inputs + outputs) numbers to each projection of attention (query, key, value, output)
and of the dense feed-forward layers (gate, up, down), in 16 bits, as PEFT writes them with all linear layers as
targets. What it leaves alone: routed experts, recurrent layers, embeddings and head, which adapters rarely touch.
"""

from __future__ import annotations

from servesim.catalog.model import Attention, Model
from servesim.errors import InputError

BYTES = 2  # of a number of an adapter: 16 bits, whatever the base model is quantised to
MAX_RANK = 512  # as vLLM's --max-lora-rank


def adapter_params(model: Model, rank: int) -> int:
    """Return the numbers in an adapter of `rank` for `model`. Raises `InputError` for a rank that is none.

    >>> from servesim.catalog.models import find_model
    >>> adapter_params(find_model("llama-3.1-8b"), 16)
    41943040
    """
    if not 1 <= rank <= MAX_RANK:
        raise InputError(f"adapter_rank is {rank}, must be from 1 to {MAX_RANK}")
    attention = sum(group.layers * _attention_width(group, model) for group in model.attention)
    dense = model.mlp_layers
    if dense is None:
        dense = max(0, model.layers - (model.experts.layers if model.experts else 0))
    matrices = 3 if model.gated else 2
    feed_forward = dense * matrices * (model.hidden + model.intermediate) if model.intermediate else 0
    return rank * (attention + feed_forward)


def adapter_bytes(model: Model, rank: int) -> int:
    """Return the bytes of an adapter of `rank`, over all devices that share the model."""
    return BYTES * adapter_params(model, rank)


def _attention_width(group: Attention, model: Model) -> int:
    """Return the sum of inputs and outputs of the projections of one layer."""
    hidden, heads = model.hidden, model.heads
    if group.latent_dim:  # the query of 192 and the value of 128 a head in DeepSeek's shape, and the latent
        return (hidden + heads * 192) + (hidden + group.latent_dim) + (heads * 128 + hidden)
    if not group.kv_heads:
        return 0
    value_dim = group.value_dim or group.head_dim
    query, key, value = heads * group.head_dim, group.kv_heads * group.head_dim, group.kv_heads * value_dim
    return (hidden + query) + (hidden + key) + (hidden + value) + (heads * value_dim + hidden)
