"""What is shown live: one set of figures for every source, and the charts in which page and terminal draw them.

Rates and latencies are those of the last few seconds, gauges those of the moment. What a source does not tell is None.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

WINDOW_S = 5.0  # over which rates and latencies are taken


@dataclass(slots=True, frozen=True, kw_only=True)
class Figures:
    """One source at one moment. A p95 of a scraped histogram is the upper bound of the bucket in which it lies."""

    output_tokens_per_s: float | None = None
    ttft_mean_s: float | None = None
    ttft_p95_s: float | None = None
    tpot_mean_s: float | None = None
    tpot_p95_s: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None  # share of the blocks
    prefix_hit_rate: float | None = None
    completed_per_s: float | None = None
    preempted_per_s: float | None = None
    failed_per_s: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        """Return the figures by name, rounded to what a chart can show."""
        return {name: None if value is None else float(f"{value:.5g}") for name, value in asdict(self).items()}


@dataclass(slots=True, frozen=True, kw_only=True)
class Chart:
    """Figures of one unit over time. `unit`: tok/s, s, share, requests or /s."""

    title: str
    unit: str
    lines: dict[str, str]  # a field of `Figures` -> what the line is called

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


CHARTS: dict[str, Chart] = {
    "throughput": Chart(title="Throughput", unit="tok/s", lines={"output_tokens_per_s": "output"}),
    "ttft": Chart(title="Time to first token", unit="s", lines={"ttft_mean_s": "mean", "ttft_p95_s": "p95"}),
    "tpot": Chart(title="Time per output token", unit="s", lines={"tpot_mean_s": "mean", "tpot_p95_s": "p95"}),
    "queue": Chart(title="Requests", unit="requests", lines={"running": "running", "waiting": "waiting"}),
    "cache": Chart(title="KV cache", unit="share", lines={"kv_usage": "in use", "prefix_hit_rate": "prefix hits"}),
    "ended": Chart(
        title="Events",
        unit="/s",
        lines={"completed_per_s": "done", "preempted_per_s": "preempted", "failed_per_s": "failed"},
    ),
}


def shown(value: float | None, unit: str) -> str:
    """Return a figure as a person reads it.

    >>> shown(0.0312, "s"), shown(1234.5, "tok/s"), shown(0.5, "share"), shown(None, "s")
    ('31.2 ms', '1,234 tok/s', '50%', '-')
    """
    if value is None:
        return "-"
    if unit == "s":
        return f"{value * 1e3:.3g} ms" if value < 0.9995 else f"{value:,.2f} s" if value < 100 else f"{value:,.0f} s"
    if unit == "share":
        return f"{value * 100:.0f}%"
    if unit == "requests":
        return f"{value:,.0f}"
    return f"{value:,.{0 if value >= 100 or not value else 1 if value >= 1 else 2}f}{'' if unit == '/s' else ' '}{unit}"
