"""How requests get to an engine and how clients leave it: arrivals, refusals, deadlines, the end of a request."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from servesim.engine.sequence import Sequence
from servesim.runs.records import Outcome

if TYPE_CHECKING:
    from servesim.engine.engine import Engine

TIMEOUT = "timeout"
QUEUE_FULL = "queue_full"


def write_tokens(engine: Engine, index: int, pieces: list[tuple[int, int]], outputs: int, deadline: float) -> None:
    """Record the tokens that a client had before it left: all `outputs`, but for one that may have come too late."""
    records = engine.records
    start, last = pieces[-1]
    if last >= 0 and engine.log.end_s[last] > deadline:
        outputs -= 1
        pieces.pop()
        if start < last:
            engine.abandoned.append((last - 1, last))
            pieces.append((start, last - 1))
    records.output_tokens[index] = outputs
    records.first[index] = pieces[0][0] if pieces else -1
    records.last[index] = pieces[-1][1] if pieces else -1
    if len(pieces) > 1:
        records.pieces[index] = pieces


class Door:
    """Between a workload and an engine. `wake` is the next moment at which somebody comes or leaves by himself.

    Where no request can be refused and no client leaves, an arrival costs next to nothing.
    """

    def __init__(self, engine: Engine) -> None:
        config = engine.config
        self._engine = engine
        self._workload = engine.workload
        self._reactive = engine.workload.reactive
        self._timeout_s = config.client_timeout_s
        # A heap of (time, index, attempt): KV over a link does not arrive in the order in which requests were sent.
        self._deadlines: list[tuple[float, int, int]] = []
        self._attempts: dict[int, int] = {}  # of the requests that a deadline stands for: the attempt in flight
        self._frees: list[tuple[float, int, Sequence]] = []  # (when its blocks have been read, order, who)
        self._keyed = engine.policy.admission is not None
        self._watch = engine.watch
        self.queued_tokens = 0  # prompts of those in `waiting` that were never admitted
        self.counting = config.max_num_queued_tokens is not None
        self._screened = (
            self._timeout_s is not None
            or self.counting
            or config.max_num_queued_reqs is not None
            or engine.screen.may_refuse
        )
        self.wake = engine.workload.next_due()

    def open(self) -> None:
        """Let clients leave whose time is up, then let in who is due."""
        engine, now = self._engine, self._engine.now
        if self._deadlines:
            self._expire(now)
        while self._frees and self._frees[0][0] <= now:
            engine.free_handed(heappop(self._frees)[2])
        while self._workload.next_due() <= now:
            batch = self._workload.take(now)
            if self._screened:
                for index in batch:
                    self._arrive(index, now)
            elif engine.incoming:
                engine.waiting.extend(engine.incoming.pop(index, index) for index in batch)
            else:
                engine.waiting.extend(batch)
                if self._watch is not None:
                    self._watch.arrived.extend(batch)
        if self._keyed:
            engine.blocked = False
        self.reset_wake()

    def left(self, sequences: list[Sequence]) -> None:
        """Hear that sequences are completed and gone from the engine."""
        now = self._engine.now
        if self._attempts:
            for sequence in sequences:
                self._attempts.pop(sequence.index, None)
        if self._reactive:
            finished = self._workload.finished
            for sequence in sequences:
                finished(sequence.index, now)
            self.reset_wake()

    def too_late(self, sequences: list[Sequence]) -> list[Sequence]:
        """Return those whose clients had left before this moment, at which they had their last token."""
        if self._timeout_s is None:
            return []
        return [sequence for sequence in sequences if self.deadline(sequence.index) < self._engine.now]

    def withdraw(self, index: int) -> Sequence | None:
        """Take a request whose client has left out of the engine: its blocks are free at once.

        It must be in the engine and not have ended. Returns its sequence, if it was ever admitted.
        """
        engine = self._engine
        sequence = next((s for s in engine.running.values() if s.index == index), None)
        if sequence is not None:
            engine.abort(sequence)
            return sequence
        waiter = next(w for w in engine.waiting if w == index or (w.__class__ is Sequence and w.index == index))
        if isinstance(waiter, Sequence):
            sequence = waiter
            engine.wasted_tokens += waiter.high_water
        else:
            self.queued_tokens -= engine.workload.requests.prompt_tokens[index]
        engine.waiting.remove(waiter)
        engine.blocked = False
        return sequence

    def free_at(self, at: float, sequence: Sequence) -> None:
        """Give back the blocks of a sequence that was handed over at the first schedule at or after `at`."""
        heappush(self._frees, (at, sequence.order, sequence))
        self.reset_wake()

    @property
    def lets_come_back(self) -> bool:
        """Whether a request may be neither over nor in the engine: its client waits to send it again."""
        return self._screened and self._reactive

    def deadline(self, index: int) -> float:
        """Return when the client of the attempt in flight leaves, in seconds."""
        return math.inf if self._timeout_s is None else self._workload.requests.arrival_s[index] + self._timeout_s

    def close(self) -> None:
        """Let go of those whose clients have left by the end of the run."""
        if self._deadlines:
            self._expire(self._engine.until)

    def reset_wake(self) -> None:
        """Ask the workload anew when somebody comes."""
        self.wake = self._workload.next_due()
        if self._deadlines and self._deadlines[0][0] < self.wake:
            self.wake = self._deadlines[0][0]
        if self._frees and self._frees[0][0] < self.wake:
            self.wake = self._frees[0][0]

    def _arrive(self, index: int, now: float) -> None:
        engine = self._engine
        config, records, requests = engine.config, engine.records, engine.workload.requests
        due = requests.arrival_s[index]
        if math.isnan(records.sent_s[index]):
            records.sent_s[index] = due
        else:
            records.attempts[index] = records.attempts.get(index, 1) + 1
        prompt = requests.prompt_tokens[index]
        refusal = engine.screen.refusal(prompt, prompt + engine.targets[index])
        if refusal is None and (
            (config.max_num_queued_reqs is not None and len(engine.waiting) >= config.max_num_queued_reqs)
            or (self.counting and self.queued_tokens + prompt > (config.max_num_queued_tokens or 0))
        ):
            refusal = QUEUE_FULL
        if refusal is not None:
            self._fail(index, now, refusal)
            return
        if self._timeout_s is not None:
            attempt = records.attempts.get(index, 1)
            deadline = self.deadline(index)
            if deadline <= now:
                self._fail(index, deadline, TIMEOUT)
                return
            self._attempts[index] = attempt
            heappush(self._deadlines, (deadline, index, attempt))
        if self._watch is not None:
            self._watch.arrived.append(index)
        engine.waiting.append(engine.incoming.pop(index, index))
        self.queued_tokens += prompt

    def _expire(self, now: float) -> None:
        """Let go of the requests whose clients have left by `now`; a sequence that has ended is left to `left`."""
        engine = self._engine
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, index, attempt = heappop(self._deadlines)
            if self._attempts.get(index) != attempt:
                continue
            if any(sequence.index == index for sequence in engine.ended):
                continue
            sequence = self.withdraw(index)
            del self._attempts[index]
            if sequence is not None and sequence.outputs:
                pieces = engine.records.pieces.pop(index)
                write_tokens(engine, index, pieces, sequence.outputs, deadline)
            self._fail(index, deadline, TIMEOUT)

    def _fail(self, index: int, at: float, error: str) -> None:
        """Close the record of a request that was refused or given up, unless its client comes back."""
        engine = self._engine
        records = engine.records
        if self._workload.finished(index, at, error):
            first = records.first[index]
            if first >= 0:
                engine.abandoned.extend(records.pieces.pop(index, [(first, records.last[index])]))
                records.first[index] = records.last[index] = -1
                records.output_tokens[index] = 0
            records.preempted.pop(index, None)
            records.cached_tokens[index] = 0
            records.admitted_s[index] = math.nan
            return
        records.outcome[index] = Outcome.FAILED if error == TIMEOUT else Outcome.REJECTED
        records.reason[index] = error
