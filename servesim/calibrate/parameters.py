"""What of a cost model may be fitted: its parameters with their bounds, where a search starts, and the fitted device.

A parameter is free, or held by its `GUESS`. A share of a peak is fitted by its logarithm. A time adds to others and may
be 0, so that a free one is fitted as it is, in units of its own; the guess at one is a guess at its logarithm.

The roofline's three figures also follow from two measurements, by algebra (`roofline_from`): where a fit may start.

    prefill: an unqueued prompt, ruled by compute        ttft = overhead + flop x prompt / compute
    slow: one sequence or few, ruled by the weight read  tpot = overhead + read / bandwidth
    fast: at or beyond the critical batch                tpot = overhead + flop x batch / compute

`read` is weights and contexts. Of each `tpot` the time is taken off in which the prompts of the others are computed,
`batch x prompt x flop / compute` during the whole of an answer. Three equations for overhead, bandwidth and compute,
which hold only if the solution agrees that they do: else there is none. Queueing is left out, which is why it is a
start and not the fit.

Last, what a solution says beside its figures: what the runs do not identify and which would, what was fitted
separately, what is unphysical.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from servesim.calibrate.measurement import Measurement
from servesim.calibrate.solver import Parameter, Solution
from servesim.catalog.hardware import Hardware
from servesim.cost.detailed import PARAMETERS, DetailedParameters
from servesim.units import suggest

_ROUNDS = 20  # of the fixed point: prefills stall decodes, and what is left of these tells what a prefill costs


@dataclass(slots=True, frozen=True, kw_only=True)
class ClosedForm:
    """The roofline's figures, and the labels of the two measurements that they came from."""

    mfu: float
    mbu: float
    overhead_ms: float
    slow: str
    fast: str


@dataclass(slots=True, frozen=True)
class _Load:
    """What a closed form needs of a measurement, of one device."""

    first_s: float
    token_s: float
    batch: float
    prompt: float
    output: float
    read_bytes: float  # of a decode step in mid-answer
    flop: float  # of one token

    @classmethod
    def of(cls, measurement: Measurement) -> _Load:
        model, parallel = measurement.server.model, measurement.server.spec.tensor_parallel_size
        batch = min(measurement.concurrency, measurement.server.config.max_num_seqs)
        context = batch * (measurement.prompt_tokens + measurement.output_tokens / 2)
        figures = measurement.figures
        return cls(
            first_s=figures.get("ttft_p50", figures["ttft_mean"]),
            token_s=figures["tpot_mean"],
            batch=batch,
            prompt=measurement.prompt_tokens,
            output=measurement.output_tokens,
            read_bytes=(model.weights_bytes + context * model.kv_bytes_per_token()) / parallel,
            flop=2 * model.compute_params / parallel,
        )

    def decode_s(self, flop_per_s: float) -> float:
        """Return the time of a decode step: a token's, less what the prompts of the others take of it."""
        return self.token_s - (self.batch - 1) * self.prompt * self.flop / flop_per_s / max(self.output, 1.0)


def roofline_from(measurements: Sequence[Measurement]) -> ClosedForm | None:
    """Return the roofline that the least and the most concurrent measurement tell; None where they tell none."""
    useful = [m for m in measurements if "tpot_mean" in m.figures and "ttft_mean" in m.figures]
    if len(useful) < 2:
        return None
    least, most = min(useful, key=lambda m: m.concurrency), max(useful, key=lambda m: m.concurrency)
    if least.server.model != most.server.model or least.concurrency >= most.concurrency:
        return None
    slow, fast = _Load.of(least), _Load.of(most)
    found = _solve(slow, fast)
    if found is None:
        return None
    overhead_s, bandwidth, flop_per_s = found
    if 0.8 * fast.read_bytes / bandwidth > fast.flop * fast.batch / flop_per_s:
        return None  # the batch was still ruled by its reads
    device = least.server.hardware
    return ClosedForm(
        mfu=flop_per_s / (device.tflops * 1e12),
        mbu=bandwidth / (device.bandwidth_gb_s * 1e9),
        overhead_ms=overhead_s * 1e3,
        slow=least.label,
        fast=most.label,
    )


def _solve(slow: _Load, fast: _Load) -> tuple[float, float, float] | None:
    """Return (overhead, bytes/s, FLOP/s), None where the figures contradict each other."""
    flop_per_s, overhead_s = slow.flop * slow.prompt / slow.first_s, 0.0
    for _ in range(_ROUNDS):
        fast_s = fast.decode_s(flop_per_s)
        if slow.prompt <= fast.batch or not 0 < fast_s < slow.first_s:
            return None
        flop_per_s = slow.flop * (slow.prompt - fast.batch) / (slow.first_s - fast_s)
        overhead_s = max(fast_s - fast.flop * fast.batch / flop_per_s, 0.0)
    slow_s = slow.decode_s(flop_per_s)
    if slow_s <= overhead_s:
        return None
    return overhead_s, slow.read_bytes / (slow_s - overhead_s), flop_per_s


