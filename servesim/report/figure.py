"""A figure: panels on their axes with a legend and a caption, and the two ways to show it: in a page, or as one SVG.

In a page every panel is an SVG as wide as its place, with labels in the page's own letters. As a picture of its own the
panels stand at fixed places. Both show the same marks. What the marks mean is the business of the modules that draw.

An axis turns a value into a share of its length, 0 at its beginning and 1 at its end, and never leaves it: what lies
outside is drawn at the edge. Its ticks are at round numbers, in a unit that fits.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from servesim.report.svg import HEIGHT, PICTURE_STYLE, WIDTH, Point, element, escape, percent, plain, text
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


LEFT, RIGHT, TOP, BOTTOM, BOTTOM_TITLED = 58, 18, 26, 20, 42  # pixels around a plot: labels of its axes
PICTURE_WIDTH = 960
CAPTION_COLUMNS = 140
LEFT_FROM = 0.55  # of a plot: where the label of an upright stands left of it, so that a phone has room for it


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a legend: the classes of a mark, how it is shown, and what it is."""

    classes: str
    swatch: str  # "line", "area", "dot", "square", "stem" or "bar"
    label: str


@dataclass(slots=True)
class Panel:
    """One plot: its axes, and the marks and notes that were put on it."""

    x: Axis
    y: Axis
    height_px: int = 120
    titled: bool = True  # whether the x axis tells its quantity; of stacked panels only the last one does
    rows: bool = False  # y ticks are names of rows: no grid line, labels at the middle of each
    marks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def point(self, x: float, y: float) -> Point:
        """Return the place of a value in the plot's coordinates."""
        return round(self.x.share(x) * WIDTH), HEIGHT - round(self.y.share(y) * HEIGHT)

    def mark(self, path: str, classes: str) -> None:
        """Put a path on the plot, if it is not empty."""
        if path:
            self.marks.append(element("path", d=path, class_=classes))

    def level(self, value: float, label: str, classes: str = "limit") -> None:
        """Draw a horizontal line at `value` with its label above, if it is on the axis."""
        if self.y.low <= value <= self.y.high:
            y = percent(1 - self.y.share(value))
            above = "-.45em" if self.y.share(value) < 0.85 else "1.15em"
            self.notes.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_=classes))
            self.notes.append(text(label, "100%", y, dx="-4", dy=above, text_anchor="end", class_="note"))

    def upright(self, value: float, label: str, classes: str = "limit", *, row: int = 0, low: bool = False) -> None:
        """Draw a vertical line at `value`, if it is on the axis, with its label at the top, or at the bottom.

        `row` counts lines of labels from there, so that labels of near lines do not meet.
        """
        if self.x.low <= value <= self.x.high:
            x, left = percent(self.x.share(value)), self.x.share(value) > LEFT_FROM
            self.notes.append(element("line", x1=x, x2=x, y1="0", y2="100%", class_=classes))
            y, down = ("100%", -0.6 - 1.25 * row) if low else ("0", 1.1 + 1.25 * row)
            self._note(label, x, y, down, left=left)

    def write(self, label: str, x: float, y: float, *, left: bool = False) -> None:
        """Write `label` above a place, to its right or to its left."""
        self._note(label, percent(self.x.share(x)), percent(1 - self.y.share(y)), -0.6, left=left)

    def _note(self, label: str, x: str, y: str, down_em: float, *, left: bool) -> None:
        side = {"dx": "-9", "text_anchor": "end"} if left else {"dx": "9", "text_anchor": "start"}
        self.notes.append(text(label, x, y, dy=f"{down_em:g}em", class_="note", **side))

    @property
    def outer_height_px(self) -> int:
        return TOP + self.height_px + (BOTTOM_TITLED if self.titled else BOTTOM)

    def body(self) -> str:
        """Return the content of the plot's SVG, in percentages of its size, labels outside it."""
        parts = [element("rect", width="100%", height="100%", class_="ground")]
        for number, tick in enumerate(self.x.ticks):
            x = percent(tick.share)
            parts.append(element("line", x1=x, x2=x, y1="0", y2="100%", class_="grid"))
            other = " other" if number % 2 else ""
            parts.append(text(tick.label, x, "100%", dy="1.35em", text_anchor="middle", class_=f"tick{other}"))
        for tick in self.y.ticks:
            y = percent(1 - tick.share)
            if not self.rows:
                parts.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
            parts.append(text(tick.label, "0", y, dx="-7", dy=".33em", text_anchor="end", class_="tick"))
        box = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "preserveAspectRatio": "none"}
        if self.marks:
            parts.append(element("svg", "".join(self.marks), **box, width="100%", height="100%", class_="marks"))
        parts.append(element("rect", width="100%", height="100%", class_="frame"))
        parts += self.notes
        parts.append(text(self.y.title, "0", "0", dx="-50", dy="-.7em", class_="title"))
        if self.titled:
            parts.append(text(self.x.title, "100%", "100%", dy="2.75em", text_anchor="end", class_="title"))
        return "".join(parts)


