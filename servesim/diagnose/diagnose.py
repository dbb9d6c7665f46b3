"""Which budget binds, which knob to turn first, and what will not help: the rules applied to what is known.

The first rule that holds is the diagnosis; others that hold stand beside it, one per budget. A server about which no
rule holds has nothing that binds: it does what it is asked to. Beside the rules, each figure that a server reports of
its KV cache is checked against what its model and device come to, where both are known. A run that was simulated has
the whole server and workload in its report, so the knob can be turned in the simulator: same workload, changed server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from servesim.catalog.servers import SERVERS
from servesim.config.build import Server, build_server
from servesim.config.workload import WorkloadSpec
from servesim.diagnose.rules import RULES, Rule
from servesim.diagnose.state import ServerState, number_of
from servesim.engine.simulate import run_workload
from servesim.errors import ServesimError
from servesim.report.diagnosis import Check, DiagnosedRow, Diagnosis, FigureChange, FoundRule, TriedFix, UselessChange
from servesim.summary.summary import summarize
from servesim.units import GIB, format_bytes, format_gib

CLOSE = 0.05  # of a block count: what a server's profiling moves from start to start

GPU_UTILISATION = (
    "GPU utilisation is no evidence: it is the share of time in which any kernel ran. One sequence that waits for its "
    "weights to be read shows as much of it as 256, and so does a server that preempts and computes everything twice."
)

KNOBS = {
    option: {name: knob for name, dialect in SERVERS.items() if (knob := dialect.knobs.get(f"--{flag}"))}
    for option, flag in (
        ("max_num_seqs", "max-num-seqs"),
        ("max_num_batched_tokens", "max-num-batched-tokens"),
        ("kv_tokens", "kv-tokens"),
    )
}
"""What the servers call the options that a rule says are useless."""
KNOBS["kv_tokens"]["vllm"] = "--gpu-memory-utilization"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisInput:
    """What is diagnosed: the server's state, its own words on its cache, and the server itself if it is known."""

    state: ServerState
    facts: Mapping[str, str] = field(default_factory=dict)
    server: Server | None = None
    point: Mapping[str, Any] | None = None  # a row of a sweep
    summary: Mapping[str, Any] | None = None  # what the state was read from, if it was a report
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that holds, and the evidence for it in words."""

    rule: Rule
    evidence: str

    def reported(self) -> FoundRule:
        """Return the finding as a diagnosis reports it."""
        rule = self.rule
        return FoundRule(
            rule=rule.name,
            budget=rule.budget,
            symptom=rule.symptom,
            evidence=self.evidence,
            change=rule.remedy.change,
            knobs=rule.remedy.knobs(),
            expect=rule.expect,
            useless=[
                UselessChange(option=option, knobs=KNOBS.get(option, {}), why=why)
                for option, why in rule.useless.items()
            ],
            source=rule.source,
        )


def diagnosis(inputs: Sequence[DiagnosisInput], notes: Sequence[str] = (), *, try_it: bool = False) -> Diagnosis:
    """Return the diagnosis of the last of `inputs`, and a row for each where there are several.

    `try_it` turns the first knob in the simulator, where the last one was simulated.
    """
    last = inputs[-1]
    found = findings(last.state)
    tried, why_not = try_fix(found[0].rule, last) if try_it and found else (None, None)
    return Diagnosis(
        binds=found[0].rule.budget if found else None,
        queueing=last.state.queueing if last.state.knows_queue else None,
        findings=[finding.reported() for finding in found],
        checks=checks(last.state, last.facts, last.server),
        evidence=last.state.as_dict(),
        missing=_missing(last.state),
        gpu_utilisation=GPU_UTILISATION,
        notes=[*notes, *([] if why_not is None else [why_not])],
        tried=tried,
        asked_to_try=try_it and bool(found),
        rows=[_row(each) for each in inputs] if len(inputs) > 1 else None,
    )


def findings(state: ServerState) -> list[Finding]:
    """Return the rules that hold, the first the most pressing; of two for one budget only the first."""
    found: dict[str, Finding] = {}
    for rule in RULES:
        evidence = rule.when(state)
        if evidence is not None:
            found.setdefault(rule.budget, Finding(rule, evidence))
    return list(found.values())


def _row(one: DiagnosisInput) -> DiagnosedRow:
    found = findings(one.state)
    return DiagnosedRow(
        source=one.state.source,
        point=dict(one.point or {}),
        binds=found[0].rule.budget if found else None,
        evidence=found[0].evidence if found else None,
    )


def _missing(state: ServerState) -> list[str]:
    """Return what would make the diagnosis surer, where it is not known."""
    missing = []
    if state.since_start:
        missing.append("a second page some seconds later: counters of one page are totals since the server's start")
    if state.max_num_seqs is None:
        missing.append("the server's flags (--flags 'vllm serve ...'): max_num_seqs and the tokens per step")
    if state.critical_tokens is None:
        missing.append("--hardware and --model: where arithmetic begins to decide, and what the cache should hold")
    return missing


# What a server reports of its KV cache against what its model and device come to


def checks(state: ServerState, facts: Mapping[str, str], server: Server | None) -> list[Check]:
    """Return every check that the figures at hand allow; `facts` are the server's own words on its cache."""
    return [*_own_words(facts), *_against_plan(facts, server), *_room(state)]