PHYSICAL = ("mfu", "mbu", "kv_mbu", "attention_mfu", "expert_mfu", "bus_share")
"""Shares of a datasheet's peak: above 1 they say that something else was not what it was taken for."""

REMEDIES: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"overhead_ms", "mbu"}), "add a run at concurrency 32 or more"),
    (frozenset({"overhead_ms", "mfu"}), "add a run with prompts of 1,024 tokens or more"),
    (frozenset({"overhead_ms", "sequence_us"}), "add a run at another concurrency: 1 beside 32 or more"),
    (frozenset({"mfu", "request_ms"}), "add a run with prompts of another length"),
    (frozenset({"ingest_ms", "request_ms"}), "add a run at concurrency 1 beside one at 32 or more"),
    (frozenset({"mfu"}), "add a run with prompts of 1,024 tokens or more"),
    (frozenset({"expert_mfu"}), "add a run of a mixture with prompts of 1,024 tokens or more"),
    (frozenset({"mbu"}), "add a run at concurrency 1, and one of a larger model"),
    (frozenset({"kv_mbu"}), "add a run at concurrency 32 or more with contexts of 4,096 tokens or more"),
    (frozenset({"mixed_kv"}), "add a run at concurrency 32 or more with short outputs"),
    (frozenset({"decode_work"}), "add a run at concurrency 32 or more"),
    (frozenset({"allreduce_us"}), "add a run at another tensor-parallel size"),
    (frozenset({"overhead_ms"}), "add a run at concurrency 1 with short prompts"),
    (frozenset({"ingest_ms"}), "add a run at concurrency 1 with short prompts"),
)
"""What identifies parameters that the runs at hand do not; the first that the group contains."""

FITTED_SEPARATELY: dict[str, str] = {
    "decode_work": "a decoding token takes {:.2g} times the compute of a prompt's: "
    "prefill and decode were fitted separately",
    "mixed_kv": "a KV read beside a prompt takes {:.2g} times as long as alone: "
    "steps with a prompt were fitted separately",
}
SEPARATE_FROM = 0.22  # of a logarithm: a quarter more, or a fifth less


def hints(solution: Solution) -> tuple[set[str], list[str]]:
    """Return the names of what the runs do not identify, and sentences about it with their remedies."""
    sentences, names = list[str](), set[str]()
    priors = {parameter.name for parameter in solution.parameters if parameter.prior is not None}
    kept = [name for name in priors if solution.told[name] < 0.5]
    for group in solution.unidentified():
        if set(group) <= priors:
            continue  # its default stands, which the table says
        names.update(group)
        remedy = next((text for wanted, text in REMEDIES if wanted <= set(group)), "add a run of another kind")
        what = f"{' and '.join(group)} cannot be told apart" if len(group) > 1 else f"{group[0]} cannot be told"
        sentences.append(f"{what} from these runs: {remedy}")
    kept.sort(key=[parameter.name for parameter in solution.parameters].index)
    if kept:
        advice = next((f": {text}" for wanted, text in REMEDIES if wanted <= set(kept)), "")
        stay = "are not identifiable from these runs and stay near their defaults"
        stays = "is not identifiable from these runs and stays near its default"
        sentences.append(f"{', '.join(kept)} {stay if len(kept) > 1 else stays}{advice}")
    return names, sentences


def fitted_separately(solution: Solution) -> list[str]:
    """Return which efficiencies had to be fitted separately that are one where a device does its best."""
    notes = []
    for name, text in FITTED_SEPARATELY.items():
        value = solution.values.get(name, 1.0)
        if abs(math.log(value)) > SEPARATE_FROM and solution.told[name] >= 0.5:
            notes.append(text.format(value))
    return notes


def unphysical(solution: Solution, unidentified: set[str], *, has_peaks: bool) -> list[str]:
    """Return a sentence for each share of a datasheet's peak above 1, and for each parameter that a bound stopped."""
    warnings = []
    for parameter in solution.parameters:
        value, name = solution.values[parameter.name], parameter.name
        if name in PHYSICAL and value > 1 and has_peaks:
            warnings.append(
                f"{name} is {value:.3g}, above 1: no device beats its datasheet, so another term is short of the truth "
                "or the device is another one"
            )
        elif solution.at_bound(name) and name not in unidentified and solution.told[name] >= 0.5:
            warnings.append(f"{name} ran into its bound, {value:.4g}")
    return warnings


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
        if name not in PARAMETERS:
            raise suggest("parameter of the detailed cost model", name, PARAMETERS)
    wanted = list(names) or [name for name in GUESS if _makes_sense(name, base, measurements)]
    parameters = []
    for name in wanted:
        low, high = PARAMETERS[name].low, PARAMETERS[name].high
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


def with_measured_start(parameter: Parameter, base: Hardware, measurements: Sequence[Measurement]) -> Parameter:
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
