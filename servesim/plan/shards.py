"""A plan on many machines: rows as lines of JSON, written as they come, read back in any order and any number of times.

The first line is the header: the plan's configuration and a digest of all that its rows depend on. Lines of one plan
may lie in any number of files; the same row twice is one row; a file that was cut in the midst of a line is whole up
to it. Two files of different plans, or two different rows of one unit, are refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import IO, Any

from servesim import __version__
from servesim.console import reason
from servesim.errors import InputError, RunError
from servesim.inputs import open_binary, read_text
from servesim.plan.plan import PlanSpec
from servesim.plan.space import digest
from servesim.plan.trial import Row
from servesim.units import parse_count, shown

SCHEMA = "servesim.plan-shard/1"


def plan_digest(spec: PlanSpec) -> str:
    """Return the digest of everything that a plan's rows depend on; a trace counts by its content, not by its path."""
    workload = spec.question.workload.as_dict()
    if workload["trace"] is not None:
        with open_binary(workload["trace"]) as file:
            workload["trace"] = digest(file.read().hex())
    return digest(
        {
            "workload": workload,
            "slo": [str(slo) for slo in spec.question.slos],
            "candidates": sorted(candidate.key for candidate in spec.candidates),
            "version": __version__,
        }
    )[:16]


def parse_shard(text: object, name: str) -> str:
    """Return the shard in `2/8`, the second of eight, checked.

    >>> parse_shard("2/8", "shard")
    '2/8'
    """
    number, slash, count = text.partition("/") if isinstance(text, str) else ("", "", "")
    if not slash:
        raise InputError(f"{name} is {shown(text)}, must be number/count such as 1/8, counted from 1")
    whole = parse_count(count, f"count of {name}", maximum=10**6)
    return f"{parse_count(number, f'number of {name}', maximum=whole)}/{whole}"


class ShardWriter:
    """Appends rows to `path`, each flushed, behind what is there already; None writes to `stream`."""

    def __init__(self, path: str | None, stream: IO[str], config: dict[str, Any], plan: str, *, begun: bool) -> None:
        self._path = path
        try:
            # What a killed shard left of its last line must not run into ours.
            self._file = stream if path is None else open(path, "a", encoding="utf-8", newline="\n")  # noqa: SIM115
        except OSError as error:
            raise RunError(f"cannot write {path}: {reason(error)}") from error
        if begun:
            self._write("\n")
        else:
            self._line({"kind": "header", "schema": SCHEMA, "servesim": __version__, "config": config, "plan": plan})

    def row(self, row: Row) -> None:
        self._line(row)

    def close(self) -> None:
        if self._path is not None:
            self._file.close()

    def _line(self, line: dict[str, Any]) -> None:
        self._write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            raise RunError(f"cannot write {self._path or 'the result'}: {reason(error)}") from error


def read_shards(paths: Sequence[str]) -> tuple[dict[str, Any], str, list[Row], list[str]]:
    """Return (configuration, digest, rows, notes) of the plan whose rows lie in the files at `paths`.

    Raises `InputError` naming the file and line of whatever does not belong to it.
    """
    header: dict[str, Any] | None = None
    rows: dict[str, Row] = {}
    notes = []
    for path in paths:
        lines, cut = _lines(path)
        if cut:
            notes.append(f"{path} was cut in the midst of a line; what was lost is computed again")
        elif not lines:
            notes.append(f"{path} is empty; what was lost is computed again")
        if lines and lines[0][1].get("schema") != SCHEMA:
            raise InputError(f"{path}: no header of a plan's shard, must begin with schema {SCHEMA}")
        for number, line in lines:
            if line.get("kind") == "header":
                if header is not None and header.get("plan") != line.get("plan"):
                    raise InputError(f"{path}:{number}: belongs to another plan than {paths[0]}")
                header = header or line
                continue
            unit = line.get("unit")
            if not isinstance(unit, str):
                raise InputError(f"{path}:{number}: no row of a plan")
            _check_row(f"{path}:{number}", line)
            if rows.setdefault(unit, line) != line:
                raise InputError(f"{path}:{number}: {unit} came out differently in another file")
    if header is None or not isinstance(header.get("config"), dict):
        raise InputError(f"{paths[0]}: no header of a plan's shard, must begin with schema {SCHEMA}")
    return header["config"], str(header.get("plan")), list(rows.values()), notes


_NUMBER = (int, float, type(None))
_ALWAYS: dict[str, tuple[type, ...]] = {"candidate": (str,), "seed": (int,), "rate": _NUMBER}
_SEARCHED: dict[str, tuple[type, ...]] = {"estimate": _NUMBER, "next_rate": _NUMBER, "probes": (list,)}
_FOUND: dict[str, tuple[type, ...]] = {"at": (dict,)}


def _check_row(where: str, row: Row) -> None:
    """Raise `InputError` for a row that lacks what the plan reckons with, or has something else in its place."""
    expected = _ALWAYS | (_SEARCHED if row.get("impossible") is None else {})
    if row.get("rate") is not None:
        expected |= _FOUND
    for name, kinds in expected.items():
        if name not in row or isinstance(row[name], bool) or not isinstance(row[name], kinds):
            raise InputError(f"{where}: {name} is {shown(row[name]) if name in row else 'missing'}; is the row whole?")


def _lines(path: str) -> tuple[list[tuple[int, dict[str, Any]]], bool]:
    """Return the numbered JSON objects of a file, and whether a line of it was cut."""
    found, cut = [], False
    for number, text in enumerate(read_text(path).split("\n"), 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            # A shard that was killed and begun again has its cut line in the middle.
            if not text.startswith('{"') or text.endswith("}"):
                raise InputError(f"{path}:{number}: is not JSON") from error
            cut = True
            continue
        if not isinstance(line, dict):
            raise InputError(f"{path}:{number}: must be a JSON object")
        found.append((number, line))
    return found, cut
