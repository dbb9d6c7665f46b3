"""How a checkpoint's weights are written, by its `quantization_config` (or ModelOpt's `hf_quant_config.json`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from servesim.catalog.json_file import Fields
from servesim.errors import InputError

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32", "auto": "bf16"}


@dataclass(slots=True, frozen=True, kw_only=True)
class CheckpointFormat:
    """A name of `WEIGHT_FORMATS`, None for one that servesim does not know, and the parts left in the plain dtype."""

    name: str | None
    keep: tuple[str, ...] = ()
    asked: str = ""  # as the checkpoint calls it


def plain_dtype(fields: Fields) -> str:
    """Return the dtype of weights that are not quantised: BF16 where the file says nothing."""
    dtype = fields.text("torch_dtype", "dtype", default="bfloat16").removeprefix("torch.")
    if dtype not in _DTYPES:
        raise InputError(f"{fields.path}: torch_dtype is {dtype[:40]!r}, must be one of {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def checkpoint_format(quantization: Fields | None) -> CheckpointFormat | None:
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
    return CheckpointFormat(name=name, keep=tuple(_kept(ignored)), asked=method or algorithm)


def _compressed(quantization: Fields) -> str | None:
    """Return the format of the first group of weights of compressed-tensors."""
    groups = quantization.part("config_groups")
    for group in (groups.values if groups else {}).values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            continue
        fields = Fields(weights, f"{quantization.path}: weights")
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
