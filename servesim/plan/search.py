"""Find the highest load that a server still carries within its SLOs, when every probe costs a run and may be noise.

The caller gives `probe(load)`, which runs that load and says whether the SLOs were met; whoever runs it (a simulator, a
real server) and what a load is (requests in flight, requests per second, replicas) is not known here. It is assumed
that a higher load does not do better; near the edge, where noise decides, loads are probed again and the majority wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from servesim.errors import InputError

DESCENT = 64  # a load that is not whole is not halved further than this below the start

Result = TypeVar("Result")


class ProbeOutcome(Enum):
    """What one probe says about one load."""

    MET = "met"
    MISSED = "missed"
    DISCARDED = "discarded"  # the client could not keep up: no evidence about the server, nor is any load above


@dataclass(slots=True, frozen=True)
class Probe(Generic[Result]):
    """One load, once."""

    load: float
    answer: ProbeOutcome
    result: Result


class Limit(Enum):
    """What ended the search upwards."""

    SLO = "slo"  # the next load up misses
    CLIENT = "client"  # the next load up cannot be measured from here
    MAXIMUM = "maximum"  # the highest load that may be asked still meets
    PROBES = "probes"  # the allowed number of probes was used up


@dataclass(slots=True, frozen=True)
class Found(Generic[Result]):
    """The highest load that meets, None when even the lowest misses; the lowest one that does not; every probe."""

    load: float | None
    next_load: float | None
    limit: Limit
    probes: list[Probe[Result]]

    @property
    def result(self) -> Result | None:
        """Return the last result at the load that was found."""
        met = [probe for probe in self.probes if probe.load == self.load and probe.answer is ProbeOutcome.MET]
        return met[-1].result if met else None


@dataclass(slots=True, kw_only=True)
class Search(Generic[Result]):
    """A bracketed search: double (or halve; `growth`) from `start` until the edge lies between two loads, then bisect.

    It stops when the two are `resolution` apart (relative; whole loads are never closer than 1) and each was decided by
    a majority of `votes` probes. Twice the load, not ten times: a server driven far over its edge stays slow after it.

    >>> answers = lambda load: (ProbeOutcome.MET if load <= 37 else ProbeOutcome.MISSED, None)
    >>> Search(probe=answers, start=8, whole=True, votes=1, resolution=0.0).run().load
    37
    """

    probe: Callable[[float], tuple[ProbeOutcome, Result]]
    start: float = 1
    minimum: float = 0.0  # with `whole`: 1
    maximum: float = math.inf
    whole: bool = False  # loads are whole numbers
    growth: float = 2.0  # from one load to the next while only one side of the edge is known
    resolution: float = 0.05
    votes: int = 3  # odd; 1 for a simulator, which repeats itself
    max_probes: int = 60
    on_probe: Callable[[Probe[Result]], None] | None = None
    probes: list[Probe[Result]] = field(default_factory=list)  # so far

    def __post_init__(self) -> None:
        if self.whole:
            self.minimum = max(1, math.ceil(self.minimum))
        if not self.minimum <= self.start <= self.maximum or self.start <= 0:
            raise InputError(f"a search must start between its limits, {self.minimum:g} and {self.maximum:g}")
        if self.votes < 1 or self.votes % 2 == 0 or self.max_probes < 1 or self.resolution < 0:
            raise InputError("a search needs an odd number of votes, a resolution of 0 or more and at least one probe")
        if not self.growth > 1 or (self.whole and self.growth < 2):
            raise InputError(
                f"a search's loads grow by {self.growth:g}, must be above 1, and 2 or more for whole loads"
            )

    def run(self) -> Found[Result]:
        """Probe until the edge is known."""
        while len(self.probes) < self.max_probes:
            load = self._next_load()
            if load is None:
                break
            answer, result = self.probe(load)
            probe = Probe(load, answer, result)
            self.probes.append(probe)
            if self.on_probe is not None:
                self.on_probe(probe)
        return self.found()

    def _next_load(self) -> float | None:
        """Return the load to ask next, None when nothing is left to ask."""
        met, missed = self._bracket()
        if met is None and missed is None:
            return self.start
        if missed is None:
            assert met is not None
            return self._undecided(met) if met >= self.maximum else min(met * self.growth, self.maximum)
        if met is None:
            below = math.floor(missed / self.growth) if self.whole else missed / self.growth
            lowest = missed <= self.minimum or (not self.whole and missed <= self.start / DESCENT)
            return self._undecided(missed) if lowest else max(below, self.minimum)
        if missed - met > max(1 if self.whole else 0, self.resolution * met):
            middle = (met + missed) / 2
            middle = math.floor(middle) if self.whole else middle
            if met < middle < missed:
                return middle
        return self._undecided(met) or self._undecided(missed)

    def _bracket(self) -> tuple[float | None, float | None]:
        """Return (the highest load that meets below the lowest that does not, the lowest that does not)."""
        verdicts = {load: self._verdict(load) for load in {probe.load for probe in self.probes}}
        met = [load for load, verdict in verdicts.items() if verdict is ProbeOutcome.MET]
        above = [load for load, verdict in verdicts.items() if verdict is not ProbeOutcome.MET]
        # A vote that turns a load over may leave a met one above a missed one: believe the lower of the two.
        missed = min(above, default=None)
        return max((load for load in met if missed is None or load < missed), default=None), missed

    def _answers(self, load: float) -> list[ProbeOutcome]:
        return [probe.answer for probe in self.probes if probe.load == load]

    def _verdict(self, load: float) -> ProbeOutcome:
        """Return the majority's answer; a discarded probe has no vote unless there is no other. A tie is not met."""
        answers = self._answers(load)
        met, missed = answers.count(ProbeOutcome.MET), answers.count(ProbeOutcome.MISSED)
        if not met and not missed:
            return ProbeOutcome.DISCARDED
        return ProbeOutcome.MET if met > missed else ProbeOutcome.MISSED

    def _undecided(self, load: float) -> float | None:
        """Return `load` if it wants another vote."""
        answers = self._answers(load)
        needed = self.votes // 2 + 1
        decided = max(answers.count(answer) for answer in ProbeOutcome) >= needed or len(answers) >= 2 * self.votes
        return None if decided else load

    def found(self) -> Found[Result]:
        """Return what the probes so far say; `Limit.PROBES` where another one would have been made."""
        met, missed = self._bracket()
        if self._next_load() is not None:
            limit = Limit.PROBES
        elif missed is None:
            limit = Limit.MAXIMUM
        else:
            limit = Limit.CLIENT if self._verdict(missed) is ProbeOutcome.DISCARDED else Limit.SLO
        return Found(load=met, next_load=missed, limit=limit, probes=self.probes)
