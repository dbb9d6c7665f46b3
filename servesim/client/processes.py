"""More than one loop: processes that drive shares of a workload from one shared start.

It helps only where cores are free, so it is asked for by name. The parent sends nothing: it waits, passes Ctrl-C on,
adds up the progress, and merges the shares into one run. What must not be forked (threads, sockets) starts afterwards.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any

from servesim.client.health import Health, report_health
from servesim.client.requests import Conversations, Payload
from servesim.client.run import LoadGenerator, Progress, Watchers, open_run, warn_of_unfinished
from servesim.client.shares import Share
from servesim.errors import RunError
from servesim.interrupts import Interrupts
from servesim.runs.records import Records, Run
from servesim.workload.requests import Requests

HEAD_START_S = 0.05  # from the word to start until the run's 0


@dataclass(slots=True)
class _Done:
    """What a process returns."""

    records: Records
    times: Any
    health: Health
    partial: bool
    filed: int


class _Worker:
    """One forked process and the pipe to it."""

    def __init__(self, share: Share, work: Callable[[Share, Connection], None]) -> None:
        context = multiprocessing.get_context("fork")
        self.share = share
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(share, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.progress = Progress(done=0, total=0, in_flight=0, errors=0, token_events=0, elapsed_s=0.0)
        self.done: _Done | None = None

    def receive(self) -> object:
        """Return the next message, None when the process is gone."""
        try:
            message: object = self.pipe.recv()
        except (EOFError, OSError):
            return None
        return message


def measure_in_processes(
    shares: list[Share],
    requests: Requests,
    payload: Payload,
    *,
    make: Callable[[Interrupts], LoadGenerator],
    config: dict[str, Any],
    concurrency: int | None,
    conversations: Conversations | None = None,
    watchers: Watchers | None = None,
    interrupts: Interrupts | None = None,
) -> Run:
    """Drive each of `shares` (of `requests`; see `deal`) in a process of its own and return the one run that they are.

    `make(interrupts)` makes the generator, in the process that uses it. Of the watchers, `filed` is called there too
    (a file that was opened before is shared: a line a write), the others here. A process that dies takes the records
    that it had not filed with it: the run is then partial. Raises RunError when the server cannot be reached.
    """
    watchers, interrupts = watchers or Watchers(), interrupts or Interrupts()
    run = open_run(requests, config)

    def work(share: Share, pipe: Connection) -> None:
        _work(share, pipe, make, payload, config, conversations, watchers)

    sys.stdout.flush()
    sys.stderr.flush()
    workers = [_Worker(share, work) for share in shares]
    try:
        _start_all(workers)
        if watchers.begun is not None:
            watchers.begun(run)
        _wait_for(workers, interrupts, watchers, len(requests))
    finally:
        for worker in workers:
            if worker.done is None:
                worker.process.kill()
            worker.process.join()
    health = Health(processes=0)
    for worker in workers:
        if worker.done is not None:
            _merge(run, worker.share, worker.done)
            health.merge(worker.done.health)
            if watchers.filed_elsewhere is not None:
                watchers.filed_elsewhere(worker.done.filed)
        else:
            run.partial = True
            run.warnings.append(f"a load generator process died with exit code {worker.process.exitcode}")
    warn_of_unfinished(run)
    run.client = report_health(health, run, concurrency=concurrency)
    return run


def _start_all(workers: list[_Worker]) -> None:
    for worker in workers:
        message = worker.receive()
        if message != "ready":
            raise RunError(message if isinstance(message, str) else "a load generator process died at its start")
    start_s = monotonic() + HEAD_START_S
    for worker in workers:
        worker.pipe.send(start_s)


def _wait_for(workers: list[_Worker], interrupts: Interrupts, watchers: Watchers, total: int) -> None:
    """Take in what the workers send until all have ended; pass every press of Ctrl-C on to them."""
    running, passed_on = {worker.pipe: worker for worker in workers}, 0
    while running:
        for ready in wait(list(running), timeout=0.1):
            worker = running[ready]  # type: ignore[index]
            message = worker.receive()
            if isinstance(message, Progress):
                worker.progress = message
                if watchers.progress is not None:
                    watchers.progress(_sum([worker.progress for worker in workers], total))
                continue
            if isinstance(message, _Done):
                worker.done = message
            elif isinstance(message, str):
                raise RunError(message)
            del running[worker.pipe]
        for _ in range(interrupts.count - passed_on):
            for worker in running.values():
                worker.process.terminate()
        passed_on = interrupts.count


def _work(
    share: Share,
    pipe: Connection,
    make: Callable[[Interrupts], LoadGenerator],
    payload: Payload,
    config: dict[str, Any],
    conversations: Conversations | None,
    watchers: Watchers,
) -> None:
    """Drive one share; runs in the forked process."""
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all of us: the parent passes it on

    def start() -> float:
        pipe.send("ready")
        start_s: float = pipe.recv()
        return start_s

    filed = 0

    def file(run: Run, index: int) -> None:
        nonlocal filed
        filed += 1
        if watchers.filed is not None:
            watchers.filed(run, index)

    def tell(progress: Progress) -> None:
        if os.getppid() != parent:
            os._exit(1)  # the parent is gone: a load that nothing can stop or report must not go on
        if watchers.progress is not None:
            pipe.send(progress)

    own = Watchers(filed=file, progress=tell)
    try:
        with Interrupts(patience=2, number=signal.SIGTERM) as interrupts, make(interrupts) as generator:
            run = generator.measure(
                share,
                payload,
                config=config,
                concurrency=share.concurrency or None,
                conversations=conversations,
                watchers=own,
                start=start,
            )
    except RunError as error:
        pipe.send(str(error))
        return
    pipe.send(_Done(run.records, run.times, generator.health, run.partial, filed))


def _merge(run: Run, share: Share, done: _Done) -> None:
    """Put the rows of a share where they belong."""
    ours, theirs, base = run.records, done.records, len(run.times)
    run.times.extend(done.times)
    for number in share.numbers:
        for name in ("planned_s", "sent_s", "prompt_tokens", "output_tokens", "cached_tokens", "outcome", "end_s"):
            getattr(ours, name)[number] = getattr(theirs, name)[number]
        for name in ("first", "last", "visible"):
            index = getattr(theirs, name)[number]
            getattr(ours, name)[number] = index + base if index >= 0 else -1
        run.requests.arrival_s[number] = theirs.planned_s[number]
    ours.reason.update(theirs.reason)
    ours.attempts.update(theirs.attempts)
    ours.extra.update(theirs.extra)
    ours.capped |= theirs.capped
    run.partial = run.partial or done.partial


def _sum(parts: list[Progress], total: int) -> Progress:
    names = [field.name for field in fields(Progress) if field.name not in ("total", "elapsed_s")]
    sums = {name: sum(getattr(part, name) for part in parts) for name in names}
    return Progress(**sums, total=total, elapsed_s=max(part.elapsed_s for part in parts))
