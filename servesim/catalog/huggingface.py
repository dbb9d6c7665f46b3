"""A model from a Hugging Face `config.json` or the folder around it: shapes from its fields, bytes from its files.

Decoders only. The parameters follow from the shapes of the layers (`layers`), as a test holds against published counts;
where the weights lie beside the configuration, their own headers or index decide the bytes. How the weights are written
is in the `quantization_config`, or in ModelOpt's `hf_quant_config.json`. Nothing is downloaded, and no tensor is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from servesim.catalog.json_fields import JsonFields
from servesim.catalog.layers import (
    DEFAULTS,
    DENSE,
    EXPERTS,
    UNGATED,
    Mixer,
    feed_forward_kinds,
    layer_count,
    mixer,
    mixer_kinds,
)
from servesim.catalog.model import Attention, Experts, Model
from servesim.catalog.safetensors import Weights, folder_weights
from servesim.errors import InputError
from servesim.inputs import MAX_CONFIG_BYTES, Object, read_object

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32", "auto": "bf16"}


@dataclass(slots=True, frozen=True, kw_only=True)
class CheckpointFormat:
    """A name of `WEIGHT_FORMATS`, None for one that servesim does not know, and the parts left in the plain dtype."""

    name: str | None
    keep: tuple[str, ...] = ()
    method: str = ""  # as the checkpoint calls it


def plain_dtype(fields: JsonFields) -> str:
    """Return the dtype of weights that are not quantised: BF16 where the file says nothing."""
    dtype = fields.text("torch_dtype", "dtype", default="bfloat16").removeprefix("torch.")
    if dtype not in _DTYPES:
        raise InputError(f"{fields.path}: torch_dtype is {dtype[:40]!r}, must be one of {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def checkpoint_format(quantization: JsonFields | None) -> CheckpointFormat | None:
    """Return the format that a `quantization_config` describes; None without one."""
    if quantization is None:
        return None
    method = quantization.text("quant_method", "quant_algo").lower()
    algorithm = quantization.text("quant_algo").lower()
    bits = quantization.count("bits", "w_bit", default=4, maximum=64)
    name: str | None = None
    if method in ("fp8", "fbgemm_fp8", "ptpc_fp8") or "fp8" in algorithm:
        name = "fp8"
    elif "fp4" in algorithm or method == "modelopt_fp4":
        name = "mxfp4" if "mxfp4" in algorithm else "nvfp4"
    elif method == "mxfp4":
        name = "mxfp4"
    elif method in ("awq", "gptq", "auto-round", "gptq_marlin", "awq_marlin"):
        known = "awq" if method.startswith("awq") else "gptq"
        name = known if bits == 4 else "int8" if bits == 8 else None
    elif method == "bitsandbytes":
        name = "int8" if quantization.flag("load_in_8bit", "_load_in_8bit") else "nf4"
    elif method == "compressed-tensors":
        name = _compressed(quantization)
    ignored = _strings(quantization.get("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules"))
    return CheckpointFormat(name=name, keep=tuple(_kept(ignored)), method=method or algorithm)


def _compressed(quantization: JsonFields) -> str | None:
    """Return the format of the first group of weights of compressed-tensors."""
    groups = quantization.part("config_groups")
    for group in (groups.values if groups else {}).values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            continue
        fields = JsonFields(weights, f"{quantization.path}: weights")
        bits, is_float = fields.count("num_bits", default=8, maximum=64), fields.text("type") == "float"
        size = fields.count("group_size", default=0, minimum=-1)
        if bits == 8:
            return "fp8" if is_float else "int8"
        if bits == 4 and is_float:
            return "mxfp4" if size == 32 else "nvfp4"
        if bits == 4:
            return "int4" if 0 < size <= 32 else "gptq"
    return None


def _kept(ignored: Iterable[str]) -> Iterable[str]:
    """Yield the parts of a model that a list of modules to leave alone covers."""
    patterns = [pattern.replace("\\", "") for pattern in ignored]
    if any("self_attn" in pattern and "norm" not in pattern for pattern in patterns):
        yield "attention"
    if any(word in pattern for pattern in patterns for word in ("mlp.(gate|up", "mlp.gate_proj", "mlp.down_proj")):
        yield "mlp"
    if any("shared_expert" in pattern and "shared_expert_gate" not in pattern for pattern in patterns):
        yield "shared"


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


_TEXT_PARTS = ("text_config", "llm_config", "language_config")
_FROM_OUTSIDE = ("tie_word_embeddings", "torch_dtype", "dtype", "quantization_config", "vocab_size")


def read_hugging_face(path: str) -> Model:
    """Return the model of the `config.json` at `path`, or in the folder `path`.

    Raises `InputError` for a file that cannot be read or does not describe a decoder, with the field that is wrong.
    """
    config = os.path.join(path, "config.json") if os.path.isdir(path) else path
    if os.path.isdir(path) and not os.path.isfile(config):
        raise InputError(f"{path}: holds no config.json; give a folder with one, or a .gguf file by its name")
    fields = decoder_fields(read_object(config, limit_bytes=MAX_CONFIG_BYTES), config)
    folder = os.path.dirname(os.path.abspath(config))
    model = plain_model(fields, _name(config))
    weights = folder_weights(folder, model.layers)
    if weights is not None and weights.params is not None:
        model = replace(model, params=weights.params)
    return _weighed(model, _quantization(fields, folder), weights, fields.path)


def decoder_fields(document: Object, path: str) -> JsonFields:
    """Return the fields of the decoder: the text part of a multimodal file, with what is only said outside of it."""
    values = document
    if document.get("is_encoder_decoder") is True:
        raise InputError(f"{path}: describes an encoder-decoder, which servesim does not model")
    for name in _TEXT_PARTS:
        part = document.get(name)
        if isinstance(part, dict):
            outside = {key: document[key] for key in _FROM_OUTSIDE if document.get(key) is not None}
            values = {**outside, **{key: value for key, value in part.items() if value is not None}}
            break
    kind = values.get("model_type")
    defaults = DEFAULTS.get(kind, {}) if isinstance(kind, str) else {}
    return JsonFields({**defaults, **{key: value for key, value in values.items() if value is not None}}, path)


def plain_model(fields: JsonFields, name: str) -> Model:
    """Return the model that the shapes in `fields` make, its parameters counted and none of its weights quantised."""
    hidden = fields.count("hidden_size", "n_embd", "d_model", "model_dim")
    layers = layer_count(fields)
    heads = fields.count("num_attention_heads", "n_head", "n_heads", "num_heads", default=1)
    vocab = fields.count("vocab_size", "padded_vocab_size")
    experts, shapes = _experts(fields, layers, hidden)
    attention, mixer_params = _mixers(fields, layers, hidden, heads)
    intermediate = 0
    if DENSE in shapes:
        intermediate = _intermediate(fields, hidden, experts is not None)
    gated = fields.text("model_type") not in UNGATED
    model = Model(
        name=name,
        params=10**14,  # until it is counted, below
        attention=attention,
        heads=heads,
        hidden=hidden,
        intermediate=intermediate,
        mlp_layers=shapes.count(DENSE),
        gated=gated,
        vocab=vocab,
        tied_embeddings=fields.flag("tie_word_embeddings", default=True),  # transformers' own default
        experts=experts,
        weight_dtype=plain_dtype(fields),
        kv_dtype=plain_dtype(fields),
        source=f"config.json of {name}",
        date="",
    )
    norms = 4 if fields.text("model_type").startswith(("gemma2", "gemma3")) else 2
    counted = model.embedding_params + model.head_params + mixer_params + (norms * layers + 1) * hidden
    counted += (
        model.mlp_params
        + model.expert_params
        + model.shared_expert_params
        + model.router_params
        + _positions(fields) * hidden
    )
    if counted >= 10**14:
        raise InputError(f"{fields.path}: describes {counted:.3g} parameters, more than any model has")
    return replace(model, params=counted)


def _weighed(model: Model, form: CheckpointFormat | None, weights: Weights | None, path: str) -> Model:
    """Return `model` in the format of its checkpoint and with the bytes of its files."""
    if form is not None:
        if form.name is not None:
            model = model.quantized(form.name, keep=form.keep)
        elif weights is None:
            raise InputError(
                f"{path}: quantisation {form.method!r} is not known, and no weights lie beside it to be counted"
            )
    if weights is not None:
        model = replace(model, file_bytes=weights.size_bytes, source=f"{model.source}; bytes by {weights.source}")
    if model.experts is None:
        return model
    share = 1 - model.experts.top_k / model.experts.count
    return replace(model, active_params=max(1, model.params - round(model.expert_params * share)))


def _experts(fields: JsonFields, layers: int, hidden: int) -> tuple[Experts | None, list[str]]:
    """Return the mixture of experts, if there is one, and the kind of each layer's feed-forward."""
    count = fields.count(
        *("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"), default=0, minimum=0
    )
    kinds = feed_forward_kinds(fields, layers, count if count > 1 else 0)
    if EXPERTS not in kinds:
        return None, kinds
    width = fields.count("moe_intermediate_size", "expert_intermediate_size", "intermediate_size", "ffn_hidden_size")
    shared = fields.count("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", default=0, minimum=0)
    shared_width = fields.count(
        *("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size"),
        default=0,
        minimum=0,
    )
    if shared_width or fields.text("model_type") == "llama4_text":
        shared = max(shared, 1)
    return (
        Experts(
            layers=kinds.count(EXPERTS),
            count=count,
            top_k=fields.count(*("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")),
            intermediate=width,
            shared=shared,
            shared_intermediate=shared_width if shared_width != width else 0,
        ),
        kinds,
    )


