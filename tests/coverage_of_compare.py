"""How often the 90 % intervals of `compare` really hold: equal runs with other seeds, all pairs of them.

`python3 -m tests.coverage_of_compare` simulates every load with many seeds and prints for each figure in how many pairs
the interval of the difference holds the true one, which is 0. A figure that mostly gets no interval is a dash. Pairs
share their runs, so that what is printed is itself known to about 3 points from 100 seeds and 5 from 30: what looks
like too little wants 200 before it says anything. Options: `--seeds 100 --jobs 2 --load NAME`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

from servesim.comparison.compare import FIGURES, difference_interval
from servesim.comparison.interval import Interval, RunNoise
from servesim.fleet.simulate import simulate
from servesim.summary.summary import summarize

LOADS: dict[str, dict[str, Any]] = {
    "open 5/s": {"rate": 5, "requests": 20_000},
    "open 20/s": {"rate": 20, "requests": 20_000},
    "open 28/s": {"rate": 28, "requests": 20_000},
    "open 33/s": {"rate": 33, "requests": 20_000},
    "open 35/s": {"rate": 35, "requests": 20_000},
    "open 38/s": {"rate": 38, "requests": 20_000},
    "closed 8": {"concurrency": 8, "requests": 20_000},
    "closed 64": {"concurrency": 64, "requests": 20_000},
    "closed 256": {"concurrency": 256, "requests": 20_000},
    "open 20/s short": {"rate": 20, "requests": 2_000},
    "closed 8 short": {"concurrency": 8, "requests": 2_000},
    "closed 8 tiny": {"concurrency": 8, "requests": 256},
    "bursts": {"rate": 26, "requests": 12_000, "arrivals": "gamma", "burstiness": 0.2},
    "long tails": {
        "rate": 15,
        "requests": 3_000,
        "prompt_tokens": "lognormal:600:1.2:16-8000",
        "output_tokens": "lognormal:200:1:8-2000",
    },
    "cache full": {
        "hardware": "l4-24gb",
        "concurrency": 40,
        "requests": 1_500,
        "prompt_tokens": "500-1500",
        "output_tokens": "100-400",
    },
    "sessions": {"rate": 3, "requests": 3_000, "turns": "1-6", "prefix_caching": True},
}
"""An H100 with an 8B model is saturated at about 37 requests a second: 38 is overload."""

SHOWN = ("ttft_mean", "ttft_p50", "ttft_p95", "ttft_p99", "tpot_mean", "tpot_p50", "tpot_p95", "tpot_p99")
SHOWN += ("itl_p50", "itl_p95", "itl_p99", "e2e_mean", "e2e_p50", "e2e_p95", "e2e_p99", "output_tokens_per_s")

Estimate = tuple[float, Interval]


@dataclass(frozen=True)
class Coverage:
    """Of all pairs, the share that got an interval; of those, the share whose interval holds no difference."""

    judged: float
    covered: float | None


def estimates(load: Mapping[str, Any], seed: int) -> dict[str, Estimate]:
    """Return the figures of one run that have an interval."""
    run = simulate(seed=seed, **load)
    noise, summary = RunNoise(run), summarize(run).as_dict()
    found = {}
    for name in SHOWN:
        group, key = FIGURES[name].path
        interval = noise.interval(name)
        if isinstance(interval, Interval):
            found[name] = (summary[group][key], interval)
    return found


def coverage(runs: Iterable[Mapping[str, Estimate]]) -> dict[str, Coverage]:
    """Return the coverage of every figure over all pairs of `runs`."""
    runs = list(runs)
    pairs = len(runs) * (len(runs) - 1) / 2
    told = {}
    for name in SHOWN:
        known = [run[name] for run in runs if name in run]
        intervals = [difference_interval(a, b, of_a, of_b) for (a, of_a), (b, of_b) in combinations(known, 2)]
        held = sum(interval.low <= 0 <= interval.high for interval in intervals)
        told[name] = Coverage(len(intervals) / pairs, held / len(intervals) if intervals else None)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--load", choices=LOADS, action="append")
    options = parser.parse_args()
    names = options.load or list(LOADS)
    print(f"covered %, 90 nominal, of the pairs of {options.seeds} equal runs; in brackets % judged, if not all")
    print(f"{'':<20}" + "".join(f"{name:>17}" for name in names))
    columns = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for name in names:
            columns.append(coverage(pool.map(partial(estimates, LOADS[name]), range(1000, 1000 + options.seeds))))
    for figure in SHOWN:
        print(f"{figure:<20}" + "".join(f"{_cell(column[figure]):>17}" for column in columns))


def _cell(told: Coverage) -> str:
    if told.covered is None or told.judged < 0.5:
        return f"- ({told.judged * 100:.0f})"
    return f"{told.covered * 100:.1f}" + (f" ({told.judged * 100:.0f})" if told.judged < 0.995 else "")


if __name__ == "__main__":
    main()
