"""Seeded random workloads on which the engine must equal the textbook: `python3 -m tests.random_cases --seeds A-B`.

`random_case(seed)` draws a small server and a small load that is meant to hurt it. `first_difference` runs both and
compares every observed step, every record and the totals; the engine runs a second time without an observer, since that
is what users run. The command prints the first seed that differs, made smaller: requests are left out and options
turned off while it still differs.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import traceback
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from servesim.engine.config import EngineConfig
from servesim.errors import InputError
from servesim.records import EngineTotals, Run
from servesim.workload.requests import OPEN_END, Content, Requests
from servesim.workload.workload import ClosedLoop, OpenLoop, Retrying, SessionLoop, Workload
from tests.reference import Reference
from tests.vllm_replay import ENGINES, engine_class_named

NO_END = 1_000_000  # observed steps; a case takes some hundreds


class EndlessError(Exception):
    """An engine went on and on."""


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


# Drawing a case.


def random_case(seed: int) -> Case:
    """Draw a case; the same seed gives the same case for ever under the same version of this module."""
    rng = random.Random(seed)
    unit_steps = rng.random() < 0.5
    caching = rng.random() < 0.7
    block_size = rng.choice((1, 2, 4, 8, 16, 16, 16))
    longest_prompt = block_size * rng.choice((1, 3, 6, 10))
    longest_output = rng.choice((1, 4, 20, 60, 60))
    size = rng.randint(1, rng.choice((3, 8, 8, 25, 25)))
    loop = rng.choice(("open", "open", "open", "closed", "sessions"))
    rows = draw_rows(rng, size, longest_prompt, longest_output, block_size, loop)
    config = draw_config(rng, rows, caching, block_size, unit_steps)
    impatient = config.client_timeout_s is not None or config.max_num_queued_reqs or config.max_num_queued_tokens
    last_s = max(row.arrival_s for row in rows)
    second = 1.0 if unit_steps else 0.05
    return Case(
        seed=seed,
        config=config,
        rows=tuple(rows if unit_steps else (replace(row, arrival_s=row.arrival_s * 0.05) for row in rows)),
        loop=loop,
        concurrency=rng.randint(1, 6) if loop == "closed" or (loop == "sessions" and rng.random() < 0.4) else None,
        retries=rng.randint(1, 3) if impatient and rng.random() < 0.6 else 0,
        backoff_s=rng.choice((0.0, 1.0, 3.5)) * second,
        duration_s=rng.uniform(0.0, last_s + 5.0) * second if rng.random() < 0.05 else None,
        until_s=rng.choice((rng.randint(1, 60), rng.uniform(0.0, 60.0))) * second if rng.random() < 0.05 else math.inf,
        unit_steps=unit_steps,
    )


def draw_config(
    rng: random.Random, rows: Sequence[Row], caching: bool, block_size: int, unit_steps: bool
) -> EngineConfig:
    """Draw the limits; most caches hold the largest request and little else."""
    largest = max(-(-(row.prompt + row.output - 1) // block_size) for row in rows)
    all_blocks = sum(-(-(row.prompt + row.output) // block_size) for row in rows)
    num_blocks = rng.choice(
        (largest, largest, largest, largest + 1, largest + 2, largest * 3 // 2, largest * 3 // 2, largest * 2)
        + (rng.randint(1, all_blocks), all_blocks + 5)
    )
    longest = max(row.prompt + row.output for row in rows)
    max_num_seqs = rng.choice((1, 2, 3, 4, 8, 8, 64, 64))
    budget = max(max_num_seqs, rng.choice((1, 5, block_size, 2 * block_size, 40, 100, 1000, 1000)))
    max_model_len = rng.randint(max(2, longest // rng.choice((1, 2, 8))), longest + 5) if rng.random() < 0.2 else None
    chunked_prefill = rng.random() < 0.8
    if not chunked_prefill and max_model_len is not None:
        budget = max(budget, max_model_len)
    if not chunked_prefill and rng.random() < 0.8:
        budget = max(budget, longest)
    second = 1.0 if unit_steps else 0.05
    bounded = rng.random() < 0.12
    return EngineConfig(
        num_blocks=max(num_blocks, 1),
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        prefix_caching=caching,
        chunked_prefill=chunked_prefill,
        async_scheduling=rng.random() < 0.4,
        long_prefill_token_threshold=rng.choice((1, 3, block_size, 2 * block_size)) if rng.random() < 0.2 else 0,
        watermark_blocks=rng.randint(1, 3) if rng.random() < 0.15 else 0,
        reserve_full_isl=rng.random() < 0.75,
        max_tokens_in_flight=rng.randint(longest // 2 + 1, 3 * longest) if rng.random() < 0.15 else 0,
        max_num_queued_reqs=rng.randint(0, 5) if bounded and rng.random() < 0.7 else None,
        max_num_queued_tokens=rng.randint(0, 3 * longest) if bounded and rng.random() < 0.7 else None,
        client_timeout_s=rng.choice((rng.randint(1, 60), rng.uniform(0.1, 60.0))) * second
        if rng.random() < 0.15
        else None,
        policy=rng.choice(("fcfs", "fcfs", "fcfs", "fcfs", "priority", "priority", "sjf")),
        rules=rng.choice(("vllm-0.32", "vllm-0.32", "vllm-0.18")),
    )


def draw_rows(
    rng: random.Random, size: int, longest_prompt: int, longest_output: int, block_size: int, loop: str
) -> list[Row]:
    """Draw requests whose contents meet in every way that the contract allows."""
    spread = rng.choice((0, size // 2, 2 * size, 10 * size))
    levels = rng.choice((1, 1, 2, 5))
    style = rng.choice(("own", "heads", "heads", "same", "tree", "turns", "mixed", "mixed"))
    if loop == "sessions" and rng.random() < 0.7:
        style = "turns"
    streams = Streams(rng, longest_prompt, block_size)
    rows: list[Row] = []
    for number in range(size):
        arrival_s = float(rng.randint(0, spread)) if rng.random() < 0.8 else rng.uniform(0, spread)
        drawn = Row(
            arrival_s=arrival_s,
            prompt=draw_length(rng, longest_prompt, block_size),
            output=rng.randint(1, longest_output),
            priority=rng.randrange(levels),
        )
        this = style if style != "mixed" else rng.choice(("own", "heads", "same", "tree", "turns"))
        rows.append(streams.fill(drawn, this, rows))
        if loop == "sessions" and rng.random() < 0.8:
            session = f"s{rng.randrange(1 + size // 3)}"
            rows[-1] = replace(rows[-1], session=session, turn=number, think_s=rng.choice((0.0, 1.0, 2.5)))
            if any(row.session == session for row in rows[:-1]) and rng.random() < 0.6:
                rows[-1] = replace(rows[-1], arrival_s=math.nan if rng.random() < 0.5 else arrival_s)
    # A later turn's arrival may be open, but time scaling and sorting want numbers where the loop is open.
    return [replace(row, arrival_s=0.0) if math.isnan(row.arrival_s) else row for row in rows]


def draw_length(rng: random.Random, longest: int, block_size: int) -> int:
    """Draw a length; many are exact multiples of the block, or one off."""
    if rng.random() < 0.4:
        return max(1, block_size * rng.randint(0, longest // block_size) + rng.choice((-1, 0, 0, 0, 1)))
    return rng.randint(1, longest)


class Streams:
    """Gives requests content: each stream begins at the same token in whatever request it appears."""

    def __init__(self, rng: random.Random, longest: int, block_size: int) -> None:
        self.rng = rng
        self.longest = longest
        self.block_size = block_size
        self.count = 0
        self.heads = [(self.new(), draw_length(rng, longest, block_size)) for _ in range(rng.randint(1, 3))]
        self.bodies = {(head, end): self.new() for head, end in self.heads}

    def new(self) -> int:
        self.count += 1
        return self.count - 1

    def fill(self, row: Row, style: str, earlier: Sequence[Row]) -> Row:
        """Return `row` with content in one of the styles, some of which lean on an earlier row."""
        rng = self.rng
        head, end = rng.choice(self.heads)
        if style == "heads":  # a common head of one length or of many, then its own
            if rng.random() < 0.3:
                end = rng.randint(1, end)
            return replace(row, content=((head, min(end, row.prompt)),))
        if style == "same":  # a head and one of a few bodies, the whole prompt equal, the output perhaps too
            body = self.bodies[head, end]
            prompt = end + draw_length(rng, self.longest, self.block_size) if rng.random() < 0.5 else end
            stop = rng.choice((prompt, prompt, OPEN_END, max(end, prompt - rng.randint(0, 5))))
            content = ((head, end), (body, stop)) if stop > end else ((head, end),)
            return replace(row, prompt=prompt, content=content)
        if style in ("tree", "turns"):
            parents = [other for other in earlier if other.content and other.content[-1][1] == OPEN_END]
            if not parents or rng.random() < 0.3:
                content = ((self.new(), OPEN_END),)
                return replace(row, content=((head, min(end, row.prompt)), *content) if rng.random() < 0.3 else content)
            parent = rng.choice(parents[-4:])
            total = parent.prompt + parent.output
            if style == "turns" and total < 4 * self.longest + 60:  # all of the parent, then new words
                return replace(row, prompt=total + rng.randint(0, self.longest // 2), content=parent.content)
            cut = rng.randint(1, total)  # a branch: the parent's head, then a stream of its own
            kept = tuple((stream, min(stop, cut)) for stream, stop in parent.content if begin_of(parent, stream) < cut)
            tail = ((self.new(), OPEN_END),) if rng.random() < 0.5 else ()
            return replace(row, prompt=max(row.prompt, rng.randint(1, cut)), content=(*kept, *tail))
        return row


def begin_of(row: Row, stream: int) -> int:
    begin = 0
    for other, stop in row.content:
        if other == stream:
            return begin
        begin = stop
    raise KeyError(stream)


# Running and comparing.


def run_observed(
    engine_class: Callable[..., Any], case: Case, observed: bool = True
) -> tuple[list[dict[str, Any]], Run]:
    """Run a case; return every observed step and the run."""
    steps: list[dict[str, Any]] = []

    def observe(step: dict[str, Any]) -> None:
        steps.append(step)
        if len(steps) > NO_END:
            raise EndlessError(f"more than {NO_END} steps")

    engine = engine_class(case.config, case.cost(), case.workload(), observer=observe if observed else None)
    if isinstance(engine, Reference):
        return steps, engine.run(case.until_s)
    engine.advance(case.until_s)
    return steps, engine.run({})


def first_difference(case: Case, engine_class: Callable[..., Any]) -> str | None:
    """Return one sentence on the first thing in which the engine differs from the textbook, or None."""
    expected_steps, expected = run_observed(Reference, case)
    try:
        steps, run = run_observed(engine_class, case)
    except Exception:  # a crash is a difference like any other, and is made smaller like any other
        return "the engine raised\n" + traceback.format_exc(limit=-3)
    for number, (want, have) in enumerate(zip(expected_steps, steps, strict=False)):
        difference = difference_of_steps(want, have)
        if difference is not None:
            return f"observed step {number}: {difference}"
    if len(steps) != len(expected_steps):
        return f"{len(steps)} observed steps, the textbook has {len(expected_steps)}"
    difference = difference_of_runs(expected, run)
    if difference is not None:
        return difference
    try:
        _, unobserved = run_observed(engine_class, case, observed=False)
    except Exception:
        return "the engine without an observer raised\n" + traceback.format_exc(limit=-3)
    difference = difference_of_runs(expected, unobserved)
    return None if difference is None else f"without an observer: {difference}"


def difference_of_steps(want: dict[str, Any], have: dict[str, Any]) -> str | None:
    for key, value in want.items():
        other = have.get(key)
        ordered = key == "scheduled" and isinstance(other, dict)
        if value != other or (ordered and list(value) != list(other)):
            return f"{key} is {other}, the textbook has {value} (its step: {want})"
    extra = [key for key in have if key not in want]
    return f"unexpected keys {extra}" if extra else None


def difference_of_runs(want: Run, have: Run) -> str | None:
    """Compare logs and records exactly, and totals, of which integrals of floats only nearly."""
    assert want.steps is not None and want.engine is not None
    if have.steps is None or have.engine is None:
        return "the run has no step log or no totals"
    for name in ("end_s", "decodes", "prefill_tokens", "kv_blocks"):
        difference = difference_of_columns(getattr(want.steps, name), getattr(have.steps, name))
        if difference:
            return f"steps.{name}{difference}"
    difference = difference_of_columns(want.steps.durations_s(), have.steps.durations_s())
    if difference:
        return f"steps.durations_s(){difference}"
    for index in range(len(want.records)):
        difference = difference_of_rows(want, have, index)
        if difference:
            return f"request {index}: {difference}"
    for field in fields(EngineTotals):
        expected, actual = getattr(want.engine, field.name), getattr(have.engine, field.name)
        same = (
            math.isclose(expected, actual, rel_tol=1e-9, abs_tol=1e-9) if field.type == "float" else expected == actual
        )
        if not same:
            return f"engine.{field.name} is {actual}, the textbook has {expected}"
    return None


def difference_of_columns(want: Sequence[float], have: Sequence[float]) -> str | None:
    for number, (expected, actual) in enumerate(zip(want, have, strict=False)):
        if expected != actual:
            return f"[{number}] is {actual!r}, the textbook has {expected!r}"
    return None if len(want) == len(have) else f" has {len(have)} entries, the textbook has {len(want)}"


def difference_of_rows(want: Run, have: Run, index: int) -> str | None:
    theirs, ours = want.records, have.records
    if math.isnan(theirs.sent_s[index]):  # it never arrived: only that must be known
        names = ["outcome", "output_tokens"]
    else:
        names = ["outcome", "output_tokens", "planned_s", "sent_s", "admitted_s", "first", "last"]
        names += ["prompt_tokens", "cached_tokens"]
    for name in names:
        expected, actual = getattr(theirs, name)[index], getattr(ours, name)[index]
        if expected != actual and not (math.isnan(expected) and math.isnan(actual)):
            return f"{name} is {actual!r}, the textbook has {expected!r}"
    for name in ("reason", "attempts", "preempted", "pieces"):
        expected, actual = getattr(theirs, name).get(index), getattr(ours, name).get(index)
        if repr(expected) != repr(actual):  # by repr, since NaN is not NaN
            return f"{name} is {actual}, the textbook has {expected}"
    if (index in theirs.capped) != (index in ours.capped):
        return f"capped is {index in ours.capped}, the textbook has {index in theirs.capped}"
    if want.token_times(index) != have.token_times(index):
        return f"token times are {have.token_times(index)}, the textbook has {want.token_times(index)}"
    return None


# Making a case smaller.


def minimised(case: Case, engine_class: Callable[..., Any]) -> Case:
    """Return a smaller case that still differs: rows dropped in halves, then options off, then rows one by one."""

    def differs(candidate: Case) -> bool:
        try:
            return first_difference(candidate, engine_class) is not None
        except Exception:  # the textbook itself cannot run it: not the same fault
            return False

    def with_fewer_rows(case: Case) -> Case:
        size = max(len(case.rows) // 2, 1)
        while True:
            for start in range(0, len(case.rows), size):
                smaller = replace(case, rows=case.rows[:start] + case.rows[start + size :])
                if smaller.rows and differs(smaller):
                    case = smaller
                    break
            else:
                if size == 1:
                    return case
                size //= 2

    case = with_fewer_rows(case)
    for option in ("retries", "duration_s", "until_s", "backoff_s"):
        default = next(field.default for field in fields(Case) if field.name == option)
        candidate = replace(case, **{option: default})
        if candidate != case and differs(candidate):
            case = candidate
    plain = EngineConfig(num_blocks=case.config.num_blocks)
    for field in fields(EngineConfig):
        if getattr(case.config, field.name) == getattr(plain, field.name):
            continue
        try:
            config = replace(case.config, **{field.name: getattr(plain, field.name)})
        except InputError:
            continue
        if differs(candidate := replace(case, config=config)):
            case = candidate
    return with_fewer_rows(case)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tests.random_cases", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seeds", default="0-999", metavar="A-B", help="first and last seed (default 0-999)")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="servesim")
    parser.add_argument("--whole", action="store_true", help="print the case as drawn, do not make it smaller")
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition("-")
    engine_class = engine_class_named(options.engine)
    for seed in range(int(first), int(last or first) + 1):
        case = random_case(seed)
        if (difference := first_difference(case, engine_class)) is not None:
            print(f"seed {seed} differs: {difference}")
            if not options.whole:
                case = minimised(case, engine_class)
                print(f"made smaller: {first_difference(case, engine_class)}")
            print(case)
            return 1
    print(f"seeds {options.seeds}: identical")
    return 0


if __name__ == "__main__":
    sys.exit(main())
