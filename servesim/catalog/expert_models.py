"""Presets of mixtures of experts, and of models that mix kinds of attention. Figures as `models` says."""

from __future__ import annotations

from dataclasses import replace

from servesim.catalog.model import Attention, Experts, Model


def _experts_in_mxfp4(model: Model, file_gib: float) -> Model:
    """Return `model` as OpenAI ships it: experts in MXFP4, the rest in BF16, and the bytes of its own file."""
    return replace(model.quantized("mxfp4"), file_bytes=round(file_gib * 2**30))


# One latent of kv_lora_rank 512 and a rotary key of 64 per token and layer; linear layers in FP8, the rest in BF16.
_DEEPSEEK_V3 = Model(
    name="deepseek-v3",
    params=671_026_419_200,
    active_params=37_550_000_000,
    attention=(Attention(layers=61, latent_dim=512 + 64),),
    heads=128,
    hidden=7168,
    intermediate=18432,
    vocab=129280,
    experts=Experts(layers=58, count=256, top_k=8, intermediate=2048, shared=1),
    source="deepseek-ai/DeepSeek-V3 config.json, without the MTP layer",
    date="2024-12",
).quantized("fp8")

_QWEN3_235B = Model(
    name="qwen3-235b-a22b",
    params=235_093_634_560,
    active_params=22_190_000_000,
    attention=(Attention(layers=94, kv_heads=4, head_dim=128),),
    heads=64,
    hidden=4096,
    vocab=151936,
    experts=Experts(layers=94, count=128, top_k=8, intermediate=1536),
    source="Qwen/Qwen3-235B-A22B config.json",
    date="2025-04",
)

