"""What gives more of each budget: the knobs of the three servers, in the order in which to turn them.

The same table serves a plan ("what would have to change") and a diagnosis ("which knob first").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from servesim.analysis.binding import BANDWIDTH, COMPUTE, KV_BLOCKS, SEQUENCES, STEP_TOKENS
from servesim.engine.server import Server

Turn = Callable[[Server], dict[str, Any]]
"""Takes a simulated server, returns the options that change when the knob is turned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """How to get more of one budget. Knobs are the servers' own flags; None: that server has no such knob.

    `turn` is the same in the simulator, None where the knob is not one of its server's.
    """

    change: str
    vllm: str | None
    llama_cpp: str | None
    sglang: str | None
    turn: Turn | None = None

    def knobs(self) -> dict[str, str | None]:
        return {"vllm": self.vllm, "llama.cpp": self.llama_cpp, "sglang": self.sglang}


def _share_prefixes(server: Server) -> dict[str, Any]:
    return {"prefix_caching": True}


def _narrow_kv(server: Server) -> dict[str, Any]:
    return {"kv_cache_dtype": "fp8", "kv_tokens": _twice(server.spec.kv_tokens)}


def _double_devices(server: Server) -> dict[str, Any]:
    return {"tensor_parallel_size": 2 * server.spec.tensor_parallel_size}


def _double_seats(server: Server) -> dict[str, Any]:
    seats = 2 * server.config.max_num_seqs
    return {"max_num_seqs": seats, "max_num_batched_tokens": max(seats, server.config.max_num_batched_tokens)}


def _double_step_tokens(server: Server) -> dict[str, Any]:
    return {"max_num_batched_tokens": 2 * server.config.max_num_batched_tokens}


def _quarter_step_tokens(server: Server) -> dict[str, Any]:
    config = server.config
    return {"max_num_batched_tokens": max(256, config.max_num_seqs, config.max_num_batched_tokens // 4)}


def _narrow_weights(server: Server) -> dict[str, Any]:
    return {"quantization": "fp8"}


def _twice(value: int | None) -> int | None:
    return None if value is None else 2 * value


MORE_SEQUENCES = Remedy(
    change="more sequences at once",
    vllm="--max-num-seqs, higher",
    llama_cpp="--parallel, higher, with --kv-unified or a --ctx-size that grows with it",
    sglang="--max-running-requests, higher",
    turn=_double_seats,
)
MORE_STEP_TOKENS = Remedy(
    change="more tokens per step",
    vllm="--max-num-batched-tokens, higher",
    llama_cpp="--batch-size and --ubatch-size, higher",
    sglang="--chunked-prefill-size, higher",
    turn=_double_step_tokens,
)
FEWER_STEP_TOKENS = Remedy(
    change="fewer tokens per step, so that prompts delay the others' tokens less",
    vllm="--max-num-batched-tokens, lower",
    llama_cpp="--batch-size, lower",
    sglang="--chunked-prefill-size, lower",
    turn=_quarter_step_tokens,
)
PREFIX_CACHING = Remedy(
    change="share the KV of equal prefixes",
    vllm="--enable-prefix-caching",
    llama_cpp="--cache-prompt (on by default) and --cache-reuse: per slot, so keep a user on a slot (id_slot)",
    sglang="leave out --disable-radix-cache",
    turn=_share_prefixes,
)
MORE_KV = Remedy(
    change="a larger KV cache",
    vllm="--gpu-memory-utilization, higher; --kv-cache-dtype fp8; quantised weights",
    llama_cpp="--ctx-size, higher; --cache-type-k q8_0 --cache-type-v q8_0",
    sglang="--mem-fraction-static, higher; --kv-cache-dtype fp8_e4m3",
    turn=_narrow_kv,
)
LESS_READING = Remedy(
    change="fewer bytes to read per step",
    vllm="--quantization (fp8, awq) or --tensor-parallel-size, higher",
    llama_cpp="a model file with fewer bits (Q4_K_M)",
    sglang="--quantization or --tp-size, higher",
    turn=_narrow_weights,
)
LESS_ARITHMETIC = Remedy(
    change="less arithmetic per device",
    vllm="another replica, or --tensor-parallel-size, higher; --quantization fp8 where the device computes in it",
    llama_cpp="another server, or a faster device",
    sglang="another replica, or --tp-size, higher",
    turn=_double_devices,
)

MORE_LOAD = Remedy(
    change="more load from the client",
    vllm="none: the server waits for requests; raise the client's concurrency or rate",
    llama_cpp="none: raise the client's concurrency",
    sglang="none: raise the client's concurrency",
)
A_FASTER_CLIENT = Remedy(
    change="a load generator that keeps up",
    vllm="none: give the load generator more --processes, or another machine",
    llama_cpp="none: the same",
    sglang="none: the same",
)
LONGER_CONTEXT = Remedy(
    change="room for longer requests",
    vllm="--max-model-len, higher",
    llama_cpp="--ctx-size, higher, or fewer --parallel, or --kv-unified: a slot has ctx-size / parallel tokens",
    sglang="--context-length, higher",
)
SHORTER_QUEUE_OR_MORE_SERVERS = Remedy(
    change="more replicas; a longer queue only turns refusals into waiting",
    vllm="another replica; not --max-num-queued-reqs",
    llama_cpp="another server",
    sglang="another replica; not --max-queued-requests",
)

REMEDIES: dict[str, Remedy] = {
    SEQUENCES: MORE_SEQUENCES,
    STEP_TOKENS: MORE_STEP_TOKENS,
    KV_BLOCKS: MORE_KV,
    COMPUTE: LESS_ARITHMETIC,
    BANDWIDTH: LESS_READING,
}
"""The first remedy of each budget of `binding`."""
