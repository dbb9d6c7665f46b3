"""`servesim plan`: the cheapest servers that meet the objectives, with the commands that start them."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

from servesim.cli.options import CONFIG, JOBS, JSON, OUTPUT, QUIET, SERVER_GROUPS, SLO
from servesim.cli.parser import Parser
from servesim.cli.runner import Call, Result
from servesim.config.fleet import FleetSpec, parse_prices, split
from servesim.config.option import (
    Group,
    Option,
    checks_of,
    count,
    groups_of,
    number,
    options_of,
    spec_of,
    text,
)
from servesim.config.server import ServerSpec
from servesim.config.workload import WorkloadSpec, load_requests
from servesim.console import Console
from servesim.errors import InputError
from servesim.inputs import STDIN, is_pipe
from servesim.interrupts import Interrupts
from servesim.plan.plan import Planner, PlanSpec, plan_body
from servesim.plan.shards import ShardWriter, parse_shard, plan_digest, read_shards
from servesim.plan.space import DEFAULT_LINK, candidates, possible, prices_an_hour
from servesim.plan.sweep import grid
from servesim.plan.trial import Question, Unit, workers
from servesim.report.documents import document
from servesim.report.plan import plan_text
from servesim.summary.slo import parse_slos

EXAMPLES = (
    "servesim plan --slo ttft_p95=500ms,tpot_p95=50ms --hardware h100-sxm-80gb,l40s-48gb --tensor-parallel-size 1,2",
    "servesim plan --slo ttft_p95=1s --rate 100 --hardware l4-24gb,l40s-48gb --price l4-24gb=0.7/h,l40s-48gb=1.1/h",
    "servesim plan --slo tpot_p95=40ms --tune --shared-prefix-tokens 1024",
    "servesim plan --slo itl_p99=60ms --disagg off,1:1 --link 25GB/s --prompt-tokens 500-8000",
    "servesim plan --slo ttft_p95=1s --tune --shard 2/8 -o shard2.jsonl",
    "servesim plan --from shard*.jsonl",
)

REQUESTS_OF_A_SEARCH = 2000
TUNED: dict[str, tuple[Any, ...]] = {
    "max_num_seqs": (128, 256, 512),
    "max_num_batched_tokens": (2048, 8192),
    "block_size": (16, 32),
    "prefix_caching": (False, True),
}

_NOT_HERE = {"concurrency", "stagger_s", "duration_s", "speed", "rate", "rate_schedule", "ramp_s"}
_LINK = tuple(
    replace(option, swept=False, default=option.default or DEFAULT_LINK)
    for option in options_of(FleetSpec, "link_bytes_per_s", "link_latency_s", "link_scope", "transfer_overlap")
)

_NOT_PLAN = {"json", "output", "quiet", "jobs", "shard", "from", "config_file"}


def _split(value: Any, name: str) -> str:
    return "off" if value == "off" else split(value, name)


OBJECTIVE = Group(
    "objective",
    (
        SLO,
        Option(
            "--rate", "rate", "requests per second to serve: how many replicas", number(above=0.0), "R", common=True
        ),
        *(replace(option, common=True) for option in options_of(FleetSpec, "price")),
        Option(
            "--tune", "tune", "also try values of " + ", ".join(key.replace("_", "-") for key in TUNED), common=True
        ),
        Option(
            "--disagg", "disagg", "prefill:decode servers, off: together", _split, "P:D", "off", swept=True, common=True
        ),
        Option("--seeds", "seeds", "seeds that a finalist is searched under", count(maximum=10), default="3"),
        Option(
            "--fresh-seeds",
            "fresh_seeds",
            "unused seeds that check the choice",
            count(minimum=0, maximum=100),
            default="3",
        ),
    ),
)

WHERE = Group(
    "many machines",
    (
        Option(
            "--shard",
            "shard",
            "search only every n-th candidate and write rows (JSON lines)",
            parse_shard,
            "I/N",
            common=True,
        ),
        Option(
            "--from",
            "from",
            "rows that shards wrote: merge them, compute what is missing",
            text,
            "FILE...",
            repeat=True,
            many=True,
            common=True,
        ),
        replace(JOBS, default="all cores"),
    ),
)


def build_parser() -> Parser:
    load = [group.without(*_NOT_HERE) for group in groups_of(WorkloadSpec, swept=False)]
    load[0] = load[0].changed("requests", default=f"{REQUESTS_OF_A_SEARCH}; every row of a trace")
    return Parser(
        "plan",
        "Meet objectives at the least cost. Comma lists on options of the server are the choices.\n"
        "Exit 1: nothing meets the objectives.",
        EXAMPLES,
        (
            OBJECTIVE,
            Group("link between prefill and decode", _LINK),
            *load,
            *SERVER_GROUPS,
            WHERE,
            Group("output", (JSON, OUTPUT, CONFIG, QUIET)),
        ),
        lists=True,
    )


def run(call: Call) -> Result | int:
    values, console = call.values, call.console
    if "from" in values and "shard" in values:
        raise InputError("--from merges what --shard wrote; leave one out")
    if "from" in values:
        return _merge(call.parser, values, console)
    spec = plan_spec(values, console)
    if "shard" in values:
        return _shard(spec, values, console)
    return _plan(spec, Planner(spec), values, console)


def plan_spec(values: dict[str, Any], console: Console | None = None) -> PlanSpec:
    """Return the plan that `values` ask for."""
    slos = parse_slos(values.get("slo", ()))
    if not slos:
        raise InputError("a plan needs an objective, such as --slo ttft_p95=500ms")
    rate = values.get("rate")
    load = {key: value for key, value in values.items() if key != "rate"}
    if "trace" not in values:
        load = {"requests": REQUESTS_OF_A_SEARCH, "rate": rate or 1.0, **load}
    elif values["trace"] == STDIN or is_pipe(values["trace"]):
        raise InputError("a plan reads its trace many times, so not from standard input or a pipe; give a file")
    workload = spec_of(WorkloadSpec, load)
    notes: list[str] = []
    requests = load_requests(workload, notes)
    axes = {
        key: value for key, value in values.items() if isinstance(value, list) and key not in ("slo", "price", "disagg")
    }
    if values.get("tune"):
        tried = {key: list(tried) for key, tried in TUNED.items() if key not in values}
        if requests.content is None and "prefix_caching" in tried:
            notes.append("no two requests share content, so prefix caching is not tried")
            del tried["prefix_caching"]
        axes |= tried
    servers = [spec_of(ServerSpec, values | point) for point in grid(axes)]
    found = possible(candidates(servers, _fleets(values)), notes)
    prices = prices_an_hour(found, parse_prices(values.get("price", ()), "price"))
    for note in notes:
        if console is not None:
            console.note(note)
    return PlanSpec(
        candidates=tuple(found),
        question=Question(workload=workload, slos=tuple(slos)),
        rate=rate,
        prices=prices,
        seeds=values.get("seeds", 3),
        fresh_seeds=values.get("fresh_seeds", 3),
    )


def _fleets(values: dict[str, Any]) -> list[FleetSpec]:
    forms = values.get("disagg", "off")
    link = {option.key: values[option.key] for option in _LINK if option.key in values}
    link.setdefault("link_bytes_per_s", checks_of(FleetSpec)["link_bytes_per_s"](DEFAULT_LINK, "link"))
    return [
        FleetSpec() if form == "off" else FleetSpec(disagg=form, **link)
        for form in (forms if isinstance(forms, list) else [forms])
    ]


def _config(values: dict[str, Any], spec: PlanSpec) -> dict[str, Any]:
    """Return the options, as `--config` takes it back, with the workload in force."""
    load = {key: value for key, value in spec.question.workload.as_dict().items() if value is not None}
    load = {key: value for key, value in load.items() if key not in _NOT_HERE}
    return {**load, **{key: value for key, value in values.items() if key not in _NOT_PLAN}}


def _shard(spec: PlanSpec, values: dict[str, Any], console: Console) -> int:
    """Do one shard's searches, those that its file lacks, and append their rows to it."""
    number, total = map(int, values["shard"].split("/"))
    plan, path = plan_digest(spec), str(values.get("output", ""))
    units = spec.units_of_edges()[number - 1 :: total]
    done: set[str] = set()
    begun = os.path.exists(path) and os.path.getsize(path) > 0
    if begun:
        _, theirs, rows, _ = read_shards([path])
        if theirs != plan:
            raise InputError(f"{path} has rows of another plan; give another file")
        done = {row["unit"] for row in rows}
        console.note(f"{path} has {len(done)} rows already")
    writer = ShardWriter(path or None, sys.stdout, _config(values, spec), plan, begun=begun)
    try:
        return int(not _do(spec, [unit for unit in units if unit.id not in done], writer.row, values, console))
    finally:
        writer.close()


