"""One simulated engine: vLLM's iteration-level scheduling on a virtual clock.

An engine has a scheduler, which says what a step computes and whose memory it takes; arrivals, which bring requests in
and take clients out; and a log. It is the clock between them: `advance` lets in who is due, has the next step
scheduled, asks the cost model how long it takes, writes it down, and lets the scheduler give out its tokens. The steps
in which nothing but decoding happens are run by the stretch (`steady`).

What it does not know: hardware (the cost model gives seconds), why requests arrive (the workload knows), what a client
does with its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from servesim.config.engine import EngineConfig
from servesim.cost.model import CostModel
from servesim.engine.adapters import AdapterCost
from servesim.engine.arrivals import Arrivals
from servesim.engine.finalise import close_log, close_records
from servesim.engine.laws import Facts, broken_laws
from servesim.engine.request_limits import RequestLimits
from servesim.engine.scheduler import Chunk, Scheduler, Step
from servesim.engine.sequence import Sequence
from servesim.engine.steady import Steady
from servesim.engine.trace import Observation, StepWatch, Tracer
from servesim.errors import RunError
from servesim.runs.records import NAN, EngineTotals, Records, Run, StepLog
from servesim.runs.step_log import CompressedLog
from servesim.workload.workload import Workload

EMPTY_STEPS = 10_000
"""So many steps one after another may compute nothing before the engine is taken to stand still; one or two do."""


class Engine:
    """One engine under `config`, fed by `workload`, with step times from `cost`.

    `advance(until)` runs every step that starts before `until`; `run()` then gives the run. An `observer` is called
    after each step with an `Observation`; it changes nothing but the speed. Engines of one fleet share `limits` and
    `records`.
    """

    def __init__(
        self,
        config: EngineConfig,
        cost: CostModel,
        workload: Workload,
        *,
        observer: Callable[[Observation], None] | None = None,
        watch: StepWatch | None = None,
        limits: RequestLimits | None = None,
        records: Records | None = None,
    ) -> None:
        requests = workload.requests
        self.config = config
        self.workload = workload
        self.now = 0.0  # the clock, in seconds
        self.until = math.inf  # how far it was last told to advance
        self.limits = RequestLimits(config, requests) if limits is None else limits
        self.records = Records(len(requests)) if records is None else records
        self.log = StepLog()
        self.totals = EngineTotals(num_blocks=config.num_blocks)
        self.watch = watch if observer is None else Tracer(observer)
        self.scheduler = Scheduler(
            config, requests, self.limits, self.records, self.totals, watched=self.watch is not None
        )
        self.pool = self.scheduler.pool
        adapters = self.scheduler.adapters
        self.cost = cost if adapters is None else AdapterCost(cost, adapters)
        noted = None if self.watch is None else self.watch.arrived
        self.arrivals = Arrivals(workload, self.scheduler, self.limits, self.log, noted)
        self.on_chunks: Callable[[list[Chunk], float, float], None] | None = None  # called after each step that has any
        self._steady = Steady(
            self.scheduler.decoding, self.pool, self.cost, self.log, self.totals, is_fixed=adapters is None
        )
        self._receives = False  # requests whose KV came over a link
        self._least_step_s = cost.decode(1, 1)
        self._empty = (0, 0)  # steps that computed nothing, and took no time, since the log had so many entries

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return len(self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a slot, preempted ones included."""
        return len(self.scheduler.waiting)

    @property
    def is_busy(self) -> bool:
        """Whether there is a request in the engine."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    @property
    def wake_s(self) -> float:
        """The next time at which a request comes, or a client leaves, by itself."""
        return self.arrivals.wake_s

    # The clock

    def advance(self, until: float = math.inf) -> None:
        """Run every step that starts before `until`, or until nothing is left to do."""
        scheduler, arrivals, decoding, steady = self.scheduler, self.arrivals, self.scheduler.decoding, self._steady
        step_by_step = self.watch is not None or scheduler.speculation is not None
        self.until = until
        while self.now < self.until:
            if self.now >= arrivals.wake_s:
                arrivals.let_in(self.now)
            if not scheduler.running and scheduler.is_idle():
                arrivals.update_wake()
                if arrivals.wake_s == math.inf or arrivals.wake_s >= self.until:
                    return
                self.now = max(self.now, arrivals.wake_s)
                self.log.starts[len(self.log)] = self.now
                continue
            only_decodes = decoding.count and not (
                scheduler.prefilling
                or scheduler.ended
                or scheduler.stalled
                or scheduler.in_sync
                or (scheduler.waiting and not scheduler.blocked)
                or step_by_step
            )
            end_s = steady.run(self.now, min(self.until, arrivals.wake_s)) if only_decodes else None
            if end_s is None:
                self._step()
                continue
            self.now = end_s
            if decoding.tick in decoding.buckets:
                self._finish(decoding.pop_finished(), len(self.log.end_s) - 1)

    def rests_until(self) -> float:
        """Return a time before which nothing happens but steps, infinite when everything is over."""
        return self.now if self.is_busy else self.wake_s

    def over(self) -> int:
        """Return how many requests are over."""
        return self.records.over()

    def stop(self) -> None:
        """Make `advance` return after the step that it is in; to be called while that step ends."""
        self.until = self.now

    def earliest_finish(self) -> float:
        """Return a time in seconds before which no request ends here, if none arrives in the meantime."""
        scheduler, now, wake_s = self.scheduler, self.now, self.arrivals.wake_s
        decoding = scheduler.decoding
        if scheduler.ended:
            return now
        if scheduler.is_idle():
            return max(now, wake_s)
        if not (scheduler.waiting or scheduler.prefilling or decoding.count):
            return now  # only sequences whose clients have left
        steps = 1 if scheduler.waiting or scheduler.prefilling else min(decoding.buckets) - decoding.tick
        return min(now + steps * self._least_step_s, max(now, wake_s))

    def _step(self) -> None:
        """Schedule one step, let its time pass, process its output."""
        scheduler, pool, log, watch = self.scheduler, self.pool, self.log, self.watch
        number = len(log.end_s)
        step = scheduler.schedule(number, self.now)
        kv_blocks = pool.num_blocks - pool.keyless - pool.cached
        if step.completed:
            self.arrivals.completed(step.completed, self.now)
        if watch is not None:
            watch.scheduled(scheduler, step)
        seen: list[Sequence] = []  # an asynchronous engine sees the last tokens of the step before only now
        if scheduler.ended:
            seen = scheduler.ended
            self.arrivals.completed(scheduler.release(seen), self.now)
        finished: list[Sequence] = []
        computes = step.decodes > 0 or bool(step.chunks)
        if computes:
            self.now = end_s = self.now + self._seconds(step)
            finished = scheduler.update(step)
            log.append(end_s, step.unbroken, kv_blocks, step.prefill_tokens)
            if step.chunks and self.on_chunks is not None:
                self.on_chunks(step.chunks, step.start_s, end_s)
            if finished:
                self._finish(finished, number)
        else:
            self._note_empty(step, released=bool(seen))
        if scheduler.tokens_lag:
            scheduler.note_known_tokens(computes)
        if watch is not None:
            watch.done(scheduler, step, self.now, seen if self.config.async_scheduling else finished)
            self.arrivals.update_wake()  # an observer may count steps for a workload that goes by them

    def _seconds(self, step: Step) -> float:
        """Return how long a step takes."""
        decodes, context, chunks, cost = step.decodes, step.context, step.chunks, self.cost
        if chunks and self._receives:
            decodes, context, chunks = self._count_received(step)
        drafted = step.drafted and decodes == step.decodes  # no drafts where such a sequence joins
        if chunks or drafted:
            work = [(tokens, sequence.computed) for sequence, tokens in chunks]
            if drafted and decodes:
                work.append((step.drafted * decodes, 0))  # they see the KV that the sequences read anyway
            seconds = cost.step(decodes, context, work)
        else:
            seconds = cost.decode(decodes, context)
        if step.fetch_s:
            overlap = self.config.kv_tiers_overlap
            seconds = max(seconds, step.fetch_s) if overlap else seconds + step.fetch_s
        return seconds

    @staticmethod
    def _count_received(step: Step) -> tuple[int, int, list[Chunk]]:
        """Return decodes, context and chunks of a step with the sequences that join it with KV from a link counted as
        decoding: they compute nothing of a prompt."""
        decodes, context = step.decodes, step.context
        chunks: list[Chunk] = []
        for sequence, tokens in step.chunks:
            if tokens == 1 and sequence.received and sequence.outputs == 1:
                decodes += 1
                context += sequence.computed
            else:
                chunks.append((sequence, tokens))
        return decodes, context, chunks

    def _finish(self, finished: list[Sequence], step: int) -> None:
        """Release sequences that had their last token in `step`, and tell the workload."""
        arrivals = self.arrivals
        late = arrivals.too_late(finished, self.now) if arrivals.timeout_s is not None else ()
        completed = self.scheduler.finish(finished, step, late)
        if completed:
            arrivals.completed(completed, self.now)

    def _note_empty(self, step: Step, released: bool) -> None:
        """Count a step that computed nothing; raise `RunError` where nothing would ever come of waiting on."""
        scheduler, number = self.scheduler, step.number
        self._empty = (number, self._empty[1] + 1 if self._empty[0] == number else 0)
        stands = scheduler.waiting and not released and not step.preempted
        if (stands and not scheduler.in_transfer) or self._empty[1] > EMPTY_STEPS:
            raise self._standstill()
        if stands:
            scheduler.blocked = True  # until a link has read the blocks that are in the head's way

    def _standstill(self) -> RunError:
        scheduler, requests = self.scheduler, self.workload.requests
        if not scheduler.waiting:
            index = next(scheduler.live_indices())
            return RunError(f"request {requests.id(index)} gets no further: steps compute nothing")
        head = scheduler.waiting[0]
        index = head if isinstance(head, int) else head.index
        return RunError(
            f"request {requests.id(index)} can never be admitted: nothing runs and it does not fit "
            f"({self.pool.free} of {self.pool.num_blocks} blocks free)"
        )

    # The end

    def run(self, config: dict[str, Any] | None = None) -> Run:
        """Close the records of an engine that has been advanced as far as it shall be, and return its run.

        `config` is the effective configuration that the run is to carry.
        """
        self.drain()
        self.close()
        workload, records, scheduler = self.workload, self.records, self.scheduler
        records.abandoned = self.arrivals.abandoned
        close_records(records, workload, self.limits.targets, set(scheduler.live_indices()))
        facts = Facts([scheduler], workload.requests, records, self.log, away=self.arrivals.clients_may_return)
        return Run(
            source="simulated",
            requests=workload.requests,
            records=records,
            times=self.log.end_s,
            config=config or {},
            steps=self.log,
            engine=self.totals,
            offload=[] if self.pool.tiers is None else self.pool.tiers.describe(),
            violations=broken_laws(facts),
        )

    def drain(self) -> None:
        """Process the output of the last step, if an asynchronous engine has yet to."""
        self.arrivals.completed(self.scheduler.release(self.scheduler.ended), self.now)

    def close(self) -> None:
        """Write what is still in flight into the records; complete the step log and the totals."""
        self.arrivals.close(self.until)
        close_log(self.log, self.totals)
        self.totals.evictions = self.pool.evictions

    # A server that is never over

    def least_step_s(self) -> float:
        """Return the least seconds that the next step takes."""
        decoding = self.scheduler.decoding
        return self.cost.decode(max(1, decoding.count), decoding.context + decoding.count)

    def has_ended(self, index: int) -> bool:
        """Tell whether request `index` had its last token in the last step and is not yet released."""
        return self.scheduler.has_ended(index)

    def withdraw(self, index: int) -> Sequence | None:
        """Take a request whose client has left out of the engine; return its sequence, if it was ever admitted."""
        return self.scheduler.withdraw(index, len(self.log))

    def forget_steps(self) -> None:
        """Forget every step so far, between two of them: the next is step 0, what is in flight began before it.

        A run's log and records grow with it; a server that has been up for a month needs neither.
        """
        slices, steps = self.records.slices, len(self.log)
        self.log.clear()
        self.arrivals.abandoned.clear()
        for sequence in self.scheduler.holders():
            sequence.run_start -= steps
        for index, own in slices.items():
            first, last = own[-1]
            slices[index] = [(first - steps, last - steps)]

    def clear_row(self, index: int) -> None:
        """Make row `index` of the records as good as new, for the next request that is given it."""
        records = self.records
        records.planned_s[index] = records.sent_s[index] = records.admitted_s[index] = NAN
        records.first[index] = records.last[index] = -1
        records.output_tokens[index] = records.cached_tokens[index] = 0
        records.outcome[index] = 0
        for sparse in (records.slices, records.preempted, records.reason, records.attempts):
            sparse.pop(index, None)

    # A fleet

    def workload_changed(self) -> None:
        """Ask the workload when the next request comes: it was given one from outside of the engine."""
        self.arrivals.update_wake()

    def live_indices(self) -> Iterator[int]:
        """Yield the requests that are in the engine, running or waiting."""
        return self.scheduler.live_indices()

    def compress_log(self) -> None:
        """Write a steady stretch down as one entry, before anything has run; for runs of a billion steps."""
        self.log = self.arrivals.log = CompressedLog()
        self._steady.write_to(self.log)

    def hand_over_prompts(self, hand_over: Callable[[Sequence], None]) -> None:
        """Call `hand_over` with every completed prompt; its blocks stay in use until the time given to `free_at`."""
        self.scheduler.hand_over = hand_over

    def free_at(self, at_s: float, sequence: Sequence) -> None:
        """Give back the blocks of a prompt that was handed over at the first schedule at or after `at_s`."""
        self.arrivals.free_at(at_s, sequence)

    def cached_tokens(self, sequence: Sequence) -> int:
        """Return how many tokens of a sequence that is not here yet the prefix cache holds now."""
        return self.scheduler.cached_tokens(sequence)

    def receive(self, sequence: Sequence) -> None:
        """Have a request that is about to arrive begin with the KV that came over a link."""
        self._receives = True
        self.scheduler.name_content(sequence)
        self.scheduler.prefilled_elsewhere[sequence.index] = sequence

    def forget_received(self, index: int) -> None:
        """Drop what came over a link for a request that was over before it arrived."""
        self.scheduler.prefilled_elsewhere.pop(index, None)
