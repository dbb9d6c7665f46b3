"""Reads a saved run back: the same `Run` as before, whoever made it, up to where its file was cut.

What the lines mean together is known here; the requests among them are put together by `runrows`.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, fields
from typing import Any

from servesim.errors import InputError
from servesim.records import EngineTotals, GaugeSample, Run, StepLog
from servesim.runfile import SCHEMA
from servesim.runlines import Line, read_lines
from servesim.runrows import Rows
from servesim.units import shown

_SCHEMA_NAME, _SCHEMA_NUMBER = SCHEMA.split("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """A run and what its file says around it; `whole` is False where the run or its file ended early."""

    path: str
    command: str
    version: str
    whole: bool
    run: Run


def read_run(path: str) -> Run:
    """Return the run saved in `path`; `partial` where the run or its file ended early. Raises `InputError`."""
    return read_saved(path).run


def read_saved(path: str) -> SavedRun:
    """Return the run saved in `path` with the facts of its header. Raises `InputError` in one line."""
    lines = read_lines(path)
    header = _check_header(path, next(lines, None))
    steps = StepLog()
    times: array[float] = array("d")
    rows, warmup_rows = Rows(path, steps, times), Rows(path, steps, times)
    engine, gauges, footer, facts = None, [], None, None
    replicas: list[dict[str, Any]] = []
    link: dict[str, Any] | None = None
    for line in lines:
        if footer is not None:
            raise InputError(f"{line.where}: the run ended on the line before; is this two files in one?")
        kind = line.fields.get("kind")
        if kind == "request":
            rows.add(line)
        elif kind == "warmup":
            warmup_rows.add(line)
        elif kind == "steps":
            _add_steps(steps, line)
        elif kind == "gauge":
            gauges.append(_gauge(line))
        elif kind == "engine":
            engine = _engine(line)
        elif kind == "facts":
            facts = line
        elif kind == "replica":
            replicas.append(_replica(line))
        elif kind == "link":
            link = {key: line.count(key) for key in ("moved_bytes", "transfers")}
            link |= {key: line.number(key) for key in ("busy_s", "busy")}
        elif kind == "footer":
            footer = line
        else:
            raise line.wrong("kind", "request, warmup, steps, gauge, engine, facts, replica, link or footer")
    requests, records = rows.build()
    run = Run(
        source=header.text("source"),
        requests=requests,
        records=records,
        times=_all_times(steps, times),
        config=header.table("config"),
        steps=steps if len(steps) else None,
        engine=engine,
        gauges=gauges,
        setup=header.table("setup"),
        replicas=replicas,
        homes=rows.homes,
        stages=rows.stages,
        link=link,
    )
    if facts is not None:
        _add_facts(run, facts)
    if len(warmup_rows):
        warmup_requests, warmup_records = warmup_rows.build()
        run.warmup = Run(run.source, warmup_requests, warmup_records, run.times, run.config, steps=run.steps)
    whole = footer is not None and _add_footer(run, footer, len(records))
    if footer is None:
        run.warnings.append(f"{path} was cut: {len(records):,} requests were read, those behind the cut are lost")
    run.partial = not whole
    return SavedRun(path=path, command=header.text("command"), version=header.text("servesim"), whole=whole, run=run)


def _check_header(path: str, line: Line | None) -> Line:
    if line is None:
        raise InputError(f"{path}: no header, must be a saved run (--save)")
    name, _, number = str(line.fields.get("schema")).partition("/")
    if line.fields.get("kind") != "header" or name != _SCHEMA_NAME:
        raise InputError(f"{line.where}: no header of a saved run; schema is {shown(line.fields.get('schema'))}")
    if number != _SCHEMA_NUMBER:
        raise InputError(f"{line.where}: schema is {name}/{number}, this version of servesim reads {SCHEMA}")
    for key in ("source", "command", "servesim"):
        line.text(key)
    line.table("config")
    line.table("setup")
    return line


def _add_steps(steps: StepLog, line: Line) -> None:
    if line.count("from") != len(steps):
        raise line.wrong("from", f"{len(steps)}, where the lines before it end")
    end_s = line.times("end_s")
    for key, column in (
        ("decodes", steps.decodes),
        ("prefill_tokens", steps.prefill_tokens),
        ("kv_blocks", steps.kv_blocks),
    ):
        counts = line.counts(key)
        if counts and len(counts) != len(end_s):
            raise InputError(f"{line.where}: {key} has {len(counts)} values, must have {len(end_s)} as end_s has")
        column.extend(counts)
    steps.end_s.extend(end_s)
    for step, start_s in line.pairs("starts"):
        if type(step) is not int or not 0 <= step < len(steps) or start_s is None:
            raise line.wrong("starts", "a list of pairs of a step number and its start")
        steps.starts[step] = float(start_s)


def _all_times(steps: StepLog, times: array[float]) -> array[float]:
    """Return the ends of the steps and, behind them, the times that are in no step."""
    return steps.end_s + times if len(steps) and len(times) else steps.end_s if len(steps) else times


def _replica(line: Line) -> dict[str, Any]:
    figures: dict[str, Any] = {"replica": line.count("replica"), "name": line.text("name"), "role": line.text("role")}
    for key in ("requests", "steps", "computed_tokens", "preemptions", "evictions"):
        figures[key] = line.count(key)
    for key in ("mean_batch", "busy", "kv_peak", "kv_mean", "prefix_hit_rate"):
        figures[key] = None if line.fields.get(key) is None else line.number(key)
    return figures


def _gauge(line: Line) -> GaugeSample:
    return GaugeSample(
        at_s=line.number("at_s"),
        running=line.count("running"),
        waiting=line.count("waiting"),
        kv_blocks=None if line.fields.get("kv_blocks") is None else line.count("kv_blocks"),
        kv_fraction=None if line.fields.get("kv_fraction") is None else line.number("kv_fraction"),
        preemptions=line.count("preemptions", default=0),
        output_tokens=line.count("output_tokens", default=0),
    )


def _engine(line: Line) -> EngineTotals:
    totals = EngineTotals()
    for field in fields(EngineTotals):
        if field.name in line.fields:
            read = line.number if type(field.default) is float else line.count
            setattr(totals, field.name, read(field.name))
    return totals


def _add_facts(run: Run, line: Line) -> None:
    offload = line.fields.get("offload", [])
    if not isinstance(offload, list) or not all(isinstance(tier, dict) for tier in offload):
        raise line.wrong("offload", "a list of objects")
    run.offload = offload
    run.scaling = line.table("scaling") or None
    run.usage = line.table("usage") or None


def _add_footer(run: Run, footer: Line, requests: int) -> bool:
    """Take over what the footer says; return whether the run was whole."""
    if footer.count("requests") != requests:
        raise footer.wrong("requests", f"{requests}, the number of requests before it")
    run.warnings.extend(footer.texts("warnings"))
    run.violations.extend(footer.texts("violations"))
    run.setup = footer.table("setup") or run.setup
    run.client = footer.table("client") or None
    run.server = footer.table("server") or None
    return footer.flag("whole")
