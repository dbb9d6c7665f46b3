"""How requests get to a scheduler and how clients leave it: arrivals, refusals, deadlines, the end of a request.

Between a workload, which says who comes when, and a scheduler, which knows nothing of clients. It writes the records of
those who were refused or who left; those who are served to their end are the scheduler's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Listing
from heapq import heappop, heappush

from servesim.engine.request_limits import RequestLimits
from servesim.engine.scheduler import Scheduler
from servesim.engine.sequence import DECODE, Sequence
from servesim.runs.records import Outcome, StepLog
from servesim.workload.workload import Workload

TIMEOUT = "timeout"
QUEUE_FULL = "queue_full"


class Arrivals:
    """Arrivals at one engine, and departures. `wake_s` is the next time at which one happens by itself.

    Where no request can be refused and no client leaves, an arrival costs next to nothing. `log` gives the times of
    tokens. `noted` receives the requests that are let in, if anybody watches.
    """

    def __init__(
        self,
        workload: Workload,
        scheduler: Scheduler,
        limits: RequestLimits,
        log: StepLog,
        noted: list[int] | None = None,
    ) -> None:
        config = scheduler.config
        self.log = log
        self.abandoned: list[tuple[int, int]] = []  # as in `Records`, of this engine's steps
        self.timeout_s = config.client_timeout_s
        self._workload = workload
        self._reactive = workload.reactive
        self._scheduler = scheduler
        self._limits = limits
        self._noted = noted
        # A heap of (time, index, attempt): KV over a link does not arrive in the order in which requests were sent.
        self._deadlines: list[tuple[float, int, int]] = []
        self._attempts: dict[int, int] = {}  # of the requests that a deadline stands for: the attempt in flight
        self._transfers: list[tuple[float, int, Sequence]] = []  # (when a link has read its blocks, order, who)
        self._looks_at_each = (
            self.timeout_s is not None
            or config.max_num_queued_tokens is not None
            or config.max_num_queued_reqs is not None
            or limits.may_refuse
        )
        self.wake_s = workload.next_due()

    def update_wake(self) -> None:
        """Ask the workload when the next request comes."""
        self.wake_s = self._workload.next_due()
        if self._deadlines:
            self.wake_s = min(self.wake_s, self._deadlines[0][0])
        if self._transfers:
            self.wake_s = min(self.wake_s, self._transfers[0][0])

    # Who comes

    def let_in(self, now_s: float) -> None:
        """Let clients leave whose time is up, then let in who is due."""
        scheduler = self._scheduler
        if self._deadlines:
            self._expire(now_s)
        while self._transfers and self._transfers[0][0] <= now_s:
            scheduler.free_transferred(heappop(self._transfers)[2])
        while self._workload.next_due() <= now_s:
            batch = self._workload.take(now_s)
            if self._looks_at_each:
                for index in batch:
                    self._arrive(index, now_s)
            else:
                scheduler.enqueue(batch)
                if self._noted is not None:
                    self._noted.extend(batch)
        self.update_wake()

    def _arrive(self, index: int, now_s: float) -> None:
        scheduler, requests = self._scheduler, self._workload.requests
        config, records = scheduler.config, scheduler.records
        due_s = requests.arrival_s[index]
        if math.isnan(records.sent_s[index]):
            records.sent_s[index] = due_s
        else:
            records.attempts[index] = records.attempts.get(index, 1) + 1
        prompt = requests.prompt_tokens[index]
        refusal = self._limits.refusal(prompt, prompt + scheduler.targets[index])
        if refusal is None:
            most, most_tokens = config.max_num_queued_reqs, config.max_num_queued_tokens
            if (most is not None and len(scheduler.waiting) >= most) or (
                most_tokens is not None and scheduler.queued_tokens + prompt > most_tokens
            ):
                refusal = QUEUE_FULL
        if refusal is not None:
            self._fail(index, now_s, refusal)
            return
        if self.timeout_s is not None:
            attempt = records.attempts.get(index, 1)
            deadline_s = self.deadline_s(index)
            if deadline_s <= now_s:
                self._fail(index, deadline_s, TIMEOUT)
                return
            self._attempts[index] = attempt
            heappush(self._deadlines, (deadline_s, index, attempt))
        if self._noted is not None:
            self._noted.append(index)
        scheduler.enqueue((index,))

    # Who leaves

    @property
    def clients_may_return(self) -> bool:
        """Whether a request may be neither over nor in the engine: its client waits to send it again."""
        return self._looks_at_each and self._reactive

    def deadline_s(self, index: int) -> float:
        """Return when the client of the attempt in flight leaves."""
        return math.inf if self.timeout_s is None else self._workload.requests.arrival_s[index] + self.timeout_s

    def too_late(self, sequences: Listing[Sequence], now_s: float) -> list[Sequence]:
        """Return those whose clients had left before this moment, at which they had their last token."""
        if self.timeout_s is None:
            return []
        return [sequence for sequence in sequences if self.deadline_s(sequence.index) < now_s]

    def completed(self, sequences: Listing[Sequence], now_s: float) -> None:
        """Tell the workload of sequences that are completed and gone from the engine."""
        if self._attempts:
            for sequence in sequences:
                self._attempts.pop(sequence.index, None)
        if self._reactive:
            finished = self._workload.finished
            for sequence in sequences:
                finished(sequence.index, now_s)
            self.update_wake()

    def free_at(self, at_s: float, sequence: Sequence) -> None:
        """Give back the blocks of a sequence that was handed over at the first schedule at or after `at_s`."""
        heappush(self._transfers, (at_s, sequence.order, sequence))
        self.update_wake()

    def close(self, until_s: float) -> None:
        """Let go of those whose clients have left by the end of the run, and record what the others had by then."""
        if self._deadlines:
            self._expire(until_s)
        scheduler, step = self._scheduler, len(self.log)
        preempted = [waiter for waiter in scheduler.waiting if isinstance(waiter, Sequence)]
        for sequence in [*scheduler.running.values(), *preempted]:
            index, outputs = sequence.index, sequence.outputs_at(scheduler.decoding.tick)
            slices = scheduler.records.slices.pop(index, [])
            if sequence.state == DECODE and sequence.run_start < step:
                slices.append((sequence.run_start, step - 1))
            if slices:
                self._record_tokens(index, slices, outputs, self.deadline_s(index))

    def _expire(self, now_s: float) -> None:
        """Let go of requests whose clients have left by `now_s`; one that has ended is left to `completed`."""
        scheduler = self._scheduler
        while self._deadlines and self._deadlines[0][0] <= now_s:
            deadline_s, index, attempt = heappop(self._deadlines)
            if self._attempts.get(index) != attempt or scheduler.has_ended(index):
                continue
            sequence = scheduler.withdraw(index, len(self.log))
            del self._attempts[index]
            if sequence is not None and sequence.outputs:
                slices = scheduler.records.slices.pop(index)
                self._record_tokens(index, slices, sequence.outputs, deadline_s)
            self._fail(index, deadline_s, TIMEOUT)

    def _record_tokens(self, index: int, slices: list[tuple[int, int]], outputs: int, deadline_s: float) -> None:
        """Record the tokens that a client had before it left: all, but for one that may have come too late.

        `slices` are the first and last steps of its unbroken runs of tokens, `outputs` tokens in all.
        """
        records = self._scheduler.records
        start, last = slices[-1]
        if last >= 0 and self.log.end_s[last] > deadline_s:
            outputs -= 1
            slices.pop()
            if start < last:
                self.abandoned.append((last - 1, last))
                slices.append((start, last - 1))
        records.output_tokens[index] = outputs
        records.first[index] = slices[0][0] if slices else -1
        records.last[index] = slices[-1][1] if slices else -1
        if len(slices) > 1:
            records.slices[index] = slices

    def _fail(self, index: int, at_s: float, error: str) -> None:
        """Close the record of a request that was refused or given up, unless its client comes back."""
        records = self._scheduler.records
        if self._workload.finished(index, at_s, error):
            first = records.first[index]
            if first >= 0:
                self.abandoned.extend(records.slices.pop(index, [(first, records.last[index])]))
                records.first[index] = records.last[index] = -1
                records.output_tokens[index] = 0
            records.preempted.pop(index, None)
            records.cached_tokens[index] = 0
            records.admitted_s[index] = math.nan
            return
        records.outcome[index] = Outcome.FAILED if error == TIMEOUT else Outcome.REJECTED
        records.reason[index] = error
