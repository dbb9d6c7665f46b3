"""A grid of runs, one summary each, over any number of processes; and where the knee of the curve is.

Every point is a run of its own from its own seed, so a row does not depend on who computed it or when. Knows nothing of
how a row is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from multiprocessing import active_children, get_context
from typing import Any

from servesim.engine.simulate import Watch
from servesim.engine.spec import ServerSpec
from servesim.fleet.build import build_deployment
from servesim.fleet.simulate import run_deployment
from servesim.fleet.spec import FleetSpec
from servesim.interrupts import leave_interrupts_to_the_parent
from servesim.slo import Slo
from servesim.summary import Summary, summarize
from servesim.workload.spec import WorkloadSpec

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
