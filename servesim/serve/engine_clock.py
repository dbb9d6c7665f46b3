"""The engine on the wall clock: a step is decided when it begins, its tokens are handed out when it ends.

The engine's clock runs `speed` times as fast as the wall's and never drifts from it: a step begins where the last one
ended, however late that was noticed, and a request is due at the engine time at which it was read. So the decisions are
those of a run in virtual time with the same arrivals, and lateness shows in the tokens' times but does not add up. A
machine that is too slow for the load, or was asleep, is another matter: beyond `MAX_LAG_S` the engine's clock slips.

A client that waits for an answer before it asks again does so at once in a simulation, while here two processes and a
network are in between. So a request that comes on the connection whose answer ended with the last step counts as due
at that step's end, and the next step is decided up to `settle_s` later, while such connections are silent, but long
before it ends: its tokens are due at its end in any case. `settle_s=0` turns that off.

It knows the engine's sequences and who reads them; sockets, texts and APIs are others' business.

`LiveWorkload` holds requests that nobody knew before they came, in rows that are used again: an engine keeps one row of
columns for each request of its workload, and here a fixed number of rows stands for those in flight, so that a server
that has been up for a month holds no more than one just started.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from time import monotonic

from servesim.config.build import Server
from servesim.engine.engine import Engine
from servesim.engine.request_limits import RequestLimits
from servesim.engine.simulate import arriving
from servesim.serve.generation import EndedStep, Generation, LiveWatch, StepListener, StepTokens
from servesim.workload.requests import Content, Requests
from servesim.workload.workload import Workload


class LiveWorkload(Workload):
    """Rows that are filled by `submit` and given back by `free`; `on_finished(row)` hears of every end."""

    __slots__ = ("_free", "_heap", "_on_finished", "_serial")

    def __init__(self, rows: int, *, on_finished: Callable[[int], None], caching: bool, priorities: bool) -> None:
        requests = Requests()
        requests.prompt_tokens = array("q", bytes(8 * rows))
        requests.output_tokens = array("q", bytes(8 * rows))
        requests.arrival_s = array("d", [math.nan]) * rows
        requests.content = [()] * rows if caching else None
        requests.priority = array("q", bytes(8 * rows)) if priorities else None
        super().__init__(requests, reactive=True, duration_s=None)
        self._on_finished = on_finished
        self._free = list(range(rows - 1, -1, -1))
        self._heap: list[tuple[float, int, int]] = []  # due, serial number, row
        self._serial = 0

    @property
    def free_rows(self) -> int:
        """How many requests can still be taken in."""
        return len(self._free)

    @property
    def pending(self) -> int:
        """Requests that are submitted and not yet in the engine."""
        return len(self._heap)

    def submit(self, *, due_s: float, prompt: int, output: int, content: Content = (), priority: int = 0) -> int:
        """Put a request that is due at `due_s` into a free row, and return the row."""
        row = self._free.pop()
        requests = self.requests
        requests.prompt_tokens[row] = prompt
        requests.output_tokens[row] = output
        requests.arrival_s[row] = due_s
        if requests.content is not None:
            requests.content[row] = content
        if requests.priority is not None:
            requests.priority[row] = priority
        self._serial += 1
        heappush(self._heap, (due_s, self._serial, row))
        return row

    def take_back(self, row: int) -> bool:
        """Take back a request that is not yet in the engine; False if it is."""
        kept = [entry for entry in self._heap if entry[2] != row]
        if len(kept) == len(self._heap):
            return False
        heapify(kept)
        self._heap = kept
        return True

    def hasten(self, now: float) -> None:
        """Make those that are due after `now` due at `now`: the clock that their times were read on has slipped."""
        for _, _, row in self._heap:
            self.requests.arrival_s[row] = min(self.requests.arrival_s[row], now)
        self._heap = [(min(due, now), serial, row) for due, serial, row in self._heap]
        heapify(self._heap)

    def free(self, row: int) -> None:
        """Give a row back."""
        if self.requests.content is not None:
            self.requests.content[row] = ()
        self._free.append(row)

    def next_due(self) -> float:
        return self._heap[0][0] if self._heap else math.inf

    def take(self, now: float) -> list[int]:
        taken = []
        while self._heap and self._heap[0][0] <= now:
            taken.append(heappop(self._heap)[2])
        return taken

    def finished(self, index: int, at: float, error: str | None = None) -> bool:
        self._on_finished(index)
        return False

    def withheld(self) -> Iterable[int]:
        return ()


MAX_GENERATIONS = 16384  # in the house at once
FORGET_STEPS = 1 << 16
SETTLE_SHARE = 0.5  # of the next step's least duration: how long its decision may wait after the last hand-out
LATEST_SHARE = 0.8  # and how far into the step it may come
MAX_LAG_S = 0.25  # of wall time: who is further behind does not catch up


class EngineClock:
    """Runs one engine step by step; its owner asks `due_s` and calls `hand_out` and `decide` in turns.

    Wall times are those of `read_clock`, so that tests can bring their own.
    """

    def __init__(
        self,
        server: Server,
        listener: StepListener,
        *,
        speed: float = 1.0,
        settle_s: float = 0.0,
        read_clock: Callable[[], float] = monotonic,
        rows: int = MAX_GENERATIONS,
    ) -> None:
        # Queues are bounded where requests come in, and clients leave by themselves.
        self.config = server.config
        config = replace(server.config, max_num_queued_reqs=None, max_num_queued_tokens=None, client_timeout_s=None)
        cost = server.cost()
        self.speed = speed
        self.settle_s = settle_s
        self._listener = listener
        self._read_clock = read_clock
        self._origin_s = read_clock()
        self.slipped_s = 0.0  # wall time that was given up
        self._handed_out_s = -math.inf  # when the last step's tokens were
        self._at: list[Generation | None] = [None] * rows
        self._ended: list[Generation] = []  # whose rows were given back in the step that was just made
        self.workload = LiveWorkload(
            rows,
            on_finished=self._on_finished,
            caching=self.config.prefix_caching,
            priorities=self.config.policy == "priority",
        )
        self._watch = LiveWatch(self._at, self.to_wall)
        requests = self.workload.requests
        self.limits = RequestLimits(config, requests, requests.output_tokens)
        self.engine = Engine(config, cost, arriving(self.workload, cost), watch=self._watch, limits=self.limits)
        self._step: EndedStep | None = None  # decided, not yet over
        self._decide_by_s = -math.inf  # wall time up to which the next decision may be put off
        self.awaited: set[object] = set()  # connections whose answers ended with the last step
        self.last = EndedStep(0.0)  # the last step that is over
        self.last.free_blocks = self.engine.pool.free

    def to_wall(self, engine_s: float) -> float:
        """Return the wall time at which it is `engine_s` in the engine."""
        return self._origin_s + engine_s / self.speed

    def from_wall(self, now: float) -> float:
        """Return what time it is in the engine at wall time `now`."""
        return (now - self._origin_s) * self.speed

    # Requests

    @property
    def idle(self) -> bool:
        """Whether nothing is under way: no request in the engine, no step to end."""
        engine = self.engine
        return self._step is None and not (engine.is_busy or self.workload.pending)

    @property
    def waiting(self) -> int:
        """Requests that wait to be scheduled, with those that the engine has yet to see."""
        return self.engine.num_waiting + self.workload.pending

    def overflow(self, prompt_tokens: int, count: int = 1) -> str | None:
        """Return the limit of the queue that `count` more requests would break, None if there is room."""
        config = self.config
        if self.workload.free_rows < count:
            return "max_num_queued_reqs"
        limit = config.max_num_queued_reqs
        if limit is not None and self.waiting + count > limit:
            return "max_num_queued_reqs"
        limit = config.max_num_queued_tokens
        if limit is not None and self._watch.queued_tokens + prompt_tokens * count > limit:
            return "max_num_queued_tokens"
        return None

    def submit(self, generation: Generation, *, follows: object = None) -> None:
        """Take a generation in; `follows` is the connection it came on."""
        due_s = self.from_wall(generation.arrived_s)
        busy = self.engine.is_busy
        if busy and follows in self.awaited and generation.arrived_s <= self._decide_by_s:
            due_s = min(due_s, self.engine.now)
        row = self.workload.submit(
            due_s=max(due_s, 0.0),
            prompt=generation.prompt,
            output=generation.target,
            content=generation.content,
            priority=generation.priority,
        )
        generation.row = row
        self._at[row] = generation
        self._watch.queued_tokens += generation.prompt
        self.engine.workload_changed()

    def cancel(self, generation: Generation, now: float) -> None:
        """Hear that nobody waits for a generation any more: its blocks are free before the next step is decided."""
        row = generation.row
        if generation.gone or generation.over:
            return
        generation.gone = True
        self._listener.on_over(generation, "abort", now)
        engine = self.engine
        if row < 0:
            return  # it ended in the step under way
        if engine.has_ended(row):
            self._at[row] = None  # the row comes back when the engine has processed the last token
            return
        if self.workload.take_back(row) or engine.withdraw(row) is None:
            self._watch.queued_tokens -= generation.prompt
        engine.workload_changed()
        self._give_back(row)
        self._recount()

    def streams_in_use(self) -> set[int]:
        """Return the content streams of all that are in the house."""
        return {stream for generation in self._at if generation is not None for stream, _ in generation.content}

    def _on_finished(self, row: int) -> None:
        generation = self._at[row]
        if generation is not None and not generation.over:
            self._ended.append(generation)
        self._give_back(row)

    def _give_back(self, row: int) -> None:
        generation = self._at[row]
        if generation is not None:
            generation.row = -1
        self._at[row] = None
        self.engine.clear_row(row)
        self.workload.free(row)

    # The clock

    @property
    def due_s(self) -> float:
        """The wall time at which there is something to do; infinite while nothing is under way."""
        if self._step is not None:
            return self.to_wall(self._step.end_s)
        if self.engine.is_busy:
            return self._decide_by_s if self.awaited else -math.inf
        return self.to_wall(self.engine.wake_s) if self.workload.pending else math.inf

    @property
    def free_until_s(self) -> float:
        """The wall time up to which requests may be read before the engine must be seen to."""
        if self._step is None and (self.engine.is_busy):
            return self._decide_by_s
        return self.due_s if self._step is not None else math.inf

    def hand_out(self, now: float) -> bool:
        """Give the tokens of the step under way to their readers, if it is over; return whether it was."""
        step = self._step
        if step is None or now < self.to_wall(step.end_s):
            return False
        self._step = None
        self.last = step
        self.awaited.clear()
        tokens = StepTokens(gap_s=now - self._handed_out_s)
        for generation, made in step.growth:
            if generation.gone:
                continue
            first = generation.made
            tokens.count += made - first
            if not first:
                generation.first_s = now
                tokens.firsts.append(generation)
            elif generation.last_s == self._handed_out_s:
                tokens.followers += 1
            else:
                tokens.gaps_s.append(now - generation.last_s)
            generation.made, generation.last_s = made, now
            generation.reader.receive(generation, first)
            if made == generation.target:
                self._listener.on_over(generation, generation.reason, now)
        self._handed_out_s = now
        end_s, now, least_s = self.to_wall(step.end_s), self._read_clock(), self._least_step_s()
        self._listener.on_step(step, tokens, now - end_s)
        if now - end_s > MAX_LAG_S:
            self._slip(now - end_s, now)
            end_s = now
        self._decide_by_s = min(now + min(self.settle_s, least_s * SETTLE_SHARE), end_s + least_s * LATEST_SHARE)
        return True

    def decide(self, now: float, *, more: bool = False) -> None:
        """Make the next step, if it is time; `more`: there are requests to be read that may be in it."""
        if self._step is not None:
            return
        engine = self.engine
        if engine.is_busy:
            if (self.awaited or more) and now < self._decide_by_s:
                return
            until = engine.now
        elif self.workload.pending:
            until = max(engine.now, engine.wake_s)
            if self.to_wall(until) > now and not self.awaited:
                return
        else:
            return
        self._decide_by_s = -math.inf
        if len(engine.log) >= FORGET_STEPS:
            engine.forget_steps()
        self._watch.step = None
        engine.advance(math.nextafter(until, math.inf))
        self._step = step = self._watch.step
        if step is None:
            self._recount()
            return
        if self._ended:  # first, since their clients may have more to ask
            step.growth[:0] = [(generation, generation.target) for generation in self._ended]
            self._ended = []

    def _slip(self, seconds: float, now: float) -> None:
        """Give up `seconds` that cannot be caught up with: the engine's clock stands still for so long."""
        self._origin_s += seconds
        self.slipped_s += seconds
        self.workload.hasten(self.from_wall(now))
        self.engine.workload_changed()

    def _least_step_s(self) -> float:
        """Return the least wall time that the next step takes."""
        return self.engine.least_step_s() / self.speed

    def _recount(self) -> None:
        """Take in what changed behind the last step that was made."""
        engine, step = self.engine, self._step or self.last
        step.running, step.waiting, step.free_blocks = engine.num_running, engine.num_waiting, engine.pool.free
