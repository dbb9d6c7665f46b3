"""A fit and the evidence for the cost models: the shape of a fit, and both as text.

A fit prints as its parameters with what the runs identify of each, every point's residual, and the preset on one line;
the evidence of `servesim validate` as claims beside their bounds, tables and notes, in Markdown too. What is printed is
what the JSON document holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from servesim.cost.detailed import PARAMETERS
from servesim.units import format_number


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedParameter:
    """A parameter of the cost model, with its standard error as a ratio or, where it may be 0, in its own unit."""

    name: str
    value: float
    start: float
    relative_error: float | None
    absolute_error: float | None
    sensitivity: Annotated[float | None, "how far the points move for 10 % more of it, as a fraction"]
    told: Annotated[float | None, "share of its prior's variance that the runs take away; null without a prior"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPoint:
    """One figure of one measurement, beside the fit's."""

    label: str
    figure: str
    measured_ms: float
    predicted_ms: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The body of the document of `calibrate`."""

    cost_model: str
    start: str
    evaluations: int
    converged: bool
    parameters: list[FittedParameter]
    points: list[FittedPoint]
    mean_error: Annotated[float, "fraction"]
    worst_error: Annotated[float, "fraction"]
    notes: list[str]
    hints: Annotated[list[str], "what the runs do not identify, and which would"]
    warnings: list[str]
    preset: Annotated[dict[str, Any], "the fitted device, as a file of --hardware"]


def calibration_text(fit: Fit) -> str:
    """Return the block of a fit; its last line is the preset, a JSON object that `--hardware` reads from a file."""
    mean, worst = fit.mean_error, fit.worst_error
    lines = [
        f"cost model   {fit.cost_model}, from {fit.start}, {fit.evaluations} trials",
        "",
        f"{'parameter':<16}{'value':>11}{'+-':>10}{'10% more':>10}   what it is",
        *(_parameter(row) for row in fit.parameters),
        "",
        f"{'measured':<44}{'figure':<11}{'measured ms':>13}{'fitted ms':>13}{'off':>9}",
        *(_point(row) for row in fit.points),
        "",
        f"points       {len(fit.points)}, off by {mean:.1%} on average, {worst:.1%} at most",
        *(f"note         {text}" for text in fit.notes),
        *(f"not told     {text}" for text in fit.hints),
        *(f"warning      {text}" for text in fit.warnings),
        "",
        preset_line(fit),
    ]
    return "\n".join(lines) + "\n"


def preset_line(fit: Fit) -> str:
    """Return the fitted device on one line."""
    return json.dumps(fit.preset, ensure_ascii=False)


def _parameter(row: FittedParameter) -> str:
    if row.relative_error is not None:
        error = f"{row.relative_error:.1%}" if row.relative_error < 10 else "?"
    else:
        error = "?" if row.absolute_error is None else f"{row.absolute_error:.3g}"
    about = PARAMETERS[row.name].about if row.name in PARAMETERS else ""
    if row.told is not None and row.told < 0.5:
        about += " (its default: not identifiable)"
    return f"{row.name:<16}{row.value:>11.4g}{error:>10}{row.sensitivity:>10.1%}   {about}".rstrip()


def _point(row: FittedPoint) -> str:
    label = row.label if len(row.label) <= 42 else f"...{row.label[-39:]}"
    measured, fitted = format_number(row.measured_ms, 2), format_number(row.predicted_ms, 2)
    return f"{label:<44}{row.figure:<11}{measured:>13}{fitted:>13}{row.error:>+9.1%}"


WIDEST = 46  # of a cell of text, in columns; a reason may be longer, at the end of its row


def evidence_text(evidence: Iterable[Mapping[str, Any]]) -> str:
    """Return one block an evidence."""
    blocks = []
    for each in evidence:
        lines = [f"{each['name']}: {each['about']}"]
        if each["skipped"]:
            lines.append(f"  skipped: {each['skipped']}")
        lines += [f"  {_verdict(claim):<8}{_bounded(claim):<18}{claim['what']}" for claim in each["claims"]]
        for table in each["tables"]:
            lines += ["", f"  {table['title']}", *(f"    {row}" for row in _aligned(table))]
        if each["notes"]:
            lines.append("")
        lines += [f"  note  {note}" for note in each["notes"]]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def evidence_markdown(evidence: Iterable[Mapping[str, Any]]) -> str:
    """Return the same as Markdown."""
    parts = []
    for each in evidence:
        lines = [f"### {each['name']}", "", f"{each['about'][:1].upper()}{each['about'][1:]}.", ""]
        if each["skipped"]:
            lines += [f"Skipped: {each['skipped']}.", ""]
        if each["claims"]:
            lines += ["| claim | found | bound | |", "|---|---|---|---|"]
            for claim in each["claims"]:
                bound = "-" if claim["bound"] is None else f"{claim['bound']:.0%}"
                lines.append(f"| {_cell(claim['what'])} | {claim['value']:.1%} | {bound} | {_verdict(claim)} |")
            lines.append("")
        for table in each["tables"]:
            lines += [f"{table['title'][:1].upper()}{table['title'][1:]}:", ""]
            lines.append("| " + " | ".join(table["columns"]) + " |")
            lines.append("|" + "---|" * len(table["columns"]))
            lines += ["| " + " | ".join(_cell(_shown(value)) for value in row) + " |" for row in table["rows"]]
            lines.append("")
        lines += [f"- {note}" for note in each["notes"]]
        parts.append("\n".join(lines).rstrip() + "\n")
    return "\n".join(parts)


def _verdict(claim: Mapping[str, Any]) -> str:
    return "-" if claim["met"] is None else "met" if claim["met"] else "NOT MET"


def _bounded(claim: Mapping[str, Any]) -> str:
    bound = "" if claim["bound"] is None else f" <= {claim['bound']:.0%}"
    return f"{claim['value']:.1%}{bound}"


def _shown(value: str | int | float) -> str:
    if isinstance(value, float):
        return f"{round(value, 3) + 0.0:.1%}"  # no -0.0
    return f"{value:,}" if isinstance(value, int) else value


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _aligned(table: Mapping[str, Any]) -> Iterable[str]:
    """Yield the header and the rows of a table in columns; numbers to the right, text to the left."""
    rows: Sequence[Sequence[Any]] = table["rows"]
    cells = [list(table["columns"]), *([_shown(value) for value in row] for row in rows)]
    numeric = [all(not isinstance(row[place], str) for row in rows) for place in range(len(table["columns"]))]
    widths = [min(max(len(row[place]) for row in cells), WIDEST) for place in range(len(numeric))]
    for row in cells:
        aligned = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numeric, strict=True)
        )
        yield "  ".join(aligned).rstrip()
