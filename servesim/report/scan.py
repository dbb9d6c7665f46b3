"""A length scan as text and as a JSON object: the same table whether a simulator or a server was scanned."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from servesim.client.scan import AXES, Line, Scan, ScanRow
from servesim.units import format_number

COLUMNS = ("asked", "got", "prompt", "TTFT ms", "TPOT ms", "E2E ms", "E2E min - max", "tok/s", "extra E2E ms")
WIDTHS = (6, 7, 7, 8, 8, 9, 19, 7, 12)


def scan_text(scan: Scan) -> str:
    """Return the table of a scan with its fitted lines; it fits 100 columns and ends with a newline.

    For a scan of prompts the column that tells the other side's tokens is `output`.
    """
    name = AXES[scan.axis]
    header = [column if column != "prompt" or scan.axis == "output_tokens" else "output" for column in COLUMNS]
    lines = [f"scan of {name} tokens", _cells(header), *(_cells(_row(scan.axis, row)) for row in scan.rows)]
    for label, line in (("TTFT", scan.ttft if scan.axis == "prompt_tokens" else None), ("E2E", scan.e2e)):
        if line is not None:
            lines.append(f"{label:<4} = {_line(line, name)}")
    return "\n".join(lines) + "\n"


def scan_json(scan: Scan) -> dict[str, Any]:
    """Return the scan as the value of a document's key `scan`."""
    return asdict(scan)


def _row(axis: str, row: ScanRow) -> list[str]:
    other = row.prompt_tokens if axis == "output_tokens" else row.output_tokens
    span = "-"
    if row.e2e_min_ms is not None and row.e2e_max_ms is not None:
        span = f"{format_number(row.e2e_min_ms)} - {format_number(row.e2e_max_ms)}"
    return [
        f"{row.asked_tokens:,}",
        format_number(row.produced_tokens),
        format_number(other),
        format_number(row.ttft_ms),
        format_number(row.tpot_ms, 2),
        format_number(row.e2e_ms),
        span,
        format_number(row.tokens_per_s),
        format_number(row.extra_e2e_ms),
    ]


def _cells(cells: list[str]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True)).rstrip()


def _line(line: Line, name: str) -> str:
    fixed, per_token = format_number(line.fixed_ms), format_number(line.per_token_ms, 3)
    return f"{fixed} ms fixed + {per_token} ms per {name} token (rows within {format_number(line.worst_ms)} ms)"
