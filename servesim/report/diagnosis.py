"""A diagnosis in words: what binds and why, which knob to turn first, what it will do, what will not help.

Takes the body of the JSON document, so that text and JSON cannot say different things.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from servesim.units import format_ms, percent

Json = Mapping[str, Any]

WIDTH, INDENT = 100, 15
_FRACTIONS = {"kv_peak", "prefix_hit_rate"}
_LATENCY = re.compile(r".*_p[0-9]+")


def diagnosis_text(body: Json) -> str:
    """Return the text of a diagnosis; it ends with a newline."""
    lines = list(_rows(body))
    if not body["findings"]:
        lines += _line("binds", _nothing(body))
    for number, finding in enumerate(body["findings"]):
        lines += _finding(finding, body["evidence"].get("dialect"), first=number == 0)
        if number == 0 and body.get("tried"):
            lines += _tried(body["tried"])
    for check in body["checks"]:
        verdict = {True: "adds up", False: "does not add up", None: "capacity"}[check["agrees"]]
        lines += _line(verdict, check["told"])
    for told in body["missing"]:
        lines += _line("surer with", told)
    lines += _line("not evidence", body["gpu_utilisation"])
    return "\n".join(lines) + "\n"


def _nothing(body: Json) -> str:
    """Return what to say where no rule holds: that all is well only where nothing is seen to be wrong."""
    evidence, queueing = body["evidence"], body["queueing"]
    wrong = [f"{count:,} requests failed ({kind})" for kind, count in evidence.get("errors", {}).items()]
    wrong += [f"{name} is missed" for name in evidence.get("missed", ())]
    wrong += ["requests wait"] if queueing else []
    if wrong:
        return f"not clear: {', '.join(wrong)}, and nothing that is known of the server says why"
    if queueing is None:
        return "not clear: nothing that is known of the server says whether requests wait"
    return "nothing binds: the server does what it is asked to"


def _rows(body: Json) -> Iterator[str]:
    for row in body.get("rows", ()):
        point = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row["point"].items()) or row["source"]
        told = "nothing binds" if row["binds"] is None else f"{row['binds']}: {row['evidence']}"
        yield from _line("row", f"{point}   {told}")


def _finding(finding: Json, dialect: str | None, *, first: bool) -> Iterator[str]:
    yield from _line("binds" if first else "also", f"{finding['budget']}: {finding['evidence']}")
    yield from _line("turn first", finding["change"])
    for server, knob in finding["knobs"].items():
        if knob is not None and dialect in (None, server):
            yield from _line(server, knob)
    if finding["expect"]:
        yield from _line("expect", ", ".join(f"{metric} {way}" for metric, way in finding["expect"].items()))
    for each in finding["useless"]:
        knob = each["knobs"].get(dialect) or each["option"]
        yield from _line("will not help", f"{knob}: {each['why']}")


def _tried(tried: Json) -> Iterator[str]:
    """Yield what the first knob did when it was turned in the simulator."""
    yield from _line("tried", "   ".join(f"{name} {value}" for name, value in tried["changed"].items() if value))
    for name, figure in tried["figures"].items():
        yield from _line("", f"{name} {_figure(name, figure['before'])} -> {_figure(name, figure['after'])}")


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
