"""One random case: a server, a load, and the price of a step, from which any number of equal runs can be made."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields

from servesim.config.engine import EngineConfig
from servesim.workload.requests import Content, Requests
from servesim.workload.workload import ClosedLoop, OpenLoop, Retrying, SessionLoop, Workload


@dataclass(slots=True, frozen=True)
class Row:
    """One request of a case."""

    arrival_s: float
    prompt: int
    output: int
    content: Content = ()
    priority: int = 0
    session: str | None = None
    turn: int = 0
    think_s: float = 0.0


@dataclass(slots=True, frozen=True, kw_only=True)
class Case:
    """A server and a load, from which any number of equal runs can be made."""

    seed: int
    config: EngineConfig
    rows: tuple[Row, ...]
    loop: str = "open"  # or "closed", "sessions"
    concurrency: int | None = None
    retries: int = 0
    backoff_s: float = 0.0
    duration_s: float | None = None
    until_s: float = math.inf
    unit_steps: bool = True  # every step takes one second, so that events meet at the same instant

    def workload(self) -> Workload:
        rows = self.rows if self.loop != "open" else tuple(sorted(self.rows, key=lambda row: row.arrival_s))
        requests = Requests()
        requests.prompt_tokens.extend(row.prompt for row in rows)
        requests.output_tokens.extend(row.output for row in rows)
        requests.arrival_s.extend(row.arrival_s for row in rows)
        if any(row.content for row in rows):
            requests.content = [row.content for row in rows]
        if any(row.priority for row in rows):
            requests.priority = array("q", [row.priority for row in rows])
        if any(row.session for row in rows):
            requests.sessions = [row.session for row in rows]
            requests.turns = array("q", [row.turn for row in rows])
            requests.think_s = array("d", [row.think_s for row in rows])
        workload: Workload
        if self.loop == "open":
            workload = OpenLoop(requests, duration_s=self.duration_s)
        elif self.loop == "closed":
            workload = ClosedLoop(requests, self.concurrency or 1, duration_s=self.duration_s)
        else:
            workload = SessionLoop(requests, concurrency=self.concurrency, duration_s=self.duration_s)
        if self.retries:
            workload = Retrying(workload, retries=self.retries, backoff_s=self.backoff_s)
        return workload

    def cost(self) -> StepCost:
        return StepCost(self.unit_steps)

    def __str__(self) -> str:
        default = EngineConfig(num_blocks=self.config.num_blocks)
        changed = [
            f"{field.name}={value!r}"
            for field in fields(EngineConfig)
            if (value := getattr(self.config, field.name)) != getattr(default, field.name) or field.name == "num_blocks"
        ]
        load = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if field.name not in ("config", "rows") and getattr(self, field.name) != field.default
        ]
        rows = "\n".join(f"  {index}: {row}" for index, row in enumerate(self.rows))
        return f"EngineConfig({', '.join(changed)})\nCase({', '.join(load)}) of {len(self.rows)} requests\n{rows}"


class StepCost:
    """Seconds of a step; without `unit_steps` a decode, a chunk's token and a chunk each have a price of their own."""

    def __init__(self, unit_steps: bool) -> None:
        self.unit_steps = unit_steps

    def decode(self, sequences: int, context_tokens: int) -> float:
        return self.step(sequences, context_tokens, ())

    def step(self, sequences: int, context_tokens: int, chunks: Sequence[tuple[int, int]]) -> float:
        if self.unit_steps:
            return 1.0
        new, computed = sum(n for n, _ in chunks), sum(after for _, after in chunks)
        units = 20_000 * (1 + len(chunks)) + 700 * sequences + 1_100 * new + context_tokens + 3 * computed
        return units / 1e6
