"""Measurements from files: saved runs, reports, an engine's own log of requests, and tables; in any mixture.

| file | recognised by | what it becomes |
|---|---|---|
| a saved run (`--save`) | its header | the run's own requests again, and the figures of its records |
| a report (`--json` of loadgen, simulate, sweep) | its schema | its workload again, and its distributions |
| an engine's log | a first line with `engine`, rows with `queued_s` and `first_token_s` | its requests, open loop |
| a table, CSV or JSON | columns `prompt_tokens` and `output_tokens` | a closed loop for each row |

The server of a measurement is what was asked for by name (`options`), over what its file says of it.
"""

from __future__ import annotations

import csv
import io
import json
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from servesim.analysis.measurement import Measurement, figures_for, figures_of, standard_error
from servesim.catalog.hardware import HARDWARE
from servesim.client.setup import known_model, like_run
from servesim.console import reason
from servesim.engine.server import Server, build_server
from servesim.engine.spec import SERVER_CHECKS, ServerSpec
from servesim.errors import InputError
from servesim.records import Outcome, Records, Run
from servesim.runreader import read_run
from servesim.units import parse_count, parse_finite
from servesim.workload.build import build_workload, drive
from servesim.workload.requests import Requests
from servesim.workload.spec import WorkloadSpec
from servesim.workload.workload import Workload

MAX_BYTES = 256 * 2**20
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
    text = _read(path)
    first = _first_object(text)
    if first is not None and first.get("kind") == "header":
        return [of_run(path, read_run(path), given)]
    if first is not None and isinstance(first.get("engine"), dict) and "schema" not in first:
        return [_of_log(path, text, given)]
    document = _whole(text)
    if isinstance(document, dict) and str(document.get("schema", "")).startswith("servesim."):
        return of_report(path, document, given)
    if document is None:
        rows: Sequence[Any] = list(csv.DictReader(io.StringIO(text)))
    else:
        rows = document.get("rows", [document]) if isinstance(document, dict) else document
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: is no saved run, report, engine log or table of measurements")
    return [of_row(f"{path}:{number}", row, given) for number, row in enumerate(rows, 2 if document is None else 1)]


def of_run(label: str, run: Run, options: Options) -> Measurement:
    """Return the measurement of a run with its records: completed requests again, as they came."""
    records = run.records
    done = [index for index, outcome in enumerate(records.outcome) if outcome == Outcome.COMPLETED]
    if not done:
        raise InputError(f"{label}: no request completed, nothing can be fitted to it")
    if run.source == "simulated":
        known = {key: run.config[key] for key in SERVER_CHECKS if run.config.get(key) is not None}
        for name in ("mfu", "mbu", "step_overhead_s", "cost_model"):
            known.pop(name, None)
    else:
        like = like_run(run.config, run.setup)
        known = {key: like[key] for key in SERVER_CHECKS if key in like}
    done.sort(key=lambda index: records.sent_s[index])
    requests = Requests()
    prompts = [records.prompt_tokens[index] for index in done]
    cached = [min(max(records.cached_tokens[index], 0), prompt - 1) for index, prompt in zip(done, prompts, strict=True)]
    requests.prompt_tokens = array("q", (prompt - hit for prompt, hit in zip(prompts, cached, strict=True)))
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
    rows = document.get("rows")
    if not isinstance(rows, list):
        return [_of_summary(path, document, config, options)]
    axes = [
        key for key in ("concurrency", "rate", "prompt_tokens", "output_tokens") if isinstance(config.get(key), list)
    ]
    return [
        _of_summary(f"{path} row {number}", row, {**config, **_swept(row, axes)}, options)
        for number, row in enumerate(rows, 1)
    ]


def _swept(row: Mapping[str, Any], axes: Sequence[str]) -> Options:
    """Return a row's own values; a swept length is text, and a distribution of the same name is an object."""
    return {key: row[key] for key in axes if key in row and not isinstance(row[key], dict)}


