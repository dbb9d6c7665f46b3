"""A grid of runs, one summary each, over any number of processes, and what the grid's curves say.

Every point is a run of its own from its own seed, so a row does not depend on who computed it or when. Of a curve are
found: the knee of throughput over latency; the link bandwidth at which disaggregated engines are as good as colocated
ones; and the size of a KV tier beyond which more of it brings no earlier first token. Knows nothing of how a row is
printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from multiprocessing import active_children, get_context
from typing import Any

from servesim.config.fleet import FleetSpec
from servesim.config.offload import JOIN
from servesim.config.server import ServerSpec
from servesim.config.workload import WorkloadSpec
from servesim.engine.simulate import Watch
from servesim.fleet.build import build_deployment
from servesim.fleet.simulate import run_deployment
from servesim.interrupts import leave_interrupts_to_the_parent
from servesim.summary.slo import Slo
from servesim.summary.summary import Summary, summarize
from servesim.units import parse_bytes

Point = dict[str, Any]


@dataclass(slots=True, frozen=True, kw_only=True)
class Cell:
    """One run of a grid, complete in itself: it can be sent to another process."""

    server: ServerSpec
    workload: WorkloadSpec
    fleet: FleetSpec = field(default_factory=FleetSpec)
    horizon_s: float | None = None
    slos: tuple[Slo, ...] = ()


def run_cell(cell: Cell, watch: Watch | None = None) -> Summary:
    """Run one cell of the grid and return its summary."""
    deployment = build_deployment(cell.server, cell.fleet)
    every_token = any(slo.metric == "itl" for slo in cell.slos)
    run = run_deployment(deployment, cell.workload, horizon_s=cell.horizon_s, watch=watch, every_token=every_token)
    return summarize(run, cell.slos)


def grid(axes: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Return every combination of the values of `axes`; the last axis varies fastest.

    >>> grid({"rate": [1.0, 2.0], "max_num_seqs": [64]})
    [{'rate': 1.0, 'max_num_seqs': 64}, {'rate': 2.0, 'max_num_seqs': 64}]
    """
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


@contextmanager
def cells_run(jobs: int, watch: Watch | None = None) -> Iterator[Callable[[Sequence[Cell]], Iterator[Summary]]]:
    """Give a function that yields the summary of each cell in order, computing `jobs` at a time in processes.

    `watch` is asked only where the cells run in this process.
    """
    if jobs <= 1:
        yield lambda cells: (run_cell(cell, watch) for cell in cells)
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=leave_interrupts_to_the_parent)
    others = set(active_children())
    try:
        yield lambda cells: pool.map(run_cell, cells)
    except KeyboardInterrupt:  # at once: the interpreter would wait for the cells that are being run
        for worker in set(active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def knee(loads: Sequence[float], throughputs: Sequence[float | None], latencies: Sequence[float | None]) -> int | None:
    """Return the index of the load with the most throughput per latency; None for fewer than three usable points.

    Up to the knee more load buys throughput, beyond it mostly waiting. Kleinrock's power, throughput over response
    time, peaks there ("Power and deterministic rules of thumb for probabilistic problems in computer communications",
    ICC 1979). Ties go to the lower load.

    >>> knee([1, 8, 32, 128], [133, 933, 2568, 4178], [1200, 1350, 1850, 3800])
    2
    """
    usable = [
        (load, throughput / latency, index)
        for index, (load, throughput, latency) in enumerate(zip(loads, throughputs, latencies, strict=True))
        if throughput and latency
    ]
    if len(usable) < 3:
        return None
    return max(sorted(usable), key=lambda point: point[1])[2]


# Where disaggregated engines begin to pay
#
# Both fleets have the same number of the same engines and serve the same requests. A faster link never makes the first
# tokens of the disaggregated one later, but for the luck of who is served with whom; so the bandwidth is bisected
# between two that were tried, on a logarithmic scale. Below it the colocated engines win.

WITHIN = 1.01
"""The ratio of the two bandwidths of a bracket at which the search ends."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Crossing:
    """The TTFT p95 of the colocated engines and the bandwidth that reaches it.

    `bytes_per_s` is the least that was tried at which the disaggregated fleet is as good, None if none was;
    `worse_bytes_per_s` the most at which it was worse, None if it never was.
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
    """Return where `cell`, a disaggregated fleet, crosses `together`, the colocated one.

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


# Where a larger KV tier stops paying

PAYS = 0.02
"""A larger tier pays if it lowers the mean TTFT by at least this share."""


def stops_paying(sizes: Sequence[str | None], ttft_mean_ms: Sequence[float | None]) -> int | None:
    """Return the number of the smallest size than which none that is larger pays; None if the largest still pays more
    than the one before it, or there is nothing to compare.

    >>> stops_paying(["8GB", "64GB", "16GB", "32GB"], [900.0, 500.0, 600.0, 503.0])
    3
    """
    known = [
        (sum(parse_bytes(part, "kv_offload") for part in size.split(JOIN)) if size else 0, ttft_ms, row)
        for row, (size, ttft_ms) in enumerate(zip(sizes, ttft_mean_ms, strict=True))
        if ttft_ms is not None
    ]
    known.sort()
    for place, (_, here_ms, row) in enumerate(known[:-1]):
        if all(later_ms > here_ms * (1 - PAYS) for _, later_ms, _ in known[place + 1 :]):
            return row
    return None
