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
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from servesim.config.engine import EngineConfig
from servesim.errors import InputError
from servesim.workload.requests import OPEN_END
from tests.case import Case, Row
from tests.oracle import first_difference
from tests.vllm_replay import ENGINES, engine_class_named

# Drawing a case.


def random_case(seed: int) -> Case:
    """Draw a case; the same seed gives the same case for ever under the same version of this module."""
    rng = random.Random(seed)
    unit_steps = rng.random() < 0.5
    caching = rng.random() < 0.7
    block_size = rng.choice((1, 2, 4, 8, 16, 16, 16))
    longest_prompt = block_size * rng.choice((1, 3, 6, 10))
    longest_output = rng.choice((1, 4, 20, 60, 60))
    size = rng.randint(1, rng.choice((3, 3, 8, 8, 8, 25, 25, 25, 80)))
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


def follower_case(seed: int) -> Case:
    """Draw a case in which requests follow others that still decode, on small blocks and short of everything, under
    asynchronous scheduling: whether a block is hit hangs on the step at which its last token became known."""
    rng = random.Random(seed)
    block_size, arrival_s = rng.choice((1, 2, 3, 4, 16)), 0.0
    rows: list[Row] = []
    for number in range(rng.randint(2, 9)):
        arrival_s += rng.choice((0, 1, 3, 8))
        prompt, content = rng.randint(1, 40), ((number, OPEN_END),)
        if rows and rng.random() < 0.7:
            parent = rng.choice(rows)
            prompt, content = max(1, min(120, parent.prompt + parent.output + rng.randint(-25, 6))), parent.content
        rows.append(Row(arrival_s, prompt, rng.randint(1, 30), content, rng.randrange(3)))
    largest = -(-max(row.prompt + row.output for row in rows) // block_size)
    max_num_seqs = rng.choice((2, 3, 4, 8))
    config = EngineConfig(
        num_blocks=rng.choice((largest, largest + 1, largest + 3, largest * 3 // 2 + 1, largest * 4)),
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(max_num_seqs, rng.choice((1, 2, 3, 4, 5, 8, 16, 40, 200))),
        prefix_caching=True,
        async_scheduling=True,
        long_prefill_token_threshold=rng.choice((0, 0, 1, 4, 16)),
        policy=rng.choice(("fcfs", "priority", "sjf")),
        rules=rng.choice(("vllm-0.32", "vllm-0.18")),
        reserve_full_isl=rng.random() < 0.5,
    )
    return Case(seed=seed, config=config, rows=tuple(rows))


def draw_config(
    rng: random.Random, rows: Sequence[Row], caching: bool, block_size: int, unit_steps: bool
) -> EngineConfig:
    """Draw the limits; most caches hold the largest request and little else."""
    largest = max(-(-(row.prompt + row.output - 1) // block_size) for row in rows)
    all_blocks = sum(-(-(row.prompt + row.output) // block_size) for row in rows)
    tight = rng.choice((largest, largest, largest + 1, largest + 2, largest * 3 // 2, largest * 3 // 2, largest * 2))
    num_blocks = rng.choice((tight, tight, tight, tight, rng.randint(1, all_blocks), all_blocks + 5))
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
    plain_load: dict[str, Any] = {"retries": 0, "duration_s": None, "until_s": math.inf}
    for name, value in plain_load.items():
        candidate = replace(case, **{name: value})
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
