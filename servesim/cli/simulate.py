"""`servesim simulate`: one run of a workload on a simulated server."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from servesim.cli.choices import fleet_groups
from servesim.cli.like import like_note
from servesim.cli.options import (
    CONFIG,
    HORIZON,
    JSON,
    LIKE,
    OUTPUT,
    PLOT,
    QUIET,
    SAVE,
    SERVER_GROUPS,
    SLO,
    TOKEN_TIMES,
)
from servesim.cli.parser import Parser
from servesim.cli.runner import Call, Result
from servesim.config.fleet import FleetSpec
from servesim.config.option import Group, Option, groups_of, spec_of, text
from servesim.config.server import ServerSpec
from servesim.config.workload import DEFAULT_CONCURRENCY, LOADS, WorkloadSpec, drive, load_requests
from servesim.console import Console
from servesim.engine.simulate import watch_terms
from servesim.errors import InputError
from servesim.fleet.build import build_deployment
from servesim.fleet.simulate import run_deployment
from servesim.interrupts import Interrupts
from servesim.report.documents import summary_document
from servesim.report.explain import CostShare, cost_text, explain, explain_text, run_shares, step_costs
from servesim.report.terminal import plot_run
from servesim.report.text import LABEL, gain_text, setup_text, summary_text, without_tiers
from servesim.runs.as_json import as_json
from servesim.runs.records import Run
from servesim.runs.writer import RunWriter, write_lines
from servesim.summary.classes import check_classes
from servesim.summary.slo import parse_slos
from servesim.summary.summary import Summary, summarize

EXAMPLES = (
    "servesim simulate --hardware l4-24gb --trace burst --prefix-caching",
    "servesim simulate --concurrency 64 --requests 1000 --prompt-tokens 256-1024 --output-tokens 64-256",
    "servesim simulate --rate 26 --requests 20000 --slo ttft_p95=500ms,tpot_p95=50ms",
    "servesim simulate --hardware l4-24gb --trace burst --explain-request 40",
    "servesim simulate --like measured.jsonl --hardware cpu-4vcpu",
    "servesim simulate --rate 60 --replicas 4 --router least-kv",
    "servesim simulate --trace mixed --disagg 3:1 --link 25GB/s",
    "servesim simulate --rate 30 --client-timeout 10s --retries 2 --max-num-queued-reqs 64 --save run.jsonl",
)

EXPLAIN = Option("--explain-request", "explain", "say where the time of the request with this id went", text, "ID")
EXPLAIN_COST = Option(
    "--explain-cost", "explain_cost", "say where the time of the steps went, by term of the cost model"
)


def build_parser() -> Parser:
    output = Group("output", (JSON, OUTPUT, SAVE, TOKEN_TIMES, SLO, EXPLAIN, EXPLAIN_COST, PLOT, CONFIG, LIKE, QUIET))
    return Parser(
        "simulate",
        "One run of a workload on a simulated server. Exit 1: a request failed or was rejected, an --slo is not met.",
        EXAMPLES,
        (*groups_of(WorkloadSpec), Group("end", (HORIZON,)), *SERVER_GROUPS, *fleet_groups().values(), output),
    )


def run(call: Call) -> Result:
    values, console = call.values, call.console
    if not values.keys() & LOADS:
        values["concurrency"] = DEFAULT_CONCURRENCY
    if "like" in values:
        console.note(like_note(values["like"], values))
    with ExitStack() as stack:
        saved = stack.enter_context(RunWriter(values["save"])) if "save" in values else None
        done, summary, without, shares = _run(values, console)
        explained = explain(done, values["explain"]) if "explain" in values else None
        if saved is not None:
            write_lines(saved, done, "simulate", token_times=values.get("token_times", False))

    def document() -> dict[str, Any]:
        document = summary_document("simulate", done.config, summary)
        if explained is not None:
            document["explanation"] = explained.as_dict()
        if without is not None:
            document["offload"]["without"] = without_tiers(without)
        if shares:
            document["cost"] = as_json(step_costs(shares))
        return document

    def text() -> str:
        parts = [setup_text(done.config) + summary_text(summary)]
        if explained is not None:
            parts.append(explain_text(explained))
        if without is not None:
            parts.append(gain_text(summary, without, LABEL))
        if shares:
            parts.append(cost_text(shares))
        if values.get("plot"):
            parts.append(plot_run(done, ascii_only=call.ascii_only))
        return "\n".join(parts)

    broken = [f"law broken: {law}" for law in summary.violations]
    return Result(document=document, text=text, code=exit_code(summary), in_text=[*summary.warnings, *broken])


def _run(values: dict[str, Any], console: Console) -> tuple[Run, Summary, Summary | None, list[CostShare]]:
    deployment = build_deployment(spec_of(ServerSpec, values), spec_of(FleetSpec, values))
    spec, slos = spec_of(WorkloadSpec, values), parse_slos(values.get("slo", ()))
    if values.get("explain_cost") and deployment.single_engine is None:
        raise InputError("explain_cost describes one engine; leave out the fleet")
    notes = list(deployment.notes)
    requests = load_requests(spec, notes)
    check_classes(requests, slos)
    workload = drive(spec, requests)
    for note in notes:
        console.note(note)
    with Interrupts() as interrupts, console.progress("requests", len(workload.requests)) as progress:

        def watch(over: int) -> bool:
            progress.update(over)
            return interrupts.asked

        done = run_deployment(
            deployment,
            spec,
            workload=workload,
            horizon_s=values.get("horizon_s"),
            watch=watch,
            every_token=bool(values.keys() & {"save", "explain", "plot"}) or any(slo.metric == "itl" for slo in slos),
        )
    if values.get("slo"):
        done.config["slo"] = values["slo"]
    without = None
    if deployment.has_tiers and not done.partial:  # the same load once more, to tell what they are worth
        bare = run_deployment(
            deployment.without_tiers(), spec, workload=drive(spec, requests), horizon_s=values.get("horizon_s")
        )
        without = summarize(bare, slos)
    shares = []
    if values.get("explain_cost") and deployment.single_engine is not None:
        shares = run_shares(watch_terms(deployment.single_engine, drive(spec, requests), values.get("horizon_s")))
    return done, summarize(done, slos), without, shares


def exit_code(summary: Summary) -> int:
    """Return 1 if a request failed or was rejected, an objective is not met, a law broke, or the run was cut short."""
    unmet = any(not result.met for result in summary.slo or ())
    lost = summary.requests.failed or summary.requests.rejected
    return int(bool(lost or unmet or summary.violations or summary.partial))
