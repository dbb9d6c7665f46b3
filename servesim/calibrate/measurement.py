"""One measured load and its figures, and the same load predicted: what a fit compares.

A figure is a latency's mean or percentile over the completed requests, in seconds, under a name such as `ttft_p50`; it
is taken from a run, simulated or measured, in one place. A prediction is a whole run of the simulator, queueing and
scheduling and all, not a formula. Where measurements come from is not known here (`input`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from servesim.catalog.hardware import Hardware
from servesim.config.build import Server
from servesim.engine.engine import Engine
from servesim.engine.simulate import arriving
from servesim.errors import InputError, RunError
from servesim.runs.records import Run
from servesim.stats import PERCENTILES, Values, nearest_rank
from servesim.summary.latency import LATENCIES, Completed
from servesim.workload.workload import Workload

STANDARD_ERRORS: dict[str, float] = {"mean": 0.02, "p50": 0.03, "p90": 0.04, "p95": 0.05, "p99": 0.05}
"""How far a figure of a run that is repeated may be off, relative; a TTFT half as much again (it rides on arrivals)."""

_NAME = re.compile(r"(ttft|tpot|e2e)_(mean|p50|p90|p95|p99)")


@dataclass(slots=True, frozen=True, kw_only=True)
class Measurement:
    """One load on one server, and what was measured of it."""

    label: str
    server: Server  # its device is the fit's start; its limits are the run's
    workload: Callable[[], Workload]  # the same load, anew for each prediction
    figures: Mapping[str, float]  # measured, by name
    errors: Mapping[str, float]  # relative standard error of each
    concurrency: float  # about how many requests were in flight, for closed forms and advice
    prompt_tokens: float  # mean
    output_tokens: float
    notes: tuple[str, ...] = ()  # what was left out of it

    def __post_init__(self) -> None:
        for name, value in self.figures.items():
            check_figure(name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{self.label}: {name} is {value!r}, must be above 0")
        if not self.figures:
            raise InputError(f"{self.label}: has no ttft, tpot or e2e to fit to")

    def on(self, hardware: Hardware, cost_model: str) -> Measurement:
        """Return the same load on a server with another device's figures and another cost model."""
        server = self.server
        return replace(
            self, server=replace(server, hardware=hardware, spec=replace(server.spec, cost_model=cost_model))
        )

    def simulate(self) -> Run:
        """Return the simulated run of this load on this server."""
        cost = self.server.cost()
        engine = Engine(self.server.config, cost, arriving(self.workload(), cost))
        engine.advance()
        return engine.run()

    def predict(self) -> dict[str, float]:
        """Return what the simulator makes of this load, by the names of `figures`.

        Raises `RunError` where no request completes.
        """
        return figures_of(self.simulate(), self.figures, self.label)

    def residuals(self, predicted: Mapping[str, float]) -> list[float]:
        """Return ln(predicted / measured) of every figure in units of its standard error."""
        return [math.log(predicted[name] / measured) / self.errors[name] for name, measured in self.figures.items()]


def check_figure(name: str) -> None:
    """Raise `InputError` unless `name` is a figure's, such as `ttft_p50`."""
    if not _NAME.fullmatch(name):
        raise InputError(f"{name!r} is no figure, must be ttft, tpot or e2e with mean, p50, p90, p95 or p99")


def standard_error(name: str) -> float:
    """Return the relative standard error that is assumed of a figure."""
    metric, _, statistic = name.partition("_")
    return STANDARD_ERRORS[statistic] * (1.5 if metric == "ttft" else 1.0)


def figures_of(run: Run, names: Iterable[str], label: str = "run") -> dict[str, float]:
    """Return the named figures of a run's completed requests; raise `RunError` where one has no value."""
    done, samples, found = Completed(run), dict[str, Values](), dict[str, float]()
    for name in names:
        metric, _, statistic = name.partition("_")
        if metric not in samples:
            samples[metric] = Values(LATENCIES[metric](done))
        sample = samples[metric]
        if not sample.count:
            raise RunError(f"{label}: no completed request has a {metric}")
        if statistic == "mean":
            found[name] = sample.total() / sample.count
        else:
            found[name] = sample.at(nearest_rank(PERCENTILES[statistic], sample.count))
    return found


def figures_for(count: int) -> list[str]:
    """Return the figures worth fitting to of a run of `count` requests: a percentile needs some to stand on."""
    statistics = {"ttft": ["mean"], "tpot": ["mean"], "e2e": ["mean"]}
    if count >= 10:
        statistics["ttft"].append("p50")
    if count >= 100:
        for names in statistics.values():
            names.append("p99")
    return [f"{metric}_{statistic}" for metric, names in statistics.items() for statistic in names]
