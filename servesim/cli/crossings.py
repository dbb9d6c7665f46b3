"""`sweep --disagg P:D --link A,B,...`: the colocated engines as rows of their own, and where the curves cross."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from servesim.analysis.crossover import Crossing, colocated, crossing
from servesim.analysis.sweep import Cell, Point
from servesim.fleet.spec import FLEET_CHECKS
from servesim.summary import Summary

LINK = "link_bytes_per_s"


def colocated_rows(points: Sequence[Point], cells: Sequence[Cell]) -> tuple[list[Point], list[Cell]]:
    """Return a row for each fleet of colocated engines that the grid's links are to be compared with."""
    rows: dict[Cell, Point] = {}
    for point, cell in zip(points, cells, strict=True):
        if cell.fleet.is_apart:
            unlinked = {key: None if key in FLEET_CHECKS and key != "disagg" else point[key] for key in point}
            rows.setdefault(colocated(cell), unlinked)
    return list(rows.values()), list(rows)


def find_crossings(
    points: Sequence[Point], cells: Sequence[Cell], summaries: Sequence[Summary], run: Callable[[Cell], Summary | None]
) -> list[tuple[Point, Crossing]]:
    """Return for each curve over the bandwidths where it crosses that of its colocated engines."""
    known = dict(zip(cells, summaries, strict=True))
    curves: dict[tuple[tuple[str, Any], ...], list[Cell]] = {}
    for point, cell in zip(points, cells, strict=True):
        if cell.fleet.is_apart:
            curves.setdefault(tuple((key, value) for key, value in point.items() if key != LINK), []).append(cell)
    found = []
    for rest, curve in curves.items():
        tried = {cell.fleet.link_bytes_per_s or 0.0: known[cell] for cell in curve}
        found.append((dict(rest), crossing(curve[0], known[colocated(curve[0])], tried, run)))
    return found
