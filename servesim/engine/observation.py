"""What an engine did in a step, in the shape of the golden traces: for tests, replays and whoever wants to look."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from servesim.engine.sequence import DECODE, Sequence

if TYPE_CHECKING:
    from servesim.engine.engine import Engine
    from servesim.engine.scheduler import Chunk

Observation = dict[str, Any]
"""One step: `step`, `arrived`, `scheduled` {index: tokens}, `admitted`, `resumed`, `prefix` {index: {queries, hits}}
(caching on), `preempted`, `finished`, `running`, `waiting` (head first), `free_blocks`, `free_blocks_at_schedule`."""


class StepWatch:
    """Gathers an `Observation` while a step is made and hands it to `observer`. It changes nothing in the engine."""

    def __init__(self, observer: Callable[[Observation], None]) -> None:
        self._observer = observer
        self._steps = 0
        self._report: Observation = {}
        self.arrived: list[int] = []
        self.admissions: list[tuple[Sequence, bool, int, int]] = []  # (who, resumed, tokens looked up, tokens hit)

    def scheduled(self, engine: Engine, served: int, chunks: list[Chunk], preempted: list[Sequence]) -> None:
        """Note what the schedule decided; `served` is 0 if no sequence decodes in this step."""
        tokens = dict(chunks)
        scheduled = {}
        for sequence in engine.running.values():
            if sequence in tokens:
                scheduled[sequence.index] = tokens[sequence]
            elif served and sequence.state == DECODE and sequence not in engine.stalled:
                scheduled[sequence.index] = 1
        self._report = {
            "step": self._steps,
            "arrived": self.arrived,
            "scheduled": scheduled,
            "admitted": [sequence.index for sequence, _, _, _ in self.admissions],
            "resumed": [sequence.index for sequence, resumed, _, _ in self.admissions if resumed],
            "preempted": [sequence.index for sequence in preempted],
            "free_blocks_at_schedule": engine.pool.free,
        }
        if engine.config.prefix_caching:
            self._report["prefix"] = {
                sequence.index: {"queries": length, "hits": cached} for sequence, _, length, cached in self.admissions
            }
        self.arrived, self.admissions = [], []
        self._steps += 1

    def done(self, engine: Engine, finished: list[Sequence]) -> None:
        """Note how the step ended, and tell the observer."""
        self._report["finished"] = [sequence.index for sequence in finished]
        self._report["running"] = [sequence.index for sequence in engine.running.values()]
        self._report["waiting"] = [waiter if isinstance(waiter, int) else waiter.index for waiter in engine.waiting]
        self._report["free_blocks"] = engine.pool.free
        self._observer(self._report)