EXPERT_MODELS = (
    # Qwen
    Model(
        name="qwen3-30b-a3b",
        params=30_532_122_624,
        active_params=3_350_000_000,
        attention=(Attention(layers=48, kv_heads=4, head_dim=128),),
        heads=32,
        hidden=2048,
        vocab=151936,
        experts=Experts(layers=48, count=128, top_k=8, intermediate=768),
        source="Qwen/Qwen3-30B-A3B config.json",
        date="2025-04",
    ),
    _QWEN3_235B,
    replace(_QWEN3_235B.quantized("fp8"), name="qwen3-235b-a22b-fp8", source="Qwen/Qwen3-235B-A22B-FP8 config.json"),
    # Three layers of four are a gated delta net, whose state has one size: 16 bits a number, 32 where it is asked for.
    Model(
        name="qwen3-next-80b-a3b",
        params=79_674_292_992,
        active_params=3_874_831_104,
        attention=(
            Attention(layers=12, kv_heads=2, head_dim=256),
            Attention(layers=36, state_bytes=32 * 128 * 128 * 2 + (2 * 2048 + 4096) * 3 * 2),
        ),
        heads=16,
        hidden=2048,
        vocab=151936,
        experts=Experts(layers=48, count=512, top_k=10, intermediate=512, shared=1),
        source="Qwen/Qwen3-Next-80B-A3B-Instruct config.json, without the MTP layer",
        date="2025-09",
    ),
    Model(
        name="qwen3.5-397b-a17b",
        params=396_346_104_576,
        active_params=17_348_795_136,
        attention=(
            Attention(layers=15, kv_heads=2, head_dim=256),
            Attention(layers=45, state_bytes=64 * 128 * 128 * 4 + (2 * 2048 + 8192) * 3 * 2),
        ),
        heads=32,
        hidden=4096,
        vocab=248320,
        experts=Experts(layers=60, count=512, top_k=10, intermediate=1024, shared=1),
        source="Qwen/Qwen3.5-397B-A17B config.json, without the vision tower and the MTP layer",
        date="2026-02",
    ),
    # OpenAI
    _experts_in_mxfp4(
        Model(
            name="gpt-oss-20b",
            params=20_914_757_184,
            active_params=3_610_000_000,
            attention=(
                Attention(layers=12, kv_heads=8, head_dim=64),
                Attention(layers=12, kv_heads=8, head_dim=64, window=128),
            ),
            heads=64,
            hidden=2880,
            vocab=201088,
            experts=Experts(layers=24, count=32, top_k=4, intermediate=2880),
            source="openai/gpt-oss-20b config.json; model card arXiv:2508.10925, table 1 (checkpoint 12.8 GiB)",
            date="2025-08",
        ),
        12.8,
    ),
    _experts_in_mxfp4(
        Model(
            name="gpt-oss-120b",
            params=116_829_156_672,
            active_params=5_130_000_000,
            attention=(
                Attention(layers=18, kv_heads=8, head_dim=64),
                Attention(layers=18, kv_heads=8, head_dim=64, window=128),
            ),
            heads=64,
            hidden=2880,
            vocab=201088,
            experts=Experts(layers=36, count=128, top_k=4, intermediate=2880),
            source="openai/gpt-oss-120b config.json; model card arXiv:2508.10925, table 1 (checkpoint 60.8 GiB)",
            date="2025-08",
        ),
        60.8,
    ),
    # Mistral
    Model(
        name="mixtral-8x7b",
        params=46_702_792_704,
        active_params=12_880_000_000,
        attention=(Attention(layers=32, kv_heads=8, head_dim=128),),
        heads=32,
        hidden=4096,
        vocab=32000,
        experts=Experts(layers=32, count=8, top_k=2, intermediate=14336),
        source="mistralai/Mixtral-8x7B-v0.1 config.json",
        date="2023-12",
    ),
    # DeepSeek, and models of its shape
    _DEEPSEEK_V3,
    replace(_DEEPSEEK_V3, name="deepseek-r1", source="deepseek-ai/DeepSeek-R1 config.json, as V3", date="2025-01"),
    Model(
        name="deepseek-v2-lite",
        params=15_706_484_224,
        active_params=2_660_000_000,
        attention=(Attention(layers=27, latent_dim=512 + 64),),
        heads=16,
        hidden=2048,
        intermediate=10944,
        vocab=102400,
        experts=Experts(layers=26, count=64, top_k=6, intermediate=1408, shared=2),
        source="deepseek-ai/DeepSeek-V2-Lite config.json",
        date="2024-05",
    ),
    Model(
        name="kimi-k2",
        params=1_026_408_209_408,
        active_params=32_861_477_888,
        attention=(Attention(layers=61, latent_dim=512 + 64),),
        heads=64,
        hidden=7168,
        intermediate=18432,
        vocab=163840,
        experts=Experts(layers=60, count=384, top_k=8, intermediate=2048, shared=1),
        source="moonshotai/Kimi-K2-Instruct config.json",
        date="2025-07",
    ).quantized("fp8"),
    Model(
        name="kimi-k2.5",
        params=1_026_408_209_408,
        active_params=32_861_477_888,
        attention=(Attention(layers=61, latent_dim=512 + 64),),
        heads=64,
        hidden=7168,
        intermediate=18432,
        vocab=163840,
        experts=Experts(layers=60, count=384, top_k=8, intermediate=2048, shared=1),
        source="moonshotai/Kimi-K2.5 config.json, without the vision tower; experts in INT4",
        date="2026-01",
    ).quantized("int4", keep=("attention", "mlp", "shared")),
    Model(
        name="glm-5",
        params=743_911_199_232,
        active_params=41_784_709_632,
        attention=(Attention(layers=78, latent_dim=512 + 64, index_bytes=128 + 4),),
        heads=64,
        hidden=6144,
        intermediate=12288,
        vocab=154880,
        experts=Experts(layers=75, count=256, top_k=8, intermediate=2048, shared=1),
        source="zai-org/GLM-5 config.json, without the MTP layer; sparse attention with an indexer (arXiv:2602.15763)",
        date="2026-02",
    ),
    # MiniMax
    Model(
        name="minimax-m2.5",
        params=228_689_304_576,
        active_params=11_030_092_800,
        attention=(Attention(layers=62, kv_heads=8, head_dim=128),),
        heads=48,
        hidden=3072,
        vocab=200064,
        experts=Experts(layers=62, count=256, top_k=8, intermediate=1536),
        source="MiniMaxAI/MiniMax-M2.5 config.json, without the MTP modules (M2 has the same shape)",
        date="2026-02",
    ).quantized("fp8"),
    # Meta: three layers of four attend within chunks of 8,192 tokens
    Model(
        name="llama-4-scout",
        params=107_769_861_120,
        active_params=17_172_894_720,
        attention=(
            Attention(layers=12, kv_heads=8, head_dim=128),
            Attention(layers=36, kv_heads=8, head_dim=128, window=8192),
        ),
        heads=40,
        hidden=5120,
        vocab=202048,
        experts=Experts(layers=48, count=16, top_k=1, intermediate=8192, shared=1),
        source="meta-llama/Llama-4-Scout-17B-16E config.json, without the vision tower",
        date="2025-04",
    ),
)
