"""Which layer is of which kind, by the many ways in which a Hugging Face `config.json` says it.

Two questions per layer: what mixes its tokens (`mixers`), and whether its feed-forward is dense, a mixture of experts
or absent. The fields are those of transformers' configuration classes; what a class has as its default and a file may
leave out is in `DEFAULTS`.
"""

from __future__ import annotations

from typing import Any

from servesim.catalog.json_file import Fields
from servesim.catalog.mixers import CONV, FULL, IDLE, LINEAR, MAMBA, SLIDING
from servesim.errors import InputError
from servesim.units import shown

DENSE, EXPERTS, NONE = "dense", "experts", "none"

DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 256, "vocab_size": 256000},
    "gemma2": {"head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 2, "vocab_size": 256000},
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    },
    "gpt_oss": {"sliding_window": 128, "sliding_window_pattern": 2},
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "llama4_text": {"attention_chunk_size": 8192, "interleave_moe_layer_step": 1, "num_local_experts": 16},
    "qwen3_next": {"attn_output_gate": True, "full_attention_interval": 4},
    "qwen3_5_text": {"attn_output_gate": True, "full_attention_interval": 4},
    "qwen3_5_moe_text": {"attn_output_gate": True, "full_attention_interval": 4},
    "glm_moe_dsa": {"index_n_heads": 32, "index_head_dim": 128},
    "gpt2": {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257},
}
"""By model type, what a `config.json` may leave out since it is the class's own default."""

UNGATED = frozenset(
    "gpt2 gpt_neo gpt_neox gptj gpt_bigcode opt bloom falcon mpt phi starcoder2 nemotron nemotron_h codegen".split()
)
"""Model types whose feed-forward has two matrices."""

_TYPES = {
    "full_attention": FULL,
    "attention": FULL,
    "global_attention": FULL,
    "hybrid": FULL,
    "sliding_attention": SLIDING,
    "local_attention": SLIDING,
    "chunked_attention": SLIDING,
    "linear_attention": LINEAR,
    "mamba": MAMBA,
    "mamba2": MAMBA,
    "conv": CONV,
    "mlp": IDLE,
    "moe": IDLE,
}
_PATTERN = {"M": MAMBA, "*": FULL, "-": IDLE, "E": IDLE}


def layer_count(fields: Fields) -> int:
    """Return the number of layers."""
    pattern = fields.text("hybrid_override_pattern")
    default = len(pattern) if pattern else None
    return fields.count("num_hidden_layers", "n_layer", "n_layers", "num_layers", default=default, maximum=10_000)


def mixer_kinds(fields: Fields, layers: int) -> tuple[list[str], int | None]:
    """Return the kind of each layer's mixer, and the window of the sliding ones."""
    window = _window(fields)
    kinds = _listed(fields, layers) or _recurrent(fields, layers) or _sliding(fields, layers, window)
    if window is None:
        if SLIDING in kinds:
            raise InputError(f"{fields.path}: sliding_window is missing, but some layers are sliding")
        return kinds, None
    return kinds, window


def feed_forward_kinds(fields: Fields, layers: int, experts: int) -> list[str]:
    """Return whether each layer's feed-forward is dense, a mixture of experts or absent."""
    pattern = fields.text("hybrid_override_pattern")
    if pattern:
        return [DENSE if letter == "-" else EXPERTS if letter == "E" else NONE for letter in pattern]
    if not experts:
        return [DENSE] * layers
    listed = fields.items("mlp_layer_types", length=layers)
    if listed is not None:
        return [EXPERTS if kind == "sparse" else DENSE for kind in listed]
    chosen = _numbers(fields, "moe_layers")
    if chosen is not None:
        return [EXPERTS if layer in chosen else DENSE for layer in range(layers)]
    frequency = fields.get("moe_layer_freq")
    if isinstance(frequency, list):
        flags = fields.items("moe_layer_freq", length=layers) or ()
        return [EXPERTS if flag else DENSE for flag in flags]
    first = fields.count("first_k_dense_replace", "moe_layer_start_index", default=0, minimum=0)
    every = fields.count(
        "moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", "expert_layer_period", default=1
    )
    offset = fields.count("expert_layer_offset", default=-1, minimum=-1)
    dense = _numbers(fields, "mlp_only_layers") or frozenset()

    def mixes(layer: int) -> bool:
        if layer in dense or layer < first:
            return False
        if offset >= 0:
            return layer % every == offset % every
        if fields.get("moe_layer_freq") is not None:
            return layer % every == 0
        return (layer + 1) % every == 0

    return [EXPERTS if mixes(layer) else DENSE for layer in range(layers)]


