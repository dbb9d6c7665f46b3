"""A comparison for people: text and Markdown of the JSON document that `compare` makes, which can so be shown again.

The text has one figure a line, at most 100 columns; why a verdict is `cannot tell` follows, once a reason. Variants of
a metric that are no different from it in either run, and figures far out in the tail, are in the JSON alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from servesim.console import one_line

WIDTH = 100
LABEL = 13
SHOWN = ("mean", "p50", "p95", "p99")  # of a latency; others where a gate asks
VARIANTS = {"ttfo": "ttft", "ttft_from_planned": "ttft", "e2e_from_planned": "e2e"}
CANNOT_TELL = "cannot tell"

Document = Mapping[str, Any]
Figure = Mapping[str, Any]


def comparison_text(document: Document) -> str:
    """Return the comparison as text; it ends with a newline."""
    lines = [
        *(f"{name.upper():<{LABEL}}{_side(document[name])}" for name in ("a", "b")),
        *(line for note in document["notes"] for line in _labelled("note", note)),
        *(line for told in _changes(document) for line in _labelled("config", told)),
        "",
        f"{'':<24}{'A':>11}{'B':>11}{'B - A':>11}{'':>9}{_heading(document):>21}  verdict",
    ]
    for figure in _shown(document):
        *numbers, verdict = _cells(figure)
        columns = "".join(number.rjust(width) for number, width in zip(numbers, (11, 11, 11, 9, 21), strict=True))
        lines.append(f"{_name(figure):<24}{columns}  {verdict}".rstrip())
    reasons = [line for reason in _reasons(document) for line in _labelled(CANNOT_TELL, reason)]
    gates = [line for gate in document["gates"] for line in _labelled("gate", _gate(gate))]
    return "".join(
        f"{one_line(line)}\n"
        for line in [*lines, *([""] if reasons else []), *reasons, *([""] if gates else []), *gates]
    )


def comparison_markdown(document: Document) -> str:
    """Return the comparison as Markdown, for a merge request or a README; it ends with a newline."""
    lines = [
        *(f"- **{name.upper()}**: {_escaped(_side(document[name]))}" for name in ("a", "b")),
        *(f"- note: {_escaped(note)}" for note in document["notes"]),
        *(f"- config: {_escaped(told)}" for told in _changes(document)),
        "",
        f"| figure | A | B | B - A | relative | {_heading(document)} | verdict |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for figure in _shown(document):
        lines.append(f"| {' | '.join((_name(figure), *_cells(figure)))} |")
    below = [f"- {CANNOT_TELL}: {_escaped(reason)}" for reason in _reasons(document)]
    below += [f"- gate: {_escaped(_gate(gate))}" for gate in document["gates"]]
    return "".join(f"{one_line(line)}\n" for line in [*lines, *([""] if below else []), *below])


def _side(side: Mapping[str, Any]) -> str:
    completed = side["completed"]
    told = "" if completed is None else f", {completed:,.0f} requests completed"
    return f"{side['label']}: {side['command']}, {side['source']}{told}"


def _changes(document: Document) -> Iterator[str]:
    """Yield what differs in the configurations: options of both, then the names of those that one side alone has."""
    changed = document["changed"]
    if changed:
        yield "   ".join(f"{key} {_option(pair['a'])} -> {_option(pair['b'])}" for key, pair in changed.items())
    for name in ("a", "b"):
        if document[f"only_{name}"]:
            yield f"only {name.upper()} has " + ", ".join(document[f"only_{name}"])
    if not changed:
        yield "no option differs that both have"


def _shown(document: Document) -> Iterator[Figure]:
    figures = {figure["name"]: figure for figure in document["figures"]}
    asked = {gate["figure"] for gate in document["gates"]}
    for name, figure in figures.items():
        if name in asked or _is_shown(name, figure, figures):
            yield figure


def _is_shown(name: str, figure: Figure, figures: Mapping[str, Figure]) -> bool:
    if name == "failed_share" or name.startswith("lateness_"):
        return bool(name == "failed_share" and (figure["a"] or figure["b"]))
    metric, _, which = name.rpartition("_")
    if figure["unit"] != "ms":
        return True
    plain = figures.get(f"{VARIANTS[metric]}_{which}") if metric in VARIANTS else None
    alike = plain is not None and (plain["a"], plain["b"]) == (figure["a"], figure["b"])
    return which in SHOWN and not alike


def _name(figure: Figure) -> str:
    unit = figure["unit"]
    return f"{figure['name']} {unit}" if unit == "ms" else str(figure["name"])


def _cells(figure: Figure) -> tuple[str, ...]:
    digits = 1 if figure["unit"] in ("ms", "tok/s", "tokens") else 3
    interval = figure["relative_interval"]
    if interval is not None:
        within = " .. ".join(_percent(end) for end in interval)
    elif figure["difference_interval"] is not None:
        within = " .. ".join(_number(end, digits, "+") for end in figure["difference_interval"])
    else:
        within = "-"
    return (
        _number(figure["a"], digits),
        _number(figure["b"], digits),
        _number(figure["difference"], digits, "+"),
        _percent(figure["relative"]),
        within,
        figure["verdict"] or "",
    )


def _reasons(document: Document) -> list[str]:
    """Return the reasons for `cannot tell` of the figures shown, each with the figures that it holds for."""
    names: dict[str, list[str]] = {}
    for figure in _shown(document):
        if figure["verdict"] == CANNOT_TELL:
            names.setdefault(figure["reason"], []).append(figure["name"])
    return [f"{', '.join(figures)}: {reason}" for reason, figures in names.items()]


def _gate(gate: Mapping[str, Any]) -> str:
    return f"{gate['gate']}: {gate['result']} ({gate['reason']})"


def _heading(document: Document) -> str:
    return f"{document['confidence'] * 100:.0f}% interval"


def _labelled(label: str, text: str) -> Iterable[str]:
    """Yield `text` in lines with `label` before the first."""
    lines: Sequence[str] = wrap(text, WIDTH - LABEL, break_on_hyphens=False) or [""]
    yield f"{label:<{LABEL}}{lines[0]}"
    for line in lines[1:]:
        yield f"{'':<{LABEL}}{line}"


def _number(value: float | None, digits: int, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign},.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:+,.1f}%"


def _option(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _escaped(text: str) -> str:
    return "".join(f"\\{char}" if char in "\\`*_|<>[]" else char for char in text)