def _of_summary(label: str, summary: Mapping[str, Any], config: Mapping[str, Any], options: Options) -> Measurement:
    workload = {field.name: config[field.name] for field in fields(WorkloadSpec) if config.get(field.name) is not None}
    if summary.get("source") == "measured":
        facts = setup if isinstance(setup, dict) else {}
        like = like_run(config, {"model": config.get("model"), **facts})
        known: Options = {key: like[key] for key in SERVER_CHECKS if key in like}
    else:
        known = {key: config[key] for key in SERVER_CHECKS if config.get(key) is not None}
        for name in ("mfu", "mbu", "step_overhead_s", "cost_model"):
            known.pop(name, None)
    spec = WorkloadSpec(**workload)
    requests = build_workload(spec).requests
    _stretch(requests.prompt_tokens, summary.get("prompt_tokens"))
    _stretch(requests.output_tokens, summary.get("output_tokens"))
    figures = {}
    for name in figures_for(len(requests)):
        metric, _, statistic = name.partition("_")
        distribution = summary.get(f"{metric}_ms")
        if isinstance(distribution, dict) and isinstance(distribution.get(statistic), (int, float)):
            figures[name] = distribution[statistic] / 1e3
    e2e = figures.get("e2e_mean", 1.0)
    return _measurement(
        label,
        _server(label, {**known, **options}),
        lambda: drive(spec, requests),
        figures,
        concurrency=spec.concurrency or (spec.rate or 1.0) * e2e,
        requests=requests,
    )


def _stretch(lengths: array[int], measured: object) -> None:
    """Scale asked lengths to those that the server counted, where these are known and differ on average."""
    mean = measured.get("mean") if isinstance(measured, dict) else None
    asked = sum(lengths) / max(len(lengths), 1)
    if isinstance(mean, (int, float)) and mean > 0 and asked > 0 and abs(mean / asked - 1) > 0.005:
        for index, length in enumerate(lengths):
            lengths[index] = max(1, round(length * mean / asked))


def _of_log(path: str, text: str, options: Options) -> Measurement:
    """Return the measurement of an engine's own log: a header with its settings, then a line a request."""
    lines = text.splitlines()
    header = json.loads(lines[0])
    engine, cache = header["engine"], header.get("kv_cache") or {}
    device = (header.get("hardware") or {}).get("device_name", "")
    known: Options = {
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
            rows.append((sent_s, first_s, last_s, int(row["prompt_tokens"]), int(row["output_tokens"])))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}:{number}: is no request of an engine log ({error})") from error
    return of_run(path, run_of_rows(rows), {**known, **options})


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
    for key in SERVER_CHECKS:
        if key in row and key not in known:
            known[key] = SERVER_CHECKS[key](row[key], f"{label}: {key}")
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
    )


def _server(label: str, options: Options) -> Server:
    """Return the server of a measurement; raise `InputError` where nobody says which model or device it is."""
    for name in ("model", "hardware"):
        if name not in options:
            raise InputError(f"{label}: does not say which {name} it measured; give --{name}")
    return build_server(ServerSpec(**options))


def _device_of(name: str) -> str | None:
    """Return the preset of a device as its driver names it: `NVIDIA GeForce RTX 4090` is rtx-4090-24gb."""
    words = re.sub(r"nvidia|geforce|amd|instinct|generation|blackwell|workstation|edition", " ", name.lower()).split()
    wanted = "-".join(words)
    return next((preset for preset in HARDWARE if wanted and preset.startswith(f"{wanted}-")), None)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text") from error
    if len(text) > MAX_BYTES:
        raise InputError(f"{path}: is larger than {MAX_BYTES:,} characters")
    if not text.strip():
        raise InputError(f"{path}: is empty")
    return text


def _first_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object on the first line, None where there is none."""
    found = _whole(text.split("\n", 1)[0])
    return found if isinstance(found, dict) else None


def _whole(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
