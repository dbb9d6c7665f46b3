"""Which budget binds, which knob to turn first, and what will not help: the rules applied to what is known.

The first rule that holds is the diagnosis; others that hold are told beside it, one per budget. A server about which no
rule holds has nothing that binds: it does what it is asked to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servesim.analysis.capacity_check import checks
from servesim.analysis.evidence import Evidence
from servesim.analysis.rules import RULES, Rule
from servesim.analysis.turning import turned
from servesim.catalog.servers import SERVERS
from servesim.engine.server import Server

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
