"""SVG from primitives: text that stays text, and the marks of a plot in the plot's own coordinates.

A plot's data live in a box of WIDTH x HEIGHT units that is stretched to whatever size the plot has on the page, while
strokes keep their width: the same picture fits a phone and a desk, and its labels never shrink. Coordinates are whole
numbers, (0, 0) the top left. A dot is a stroke of no length with a round end, so that stretching does not bend it.
Nothing here knows what is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as escape_markup

from servesim.console import one_line

WIDTH, HEIGHT = 4000, 1000
LONGEST_TEXT = 400  # characters of a text that somebody else wrote

Point = tuple[int, int]


def escape(text: object) -> str:
    """Return `text` so that it is shown as it is, on one line, wherever markup stands: nothing in it is obeyed.

    >>> escape("<script>")
    '&lt;script&gt;'
    """
    return escape_markup(plain(text), quote=True)


def plain(text: object) -> str:
    """Return `text` on one line, not too long, without characters that are obeyed instead of shown."""
    told = str(text)
    return one_line(told if len(told) <= LONGEST_TEXT else f"{told[: LONGEST_TEXT - 1]}…")


def element(name: str, content: str = "", **attributes: object) -> str:
    """Return an element around `content`, which is markup; attributes are escaped, `_` in their names is a dash.

    `class_` and `for_` are the words that Python keeps for itself; an attribute of None is left out.
    """
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape_markup(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{told}>{content}</{name}>" if content else f"<{name}{told}/>"


def text(content: object, x: str, y: str, **attributes: object) -> str:
    """Return a text at (x, y), each a length or a percentage of the plot."""
    return element("text", escape(content), x=x, y=y, **attributes)


def percent(share: float) -> str:
    """Return a share of 1 as a length of the plot: `37.5%`."""
    return f"{round(100 * share, 3):g}%"


def line_path(points: Sequence[Point]) -> str:
    """Return the path through `points` by straight lines, consecutive equal points once."""
    pieces: list[str] = []
    last: Point | None = None
    for point in points:
        if point != last:
            pieces.append(f"{'L' if pieces else 'M'}{point[0]} {point[1]}")
        last = point
    return "".join(pieces)


def steps_path(points: Iterable[Point]) -> str:
    """Return the path of a value that holds until the next point: across first, then up or down."""
    pieces: list[str] = []
    last: Point | None = None
    for x, y in points:
        if last is None:
            pieces.append(f"M{x} {y}")
        else:
            if x != last[0]:
                pieces.append(f"H{x}")
            if y != last[1]:
                pieces.append(f"V{y}")
        last = (x, y)
    return "".join(pieces)


def area_path(points: Sequence[Point], *, steps: bool = False) -> str:
    """Return the closed path between the line through `points` and the bottom of the plot."""
    if not points:
        return ""
    line = steps_path(points) if steps else line_path(points)
    return f"{line}V{HEIGHT}H{points[0][0]}Z"


def dots_path(points: Iterable[Point]) -> str:
    """Return the path of a dot at every point; the stroke's width and ends give its size and shape."""
    return "".join(f"M{x} {y}h0" for x, y in points)


def stems_path(points: Iterable[Point]) -> str:
    """Return the path of a line from the bottom of the plot to every point."""
    return "".join(f"M{x} {HEIGHT}V{y}" for x, y in points)


def bars_path(spans: Iterable[tuple[int, int, int]]) -> str:
    """Return the path of a horizontal stroke for each (from x, to x, y)."""
    return "".join(f"M{start} {y}H{end}" for start, end, y in spans)
