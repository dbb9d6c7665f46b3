"""Devices: datasheet peaks, memory as the driver reports it, and the efficiency a server reaches of the peaks.

A preset is one `Hardware` with its source and date. `tflops` is dense BF16 (no sparsity, FP32 accumulation), the
figure that datasheets print at half of their large print. `memory_gib` is what nvidia-smi shows, not the marketing GB.
"""

from __future__ import annotations

import os
from typing import Any

from servesim.catalog.device import Hardware as Hardware
from servesim.catalog.power import POWER
from servesim.units import suggest

DEFAULT_HARDWARE = "h100-sxm-80gb"


def find_hardware(name: str) -> Hardware:
    """Return the preset `name`; raise `InputError` with the nearest name when there is none."""
    if name not in HARDWARE:
        raise suggest("hardware", name, HARDWARE)
    return HARDWARE[name]


def named_hardware(name: str) -> str | None:
    """Return the preset of a device as others write it, without its memory: `h100_sxm` is h100-sxm-80gb."""
    wanted = name.lower().replace("_", "-").replace(" ", "-")
    return next((preset for preset in HARDWARE if wanted and f"{preset}-".startswith(f"{wanted}-")), None)


def load_hardware(name: str) -> Hardware:
    """Return the preset `name`, or the device in the JSON file at the path `name` (see `hardware_file`)."""
    if name in HARDWARE or not (name.endswith(".json") or os.sep in name):
        return find_hardware(name)
    from servesim.catalog.hardware_file import read_hardware

    return read_hardware(name)


def _device(
    name: str, memory_gib: float, bandwidth_gb_s: float, tflops: float, *, source: str, date: str, **rest: Any
) -> Hardware:
    """Return a device by the first columns of the README's table: name, GiB, GB/s, TFLOP/s; its power from `POWER`."""
    power = POWER.get(name)
    if power is not None:
        rest |= {"peak_w": power.peak_w, "idle_w": power.idle_w, "power_source": power.source}
    return Hardware(
        name=name,
        memory_gib=memory_gib,
        bandwidth_gb_s=bandwidth_gb_s,
        tflops=tflops,
        source=source,
        date=date,
        **rest,
    )


