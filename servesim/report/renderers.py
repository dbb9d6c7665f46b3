"""Every form that a report can take, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from servesim.errors import InputError
from servesim.report.charts import draw
from servesim.report.chrome_trace import chrome_trace
from servesim.report.csv import to_csv
from servesim.report.documents import document, to_json
from servesim.report.figure import picture
from servesim.report.html import page
from servesim.report.input import ReportInput
from servesim.report.prometheus import metric_page, openmetrics_page
from servesim.report.tables import markdown
from servesim.report.vllm_bench import vllm_bench


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderer:
    """One form: `render` yields its text in pieces, given the report and the names of the figures it may show."""

    render: Callable[[ReportInput, Sequence[str]], Iterable[str]]
    suffixes: tuple[str, ...]  # of files that are written in it without being asked
    summary: str


def _html(report: ReportInput, names: Sequence[str]) -> Iterator[str]:
    return page(report, draw(report, names))


def _svg(report: ReportInput, names: Sequence[str]) -> Iterator[str]:
    figures = draw(report, names)
    if not figures:
        raise InputError("nothing to draw: no run took any time, and no grid has a curve")
    yield picture(figures, report.title)


def _json(report: ReportInput, _: Sequence[str]) -> Iterator[str]:
    runs = [
        {
            "name": named.name,
            "path": named.path,
            "command": named.command,
            "partial": named.summary.partial,
            "config": named.run.config,
            **named.summary.as_dict(),
        }
        for named in report.runs
    ]
    grids = [
        {
            "name": grid.name,
            "path": grid.path,
            "command": grid.command,
            "partial": grid.partial,
            "config": dict(grid.config),
            "rows": [dict(row) for row in grid.rows],
            "knee": grid.knee,
        }
        for grid in report.grids
    ]
    config = {"hardware": report.hardware, "model": report.model, "files": [each["path"] for each in runs + grids]}
    partial = any(each["partial"] for each in runs + grids)
    yield to_json(document("report", config, {"title": report.title, "runs": runs, "grids": grids}, partial=partial))


RENDERERS: dict[str, Renderer] = {
    "html": Renderer(render=_html, suffixes=(".html", ".htm"), summary="one self-contained page: summary and pictures"),
    "svg": Renderer(render=_svg, suffixes=(".svg",), summary="the pictures alone, one below the other"),
    "csv": Renderer(
        render=lambda report, _: to_csv(report),
        suffixes=(".csv",),
        summary="one row a request, or a row of a sweep, for a spreadsheet",
    ),
    "markdown": Renderer(
        render=lambda report, _: markdown(report),
        suffixes=(".md", ".markdown"),
        summary="the summary's tables, for a ticket",
    ),
    "prometheus": Renderer(
        render=lambda report, _: [metric_page(report)],
        suffixes=(".prom",),
        summary="a metric page with vLLM's histogram bounds",
    ),
    "openmetrics": Renderer(
        render=lambda report, _: [openmetrics_page(report)],
        suffixes=(".openmetrics",),
        summary="the same page as OpenMetrics 1.0",
    ),
    "vllm-bench": Renderer(
        render=lambda report, _: vllm_bench(report),
        suffixes=(),
        summary="the result of vllm bench serve --save-detailed, one a line, for what reads those",
    ),
    "chrome-trace": Renderer(
        render=lambda report, _: chrome_trace(report),
        suffixes=(),
        summary="trace events: requests on lanes, steps, counters; opens in Perfetto",
    ),
    "json": Renderer(render=_json, suffixes=(".json",), summary="the summaries as one document"),
}
"""Each form by the name that `--format` takes."""


def format_of(path: str | None) -> str:
    """Return the form in which a file called `path` is written, html where its name does not say."""
    for name, renderer in RENDERERS.items():
        if path is not None and path.lower().endswith(renderer.suffixes or ("\0",)):
            return name
    return "html"
