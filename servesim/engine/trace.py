"""What an engine did in a step, in the shape of the golden traces: for tests, replays and whoever wants to look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from servesim.engine.scheduler import Scheduler, Step
from servesim.engine.sequence import DECODE, Sequence

Observation = dict[str, Any]
"""One step: `step`, `arrived`, `scheduled` {index: tokens}, `admitted`, `resumed`, `prefix` {index: {queries, hits}}
(caching on), `preempted`, `finished`, `running`, `waiting` (head first), `free_blocks`, `free_blocks_at_schedule`."""


class StepWatch:
    """Gathers an `Observation` while a step is made and hands it to `observer`. It changes nothing in the engine."""

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
            "admitted": [sequence.index for sequence, _, _, _ in admissions],
            "resumed": [sequence.index for sequence, resumed, _, _ in admissions if resumed],
            "preempted": [sequence.index for sequence in step.preempted],
            "free_blocks_at_schedule": scheduler.pool.free,
        }
        if scheduler.config.prefix_caching:
            self._observation["prefix"] = {
                sequence.index: {"queries": length, "hits": cached} for sequence, _, length, cached in admissions
            }
        self.arrived.clear()
        self._steps += 1

    def done(self, scheduler: Scheduler, step: Step, end_s: float, finished: list[Sequence]) -> None:
        """Note how the step ended, and tell the observer."""
        self._observation["finished"] = [sequence.index for sequence in finished]
        self._observation["running"] = [sequence.index for sequence in scheduler.running.values()]
        self._observation["waiting"] = [
            waiter if isinstance(waiter, int) else waiter.index for waiter in scheduler.waiting
        ]
        self._observation["free_blocks"] = scheduler.pool.free
        self._observer(self._observation)
