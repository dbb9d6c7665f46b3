"""Every schema by name: one entry a document or file, from which `servesim schema` and the tests take theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servesim.report.explain import StepCost
from servesim.report.schemas import answers, bodies, lines
from servesim.report.schemas.vocabulary import PART_NAMES, fields_of, json_schema, parts_of
from servesim.units import suggest
from servesim.workload.traces.describe import TraceDescription

DIALECT = "https://json-schema.org/draft/2020-12/schema"

FRAME = {
    "servesim": "text: the version that wrote it",
    "command": "text: the verb that wrote it",
    "config": "object: the effective configuration with its seed, which --config takes",
    "partial": "flag: whether the run was cut short",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """One kind of document or line; `framed` ones have servesim's frame around their body."""

    about: str
    body: Any
    framed: bool = True
    number: int = 1
    lines: bool = False


SCHEMAS: dict[str, Schema] = {
    "summary": Schema(
        about="one run: simulate --json, loadgen --json", body={**bodies.SUMMARY, **bodies.BESIDE_A_SUMMARY}
    ),
    "sweep": Schema(about="a grid of runs: sweep --json, loadgen --json with a list", body=bodies.SWEEP),
    "find": Schema(about="the highest load within objectives: loadgen --find --json", body=bodies.FIND),
    "capacity": Schema(about="what fits: capacity --json", body=answers.CAPACITY),
    "compare": Schema(about="two runs side by side: compare --json", body=answers.COMPARE),
    "plan": Schema(about="the cheapest servers: plan --json", body=answers.PLAN),
    "plan-shard": Schema(about="one line of what plan --shard writes", body=lines.SHARD, framed=False, lines=True),
    "diagnose": Schema(about="what binds a server: diagnose --json", body=answers.DIAGNOSE),
    "calibrate": Schema(about="a fit: calibrate --json", body=answers.CALIBRATE),
    "device": Schema(
        about="a device: what calibrate -o writes and --hardware FILE reads", body=bodies.DEVICE, framed=False
    ),
    "validate": Schema(about="the evidence for the cost models: validate --json", body=answers.VALIDATE),
    "run": Schema(about="one line of a saved run: --save FILE", body=lines.RUN, framed=False, lines=True),
    "report": Schema(about="summaries of saved runs: report --json", body=bodies.REPORT),
    "trace": Schema(about="what is in a trace: trace describe --json", body=fields_of(TraceDescription)),
    "models": Schema(about="models or formats of weights: models --json", body=bodies.MODELS),
    "hardware": Schema(about="devices: hardware --json", body=bodies.HARDWARE),
    "schema": Schema(about="what schemas there are: schema --json", body=bodies.SCHEMAS_THERE_ARE),
}
"""The name and number in a document's `schema` are `servesim.NAME/NUMBER`."""

PARTS: dict[str, Any] = {
    **{name: fields_of(kind) for kind, name in PART_NAMES.items()},
    "slo": bodies.SLO,
    "histogram": bodies.HISTOGRAM,
    "client": bodies.CLIENT,
    "server": bodies.SERVER,
    "summary": bodies.SUMMARY,
    "cost": fields_of(StepCost),
    "request": lines.REQUEST,
    "trial": answers.TRIAL,
}


def identity(name: str) -> str:
    """Return what the key `schema` of a document of this kind says."""
    return f"servesim.{name}/{SCHEMAS[name].number}"


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of one kind of document or line, whole in itself. Raises `InputError` for no such name.

    >>> schema("summary")["$id"]
    'servesim.summary/1'
    """
    found = SCHEMAS.get(name)
    if found is None:
        raise suggest("schema", name, SCHEMAS)
    body = found.body
    if isinstance(body, Mapping):
        body = {"schema": (identity(name),), **(FRAME if found.framed else {}), **body}
    whole = {"$schema": DIALECT, "$id": identity(name), "title": found.about, **json_schema(body)}
    return whole | {"$defs": _parts(parts_of(whole))}


def _parts(names: set[str]) -> dict[str, Any]:
    """Return the schemas of parts, with those of the parts in them, in the order of the registry."""
    wanted: set[str] = set()
    while names:
        wanted |= names
        names = set[str]().union(*(parts_of(json_schema(PARTS[name])) for name in names)) - wanted
    return {name: json_schema(PARTS[name]) for name in PARTS if name in wanted}