def _own_words(facts: Mapping[str, str]) -> Iterator[Check]:
    blocks, block_size, tokens = (
        number_of(facts, name) for name in ("num_gpu_blocks", "block_size", "kv_cache_size_tokens")
    )
    if blocks and block_size and tokens:
        product = blocks * block_size
        yield Check(
            f"{blocks:,.0f} blocks x {block_size:,.0f} tokens = {product:,.0f}, the server says {tokens:,.0f} tokens "
            "(one block is vLLM's null block)",
            abs(product - tokens) <= block_size * 2,
        )


def _against_plan(facts: Mapping[str, str], server: Server | None) -> Iterator[Check]:
    blocks = number_of(facts, "num_gpu_blocks")
    if server is None or not blocks or number_of(facts, "num_gpu_blocks_override"):
        return
    plan = server.plan
    block_bytes = (number_of(facts, "block_size") or plan.block_size) * plan.kv_bytes_per_token
    expected = plan.kv_cache_bytes // block_bytes
    agrees = abs(blocks - expected) <= CLOSE * expected
    text = (
        f"{plan.model.name} on {plan.hardware.name}: {format_gib(plan.kv_cache_bytes)} of KV cache / "
        f"{format_bytes(block_bytes)} a block = {expected:,.0f} blocks, the server says {blocks:,.0f}"
    )
    if not agrees:
        reserve = plan.budget_bytes - plan.device_weights_bytes - blocks * block_bytes
        if reserve >= 0:
            text += f"; a reserve of {reserve / GIB:.2f} GiB would explain it (--reserve-gib {reserve / GIB:.2f})"
        else:
            text += "; that is more than fits: check model, dtype, tensor parallelism and device"
    yield Check(text, agrees)


def _room(state: ServerState) -> Iterator[Check]:
    """Say how many requests the cache holds at once, against `max_num_seqs`."""
    tokens = state.kv_tokens
    if tokens is None or state.prompt_tokens is None or state.output_tokens is None:
        return
    each = state.prompt_tokens + state.output_tokens
    if each <= 0:
        return
    text = f"the cache holds {tokens:,} tokens / {each:,.0f} per request = {tokens / each:,.1f} requests at once"
    if state.max_num_seqs is not None:
        first = "the cache" if tokens / each < state.max_num_seqs else "the slots"
        text += f", there are {state.max_num_seqs:,} max_num_seqs slots: {first} would run out first"
    yield Check(text, None)


# The knob turned in the simulator


def try_fix(rule: Rule, run: DiagnosisInput) -> tuple[TriedFix | None, str | None]:
    """Return what the knob of `rule` does to the simulated `run`, or why it was not tried."""
    if run.server is None or run.summary is None or run.summary.get("source") != "simulated":
        return None, "only the report of a simulated run can be tried"
    if rule.remedy.fix is None:
        return None, f"the knob of {rule.name} is not one of the simulated server's"
    change, config = rule.remedy.fix(run.server), run.config
    try:
        changed = build_server(replace(run.server.spec, **change))
        known = {each.name for each in fields(WorkloadSpec)}
        spec = WorkloadSpec(**{key: value for key, value in config.items() if key in known and value is not None})
        again = run_workload(changed, spec, horizon_s=config.get("horizon_s"))
    except ServesimError as error:
        return None, f"the knob cannot be tried: {error}"
    before, after = metrics_of(run.summary), metrics_of(summarize(again).as_dict())
    figures = {
        name: FigureChange(before=before.get(name), after=after.get(name))
        for name in rule.expect
        if name in before or name in after
    }
    return TriedFix(changed=change, figures=figures), None


def metrics_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a summary that rules make promises about, under the names they use; times in ms."""
    engine, requests = summary["engine"], summary["requests"]
    found = {
        "preemptions": engine["preemptions"],
        "kv_peak": engine["kv_peak"],
        "mean_batch": engine["mean_batch"],
        "prefix_hit_rate": engine["prefix_hit_rate"] or 0.0,
        "throughput": summary["throughput"]["output_tokens_per_s"],
        "rejected": requests["rejected"],
        "completed": requests["completed"],
    }
    for metric in ("ttft", "tpot", "itl", "queue"):
        for percentile in ("p50", "p95", "p99"):
            found[f"{metric}_{percentile}"] = (summary[f"{metric}_ms"] or {}).get(percentile)
    return {name: float(value) for name, value in found.items() if value is not None}
