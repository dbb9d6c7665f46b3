"""Axes: from the values of a picture to places on it, with ticks at round numbers and a unit that fits.

A scale turns a value into a share of the axis, 0 at its beginning and 1 at its end, and never leaves it: what lies
outside is drawn at the edge. Knows no SVG.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from servesim.units import format_si

TICKS = 5
WIDE, TALL = 60.0, 8.0  # largest over the 5th and the 90th of 100 values, from which a logarithmic axis shows more
DECADE = (1, 2, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A mark at `share` of the axis with its label."""

    share: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A scale from `low` to `high` in the values' own unit, and how it is labelled."""

    title: str  # the quantity with its unit
    low: float
    high: float
    log: bool = False
    ticks: tuple[Tick, ...] = ()

    def share(self, value: float) -> float:
        """Return where `value` stands, 0 to 1; whatever is outside stands at the edge."""
        low, high = self.low, self.high
        if self.log:
            if value <= low:
                return 0.0
            value, low, high = math.log(value), math.log(low), math.log(high)
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def value(self, share: float) -> float:
        """Return the value that stands at `share` of the axis."""
        if self.log:
            return math.exp(math.log(self.low) + share * math.log(self.high / self.low))
        return self.low + share * (self.high - self.low)

    def placer(self, size: int) -> Callable[[float], int]:
        """Return what turns a value into a whole number from 0 to `size`, by `share`, at a third of its cost."""
        low, high = self.low, self.high
        if self.log:
            origin, scale, log = math.log(low), size / math.log(high / low), math.log
            return lambda value: 0 if value <= low else size if value >= high else round((log(value) - origin) * scale)
        scale = size / (high - low)
        return lambda value: 0 if value <= low else size if value >= high else round((value - low) * scale)


def linear(
    title: str,
    low: float,
    high: float,
    *,
    divisor: float = 1.0,
    snug: bool = False,
    least_step: float = 0.0,
    ticks: int = TICKS,
) -> Axis:
    """Return a linear axis over [low, high]; unless it is `snug`, it ends at a round number.

    Labels are values / `divisor`: 1000 labels an axis of milliseconds in seconds. `least_step`, before that division,
    is the least distance of two ticks; there are about `ticks`.
    """
    if not high > low:
        high = low + (abs(low) or divisor)
    step = max(nice_step((high - low) / divisor / ticks) * divisor, least_step)
    if not snug:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    values = [number * step for number in range(first, last + 1)]
    marks = tuple(
        Tick(share=(value - low) / (high - low), label=format_tick(value / divisor, step / divisor)) for value in values
    )
    return Axis(title=title, low=low, high=high, ticks=marks)


def logarithmic(title: str, low: float, high: float, *, divisor: float = 1.0) -> Axis:
    """Return a logarithmic axis over [low, high], both above 0, from one round number to another."""
    low, high = _round_down(low / divisor), _round_up(high / divisor)
    if high <= low:
        high = _round_up(low * 1.01)
    decades = math.log10(high / low)
    every = DECADE if decades <= 2.2 else (1,)
    step = 1 if decades <= 7 else math.ceil(decades / 7)
    powers = range(math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9) + 1)
    values = [digit * 10.0**power for power in powers if power % step == 0 for digit in every]
    ticks = tuple(
        Tick(share=math.log(value / low) / math.log(high / low), label=format_tick(value))
        for value in values
        if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)
    )
    return Axis(title=title, low=low * divisor, high=high * divisor, log=True, ticks=ticks)


def axis_of_seconds(what: str, values: Sequence[float], *, low: float = 0.0, log: bool | None = None) -> Axis:
    """Return an axis for durations in seconds, in ms or s as they are long; logarithmic where they spread far.

    `log` decides for the caller.
    """
    ordered = sorted(value for value in values if value > 0)
    if not ordered:
        return linear(f"{what}, ms", low, 0.001, divisor=0.001)
    high = ordered[-1]
    divisor, unit = (1.0, "s") if high >= 2 else (0.001, "ms")
    if spreads(ordered) if log is None else log:
        return logarithmic(f"{what}, {unit} (log)", ordered[0], high, divisor=divisor)
    return linear(f"{what}, {unit}", low, high, divisor=divisor)


def axis_of_time(low: float, high: float, what: str = "time since the start") -> Axis:
    """Return the axis of a run's own time, in ms, s, min or h as it is long, without a margin."""
    span = high - low
    divisor, unit = (3600.0, "h") if span > 3 * 3600 else (60.0, "min") if span > 600 else (1.0, "s")
    if 0 < span < 1:
        divisor, unit = 0.001, "ms"
    return linear(f"{what}, {unit}", low, high, divisor=divisor, snug=True, ticks=9)


def axis_of_counts(title: str, high: float, *, whole: bool = True) -> Axis:
    """Return an axis from 0; of whole things it has no ticks between them."""
    return linear(title, 0.0, max(high, 1.0 if whole else 0.0), least_step=1.0 if whole else 0.0)


def spreads(ordered: Sequence[float]) -> bool:
    """Return whether values above 0, in order, spread so far that a linear axis would flatten most of them."""
    count = len(ordered)
    return ordered[-1] > WIDE * ordered[count // 20] or ordered[-1] > TALL * ordered[count * 9 // 10]


def nice_step(rough: float) -> float:
    """Return the round step (1, 2 or 5 times a power of ten) that is at least about `rough`.

    >>> nice_step(0.23), nice_step(3), nice_step(7)
    (0.2, 5.0, 10.0)
    """
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 and math.isfinite(rough) else 1.0
    factor = next((f for f in (1, 2, 5, 10) if f * power >= rough * 0.85), 10)
    return _clean(factor * power)


def format_tick(value: float, step: float | None = None) -> str:
    """Return the label of a tick: `0`, `0.25`, `40`, `2,500`, `10k`, `1.5M`."""
    value = _clean(value)
    if abs(value) >= 10_000 and (step is None or abs(value) < 2000 * step):  # else four digits would make them alike
        return format_si(value)
    if step is not None:
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        return f"{value:,.{digits}f}"
    return f"{value:,g}"


def _round_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return _clean(max(digit * power for digit in DECADE if digit * power <= value * (1 + 1e-9)))


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return _clean(min(digit * power for digit in (*DECADE, 10) if digit * power >= value * (1 - 1e-9)))


def _clean(value: float) -> float:
    """Return `value` without the dust of binary fractions."""
    return float(f"{value:.12g}")
