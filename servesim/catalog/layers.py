"""The layers of a Hugging Face `config.json`: of which kind each is, its parameters, and what it keeps of a sequence.

A layer has a mixer of tokens and a feed-forward. `mixer_kinds` and `feed_forward_kinds` say what they are, by the many
ways in which configurations say it: the fields are those of transformers' classes, and what a class has as its default
and a file may leave out is in `DEFAULTS`. `mixer` counts one mixer: heads of keys and values (grouped or not), a latent
(MLA) with or without a sparse indexer, or a recurrent one, whose state has one size. Norms and biases are left out but
for what is said. Sources are the models' own `modeling_*.py` in transformers and vLLM's `mamba_utils.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from servesim.catalog.json_fields import JsonFields
from servesim.catalog.model import Attention
from servesim.errors import InputError
from servesim.inputs import Object
from servesim.units import shown

FULL, SLIDING, LINEAR, MAMBA, CONV, IDLE = "full", "sliding", "linear", "mamba", "conv", "idle"
"""Kinds of layers, as far as they keep different things."""

DENSE, EXPERTS, NONE = "dense", "experts", "none"

DEFAULTS: dict[str, Object] = {
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


def layer_count(fields: JsonFields) -> int:
    """Return the number of layers."""
    pattern = fields.text("hybrid_override_pattern")
    default = len(pattern) if pattern else None
    return fields.count("num_hidden_layers", "n_layer", "n_layers", "num_layers", default=default, maximum=10_000)


def mixer_kinds(fields: JsonFields, layers: int) -> tuple[list[str], int | None]:
    """Return the kind of each layer's mixer, and the window of the sliding ones."""
    window = _window(fields)
    kinds = _listed(fields, layers) or _recurrent(fields, layers) or _sliding(fields, layers, window)
    if window is None:
        if SLIDING in kinds:
            raise InputError(f"{fields.path}: sliding_window is missing, but some layers are sliding")
        return kinds, None
    return kinds, window


def feed_forward_kinds(fields: JsonFields, layers: int, experts: int) -> list[str]:
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


def _window(fields: JsonFields) -> int | None:
    if fields.get("use_sliding_window") is False:
        return None
    return fields.count("sliding_window", "sliding_window_size", "attention_chunk_size", default=0, minimum=0) or None


def _listed(fields: JsonFields, layers: int) -> list[str] | None:
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


def _recurrent(fields: JsonFields, layers: int) -> list[str] | None:
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


def _sliding(fields: JsonFields, layers: int, window: int | None) -> list[str]:
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


def _numbers(fields: JsonFields, name: str) -> frozenset[int] | None:
    """Return a list of layers' numbers as a set; None when it is missing."""
    listed = fields.items(name)
    return None if listed is None else frozenset(number for number in listed if isinstance(number, int))


FP32, BF16 = 4, 2
INDEX_SCALE_BYTES = 4  # vLLM keeps an indexer's key in FP8 with one FP32 scale per 128 values


@dataclass(slots=True, frozen=True, kw_only=True)
class Mixer:
    """One layer's mixer: its parameters, and the `Attention` of one layer of it."""

    params: int
    keeps: Attention


def mixer(kind: str, fields: JsonFields, hidden: int, heads: int, window: int | None) -> Mixer:
    """Return the mixer of a layer of `kind`."""
    if kind in (FULL, SLIDING):
        if fields.get("kv_lora_rank"):
            return _latent(fields, hidden, heads)
        return _heads(fields, hidden, heads, window if kind == SLIDING else None)
    if kind == LINEAR:
        return _linear(fields, hidden, heads)
    if kind == MAMBA:
        return _mamba(fields, hidden)
    if kind == CONV:
        return _convolution(fields, hidden)
    return Mixer(params=0, keeps=Attention(layers=1, idle=True))


def kv_heads(fields: JsonFields, heads: int) -> int:
    """Return the heads of keys and values: all of them where nothing groups them."""
    if fields.flag("multi_query") and not fields.flag("new_decoder_architecture"):
        return fields.count("multi_query_group_num", "num_kv_heads", default=1)
    return fields.count("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", default=heads)


def head_dim(fields: JsonFields, hidden: int, heads: int) -> int:
    """Return the width of one head: its own field, else hidden / heads."""
    width = fields.count("head_dim", "kv_channels", "attention_head_dim", default=0, minimum=0)
    if width == 0:
        if hidden % heads:
            raise InputError(f"{fields.path}: head_dim is missing, and {heads} heads do not divide {hidden} channels")
        width = hidden // heads
    return width


def _heads(fields: JsonFields, hidden: int, heads: int, window: int | None) -> Mixer:
    width = head_dim(fields, hidden, heads)
    groups = kv_heads(fields, heads)
    value = fields.count("v_head_dim", default=width)
    queries = heads * width * (2 if fields.flag("attn_output_gate") else 1)
    params = hidden * (queries + groups * (width + value)) + heads * value * hidden
    if fields.flag("attention_bias", "qkv_bias", "use_qkv_bias") or fields.text("model_type").startswith("qwen2"):
        params += (heads + groups) * width + groups * value
    if fields.text("model_type").startswith(("qwen3", "gemma3")):
        params += 2 * width  # a norm of queries and one of keys, over one head
    keeps = Attention(
        layers=1, kv_heads=groups, head_dim=width, value_dim=value if value != width else 0, window=window
    )
    return Mixer(params=params, keeps=keeps)


