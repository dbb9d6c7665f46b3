"""Where prefill and decode apart begin to pay: the bandwidth at which their TTFT p95 is that of colocated engines.

Both fleets have the same number of the same engines and serve the same requests. A faster link never makes the first
tokens of the fleet apart later, but for the luck of who is served with whom; so the bandwidth is bisected between two
that were tried, on a logarithmic scale, until they are within a percent. Below it the colocated engines win.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from servesim.analysis.sweep import Cell
from servesim.fleet.spec import FleetSpec
from servesim.summary import Summary

WITHIN = 1.01
"""The two bandwidths of a bracket end up no further apart than this factor."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Crossing:
    """The TTFT p95 of the colocated engines and the bandwidth that reaches it.

    `bytes_per_s` is the least that was tried at which the fleet apart is as good, None if none was; `worse_bytes_per_s`
    the most at which it was worse, None if it never was.
    """

    engines: int
    colocated_ttft_p95_ms: float | None
    apart_ttft_p95_ms: float | None
    bytes_per_s: float | None
    worse_bytes_per_s: float | None


def colocated(cell: Cell) -> Cell:
    """Return the run in which all engines of `cell` compute prompts and answers alike."""
    fleet = cell.fleet
    if fleet.fleet is not None:
        kinds = tuple(replace(kind, role="both") for kind in fleet.fleet)
        return replace(cell, fleet=FleetSpec(fleet=kinds, router=fleet.router))
    return replace(cell, fleet=FleetSpec(replicas=engines(fleet), router=fleet.router))


def engines(fleet: FleetSpec) -> int:
    """Return how many engines a fleet has, data-parallel ranks aside."""
    return sum(kind.count for kind in fleet.kinds())


def crossing(
    cell: Cell,
    together: Summary,
    tried: Mapping[float, Summary],
    run: Callable[[Cell], Summary | None],
) -> Crossing:
    """Return where `cell`, a fleet apart, crosses `together`, the colocated one.

    `tried` has the summaries of the bandwidths that were run already; `run` answers None to end the search early.
    """
    limit = _ttft(together)
    known = {bytes_per_s: _ttft(summary) for bytes_per_s, summary in tried.items()}
    better, worse = _bracket(known, limit)
    while better is not None and worse is not None and better / worse > WITHIN:
        middle = math.sqrt(better * worse)
        summary = run(replace(cell, fleet=replace(cell.fleet, link_bytes_per_s=middle)))
        if summary is None:
            break
        known[middle] = _ttft(summary)
        better, worse = (middle, worse) if known[middle] <= limit else (better, middle)
    reached = None if better is None else known[better]
    return Crossing(
        engines=engines(cell.fleet),
        colocated_ttft_p95_ms=_finite(limit),
        apart_ttft_p95_ms=None if reached is None else _finite(reached),
        bytes_per_s=better,
        worse_bytes_per_s=worse,
    )


def _bracket(known: Mapping[float, float], limit: float) -> tuple[float | None, float | None]:
    """Return the least bandwidth above all that are worse, and the most that is worse."""
    worse = max((bytes_per_s for bytes_per_s, ttft in known.items() if ttft > limit), default=None)
    above: Sequence[float] = [bytes_per_s for bytes_per_s in known if worse is None or bytes_per_s > worse]
    return min(above, default=None), worse


def _ttft(summary: Summary) -> float:
    """Return the TTFT p95 in ms, infinite where nothing completed."""
    return math.inf if summary.ttft_ms is None else summary.ttft_ms.p95


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
