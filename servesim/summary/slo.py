"""Service level objectives: a limit and a share of the requests that must keep it.

`ttft_p95=500ms` asks that 95 % of the offered requests see their first token within 500 ms; without a percentile,
`e2e=20s` asks it of every request. A request that failed, was rejected or is unfinished is infinitely late for every
objective. One that completed but has no such latency (no TPOT with a single token) is not asked.

Of pooled gaps (`itl`), a request that did not complete counts as many infinite ones as it asked for. Goodput asks each
request about its own latencies: the limit, whatever the percentile; for `itl_p99` the 99th percentile of its own gaps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from servesim.errors import InputError
from servesim.stats import Sample, nearest_rank
from servesim.summary.latency import METRICS
from servesim.units import parse_duration, shown, suggest

_FORM = re.compile(r"([a-z0-9_]+?)(?:_(p[0-9.]*|max))?", re.ASCII)
_PERCENTILE = re.compile(r"p(?:([0-9]{1,2}(?:\.[0-9]{1,4})?)|99([0-9]{1,4}))", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """At least `percentile` % of the offered requests keep `metric` within `limit_s`."""

    metric: str
    percentile: float
    limit_s: float
    class_name: str | None = None  # asked of the requests of this class alone

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise suggest("slo metric", self.metric, METRICS)
        if not 0 < self.percentile <= 100:
            raise InputError(f"slo percentile is {self.percentile}, must be above 0 and at most 100")
        if not 0 < self.limit_s < float("inf"):
            raise InputError(f"slo limit is {self.limit_s}, must be a time above 0")

    def __str__(self) -> str:
        return f"{self.prefix}{self.name}<={self.limit_s * 1000:g}ms"

    @property
    def prefix(self) -> str:
        """Return `chat:` where the objective is that of class chat."""
        return "" if self.class_name is None else f"{self.class_name}:"

    @property
    def name(self) -> str:
        """Return `ttft_p95`, or `ttft_max` where every request must keep the limit."""
        return f"{self.metric}_max" if self.percentile == 100 else f"{self.metric}_p{self.percentile:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SloResult:
    """An objective, and how it was kept; `value_ms` is None where it is infinite or unknown, `met` where unknown."""

    metric: str
    percentile: float
    limit_ms: float
    value_ms: Annotated[float | None, "null where it is infinite or unknown"]
    met: bool | None
    class_name: Annotated[str | None, "the class of requests that it is asked of"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Requests that kept every limit."""

    requests_per_s: Annotated[float | None, "requests within every limit"]
    fraction: Annotated[float | None, "of the offered ones"]


def parse_slo(text: str) -> Slo:
    """Return the objective in `ttft_p95=500ms`, `itl_p99.9=80ms` (also `itl_p999`) or `e2e=20s` (every request);
    `chat:ttft_p95=500ms` is asked of class chat.

    Raises `InputError` for an unknown metric, a percentile that is none, or a limit without its unit.

    >>> parse_slo("ttft_p95=500ms")
    Slo(metric='ttft', percentile=95, limit_s=0.5, class_name=None)
    """
    left, equals, limit = text.strip().rpartition("=")
    class_name, colon, left = left.rpartition(":")
    form = _FORM.fullmatch(left.strip().lower())
    if not equals or form is None:
        raise InputError(f"slo is {shown(text)}, must be a limit on a percentile such as ttft_p95=500ms")
    metric, share = form.groups()
    if metric not in METRICS:
        raise suggest("slo metric", metric, METRICS)
    limit_s = parse_duration(limit.strip(), f"limit of slo {left.strip()}", positive=True)
    name = class_name.strip() if colon else None
    if name == "":
        raise InputError(f"slo is {shown(text)}, a class must have a name before its colon")
    return Slo(metric=metric, percentile=_percentile(share, text), limit_s=limit_s, class_name=name)


def parse_slos(texts: Iterable[str]) -> list[Slo]:
    """Return the objectives of all `texts`, each one objective or a comma list; the same one twice counts once."""
    return list(dict.fromkeys(parse_slo(part) for text in texts for part in text.split(",")))


def judge(slo: Slo, sample: Sample, infinite: int) -> SloResult:
    """Return how `slo` was kept by `sample` (seconds) beside `infinite` values that are later than any limit."""
    value_s = None
    met: bool | None = None
    if sample.count + infinite:
        rank = nearest_rank(slo.percentile, sample.count + infinite)
        value_s = sample.at(rank) if rank <= sample.count else None
        met = value_s is not None and value_s <= slo.limit_s
    return SloResult(
        metric=slo.metric,
        percentile=slo.percentile,
        limit_ms=slo.limit_s * 1000,
        value_ms=None if value_s is None else value_s * 1000,
        met=met,
        class_name=slo.class_name,
    )


def _percentile(share: str | None, text: str) -> float:
    if share in (None, "max", "p100"):
        return 100
    match = _PERCENTILE.fullmatch(share or "")
    percentile = float(match[1] or f"99.{match[2]}") if match else 0.0
    if not percentile:
        raise InputError(f"slo is {shown(text)}, its percentile must be one such as p50, p95 or p99.9")
    return int(percentile) if percentile.is_integer() else percentile
