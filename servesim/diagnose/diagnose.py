"""Which budget binds, which knob to turn first, and what will not help: the rules applied to what is known.

The first rule that holds is the diagnosis; others that hold are told beside it, one per budget. A server about which no
rule holds has nothing that binds: it does what it is asked to.

Does the arithmetic add up: what a server reports of its KV cache against what its model and device come to.

Each check is a sentence with both figures and whether they agree. What nobody reported is not checked.

Turn the knob that a diagnosis names, in the simulator: the same workload on the changed server, figure by figure.

Only what was simulated can be tried: its report has the whole server and workload in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from servesim.catalog.servers import SERVERS
from servesim.config.build import Server, build_server
from servesim.config.workload import WorkloadSpec
from servesim.diagnose.evidence import Evidence, number_of
from servesim.diagnose.rules import RULES, Rule
from servesim.engine.simulate import run_workload
from servesim.errors import ServesimError
from servesim.summary.summary import summarize
from servesim.units import GIB, format_bytes, format_gib

CLOSE = 0.05  # of a block count: what a server's profiling moves from start to start


@dataclass(frozen=True, slots=True)
class Check:
    """One sum; `agrees` is None where it only informs."""

    told: str
    agrees: bool | None


def checks(evidence: Evidence, facts: Mapping[str, str], server: Server | None) -> list[Check]:
    """Return every check that the figures at hand allow; `facts` are the server's own words on its cache."""
    return [*_own_words(facts), *_against_plan(facts, evidence, server), *_room(evidence)]


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


def _against_plan(facts: Mapping[str, str], evidence: Evidence, server: Server | None) -> Iterator[Check]:
    blocks = number_of(facts, "num_gpu_blocks")
    if server is None or not blocks or number_of(facts, "num_gpu_blocks_override"):
        return
    plan = server.plan
    block_bytes = (number_of(facts, "block_size") or plan.block_size) * plan.kv_bytes_per_token
    expected = plan.kv_cache_bytes // block_bytes
    agrees = abs(blocks - expected) <= CLOSE * expected
    told = (
        f"{plan.model.name} on {plan.hardware.name}: {format_gib(plan.kv_cache_bytes)} of KV cache / "
        f"{format_bytes(block_bytes)} a block = {expected:,.0f} blocks, the server says {blocks:,.0f}"
    )
    if not agrees:
        reserve = plan.budget_bytes - plan.device_weights_bytes - blocks * block_bytes
        if reserve >= 0:
            told += f"; a reserve of {reserve / GIB:.2f} GiB would explain it (--reserve-gib {reserve / GIB:.2f})"
        else:
            told += "; that is more than fits: check model, dtype, tensor parallelism and device"
    yield Check(told, agrees)


def _room(evidence: Evidence) -> Iterator[Check]:
    """Say how many requests the cache holds at once, against the seats."""
    tokens = evidence.kv_tokens
    if tokens is None or evidence.prompt_tokens is None or evidence.output_tokens is None:
        return
    each = evidence.prompt_tokens + evidence.output_tokens
    if each <= 0:
        return
    told = f"the cache holds {tokens:,} tokens / {each:,.0f} per request = {tokens / each:,.1f} requests at once"
    if evidence.max_num_seqs is not None:
        first = "the cache" if tokens / each < evidence.max_num_seqs else "the seats"
        told += f", there are {evidence.max_num_seqs:,} seats: {first} would run out first"
    yield Check(told, None)


