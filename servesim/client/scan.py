"""A length scan: one row per requested length, each measured several times, and the straight lines through them.

The classic first look at a server: how long does an answer of 10, 50, 100 tokens take, how long does a prompt of 22,
108, 293 tokens take to be read? Made from summaries alone, so that a simulated scan and a measured one are one table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from servesim.errors import InputError
from servesim.stats import Distribution
from servesim.summary.summary import Summary

DEFAULT_WARMUP = 3
DEFAULT_REPEATS = 5

AXES: dict[str, str] = {"output_tokens": "output", "prompt_tokens": "prompt"}
"""What can be scanned, by its key in a document's `config`, and what its tokens are called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRow:
    """One length: requested, produced (or, of a prompt, counted by the server), and what it took. None is unknown."""

    asked_tokens: int
    produced_tokens: float | None  # mean over the completed requests, on the scanned axis
    prompt_tokens: float | None
    output_tokens: float | None
    completed: int
    failed: int
    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float | None
    e2e_min_ms: float | None
    e2e_max_ms: float | None
    tokens_per_s: float | None  # output tokens of one request over its E2E
    extra_e2e_ms: float | None  # against the first row


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """`fixed_ms + per_token_ms x tokens`, by least squares; `worst_ms` is the largest distance of a row from it."""

    fixed_ms: float
    per_token_ms: float
    worst_ms: Annotated[float, "of a row, from the line"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The table of one scan, with lines over the produced tokens of the axis; None without two points."""

    axis: Annotated[str, "the length that was scanned"]  # a key of AXES
    rows: list[ScanRow]
    ttft: Line | None
    e2e: Line | None
    warnings: list[str]


def scanned(axes: Mapping[str, Sequence[Any]]) -> str | None:
    """Return the key of the one length that is swept over plain numbers while nothing else is; None: no scan.

    >>> scanned({"concurrency": [1], "output_tokens": ["10", "50"]})
    'output_tokens'
    """
    swept = [key for key, items in axes.items() if len(items) > 1]
    if len(swept) != 1 or swept[0] not in AXES or not all(str(length).isdecimal() for length in axes[swept[0]]):
        return None
    return swept[0]


def make_scan(axis: str, measured: Iterable[tuple[int, Summary]]) -> Scan:
    """Make the table from (requested tokens, summary of the requests of that length), in the order in which they ran.

    Where a server cut its answers short, the lines run over what it produced, not over what was requested.
    """
    if axis not in AXES:
        raise InputError(f"cannot scan over {axis!r}, must be one of {', '.join(AXES)}")
    rows: list[ScanRow] = []
    for requested, summary in measured:
        rows.append(_row(axis, requested, summary, rows[0].e2e_ms if rows else _mean(summary.e2e_ms)))
    return Scan(
        axis=axis,
        rows=rows,
        ttft=fit_line([(row.produced_tokens, row.ttft_ms) for row in rows]),
        e2e=fit_line([(row.produced_tokens, row.e2e_ms) for row in rows]),
        warnings=[warning for row in rows for warning in _warnings(axis, row)],
    )


def fit_line(points: Sequence[tuple[float | None, float | None]]) -> Line | None:
    """Fit a line through (tokens, ms) points by least squares; None without two different token counts.

    >>> fit_line([(10, 25.0), (50, 65.0), (100, 115.0)])
    Line(fixed_ms=15.0, per_token_ms=1.0, worst_ms=0.0)
    """
    known = [(x, y) for x, y in points if x is not None and y is not None]
    if len({x for x, _ in known}) < 2:
        return None
    mean_x = sum(x for x, _ in known) / len(known)
    mean_y = sum(y for _, y in known) / len(known)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in known) / sum((x - mean_x) ** 2 for x, _ in known)
    fixed = mean_y - slope * mean_x
    worst = max(abs(y - fixed - slope * x) for x, y in known)
    return Line(fixed_ms=round(fixed, 9), per_token_ms=round(slope, 9), worst_ms=round(worst, 9))


def _row(axis: str, requested: int, summary: Summary, first_e2e_ms: float | None) -> ScanRow:
    prompt, output, e2e = _mean(summary.prompt_tokens), _mean(summary.output_tokens), _mean(summary.e2e_ms)
    return ScanRow(
        asked_tokens=requested,
        produced_tokens=output if axis == "output_tokens" else prompt,
        prompt_tokens=prompt,
        output_tokens=output,
        completed=summary.requests.completed,
        failed=summary.requests.failed + summary.requests.rejected,
        ttft_ms=_mean(summary.ttft_ms),
        tpot_ms=_mean(summary.tpot_ms),
        e2e_ms=e2e,
        e2e_min_ms=None if summary.e2e_ms is None else summary.e2e_ms.min,
        e2e_max_ms=None if summary.e2e_ms is None else summary.e2e_ms.max,
        tokens_per_s=None if not e2e or output is None else output / e2e * 1000,
        extra_e2e_ms=None if e2e is None or first_e2e_ms is None else e2e - first_e2e_ms,
    )


def _warnings(axis: str, row: ScanRow) -> list[str]:
    name, requested, produced = AXES[axis], row.asked_tokens, row.produced_tokens
    warnings = []
    if produced is not None and axis == "output_tokens" and abs(produced - requested) > 0.005 * requested:
        remedy = "; --ignore-eos makes most servers go on" if produced < requested else ""
        warnings.append(f"asked for {requested:,} output tokens, got {produced:,.1f} on average{remedy}")
    if produced is not None and axis == "prompt_tokens" and abs(produced - requested) > max(2, 0.01 * requested):
        warnings.append(f"asked for a prompt of {requested:,} tokens, the server counted {produced:,.1f}")
    if row.failed:
        warnings.append(f"{row.failed:,} requests failed at {requested:,} {name} tokens")
    return warnings


def _mean(distribution: Distribution | None) -> float | None:
    return None if distribution is None else distribution.mean
