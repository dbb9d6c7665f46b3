"""One sequence in the live engine: asked for, generated step by step, shown to its reader; and faults on demand.

A `Generation` lives from its request to its last token; `LiveWatch` gathers what a step did while it is made and shows
it when it is over. Faults are what a client, a gateway or a dashboard meets in a server that fails, falls silent or
hangs up: each request draws its own from one random stream, in order of arrival, so that a run can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from servesim.engine.scheduler import Scheduler, Step
from servesim.engine.sequence import Sequence
from servesim.workload.requests import Content
from servesim.workload.seeds import random_stream


class Reader(Protocol):
    """Whoever waits for a generation's tokens."""

    def receive(self, generation: Generation, first: int) -> None:
        """Take tokens [first, generation.made), which were just made; they are the last ones if it is `over`."""


class _NoReader:
    def receive(self, generation: Generation, first: int) -> None:
        """Let the tokens go."""


NO_READER = _NoReader()


class Generation:
    """What a client asked of the engine once, and how far it is. Wall times are seconds on the monotonic clock."""

    __slots__ = (
        "admitted_s",
        "arrived_s",
        "cached_tokens",
        "content",
        "first_s",
        "gone",
        "last_s",
        "made",
        "number",
        "preemptions",
        "priority",
        "prompt",
        "reader",
        "reason",
        "row",
        "target",
    )

    def __init__(self, *, number: int, prompt: int, target: int, arrived_s: float) -> None:
        self.reader: Reader = NO_READER
        self.number = number  # among the choices of its request
        self.prompt = prompt  # tokens
        self.target = target  # output tokens
        self.content: Content = ()
        self.priority = 0
        self.reason = "length"  # why it will end: its limit, or "stop"
        self.gone = False  # nobody waits for it any more
        self.row = -1  # in the engine's columns, while it is there
        self.made = 0  # output tokens handed to the reader
        self.cached_tokens = 0  # of the prompt, found in the prefix cache
        self.preemptions = 0
        self.arrived_s = arrived_s
        self.admitted_s = 0.0
        self.first_s = 0.0
        self.last_s = 0.0

    @property
    def over(self) -> bool:
        """Whether the reader has all its tokens."""
        return self.made == self.target


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

    __slots__ = ("end_s", "free_blocks", "growth", "running", "sequences", "waiting")

    def __init__(self, end_s: float) -> None:
        self.end_s = end_s
        self.growth: list[tuple[Generation, int]] = []  # who has how many output tokens now
        self.sequences = 0  # scheduled
        self.running = self.waiting = self.free_blocks = 0


class LiveWatch:
    """Gathers, of each step, who was admitted and whose tokens grew, by a walk over `running`."""

    def __init__(self, at: list[Generation | None], to_wall: Callable[[float], float]) -> None:
        self.arrived: list[int] = []  # as a `StepWatch` has it; nobody asks for it here
        self._at = at  # by row
        self._to_wall = to_wall
        self.step: EndedStep | None = None
        self.queued_tokens = 0  # prompts that were never admitted

    def scheduled(self, scheduler: Scheduler, step: Step) -> None:
        for admission in step.admissions or ():
            index = admission.sequence.index
            generation = self._at[index]
            if generation is not None and not admission.resumed:
                generation.admitted_s = self._to_wall(step.start_s)
                generation.cached_tokens = scheduler.records.cached_tokens[index]
                self.queued_tokens -= generation.prompt
        for sequence in step.preempted:
            generation = self._at[sequence.index]
            if generation is not None:
                generation.preemptions += 1
        self.arrived.clear()

    def done(self, scheduler: Scheduler, step: Step, end_s: float, finished: list[Sequence]) -> None:
        sequences = step.decodes + len(step.chunks)
        if not sequences:
            return  # an asynchronous engine's empty step takes no time
        self.step = ended = EndedStep(end_s)
        at, tick, growth = self._at, scheduler.decoding.tick, ended.growth
        # Those that ended with this step have left `running` already, and their rows; see `EngineClock._on_finished`.
        for sequence in scheduler.running.values():
            generation = at[sequence.index]
            if generation is not None:
                made = sequence.outputs_at(tick)
                if made != generation.made:
                    growth.append((generation, made))
        ended.sequences = sequences
        ended.running, ended.waiting = len(scheduler.running), len(scheduler.waiting)
        ended.free_blocks = scheduler.pool.free


@dataclass(slots=True, frozen=True, kw_only=True)
class InjectedFault:
    """What is to go wrong with one request; by default nothing."""

    fails: bool = False  # answered with a 500
    stall_at: float | None = None  # share of the answer after which nothing is sent for a while
    cut_at: float | None = None  # share of the answer after which the connection is closed


FINE = InjectedFault()


class Faults:
    """Shares of requests that fail, stall and are cut, each from 0 to 1."""

    def __init__(self, *, fail: float = 0.0, stall: float = 0.0, cut: float = 0.0, seed: int = 7) -> None:
        self._shares = fail, stall, cut
        self._random = random_stream(seed, "faults").random

    def draw(self) -> InjectedFault:
        """Return the next request's fate."""
        if not any(self._shares):
            return FINE
        fails, stalls, cuts = (self._random() < share for share in self._shares)
        at = self._random()
        return InjectedFault(fails=fails, stall_at=at if stalls else None, cut_at=at if cuts else None)