def figures(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a summary that rules make promises about, under the names they use; times in ms."""
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


def turned(
    rule: Rule, server: Server, summary: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, str | None]:
    """Return what the knob of `rule` does to the run that `summary` and `config` tell of, or why it was not tried."""
    if rule.remedy.turn is None:
        return None, f"the knob of {rule.name} is not one of the simulated server's"
    change = rule.remedy.turn(server)
    try:
        changed = build_server(replace(server.spec, **change))
        known = {each.name for each in fields(WorkloadSpec)}
        spec = WorkloadSpec(**{key: value for key, value in config.items() if key in known and value is not None})
        run = run_workload(changed, spec, horizon_s=config.get("horizon_s"))
    except ServesimError as error:
        return None, f"the knob cannot be tried: {error}"
    before, after = figures(summary), figures(summarize(run).as_dict())
    return {
        "changed": change,
        "figures": {
            name: {"before": before.get(name), "after": after.get(name)}
            for name in rule.expect
            if name in before or name in after
        },
    }, None


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


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that holds, and the evidence for it in words."""

    rule: Rule
    evidence: str

    def as_dict(self) -> dict[str, Any]:
        rule = self.rule
        return {
            "rule": rule.name,
            "budget": rule.budget,
            "symptom": rule.symptom,
            "evidence": self.evidence,
            "change": rule.remedy.change,
            "knobs": rule.remedy.knobs(),
            "expect": rule.expect,
            "useless": [
                {"option": option, "knobs": KNOBS.get(option, {}), "why": why} for option, why in rule.useless.items()
            ],
            "source": rule.source,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is diagnosed: the evidence, the server's own words on its cache, and the server if it is known."""

    evidence: Evidence
    facts: Mapping[str, str] = field(default_factory=dict)
    server: Server | None = None
    point: Mapping[str, Any] | None = None  # a row of a sweep
    summary: Mapping[str, Any] | None = None  # what the evidence was read from, if it was a report
    config: Mapping[str, Any] = field(default_factory=dict)


def findings(evidence: Evidence) -> list[Finding]:
    """Return the rules that hold, the first the most pressing; of two for one budget only the first."""
    found: dict[str, Finding] = {}
    for rule in RULES:
        told = rule.when(evidence)
        if told is not None:
            found.setdefault(rule.budget, Finding(rule, told))
    return list(found.values())


def diagnosis(subjects: Sequence[Subject], notes: Sequence[str] = (), *, try_it: bool = False) -> dict[str, Any]:
    """Return the body of the document: the diagnosis of the last subject, and of each row where there are several.

    `try_it` turns the first knob in the simulator, where the last subject was simulated.
    """
    notes = list(notes)
    last = subjects[-1]
    found = findings(last.evidence)
    body: dict[str, Any] = {
        "binds": found[0].rule.budget if found else None,
        "queueing": last.evidence.queueing if last.evidence.knows_queue else None,
        "findings": [finding.as_dict() for finding in found],
        "checks": [
            {"told": check.told, "agrees": check.agrees} for check in checks(last.evidence, last.facts, last.server)
        ],
        "evidence": last.evidence.as_dict(),
        "missing": _missing(last.evidence),
        "gpu_utilisation": GPU_UTILISATION,
        "notes": notes,
    }
    if try_it and found:
        body["tried"], why_not = _try(found[0].rule, last)
        if why_not is not None:
            notes.append(why_not)
    if len(subjects) > 1:
        body["rows"] = [_row(subject) for subject in subjects]
    return body


def _try(rule: Rule, subject: Subject) -> tuple[dict[str, Any] | None, str | None]:
    if subject.server is None or subject.summary is None or subject.summary.get("source") != "simulated":
        return None, "only the report of a simulated run can be tried"
    return turned(rule, subject.server, subject.summary, subject.config)


def _row(subject: Subject) -> dict[str, Any]:
    found = findings(subject.evidence)
    return {
        "source": subject.evidence.source,
        "point": dict(subject.point or {}),
        "binds": found[0].rule.budget if found else None,
        "evidence": found[0].evidence if found else None,
    }


def _missing(evidence: Evidence) -> list[str]:
    """Return what would make the diagnosis surer, where it is not known."""
    missing = []
    if evidence.since_start:
        missing.append("a second page some seconds later: counters of one page are totals since the server's start")
    if evidence.max_num_seqs is None:
        missing.append("the server's flags (--flags 'vllm serve ...'): how many seats and tokens per step there are")
    if evidence.critical_tokens is None:
        missing.append("--hardware and --model: where arithmetic begins to decide, and what the cache should hold")
    return missing
