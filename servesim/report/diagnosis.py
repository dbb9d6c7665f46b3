"""A diagnosis in words: what binds and why, which knob to turn first, what it will do, what will not help.

The text is made of the same `Diagnosis` as the JSON document, so that they cannot say different things.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from servesim.runs.as_json import NOT_IN_JSON, as_json
from servesim.units import format_ms, percent

WIDTH, INDENT = 100, 15
_FRACTIONS = {"kv_peak", "prefix_hit_rate"}
_LATENCY = re.compile(r".*_p[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class UselessChange:
    """An option that changes nothing, what the servers call it, and why."""

    option: str
    knobs: dict[str, str]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRule:
    """A rule that holds: what is short, the evidence, the knob to turn, and what each metric will do."""

    rule: str
    budget: str
    symptom: str
    evidence: str
    change: str
    knobs: dict[str, str]
    expect: dict[str, str]
    useless: list[UselessChange]
    source: str


@dataclass(frozen=True, slots=True)
class Check:
    """One sum in words; `agrees` is None where it only informs."""

    told: str
    agrees: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureChange:
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedFix:
    """The options that were changed in the simulator, and what became of the figures that the rule names."""

    changed: dict[str, Any]
    figures: dict[str, FigureChange]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosedRow:
    """The diagnosis of one point of a sweep, or of one of several files."""

    source: str
    point: dict[str, Any]
    binds: str | None
    evidence: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The body of the document of `diagnose`."""

    binds: Annotated[str | None, "the budget"]
    queueing: Annotated[bool | None, "whether requests wait to be admitted"]
    findings: list[FoundRule]
    checks: list[Check]
    evidence: Annotated[dict[str, Any], "what is known of the server; fractions, seconds (_s), counts"]
    missing: list[str]
    gpu_utilisation: str
    notes: list[str]
    tried: Annotated[TriedFix | None, "what the first knob did in the simulator; null where it could not be tried"] = (
        None
    )
    rows: list[DiagnosedRow] | None = None
    asked_to_try: bool = field(default=False, metadata=NOT_IN_JSON)

    def as_dict(self) -> dict[str, Any]:
        """Return the body of the document; `tried` is null where it was asked for and could not be."""
        document: dict[str, Any] = as_json(self)
        return document | ({"tried": document.get("tried")} if self.asked_to_try else {})


def diagnosis_text(found: Diagnosis) -> str:
    """Return the text of a diagnosis; it ends with a newline."""
    lines = list(_rows(found))
    if not found.findings:
        lines += _line("binds", _nothing(found))
    for number, finding in enumerate(found.findings):
        lines += _finding(finding, found.evidence.get("dialect"), first=number == 0)
        if number == 0 and found.tried:
            lines += _tried(found.tried)
    for check in found.checks:
        verdict = {True: "adds up", False: "does not add up", None: "capacity"}[check.agrees]
        lines += _line(verdict, check.told)
    for missing in found.missing:
        lines += _line("surer with", missing)
    lines += _line("not evidence", found.gpu_utilisation)
    return "\n".join(lines) + "\n"


def _nothing(found: Diagnosis) -> str:
    """Return what to say where no rule holds: that all is well only where nothing is seen to be wrong."""
    evidence, queueing = found.evidence, found.queueing
    wrong = [f"{count:,} requests failed ({kind})" for kind, count in evidence.get("errors", {}).items()]
    wrong += [f"{name} is missed" for name in evidence.get("missed", ())]
    wrong += ["requests wait"] if queueing else []
    if wrong:
        return f"not clear: {', '.join(wrong)}, and nothing that is known of the server says why"
    if queueing is None:
        return "not clear: nothing that is known of the server says whether requests wait"
    return "nothing binds: the server does what it is asked to"


def _rows(found: Diagnosis) -> Iterator[str]:
    for row in found.rows or ():
        point = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row.point.items()) or row.source
        told = "nothing binds" if row.binds is None else f"{row.binds}: {row.evidence}"
        yield from _line("row", f"{point}   {told}")


def _finding(finding: FoundRule, dialect: str | None, *, first: bool) -> Iterator[str]:
    yield from _line("binds" if first else "also", f"{finding.budget}: {finding.evidence}")
    yield from _line("turn first", finding.change)
    for server, knob in finding.knobs.items():
        if dialect in (None, server):
            yield from _line(server, knob)
    if finding.expect:
        yield from _line("expect", ", ".join(f"{metric} {way}" for metric, way in finding.expect.items()))
    for each in finding.useless:
        knob = each.knobs.get(dialect or "") or each.option
        yield from _line("will not help", f"{knob}: {each.why}")


def _tried(tried: TriedFix) -> Iterator[str]:
    """Yield what the first knob did when it was turned in the simulator."""
    yield from _line("tried", "   ".join(f"{name} {value}" for name, value in tried.changed.items() if value))
    for name, figure in tried.figures.items():
        yield from _line("", f"{name} {_figure(name, figure.before)} -> {_figure(name, figure.after)}")


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name in _FRACTIONS:
        return percent(value)
    return format_ms(value) if _LATENCY.fullmatch(name) else f"{value:,.1f}".removesuffix(".0")


def _line(label: str, text: str) -> list[str]:
    """Return the text behind its label, wrapped."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"{label:<{INDENT}}",
        subsequent_indent=" " * INDENT,
        break_on_hyphens=False,
        break_long_words=False,
    )
