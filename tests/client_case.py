"""What the tests of the load generator share: run it against a script and look at what it made of it."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence

from servesim.client.flavour import API_FLAVOURS
from servesim.client.loop import Timeouts
from servesim.client.run import LoadGenerator, Watchers
from servesim.client.target import Target, parse_target
from servesim.interrupts import Interrupts
from servesim.runs.records import Outcome, Run
from servesim.workload.requests import Requests
from servesim.workload.workload import ClosedLoop, Workload
from tests.truth_server import HEAD_OF_STREAM, LAST_CHUNK, RESET, Script, Step, TruthServer, VirtualServer, chunk

PAUSE_S = 0.02


def plain_requests(size: int, *, prompt: int = 5, output: int = 3) -> Requests:
    requests = Requests()
    requests.prompt_tokens = array("q", [prompt]) * size
    requests.output_tokens = array("q", [output]) * size
    requests.arrival_s = array("d", [float("nan")]) * size
    return requests


def payload(index: int) -> bytes:
    return json.dumps({"id": index, "stream": True}).encode()


def stream(*writes: bytes | float | Step, end: bool = True) -> list[Step]:
    """Return a chunked event stream: bytes are a write each, floats pauses, steps what they are."""
    steps, pause_s = [Step(0.0, HEAD_OF_STREAM)], 0.0
    for write in writes:
        if isinstance(write, float):
            pause_s += write
        elif isinstance(write, Step):
            steps.append(write)
        else:
            steps.append(Step(pause_s, chunk(write)))
            pause_s = 0.0
    if end:
        steps.append(Step(pause_s, LAST_CHUNK))
    return steps


def always(*steps: Step) -> Script:
    return lambda asked: steps


def run_against(
    server: TruthServer | VirtualServer,
    workload: Workload | None = None,
    *,
    target: Target | None = None,
    api: str = "chat",
    stream: bool = True,
    concurrency: int = 1,
    timeouts: Timeouts | None = None,
    grace_s: float = 60.0,
    interrupts: Interrupts | None = None,
    watchers: Watchers | None = None,
) -> Run:
    """Run one request, or `workload`, against `server`."""
    workload = workload or ClosedLoop(plain_requests(1), 1)
    with LoadGenerator(
        target or parse_target(server.url),
        API_FLAVOURS[api],
        stream=stream,
        timeouts=timeouts,
        grace_s=grace_s,
        interrupts=interrupts,
    ) as generator:
        return generator.measure(workload, payload, config={}, concurrency=concurrency, watchers=watchers)


def run_script(steps: Sequence[Step], **options: object) -> Run:
    """Run one request against a server that answers with `steps`, on the virtual clock wherever that can be."""
    kind = TruthServer if any(step.act == RESET for step in steps) else VirtualServer
    with kind(always(*steps)) as server:
        return run_against(server, **options)  # type: ignore[arg-type]


def verdict_of(run: Run, index: int = 0) -> tuple[str, str | None]:
    """Return how request `index` ended: its outcome and its reason."""
    return Outcome(run.records.outcome[index]).name.lower(), run.records.reason.get(index)


def times_ms(run: Run, index: int = 0) -> list[float]:
    """Return the time of each token event since the send, in milliseconds."""
    return [(at - run.records.sent_s[index]) * 1000 for at in run.token_times(index)]
