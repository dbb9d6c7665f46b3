"""`servesim sweep`: a grid of runs, one row each, and where the knee is.

`sweep --disagg P:D --link A,B,...`: the colocated engines as rows of their own, and where the curves cross.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from servesim.cli.choices import fleet_groups
from servesim.cli.options import CONFIG, HORIZON, JOBS, JSON, OUTPUT, PLOT, QUIET, SERVER_GROUPS, SLO
from servesim.cli.parser import Parser
from servesim.cli.runner import Call, Result
from servesim.client.scan import DEFAULT_REPEATS, Scan, make_scan, scanned
from servesim.config.fleet import FleetSpec
from servesim.config.option import Group, Option, checks_of, count, groups_of, spec_of
from servesim.config.server import DERIVED, ServerSpec
from servesim.config.workload import LOADS, WorkloadSpec, load_requests
from servesim.console import Console
from servesim.fleet.build import build_deployment
from servesim.inputs import rereadable
from servesim.interrupts import Interrupts
from servesim.plan.sweep import (
    PAYS,
    Cell,
    Crossing,
    Point,
    cells_run,
    colocated,
    crossing,
    grid,
    knee,
    run_cell,
    stops_paying,
)
from servesim.report.documents import sweep_document
from servesim.report.input import LINK_AXIS, LOAD_AXES
from servesim.report.sweep import pays_text, scan_text, sweep_text
from servesim.report.terminal import plot_rows
from servesim.runs.as_json import as_json
from servesim.summary.slo import parse_slos
from servesim.summary.summary import Summary


def colocated_rows(points: Sequence[Point], cells: Sequence[Cell]) -> tuple[list[Point], list[Cell]]:
    """Return a row for each fleet of colocated engines that the grid's links are to be compared with."""
    rows: dict[Cell, Point] = {}
    for point, cell in zip(points, cells, strict=True):
        if cell.fleet.is_disaggregated:
            unlinked = {key: None if key in checks_of(FleetSpec) and key != "disagg" else point[key] for key in point}
            rows.setdefault(colocated(cell), unlinked)
    return list(rows.values()), list(rows)


def find_crossings(
    points: Sequence[Point], cells: Sequence[Cell], summaries: Sequence[Summary], run: Callable[[Cell], Summary | None]
) -> list[tuple[Point, Crossing]]:
    """Return for each curve over the bandwidths where it crosses that of its colocated engines."""
    known = dict(zip(cells, summaries, strict=True))
    curves: dict[tuple[tuple[str, Any], ...], list[Cell]] = {}
    for point, cell in zip(points, cells, strict=True):
        if cell.fleet.is_disaggregated:
            curves.setdefault(tuple((key, value) for key, value in point.items() if key != LINK_AXIS), []).append(cell)
    found = []
    for rest, curve in curves.items():
        tried = {cell.fleet.link_bytes_per_s or 0.0: known[cell] for cell in curve}
        found.append((dict(rest), crossing(curve[0], known[colocated(curve[0])], tried, run)))
    return found


EXAMPLES = (
    "servesim sweep --concurrency 1,8,32,128,256",
    "servesim sweep --hardware l4-24gb --rate 0.5,1,1.5,2,3 --requests 500 --slo ttft_p95=2s --jobs 2",
    "servesim sweep --trace burst --hardware l4-24gb,a100-sxm-80gb,h100-sxm-80gb",
    "servesim sweep --trace mixed --disagg 3:1 --link 5GB/s,10GB/s,25GB/s,100GB/s",
    "servesim sweep --concurrency 32,128 --max-num-batched-tokens 2k,8k,32k --requests 500",
    "servesim sweep --max-tokens 10,50,100,200,250 --prompt-tokens 19",
)

DEFAULT_CONCURRENCIES = [1, 8, 32, 128, 256]
AS_IN_LOADGEN = Group(
    "as in loadgen, whose command is this one with a --url",
    (
        Option("--repeat", "repeat", "of a length scan: requests a length", count(), default="5"),
        Option("--warmup", "warmup", "means nothing here: a simulation is never cold", count(minimum=0)),
        Option("--ignore-eos", "ignore_eos", "means nothing here: answers have the given length"),
    ),
)


