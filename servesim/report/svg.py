"""SVG from primitives: text that stays text, the marks of a plot in the plot's own coordinates, and how they look.

A plot's data live in a box of WIDTH x HEIGHT units that is stretched to whatever size the plot has on the page, while
strokes keep their width: the same picture fits a phone and a desk, and its labels never shrink. Coordinates are whole
numbers, (0, 0) the top left. A dot is a stroke of no length with a round end, so that stretching does not bend it.
Nothing here knows what is drawn.

Colours are those of light and of dark pages. Runs differ by dash pattern, phases by thickness and dash, kinds of points
by shape and size: a grey print keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as escape_markup

from servesim.console import one_line

_COLOURS = """
:root{--page:#fff;--ground:#fbfbfc;--ink:#1b1f24;--soft:#59626d;--grid:#e3e6ea;--frame:#b9c0c8;--s0:#0a5ea8;--s1:#c2410c;
--s2:#15803d;--s3:#7e22ce;--limit:#b00020;--light:#9aa5b1;--mid:#4f8fc4;--good:#15803d;--bad:#b00020;--tint:#f3f5f7}
@media (prefers-color-scheme:dark){:root{--page:#14171b;--ground:#181c21;--ink:#e6e9ed;--soft:#a3adb8;--grid:#2a3037;
--frame:#48515b;--s0:#62b0f5;--s1:#ff9a5c;--s2:#5cd68a;--s3:#c99bff;--limit:#ff7a85;--light:#66717d;--mid:#4f8fc4;
--good:#5cd68a;--bad:#ff7a85;--tint:#1e2329}}
"""

_MARKS = """
text{fill:var(--ink);font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
.tick,.title{fill:var(--soft);font-size:11.5px}.note{font-size:11.5px;paint-order:stroke;stroke:var(--ground);
stroke-width:3px;stroke-linejoin:round}.title{font-weight:600}
.ground{fill:var(--ground)}.frame{fill:none;stroke:var(--frame)}.grid{stroke:var(--grid)}
.limit{stroke:var(--limit);stroke-width:1.5;stroke-dasharray:10 4}
.guide{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 3}
.marks{overflow:visible}
path{fill:none;vector-effect:non-scaling-stroke;stroke-linejoin:round}
.s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}
.line{stroke:var(--c);stroke-width:1.7}
.line.p95{stroke:var(--ink);stroke-width:2}
.line.s1{stroke-dasharray:7 3}.line.s2{stroke-dasharray:2 2.5}.line.s3{stroke-dasharray:10 3 2 3}
.band{stroke:var(--c);stroke-width:1;stroke-opacity:.3}
.area{fill:var(--c);fill-opacity:.16;stroke:none}
.dot{stroke:var(--c);stroke-width:3.4;stroke-linecap:round}
.square{stroke:var(--c);stroke-width:6;stroke-linecap:square}
.square.prefill{stroke-width:3.6}
.dot.small{stroke-width:2}.dot.s1,.dot.s3{stroke-linecap:square;stroke-width:3}
.dot.big{stroke-width:8}.dot.big.s1{stroke-width:7}
.knee{stroke:var(--limit);stroke-width:15;stroke-linecap:square}
.stem{stroke:var(--c);stroke-width:1.5}
.roof{stroke:var(--ink);stroke-width:2}.roof.reached{stroke-width:1.5;stroke-dasharray:6 4}
.prefill{--c:var(--s1)}.preempted{--c:var(--limit)}.failed{--c:var(--limit)}
.bar.queue{stroke:var(--light);stroke-width:2}
.bar.prefill{stroke:var(--s1);stroke-width:8}
.bar.link{stroke:var(--light);stroke-width:3;stroke-dasharray:1 3}
.bar.transfer{stroke:var(--s2);stroke-width:5;stroke-dasharray:6 2}
.bar.decode{stroke:var(--mid);stroke-width:5}
.bar.preempted{stroke:var(--limit);stroke-width:3;stroke-dasharray:2 2}
.bar.recompute{stroke:var(--s3);stroke-width:8;stroke-dasharray:3 1}
"""

PICTURE_STYLE = (
    _COLOURS
    + _MARKS
    + """
.page{fill:var(--page)}.heading{font-size:17px;font-weight:650}.caption{fill:var(--soft)}
"""
)

PAGE_STYLE = (
    _COLOURS
    + _MARKS
    + """
*{box-sizing:border-box}
html{background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;
color-scheme:light dark;-webkit-text-size-adjust:100%}
body{max-width:1060px;margin:0 auto;padding:20px 16px 60px}
h1{font-size:24px;line-height:1.25;margin:0 0 2px;overflow-wrap:anywhere}h2{font-size:18px;margin:34px 0 2px}
h3{font-size:15px;margin:18px 0 2px}
p,figcaption{margin:2px 0 6px;color:var(--soft);max-width:80ch;overflow-wrap:anywhere}
figure{margin:0}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 18px;margin:4px 0;padding:0;font-size:13px}
.legend li{display:flex;align-items:center;gap:7px;overflow-wrap:anywhere;min-width:0}
.swatch{flex:none;overflow:visible}
.panels{display:grid;grid-template-columns:minmax(0,1fr);column-gap:20px}
.panel{padding:26px 18px 42px 58px;min-width:0}.panel.stacked{padding-bottom:20px}
.panel>svg{display:block;overflow:visible}
@media (min-width:760px){.columns2{grid-template-columns:repeat(2,minmax(0,1fr))}}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums;margin:4px 0 10px}
th,td{padding:3px 10px;text-align:right;border-bottom:1px solid var(--grid);vertical-align:top}
th{font-weight:600;color:var(--soft)}th:first-child,td:first-child,.words td,.words th{text-align:left}
.words td{overflow-wrap:anywhere}tr.knee td{font-weight:700;background:var(--tint)}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(148px,1fr));gap:8px;margin:10px 0 14px;padding:0}
.figures div{background:var(--tint);border-radius:6px;padding:7px 10px}
.figures dt{font-size:12.5px;color:var(--soft)}
.figures dd{margin:0;font-size:17px;font-weight:600;overflow-wrap:anywhere}
.figures dd small{font-size:12px;font-weight:400;color:var(--soft);display:block}
.said{border-left:4px solid var(--frame);background:var(--tint);padding:5px 10px;margin:6px 0;overflow-wrap:anywhere}
.said.bad{border-color:var(--bad)}.said b{margin-right:6px}
.met{color:var(--good);font-weight:600}.missed{color:var(--bad);font-weight:600}
details{margin:10px 0}summary{cursor:pointer;color:var(--soft)}
code,pre{font:12.5px/1.45 ui-monospace,"SF Mono",Menlo,"DejaVu Sans Mono",monospace}
pre{overflow-x:auto;background:var(--tint);padding:8px 10px;border-radius:6px}
footer{margin-top:40px;font-size:13px;color:var(--soft)}
@media (max-width:559px){.other{display:none}.panel{padding-left:54px;padding-right:12px}body{padding:14px 10px 40px}
table{font-size:12.5px}.wide{display:none}th,td{padding:3px 5px}}
@media print{body{max-width:none}figure{break-inside:avoid}details{display:none}}
"""
)


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
    words = str(text)
    return one_line(words if len(words) <= LONGEST_TEXT else f"{words[: LONGEST_TEXT - 1]}…")


def element(name: str, content: str = "", **attributes: object) -> str:
    """Return an element around `content`, which is markup; attributes are escaped, `_` in their names is a dash.

    `class_` and `for_` are the words that Python keeps for itself; an attribute of None is left out.
    """
    text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape_markup(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{text}>{content}</{name}>" if content else f"<{name}{text}/>"


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
