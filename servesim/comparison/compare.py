"""Two runs side by side: each figure's difference, how far noise can explain it, and a verdict.

The runs are taken as independent. Their intervals (`interval`) make that of the difference by the rule of square and
add, which keeps each one's lopsidedness (MOVER: Zou and Donner, Statistics in Medicine 27, 2008); the relative
difference has the same rule on logarithms. Verdicts: `same` when the whole interval lies within the margin; else
`better` or `worse` when it excludes no difference at all; else, or without an interval, `cannot tell`.

Whatever has a summary can be compared; only per-request records give intervals. Knows nothing of files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servesim.comparison.interval import CONFIDENCE, FAILED_SHARE, Interval, NoInterval, RunNoise
from servesim.errors import InputError
from servesim.report.comparison import CANNOT_TELL
from servesim.runs.records import Run
from servesim.stats import PERCENTILES
from servesim.summary.latency import METRICS
from servesim.summary.summary import summarize
from servesim.units import shown

MARGIN = 0.02
SAME, BETTER, WORSE = "same", "better", "worse"
NO_RECORDS = NoInterval("has no interval, since a summary does not hold the single requests; give a saved run")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a summary: where it stands, its unit, and which way is better (None: neither)."""

    name: str
    path: tuple[str, str]
    unit: str
    better: str | None


def _figures() -> dict[str, Figure]:
    figures = [
        Figure("output_tokens_per_s", ("throughput", "output_tokens_per_s"), "tok/s", "higher"),
        Figure("total_tokens_per_s", ("throughput", "total_tokens_per_s"), "tok/s", "higher"),
        Figure("requests_per_s", ("throughput", "requests_per_s"), "req/s", "higher"),
        Figure(FAILED_SHARE, ("requests", "failed"), "", "lower"),
    ]
    for metric in METRICS:
        for name in ("mean", *PERCENTILES, "max"):
            figures.append(Figure(f"{metric}_{name}", (f"{metric}_ms", name), "ms", "lower"))
    for name in ("mean_batch", "kv_mean", "kv_peak", "prefix_hit_rate", "preemptions"):
        figures.append(Figure(name, ("engine", name), "", None))
    for name in ("prompt_tokens", "output_tokens"):
        figures.append(Figure(f"{name}_mean", (name, "mean"), "tokens", None))
    return {figure.name: figure for figure in figures}


