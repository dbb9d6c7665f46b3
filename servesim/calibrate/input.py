"""Measurements from files: saved runs, reports, an engine's own log of requests, and tables; in any mixture.

| file | recognised by | what it becomes |
|---|---|---|
| a saved run (`--save`) | its header | the run's own requests again, and the figures of its records |
| a report (`--json` of loadgen, simulate, sweep) | its schema | its workload again, and its distributions |
| an engine's log | a first line with `engine`, rows with `queued_s` and `first_token_s` | its requests, open loop |
| a table, CSV or JSON | columns `prompt_tokens` and `output_tokens` | a closed loop for each row |

The server of a measurement is what was asked for by name (`options`), over what its file says of it.

An engine's log is what the two vLLM runs that `validate` replays were written as: `engine`, `kv_cache` and `hardware`
in the first line; `arrival_s`, `first_token_s`, `last_token_s`, `prompt_tokens` and `output_tokens` in each row.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from servesim.calibrate.measurement import Measurement, figures_for, figures_of, standard_error
from servesim.catalog.hardware import named_hardware
from servesim.client.setup import NOTED_CACHED_SHARE, known_model, like_run
from servesim.config.build import Server, build_server
from servesim.config.option import checks_of, given_of
from servesim.config.server import ServerSpec
from servesim.config.workload import WorkloadSpec, build_workload, drive
from servesim.errors import InputError
from servesim.inputs import FileKind, recognise
from servesim.runs.reader import read_run
from servesim.runs.records import Outcome, Records, Run
from servesim.units import parse_count, parse_finite
from servesim.workload.requests import Requests
from servesim.workload.workload import Workload


def read_engine_log(path: str, text: str) -> tuple[Run, dict[str, Any]]:
    """Return the run in the `text` of the log at `path`, and its server as options: what the header tells of it.

    Raises `InputError` with the line of what is no request.
    """
    lines = text.splitlines()
    header = json.loads(lines[0])
    engine, cache, hardware = (_object(header, key) for key in ("engine", "kv_cache", "hardware"))
    device = hardware.get("device_name", "")
    known: dict[str, Any] = {
        "model": known_model({"model": header.get("model")}),
        "hardware": _device_of(str(device)),
        "kv_blocks": cache.get("num_gpu_blocks"),
        "block_size": cache.get("block_size"),
        "gpu_memory_utilization": cache.get("gpu_memory_utilization"),
        **{
            key: engine.get(key)
            for key in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "tensor_parallel_size")
        },
    }
    known = {key: value for key, value in known.items() if value is not None}
    rows = []
    for number, line in enumerate(lines[1:], 2):
        try:
            row = json.loads(line)
            sent_s, first_s, last_s = (float(row[key]) for key in ("arrival_s", "first_token_s", "last_token_s"))
            prompt, output = (parse_count(row[key], key) for key in ("prompt_tokens", "output_tokens"))
            if not (math.isfinite(sent_s) and sent_s <= first_s <= last_s < math.inf):
                raise ValueError("its times are no times, or in another order")
            rows.append((sent_s, first_s, last_s, prompt, output))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, InputError) as error:
            raise InputError(f"{path}:{number}: is no request of an engine log ({error})") from error
    return run_of_rows(rows), known


def _object(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object under `key`, an empty one where there is none."""
    found = document.get(key)
    return found if isinstance(found, dict) else {}


def run_of_rows(rows: Sequence[tuple[float, float, float, int, int]]) -> Run:
    """Return a measured run of (sent, first token, last token, prompt tokens, output tokens) rows, times in seconds."""
    rows = sorted(rows)
    requests, records, times = Requests(), Records(len(rows)), array("d")
    for index, (sent_s, first_s, last_s, prompt, output) in enumerate(rows):
        requests.prompt_tokens.append(prompt)
        requests.output_tokens.append(output)
        requests.arrival_s.append(sent_s)
        records.planned_s[index] = records.sent_s[index] = sent_s
        records.prompt_tokens[index], records.output_tokens[index] = prompt, output
        records.outcome[index] = Outcome.COMPLETED
        records.first[index] = len(times)
        times.append(first_s)
        if output > 1:
            times.append(last_s)
        records.last[index] = len(times) - 1
    return Run("measured", requests, records, times, {})


def _device_of(name: str) -> str | None:
    """Return the preset of a device as its driver names it: `NVIDIA GeForce RTX 4090` is rtx-4090-24gb."""
    words = re.sub(r"nvidia|geforce|amd|instinct|generation|blackwell|workstation|edition", " ", name.lower()).split()
    return named_hardware(" ".join(words))


WAVES = 10
"""Requests of a table's row, in units of its concurrency: what most benchmarks send."""

Options = dict[str, Any]

_COLUMN = re.compile(r"(ttft|tpot|e2e)(?:_(mean|p50|p90|p95|p99))?_(ms|s)(?:_(mean|p50|p90|p95|p99))?")
_ALIASES = {
    "input_tokens": "prompt_tokens",
    "isl": "prompt_tokens",
    "osl": "output_tokens",
    "tp": "tensor_parallel_size",
    "seconds": "e2e_s",
    "max_concurrency": "concurrency",
}


