"""What a report is made of: saved runs with their summaries, and grids: the documents of sweeps, scans and single runs.

A grid comes from a JSON document that may have been cut, edited or written by somebody else: whatever is not where it
should be is unknown, never an error in the middle of a picture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servesim.errors import InputError
from servesim.runs.records import Run
from servesim.summary.slo import Slo
from servesim.summary.summary import Summary
from servesim.units import bandwidth

LOAD_AXES = ("concurrency", "rate")
LINK_AXIS = "link_bytes_per_s"  # the swept bandwidth between prefill and decode; None: both on the same engines


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRun:
    """One saved run of a report; `name` is what the report calls it, alike for no two."""

    name: str
    path: str
    command: str
    version: str
    run: Run
    summary: Summary
    slos: Sequence[Slo] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The rows of a document, each a summary as JSON with the values at which it was made."""

    name: str
    path: str
    command: str
    version: str
    config: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    swept: Sequence[str]
    knee: int | None = None
    scan: Mapping[str, Any] | None = None
    partial: bool = False

    def load(self) -> str | None:
        """Return the key of the load that was swept, the x of a throughput curve."""
        return next((key for key in LOAD_AXES if key in self.swept), None)

    def curves(self, key: str) -> list[tuple[str, list[int]]]:
        """Return (label, row numbers) of each curve along `key`: the rows in which all other swept values are equal."""
        curves: dict[str, list[int]] = {}
        for number, row in enumerate(self.rows):
            others = [f"{shown_name(other)} {shown_swept(row, other)}" for other in self.swept if other != key]
            curves.setdefault(", ".join(others), []).append(number)
        return list(curves.items())


@dataclass(slots=True)
class ReportInput:
    """Everything that one report shows. `notes`: sentences for the person who reads it."""

    title: str
    runs: list[ReportRun] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    hardware: str | None = None  # of measured runs, which do not know theirs
    model: str | None = None


def grid_of(document: Mapping[str, Any], *, name: str, path: str) -> Grid:
    """Return the grid in a document of `sweep`, `loadgen` or `simulate`; raise `InputError` for any other."""
    rows = document.get("rows")
    if rows is None and isinstance(document.get("requests"), Mapping):
        rows = [document]
    if not isinstance(rows, list) or not rows or not all(isinstance(row, Mapping) for row in rows):
        raise InputError(
            f"{path}: has no rows and no requests; give a saved run or a document of sweep, loadgen or simulate"
        )
    swept: dict[str, None] = {}
    for row in rows:
        values = row.get("swept")
        swept |= dict.fromkeys(str(key) for key in values) if isinstance(values, Mapping) else {}
    knee = document.get("knee")
    config, scan = document.get("config"), document.get("scan")
    return Grid(
        name=name,
        path=path,
        command=str(document.get("command") or "-"),
        version=str(document.get("servesim") or "-"),
        config=config if isinstance(config, Mapping) else {},
        rows=rows,
        swept=list(swept),
        knee=knee if isinstance(knee, int) and 0 <= knee < len(rows) else None,
        scan=scan if isinstance(scan, Mapping) else None,
        partial=document.get("partial") is True,
    )


def number_at(tree: Any, *keys: str) -> float | None:
    """Return the finite number at `keys` of nested objects, None where there is none.

    >>> number_at({"e2e_ms": {"mean": 12.5}}, "e2e_ms", "mean")
    12.5
    """
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    if isinstance(tree, bool) or not isinstance(tree, (int, float)) or abs(tree) > 1e300 or not math.isfinite(tree):
        return None
    return float(tree)


def swept_value(row: Mapping[str, Any], key: str) -> Any:
    """Return the value of `key` at which a row was made, None where it does not say.

    What stands under the same name beside `swept` may be a figure of the row:

    >>> swept_value({"swept": {"output_tokens": "10"}, "output_tokens": {"mean": 9.5}}, "output_tokens")
    '10'
    """
    swept = row.get("swept")
    return swept.get(key) if isinstance(swept, Mapping) else None


def shown_swept(row: Mapping[str, Any], key: str) -> str:
    """Return the value of `key` at which a row was made, as a person would write it."""
    return shown_value(key, swept_value(row, key))


def shown_value(key: str, value: Any) -> str:
    """Return a swept value as a person would write it."""
    if key == LINK_AXIS:
        return "colocated" if value is None else bandwidth(value)
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def shown_name(key: str) -> str:
    """Return what was swept as a person would call it."""
    return "link" if key == LINK_AXIS else key.replace("_", " ")


def distinct(names: Sequence[str]) -> list[str]:
    """Return `names` with a number behind each that is there more than once.

    >>> distinct(["a", "b", "a"])
    ['a (1)', 'b', 'a (2)']
    """
    seen: dict[str, int] = {}
    parts = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        parts.append(f"{name} ({seen[name]})" if names.count(name) > 1 else name)
    return parts