def _window(fields: Fields) -> int | None:
    if fields.get("use_sliding_window") is False:
        return None
    return fields.count("sliding_window", "sliding_window_size", "attention_chunk_size", default=0, minimum=0) or None


def _listed(fields: Fields, layers: int) -> list[str] | None:
    """Return the kinds where the file names each layer's."""
    pattern = fields.text("hybrid_override_pattern")
    if pattern:
        if len(pattern) != layers or not set(pattern) <= _PATTERN.keys():
            raise InputError(f"{fields.path}: hybrid_override_pattern must have one of M, *, - or E for each layer")
        return [_PATTERN[letter] for letter in pattern]
    listed = fields.items("layer_types", "layers_block_type", length=layers)
    if listed is None:
        return None
    for kind in listed:
        if not isinstance(kind, str) or kind not in _TYPES:
            raise InputError(f"{fields.path}: layer_types has {shown(kind)}, must be one of {', '.join(_TYPES)}")
    return [_TYPES[kind] for kind in listed]


def _recurrent(fields: Fields, layers: int) -> list[str] | None:
    """Return the kinds of a hybrid that says which of its layers attend."""
    flags = fields.items("attn_type_list", length=layers)  # MiniMax: 0 is lightning attention
    if flags is not None:
        return [FULL if flag else LINEAR for flag in flags]
    kimi = fields.part("linear_attn_config")
    if kimi is not None:
        attending = _numbers(kimi, "full_attn_layers") or frozenset()  # counted from 1
        return [FULL if layer + 1 in attending else LINEAR for layer in range(layers)]
    chosen = _numbers(fields, "attn_layer_indices")
    if chosen is not None:
        return [FULL if layer in chosen else MAMBA for layer in range(layers)]
    every = fields.count("full_attention_interval", default=0, minimum=0)
    if every and fields.get("linear_num_value_heads") is not None:
        return [FULL if (layer + 1) % every == 0 else LINEAR for layer in range(layers)]
    every = fields.count("attn_layer_period", default=0, minimum=0)
    if every:
        offset = fields.count("attn_layer_offset", default=0, minimum=0) % every
        return [FULL if layer % every == offset else MAMBA for layer in range(layers)]
    if fields.text("model_type") in ("mamba", "mamba2", "falcon_mamba"):
        return [MAMBA] * layers
    return None


def _sliding(fields: Fields, layers: int, window: int | None) -> list[str]:
    """Return the kinds of layers that all attend, some of them over a window."""
    if window is None:
        return [FULL] * layers
    rope = fields.items("no_rope_layers", length=layers)  # Llama 4: layers with a rotary embedding are chunked
    if rope:
        return [SLIDING if flag else FULL for flag in rope]
    if fields.get("attention_chunk_size") is not None:
        return [FULL if (layer + 1) % 4 == 0 else SLIDING for layer in range(layers)]
    pattern = fields.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:  # EXAONE 4: LLLG, L is local
        return [SLIDING if pattern[layer % len(pattern)] == "L" else FULL for layer in range(layers)]
    every = fields.count("sliding_window_pattern", "global_attn_every_n_layers", default=0, minimum=0)
    if every:
        return [FULL if (layer + 1) % every == 0 else SLIDING for layer in range(layers)]
    first = fields.count("max_window_layers", default=0, minimum=0)  # Qwen2: layers below it see everything
    if fields.text("model_type").startswith(("qwen2", "qwen3")):
        return [SLIDING if layer >= first else FULL for layer in range(layers)]
    return [SLIDING] * layers


def _numbers(fields: Fields, name: str) -> frozenset[int] | None:
    """Return a list of layers' numbers as a set; None when it is missing."""
    listed = fields.items(name)
    return None if listed is None else frozenset(number for number in listed if isinstance(number, int))