def _mixers(fields: JsonFields, layers: int, hidden: int, heads: int) -> tuple[tuple[Attention, ...], int]:
    """Return what the layers keep, in groups of equal ones, and the parameters of all mixers."""
    kinds, window = mixer_kinds(fields, layers)
    known: dict[str, Mixer] = {kind: mixer(kind, fields, hidden, heads, window) for kind in sorted(set(kinds))}
    borrowing = fields.count("num_kv_shared_layers", default=0, minimum=0, maximum=layers - 1)  # Gemma 3n
    groups: dict[Attention, int] = {}
    for number, kind in enumerate(kinds):
        keeps = known[kind].keeps if number < layers - borrowing else Attention(layers=1, idle=True)
        groups[keeps] = groups.get(keeps, 0) + 1
    attention = tuple(replace(keeps, layers=count) for keeps, count in groups.items())
    return _whole_first(attention), sum(known[kind].params for kind in kinds)


def _whole_first(groups: Iterable[Attention]) -> tuple[Attention, ...]:
    """Return the groups with those that keep every token in front, as presets have them."""
    return tuple(sorted(groups, key=lambda group: (group.idle, group.state_bytes > 0, group.window is not None)))


def _intermediate(fields: JsonFields, hidden: int, is_mixture: bool) -> int:
    """Return the width of a dense feed-forward; Llama 4 has one of its own beside that of its experts."""
    own = ("intermediate_size_mlp",) if is_mixture else ()
    names = (*own, "intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "ffn_hidden_dim")
    widths = fields.items(names[0]) if isinstance(fields.get(names[0]), list) else None
    if widths:  # one for each layer: their mean
        whole = JsonFields({str(number): width for number, width in enumerate(widths)}, f"{fields.path}: {names[0]}")
        return round(sum(whole.count(name) for name in whole.values) / len(widths))
    return fields.count(*names, default=4 * hidden)


def _positions(fields: JsonFields) -> int:
    """Return the rows of a learned table of positions: GPT-2 and OPT have one, everybody else turns angles."""
    kind = fields.text("model_type")
    if kind in ("gpt2", "gpt_bigcode"):
        return fields.count("n_positions", "n_ctx", default=1024)
    return fields.count("max_position_embeddings", default=2048) + 2 if kind == "opt" else 0


def _quantization(fields: JsonFields, folder: str) -> CheckpointFormat | None:
    form = checkpoint_format(fields.part("quantization_config"))
    beside = os.path.join(folder, "hf_quant_config.json")  # ModelOpt
    if form is None and os.path.isfile(beside):
        form = checkpoint_format(
            JsonFields(read_object(beside, limit_bytes=MAX_CONFIG_BYTES), beside).part("quantization")
        )
    return form


def _name(config: str) -> str:
    """Return a name for the model: its repository in a cache of the hub, else its folder, else the file."""
    folders = os.path.abspath(config).split(os.sep)[:-1]
    for folder in reversed(folders):
        if folder.startswith("models--"):
            return folder.split("--")[-1]
    stem = os.path.splitext(os.path.basename(config))[0]
    name = (folders[-1] if folders else "") if stem == "config" else stem
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:80] or "model"
