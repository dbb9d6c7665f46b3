"""A gate on a comparison, `ttft_p95>+10%`: it trips when the limit is passed beyond doubt, and never by noise.

`FIGURE > LIMIT` or `FIGURE < LIMIT`. A limit with a sign is one on the change from A to B, in percent or in the unit of
the figure (`+10%`, `+50ms`, `-100`); without a sign it is one on B itself (`500ms`, `4k`). A gate trips when the whole
90 % interval lies beyond the limit, passes when none of it does, and cannot tell in between or without an interval.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from servesim.comparison.compare import FIGURES, Comparison, Row
from servesim.comparison.interval import Interval, RunNoise
from servesim.errors import InputError
from servesim.report.comparison import CANNOT_TELL
from servesim.units import parse_duration, parse_finite, shown, suggest

TRIPPED, PASSED = "tripped", "passed"
ALIASES = {"throughput": "output_tokens_per_s"}
_FORM = re.compile(r"\s*([a-z0-9_.]+)\s*([<>])\s*([+-]?)\s*([^\s<>=+-]+)\s*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Trips where B's `value` of a figure, its `difference` or its `relative` difference is above or below a limit."""

    text: str
    figure: str
    above: bool
    kind: str  # value, difference or relative
    limit: float  # in the figure's own unit, or a share


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """What became of a gate, and why."""

    gate: Gate
    result: str
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        gate = self.gate
        return {
            "gate": gate.text,
            "figure": gate.figure,
            "kind": gate.kind,
            "above": gate.above,
            "limit": gate.limit,
            "result": self.result,
            "reason": self.reason,
        }


def parse_gate(text: str) -> Gate:
    """Return the gate in `text`. Raises `InputError` that says which part is wrong and how it should read.

    >>> parse_gate("ttft_p95>+10%")
    Gate(text='ttft_p95>+10%', figure='ttft_p95', above=True, kind='relative', limit=0.1)
    """
    form = _FORM.fullmatch(text)
    if form is None:
        raise InputError(
            f"gate is {shown(text)}, must be a figure, > or <, and a limit, such as ttft_p95>+10%, ttft_p95>500ms "
            "or throughput<-5%"
        )
    name, sign, amount = form[1], form[3], form[4]
    figure = ALIASES.get(name, re.sub(r"_p99\.9$", "_p999", name))
    known = RunNoise.names()
    if figure not in known:
        raise suggest("figure of a gate", name, [*ALIASES, *known])
    above, what = form[2] == ">", f"limit of gate {text.strip()}"
    if amount.endswith("%"):
        if not sign:
            remedy = f"{name}{form[2]}{'+' if above else '-'}{amount}"
            raise InputError(f"{what} is {shown(amount)}, must have its sign, since it is a change: {remedy}")
        share = parse_finite(amount[:-1], what, minimum=0.0) / 100
        return Gate(text=text.strip(), figure=figure, above=above, kind="relative", limit=_signed(share, sign))
    if FIGURES[figure].unit == "ms":
        limit = parse_duration(amount, what) * 1000
    else:
        limit = parse_finite(amount, what, minimum=0.0)
    kind = "difference" if sign else "value"
    return Gate(text=text.strip(), figure=figure, above=above, kind=kind, limit=_signed(limit, sign))


def parse_gates(texts: Iterable[str]) -> list[Gate]:
    """Return the gates of all `texts`, each one gate or a comma list."""
    return [parse_gate(part) for text in texts for part in text.split(",")]


def judge(gate: Gate, comparison: Comparison) -> GateResult:
    """Return whether `gate` trips on `comparison`."""
    row = comparison.rows.get(gate.figure)
    if row is None:
        return GateResult(gate=gate, result=CANNOT_TELL, reason="neither run has a value of it")
    interval = _interval(gate, row)
    if interval is None:
        reason = row.reason or ("A is 0, so no change of it has a share" if not row.a else "there is no interval")
        return GateResult(gate=gate, result=CANNOT_TELL, reason=reason)
    beyond = interval.low > gate.limit if gate.above else interval.high < gate.limit
    within = interval.high <= gate.limit if gate.above else interval.low >= gate.limit
    told = f"90 % interval {_shown(gate, interval.low, row)} to {_shown(gate, interval.high, row)}"
    return GateResult(gate=gate, result=TRIPPED if beyond else PASSED if within else CANNOT_TELL, reason=told)


def _interval(gate: Gate, row: Row) -> Interval | None:
    if gate.kind == "value":
        return row.b_interval
    return row.relative_interval if gate.kind == "relative" else row.difference_interval


def _shown(gate: Gate, value: float, row: Row) -> str:
    if gate.kind == "relative":
        return f"{value * 100:+,.1f}%"
    sign = "+" if gate.kind == "difference" else ""
    digits = 1 if row.figure.unit in ("ms", "tok/s") else 3
    return f"{value:{sign},.{digits}f} {row.figure.unit}".rstrip()


def _signed(value: float, sign: str) -> float:
    return -value if sign == "-" else value