_PRESETS = (
    # NVIDIA data center, HBM
    _device(
        *("h100-sxm-80gb", 79.6, 3350, 989),
        fp8_tflops=1979,
        bus_gb_s=450,
        source="NVIDIA H100 Tensor Core GPU datasheet (SXM5, without sparsity); nvidia-smi 81,559 MiB",
        date="2023",
    ),
    _device(
        *("h100-pcie-80gb", 79.6, 2000, 756),
        fp8_tflops=1513,
        bus_gb_s=64,
        source="NVIDIA H100 Tensor Core GPU datasheet (PCIe, without sparsity); nvidia-smi 81,559 MiB",
        date="2023",
    ),
    _device(
        *("h100-nvl-94gb", 93.6, 3900, 835),
        fp8_tflops=1671,
        bus_gb_s=300,
        source="NVIDIA H100 Tensor Core GPU datasheet (NVL, without sparsity); nvidia-smi 95,830 MiB",
        date="2024",
    ),
    _device(
        *("h200-sxm-141gb", 140.4, 4800, 989),
        fp8_tflops=1979,
        bus_gb_s=450,
        source="NVIDIA H200 Tensor Core GPU datasheet (SXM, without sparsity); nvidia-smi 143,771 MiB",
        date="2024",
    ),
    _device(
        *("b200-sxm-180gb", 179.06, 8000, 2250),
        fp8_tflops=4500,
        bus_gb_s=900,
        source="NVIDIA DGX B200 datasheet, an eighth of the system (without sparsity); nvidia-smi 183,359 MiB",
        date="2024",
    ),
    _device(
        *("b300-sxm-288gb", 268.59, 8000, 2250),
        fp8_tflops=4500,
        bus_gb_s=900,
        source="NVIDIA DGX B300 datasheet, an eighth of the system (without sparsity); nvidia-smi 275,040 MiB",
        date="2025",
    ),
    _device(
        *("gb200-186gb", 185.03, 8000, 2500),
        fp8_tflops=5000,
        bus_gb_s=900,
        source="NVIDIA GB200 NVL72 datasheet, one GPU (without sparsity); nvidia-smi 189,471 MiB",
        date="2024",
    ),
    _device(
        *("a100-sxm-80gb", 80.0, 2039, 312),
        bus_gb_s=300,
        source="NVIDIA A100 Tensor Core GPU datasheet (80GB SXM); nvidia-smi 81,920 MiB",
        date="2021",
    ),
    _device(
        *("a100-pcie-80gb", 80.0, 1935, 312),
        bus_gb_s=32,
        source="NVIDIA A100 Tensor Core GPU datasheet (80GB PCIe); nvidia-smi 81,920 MiB",
        date="2021",
    ),
    _device(
        *("a100-sxm-40gb", 40.0, 1555, 312),
        bus_gb_s=300,
        source="NVIDIA A100 Tensor Core GPU datasheet (40GB SXM); nvidia-smi 40,960 MiB",
        date="2020",
    ),
    # NVIDIA data center and workstation, GDDR
    _device(
        *("l4-24gb", 22.5, 300, 121),
        fp8_tflops=242,
        reserve_gib=1.5,
        bus_gb_s=32,
        source="NVIDIA L4 Tensor Core GPU datasheet (without sparsity); nvidia-smi 23,034 MiB",
        date="2023",
    ),
    _device(
        *("l40s-48gb", 44.99, 864, 362.05),
        fp8_tflops=733,
        bus_gb_s=32,
        source="NVIDIA L40S GPU datasheet (without sparsity); nvidia-smi 46,068 MiB",
        date="2023",
    ),
    _device(
        *("l40-48gb", 44.99, 864, 181.05),
        fp8_tflops=362,
        bus_gb_s=32,
        source="NVIDIA L40 GPU datasheet (without sparsity); nvidia-smi 46,068 MiB",
        date="2022",
    ),
    _device(
        *("a10-24gb", 22.49, 600, 125),
        reserve_gib=1.5,
        bus_gb_s=32,
        source="NVIDIA A10 Tensor Core GPU datasheet (without sparsity); nvidia-smi 23,028 MiB",
        date="2021",
    ),
    _device(
        *("a10g-24gb", 22.49, 600, 70),
        reserve_gib=1.5,
        bus_gb_s=32,
        source="NVIDIA A10G datasheet for AWS G5 (without sparsity); nvidia-smi 23,028 MiB",
        date="2021",
    ),
    _device(
        *("a40-48gb", 44.99, 696, 149.7),
        bus_gb_s=56.25,
        source="NVIDIA A40 datasheet (without sparsity; NVLink bridge); nvidia-smi 46,068 MiB",
        date="2020",
    ),
    _device(
        *("rtx-a6000-48gb", 47.99, 768, 154.8),
        bus_gb_s=56.25,
        source="NVIDIA RTX A6000 datasheet, GA102 whitepaper (without sparsity; NVLink bridge); nvidia-smi 49,140 MiB",
        date="2021",
    ),
    _device(
        *("rtx-6000-ada-48gb", 47.99, 960, 364.2),
        fp8_tflops=728.5,
        bus_gb_s=32,
        source="NVIDIA Ada GPU architecture whitepaper, RTX 6000 Ada (without sparsity); nvidia-smi 49,140 MiB",
        date="2023",
    ),
    _device(
        *("rtx-pro-6000-96gb", 95.59, 1792, 503.8),
        fp8_tflops=1007.6,
        bus_gb_s=64,
        source="NVIDIA RTX Blackwell PRO architecture whitepaper, Workstation Edition (without sparsity); "
        "nvidia-smi 97,887 MiB",
        date="2025",
    ),
    # NVIDIA GeForce: FP16/BF16 with FP32 accumulation runs at half of the tensor cores' rate
    _device(
        *("rtx-5090-32gb", 31.84, 1792, 209.5),
        fp8_tflops=419,
        reserve_gib=1.5,
        bus_gb_s=64,
        source="NVIDIA RTX Blackwell GPU architecture whitepaper (FP32 accumulation, without sparsity); "
        "nvidia-smi 32,607 MiB",
        date="2025",
    ),
    _device(
        *("rtx-4090-24gb", 23.99, 1008, 165.2),
        fp8_tflops=330.3,
        reserve_gib=1.578,
        bus_gb_s=32,
        source="NVIDIA Ada GPU architecture whitepaper (FP32 accumulation, without sparsity); nvidia-smi 24,564 MiB",
        date="2022",
        note="the reserve leaves llama-3.1-8b the 2,588 blocks that vLLM 0.19 found at utilisation 0.90",
    ),
    _device(
        *("rtx-3090-24gb", 23.58, 936, 71),
        reserve_gib=1.5,
        bus_gb_s=56.25,
        source="NVIDIA Ampere GA102 whitepaper (FP32 accumulation, without sparsity; NVLink bridge); "
        "memory as vLLM reports it",
        date="2021",
        note="nvidia-smi shows 24,576 MiB, of which CUDA gives out 23.58 GiB; "
        "vLLM's profiling was seen to leave llama-3.1-8b 3.81 GiB of KV, a reserve of 2.4524 GiB",
    ),
    _device(
        *("rtx-4050-laptop-6gb", 6.0, 192, 8.986),
        reserve_gib=0.5,
        source="NVIDIA GeForce RTX 4050 Laptop GPU; FP16 outside the tensor cores, as its owner measured against",
        date="2023",
        note="the tensor cores are faster than this figure",
    ),
    _device(
        *("t4-16gb", 15.0, 320, 65),
        reserve_gib=1.0,
        bus_gb_s=16,
        source="NVIDIA T4 product brief; nvidia-smi 15,360 MiB",
        date="2018",
        note="FP16: the device has no BF16 units",
    ),
    # AMD
    _device(
        *("mi300x-192gb", 191.98, 5300, 1307.4),
        fp8_tflops=2614.9,
        bus_gb_s=448,
        source="AMD Instinct MI300X datasheet (without sparsity; 7 links of 64 GB/s); rocm-smi 206,141,652,992 B",
        date="2023",
    ),
    _device(
        *("mi325x-256gb", 255.98, 6000, 1307.4),
        fp8_tflops=2614.9,
        bus_gb_s=448,
        source="AMD Instinct MI325X datasheet (without sparsity; 7 links of 64 GB/s)",
        date="2024",
    ),
    # What people have at home and on their desks
    _device(
        *("apple-m4-pro", 24, 273, 3.63),
        mfu=1.0,
        mbu=0.90,
        overhead_ms=3.23,
        reserve_gib=1.0,
        kind="unified",
        detailed={"mfu": 0.998, "mbu": 0.928, "overhead_ms": 3.40, "kv_mbu": 0.937, "ingest_ms": 14.0},
        source="Apple M4 Pro technical specifications (memory, bandwidth); Apple publishes no BF16 rate",
        date="2024",
        fitted="tflops, mbu and overhead_ms, once for an output scan and an input scan of Qwen3-0.6B BF16 through "
        "PyTorch: mean absolute error 4.4 % and 4.3 %, at worst 16.9 % (10 output tokens); a roofline has no term "
        "for a request's own start, and the scans cannot tell bandwidth from overhead; the detailed model's parameters "
        "come within 2.1 % and 3.4 %, at worst 7.5 %",
    ),
    _device(
        *("cpu-4vcpu", 16, 20, 0.1),
        mfu=1.0,
        mbu=1.0,
        reserve_gib=0.5,
        overhead_ms=2.0,
        kind="cpu",
        source="round figures for four virtual cores under llama.cpp: what a step reaches, not a peak",
        date="2025",
    ),
)

HARDWARE: dict[str, Hardware] = {preset.name: preset for preset in _PRESETS}
