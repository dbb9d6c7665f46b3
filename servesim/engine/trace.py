"""What an engine did in a step, in the shape of the golden traces: for tests, replays and whoever wants to look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypedDict

from servesim.engine.scheduler import Scheduler, Step
from servesim.engine.sequence import DECODE, Sequence


class PrefixLookup(TypedDict):
    """Tokens that an admission looked up in the prefix cache, and those that it hit."""

    queries: int
    hits: int


class Observation(TypedDict, total=False):
    """One step. Requests are named by their indices, each list in the order in which it happened."""

    step: int
    arrived: list[int]
    scheduled: dict[int, int]  # tokens
    admitted: list[int]
    resumed: list[int]  # of those, the ones that had been preempted
    prefix: dict[int, PrefixLookup]  # of those admitted; only where there is a prefix cache
    preempted: list[int]
    finished: list[int]
    running: list[int]  # after the step, by order of admission
    waiting: list[int]  # after the step, head first
    free_blocks: int
    free_blocks_at_schedule: int


class StepWatch(Protocol):
    """Who looks at every step of an engine, and changes nothing in it."""

    arrived: list[int]
    """Receives the requests that are let in."""

    def scheduled(self, scheduler: Scheduler, step: Step) -> None:
        """See what the schedule decided."""

    def done(self, scheduler: Scheduler, step: Step, end_s: float, finished: list[Sequence]) -> None:
        """See how the step ended, and who had its last token."""


class Tracer:
    """Gathers an `Observation` while a step is made and hands it to `observer`."""

    def __init__(self, observer: Callable[[Observation], None]) -> None:
        self._observer = observer
        self._steps = 0
        self._observation: Observation = {}
        self.arrived: list[int] = []  # since the last step

    def scheduled(self, scheduler: Scheduler, step: Step) -> None:
        """Note what the schedule decided."""
        tokens = dict(step.chunks)
        scheduled = {}
        for sequence in scheduler.running.values():
            if sequence in tokens:
                scheduled[sequence.index] = tokens[sequence]
            elif step.decodes and sequence.state == DECODE and sequence not in scheduler.stalled:
                scheduled[sequence.index] = 1
        admissions = step.admissions or []
        self._observation = {
            "step": self._steps,
            "arrived": self.arrived[:],
            "scheduled": scheduled,
            "admitted": [admission.sequence.index for admission in admissions],
            "resumed": [admission.sequence.index for admission in admissions if admission.resumed],
            "preempted": [sequence.index for sequence in step.preempted],
            "free_blocks_at_schedule": scheduler.pool.free,
        }
        if scheduler.config.prefix_caching:
            self._observation["prefix"] = {
                admission.sequence.index: {"queries": admission.length, "hits": admission.cached}
                for admission in admissions
            }
        self.arrived.clear()
        self._steps += 1

    def done(self, scheduler: Scheduler, step: Step, end_s: float, finished: list[Sequence]) -> None:
        """Note how the step ended, and tell the observer."""
        observation = self._observation
        observation["finished"] = [sequence.index for sequence in finished]
        observation["running"] = [sequence.index for sequence in scheduler.running.values()]
        observation["waiting"] = [waiter if isinstance(waiter, int) else waiter.index for waiter in scheduler.waiting]
        observation["free_blocks"] = scheduler.pool.free
        self._observer(observation)
