"""What vLLM itself would choose for a device: the limits and switches that `--like-vllm` fills in.

Source: vllm/engine/arg_utils.py (get_batch_defaults, _set_default_max_num_seqs_and_batched_tokens_args) and
vllm/config/cache.py as of 0.32 and 0.18; observed where a server could be run, read from the source elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from servesim.catalog.hardware import Hardware
from servesim.errors import InputError
from servesim.units import GIB, suggest

USAGES = ("server", "llm-class")  # `vllm serve`, and the Python class `LLM`


@dataclass(slots=True, frozen=True, kw_only=True)
class VllmDefaults:
    """vLLM's own choice for one device, before anything that the user sets."""

    max_num_batched_tokens: int
    max_num_seqs: int
    gpu_memory_utilization: float
    block_size: int
    prefix_caching: bool
    async_scheduling: bool


@dataclass(slots=True, frozen=True, kw_only=True)
class _Version:
    """What a range of versions changed: utilisation 0.92 since 0.20, the 160 GiB row since 0.28."""

    gpu_memory_utilization: float
    has_160_gib_row: bool


_VERSIONS = {
    "vllm-0.32": _Version(gpu_memory_utilization=0.92, has_160_gib_row=True),
    "vllm-0.18": _Version(gpu_memory_utilization=0.90, has_160_gib_row=False),
}


def vllm_defaults(
    hardware: Hardware, rules: str = "vllm-0.32", *, tensor_parallel: int = 1, usage: str = "server"
) -> VllmDefaults:
    """Return the defaults of vLLM under `rules` on `hardware`; `tensor_parallel` counts on CPUs only.

    A unified-memory device counts as a CPU: that is the backend vLLM has for it.
    """
    if rules not in _VERSIONS:
        raise suggest("rules", rules, _VERSIONS)
    if usage not in USAGES:
        raise suggest("usage", usage, USAGES)
    if tensor_parallel < 1:
        raise InputError(f"tensor_parallel_size is {tensor_parallel}, must be 1 or more")
    version = _VERSIONS[rules]
    is_gpu = hardware.kind == "gpu"
    tokens, seqs = _batch_defaults(hardware, version, usage == "server", tensor_parallel)
    return VllmDefaults(
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        gpu_memory_utilization=version.gpu_memory_utilization,
        block_size=16 if is_gpu else 128,
        prefix_caching=True,
        async_scheduling=is_gpu,  # on by default on GPUs by 0.14, always off on CPUs
    )


def _batch_defaults(hardware: Hardware, version: _Version, server: bool, world_size: int) -> tuple[int, int]:
    """Return (max_num_batched_tokens, max_num_seqs) by the device's memory; an A100 of any size is a small device."""
    if hardware.kind != "gpu":
        return (2048 * world_size, 128 * world_size) if server else (4096 * world_size, 256 * world_size)
    if hardware.memory_bytes >= 160 * GIB and version.has_160_gib_row:
        return 16384, 1024
    if hardware.memory_bytes >= 70 * GIB and "a100" not in hardware.name.lower():
        return (8192, 1024) if server else (16384, 1024)
    return (2048, 256) if server else (8192, 256)
