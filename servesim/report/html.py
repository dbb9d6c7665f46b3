"""The page that an engineer attaches to an incident: one file, nothing loaded, nothing to run.

The summary first, in figures and in tables, then what went wrong in its own words, then the pictures, then the
configuration from which it can be run again. Every text that came from a server, a trace or a file is shown as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from servesim import __version__
from servesim.report.figure import Figure
from servesim.report.input import Grid, ReportInput, ReportRun
from servesim.report.loadgen import failures_of
from servesim.report.svg import PAGE_STYLE, element, escape
from servesim.report.tables import Table, engine_table, grid_table, key_figures, latency_table, outcome_table
from servesim.report.text import fleet_lines, slo_text
from servesim.runs.as_json import finite
from servesim.summary.summary import Summary

FAILURES = 20  # kinds of failure that are listed, the most frequent


def page(report: ReportInput, figures: Sequence[Figure]) -> Iterator[str]:
    """Yield the page in pieces, in order."""
    yield "<!doctype html>\n"
    yield '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
    yield '<meta name="generator" content="servesim">\n'
    yield f"<title>{escape(report.title)}</title>\n<style>{PAGE_STYLE}</style>\n</head>\n<body>\n"
    yield element("h1", escape(report.title)) + "\n"
    yield element("p", escape(_subtitle(report))) + "\n"
    yield from (_said(note) for note in report.notes)
    yield from _summaries(report)
    for figure in figures:
        yield figure.html() + "\n"
    yield from _configurations(report)
    yield element("footer", f"servesim {escape(__version__)}. Percentiles are nearest rank; unknown is -.") + "\n"
    yield "</body>\n</html>\n"


def table_html(table: Table, classes: str = "") -> str:
    """Return a table that scrolls by itself where the page is too narrow for it."""
    head = element("tr", "".join(_cell("th", cell, place, table) for place, cell in enumerate(table.columns)))
    rows = "".join(
        element(
            "tr",
            "".join(_cell("td", cell, place, table) for place, cell in enumerate(row)),
            class_="knee" if number == table.marked else None,
        )
        for number, row in enumerate(table.rows)
    )
    title = element("h3", escape(table.title)) if table.title else ""
    body = element("table", element("thead", head) + element("tbody", rows), class_=classes or None)
    return title + element("div", body, class_="scroll", tabindex="0", role="region", aria_label="table") + "\n"


def _cell(name: str, content: str, place: int, table: Table) -> str:
    wide = "wide" if place in table.wide else None
    return element(name, escape(content) or " ", class_=wide, scope="col" if name == "th" else None)


def _subtitle(report: ReportInput) -> str:
    parts = []
    for named in report.runs:
        parts.append(f"{named.name}: {_whose(named)}" if len(report.runs) > 1 else _whose(named))
    parts += [f"{grid.name}: {grid.command}, {len(grid.rows):,} rows" for grid in report.grids]
    return "; ".join(parts)


def _whose(named: ReportRun) -> str:
    config = named.run.config
    parts = [named.run.source, *(str(config[key]) for key in ("model", "hardware", "url") if config.get(key))]
    return ", ".join(parts)


def _said(text: str, label: str = "", *, bad: bool = False) -> str:
    strong = element("b", escape(label)) if label else ""
    return element("p", strong + escape(text), class_="said bad" if bad else "said") + "\n"


def _summaries(report: ReportInput) -> Iterator[str]:
    runs = report.runs
    if len(runs) == 1:
        cells = "".join(_key_figure(*each) for each in key_figures(runs[0].summary))
        yield element("dl", cells, class_="figures") + "\n"
    for named in runs:
        yield from _verdicts(named, several=len(runs) > 1)
    if runs:
        yield table_html(outcome_table(runs))
        yield table_html(latency_table(runs))
        if (engine := engine_table(runs)) is not None:
            yield table_html(engine)
    for named in runs:
        if lines := fleet_lines(named.summary):
            title = f"More of {named.name}" if len(runs) > 1 else "More of the run"
            yield element("h3", escape(title)) + element("pre", "\n".join(map(escape, lines))) + "\n"
        yield from _failures(named, several=len(runs) > 1)
    for grid in report.grids:
        yield table_html(grid_table(grid))


def _key_figure(label: str, value: str, beside: str) -> str:
    text = element("dd", escape(value) + element("small", escape(beside)))
    return element("div", element("dt", escape(label)) + text)


def _verdicts(named: ReportRun, *, several: bool) -> Iterator[str]:
    """Yield the objectives with how they were kept, warnings, broken laws."""
    summary: Summary = named.summary
    who = f"{named.name}: " if several else ""
    for result in summary.slo or ():
        verdict = {True: "met", False: "missed", None: ""}[result.met]
        words = element("span", escape(f"{who}{slo_text(result)}"), class_=verdict or None)
        yield element("p", element("b", "objective") + words, class_="said" if result.met else "said bad") + "\n"
    if summary.partial:
        yield _said(f"{who}the run ended early", "partial", bad=True)
    for text in summary.warnings:
        yield _said(f"{who}{text}", "warning")
    for text in summary.violations:
        yield _said(f"{who}{text}", "law broken", bad=True)


def _failures(named: ReportRun, *, several: bool) -> Iterator[str]:
    failures = failures_of(named.run)
    if not failures:
        return
    rows: list[Sequence[str]] = [(f"{each.count:,}", each.kind, each.message or "-") for each in failures[:FAILURES]]
    if len(failures) > FAILURES:
        rows.append((f"{sum(each.count for each in failures[FAILURES:]):,}", "others", "-"))
    who = f" of {named.name}" if several else ""
    yield table_html(
        Table(title=f"Failed and rejected requests{who}", columns=("requests", "kind", "message"), rows=rows), "words"
    )


def _configurations(report: ReportInput) -> Iterable[str]:
    owners: list[ReportRun | Grid] = [*report.runs, *report.grids]
    for owner in owners:
        config = owner.run.config if isinstance(owner, ReportRun) else owner.config
        text = json.dumps(finite(dict(config)), indent=1, ensure_ascii=True)
        lines = "\n".join(escape(line) for line in text.splitlines())
        summary = f"Configuration of {owner.name} ({owner.command}, servesim {owner.version})"
        yield element("details", element("summary", escape(summary)) + element("pre", lines)) + "\n"