def _merge(parser: Parser, values: dict[str, Any], console: Console) -> Result:
    """Put the rows of shards together, compute what is missing, and report."""
    given = values.keys() - _NOT_PLAN
    config, plan, rows, notes = read_shards(values["from"])
    options = parser.options
    checked = {key: value for key, value in config.items() if key in options}
    spec = plan_spec({**checked, **{key: values[key] for key in given}})
    if plan_digest(spec) != plan:
        raise InputError(
            f"{values['from'][0]}: its rows belong to another plan, workload or version; leave out the options"
        )
    for note in notes:
        console.note(note)
    planner = Planner(spec, rows)
    lacking = [unit for unit in spec.units_of_edges() if unit.id not in planner.rows]
    if lacking:
        console.note(f"{len(lacking)} of {len(spec.candidates)} candidates are in no shard; they are searched now")
    return _plan(spec, planner, {**checked, **values}, console)


def _plan(spec: PlanSpec, planner: Planner, values: dict[str, Any], console: Console) -> Result:
    while units := planner.missing():
        if not _do(spec, units, planner.add, values, console):
            console.warn("interrupted before the plan was complete")
            planner.interrupted = True
            break
    body, partial = plan_body(planner), planner.interrupted
    return Result(
        document=lambda: document("plan", _config(values, spec), body, partial=partial),
        text=lambda: plan_text(body, partial=partial),
        code=int(body["chosen"] is None),
    )


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _do(spec: PlanSpec, units: list[Unit], take: Any, values: dict[str, Any], console: Console) -> bool:
    """Do `units`, giving each row to `take`; return whether nobody pressed Ctrl-C."""
    jobs = min(values.get("jobs") or cores(), len(units))
    with (
        Interrupts() as interrupt,
        console.progress("searches", len(units)) as progress,
        workers(spec.question, jobs) as run_all,
    ):
        for done, row in enumerate(run_all(units), 1):
            take(row)
            progress.update(done, row["kind"])
            if interrupt.asked:
                return False
    return True
