"""How fast and how big the simulator is, beside what it is meant to reach: `make bench`, or `python3 -m tests.bench`.

A benchmark, not a test. Each row runs in an interpreter of its own, so that its peak memory is its own. The engine
alone is measured in CPU seconds (best of some): rates are those of `advance()`; what `run()` then takes to close the
records and check the laws is `closing`. Whole commands are measured on the wall clock (median of some), with their
bytecode written before. `floor` is a bare loop over the same steps that only prices them; `textbook` is
`tests/reference.py` on the same, smaller work. On a busy machine every figure is worse than it is. `--write` puts the
rows that have a target into the guide.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servesim.config.build import Server, build_server
from servesim.config.server import ServerSpec
from servesim.config.workload import WorkloadSpec, drive, load_requests
from servesim.engine.engine import Engine
from servesim.runs.records import Run
from servesim.workload.requests import Requests
from tests.page_commands import put_table
from tests.reference import Reference

ROOT = Path(__file__).resolve().parent.parent
RATE = 26.0  # requests/s that keep llama-3.1-8b on an H100 at a mean batch of about 70
PROMPTS, OUTPUTS = "256-1024", "64-256"
MIB = 2**20
RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, kw_only=True)
class EngineRow:
    """One workload for the engine alone. `floor_mtok` is the least million output tokens per CPU second."""

    name: str
    requests: int = 20_000
    quick: bool = True  # part of --quick
    load: dict[str, Any] = field(default_factory=lambda: {"rate": RATE})
    server: dict[str, Any] = field(default_factory=dict)
    textbook: int = 400  # requests that the textbook is given, 0: none
    floor_mtok: float | None = None
    factor: float | None = None  # of the open loop's time per token, at most
    textbook_times: float | None = None  # at least so many times the textbook


@dataclass(frozen=True, kw_only=True)
class CommandRow:
    """One whole command, from cold to its printed summary."""

    name: str
    argv: tuple[str, ...]
    requests: int = 0
    quick: bool = True
    runs: int = 3
    limit_s: float | None = None
    limit_mb: float | None = None
    above_bare_s: float | None = None  # above an interpreter that does nothing


OPEN = "open loop, 26 requests/s"
ENGINE_ROWS = (
    EngineRow(name=OPEN, textbook=2_000, floor_mtok=20, textbook_times=25),
    EngineRow(name=OPEN, requests=200_000, quick=False, textbook=0, floor_mtok=20),
    EngineRow(name=OPEN, requests=1_000_000, quick=False, textbook=0, floor_mtok=20),
    EngineRow(name="closed loop at 1", requests=5_000, load={"concurrency": 1}, textbook=200, floor_mtok=4),
    EngineRow(name="closed loop at 32", load={"concurrency": 32}, floor_mtok=15),
    EngineRow(name="closed loop at 256", load={"concurrency": 256}, floor_mtok=30),
    EngineRow(
        name="shared 1,024-token prefix, caching",
        load={"rate": RATE, "shared_prefix_tokens": 1024},
        server={"prefix_caching": True},
        factor=2.5,
    ),
    EngineRow(
        name="sessions of 4 turns, caching",
        load={"rate": 5.0, "turns": "4", "think_s": 5.0},
        server={"prefix_caching": True},
        factor=3,
    ),
    EngineRow(name="1,500 blocks, caching off", server={"kv_blocks": 1501}, floor_mtok=10),
    EngineRow(name="300 blocks, caching off", server={"kv_blocks": 301}, floor_mtok=4),
    EngineRow(
        name="1,500 blocks, prefix caching",
        server={"kv_blocks": 1501, "prefix_caching": True},
        load={"rate": RATE, "shared_prefix_tokens": 256},
    ),
    EngineRow(name="--async-scheduling", server={"async_scheduling": True}, factor=3),
    EngineRow(name="--max-tokens-in-flight 60k", server={"max_tokens_in_flight": 60_000}, factor=3),
    EngineRow(name="--max-model-len 1,100", server={"max_model_len": 1100}, factor=3),
    EngineRow(name="sessions, caching off", load={"rate": 3.0, "turns": "4", "think_s": 5.0}, factor=3),
    EngineRow(name="--policy priority", load={"rate": RATE, "priorities": 4}, server={"policy": "priority"}),
    EngineRow(name="--long-prefill-token-threshold 256", server={"long_prefill_token_threshold": 256}),
    EngineRow(name="--like-vllm", server={"like_vllm": True}),
)

SIMULATE = ("simulate", "--quiet", "--rate", f"{RATE:g}")
DAY = tuple(
    "simulate --quiet --hardware a100-sxm-80gb --rate-schedule fixtures/day.csv --requests 500000 "
    "--autoscale 1:8 --target 40".split()
)
COMMAND_ROWS = (
    CommandRow(name="python3 -c pass", argv=(), runs=15),
    CommandRow(name="servesim --help", argv=("--help",), runs=15, above_bare_s=0.050),
    CommandRow(name="servesim capacity", argv=("capacity",), runs=15, above_bare_s=0.070),
    CommandRow(name="servesim simulate", argv=(*SIMULATE, "--requests", "20000"), requests=20_000, limit_s=0.7),
    CommandRow(name="servesim simulate", argv=(*SIMULATE, "--requests", "200000"), requests=200_000, quick=False),
    CommandRow(
        name="servesim simulate",
        argv=(*SIMULATE, "--requests", "1000000"),
        requests=1_000_000,
        quick=False,
        runs=1,
        limit_s=20,
        limit_mb=450,
    ),
    CommandRow(
        name="a busy day of 100 replicas",
        argv=("simulate", "--quiet", "--replicas", "100", "--rate", "58", "--requests", "5000000"),
        requests=5_000_000,
        quick=False,
        runs=1,
        limit_s=180,
        limit_mb=2500e6 / 2**20,
    ),
    CommandRow(name="fixtures/day.csv, 1 to 8 replicas", argv=DAY, requests=500_000, quick=False, runs=1, limit_s=60),
)
TEN_TIMES = 11.0  # ten times the requests cost at most so many times the command


# The engine alone.


def measure_engine(row: EngineRow, repeats: int) -> dict[str, Any]:
    """Return the figures of one row; called in an interpreter of its own."""
    server = build_server(ServerSpec(**row.server))
    spec = _spec(row, row.requests)
    requests = load_requests(spec)
    seconds, closing_s, run = _engine(server, spec, requests)
    peak_mb = _peak_mb()
    assert run.steps is not None and run.engine is not None
    assert not run.violations, run.violations
    for _ in range(repeats - 1):
        seconds, closing_s = map(min, (seconds, closing_s), _engine(server, spec, requests)[:2])
    tokens = sum(run.records.output_tokens)
    figures = {
        "requests": row.requests,
        "batch": run.engine.scheduled / run.engine.steps,
        "preemptions": run.engine.preemptions,
        "tok_s": tokens / seconds,
        "req_s": row.requests / seconds,
        "step_s": run.engine.steps / seconds,
        "cpu_s": seconds,
        "closing_s": closing_s,
        "peak_mb": peak_mb,
        "floor": seconds / min(_bare_loop(server, run) for _ in range(repeats)),
    }
    if row.textbook:
        spec = _spec(row, row.textbook)
        few = load_requests(spec)
        figures["textbook"] = _textbook(server, spec, few) / min(_engine(server, spec, few)[0] for _ in range(3))
    return figures


def _spec(row: EngineRow, requests: int) -> WorkloadSpec:
    return WorkloadSpec(requests=requests, prompt_tokens=PROMPTS, output_tokens=OUTPUTS, **row.load)


def _engine(server: Server, spec: WorkloadSpec, requests: Requests) -> tuple[float, float, Run]:
    """Return the CPU seconds of advancing an engine to the end, those of closing its run, and the run."""
    engine = Engine(server.config, server.cost(), drive(spec, requests))
    start = time.process_time()
    engine.advance()
    advanced = time.process_time()
    run = engine.run()
    return advanced - start, time.process_time() - advanced, run


def _textbook(server: Server, spec: WorkloadSpec, requests: Requests) -> float:
    reference = Reference(server.config, server.cost(), drive(spec, requests))
    start = time.process_time()
    reference.run()
    return time.process_time() - start


def _bare_loop(server: Server, run: Run) -> float:
    """Return the CPU seconds of pricing every step of `run` and noting when it ends, and of nothing else."""
    assert run.steps is not None
    price, decodes, end_s = server.cost().decode, run.steps.decodes, []
    start = time.process_time()
    now, context = 0.0, 0
    for sequences in decodes:
        context += sequences
        now += price(sequences, context)
        end_s.append(now)
    return time.process_time() - start


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT / MIB


# Whole commands.


def measure_command(row: CommandRow, runs: int, bytecode: str) -> dict[str, Any]:
    """Return the median of the wall clock, and the peak memory, of a command; bytecode is kept in that folder."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = bytecode
    arguments = ["-m", "servesim", *row.argv] if row.argv else ["-c", "pass"]
    wall_s, cpu_s, peak_mb = [], [], 0.0
    for number in range(-1 if runs > 1 else 0, runs):
        start = time.perf_counter()
        child = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        took_s = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0, row.argv
        if number >= 0:  # the one before wrote the bytecode
            wall_s.append(took_s)
            cpu_s.append(usage.ru_utime + usage.ru_stime)
            peak_mb = max(peak_mb, usage.ru_maxrss * RSS_UNIT / MIB)
    figures = {"wall_s": statistics.median(wall_s), "cpu_s": statistics.median(cpu_s), "peak_mb": peak_mb}
    if row.requests:
        figures |= {"requests": row.requests, "req_s": row.requests / figures["wall_s"]}
    return figures


