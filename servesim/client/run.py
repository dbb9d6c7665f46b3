"""Drives a workload against a real server on the wall clock, as the engine does on the virtual one, and gives a `Run`.

A `LoadGenerator` keeps its connections from one run to the next, so that a warm-up warms them too: warm-up, repeats and
the rows of a scan are calls of `measure`, each with a workload of its own. Knows no metric and prints nothing.
"""

from __future__ import annotations

import gc
import math
import resource
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from socket import gaierror
from time import monotonic
from typing import Any

from servesim.client.connection import Exchange
from servesim.client.flavour import Flavour
from servesim.client.health import Health, report_health
from servesim.client.loop import Loop, Timeouts
from servesim.client.pool import describe_failure
from servesim.client.reading import INTERRUPTED, Reader
from servesim.client.requests import Conversations, Payload, RequestMaker
from servesim.client.shares import attempts_of
from servesim.client.target import Target
from servesim.errors import RunError
from servesim.interrupts import Interrupts
from servesim.runs.records import NAN, Outcome, Records, Run
from servesim.workload.requests import Requests
from servesim.workload.workload import Workload

PROGRESS_EVERY_S = 0.25
SWITCH_INTERVAL_S = 0.0005  # other threads (the scraper's, the connectors') hold the interpreter no longer than this
OPEN_AT_MOST = 32  # connections opened ahead of an open loop, whose concurrency nobody knows
RETRIED_STATUS = (408, 429)  # of the 4xx: the others would meet the same answer again


@dataclass(slots=True, frozen=True, kw_only=True)
class Progress:
    """Where a run stands: requests over, asked in all, in flight and failed, token events read, seconds gone."""

    done: int
    total: int
    in_flight: int
    errors: int
    token_events: int
    elapsed_s: float


@dataclass(slots=True, frozen=True, kw_only=True)
class Watchers:
    """Who hears of a run while it goes on. None of them may take long: they are called between reads.

    `filed(run, index)`: the record of a request is complete (the place to write its line to a file).
    `filed_elsewhere(count)`: so many were filed by other processes, which have ended.
    `begun(run)`: just before the first request is sent. `progress`: four times a second.
    """

    filed: Callable[[Run, int], None] | None = None
    filed_elsewhere: Callable[[int], None] | None = None
    begun: Callable[[Run], None] | None = None
    progress: Callable[[Progress], None] | None = None


class LoadGenerator:
    """Sends requests to one server. Close it, or use it in a `with` block.

    `grace_s` is how long what is in flight may take to finish after Ctrl-C or after the workload's time limit.
    """

    def __init__(
        self,
        target: Target,
        flavour: Flavour,
        *,
        stream: bool = True,
        timeouts: Timeouts | None = None,
        grace_s: float = 30.0,
        interrupts: Interrupts | None = None,
    ) -> None:
        self._target = target
        self._reader = flavour.reader
        self._route = flavour.route(stream=stream)
        self._grace_s = grace_s
        self._interrupts = interrupts or Interrupts()
        self._loop = Loop(flavour.framing(stream=stream), timeouts or Timeouts())
        self.health = Health()  # of the latest run

    def __enter__(self) -> LoadGenerator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._loop.close()

    def connect(self, count: int) -> None:
        """Open connections until `count` are idle.

        Raises RunError where the server refuses or its name does not resolve: nobody is there. Any other failure (no
        answer in time, no route, no TLS) is left to the requests that meet it.
        """
        _allow_files(count + 64)
        try:
            self._loop.open_connections(self._target, count)
        except (ConnectionRefusedError, gaierror) as error:
            raise RunError(describe_failure(self._target, error)[1]) from None
        except OSError:
            pass  # the requests will meet it too, and say so

    def measure(
        self,
        workload: Workload,
        payload: Payload,
        *,
        config: dict[str, Any],
        concurrency: int | None = None,
        conversations: Conversations | None = None,
        watchers: Watchers | None = None,
        start: Callable[[], float] = monotonic,
    ) -> Run:
        """Drive `workload` to its end and return the run, whose times count from its start.

        `payload(index)` gives a request's JSON body. `concurrency` is what a closed loop asks for, None for an open
        loop. `conversations` hears of every answer before the next turn's body is asked for. `start` is called when
        everything is ready and returns the monotonic time that is the run's 0 (which may still be ahead: several
        processes begin together). Raises RunError when nobody is there at the start (see `connect`); whatever else
        goes wrong is a request's failure.
        """
        watchers = watchers or Watchers()
        run = open_run(workload.requests, config)
        size = len(workload.requests)
        self.connect(min(size, OPEN_AT_MOST if concurrency is None else concurrency))
        waits = None if conversations is None else conversations.waits
        maker = RequestMaker(self._target, self._route, payload, size, waits)
        maker.make_ahead(monotonic() + 2.0)
        with _quiet_interpreter():
            drive = _Drive(self._loop, workload, run, maker, self._reader, watchers, start(), conversations)
            self._loop.think = drive.think
            self._loop.restart_health()
            try:
                drive.run(self._interrupts, self._grace_s)
            finally:
                self._loop.health.end()
        self.health = self._loop.health
        self.health.keeps_alive = self._loop.keeps_alive(self._target)
        warn_of_unfinished(run)
        run.client = report_health(self.health, run, concurrency=concurrency)
        return run


