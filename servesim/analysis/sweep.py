"""A grid of runs, one summary each, over any number of processes; and where the knee of the curve is.

Every point is a run of its own from its own seed, so a row does not depend on who computed it or when. Knows nothing of
how a row is printed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import product
from multiprocessing import get_context
from typing import Any, TypeVar

Point = dict[str, Any]
Row = TypeVar("Row")

LOAD_AXES = ("concurrency", "rate")
"""What a knee is looked for along."""


def grid(axes: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Return every combination of the values of `axes`; the last axis varies fastest.

    >>> grid({"rate": [1.0, 2.0], "max_num_seqs": [64]})
    [{'rate': 1.0, 'max_num_seqs': 64}, {'rate': 2.0, 'max_num_seqs': 64}]
    """
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


@contextmanager
def over_processes(run: Callable[[Any], Row], jobs: int) -> Iterator[Callable[[Sequence[Any]], Iterator[Row]]]:
    """Give a `map` that calls `run` for each point, in the order of the points, `jobs` at a time.

    `run` must be a function of a module, and points and rows must pickle.
    """
    if jobs <= 1:
        yield lambda points: map(run, points)
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_leave_interrupts_to_the_parent)
    try:
        yield lambda points: pool.map(run, points)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
