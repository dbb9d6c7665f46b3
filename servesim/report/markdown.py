"""The tables of a report as Markdown, for a ticket or a chat: text from elsewhere stays text there too."""

from __future__ import annotations

import re
from collections.abc import Iterator

from servesim.report.load import failures_of
from servesim.report.material import Material
from servesim.report.svg import plain
from servesim.report.tables import Table, engine_table, grid_table, latency_table, outcome_table
from servesim.report.text import fleet_lines, slo_text

_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+!|~$&@:])")


def markdown(material: Material) -> Iterator[str]:
    """Yield the report in pieces, in order."""
    yield f"# {escape_markdown(material.title)}\n"
    yield from (f"\n> {escape_markdown(note)}\n" for note in material.notes)
    runs = material.runs
    if runs:
        tables = [outcome_table(runs), latency_table(runs), engine_table(runs)]
        yield from (_table(table) for table in tables if table is not None)
    for named in runs:
        who = f"{named.name}: " if len(runs) > 1 else ""
        told = [f"objective {slo_text(result)}" for result in named.summary.slo or ()]
        told += [f"warning: {text}" for text in named.summary.warnings]
        told += [f"law broken: {text}" for text in named.summary.violations]
        told += [
            f"{count:,} {kind}" + (f": {message}" if message else "")
            for (kind, message), count in failures_of(named.run)[:10]
        ]
        if lines := fleet_lines(named.summary):
            yield f"\n**{escape_markdown(who)}More of the run**\n\n" + "".join(f"    {plain(line)}\n" for line in lines)
        if told:
            yield "\n" + "".join(f"- {escape_markdown(who + line)}\n" for line in told)
    yield from (_table(grid_table(grid)) for grid in material.grids)


def escape_markdown(text: object) -> str:
    r"""Return `text` so that Markdown shows it as it is, in a table too.

    >>> print(escape_markdown("a|b *c*"))
    a\|b \*c\*
    """
    return _SPECIAL.sub(r"\\\1", plain(text))


def _table(table: Table) -> str:
    lines = [
        "",
        f"**{escape_markdown(table.title)}**" if table.title else "",
        "",
        "| " + " | ".join(map(escape_markdown, table.columns)) + " |",
        "| --- |" + " ---: |" * (len(table.columns) - 1),
    ]
    for number, row in enumerate(table.rows):
        cells = [escape_markdown(cell) for cell in row]
        if number == table.marked:
            cells = [f"**{cell}**" for cell in cells]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