FIGURES = _figures()


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two: a summary with the configuration it came from, and the run itself where it was saved."""

    label: str
    command: str
    source: str
    partial: bool
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    run: Run | None = None


def side_of(run: Run, label: str, command: str = "unknown") -> Side:
    """Return a run as something to compare."""
    return Side(
        label=label,
        command=command,
        source=run.source,
        partial=run.partial,
        config=run.config,
        summary=summarize(run).as_dict(),
        run=run,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of both sides; None is unknown. Intervals are of 90 % confidence."""

    figure: Figure
    a: float | None
    b: float | None
    a_interval: Interval | None
    b_interval: Interval | None
    difference: float | None
    difference_interval: Interval | None
    relative: float | None
    relative_interval: Interval | None
    verdict: str | None  # None: the figure has no better or worse
    reason: str | None  # why the verdict is `cannot tell`

    def as_dict(self) -> dict[str, Any]:
        """Return the row as a JSON object; an infinite end of an interval is null."""
        return {
            "name": self.figure.name,
            "unit": self.figure.unit,
            "better": self.figure.better,
            "a": self.a,
            "b": self.b,
            "difference": self.difference,
            "relative": self.relative,
            "a_interval": _pair(self.a_interval),
            "b_interval": _pair(self.b_interval),
            "difference_interval": _pair(self.difference_interval),
            "relative_interval": _pair(self.relative_interval),
            "verdict": self.verdict,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both sides, their figures by name, and what a person must know before believing them."""

    a: Side
    b: Side
    margin: float
    rows: dict[str, Row]
    changed: dict[str, tuple[Any, Any]]  # options that differ
    only_a: dict[str, Any]  # options that one side alone has
    only_b: dict[str, Any]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the body of the JSON document."""
        return {
            "a": _side_dict(self.a),
            "b": _side_dict(self.b),
            "confidence": CONFIDENCE,
            "margin": self.margin,
            "notes": self.notes,
            "changed": {key: {"a": a, "b": b} for key, (a, b) in self.changed.items()},
            "only_a": self.only_a,
            "only_b": self.only_b,
            "figures": [row.as_dict() for row in self.rows.values()],
        }


def compare(a: Side | Run, b: Side | Run, margin: float = MARGIN) -> Comparison:
    """Return the comparison of `b` with `a`: differences are b - a, relative ones of a; `margin` is a share of a.

    Raises `InputError` where a summary has something else in the place of a number.
    """
    a, b = (side_of(each, label) if isinstance(each, Run) else each for each, label in ((a, "A"), (b, "B")))
    noises = [None if side.run is None else RunNoise(side.run) for side in (a, b)]
    values = {figure.name: (_value(a, figure), _value(b, figure)) for figure in FIGURES.values()}
    equal = all(of_a == of_b for of_a, of_b in values.values())
    rows = {}
    for name, (of_a, of_b) in values.items():
        if of_a is not None or of_b is not None:
            figure = FIGURES[name]
            around_a, around_b = (_bounds(noise, figure) for noise in noises)
            rows[name] = _row(figure, of_a, of_b, around_a, around_b, margin, equal=equal)
    keys_a, keys_b = a.config.keys(), b.config.keys()
    return Comparison(
        a=a,
        b=b,
        margin=margin,
        rows=rows,
        changed={
            key: (a.config[key], b.config[key]) for key in a.config if key in keys_b and a.config[key] != b.config[key]
        },
        only_a={key: value for key, value in a.config.items() if key not in keys_b and value is not None},
        only_b={key: value for key, value in b.config.items() if key not in keys_a and value is not None},
        notes=_notes(a, b, rows, equal=equal),
    )


def difference_interval(a: float, b: float, around_a: Interval, around_b: Interval) -> Interval:
    """Return the interval of b - a for independent a and b, each within its own.

    >>> difference_interval(10.0, 12.0, Interval(7.0, 13.0), Interval(8.0, 16.0))
    Interval(low=-3.0, high=7.0)
    """
    difference = b - a
    return Interval(
        difference - math.hypot(b - around_b.low, around_a.high - a),
        difference + math.hypot(around_b.high - b, a - around_a.low),
    )


def relative_interval(a: float, b: float, around_a: Interval, around_b: Interval) -> Interval | None:
    """Return the interval of b / a - 1, its high end infinite where a may be 0; None where that has no meaning.

    >>> relative_interval(10.0, 10.0, Interval(0.0, 10.0), Interval(10.0, 10.0))
    Interval(low=0.0, high=inf)
    """
    if a <= 0 or b <= 0:
        return None
    logs_a, logs_b = (Interval(_log(around.low), _log(around.high)) for around in (around_a, around_b))
    within = difference_interval(_log(a), _log(b), logs_a, logs_b)
    return Interval(_ratio(within.low), _ratio(within.high))


def _pair(interval: Interval | None) -> list[float | None] | None:
    if interval is None:
        return None
    return [end if math.isfinite(end) else None for end in (interval.low, interval.high)]


def _side_dict(side: Side) -> dict[str, Any]:
    return {
        "label": side.label,
        "command": side.command,
        "source": side.source,
        "partial": side.partial,
        "completed": _number(side, ("requests", "completed")),
        "records": side.run is not None,
    }


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _ratio(log_ratio: float) -> float:
    return math.inf if log_ratio > 700 else math.expm1(log_ratio)


def _row(
    figure: Figure,
    a: float | None,
    b: float | None,
    around_a: Interval | NoInterval,
    around_b: Interval | NoInterval,
    margin: float,
    *,
    equal: bool,
) -> Row:
    difference = None if a is None or b is None else b - a
    of_difference = of_ratio = None
    if equal:
        of_difference = of_ratio = Interval(0.0, 0.0)
    elif a is not None and b is not None and isinstance(around_a, Interval) and isinstance(around_b, Interval):
        of_difference = difference_interval(a, b, around_a, around_b)
        of_ratio = relative_interval(a, b, around_a, around_b)
    verdict = None if figure.better is None else _verdict(figure, of_difference, of_ratio, margin)
    reason = None
    if verdict == CANNOT_TELL:
        sides: dict[str, str] = {}
        for side, value, around in (("A", a, around_a), ("B", b, around_b)):
            if isinstance(around, NoInterval):
                why = "has no value" if value is None else around.reason
                sides[why] = f"{sides[why]} and {side}" if why in sides else side
        reason = "; ".join(f"{side}: {why}" for why, side in sides.items())
        reason = reason or f"noise is wider than the margin of {margin * 100:g}%"
    return Row(
        figure=figure,
        a=a,
        b=b,
        a_interval=around_a if isinstance(around_a, Interval) else None,
        b_interval=around_b if isinstance(around_b, Interval) else None,
        difference=difference,
        difference_interval=of_difference,
        relative=difference / a if difference is not None and a else None,
        relative_interval=of_ratio,
        verdict=verdict,
        reason=reason,
    )


def _verdict(figure: Figure, of_difference: Interval | None, of_ratio: Interval | None, margin: float) -> str:
    if of_difference is None:
        return CANNOT_TELL
    if of_ratio is not None and -margin <= of_ratio.low and of_ratio.high <= margin:
        return SAME
    if of_difference.low == of_difference.high == 0.0:
        return SAME
    up = of_difference.low > 0 and (of_ratio is None or of_ratio.low > 0)
    down = of_difference.high < 0 and (of_ratio is None or of_ratio.high < 0)
    if up or down:
        return BETTER if up == (figure.better == "higher") else WORSE
    return CANNOT_TELL


def _bounds(noise: RunNoise | None, figure: Figure) -> Interval | NoInterval:
    if noise is None:
        return NO_RECORDS
    if figure.better is None or figure.name.endswith("_max"):
        return NoInterval("has no interval: a maximum has no noise that one run could tell")
    return noise.interval(figure.name)


def _value(side: Side, figure: Figure) -> float | None:
    if figure.name == FAILED_SHARE:
        counts = [_number(side, ("requests", key)) or 0 for key in ("completed", "failed", "rejected")]
        return sum(counts[1:]) / sum(counts) if sum(counts) else None
    return _number(side, figure.path)


def _number(side: Side, path: tuple[str, str]) -> float | None:
    group = side.summary.get(path[0])
    if group is None:
        return None
    value = group.get(path[1]) if isinstance(group, Mapping) else group
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < 1e300:
        raise InputError(f"{side.label}: {'.'.join(path)} is {shown(value)}, must be a number or null")
    return float(value)


def _notes(a: Side, b: Side, rows: Mapping[str, Row], *, equal: bool) -> list[str]:
    notes = [f"{name} is partial: its run ended early" for name, side in (("A", a), ("B", b)) if side.partial]
    if equal:
        return [*notes, "the runs are equal in every figure, to the last digit"]
    without = [name for name, side in (("A", a), ("B", b)) if side.run is None]
    if without:
        notes.append(
            f"{' and '.join(without)} without per-request records: differences have no intervals; compare saved runs"
        )
    for name in ("prompt_tokens_mean", "output_tokens_mean"):
        row = rows.get(name)
        if row is not None and row.relative is not None and abs(row.relative) > MARGIN:
            notes.append(
                f"the runs did not do the same work: mean {name.removesuffix('_mean').replace('_', ' ')} "
                f"{row.a:,.0f} and {row.b:,.0f}"
            )
    seed = a.config.get("seed")
    alike = a.source == b.source
    if not without and alike and seed is not None and seed == b.config.get("seed"):
        notes.append(f"both have seed {seed}: intervals take the runs as independent, so they are too wide for that")
    return notes
