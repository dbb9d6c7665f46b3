"""One device: datasheet peaks, memory as the driver reports it, and the efficiency a server reaches of the peaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from servesim.errors import InputError
from servesim.units import GIB

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