def _latent(fields: JsonFields, hidden: int, heads: int) -> Mixer:
    """Multi-head latent attention (arXiv:2405.04434), with DeepSeek's sparse indexer where there is one."""
    rank, rope = fields.count("kv_lora_rank"), fields.count("qk_rope_head_dim")
    nope, value = fields.count("qk_nope_head_dim"), fields.count("v_head_dim")
    query_rank = fields.count("q_lora_rank", default=0, minimum=0)
    queries = heads * (nope + rope)
    params = query_rank * (hidden + queries + 1) if query_rank else hidden * queries
    params += hidden * (rank + rope) + rank + rank * heads * (nope + value) + heads * value * hidden
    index_heads = fields.count("index_n_heads", default=0, minimum=0)
    index_bytes = 0
    if index_heads:
        width = fields.count("index_head_dim", default=128)
        params += (query_rank or hidden) * index_heads * width + hidden * (width + index_heads) + 2 * width
        index_bytes = width + -(-width // 128) * INDEX_SCALE_BYTES
    return Mixer(params=params, keeps=Attention(layers=1, latent_dim=rank + rope, index_bytes=index_bytes))


def _linear(fields: JsonFields, hidden: int, heads: int) -> Mixer:
    """A gated delta net (Qwen3-Next, Qwen3.5), Kimi's delta attention, or the lightning attention of MiniMax-01."""
    kimi = fields.part("linear_attn_config")
    if kimi is not None:
        count, width = kimi.count("num_heads"), kimi.count("head_dim")
        kernel = kimi.count("short_conv_kernel_size", default=4)
        inner = count * width
        # Queries, keys, values, output; two low-rank gates (decay and output); a step size per head.
        params = 4 * hidden * inner + 2 * (hidden * width + width * inner) + hidden * count + 3 * inner * kernel
        state = count * width * width * FP32 + 3 * inner * (kernel - 1) * BF16
        return Mixer(params=params, keeps=Attention(layers=1, state_bytes=state))
    if fields.get("linear_num_value_heads") is None:
        width = head_dim(fields, hidden, heads)
        params = 5 * hidden * heads * width + heads * width  # queries, keys, values, gate, output; a norm
        return Mixer(params=params, keeps=Attention(layers=1, state_bytes=heads * width * width * FP32))
    keys = fields.count("linear_num_key_heads") * fields.count("linear_key_head_dim")
    value_heads, value_width = fields.count("linear_num_value_heads"), fields.count("linear_value_head_dim")
    values, kernel = value_heads * value_width, fields.count("linear_conv_kernel_dim", default=4)
    convolved = 2 * keys + values
    params = hidden * (convolved + values + 2 * value_heads) + convolved * kernel + values * hidden
    params += 2 * value_heads + value_width
    state = value_heads * fields.count("linear_key_head_dim") * value_width * _state_width(fields)
    return Mixer(params=params, keeps=Attention(layers=1, state_bytes=state + convolved * (kernel - 1) * BF16))


def _mamba(fields: JsonFields, hidden: int) -> Mixer:
    """Mamba (arXiv:2312.00752) or, where it has heads, Mamba-2 (arXiv:2405.21060)."""
    state_size = fields.count("ssm_state_size", "mamba_d_state", "mamba_d_ssm_state", "state_size")
    kernel = fields.count("conv_kernel", "mamba_d_conv", "d_conv", default=4)
    count = fields.count("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", default=0, minimum=0)
    expand = fields.count("mamba_expand", "expand", default=2)
    if count:
        width = fields.count("mamba_head_dim", "mamba_d_head", default=max(1, expand * hidden // count))
        inner = count * width
        convolved = inner + 2 * fields.count("n_groups", "mamba_n_groups", "mamba_ngroups", default=1) * state_size
        params = hidden * (inner + convolved + count) + convolved * (kernel + 1) + inner * hidden + inner + 3 * count
    else:
        inner = convolved = fields.count("mamba_d_inner", "d_inner", default=expand * hidden)
        rank = fields.count("mamba_dt_rank", "time_step_rank", default=-(-hidden // 16))
        params = hidden * 2 * inner + inner * (kernel + 1) + inner * (rank + 2 * state_size) + rank * inner
        params += inner * (state_size + 2) + inner * hidden
    state = inner * state_size * _state_width(fields) + convolved * (kernel - 1) * BF16
    return Mixer(params=params, keeps=Attention(layers=1, state_bytes=state))


def _convolution(fields: JsonFields, hidden: int) -> Mixer:
    """The gated short convolution of LFM2: three projections in, one out, and the last inputs as its state."""
    kernel = fields.count("conv_L_cache", default=3)
    params = 4 * hidden * hidden + hidden * kernel
    return Mixer(params=params, keeps=Attention(layers=1, state_bytes=max(1, kernel - 1) * hidden * BF16))


def _state_width(fields: JsonFields) -> int:
    """Return the bytes of one number of a recurrent state: FP32 where the configuration asks for it, else 16 bits."""
    return FP32 if fields.text("mamba_ssm_dtype", "mamba_ssm_cache_dtype") == "float32" else BF16
