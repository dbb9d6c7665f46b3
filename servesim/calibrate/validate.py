"""The evidence, rerun: every data set fitted and held against what was not fitted, with the bounds it should keep.

An `Evidence` is one question with its claims (a figure beside its bound), its tables and its notes. What cannot be
asked, since the data are not at hand, says so. Measurements are read from the folder that is named; the two scans of
the M4 Pro are short enough to stand here.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any

from servesim.calibrate.calibrate import Calibration, Point, calibrate, points_of
from servesim.calibrate.input import of_report, of_row, read_measurements
from servesim.calibrate.measurement import Measurement
from servesim.calibrate.parameters import PHYSICAL
from servesim.calibrate.silicon import GroupFit, applied, fit_group, guessed, medians, read_groups, transfers, why
from servesim.calibrate.solver import Parameter
from servesim.catalog.hardware import HARDWARE
from servesim.config.build import Server, build_server
from servesim.config.server import ServerSpec
from servesim.config.workload import WorkloadSpec
from servesim.engine.simulate import run_workload
from servesim.interrupts import leave_interrupts_to_the_parent
from servesim.report.documents import summary_document
from servesim.summary.summary import summarize

Progress = Callable[[int, int], None]


@dataclass(slots=True, frozen=True, kw_only=True)
class Claim:
    """One figure beside the bound that it should keep; both are shares, 0.02 for 2 %. Without a bound it is told."""

    what: str
    value: float
    bound: float | None = None

    @property
    def met(self) -> bool | None:
        return None if self.bound is None else self.value <= self.bound


@dataclass(slots=True, frozen=True, kw_only=True)
class Table:
    """Rows of text and numbers under their columns; a float is a share."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float, ...], ...]


