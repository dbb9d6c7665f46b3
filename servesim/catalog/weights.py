"""How weights are written down: bits per weight with their scales, which weights stay in 16 bits, what multiplies them.

A format is a way to store a number (`bf16`, `q4_k`), a recipe for a checkpoint (`awq`, `fp8`: embeddings, head and
routers stay as they were), or a mixture of such in one GGUF file (`q4_k_m`). Nothing here knows a model.
"""

from __future__ import annotations

from dataclasses import dataclass

EVERY, LINEAR, EXPERTS = "every", "linear", "experts"
"""Which weights a format covers: all; all but embeddings, head and routers; the routed experts alone."""


@dataclass(slots=True, frozen=True, kw_only=True)
class WeightFormat:
    """One way to write weights. `bits` counts scales and zero points, spread over the weights they belong to."""

    name: str
    bits: float
    covers: str = EVERY
    compute: str = "bf16"  # the arithmetic of a kernel at its best: bf16, fp8, int8 or fp4
    source: str

    @property
    def bytes(self) -> float:
        """Bytes of one weight."""
        return self.bits / 8


# ggml's types by their number in a GGUF file: name, weights in a block, bytes of a block. Source: ggml/include/ggml.h
# and ggml/src/ggml-common.h. Numbers that are missing were never in use or have been withdrawn.
GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 36),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1),
    25: ("i16", 1, 2),
    26: ("i32", 1, 4),
    27: ("i64", 1, 8),
    28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
    40: ("nvfp4", 64, 36),
    41: ("q1_0", 128, 18),
}

# A whole file of Llama-3.1-8B: each type gives the more sensitive tensors more bits, so another model's file differs by
# a per cent or two, and a small model with a large vocabulary by more. A file's own header is exact.
_MIXTURES = {
    "q2_k_s": 2.9697,
    "q3_k_s": 3.6429,
    "q3_k_m": 3.9960,
    "q3_k_l": 4.2979,
    "q4_k_s": 4.6672,
    "q4_k_m": 4.8944,
    "q5_k_s": 5.5704,
    "q5_k_m": 5.7036,
    "iq2_m": 2.9294,
    "iq3_xs": 3.4977,
    "iq3_m": 3.7628,
}

_FORMATS = (
    WeightFormat(name="fp32", bits=32, source="IEEE 754"),
    WeightFormat(name="bf16", bits=16, source="an FP32 without its lower 16 bits"),
    WeightFormat(name="fp16", bits=16, source="IEEE 754"),
    WeightFormat(
        name="fp8",
        bits=8,
        covers=LINEAR,
        compute="fp8",
        source="OCP FP8 E4M3; scales, under 0.3 %, are left out",
    ),
    WeightFormat(
        name="int8", bits=8, covers=LINEAR, compute="int8", source="W8A8 of llm-compressor: a scale per channel"
    ),
    WeightFormat(
        name="awq",
        bits=4 + (16 + 4) / 128,
        covers=LINEAR,
        source="AutoAWQ: FP16 scale, 4-bit zero per 128 (arXiv:2306.00978)",
    ),
    WeightFormat(
        name="gptq",
        bits=4 + (16 + 4) / 128,
        covers=LINEAR,
        source="GPTQModel: FP16 scale, 4-bit zero per 128 (2210.17323)",
    ),
    WeightFormat(
        name="int4",
        bits=4 + 16 / 32,
        covers=LINEAR,
        source="compressed-tensors: a 16-bit scale per 32 weights",
    ),
    WeightFormat(
        name="nf4",
        bits=4 + 32 / 64,
        covers=LINEAR,
        source="bitsandbytes: an FP32 scale per 64 (arXiv:2305.14314)",
    ),
    WeightFormat(
        name="nvfp4",
        bits=4 + 8 / 16,
        covers=LINEAR,
        compute="fp4",
        source="NVIDIA ModelOpt: an FP8 scale per 16 weights",
    ),
    WeightFormat(
        name="mxfp4",
        bits=4 + 8 / 32,
        covers=EXPERTS,
        compute="fp4",
        source="OCP Microscaling 1.0: an 8-bit exponent per 32 weights",
    ),
    *(
        WeightFormat(name=name, bits=8 * size / block, source="ggml/src/ggml-common.h")
        for name, block, size in GGML_TYPES.values()
        if name.startswith(("q", "iq", "tq"))
    ),
    *(
        WeightFormat(name=name, bits=bits, source="llama.cpp tools/quantize/README.md, Llama-3.1-8B")
        for name, bits in _MIXTURES.items()
    ),
)

WEIGHT_FORMATS: dict[str, WeightFormat] = {form.name: form for form in _FORMATS}
WEIGHT_BYTES: dict[str, float] = {name: form.bytes for name, form in WEIGHT_FORMATS.items()}

# Bytes of one number in the KV cache. Blocks of ggml carry their scale; vLLM's FP8 scales are per tensor.
KV_BYTES: dict[str, float] = {
    "fp32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int8": 1,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
    "nvfp4": 36 / 64,
}
