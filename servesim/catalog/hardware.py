"""Devices: datasheet peaks, memory as the driver reports it, and the efficiency a server reaches of the peaks.

A preset is one `Hardware` with its source and date. `tflops` is dense BF16 (no sparsity, FP32 accumulation), the
figure that datasheets print at half of their large print. `memory_gib` is what nvidia-smi shows, not the marketing GB.
`peak_w` is the board or module power that a datasheet calls TDP, TGP or TBP. No datasheet has a figure at rest, and
nvidia-smi without a process shows less than a server at rest draws: a CUDA context alone holds the clocks up and adds
26-66 W. `idle_w` is therefore only taken from measurements with a context; elsewhere it is unknown, and no energy can
be told.

A device of one's own is a JSON file, which `--hardware FILE` reads and `calibrate` writes:

    {
      "schema": "servesim.device/1",
      "name": "rtx-4090-in-my-office",          the file's name where it is left out
      "base": "rtx-4090-24gb",                  a preset; what is not said here is the preset's
      "mfu": 0.61, "mbu": 0.87, "overhead_ms": 1.9,                the roofline's figures
      "detailed": {"mfu": 0.9, "mixed_kv": 1.7},                   parameters of `--cost-model detailed`
      "fitted": "from 2 runs: error 0.6 %",     how the figures came about, in a sentence
      "fitted_for": "detailed",                 the cost model to use where nobody names one
      "provenance": {...}                       anything: runs, residuals, versions; kept, not read
    }

Any other field of `Hardware` may stand beside them; without a base `memory_gib`, `bandwidth_gb_s` and `tflops` must. A
field that is not known is an error, so that a slip of the pen does not become a default; null stands for a field that
is left out, or for a device without FP8 units, a bus, known power or parameters.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from servesim.catalog.json_fields import JsonFields
from servesim.errors import InputError
from servesim.inputs import MAX_CONFIG_BYTES, read_object
from servesim.units import GIB, suggest

KINDS = ("gpu", "cpu", "unified")


@dataclass(slots=True, frozen=True, kw_only=True)
class Hardware:
    """One device. `bus_gb_s` is one device's bandwidth to its peers in one direction (NVLink, xGMI, else PCIe)."""

    name: str
    memory_gib: float
    bandwidth_gb_s: float
    tflops: float  # dense BF16
    fp8_tflops: float | None = None  # dense; None: the device has no FP8 units
    reserve_gib: float = 2.0  # activations, CUDA graphs and context: what a server keeps beside weights and KV
    mfu: float = 0.50  # share of tflops that a step reaches
    mbu: float = 0.75  # share of bandwidth_gb_s that a step reaches
    overhead_ms: float = 1.0  # host time of a step
    bus_gb_s: float | None = None
    peak_w: float | None = None  # power at full load; None: no source gives it
    idle_w: float | None = None  # power at rest, a model loaded
    power_source: str = ""
    kind: str = "gpu"
    source: str
    date: str
    detailed: Mapping[str, float] | None = None  # parameters of the cost model `detailed`, where they are not its own
    fitted: str = ""  # how efficiency figures were fitted, and how well; empty: they are the defaults
    fitted_for: str = ""  # the cost model that they were fitted for, which a server then takes by itself
    note: str = ""

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise InputError(f"hardware name is {self.name!r}, must be printable text")
        given = [name for name in ("fp8_tflops", "bus_gb_s", "peak_w", "idle_w") if getattr(self, name) is not None]
        for field in ("memory_gib", "bandwidth_gb_s", "tflops", "mfu", "mbu", *given):
            value = getattr(self, field)
            if not _is_number(value) or not 0 < value < 1e9:
                raise InputError(f"{field} of hardware {self.name!r} is {value!r}, must be a number above 0")
        for field in ("reserve_gib", "overhead_ms"):
            value = getattr(self, field)
            if not _is_number(value) or not 0 <= value < 1e9:
                raise InputError(f"{field} of hardware {self.name!r} is {value!r}, must be a number of 0 or more")
        for name, value in (self.detailed or {}).items():
            if not isinstance(name, str) or not _is_number(value) or not -1e9 < value < 1e9:
                raise InputError(f"detailed.{name} of hardware {self.name!r} is {value!r}, must be a number")
        if self.kind not in KINDS:
            raise InputError(f"kind of hardware {self.name!r} is {self.kind!r}, must be one of {', '.join(KINDS)}")

    @property
    def memory_bytes(self) -> int:
        return round(self.memory_gib * GIB)

    @property
    def reserve_bytes(self) -> int:
        return round(self.reserve_gib * GIB)

    @property
    def overhead_s(self) -> float:
        return self.overhead_ms / 1e3

    @property
    def has_peaks(self) -> bool:
        """Whether its rates are a datasheet's; a processor's are round figures, which a fit may go beyond."""
        return self.kind != "cpu"

    @property
    def ridge_flop_per_byte(self) -> float:
        """The raw ridge of the roofline: FLOPs the device can do while it reads one byte, by the datasheet."""
        return self.tflops * 1e12 / (self.bandwidth_gb_s * 1e9)

    def with_efficiency(
        self, *, mfu: float | None = None, mbu: float | None = None, overhead_ms: float | None = None
    ) -> Hardware:
        """Return this device with the efficiency figures that are given; a figure of its own ends a preset's fit.

        The figures count for every cost model, so they go into the parameters of `detailed` too.
        """
        given = {"mfu": mfu, "mbu": mbu, "overhead_ms": overhead_ms}
        changed = {name: value for name, value in given.items() if value is not None}
        detailed = {**(self.detailed or {}), **changed}
        return replace(self, **changed, detailed=detailed, fitted="") if changed else self  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_DATASHEET = "peak: the datasheet's maximum power"
