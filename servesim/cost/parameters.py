"""The parameters of the detailed cost model: what no datasheet has, with the bounds and the evidence of each.

A device may carry its own (`Hardware.detailed`, which `servesim calibrate` writes); what it does not say has the
default. Efficiencies are shares of the datasheet's peaks. The formulas they stand in are in `detailed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from servesim.catalog.hardware import Hardware
from servesim.errors import InputError
from servesim.units import suggest

BOUNDS: dict[str, tuple[float, float]] = {
    "mfu": (0.01, 100.0),
    "mbu": (0.05, 100.0),
    "overhead_ms": (0.0, 1000.0),
    "kv_mbu": (0.001, 100.0),
    "attention_mfu": (0.0005, 100.0),
    "expert_mfu": (0.002, 100.0),
    "mixed_kv": (1.0, 8.0),
    "decode_work": (0.2, 50.0),
    "softness": (1.0, 20.0),
    "traffic_vectors": (0.0, 100.0),
    "layer_us": (0.0, 1000.0),
    "eager_layer_us": (0.0, 5000.0),
    "sequence_us": (0.0, 10_000.0),
    "request_ms": (0.0, 10_000.0),
    "ingest_ms": (0.0, 60_000.0),
    "allreduce_us": (0.0, 10_000.0),
    "bus_share": (0.02, 1.5),
    "graph_limit": (0.0, 4096.0),
}
"""What each parameter may be. An efficiency above 1 is possible: a processor's peaks are round figures, and a fit may
ask for it of any device, which is warned of."""


@dataclass(slots=True, frozen=True, kw_only=True)
class DetailedParameters:
    """The numbers of the model that no datasheet has.

    Beside each default is where it comes from: kernel tables and logs of LLMServingSim 2.0, peers' figures, fits.
    """

    mfu: float = 0.75  # GEMM tables: 0.86 (RTX PRO 6000), 0.96 (4090); less once all is counted, as both vLLM runs say
    mbu: float = 0.82  # GEMM tables: 0.80 (RTX PRO 6000), 0.90 (4090); 0.82 for the experts of a mixture
    overhead_ms: float = 1.5  # 1.3-2.0 fitted for vLLM 0.19 on desktop processors
    kv_mbu: float = 0.80  # attention tables: 0.78 (RTX PRO 6000), 0.87 (4090)
    attention_mfu: float = 0.55  # long chunks: 0.43-0.58 (RTX PRO 6000), 0.62-0.84 (4090)
    expert_mfu: float = 0.08  # 157 groups of the silicon table: 0.04-0.13 under vLLM, 0.01-0.19 elsewhere; dense: 0.4-1
    mixed_kv: float = 1.9  # 27,408 profiled steps: 1.5-1.8 (RTX PRO 6000), 1.9-2.7 (4090)
    decode_work: float = 1.0  # 1 on GPUs; 2.3 seen on two cores under llama.cpp
    softness: float = 2.0  # 40,000 GEMMs: 1.5-2.5 fit equally well, a hard corner twice as badly
    traffic_vectors: float = 9.0  # token-wise kernels: 106 us a layer at 2,048 tokens (RTX PRO 6000)
    layer_us: float = 12.0  # attention launches of both cards
    eager_layer_us: float = 300.0  # 330-490 in a joint fit of both vLLM runs; aiconfigurator has 800
    sequence_us: float = 25.0  # 14-27 in that fit; BLIS has 4.4, and 46 a streamed token
    request_ms: float = 0.5  # a guess that both vLLM runs bear
    ingest_ms: float = 4.0  # a guess for one machine; BLIS has 15.6 on an H100 at low load
    allreduce_us: float = 12.0  # 10-20: LLMServingSim, aiconfigurator
    bus_share: float = 0.75  # three quarters of NVLink's peak: BLIS, aiconfigurator
    graph_limit: float = 512.0  # vLLM's largest captured batch

    def __post_init__(self) -> None:
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
                raise InputError(f"{name} of the detailed cost model is {value!r}, must be {low:g} to {high:g}")

    @classmethod
    def of(cls, hardware: Hardware) -> DetailedParameters:
        """Return the parameters of a device: those it carries, else the defaults of its kind.

        Processors and unified memory keep their preset's own mfu, mbu and overhead, and have no CUDA graphs.
        """
        known: dict[str, float] = {}
        if hardware.kind != "gpu":
            known = {
                "mfu": hardware.mfu,
                "mbu": hardware.mbu,
                "kv_mbu": hardware.mbu,
                "attention_mfu": hardware.mfu,
                "expert_mfu": hardware.mfu,
                "overhead_ms": hardware.overhead_ms,
                "mixed_kv": 1.0,
                "layer_us": 0.0,
                "eager_layer_us": 0.0,
                "graph_limit": 0.0,
            }
        return cls.from_mapping({**known, **(hardware.detailed or {})})

    @classmethod
    def from_mapping(cls, values: Mapping[str, float]) -> DetailedParameters:
        """Return the defaults with `values` in their places; refuse names that are no parameter."""
        for name in values:
            if name not in BOUNDS:
                raise suggest("parameter of the detailed cost model", str(name), BOUNDS)
        return cls(**values)

    def as_dict(self) -> dict[str, float]:
        """Return every parameter by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
