"""What can be compared: a saved run, a JSON document with a summary, or one row of a document with rows.

`sweep.json#concurrency=32` is the row at that point, `sweep.json#2` the second one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from servesim.comparison.compare import Side, side_of
from servesim.errors import InputError
from servesim.inputs import recognise
from servesim.runs.reader import read_saved
from servesim.units import shown


def read_side(name: str) -> Side:
    """Return the run or summary that `name` stands for. Raises `InputError` in one line."""
    path, hash_sign, wanted = (name, "", "") if os.path.exists(name) else name.partition("#")
    document = recognise(path).json_object()
    if document.get("kind") == "header":
        if hash_sign:
            raise InputError(f"{path}: is one saved run, which has no row {shown(wanted)}")
        saved = read_saved(path)
        return side_of(saved.run, path, saved.command)
    summary, point = _summary(path, document, wanted)
    config = document.get("config")
    if not isinstance(config, Mapping):
        config = {}
    return Side(
        label=name,
        command=_text(document, "command"),
        source=_text(summary, "source"),
        partial=bool(document.get("partial")),
        config={**config, **point},
        summary=summary,
    )


def _summary(path: str, document: Mapping[str, Any], wanted: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the summary in `document`, and the swept values of its row where it is one."""
    rows = document.get("rows")
    if rows is None:
        summary = document.get("summary") if isinstance(document.get("summary"), Mapping) else document
        if wanted:
            raise InputError(f"{path}: has no rows, so none is {shown(wanted)}")
        return _checked(path, summary), {}
    if not isinstance(rows, list) or not rows or not all(isinstance(row, Mapping) for row in rows):
        raise InputError(f"{path}: rows must be a list of one summary or more")
    points = [row["swept"] if isinstance(row.get("swept"), Mapping) else {} for row in rows]
    names = [",".join(f"{key}={value}" for key, value in point.items()) for point in points]
    found = [number for number, point in enumerate(names) if wanted in (point, str(number + 1))]
    if len(rows) == 1 and not wanted:
        found = [0]
    if not found:
        listed = ", ".join(f"{path}#{point or number + 1}" for number, point in enumerate(names[:8]))
        what = f"no row is {shown(wanted)}" if wanted else f"has {len(rows)} rows"
        raise InputError(f"{path}: {what}; name one: {listed}{', ...' if len(rows) > 8 else ''}")
    return _checked(path, rows[found[0]]), points[found[0]]


def _checked(path: str, summary: Any) -> Mapping[str, Any]:
    if not all(isinstance(summary.get(key), Mapping) for key in ("requests", "throughput")):
        raise InputError(f"{path}: has no summary; give a saved run, or the --json of simulate, loadgen or sweep")
    return summary  # type: ignore[no-any-return]


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    return value if isinstance(value, str) else "unknown"