@dataclass(slots=True, frozen=True, kw_only=True)
class Evidence:
    """One question, answered."""

    name: str
    about: str
    claims: tuple[Claim, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: str = ""  # why it was not asked

    @property
    def met(self) -> bool:
        """Return whether no claim is outside its bound."""
        return all(claim.met is not False for claim in self.claims)

    def as_dict(self) -> dict[str, Any]:
        document = asdict(self)
        document["claims"] = [{**asdict(claim), "met": claim.met} for claim in self.claims]
        return document


class DataMissingError(Exception):
    """The data of an evidence are not at hand."""


def validate(
    folder: str | None, *, names: Sequence[str] = (), jobs: int = 1, progress: Progress | None = None
) -> list[Evidence]:
    """Return every evidence, or those of `names`; `folder` holds the data sets (None: those that need none)."""
    found = []
    for name, (about, collect) in EVIDENCE.items():
        if names and name not in names:
            continue
        try:
            found.append(replace(collect(folder, jobs, progress), name=name, about=about))
        except DataMissingError as missing:
            found.append(Evidence(name=name, about=about, skipped=str(missing)))
    return found


# What servesim makes with known figures, found again

KNOWN_ROOFLINE = {"mfu": 0.43, "mbu": 0.68, "overhead_ms": 2.5}
KNOWN_DETAILED = {"mfu": 0.62, "mbu": 0.71, "overhead_ms": 2.4, "ingest_ms": 9.0, "kv_mbu": 0.66}
LOADS = (
    ("llama-3.1-8b", 1, "1500", "40"),
    ("llama-3.1-8b", 8, "500-900", "60"),
    ("llama-3.1-8b", 32, "200-400", "80"),
    ("llama-3.1-8b", 48, "6000-8000", "200"),
    ("llama-3.1-8b", 128, "500-1500", "60"),
    ("llama-3.1-8b", 256, "100-300", "80"),
    ("llama-3.2-1b", 1, "200", "60"),
    ("llama-3.2-1b", 16, "200-400", "60"),
)
"""Two models: the overhead of a step is most of it with a small one, so that it can be told from a weight read."""

NOISE = 0.03
REPEATS = 4  # of each noisy report


def known_reports(cost_model: str, noise: float = 0.0, *, repeats: int = 1, seed: int = 7) -> list[Measurement]:
    """Return measurements from reports of simulated runs with known figures.

    Every time in each of the `repeats` of a report is off by `noise`, at random and independently.
    """
    rng = random.Random(seed)
    found = []
    for model, concurrency, prompt, output in LOADS:
        options = {"hardware": "h100-sxm-80gb", "model": model}
        load = WorkloadSpec(
            concurrency=concurrency,
            requests=max(10, 2 * concurrency),
            prompt_tokens=prompt,
            output_tokens=output,
        )
        run = run_workload(known_server(cost_model, model), load)
        document = summary_document("simulate", run.config, summarize(run))
        (measurement,) = of_report(f"{model} at {concurrency}", document, options)
        for _ in range(repeats):
            figures = {name: value * (1 + rng.gauss(0, noise)) for name, value in measurement.figures.items()}
            found.append(replace(measurement, figures=figures))
    return found


def known_server(cost_model: str, model: str) -> Server:
    """Return an H100 with the known figures."""
    server = build_server(ServerSpec(model=model, hardware="h100-sxm-80gb"))
    if cost_model == "roofline":
        return replace(server, hardware=server.hardware.with_efficiency(**KNOWN_ROOFLINE))
    hardware = replace(server.hardware, detailed=KNOWN_DETAILED)
    return replace(server, hardware=hardware, spec=replace(server.spec, cost_model=cost_model))


def _recovery(folder: str | None, jobs: int, progress: Progress | None) -> Evidence:
    claims, rows = [], []
    for cost_model, known, bound in (("roofline", KNOWN_ROOFLINE, 0.01), ("detailed", KNOWN_DETAILED, 0.05)):
        for noise, limit in ((0.0, bound), (NOISE, 0.10)):
            reports = known_reports(cost_model, noise, repeats=REPEATS if noise else 1)
            fit = calibrate(reports, cost_model=cost_model, names=tuple(known))
            errors = {name: fit.solution.values[name] / value - 1 for name, value in known.items()}
            what = f"{cost_model}, {f'{noise:.0%} noise on every time' if noise else 'no noise'}: worst parameter"
            claims.append(Claim(what=what, value=max(map(abs, errors.values())), bound=limit))
            rows += [
                (cost_model, f"{noise:.0%}", name, f"{known[name]:g}", f"{fit.solution.values[name]:.4g}", error)
                for name, error in errors.items()
            ]
    columns = ("model", "noise", "parameter", "known", "fitted", "off")
    return _evidence(claims, [Table(title="parameters found again", columns=columns, rows=tuple(rows))])


# Two runs of a real vLLM, request by request

RUNS = {
    "rtx-4090-24gb": "vllm-rtx4090-llama-3.1-8b.jsonl",
    "rtx-pro-6000-96gb": "vllm-rtxpro6000-llama-3.1-8b.jsonl",
}
CARRIED = ("mfu", "mbu", "overhead_ms")
"""What a fit for another card finds; the other terms keep their defaults, which come from both cards' kernel tables and
from a joint fit of these two runs."""


def _vllm_runs(folder: str | None, jobs: int, progress: Progress | None) -> Evidence:
    claims, rows, notes = [], [], []
    fits: dict[str, Calibration] = {}
    runs: dict[str, Measurement] = {}
    for device, file in RUNS.items():
        by_scheduler = {}
        for ahead in (False, True):
            options = {"hardware": device, "model": "llama-3.1-8b", "async_scheduling": ahead}
            (run,) = read_measurements(_data(folder, file), options)
            fit = by_scheduler[ahead] = calibrate([run], cost_model="roofline")
            rows.append(_run_row(device, "roofline, 3 fitted" + (", asynchronous" if ahead else ""), fit.points))
            if ahead:
                runs[device] = run
        sync, ahead_fit = by_scheduler[False].mean_error, by_scheduler[True].mean_error
        claims.append(Claim(what=f"{device}: roofline and three fitted numbers", value=sync, bound=0.02))
        better = "better" if ahead_fit < sync - 0.002 else "worse" if ahead_fit > sync + 0.002 else "no better"
        notes.append(f"{device}: the asynchronous scheduler fits {better}, {ahead_fit:.1%} against {sync:.1%}")
        fits[device] = calibrate([runs[device]], cost_model="detailed", names=CARRIED, guess=physical)
        rows.append(_run_row(device, "detailed, 3 fitted, asynchronous", fits[device].points))
    for device in RUNS:
        (other,) = (name for name in RUNS if name != device)
        carried = replace(HARDWARE[other], detailed=fits[device].hardware.detailed)
        points = points_of([runs[other].on(HARDWARE[other], "detailed")], carried, "detailed")
        rows.append(_run_row(other, f"detailed, carried from {device}", points))
        error = statistics.fmean(abs(point.error) for point in points)
        claims.append(Claim(what=f"{other}: detailed, carried from {device}", value=error, bound=0.10))
    columns = ("device", "fit", *(point.figure for point in fits[other].points), "mean")
    return _evidence(claims, [Table(title="predicted over measured, 300 requests", columns=columns, rows=tuple(rows))],
                     notes)  # fmt: skip


def physical(parameter: Parameter) -> Parameter:
    """Hold every parameter loosely to its default, and a share of a peak to at most 1."""
    return replace(guessed(parameter), high=min(parameter.high, 1.0) if parameter.name in PHYSICAL else parameter.high)


def _run_row(device: str, what: str, points: Sequence[Point]) -> tuple[str | float, ...]:
    return device, what, *(point.error for point in points), statistics.fmean(abs(point.error) for point in points)


# Many servers, two points each


def _silicon(folder: str | None, jobs: int, progress: Progress | None) -> Evidence:
    groups = read_groups(_data(folder, "silicon.csv"))
    fits = []
    with _pool(jobs) as run:
        for fit in run(fit_group, groups):
            fits.append(fit)
            if progress is not None:
                progress(len(fits), len(groups))
        moved = list(run(applied, transfers(fits)))
    done = [fit for fit in fits if fit.held]
    if not done:
        raise DataMissingError(f"no group of silicon.csv has a point that was not fitted: {fits[0].failed}")
    _, _, ttft, tpot = medians(done)
    claims = [
        Claim(what="TPOT, median absolute error of points that were not fitted", value=tpot, bound=0.05),
        Claim(what="TTFT, median absolute error of points that were not fitted", value=ttft, bound=0.18),
    ]
    columns = ("", "groups", "points", "TTFT", "TPOT")
    tables = [
        Table(title="fitted on the lowest and the second highest concurrency, median absolute errors of the others",
              columns=columns, rows=tuple(_breakdown(done))),
        Table(
            title="the ten groups that are furthest off",
            columns=("group", "server", "load", "TTFT", "TPOT", "reason"),
            rows=tuple(_worst(fit) for fit in sorted(done, key=lambda fit: -fit.error)[:10]),
        ),
    ]  # fmt: skip
    if moved:
        title = "parameters of the other models on the same hardware and engine, every point"
        tables.append(Table(title=title, columns=columns, rows=tuple(_breakdown(moved))))
    failed = [f"{fit.group.key} ({fit.group.model}, {fit.group.hardware}): {fit.failed}" for fit in fits if fit.failed]
    notes = [f"{len(done)} of {len(groups)} groups have a point that was not fitted"]
    if failed:
        notes += [f"left out: {text}" for text in failed[:10]]
        if len(failed) > 10:
            notes.append(f"left out: {len(failed) - 10} more")
    return _evidence(claims, tables, notes)


def _breakdown(fits: Sequence[GroupFit]) -> Iterator[tuple[str | int | float, ...]]:
    yield "all", *medians(fits)
    for key in ("engine", "hardware", "model_class", "model"):
        for name in sorted({getattr(fit.group, key) for fit in fits}):
            yield name.split("/")[-1], *medians(fit for fit in fits if getattr(fit.group, key) == name)


def _worst(fit: GroupFit) -> tuple[str | int | float, ...]:
    group = fit.group
    server = f"{group.model.split('/')[-1]}, {group.engine}, {group.devices} x {group.hardware}"
    _, _, ttft, tpot = medians([fit])
    return group.key, server, f"{group.input_tokens}/{group.output_tokens}", ttft, tpot, why(fit)


# One laptop, one request at a time: SPEC's two scans of Qwen3-0.6B on an M4 Pro

OUTPUT_SCAN = ((19, 10, 0.099), (19, 50, 0.417), (19, 100, 0.810), (19, 200, 1.605), (19, 250, 2.026))
INPUT_SCAN = ((22, 100, 0.872), (108, 100, 0.931), (293, 100, 0.925), (546, 100, 0.969), (1235, 100, 1.266))


def scans() -> list[Measurement]:
    """Return the two scans, measured elsewhere: (prompt tokens, output tokens, seconds) a row."""
    options = {"model": "qwen3-0.6b", "hardware": "apple-m4-pro"}
    return [
        of_row(
            f"{prompt} in, {output} out", {"prompt_tokens": prompt, "output_tokens": output, "e2e_s": e2e_s}, options
        )
        for prompt, output, e2e_s in OUTPUT_SCAN + INPUT_SCAN
    ]


def _m4_pro(folder: str | None, jobs: int, progress: Progress | None) -> Evidence:
    fit = calibrate(scans(), cost_model="detailed")
    errors = [abs(point.error) for point in fit.points]
    rows = tuple(
        (point.label, f"{point.measured_s:.3f} s", f"{point.predicted_s:.3f} s", point.error) for point in fit.points
    )
    half = len(OUTPUT_SCAN)
    claims = [
        Claim(what="output scan, mean absolute error", value=statistics.fmean(errors[:half]), bound=0.05),
        Claim(what="input scan, mean absolute error", value=statistics.fmean(errors[half:]), bound=0.05),
        Claim(what="worst point", value=max(errors), bound=0.10),
    ]
    table = Table(title="one fit for both scans", columns=("request", "measured", "fitted", "off"), rows=rows)
    return _evidence(claims, [table], fit.hints)


Collect = Callable[[str | None, int, Progress | None], Evidence]

EVIDENCE: dict[str, tuple[str, Collect]] = {
    "recovery": ("reports that servesim itself made with known figures give the figures back", _recovery),
    "vllm-runs": ("two runs of vLLM 0.19 with Llama 3.1 8B, 300 requests each, replayed", _vllm_runs),
    "silicon": ("H100, H200, B200, B300 and GB200 under vLLM, SGLang and TensorRT-LLM", _silicon),
    "m4-pro": ("Qwen3-0.6B through PyTorch on an M4 Pro, one request at a time", _m4_pro),
}
"""Every evidence by name, what it asks and who collects it."""


def _evidence(claims: Sequence[Claim], tables: Sequence[Table], notes: Sequence[str] = ()) -> Evidence:
    return Evidence(name="", about="", claims=tuple(claims), tables=tuple(tables), notes=tuple(notes))


def _data(folder: str | None, file: str) -> str:
    if folder is None:
        raise DataMissingError(f"{file} is not at hand: name its folder with SERVESIM_DATA or --data")
    path = os.path.join(folder, file)
    if not os.path.isfile(path):
        raise DataMissingError(f"{file} is not in {folder}")
    return path


@contextmanager
def _pool(jobs: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """Give a map over `jobs` processes, or over none; results come in order."""
    if jobs <= 1:
        yield map
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=leave_interrupts_to_the_parent)
    try:
        yield pool.map
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