def build_parser() -> Parser:
    return Parser(
        "sweep",
        "A grid of runs: a comma list on any option of the workload or the server makes an axis, two make a grid.\n"
        "Exit 1: an --slo is met by no row.",
        EXAMPLES,
        (
            *groups_of(WorkloadSpec),
            Group("end", (HORIZON,)),
            *SERVER_GROUPS,
            *fleet_groups().values(),
            AS_IN_LOADGEN,
            Group("output", _OUTPUT),
        ),
        lists=True,
    )


_OUTPUT = (JSON, OUTPUT, SLO, JOBS, PLOT, CONFIG, QUIET)


def run(call: Call) -> Result:
    values, console = call.values, call.console
    axes = _axes(call.parser, values)
    if scanned(axes) and not values.keys() & {"requests", "duration_s", "trace"}:
        values["requests"] = values.get("repeat", DEFAULT_REPEATS)
    points = grid(axes)
    with rereadable(values.get("trace")) as trace:
        cells = [_cell(values | point | {"trace": trace}) for point in points]
        first = cells[0]
        crosses = len(axes.get(LINK_AXIS, ())) > 1
        if crosses:
            together = colocated_rows(points, cells)
            points, cells = together[0] + points, together[1] + cells
        for note in _notes(cells):
            console.note(note)
        summaries = _run(cells, values.get("jobs", 1), console)
        partial = len(summaries) < len(cells) or any(summary.partial for summary in summaries)
        crossings = _crossings(points, cells, summaries, console) if crosses and not partial else []
        rows = Rows(
            values=values,
            axes=axes,
            points=points[: len(summaries)],
            summaries=summaries,
            config=_config(values, axes, first),
            partial=partial,
            crossings=crossings,
        )
    met = [all(result.met for result in summary.slo or ()) for summary in summaries]
    return Result(
        document=rows.document,
        text=lambda: rows.text(ascii_only=call.ascii_only),
        code=int(partial or not any(met)),
        warnings=list(
            dict.fromkeys(text for summary in summaries for text in (*summary.warnings, *summary.violations))
        ),
    )


def _crossings(
    points: list[Point], cells: list[Cell], summaries: list[Summary], console: Console
) -> list[tuple[Point, dict[str, Any]]]:
    """Find where the curves over the bandwidth of the link cross those of colocated engines."""
    with Interrupts() as interrupts, console.progress("runs", None) as progress:
        runs = 0

        def run_one(cell: Cell) -> Summary | None:
            nonlocal runs
            runs += 1
            progress.update(runs, "where the curves cross")
            summary = run_cell(cell, lambda over: interrupts.asked)
            return None if summary.partial else summary

        return [(point, asdict(found)) for point, found in find_crossings(points, cells, summaries, run_one)]


