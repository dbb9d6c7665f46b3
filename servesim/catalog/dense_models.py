"""Dense model presets: one feed-forward in every layer. Figures as `models` says."""

from __future__ import annotations

from dataclasses import replace

from servesim.catalog.model import Attention, Model


def _dense(
    name: str,
    params: float,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    hidden: int,
    intermediate: int,
    vocab: int,
    *,
    source: str,
    date: str,
    tied: bool = False,
    sliding: int = 0,
    window: int | None = None,
    weight_dtype: str = "bf16",
) -> Model:
    """Return a model with the same feed-forward in every layer, `sliding` of the layers with a window."""
    attention = [Attention(layers=layers - sliding, kv_heads=kv_heads, head_dim=head_dim)]
    if sliding:
        attention.append(Attention(layers=sliding, kv_heads=kv_heads, head_dim=head_dim, window=window))
    return Model(
        name=name,
        params=round(params),
        attention=tuple(attention),
        heads=heads,
        hidden=hidden,
        intermediate=intermediate,
        vocab=vocab,
        tied_embeddings=tied,
        weight_dtype=weight_dtype,
        source=source,
        date=date,
    )


_LLAMA_8B = _dense(
    *("llama-3.1-8b", 8.03e9, 32, 32, 8, 128, 4096, 14336, 128256),
    source="meta-llama/Llama-3.1-8B config.json and model card",
    date="2024-07",
)
_SMOLLM2 = _dense(
    *("smollm2-135m", 134.5e6, 30, 9, 3, 64, 576, 1536, 49152),
    tied=True,
    source="HuggingFaceTB/SmolLM2-135M config.json",
    date="2024-11",
)

