"""The silicon table: 266 groups of mean TTFT and TPOT by concurrency, one device, engine, model and load each.

From NVIDIA's aiconfigurator, which ships them to check itself. Each group is fitted on its lowest and its second
highest concurrency, and the others are predicted; then parameters of one hardware and engine are taken from some models
and applied to the others. What had to be read into the table:

- Rows with an attention-DP size are InferenceMAX runs: ten requests for each in flight, lengths drawn between 0.8 and 1
  of the nominal ones (its `--random-range-ratio 0.8`). The others have fixed lengths.
- Where `tp` is `moe_tp x moe_ep` and both are above 1, `moe_tp` is the number of devices.
- A batch is spread over the attention-DP ranks; one rank is simulated with its share of the requests.
- TensorRT-LLM admits a sequence when all of it fits (GUARANTEED_NO_EVICT).
- The cache is FP8 under TensorRT-LLM where the model is quantised, and under vLLM on all but the H100: the concurrency
  at which queues begin tells it.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from servesim.calibrate.calibrate import calibrate, points_of
from servesim.calibrate.input import WAVES, of_row
from servesim.calibrate.measurement import Measurement
from servesim.calibrate.parameters import held
from servesim.calibrate.solver import Parameter
from servesim.catalog.hardware import Hardware, named_hardware
from servesim.catalog.model import Model
from servesim.catalog.models import MODELS, repositories
from servesim.cost.detailed import DetailedParameters
from servesim.errors import InputError, ServesimError
from servesim.inputs import read_text
from servesim.units import parse_count, parse_finite

PRESETS = {"Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b", "deepseek-ai/DeepSeek-R1": "deepseek-v3"}
"""Models that have another's shape: they are one model where parameters are carried to models not in the fit."""