def _axes(parser: Parser, values: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the swept keys with their values, in the order of the options; the load is an axis even if it is one."""
    axes = {key: values[key] for key, option in parser.options.items() if isinstance(values.get(key), list)}
    for key in ("slo", "price"):
        axes.pop(key, None)
    if not values.keys() & LOADS:
        axes["concurrency"] = [1] if scanned(axes) else DEFAULT_CONCURRENCIES
    for key in LOAD_AXES:
        if key in values:
            axes.setdefault(key, [values[key]])
    loads = {key: axes[key] for key in LOAD_AXES if key in axes}
    return loads | axes


def _cell(values: dict[str, Any]) -> Cell:
    return Cell(
        server=spec_of(ServerSpec, values),
        workload=spec_of(WorkloadSpec, values),
        fleet=spec_of(FleetSpec, values),
        horizon_s=values.get("horizon_s"),
        slos=tuple(parse_slos(values.get("slo", ()))),
    )


def _notes(cells: Sequence[Cell]) -> list[str]:
    """Return what a person should know about the input; finds every server and trace that cannot be, before any run."""
    notes: dict[str, None] = {}
    for server, fleet in dict.fromkeys((cell.server, cell.fleet) for cell in cells):
        notes |= dict.fromkeys(build_deployment(server, fleet).notes)
    for workload in {cell.workload.trace: cell.workload for cell in cells if cell.workload.trace}.values():
        understood: list[str] = []
        load_requests(workload, understood)
        notes |= dict.fromkeys(understood)
    return list(notes)


def _run(cells: Sequence[Cell], jobs: int, console: Console) -> list[Summary]:
    """Run the cells, as far as the person lets them, with a progress line."""
    summaries: list[Summary] = []
    with Interrupts() as interrupts, console.progress("rows", len(cells)) as progress:

        def watch(over: int) -> bool:
            progress.update(len(summaries), f"{over:,} requests of this one")
            return interrupts.asked

        with cells_run(min(jobs, len(cells)), watch) as run_all:
            for summary in run_all(cells):
                if interrupts.asked and summary.partial:
                    break
                summaries.append(summary)
                progress.update(len(summaries))
                if interrupts.asked:
                    break
    return summaries


@dataclass(slots=True, kw_only=True)
class Rows:
    """The rows of a grid, as far as it was run, and what is to be seen in them."""

    values: dict[str, Any]
    axes: dict[str, list[Any]]
    points: list[Point]
    summaries: list[Summary]
    config: dict[str, Any]
    partial: bool
    crossings: list[tuple[Point, dict[str, Any]]]

    @property
    def swept(self) -> list[str]:
        """The axes of more than one value."""
        return [key for key, items in self.axes.items() if len(items) > 1]

    @property
    def knee(self) -> int | None:
        """The number of the row at the knee, where one load is swept and nothing else is."""
        if len(self.swept) != 1 or self.swept[0] not in LOAD_AXES:
            return None
        return knee(
            self.axes[self.swept[0]][: len(self.summaries)],
            [summary.throughput.output_tokens_per_s for summary in self.summaries],
            [summary.e2e_ms.mean if summary.e2e_ms else None for summary in self.summaries],
        )

    @property
    def scan(self) -> Scan | None:
        """The length scan that the grid is, if one length of fixed values is swept and nothing else is."""
        axis = scanned(self.axes)
        if axis is None:
            return None
        return make_scan(axis, [(int(at[axis]), row) for at, row in zip(self.points, self.summaries, strict=True)])

    @property
    def sizes(self) -> list[str]:
        """The sizes of the KV tiers, where they are swept and nothing else is."""
        return [point["kv_offload"] for point in self.points] if self.swept == ["kv_offload"] else []

    @property
    def stops_paying(self) -> int | None:
        """The number of the size that still pays, where sizes are swept."""
        means = [None if summary.ttft_ms is None else summary.ttft_ms.mean for summary in self.summaries]
        return stops_paying(self.sizes, means) if self.sizes else None

    def text(self, *, ascii_only: bool) -> str:
        """Return the rows as text."""
        scan, sizes, pays = self.scan, self.sizes, self.stops_paying
        table = scan_text(scan) if scan else sweep_text(self.points, self.summaries, self.knee, self.crossings)
        if sizes:
            table += "\n" + pays_text(None if pays is None else sizes[pays], PAYS) + "\n"
        if not self.values.get("plot"):
            return table
        return f"{table}\n{plot_rows(self.points, self.summaries, self.knee, ascii_only=ascii_only)}"

    def document(self) -> dict[str, Any]:
        """Return the rows as a document."""
        rows = [{**point, "swept": point} for point in self.points]
        document = sweep_document(self.config, rows, self.summaries, knee=self.knee)
        document["partial"] = self.partial
        if (scan := self.scan) is not None:
            document["scan"] = as_json(scan)
        if self.sizes:
            document["stops_paying"] = self.stops_paying
        if self.crossings:
            document["crossings"] = [{**point, **found} for point, found in self.crossings]
        return document


def _config(values: dict[str, Any], axes: dict[str, list[Any]], first: Cell) -> dict[str, Any]:
    """Return the configuration of the whole grid: lists where it is swept, unknown where rows differ in a default."""
    deployment = build_deployment(first.server, first.fleet)
    config = {
        **deployment.describe(),
        **first.workload.as_dict(),
        "trace": values.get("trace"),
        "horizon_s": first.horizon_s,
    }
    if any(key in checks_of(ServerSpec) for key in axes):
        config |= {key: None for key in (*DERIVED, "num_blocks") if key not in values}
    config |= {key: items if len(items) > 1 else items[0] for key, items in axes.items()}
    return config | ({"slo": values["slo"]} if values.get("slo") else {})