@dataclass(slots=True)
class Figure:
    """Panels that tell one thing."""

    name: str  # by which it can be asked for
    title: str
    caption: str
    panels: list[Panel]
    keys: list[Key] = field(default_factory=list)
    columns: int = 1

    def html(self) -> str:
        """Return the figure as a part of a page."""
        panels = "".join(self._panel_html(panel) for panel in self.panels)
        keys = "".join(element("li", _swatch(key) + escape(key.label)) for key in self.keys)
        return element(
            "figure",
            element("h2", escape(self.title))
            + element("figcaption", escape(self.caption))
            + (element("ul", keys, class_="legend") if keys else "")
            + element("div", panels, class_=f"panels columns{self.columns}"),
            id=self.name,
        )

    def _panel_html(self, panel: Panel) -> str:
        label = f"{self.title}: {panel.y.title} against {panel.x.title}"
        plot = element("svg", panel.body(), width="100%", height=panel.height_px, role="img", aria_label=plain(label))
        return element("div", plot, class_="panel" if panel.titled else "panel stacked")

    def svg(self, width: int = PICTURE_WIDTH, top: int = 0) -> tuple[str, int]:
        """Return the figure as SVG content from `top` downward, and its height in pixels."""
        y = top + 26
        parts = [text(self.title, "12", f"{y}", class_="heading")]
        for line in textwrap.wrap(self.caption, CAPTION_COLUMNS):
            y += 17
            parts.append(text(line, "12", f"{y}", class_="caption"))
        x = 12
        if self.keys:
            y += 24
        for key in self.keys:
            room = 34 + 7 * len(key.label)
            if x + room > width and x > 12:
                x, y = 12, y + 20
            parts.append(element("g", _swatch(key), transform=f"translate({x} {y - 11})"))
            parts.append(text(key.label, f"{x + 30}", f"{y}", class_="caption"))
            x += room + 14
        y += 14
        outer = width // self.columns
        for start in range(0, len(self.panels), self.columns):
            row = self.panels[start : start + self.columns]
            for column, panel in enumerate(row):
                place = {"x": column * outer + LEFT, "y": y + TOP, "width": outer - LEFT - RIGHT}
                parts.append(
                    element("svg", panel.body(), **place, height=panel.height_px, overflow="visible", class_="plot")
                )
            y += max(panel.outer_height_px for panel in row)
        return "".join(parts), y + 12 - top


def picture(figures: Sequence[Figure], title: str, width: int = PICTURE_WIDTH) -> str:
    """Return one SVG document with all `figures`, one below the other."""
    parts, top = [], 0
    for figure in figures:
        content, height = figure.svg(width, top)
        parts.append(content)
        top += height
    size = {"width": width, "height": max(top, 40), "viewBox": f"0 0 {width} {max(top, 40)}"}
    return (
        element(
            "svg",
            element("title", escape(title))
            + element("style", PICTURE_STYLE)
            + element("rect", width="100%", height="100%", class_="page")
            + "".join(parts),
            xmlns="http://www.w3.org/2000/svg",
            **size,
        )
        + "\n"
    )


def _swatch(key: Key) -> str:
    """Return a small picture of a mark for a legend, 24 x 14 pixels."""
    path = {
        "line": "M1 7H23",
        "area": "M1 13V7H23V13Z",
        "dot": "M12 7h0",
        "square": "M12 7h0",
        "stem": "M12 14V4",
        "bar": "M1 7H23",
    }[key.swatch]
    mark = element("path", d=path, class_=key.classes)
    return element("svg", mark, width=24, height=14, viewBox="0 0 24 14", class_="swatch", aria_hidden="true")
