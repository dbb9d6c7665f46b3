"""What gives more of each budget: the knobs of the three servers, in the order in which to turn them.

The same table serves a plan ("what would have to change") and a diagnosis ("which knob first").
"""

from __future__ import annotations

from dataclasses import dataclass

from servesim.analysis.binding import BANDWIDTH, COMPUTE, KV_BLOCKS, SEQUENCES, STEP_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """How to get more of one budget. Knobs are the servers' own flags; None: that server has no such knob."""

    change: str
    vllm: str | None
    llama_cpp: str | None
    sglang: str | None

    def knobs(self) -> dict[str, str | None]:
        return {"vllm": self.vllm, "llama.cpp": self.llama_cpp, "sglang": self.sglang}


MORE_SEQUENCES = Remedy(
    change="more sequences at once",
    vllm="--max-num-seqs, higher",
    llama_cpp="--parallel, higher, with --kv-unified or a --ctx-size that grows with it",
    sglang="--max-running-requests, higher",
)
MORE_STEP_TOKENS = Remedy(
    change="more tokens per step",
    vllm="--max-num-batched-tokens, higher",
    llama_cpp="--batch-size and --ubatch-size, higher",
    sglang="--chunked-prefill-size, higher",
)
FEWER_STEP_TOKENS = Remedy(
    change="fewer tokens per step, so that prompts delay the others' tokens less",
    vllm="--max-num-batched-tokens, lower",
    llama_cpp="--batch-size, lower",
    sglang="--chunked-prefill-size, lower",
)
PREFIX_CACHING = Remedy(
    change="share the KV of equal prefixes",
    vllm="--enable-prefix-caching",
    llama_cpp="--cache-prompt (on by default) and --cache-reuse: per slot, so keep a user on a slot (id_slot)",
    sglang="leave out --disable-radix-cache",
)
MORE_KV = Remedy(
    change="a larger KV cache",
    vllm="--gpu-memory-utilization, higher; --kv-cache-dtype fp8; quantised weights",
    llama_cpp="--ctx-size, higher; --cache-type-k q8_0 --cache-type-v q8_0",
    sglang="--mem-fraction-static, higher; --kv-cache-dtype fp8_e4m3",
)
LESS_READING = Remedy(
    change="fewer bytes to read per step",
    vllm="--quantization (fp8, awq) or --tensor-parallel-size, higher",
    llama_cpp="a model file with fewer bits (Q4_K_M)",
    sglang="--quantization or --tp-size, higher",
)
LESS_ARITHMETIC = Remedy(
    change="less arithmetic per device",
    vllm="another replica, or --tensor-parallel-size, higher; --quantization fp8 where the device computes in it",
    llama_cpp="another server, or a faster device",
    sglang="another replica, or --tp-size, higher",
)

REMEDIES: dict[str, Remedy] = {
    SEQUENCES: MORE_SEQUENCES,
    STEP_TOKENS: MORE_STEP_TOKENS,
    KV_BLOCKS: MORE_KV,
    COMPUTE: LESS_ARITHMETIC,
    BANDWIDTH: LESS_READING,
}
"""The first remedy of each budget of `binding`."""
