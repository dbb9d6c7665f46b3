"""The evidence as text, and as Markdown for the README: claims beside their bounds, tables, notes.

Takes the JSON objects of `servesim validate`, so that a saved document prints as the run did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