_PARKED = "at rest with a CUDA context: arXiv:2605.23918 and its authors' code (H100 SXM, A100 PCIe, L40S)"


def _device(
    name: str,
    memory_gib: float,
    bandwidth_gb_s: float,
    tflops: float,
    *,
    peak_w: float | None = None,
    idle_w: float | None = None,
    **rest: Any,
) -> Hardware:
    """Return a preset by the first columns of `servesim hardware`; a power that is given is the datasheet's."""
    source = "" if peak_w is None else _DATASHEET if idle_w is None else f"{_DATASHEET}; {_PARKED}"
    return Hardware(
        name=name,
        memory_gib=memory_gib,
        bandwidth_gb_s=bandwidth_gb_s,
        tflops=tflops,
        peak_w=peak_w,
        idle_w=idle_w,
        power_source=source,
        **rest,
    )


_PRESETS = (
    # NVIDIA data center, HBM
    _device(
        *("h100-sxm-80gb", 79.6, 3350, 989),
        peak_w=700,
        idle_w=121.7,
        fp8_tflops=1979,
        bus_gb_s=450,
        source="NVIDIA H100 Tensor Core GPU datasheet (SXM5, without sparsity); nvidia-smi 81,559 MiB",
        date="2023",
    ),
    _device(
        *("h100-pcie-80gb", 79.6, 2000, 756),
        peak_w=350,
        fp8_tflops=1513,
        bus_gb_s=64,
        source="NVIDIA H100 Tensor Core GPU datasheet (PCIe, without sparsity); nvidia-smi 81,559 MiB",
        date="2023",
    ),
    _device(
        *("h100-nvl-94gb", 93.6, 3900, 835),
        peak_w=400,
        fp8_tflops=1671,
        bus_gb_s=300,
        source="NVIDIA H100 Tensor Core GPU datasheet (NVL, without sparsity); nvidia-smi 95,830 MiB",
        date="2024",
    ),
    _device(
        *("h200-sxm-141gb", 140.4, 4800, 989),
        peak_w=700,
        fp8_tflops=1979,
        bus_gb_s=450,
        source="NVIDIA H200 Tensor Core GPU datasheet (SXM, without sparsity); nvidia-smi 143,771 MiB",
        date="2024",
    ),
    _device(
        *("b200-sxm-180gb", 179.06, 8000, 2250),
        peak_w=1000,
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
        peak_w=1200,
        fp8_tflops=5000,
        bus_gb_s=900,
        source="NVIDIA GB200 NVL72 datasheet, one GPU (without sparsity); nvidia-smi 189,471 MiB",
        date="2024",
    ),
    _device(
        *("a100-sxm-80gb", 80.0, 2039, 312),
        peak_w=400,
        bus_gb_s=300,
        source="NVIDIA A100 Tensor Core GPU datasheet (80GB SXM); nvidia-smi 81,920 MiB",
        date="2021",
    ),
    _device(
        *("a100-pcie-80gb", 80.0, 1935, 312),
        peak_w=300,
        idle_w=80.0,
        bus_gb_s=32,
        source="NVIDIA A100 Tensor Core GPU datasheet (80GB PCIe); nvidia-smi 81,920 MiB",
        date="2021",
    ),
    _device(
        *("a100-sxm-40gb", 40.0, 1555, 312),
        peak_w=400,
        bus_gb_s=300,
        source="NVIDIA A100 Tensor Core GPU datasheet (40GB SXM); nvidia-smi 40,960 MiB",
        date="2020",
    ),
    # NVIDIA data center and workstation, GDDR
    _device(
        *("l4-24gb", 22.5, 300, 121),
        peak_w=72,
        fp8_tflops=242,
        reserve_gib=1.5,
        bus_gb_s=32,
        source="NVIDIA L4 Tensor Core GPU datasheet (without sparsity); nvidia-smi 23,034 MiB",
        date="2023",
    ),
    _device(
        *("l40s-48gb", 44.99, 864, 362.05),
        peak_w=350,
        idle_w=102.0,
        fp8_tflops=733,
        bus_gb_s=32,
        source="NVIDIA L40S GPU datasheet (without sparsity); nvidia-smi 46,068 MiB",
        date="2023",
    ),
    _device(
        *("l40-48gb", 44.99, 864, 181.05),
        peak_w=300,
        fp8_tflops=362,
        bus_gb_s=32,
        source="NVIDIA L40 GPU datasheet (without sparsity); nvidia-smi 46,068 MiB",
        date="2022",
    ),
    _device(
        *("a10-24gb", 22.49, 600, 125),
        peak_w=150,
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
        peak_w=300,
        bus_gb_s=56.25,
        source="NVIDIA A40 datasheet (without sparsity; NVLink bridge); nvidia-smi 46,068 MiB",
        date="2020",
    ),
    _device(
        *("rtx-a6000-48gb", 47.99, 768, 154.8),
        peak_w=300,
        bus_gb_s=56.25,
        source="NVIDIA RTX A6000 datasheet, GA102 whitepaper (without sparsity; NVLink bridge); nvidia-smi 49,140 MiB",
        date="2021",
    ),
    _device(
        *("rtx-6000-ada-48gb", 47.99, 960, 364.2),
        peak_w=300,
        fp8_tflops=728.5,
        bus_gb_s=32,
        source="NVIDIA Ada GPU architecture whitepaper, RTX 6000 Ada (without sparsity); nvidia-smi 49,140 MiB",
        date="2023",
    ),
    _device(
        *("rtx-pro-6000-96gb", 95.59, 1792, 503.8),
        peak_w=600,
        fp8_tflops=1007.6,
        bus_gb_s=64,
        source="NVIDIA RTX Blackwell PRO architecture whitepaper, Workstation Edition (without sparsity); "
        "nvidia-smi 97,887 MiB",
        date="2025",
    ),
    # NVIDIA GeForce: FP16/BF16 with FP32 accumulation runs at half of the tensor cores' rate
    _device(
        *("rtx-5090-32gb", 31.84, 1792, 209.5),
        peak_w=575,
        fp8_tflops=419,
        reserve_gib=1.5,
        bus_gb_s=64,
        source="NVIDIA RTX Blackwell GPU architecture whitepaper (FP32 accumulation, without sparsity); "
        "nvidia-smi 32,607 MiB",
        date="2025",
    ),
    _device(
        *("rtx-4090-24gb", 23.99, 1008, 165.2),
        peak_w=450,
        fp8_tflops=330.3,
        reserve_gib=1.578,
        bus_gb_s=32,
        source="NVIDIA Ada GPU architecture whitepaper (FP32 accumulation, without sparsity); nvidia-smi 24,564 MiB",
        date="2022",
        note="the reserve leaves llama-3.1-8b the 2,588 blocks that vLLM 0.19 found at utilisation 0.90",
    ),
    _device(
        *("rtx-3090-24gb", 23.58, 936, 71),
        peak_w=350,
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
        peak_w=70,
        reserve_gib=1.0,
        bus_gb_s=16,
        source="NVIDIA T4 product brief; nvidia-smi 15,360 MiB",
        date="2018",
        note="FP16: the device has no BF16 units",
    ),
    # AMD
    _device(
        *("mi300x-192gb", 191.98, 5300, 1307.4),
        peak_w=750,
        fp8_tflops=2614.9,
        bus_gb_s=448,
        source="AMD Instinct MI300X datasheet (without sparsity; 7 links of 64 GB/s); rocm-smi 206,141,652,992 B",
        date="2023",
    ),
    _device(
        *("mi325x-256gb", 255.98, 6000, 1307.4),
        peak_w=1000,
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
    """Return the preset `name`, or the device in the JSON file at the path `name`."""
    is_file = name not in HARDWARE and (name.endswith(".json") or os.sep in name)
    return read_hardware(name) if is_file else find_hardware(name)


SCHEMA = "servesim.device/1"

_EFFICIENCY = ("mfu", "mbu", "overhead_ms")
_FIELDS = {field.name: str(field.type) for field in fields(Hardware)}
_BESIDE = ("schema", "base", "provenance", "servesim", "command", "config", "partial")


def read_hardware(path: str) -> Hardware:
    """Return the device in the JSON file at `path`; raise `InputError` with the file's name and the field."""
    document = JsonFields(read_object(path, limit_bytes=MAX_CONFIG_BYTES), path)
    schema = document.text("schema", default=SCHEMA)
    if schema != SCHEMA:
        raise InputError(f"{path}: schema is {schema[:60]!r}, must be {SCHEMA!r}, a device")
    for key in document.values:
        if key not in _FIELDS and key not in _BESIDE:
            raise InputError(f"{path}: {suggest('field', key, (*_FIELDS, *_BESIDE))}")
    base = document.text("base")
    given = _given(document)
    given.setdefault("name", os.path.splitext(os.path.basename(path))[0])
    try:
        if base:
            preset = find_hardware(base)
            if any(given.get(name, getattr(preset, name)) != getattr(preset, name) for name in _EFFICIENCY):
                given.setdefault("fitted", "")
            return replace(preset, **given)
        for name in ("memory_gib", "bandwidth_gb_s", "tflops"):
            if name not in given:
                raise InputError(f"{name} is missing; give it, or a preset as base")
        return Hardware(**{"source": f"the file {os.path.basename(path)}", "date": "", **given})
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def device_document(
    hardware: Hardware, *, base: str | None = None, provenance: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the JSON document of `hardware`, in full, so that it reads back equal whatever becomes of its base.

    `base` is then only a reference to the preset it came from.
    """
    document: dict[str, Any] = {"schema": SCHEMA}
    for field in fields(Hardware):
        value = getattr(hardware, field.name)
        document[field.name] = dict(value) if isinstance(value, Mapping) else value
        if field.name == "name" and base is not None:
            document["base"] = base
    if provenance is not None:
        document["provenance"] = dict(provenance)
    return document


def _given(document: JsonFields) -> dict[str, Any]:
    """Return the fields of `Hardware` that the file gives, each of its type."""
    given: dict[str, Any] = {}
    for name, kind in _FIELDS.items():
        if document.get(name) is None:
            if name in document.values and kind.endswith("None"):
                given[name] = None
        elif kind == "str":
            given[name] = document.text(name)
        elif name == "detailed":
            part = document.part(name)
            given[name] = {key: part.number(key) for key in part.values} if part else None
        else:
            given[name] = document.number(name)
    return given