QUANTIZATIONS = {"": None, "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "nvfp4", "int4_wo": None}
FITTED = ("mbu", "overhead_ms", "ingest_ms", "kv_mbu", "mixed_kv", "sequence_us")
"""What a group's two points may tell beside `COMPUTE`: four figures, held by the priors of `calibrate`."""

COMPUTE = {"dense": "mfu", "mixture": "expert_mfu"}
"""The efficiency of prompts, by class: a mixture computes most of a token in its experts, and those far less well."""

MAX_EVALUATIONS = 45
MAX_CONCURRENCY = 1024
INFERENCEMAX_LEAST = 0.8


@dataclass(slots=True, frozen=True, kw_only=True)
class Group:
    """One load at several concurrencies on one server."""

    key: str
    engine: str
    version: str
    model: str  # as the table spells it
    hardware: str
    quantization: str
    devices: int
    expert_parallel: bool
    ranks: int  # of attention-DP
    fixed_lengths: bool
    input_tokens: int
    output_tokens: int
    points: tuple[tuple[int, float, float], ...]  # (concurrency, TTFT ms, TPOT ms), in order of concurrency

    @property
    def model_class(self) -> str:
        """Return dense or mixture."""
        return "dense" if self.preset.experts is None else "mixture"

    @property
    def preset(self) -> Model:
        """Return the preset of the model's shape; raise `InputError` where there is none."""
        name = PRESETS.get(self.model, self.model)
        preset = MODELS.get(repositories().get(name, name))
        if preset is None:
            raise InputError(f"no preset for {self.model}")
        return preset

    def options(self) -> dict[str, Any]:
        """Return the server of this group as options."""
        preset, device = self.preset, named_hardware(self.hardware)
        if device is None:
            raise InputError(f"no preset for {self.hardware}")
        options: dict[str, Any] = {
            "model": preset.name,
            "hardware": device,
            "tensor_parallel_size": self.devices,
            "expert_parallel": self.expert_parallel and preset.experts is not None,
            "max_num_seqs": 1024,
            "max_num_batched_tokens": 8192,
        }
        quantization = QUANTIZATIONS.get(self.quantization, self.quantization)
        if quantization is not None and preset.name != "gpt-oss-120b":  # which comes in MXFP4, whatever the column says
            options["quantization"] = quantization
        if self.quantization and (self.engine == "trtllm" or (self.engine == "vllm" and self.hardware != "h100_sxm")):
            options["kv_cache_dtype"] = "fp8"
        return options

    def measurements(self) -> list[Measurement]:
        """Return one measurement a point; raise `ServesimError` for a server that cannot be built."""
        options, found = self.options(), list[Measurement]()
        for concurrency, ttft_ms, tpot_ms in self.points:
            share = max(1, round(concurrency / self.ranks))
            row = {
                "prompt_tokens": self._lengths(self.input_tokens),
                "output_tokens": self._lengths(self.output_tokens),
                "concurrency": share,
                "requests": WAVES * share,
                "ttft_ms_mean": ttft_ms,
                "tpot_ms_mean": tpot_ms,
            }
            found.append(of_row(f"{self.key} at {concurrency}", row, options))
            if self.engine == "trtllm" and "max_num_seqs" in options and concurrency == self.points[0][0]:
                tokens = found[0].server.plan.kv_tokens
                options["max_num_seqs"] = max(1, min(1024, tokens // (self.input_tokens + self.output_tokens)))
                found[0] = of_row(f"{self.key} at {concurrency}", row, options)
        return found

    def _lengths(self, tokens: int) -> str:
        return str(tokens) if self.fixed_lengths else f"{round(INFERENCEMAX_LEAST * tokens)}-{tokens}"


@dataclass(slots=True, frozen=True, kw_only=True)
class Held:
    """One point that was not fitted: how far its prediction is off, relative."""

    concurrency: int
    ttft: float
    tpot: float


@dataclass(slots=True, frozen=True, kw_only=True)
class GroupFit:
    """One group's parameters and the points that they were not fitted to; `failed` says why there are none."""

    group: Group
    values: dict[str, float]
    held: tuple[Held, ...] = ()
    fitted: tuple[Held, ...] = ()
    failed: str = ""

    @property
    def error(self) -> float:
        """Return the mean absolute error of the held points, TTFT and TPOT alike."""
        return statistics.fmean((abs(h.ttft) + abs(h.tpot)) / 2 for h in self.held) if self.held else 0.0


def read_groups(path: str) -> list[Group]:
    """Return the groups of the table at `path`, in its order.

    Raises `InputError` for a file that is no such table, with the line of a row that has no number in a number's place.
    """
    lines = csv.DictReader(io.StringIO(read_text(path)))
    try:
        rows = [(f"{path}:{lines.line_num}", row) for row in lines]
    except csv.Error as error:
        raise InputError(f"{path}: is no CSV table ({error})") from error
    if not rows:
        raise InputError(f"{path}: has no row")
    missing = [name for name in NEEDED if rows[0][1].get(name) is None]
    if missing:
        raise InputError(f"{path}: has no column {', '.join(missing)}")
    groups: dict[str, list[_Row]] = {}
    for label, values in rows:
        groups.setdefault(values["group"], []).append(_Row(label, values))
    return [_group(key, found) for key, found in groups.items()]


FIGURES = ("ttft_ms_mean", "tpot_ms_mean")
NEEDED = ("group", "engine", "model", "hardware", "tp", "input_tokens", "output_tokens", "concurrency", *FIGURES)


@dataclass(slots=True, frozen=True)
class _Row:
    """A row of the table; a column that is missing is one without values."""

    label: str
    values: dict[str, str]

    def text(self, name: str) -> str:
        return self.values.get(name) or ""

    def count(self, name: str) -> int:
        """Return a number of things, 0 where nothing is said."""
        return parse_count(self.text(name) or 0, f"{self.label}: {name}", minimum=0)

    def point(self) -> tuple[int, float, float]:
        ttft_ms, tpot_ms = (parse_finite(self.text(name), f"{self.label}: {name}", above=0.0) for name in FIGURES)
        return parse_count(self.text("concurrency"), f"{self.label}: concurrency"), ttft_ms, tpot_ms


def _group(key: str, rows: list[_Row]) -> Group:
    first = rows[0]
    tensor, expert = first.count("moe_tp") or 1, first.count("moe_ep") or 1
    devices = first.count("tp")
    if tensor > 1 and expert > 1 and tensor * expert == devices:
        devices = tensor
    return Group(
        key=key,
        engine=first.text("engine"),
        version=first.text("engine_version"),
        model=first.text("model"),
        hardware=first.text("hardware"),
        quantization=first.text("gemm_quant"),
        devices=devices,
        expert_parallel=expert > 1,
        ranks=first.count("attention_dp") or 1,
        fixed_lengths=first.text("attention_dp") == "",
        input_tokens=first.count("input_tokens"),
        output_tokens=first.count("output_tokens"),
        points=tuple(sorted(point for row in rows if (point := row.point())[0] <= MAX_CONCURRENCY)),
    )


def fit_group(group: Group) -> GroupFit:
    """Fit a group on its lowest and second highest concurrency and predict the others."""
    try:
        measurements = group.measurements()
        if len(measurements) < 3:
            return GroupFit(group=group, values={}, failed=f"{len(measurements)} points, 3 are needed")
        chosen = (0, len(measurements) - 2)
        fit = calibrate(
            [measurements[place] for place in chosen],
            cost_model="detailed",
            names=(COMPUTE[group.model_class], *FITTED),
            tolerance=1e-2,
            max_evaluations=MAX_EVALUATIONS,
            guess=guessed,
            careful=False,
        )
        errors = [_errors(each, fit.hardware, point) for each, point in zip(measurements, group.points, strict=True)]
    except ServesimError as error:
        return GroupFit(group=group, values={}, failed=str(error))
    return GroupFit(
        group=group,
        values=fit.solution.values,
        held=tuple(error for place, error in enumerate(errors) if place not in chosen),
        fitted=tuple(errors[place] for place in chosen),
    )


def guessed(parameter: Parameter) -> Parameter:
    """Hold a parameter by its guess although it was named."""
    return held(parameter.name, parameter.start, parameter.low, parameter.high, step=0.05)


def _errors(measurement: Measurement, hardware: Hardware, point: tuple[int, float, float]) -> Held:
    off = {found.figure: found.error for found in points_of([measurement], hardware, "detailed")}
    return Held(concurrency=point[0], ttft=off["ttft_mean"], tpot=off["tpot_mean"])


def transfers(fits: Sequence[GroupFit]) -> list[tuple[Group, dict[str, float]]]:
    """Return each group with the median parameters of the other models on its hardware and engine, for `applied`.

    They are those of other models of its class, dense or mixture, where there is one, and the fixed time of a step goes
    by layers. A group whose hardware and engine served no other model is left out.
    """
    found = []
    for fit in fits:
        group = fit.group
        if not fit.values:
            continue
        others = [
            other
            for other in fits
            if other.values
            and (other.group.hardware, other.group.engine) == (group.hardware, group.engine)
            and other.group.preset != group.preset
        ]
        alike = [other for other in others if other.group.model_class == group.model_class]
        if others:
            found.append((group, _medians([_moved(other, group) for other in alike or others])))
    return found


def _moved(fit: GroupFit, group: Group) -> dict[str, float]:
    """Return the parameters of a fit for another group's model: small kernels of every layer are most of a step's
    fixed time, so that it is taken in proportion to the layers."""
    layer_ms = DetailedParameters().layer_us / 1e3
    had, has = (each.preset.layers for each in (fit.group, group))
    fixed_ms = (fit.values["overhead_ms"] + layer_ms * had) * has / had
    return {**fit.values, "overhead_ms": max(0.0, fixed_ms - layer_ms * has)}


def _medians(values: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of each parameter over those that have it."""
    names = dict.fromkeys(name for each in values for name in each)
    return {name: statistics.median(each[name] for each in values if name in each) for name in names}


def applied(task: tuple[Group, dict[str, float]]) -> GroupFit:
    """Return every point of a group predicted with parameters that it was not asked about."""
    group, values = task
    measurements = group.measurements()
    hardware = replace(measurements[0].server.hardware, detailed=values)
    held = [_errors(each, hardware, point) for each, point in zip(measurements, group.points, strict=True)]
    return GroupFit(group=group, values=values, held=tuple(held))


def why(fit: GroupFit) -> str:
    """Return what its figures say about why a group is far off: the table's own jumps first, then the model's."""
    points = fit.group.points
    for (_, ttft, tpot), (at, next_ttft, next_tpot) in pairwise(points):
        if next_tpot < 0.8 * tpot:
            return f"measured TPOT falls from {tpot:g} to {next_tpot:g} ms as load rises to {at}"
        if next_ttft < 0.5 * ttft:
            return f"measured TTFT falls from {ttft:g} to {next_ttft:g} ms as load rises to {at}"
        if next_ttft > 4 * ttft and points[-1][1] < 3 * next_ttft and next_tpot < 1.8 * tpot:
            return f"measured TTFT jumps from {ttft:g} to {next_ttft:g} ms at {at} and stays: no step explains it"
    if min(ttft for _, ttft, _ in points) > 3000 and fit.group.engine != "trtllm":
        return f"measured TTFT is {points[0][1] / 1e3:.1f} s already at {points[0][0]} in flight: no step explains it"
    late = max(fit.held, key=lambda point: abs(point.ttft) + abs(point.tpot))
    measured = {concurrency: (ttft, tpot) for concurrency, ttft, tpot in points}[late.concurrency]
    if abs(late.ttft) > abs(late.tpot):
        if late.ttft > 1:
            return f"at {late.concurrency} a queue is predicted that was not: the cache is larger than planned"
        if late.ttft < -0.5 and measured[0] > 5000:
            return f"at {late.concurrency} TTFT is {measured[0] / 1e3:.0f} s: the cache is smaller than planned"
        if points[1][1] < 0.8 * points[0][1]:
            return f"measured TTFT falls from {points[0][1]:g} to {points[1][1]:g} ms as load rises"
        if late.ttft < -0.3:
            return f"at {late.concurrency} requests wait {measured[0]:.0f} ms before any step: a queue in front of it"
        return f"TTFT at {late.concurrency} is off by {late.ttft:+.0%}"
    return f"TPOT at {late.concurrency} is off by {late.tpot:+.0%}: its growth with load is not that of one batch"


def medians(fits: Iterable[GroupFit]) -> tuple[int, int, float, float]:
    """Return (groups, points, median absolute error of TTFT, of TPOT)."""
    kept = [fit for fit in fits if fit.held]
    points = [held for fit in kept for held in fit.held]
    if not points:
        return 0, 0, 0.0, 0.0
    return (
        len(kept),
        len(points),
        statistics.median(abs(point.ttft) for point in points),
        statistics.median(abs(point.tpot) for point in points),
    )
