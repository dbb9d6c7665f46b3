"""What a step of the live engine did: gathered while it is made, shown when it is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from servesim.engine.engine import Engine
from servesim.engine.observation import StepWatch
from servesim.engine.sequence import DECODE, Sequence
from servesim.serve.generation import Generation

if TYPE_CHECKING:
    from servesim.engine.scheduler import Chunk


class StepListener(Protocol):
    """Who keeps count of what the engine does."""

    def on_step(self, step: EndedStep, tokens: StepTokens, lateness_s: float) -> None:
        """A step is over and its tokens are with their readers, the last of them `lateness_s` after its end."""

    def on_over(self, generation: Generation, reason: str, now: float) -> None:
        """A generation is over: it had its last token ("length", "stop") or nobody waits for it ("abort")."""


@dataclass(slots=True)
class StepTokens:
    """What a step's tokens were, in wall seconds."""

    count: int = 0
    firsts: list[Generation] = field(default_factory=list)  # who had its first token
    gap_s: float = 0.0  # since the step before, and
    followers: int = 0  # how many had their last token then
    gaps_s: list[float] = field(default_factory=list)  # of the others


class EndedStep:
    """What one step did, shown when it is over. Times are engine seconds."""

    __slots__ = ("end_s", "free_blocks", "growth", "running", "sequences", "start_s", "waiting")

    def __init__(self, start_s: float, end_s: float) -> None:
        self.start_s = start_s
        self.end_s = end_s
        self.growth: list[tuple[Generation, int]] = []  # who has how many output tokens now
        self.sequences = 0  # scheduled
        self.running = self.waiting = self.free_blocks = 0


class LiveWatch(StepWatch):
    """Gathers, of each step, who was admitted and whose tokens grew, by a walk over `running`."""

    def __init__(self, at: list[Generation | None], to_wall: Callable[[float], float]) -> None:
        super().__init__(lambda _: None)
        self._at = at  # by row
        self._to_wall = to_wall
        self._start_s = 0.0
        self.step: EndedStep | None = None
        self.queued_tokens = 0  # prompts that were never admitted
        self._sequences = 0

    def scheduled(self, engine: Engine, served: int, chunks: list[Chunk], preempted: list[Sequence]) -> None:
        self._start_s = engine.now
        self._sequences = served + len(chunks)
        for sequence, resumed, _, _ in self.admissions:
            generation = self._at[sequence.index]
            if generation is not None and not resumed:
                generation.admitted_s = self._to_wall(engine.now)
                generation.cached_tokens = engine.records.cached_tokens[sequence.index]
                self.queued_tokens -= generation.prompt
        for sequence in preempted:
            generation = self._at[sequence.index]
            if generation is not None:
                generation.preemptions += 1
        self.arrived.clear()
        self.admissions.clear()

    def done(self, engine: Engine, finished: list[Sequence]) -> None:
        if not self._sequences:
            return  # an asynchronous engine's empty step takes no time
        self.step = step = EndedStep(self._start_s, engine.now)
        at, tick, growth = self._at, engine.decoding.tick, step.growth
        # Those that ended with this step have left `running` already, and their rows; see `EngineClock._on_finished`.
        for sequence in engine.running.values():
            generation = at[sequence.index]
            if generation is not None:
                made = sequence.outputs
                if sequence.state == DECODE:
                    made = sequence.target - sequence.finish_tick + tick
                if made != generation.made:
                    growth.append((generation, made))
        step.sequences = self._sequences
        step.running, step.waiting, step.free_blocks = len(engine.running), len(engine.waiting), engine.pool.free