def read_measurements(path: str, options: Mapping[str, Any] | None = None) -> list[Measurement]:
    """Return the measurements in the file at `path`; `options` are `ServerSpec` fields given by name.

    Raises `InputError` for a file that is none of the four, and for a server that its options do not make.
    """
    given = dict(options or {})
    file = recognise(path)
    if file.kind is FileKind.RUN:
        return [of_run(path, read_run(path), given)]
    if not file.text.strip():
        raise InputError(f"{path}: is empty")
    if file.first is not None and isinstance(file.first.get("engine"), dict) and "schema" not in file.first:
        run, known = read_engine_log(path, file.text)
        return [of_run(path, run, {**known, **given})]
    if file.kind is FileKind.DOCUMENT:
        return of_report(path, file.value, given)
    rows, first_row = file.value, 1
    if isinstance(rows, dict):
        rows = rows.get("rows", [rows])
    elif file.fault and file.text.lstrip().startswith(("{", "[")):
        raise InputError(f"{path}: is not JSON: {file.fault}")
    elif rows is None:
        rows, first_row = list(csv.DictReader(io.StringIO(file.text))), 2  # the first line has the columns
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: is no saved run, report, engine log or table of measurements")
    return [of_row(f"{path}:{number}", row, given) for number, row in enumerate(rows, first_row)]


def of_run(label: str, run: Run, options: Options) -> Measurement:
    """Return the measurement of a run with its records: completed requests again, as they came."""
    records = run.records
    done = [index for index, outcome in enumerate(records.outcome) if outcome == Outcome.COMPLETED]
    if not done:
        raise InputError(f"{label}: no request completed, nothing can be fitted to it")
    if run.source == "simulated":
        known = given_of(ServerSpec, run.config)
        for name in ("mfu", "mbu", "step_overhead_s", "cost_model"):
            known.pop(name, None)
    else:
        like = like_run(run.config, run.setup)
        known = given_of(ServerSpec, like)
    done.sort(key=lambda index: records.sent_s[index])
    requests = Requests()
    prompts = [records.prompt_tokens[index] for index in done]
    cached = [max(records.cached_tokens[index], 0) for index in done]
    requests.prompt_tokens = array("q", (max(1, p - hit) for p, hit in zip(prompts, cached, strict=True)))
    requests.output_tokens = array("q", (records.output_tokens[index] for index in done))
    begin = records.sent_s[done[0]]
    requests.arrival_s = array("d", (records.sent_s[index] - begin for index in done))
    concurrency = run.config.get("concurrency")
    spec = WorkloadSpec(concurrency=concurrency, rate=None if concurrency else 1.0)
    figures = figures_of(run, figures_for(len(done)), label)
    span = max(run.times[records.last[index]] for index in done) - begin
    busy = sum(run.times[records.last[index]] - records.sent_s[index] for index in done)
    return _measurement(
        label,
        _server(label, {**known, **options}),
        lambda: drive(spec, requests),
        figures,
        concurrency=concurrency or busy / max(span, 1e-9),
        requests=requests,
        notes=_cached_note(label, sum(cached), sum(prompts)),
    )


def of_report(path: str, document: Mapping[str, Any], options: Options) -> list[Measurement]:
    """Return the measurement of a report, or those of each row of a sweep."""
    config = document.get("config")
    if not isinstance(config, dict):
        raise InputError(f"{path}: has no config, so its workload is not known")
    rows, setup = document.get("rows"), document.get("setup")
    if not isinstance(rows, list):
        return [_of_summary(path, document, config, setup, options)]
    if not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: a row is no summary")
    axes = [
        key for key in ("concurrency", "rate", "prompt_tokens", "output_tokens") if isinstance(config.get(key), list)
    ]
    return [
        _of_summary(f"{path} row {number}", row, {**config, **_swept(row, axes)}, setup, options)
        for number, row in enumerate(rows, 1)
    ]


def _swept(row: Mapping[str, Any], axes: Sequence[str]) -> Options:
    """Return a row's own values; a swept length is text, and a distribution of the same name is an object."""
    return {key: row[key] for key in axes if key in row and not isinstance(row[key], dict)}