# Targets.


def judge_engine(row: EngineRow, figures: dict[str, Any], open_loop: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return each target of a row, and whether it is met."""
    targets = []
    if row.floor_mtok is not None:
        targets.append((f">= {row.floor_mtok:g}M tok/s", figures["tok_s"] >= row.floor_mtok * 1e6))
    if row.factor is not None:
        factor = open_loop["tok_s"] / figures["tok_s"]
        targets.append((f"open loop / {row.factor:g} (is {factor:.2f})", factor <= row.factor))
    if row.textbook_times is not None:
        targets.append((f">= {row.textbook_times:g} textbooks", figures["textbook"] >= row.textbook_times))
    return targets


def judge_command(
    row: CommandRow, figures: dict[str, Any], before: dict[str, dict[str, Any]]
) -> list[tuple[str, bool]]:
    """Return each target of a row; `before` are the commands measured so far, by name and requests."""
    targets = []
    if row.limit_s is not None:
        targets.append((f"<= {row.limit_s:g} s", figures["wall_s"] <= row.limit_s))
    if row.limit_mb is not None:
        targets.append((f"<= {row.limit_mb:g} MiB", figures["peak_mb"] <= row.limit_mb))
    if row.above_bare_s is not None:
        above_s = figures["wall_s"] - before["python3 -c pass 0"]["wall_s"]
        limit = f"<= {1e3 * row.above_bare_s:.0f} ms above pass (is {1e3 * above_s:.0f})"
        targets.append((limit, above_s <= row.above_bare_s))
    tenth = before.get(f"{row.name} {row.requests // 10}") if row.requests else None
    if tenth is not None:
        times = figures["wall_s"] / tenth["wall_s"]
        targets.append((f"<= {TEN_TIMES:g} x a tenth (is {times:.1f})", times <= TEN_TIMES))
    return targets


# The table.

COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "requests": ("requests", lambda n: f"{n:,}"),
    "batch": ("batch", lambda n: f"{n:.1f}"),
    "preemptions": ("preempted", lambda n: f"{n:,}"),
    "tok_s": ("Mtok/s", lambda n: f"{n / 1e6:.2f}"),
    "req_s": ("req/s", lambda n: f"{n:,.0f}"),
    "step_s": ("steps/s", lambda n: f"{n:,.0f}"),
    "wall_s": ("wall s", lambda n: f"{n:.3f}"),
    "cpu_s": ("CPU s", lambda n: f"{n:.3f}"),
    "closing_s": ("closing", lambda n: f"{n:.3f}"),
    "peak_mb": ("MiB", lambda n: f"{n:.0f}"),
    "floor": ("x floor", lambda n: f"{n:.2f}"),
    "textbook": ("x textbook", lambda n: f"{n:.0f}"),
}
WIDTHS = {key: max(len(title), 9 if key in ("requests", "step_s") else 6) for key, (title, _) in COLUMNS.items()}
NAME_WIDTH = 36


def line(name: str, figures: dict[str, Any], targets: Iterable[tuple[str, bool]]) -> str:
    cells = [(show(figures[key]) if key in figures else "-").rjust(WIDTHS[key]) for key, (_, show) in COLUMNS.items()]
    told = ", ".join(f"{target}: {'met' if met else 'MISSED'}" for target, met in targets)
    return f"{name:{NAME_WIDTH}}{'  '.join(cells)}  {told or '-'}".rstrip()


def head() -> str:
    titles = [title.rjust(WIDTHS[key]) for key, (title, _) in COLUMNS.items()]
    return f"{'':{NAME_WIDTH}}{'  '.join(titles)}  target"


IN_GUIDE = ("requests", "tok_s", "textbook", "wall_s", "peak_mb")


def markdown(rows: Iterable[tuple[str, dict[str, Any], list[tuple[str, bool]]]]) -> str:
    """Return the speed table of `servesim help evidence`: the rows that have a target."""
    lines = ["| work | " + " | ".join(COLUMNS[key][0] for key in IN_GUIDE) + " | target |"]
    lines.append("| --- |" + " --- |" * (len(IN_GUIDE) + 1))
    for name, figures, targets in rows:
        cells = [COLUMNS[key][1](figures[key]) if key in figures else "" for key in IN_GUIDE]
        told = ", ".join(target if met else f"{target}: missed" for target, met in targets)
        if told:
            lines.append(f"| {' | '.join([name, *cells, told])} |")
    return "\n".join(lines)


def _apart(number: int, repeats: int) -> dict[str, Any]:
    """Measure an engine row in an interpreter of its own."""
    command = [sys.executable, "-m", "tests.bench", "--row", str(number), "--repeats", str(repeats)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tests.bench", description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="leave out the largest workloads, measure each once or so")
    parser.add_argument("--only", metavar="TEXT", default="", help="rows whose name has TEXT in it")
    parser.add_argument("--repeats", type=int, default=0, help="measurements of an engine row (default 3, quick 1)")
    parser.add_argument("--write", action="store_true", help="put the table into the guide")
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row is not None:
        print(json.dumps(measure_engine(ENGINE_ROWS[options.row], options.repeats)))
        return 0
    if options.write and (options.only or options.quick):
        parser.error("--write wants every row")
    repeats = options.repeats or (1 if options.quick else 3)
    print(f"CPython {platform.python_version()}, {os.cpu_count()} cores; llama-3.1-8b on h100-sxm-80gb,", end=" ")
    print(f"{PROMPTS} prompt and {OUTPUTS} output tokens")
    print(head(), flush=True)
    rows: list[tuple[str, dict[str, Any], list[tuple[str, bool]]]] = []
    open_loop: dict[str, Any] = {}
    for number, row in enumerate(ENGINE_ROWS):
        wanted = options.only in row.name and (row.quick or not options.quick)
        if not wanted and (open_loop or row.name != OPEN):
            continue
        figures = _apart(number, repeats if row.requests < 1e6 else 1)
        open_loop = open_loop or figures
        targets = judge_engine(row, figures, open_loop)
        rows.append((row.name, figures, targets))
        print(line(row.name, figures, targets), flush=True)
    commands: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as bytecode:
        for command in COMMAND_ROWS:
            if (options.quick and not command.quick) or (command.argv and options.only not in command.name):
                continue
            figures = measure_command(command, min(command.runs, 5) if options.quick else command.runs, bytecode)
            targets = judge_command(command, figures, commands)
            commands[f"{command.name} {command.requests}"] = figures
            rows.append((command.name, figures, targets))
            print(line(command.name, figures, targets), flush=True)
    judged = [met for _, _, targets in rows for _, met in targets]
    print(f"{sum(judged)} of {len(judged)} targets met")
    if options.write:
        put_table("speed", markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
