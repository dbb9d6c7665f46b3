"""What of a cost model may be fitted: its parameters with their bounds, where a search starts, and the fitted device.

A parameter is free, or held by its `GUESS`. A share of a peak is fitted by its logarithm. A time adds to others and may
be 0, so that a free one is fitted as it is, in units of its own; the guess at one is a guess at its logarithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from servesim.analysis.advice import PHYSICAL
from servesim.analysis.closed_form import roofline_from
from servesim.analysis.fit import Parameter
from servesim.analysis.measurement import Measurement
from servesim.catalog.hardware import Hardware
from servesim.cost.parameters import BOUNDS, DetailedParameters
from servesim.units import suggest

ROOFLINE_BOUNDS: dict[str, tuple[float, float]] = {"mfu": (1e-4, 10.0), "mbu": (1e-3, 5.0), "overhead_ms": (0.0, 1e4)}

GUESS: dict[str, float] = {
    "mfu": 0.5,
    "mbu": 0.3,
    "overhead_ms": 1.0,
    "kv_mbu": 0.3,
    "ingest_ms": 1.0,
    "request_ms": 1.0,
    "sequence_us": 0.7,
    "mixed_kv": 0.4,
    "attention_mfu": 0.5,
    "expert_mfu": 0.7,
    "eager_layer_us": 1.0,
    "layer_us": 0.7,
    "decode_work": 0.3,
    "allreduce_us": 0.7,
}
"""How far each parameter of the detailed model may be from its default, as a standard error of its logarithm: what two
cards' kernel tables and the published fits differ by. The rest (`softness`, ...) are only fitted by name."""


@dataclass(slots=True, frozen=True)
class Fittable:
    """What a fit needs to know of a cost model."""

    parameters: Callable[[Hardware, Sequence[Measurement], Sequence[str]], tuple[list[Parameter], str]]
    device: Callable[[Hardware, dict[str, float]], Hardware]


def _roofline_parameters(
    base: Hardware, measurements: Sequence[Measurement], names: Sequence[str]
) -> tuple[list[Parameter], str]:
    """Return mfu, mbu and overhead, from a closed form where two runs allow it."""
    wanted = list(names) or list(ROOFLINE_BOUNDS)
    for name in wanted:
        if name not in ROOFLINE_BOUNDS:
            raise suggest("parameter of the roofline", name, ROOFLINE_BOUNDS)
    found = roofline_from(measurements) if len(wanted) == len(ROOFLINE_BOUNDS) else None
    start = {"mfu": base.mfu, "mbu": base.mbu, "overhead_ms": base.overhead_ms}
    told = f"the figures of {base.name}"
    if found is not None:
        start = {"mfu": found.mfu, "mbu": found.mbu, "overhead_ms": found.overhead_ms}
        told = f"a closed form of {found.slow} and {found.fast}"
    parameters = []
    for name in wanted:
        low, high = ROOFLINE_BOUNDS[name]
        at = min(max(start[name], low), high)
        scale = None if low else _fastest_step_ms(measurements)
        parameters.append(Parameter(name=name, start=at, low=low, high=high, log=scale is None, scale=scale or 1.0))
    return parameters, told


def _fastest_step_ms(measurements: Sequence[Measurement]) -> float:
    """Return the unit of an overhead: the fastest step that was seen."""
    figures = [
        m.figures[name] for m in measurements for name in ("tpot_mean", "tpot_p50", "e2e_mean") if name in m.figures
    ]
    return max(1e3 * min(figures, default=1e-2), 1e-3)


def _roofline_device(base: Hardware, values: dict[str, float]) -> Hardware:
    return replace(base, **values)  # type: ignore[arg-type]


def _detailed_parameters(
    base: Hardware, measurements: Sequence[Measurement], names: Sequence[str]
) -> tuple[list[Parameter], str]:
    """Return the named parameters, free; or without names every one that makes sense, held by its `GUESS`."""
    start = DetailedParameters.of(base).as_dict()
    for name in names:
        if name not in BOUNDS:
            raise suggest("parameter of the detailed cost model", name, BOUNDS)
    wanted = list(names) or [name for name in GUESS if _makes_sense(name, base, measurements)]
    parameters = []
    for name in wanted:
        low, high = BOUNDS[name]
        if not names:
            high = max(1.0, start[name]) if name in PHYSICAL and base.has_peaks else high
            parameters.append(held(name, start[name], low, high))
            continue
        scale = None if low else _fastest_step_ms(measurements) if name == "overhead_ms" else start[name] or 1.0
        at = min(max(start[name], low), high)
        parameters.append(
            Parameter(name=name, start=at, low=low, high=high, log=scale is None, scale=scale or 1.0, step=0.03)
        )
    return parameters, f"the defaults of the detailed model on {base.name}"


def held(name: str, start: float, low: float, high: float, *, step: float = 0.03) -> Parameter:
    """Return a parameter of the detailed model that is held by its `GUESS`, which is one of its logarithm."""
    low = low or 1e-3 * max(start, 1.0)
    return Parameter(name=name, start=min(max(start, low), high), low=low, high=high, prior=GUESS[name], step=step)


def begun(parameter: Parameter, base: Hardware, measurements: Sequence[Measurement]) -> Parameter:
    """Return a held `ingest_ms` that starts where the first token at the least load says, if that is above its guess.

    By its logarithm a time of a few milliseconds hardly moves anything: a search that has to make hundreds of it stops
    at another minimum, where prompts compute too slowly instead.
    """
    useful = [measurement for measurement in measurements if "ttft_mean" in measurement.figures]
    if parameter.name != "ingest_ms" or parameter.prior is None or not useful:
        return parameter
    least = min(useful, key=lambda measurement: measurement.concurrency)
    beyond_s = least.figures["ttft_mean"] - least.on(base, "detailed").predict()["ttft_mean"]
    start = min(max(parameter.start + 1e3 * beyond_s, parameter.start), parameter.high)
    return replace(parameter, start=start, guess=parameter.start)


def _makes_sense(name: str, base: Hardware, measurements: Sequence[Measurement]) -> bool:
    if name == "expert_mfu":
        return any(measurement.server.model.experts is not None for measurement in measurements)
    if name == "allreduce_us":
        return any(measurement.server.spec.tensor_parallel_size > 1 for measurement in measurements)
    if name in ("layer_us", "eager_layer_us", "mixed_kv"):
        return base.kind == "gpu"
    return True


def _detailed_device(base: Hardware, values: dict[str, float]) -> Hardware:
    return replace(base, detailed={**DetailedParameters.of(base).as_dict(), **values})


FITTABLE: dict[str, Fittable] = {
    "roofline": Fittable(_roofline_parameters, _roofline_device),
    "detailed": Fittable(_detailed_parameters, _detailed_device),
}
"""The cost models that can be fitted."""