def _of_summary(
    label: str, summary: Mapping[str, Any], config: Mapping[str, Any], setup: object, options: Options
) -> Measurement:
    workload = {field.name: config[field.name] for field in fields(WorkloadSpec) if config.get(field.name) is not None}
    if summary.get("source") == "measured":
        facts = setup if isinstance(setup, dict) else {}
        like = like_run(config, {"model": config.get("model"), **facts})
        known: Options = given_of(ServerSpec, like)
    else:
        known = given_of(ServerSpec, config)
        for name in ("mfu", "mbu", "step_overhead_s", "cost_model"):
            known.pop(name, None)
    spec = WorkloadSpec(**workload)
    requests = build_workload(spec).requests
    _stretch(requests.prompt_tokens, summary.get("prompt_tokens"))
    _stretch(requests.output_tokens, summary.get("output_tokens"))
    server = _server(label, {**known, **options})
    notes: tuple[str, ...] = ()
    if not server.spec.prefix_caching:
        notes = _leave_out_cached(label, requests, summary.get("tokens"))
    figures = {}
    for name in figures_for(len(requests)):
        metric, _, statistic = name.partition("_")
        distribution = summary.get(f"{metric}_ms")
        if isinstance(distribution, dict) and distribution.get(statistic) is not None:
            figures[name] = parse_finite(distribution[statistic], f"{label}: {metric}_ms {statistic}", above=0.0) / 1e3
    e2e = figures.get("e2e_mean", 1.0)
    return _measurement(
        label,
        server,
        lambda: drive(spec, requests),
        figures,
        concurrency=spec.concurrency or (spec.rate or 1.0) * e2e,
        requests=requests,
        notes=notes,
    )


def _leave_out_cached(label: str, requests: Requests, tokens: object) -> tuple[str, ...]:
    """Shorten the prompts by the share that the server had cached, where it counted; return what to say of it."""
    counts = tokens if isinstance(tokens, dict) else {}
    cached, prompt = counts.get("cached"), counts.get("prompt")
    if not isinstance(cached, int) or not isinstance(prompt, int) or not 0 < cached < prompt:
        return ()
    for index, length in enumerate(requests.prompt_tokens):
        requests.prompt_tokens[index] = max(1, round(length * (1 - cached / prompt)))
    return _cached_note(label, cached, prompt)


def _cached_note(label: str, cached: int, prompt: int) -> tuple[str, ...]:
    """Return what to say where so much of the prompts was cached that it matters how a fit takes it.

    What the server had cached it did not compute: it is left out of the prompts, and of the contexts with them.
    """
    if cached <= NOTED_CACHED_SHARE * prompt:
        return ()
    share = cached / prompt
    return (f"{label}: {share:.0%} of prompt tokens were cached and are left out, the reads of their KV too",)


def _stretch(lengths: array[int], measured: object) -> None:
    """Scale asked lengths to those that the server counted, where these are known and differ on average."""
    mean = measured.get("mean") if isinstance(measured, dict) else None
    asked = sum(lengths) / max(len(lengths), 1)
    if isinstance(mean, (int, float)) and mean > 0 and asked > 0 and abs(mean / asked - 1) > 0.005:
        for index, length in enumerate(lengths):
            lengths[index] = max(1, round(length * mean / asked))


def of_row(label: str, raw: Mapping[str, Any], options: Options) -> Measurement:
    """Return the measurement of a table's row: a closed loop of `concurrency` (1 where it is left out)."""
    row = {_ALIASES.get(str(key), str(key)): value for key, value in raw.items() if value not in ("", None)}
    figures = {}
    for column, value in row.items():
        match = _COLUMN.fullmatch(column)
        if match:
            statistic = match[2] or match[4] or "mean"
            scale = 1e3 if match[3] == "ms" else 1.0
            figures[f"{match[1]}_{statistic}"] = parse_finite(value, f"{label}: {column}", above=0.0) / scale
    known: Options = {}
    for key in ("model", "hardware"):
        if key in row:
            known[key] = known_model({"model": row[key]}) or row[key] if key == "model" else row[key]
    for key in checks_of(ServerSpec):
        if key in row and key not in known:
            known[key] = checks_of(ServerSpec)[key](row[key], f"{label}: {key}")
    concurrency = parse_count(row.get("concurrency", 1), f"{label}: concurrency")
    for key in ("prompt_tokens", "output_tokens"):
        if key not in row:
            raise InputError(f"{label}: {key} is missing, a measurement needs it")
    spec = WorkloadSpec(
        concurrency=concurrency,
        requests=parse_count(row.get("requests", WAVES * concurrency if concurrency > 1 else 1), f"{label}: requests"),
        prompt_tokens=str(row["prompt_tokens"]),
        output_tokens=str(row["output_tokens"]),
    )
    requests = build_workload(spec).requests
    return _measurement(
        label,
        _server(label, {**known, **options}),
        lambda: drive(spec, requests),
        figures,
        concurrency=concurrency,
        requests=requests,
    )


def _measurement(
    label: str,
    server: Server,
    workload: Callable[[], Workload],
    figures: Mapping[str, float],
    *,
    concurrency: float,
    requests: Requests,
    notes: tuple[str, ...] = (),
) -> Measurement:
    count = max(len(requests), 1)
    return Measurement(
        label=label,
        server=server,
        workload=workload,
        figures=figures,
        errors={name: standard_error(name) for name in figures},
        concurrency=concurrency,
        prompt_tokens=sum(requests.prompt_tokens) / count,
        output_tokens=sum(requests.output_tokens) / count,
        notes=notes,
    )


def _server(label: str, options: Options) -> Server:
    """Return the server of a measurement; raise `InputError` where nobody says which model or device it is."""
    for name in ("model", "hardware"):
        if name not in options:
            raise InputError(f"{label}: does not say which {name} it measured; give --{name}")
    return build_server(ServerSpec(**options))
