"""The live metrics as text: a block that is drawn again in place on a terminal, one line a sample anywhere else."""

from __future__ import annotations

import time
from collections import deque

from servesim.live.meter import CHARTS, LiveFigures, shown
from servesim.live.watcher import LiveSample
from servesim.report.terminal import sparkline

LABEL, VALUES, MIN_SPARK = 22, 34, 8
MAX_COLUMNS = 100

COLUMNS: dict[str, tuple[str, str]] = {
    "output_tokens_per_s": ("tok/s", "number"),
    "ttft_mean_s": ("ttft", "s"),
    "ttft_p95_s": ("p95", "s"),
    "tpot_mean_s": ("tpot", "s"),
    "tpot_p95_s": ("p95", "s"),
    "running": ("running", "requests"),
    "waiting": ("waiting", "requests"),
    "kv_usage": ("kv", "share"),
    "prefix_hit_rate": ("hits", "share"),
    "completed_per_s": ("done/s", "number"),
    "preempted_per_s": ("preempt/s", "number"),
}
"""What a plain line holds: the heading and the unit of each figure."""

CELL = 10


class TerminalView:
    """Remembers what was seen and draws it, one row a chart."""

    def __init__(self, title: str, *, ascii_only: bool = False) -> None:
        self._title = title
        self._ascii_only = ascii_only
        self._samples: deque[LiveSample] = deque(maxlen=MAX_COLUMNS)
        self._drawn = 0  # lines on the terminal

    def block(self, sample: LiveSample, columns: int = 100) -> str:
        """Return the lines that show everything up to `sample`, within `columns`."""
        self._samples.append(sample)
        wide = min(columns, MAX_COLUMNS) - 1
        spark = max(MIN_SPARK, wide - LABEL - VALUES)
        lines = [f"{_clock(sample.at_s)}  {self._title}"[:wide]]
        for chart in CHARTS.values():
            names = [name for name in chart.lines if self._known(name)]
            if not names:
                continue
            values = [getattr(each.figures, names[-1 if chart.unit == "requests" else 0]) for each in self._samples]
            texts = [f"{chart.lines[name]} {shown(getattr(sample.figures, name), chart.unit)}" for name in names]
            picture = sparkline(
                [value or 0.0 for value in values[-spark:]],
                1.0 if chart.unit == "share" else None,
                ascii_only=self._ascii_only,
            )
            lines.append(f"{chart.title:<{LABEL}}{picture:<{spark}}  {'  '.join(texts)}"[:wide].rstrip())
        lines.append((f"no answer: {sample.error}" if sample.error else "Ctrl-C to end")[:wide])
        return "".join(f"{line}\n" for line in lines)

    def redraw(self, sample: LiveSample, columns: int) -> str:
        """Return what makes a terminal show `sample` where the last one was."""
        block = self.block(sample, columns)
        up = f"\x1b[{self._drawn}A\x1b[J" if self._drawn else ""
        self._drawn = block.count("\n")
        return up + block

    def _known(self, name: str) -> bool:
        return any(getattr(each.figures, name) is not None for each in self._samples)


def heading() -> str:
    """Return the heading of plain lines."""
    return f"{'time':<{CELL}}" + "".join(f"{title:>{CELL}}" for title, _ in COLUMNS.values()) + "\n"


def line(sample: LiveSample) -> str:
    """Return one sample as one line."""
    if sample.error:
        return f"{_clock(sample.at_s):<{CELL}}  no answer: {sample.error}\n"
    cells = "".join(f"{_cell(sample.figures, name, unit):>{CELL}}" for name, (_, unit) in COLUMNS.items())
    return f"{_clock(sample.at_s):<{CELL}}{cells}\n"


def _cell(figures: LiveFigures, name: str, unit: str) -> str:
    value = getattr(figures, name)
    if unit != "number":
        return shown(value, unit)
    return "-" if value is None else f"{value:,.1f}"


def _clock(at_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_s))