class _Drive:
    """One run while it goes on."""

    def __init__(
        self,
        loop: Loop,
        workload: Workload,
        run: Run,
        maker: RequestMaker,
        reader: str,
        watchers: Watchers,
        start_s: float,
        conversations: Conversations | None = None,
    ) -> None:
        self._loop = loop
        self._workload = workload
        self._run = run
        self._maker = maker
        self._watchers = watchers
        self._start_s = start_s
        self._conversations = conversations
        self._reader = Reader(run, reader, start_s, self._file, keep_text=conversations is not None)
        self._attempts = attempts_of(workload)
        self._done = 0
        self._stopping = False
        self._progress_at = start_s

    def think(self, until: float) -> bool:
        """Do what can wait: read answers and file records, then make the next requests' bytes."""
        return self._reader.think(until, self._loop.exchanges()) or self._maker.make_ahead(until)

    def run(self, interrupts: Interrupts, grace_s: float) -> None:
        loop, workload, start_s = self._loop, self._workload, self._start_s
        if self._watchers.begun is not None:
            self._watchers.begun(self._run)
        give_up_s = start_s + workload.duration_s + grace_s
        while True:
            now = monotonic()
            if interrupts.asked and not self._stopping:
                give_up_s = min(give_up_s, now + grace_s)
                self._stopping = self._run.partial = True
                for exchange in loop.withdraw():
                    self._give_up(exchange, now)
            if now >= give_up_s or interrupts.count > 1:
                break
            due_s = math.inf if self._stopping else workload.next_due()
            if due_s <= now - start_s:
                self._submit(now - start_s)
            elif due_s == math.inf and not loop.in_flight and not loop.unsent:
                break
            for exchange in loop.turn(start_s + due_s):
                self._over(exchange)
            if now >= self._progress_at:
                self._tell(now)
        for exchange in loop.abandon(INTERRUPTED):
            self._give_up(exchange, monotonic())
        self._reader.finish()
        self._close_records()
        self._tell(monotonic())

    def _submit(self, now: float) -> None:
        records, arrival_s = self._run.records, self._workload.requests.arrival_s
        for index in self._workload.take(now):
            if records.planned_s[index] != records.planned_s[index]:  # NaN: the first attempt
                records.planned_s[index] = arrival_s[index]
            self._loop.submit(self._maker.make(index))

    def _over(self, exchange: Exchange) -> None:
        """Take an exchange off the loop: a redirect goes on, a failed attempt may be tried again."""
        if self._maker.redirect(exchange):
            self._loop.submit(exchange)
            return
        if self._conversations is not None:
            self._pass_on(exchange, self._conversations)
        at = exchange.end_s - self._start_s
        if self._workload.reactive and self._workload.finished(exchange.index, at, self._error(exchange)):
            records = self._run.records
            if records.sent_s[exchange.index] != records.sent_s[exchange.index]:
                records.sent_s[exchange.index] = exchange.sent_s - self._start_s
            self._reader.forget(exchange)
            return
        self._done += 1
        self._reader.take(exchange)

    def _pass_on(self, exchange: Exchange, conversations: Conversations) -> None:
        """Tell the conversations what was answered: the next turn may be due at once."""
        answer = self._reader.answer(exchange)
        text = "".join(answer.pieces or ()) if answer.ended and answer.error is None else ""
        counted = answer.usage.output_tokens
        output = len(answer.stamps) if counted is None else counted
        conversations.answered(exchange.index, text, answer.usage.prompt_tokens, output)

    def _give_up(self, exchange: Exchange, now: float) -> None:
        exchange.end(exchange.end_s or now, INTERRUPTED)
        self._done += 1
        self._reader.take(exchange)

    def _error(self, exchange: Exchange) -> str | None:
        """Return what the workload must know of an end. Only one that retries makes us read the answer at once."""
        if self._attempts is None:
            return exchange.failure or (None if exchange.ok else f"http_{exchange.status}")
        _, kind, _ = self._reader.outcome(exchange)
        if kind == f"http_{exchange.status}" and 400 <= exchange.status < 500 and exchange.status not in RETRIED_STATUS:
            return "rejected"
        return kind

    def _file(self, index: int) -> None:
        if self._watchers.filed is not None:
            self._watchers.filed(self._run, index)

    def _tell(self, now: float) -> None:
        self._progress_at = now + PROGRESS_EVERY_S
        if self._watchers.progress is not None:
            self._watchers.progress(
                Progress(
                    done=self._done,
                    total=len(self._run.records),
                    in_flight=self._loop.in_flight,
                    errors=self._reader.errors,
                    token_events=self._reader.token_events(self._loop.exchanges()),
                    elapsed_s=now - self._start_s,
                )
            )

    def _close_records(self) -> None:
        """Mark what was never due as withheld, and tell how often requests were sent."""
        run, workload = self._run, self._workload
        for index in workload.withheld():
            run.records.outcome[index] = Outcome.WITHHELD
        if run.partial:
            for index, planned_s in enumerate(run.records.planned_s):
                if planned_s != planned_s:  # NaN: never due
                    run.records.outcome[index] = Outcome.WITHHELD
        run.records.attempts.update(attempts_of(workload) or {})


def warn_of_unfinished(run: Run) -> None:
    """Say in the run's warnings how many requests were still on their way when it ended."""
    unfinished = run.records.outcome.count(Outcome.UNFINISHED)
    if unfinished:
        run.warnings.append(f"requests not finished when the run ended: {unfinished}")


def open_run(requests: Requests, config: dict[str, Any]) -> Run:
    """Return a measured run in which nothing has happened."""
    size = len(requests)
    records = Records(size)
    records.end_s = array("d", [NAN]) * size
    records.visible = array("q", [-1]) * size
    return Run("measured", requests, records, array("d"), config)


@contextmanager
def _quiet_interpreter() -> Iterator[None]:
    """Keep the garbage collector and other threads from stopping the loop for long."""
    enabled, interval_s = gc.isenabled(), sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)
        gc.unfreeze()
        if enabled:
            gc.enable()


def _allow_files(count: int) -> None:
    """Raise the limit of open files to `count` if it is lower and may be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        limit = count if hard == resource.RLIM_INFINITY else min(count, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError):
            pass