DENSE_MODELS = (
    _LLAMA_8B,
    replace(_LLAMA_8B, name="llama-3.1-8b-fp8", weight_dtype="fp8", source=f"{_LLAMA_8B.source}; every weight in FP8"),
    _dense(
        *("llama-3.1-70b", 70.6e9, 80, 64, 8, 128, 8192, 28672, 128256),
        source="meta-llama/Llama-3.1-70B config.json and model card (3.3 has the same shape)",
        date="2024-07",
    ),
    _dense(
        *("llama-3.1-405b", 405.85e9, 126, 128, 8, 128, 16384, 53248, 128256),
        source="meta-llama/Llama-3.1-405B config.json and model card",
        date="2024-07",
    ),
    _dense(
        *("llama-3.2-1b", 1_235_814_400, 16, 32, 8, 64, 2048, 8192, 128256),
        tied=True,
        source="meta-llama/Llama-3.2-1B config.json",
        date="2024-09",
    ),
    _dense(
        *("llama-3.2-3b", 3_212_749_824, 28, 24, 8, 128, 3072, 8192, 128256),
        tied=True,
        source="meta-llama/Llama-3.2-3B config.json",
        date="2024-09",
    ),
    _SMOLLM2,
    replace(_SMOLLM2, name="smollm2-135m-q8_0", weight_dtype="q8_0", source=f"{_SMOLLM2.source}; GGUF Q8_0"),
    replace(_SMOLLM2, name="smollm2-135m-q4_1", weight_dtype="q4_1", source=f"{_SMOLLM2.source}; GGUF Q4_1"),
    _dense(
        *("smollm2-360m", 361_821_120, 32, 15, 5, 64, 960, 2560, 49152),
        tied=True,
        source="HuggingFaceTB/SmolLM2-360M config.json",
        date="2024-11",
    ),
    _dense(
        *("smollm2-1.7b", 1_711_376_384, 24, 32, 32, 64, 2048, 8192, 49152),
        tied=True,
        source="HuggingFaceTB/SmolLM2-1.7B config.json",
        date="2024-11",
    ),
    Model(
        name="tinystories-gpt-47m",
        params=46_742_528,
        attention=(Attention(layers=12, kv_heads=8, head_dim=64),),
        heads=8,
        hidden=512,
        intermediate=2048,
        vocab=16384,
        tied_embeddings=True,
        source="a GPT-2 of 12 layers and 512 channels with 1,024 positions, "
        "the size of model that arXiv:2305.07759 trains on TinyStories",
        date="2023-05",
    ),
    # Qwen
    _dense(
        *("qwen3-0.6b", 596_049_920, 28, 16, 8, 128, 1024, 3072, 151936),
        tied=True,
        source="Qwen/Qwen3-0.6B config.json",
        date="2025-04",
    ),
    _dense(
        *("qwen3-1.7b", 1_720_574_976, 28, 16, 8, 128, 2048, 6144, 151936),
        tied=True,
        source="Qwen/Qwen3-1.7B config.json",
        date="2025-04",
    ),
    _dense(
        *("qwen3-4b", 4_022_468_096, 36, 32, 8, 128, 2560, 9728, 151936),
        tied=True,
        source="Qwen/Qwen3-4B config.json",
        date="2025-04",
    ),
    _dense(
        *("qwen3-8b", 8_190_735_360, 36, 32, 8, 128, 4096, 12288, 151936),
        source="Qwen/Qwen3-8B config.json",
        date="2025-04",
    ),
    _dense(
        *("qwen3-14b", 14_768_307_200, 40, 40, 8, 128, 5120, 17408, 151936),
        source="Qwen/Qwen3-14B config.json",
        date="2025-04",
    ),
    _dense(
        *("qwen3-32b", 32_762_123_264, 64, 64, 8, 128, 5120, 25600, 151936),
        source="Qwen/Qwen3-32B config.json",
        date="2025-04",
    ),
    _dense(
        *("qwen2.5-7b", 7_615_616_512, 28, 28, 4, 128, 3584, 18944, 152064),
        source="Qwen/Qwen2.5-7B config.json",
        date="2024-09",
    ),
    _dense(
        *("qwen2.5-72b", 72_706_203_648, 80, 64, 8, 128, 8192, 29568, 152064),
        source="Qwen/Qwen2.5-72B config.json",
        date="2024-09",
    ),
    # Mistral
    _dense(
        *("mistral-7b", 7_248_023_552, 32, 32, 8, 128, 4096, 14336, 32768),
        source="mistralai/Mistral-7B-v0.3 config.json",
        date="2024-05",
    ),
    _dense(
        *("mistral-nemo-12b", 12_247_782_400, 40, 32, 8, 128, 5120, 14336, 131072),
        source="mistralai/Mistral-Nemo-Base-2407 config.json",
        date="2024-07",
    ),
    _dense(
        *("mistral-small-24b", 23_572_403_200, 40, 32, 8, 128, 5120, 32768, 131072),
        source="mistralai/Mistral-Small-24B-Base-2501 config.json",
        date="2025-01",
    ),
    # Google
    _dense(
        *("gemma-2-9b", 9_241_705_984, 42, 16, 8, 256, 3584, 14336, 256000),
        tied=True,
        sliding=21,
        window=4096,
        source="google/gemma-2-9b config.json",
        date="2024-06",
    ),
    _dense(
        *("gemma-3-1b", 999_885_952, 26, 4, 1, 256, 1152, 6912, 262144),
        tied=True,
        sliding=22,
        window=512,
        source="google/gemma-3-1b-pt config.json",
        date="2025-03",
    ),
    _dense(
        *("gemma-3-4b", 3_880_263_168, 34, 8, 4, 256, 2560, 10240, 262208),
        tied=True,
        sliding=29,
        window=1024,
        source="google/gemma-3-4b-pt config.json, without the vision tower",
        date="2025-03",
    ),
    _dense(
        *("gemma-3-12b", 11_766_034_176, 48, 16, 8, 256, 3840, 15360, 262208),
        tied=True,
        sliding=40,
        window=1024,
        source="google/gemma-3-12b-pt config.json, without the vision tower",
        date="2025-03",
    ),
    _dense(
        *("gemma-3-27b", 27_009_346_304, 62, 32, 16, 128, 5376, 21504, 262208),
        tied=True,
        sliding=52,
        window=1024,
        source="google/gemma-3-27b-pt config.json, without the vision tower",
        date="2025-03",
    ),
    _dense(
        *("phi-4", 14_659_507_200, 40, 40, 10, 128, 5120, 17920, 100352),
        source="microsoft/phi-4 config.json",
        date="2024-12",
    ),
)
