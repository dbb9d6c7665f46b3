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
    "mfu": (0.01, 2.0),
    "mbu": (0.05, 1.5),
    "overhead_ms": (0.0, 1000.0),
    "kv_mbu": (0.02, 1.5),
    "attention_mfu": (0.005, 1.5),
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
"""What each parameter may be. An efficiency above 1 is possible, as a fit may ask for it, and is warned of."""


@dataclass(slots=True, frozen=True, kw_only=True)
class DetailedParameters:
    """The numbers of the model that no datasheet has, each with the evidence for its default."""

    mfu: float = 0.75  # GEMMs, prompts: 0.86 (RTX PRO 6000) and 0.96 (4090) in kernel tables; less once all is counted
    mbu: float = 0.82  # weight reads: 0.80 (RTX PRO 6000), 0.90 (4090), 0.82 (experts of a mixture)
    overhead_ms: float = 1.5  # host, each step: 1.3-2.0 fitted for vLLM 0.19 on desktop processors
    kv_mbu: float = 0.80  # KV reads in decode: 0.78 (RTX PRO 6000), 0.87 (4090)
    attention_mfu: float = 0.55  # prompt attention of long chunks: 0.43-0.58 (RTX PRO 6000), 0.62-0.84 (4090)
    mixed_kv: float = 1.9  # KV reads beside a prompt: 1.5-1.8 (RTX PRO 6000), 1.9-2.7 (4090), 27,408 points
    decode_work: float = 1.0  # compute of a decoding token over that of a prompt's; 2.3 on CPUs under llama.cpp
    softness: float = 2.0  # p of the soft maximum; 1.5-2.5 fit equally well
    traffic_vectors: float = 9.0  # vectors of `hidden` that a token moves per layer beside the matrices
    layer_us: float = 12.0  # fixed device time of a layer's small kernels
    eager_layer_us: float = (
        300.0  # more of it where a prompt is: 330-490 in a joint fit of both vLLM runs; aiconfigurator: 800
    )
    sequence_us: float = (
        25.0  # host and sampler per scheduled request: 14-27 in that fit; BLIS: 4.4, and 46 a streamed token
    )
    request_ms: float = 0.5  # host time of a request's first step
    ingest_ms: float = 4.0  # from send to queue; BLIS has 15.6 on an H100's low-load points
    allreduce_us: float = 12.0  # latency of one all-reduce: 10-20
    bus_share: float = 0.75  # of `bus_gb_s`
    graph_limit: float = 512.0  # largest batch with a CUDA graph; 0: none are used

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
