"""`servesim loadgen`: measure a real server, with the simulator's own workloads, metrics and reports.

A `Plan` is what is to be measured, checked before the first request; `Work` is its measurement in progress.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from servesim.cli.options import CONFIG, JSON, OUTPUT, PLOT, QUIET, SAVE, SLO
from servesim.cli.parser import Parser
from servesim.cli.runner import Call, Result
from servesim.client.flavour import API_FLAVOURS, flavour_of
from servesim.client.measurement import LiveFile, Measurer, path_beside
from servesim.client.prompts import GivenPrompt, read_prompts
from servesim.client.run import Progress
from servesim.client.scan import DEFAULT_REPEATS, DEFAULT_WARMUP, make_scan, scanned
from servesim.client.target import target_of
from servesim.config.loadgen import MEASUREMENT, REQUEST, SERVER, LoadSpec
from servesim.config.option import Group, Option, count, groups_of, one_of, spec_of
from servesim.config.workload import DEFAULT_CONCURRENCY, LOADS, TRACE, WORKLOAD, WorkloadSpec, load_requests
from servesim.console import Console
from servesim.errors import InputError, RunError
from servesim.inputs import read_text, rereadable
from servesim.interrupts import Interrupts
from servesim.live.loadgen import LoadPage
from servesim.plan.search import Probe, ProbeOutcome, Search
from servesim.plan.sweep import Point, grid, knee
from servesim.report.documents import document, summary_document, sweep_document
from servesim.report.loadgen import FoundLoad, load_json, load_text, repeats_of, spread_text, target_text
from servesim.report.sweep import scan_text, sweep_text
from servesim.report.terminal import plot_rows, plot_run
from servesim.report.text import summary_text
from servesim.runs.as_json import as_json
from servesim.runs.records import Run
from servesim.summary.slo import Slo, parse_slos
from servesim.summary.summary import Summary, summarize
from servesim.workload.requests import Requests

CHARACTERS_A_TOKEN = 4  # a guess at a given text's length, until the server's usage tells


EXAMPLES = (
    "servesim loadgen --url http://127.0.0.1:8080 --concurrency 4 --requests 16 --max-tokens 64 --ignore-eos",
    "servesim loadgen --url http://127.0.0.1:8000/v1 --rate 2 --duration 60s --slo ttft_p95=500ms --save run.jsonl",
    "servesim loadgen --url http://127.0.0.1:8000 --concurrency 1,4,16,64 --requests 100",
    "servesim loadgen --url http://127.0.0.1:8080 --max-tokens 10,50,100,200,250 --prompt-tokens 19 --ignore-eos",
    "servesim loadgen --url http://127.0.0.1:8000 --find concurrency --slo ttft_p95=1s,tpot_p95=50ms --requests 100",
    "servesim loadgen --url https://host/v1 --api-key-env API_KEY --trace trace.jsonl --speed 2",
)


REQUESTS_A_PROBE = 50  # of a search, at least: a p95 wants some
REQUESTS_A_UNIT = {"concurrency": 5, "rate": 20}  # and so many per request in flight, or per request a second


LIVE = Option(
    "--live",
    "live",
    "show the client's and the server's figures on a page at this port while it runs; 0: any",
    count(minimum=0, maximum=65535),
    "PORT",
)


def build_parser() -> Parser:
    own = {group.title: group for group in groups_of(LoadSpec, swept=False)}
    load = {group.title: group for group in groups_of(WorkloadSpec)}
    return Parser(
        "loadgen",
        "Measure a server. A comma list on an option of the workload makes a row of each value, two lists a grid.\n"
        "Exit 1: out of reach, a request failed, an --slo is not met, --strict and the client saturated, interrupted.",
        EXAMPLES,
        (
            own[SERVER].changed("api", check=one_of("api", API_FLAVOURS)),
            own[REQUEST],
            load[WORKLOAD].without("priorities"),  # no API has a field for them
            load[TRACE],
            own[MEASUREMENT],
            Group("output", (SLO, JSON, OUTPUT, SAVE, PLOT, LIVE, CONFIG, QUIET)),
        ),
        lists=True,
    )


@dataclass(slots=True, kw_only=True)
class Plan:
    """What is to be measured: points of a grid (one, if nothing is swept) or a search, and how often each."""

    values: dict[str, Any]  # every option, by key
    load: LoadSpec
    axes: dict[str, list[Any]]
    points: list[Point]
    scan: str | None  # the axis of a length scan
    warmup: int
    repeat: int
    slos: list[Slo]
    given: list[GivenPrompt] | None = None
    replayed: dict[WorkloadSpec, Requests] = field(default_factory=dict)  # traces, each read once
    notes: list[str] = field(default_factory=list)  # what a person should know about them

    @property
    def first_label(self) -> str:
        """Return the suffix of the first run's file, empty where there is one run."""
        if self.load.find is not None:
            return probe_label(self.load.find, float(self.values[self.load.find]), 0)
        return point_label(self.points[0])


def make_plan(parser: Parser, values: dict[str, Any]) -> Plan:
    """Return the plan for `values`. Raises InputError for all that can be wrong before the first request."""
    if "url" not in values:
        raise InputError("--url is missing, such as --url http://127.0.0.1:8080")
    values = dict(values)
    load = spec_of(LoadSpec, values)
    flavour_of(load)
    target_of(load)
    given = _given(values)
    if given is not None:
        _describe_given(values, given)
    axes = {key: values[key] for key, option in parser.options.items() if option.swept and _is_list(values.get(key))}
    scan = scanned(axes)
    if not values.keys() & LOADS:
        values["concurrency"] = 1 if scan or load.find else DEFAULT_CONCURRENCY
    repeat = load.repeat
    if scan is not None:
        values.setdefault("requests", values.get("repeat", DEFAULT_REPEATS))
        repeat = 1
    slos = parse_slos(values.get("slo", ()))
    if load.find is not None:
        if axes or not slos:
            raise InputError("find needs an --slo to meet, and one value for every option; leave out the lists")
        if load.find not in values:
            values.pop("concurrency", None)
            values[load.find] = 1
        if load.find_max is not None and load.find_max < values[load.find]:
            raise InputError(f"find_max is {load.find_max:g}, but the search starts at {values[load.find]:g}")
    points = grid(axes)
    replayed: dict[WorkloadSpec, Requests] = {}
    notes: list[str] = []
    with rereadable(values.get("trace")) as trace:
        for spec in dict.fromkeys(spec_of(WorkloadSpec, values | point) for point in points):
            if spec.trace is not None:
                replayed[spec] = load_requests(replace(spec, trace=trace), None if replayed else notes)
    return Plan(
        values=values,
        load=load,
        axes=axes,
        points=points,
        scan=scan,
        warmup=values.get("warmup", DEFAULT_WARMUP if scan else load.warmup),
        repeat=repeat,
        slos=slos,
        given=given,
        replayed=replayed,
        notes=notes,
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1


def _given(values: dict[str, Any]) -> list[GivenPrompt] | None:
    """Return the prompts that were given as text, None where they are made."""
    if "prompt" in values:
        return [GivenPrompt(prompt=values["prompt"])]
    path = values.get("prompts")
    return None if path is None else read_prompts(read_text(path).split("\n"), path)


def _describe_given(values: dict[str, Any], given: list[GivenPrompt]) -> None:
    """Put given prompts into the workload's terms: their number, and a guess at their length."""
    for key in ("prompt_tokens", "trace", "turns", "shared_prefix_tokens"):
        if key in values:
            raise InputError(f"{key} describes prompts that are made, but they are given; leave one out")
    sizes = [max(1, len(str(each.prompt)) // CHARACTERS_A_TOKEN) for each in given]
    values["prompt_tokens"] = f"{min(sizes)}-{max(sizes)}"
    if "prompts" in values and "duration_s" not in values:
        values.setdefault("requests", len(given))


def point_label(point: Point) -> str:
    """Return the suffix of the file of a grid's point.

    >>> point_label({"concurrency": 8, "output_tokens": "10"})
    'concurrency-8.output_tokens-10'
    """
    return ".".join(f"{key}-{value}".replace(":", "_").replace("/", "_") for key, value in point.items())


def probe_label(key: str, load: float, number: int) -> str:
    """Return the suffix of the file of a search's probe.

    >>> probe_label("rate", 2.5, 0)
    'rate-2.5.1'
    """
    return f"{key}-{load:g}.{number + 1}"


@dataclass(slots=True, kw_only=True)
class Work:
    """Measures the points of a plan. Enter it; Ctrl-C then ends a run instead of the program."""

    plan: Plan
    console: Console
    interrupts: Interrupts
    measurer: Measurer
    first_file: LiveFile | None
    page: LoadPage | None = None
    file_errors: list[RunError] = field(default_factory=list)

    @classmethod
    def begin(cls, plan: Plan, console: Console) -> Work:
        """Open the first file, then find the server. Raises RunError where one of them cannot be had."""
        for note in plan.notes:
            console.note(note)
        path = plan.values.get("save")
        first = None if path is None else LiveFile(path_beside(path, plan.first_label) if plan.first_label else path)
        page = None if plan.values.get("live") is None else LoadPage(target_of(plan.load), plan.values["live"])
        if page is not None:
            console.note(f"the live page is at {page.url}")
        interrupts = Interrupts(patience=2)  # the second ends what is in flight, the third whatever hangs
        measurer = Measurer(plan.load, plan.given, interrupts=interrupts, waiting=_waiting(console))
        return cls(plan=plan, console=console, interrupts=interrupts, measurer=measurer, first_file=first, page=page)

    def __enter__(self) -> Work:
        self.interrupts.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.interrupts.__exit__(None, None, None)
        self.measurer.close()
        if self.page is not None:
            self.page.close()

    def measure(self, point: Point, label: str, *, warmup: int | None = None) -> tuple[Run, Summary]:
        """Measure one point once; `label` is the suffix of its file where there are several."""
        values = self.plan.values | point
        spec = spec_of(WorkloadSpec, values)
        config = self.measurer.config(spec) | ({"slo": values["slo"]} if values.get("slo") else {})
        config["warmup"] = self.plan.warmup
        file = self._file(label)
        total = None if spec.duration_s is not None else spec.requests
        with self.console.progress(label or "requests", total) as progress:

            def watch(state: Progress) -> None:
                rate = state.token_events / state.elapsed_s if state.elapsed_s > 0 else 0.0
                progress.update(state.done, f"{state.in_flight} in flight  {rate:,.0f} tok/s  {state.errors} errors")
                if self.page is not None:
                    self.page.progress(state)

            run = self.measurer.measure(
                spec,
                warmup=self.plan.warmup if warmup is None else warmup,
                config=config,
                file=file,
                progress=watch,
                filed=None if self.page is None else self.page.filed,
                requests=self.plan.replayed.get(spec),
            )
        if file is not None and file.error is not None:
            self.file_errors.append(file.error)
        return run, summarize(run, self.plan.slos)

    def repeated(self, point: Point, label: str) -> tuple[Run, Summary, list[Summary]]:
        """Measure one point as often as the plan says; return the repeat of median throughput, and all of them."""
        done: list[tuple[Run, Summary]] = []
        for number in range(self.plan.repeat):
            warmup = self.plan.warmup if number == 0 else 0
            done.append(
                self.measure(
                    point, ".".join(part for part in (label, str(number + 1) if number else "") if part), warmup=warmup
                )
            )
            if done[-1][0].partial:
                break
        if done[0][0].warmup is not None:
            for each, _ in done[1:]:
                each.warmup = done[0][0].warmup
        by_speed = sorted(done, key=lambda pair: pair[1].throughput.output_tokens_per_s or 0.0)
        run, summary = done[-1] if done[-1][0].partial else by_speed[(len(done) - 1) // 2]
        return run, summary, [each for _, each in done]

    def _file(self, label: str) -> LiveFile | None:
        if self.first_file is not None:
            file, self.first_file = self.first_file, None
            return file
        path = self.plan.values.get("save")
        return None if path is None else LiveFile(path_beside(path, label))


def _waiting(console: Console) -> Callable[[str], None]:
    said: set[str] = set()

    def waiting(why: str) -> None:
        if why not in said:
            said.add(why)
            console.note(f"waiting: {why}")

    return waiting


def run(call: Call) -> Result:
    plan = make_plan(call.parser, call.values)
    with Work.begin(plan, call.console) as work:
        report = _search if plan.load.find else _rows if plan.axes else _single
        result = report(work, call)
    return result if not work.file_errors else replace(result, error=work.file_errors[0])


def _single(work: Work, call: Call) -> Result:
    """Measure one point."""
    run, summary, repeats = work.repeated({}, "")

    def document() -> dict[str, Any]:
        document = summary_document("loadgen", run.config, summary) | load_json(run, summary)
        if len(repeats) > 1:
            document["repeats"] = as_json(repeats_of(repeats))
        return document

    def text() -> str:
        text = target_text(run) + summary_text(summary) + load_text(run, summary)
        if len(repeats) > 1:
            text += spread_text(repeats)
        if work.plan.values.get("plot"):
            text += "\n" + plot_run(run, ascii_only=call.ascii_only)
        return text

    return Result(
        document=document,
        text=text,
        code=_code(work, repeats, missed=any(_missed(each) for each in repeats)),
        in_text=_warnings([summary]),
        warnings=_saturated(repeats),
    )


def _rows(work: Work, call: Call) -> Result:
    """Measure every point of the grid."""
    plan = work.plan
    runs: list[Run] = []
    summaries: list[Summary] = []
    for point in plan.points:
        try:
            run, summary, _ = work.repeated(point, point_label(point))
        except KeyboardInterrupt:  # during a warm-up: the rows that are there are worth showing
            if not runs:
                raise
            break
        runs.append(run)
        summaries.append(summary)
        if run.partial:
            break
    points = plan.points[: len(summaries)]
    scan = None
    if plan.scan is not None:
        axis = plan.scan
        scan = make_scan(axis, [(int(point[axis]), row) for point, row in zip(points, summaries, strict=True)])
    swept = [key for key, items in plan.axes.items() if len(items) > 1]
    at = None
    if len(swept) == 1 and swept[0] in ("concurrency", "rate"):
        at = knee(
            [float(point[swept[0]]) for point in points],
            [summary.throughput.output_tokens_per_s for summary in summaries],
            [summary.e2e_ms.mean if summary.e2e_ms else None for summary in summaries],
        )
    whole = len(summaries) == len(plan.points) and not runs[-1].partial

    def document() -> dict[str, Any]:
        rows = [{**point, "swept": point} for point in points]
        document = sweep_document({**runs[0].config, **plan.axes}, rows, summaries, knee=at, command="loadgen")
        document["partial"] = len(summaries) < len(plan.points) or document["partial"]
        if scan is not None:
            document["scan"] = as_json(scan)
        return document

    def text() -> str:
        text = scan_text(scan) if scan is not None else sweep_text(points, summaries, at)
        if plan.values.get("plot"):
            text += "\n" + plot_rows(points, summaries, at, ascii_only=call.ascii_only)
        return text

    cut = f"interrupted: {len(summaries):,} of {len(plan.points):,} rows, the last may be partial"
    missed = all(_missed(summary) for summary in summaries)
    return Result(
        document=document,
        text=text,
        code=max(int(not whole), _code(work, summaries, missed=missed)),
        warnings=[
            *_warnings(summaries),
            *([] if whole else [cut]),
            *([] if scan is None else scan.warnings),
            *_saturated(summaries),
        ],
    )


def _search(work: Work, call: Call) -> Result:
    """Search for the highest load that meets the objectives."""
    plan = work.plan
    key = str(plan.load.find)
    start, maximum = float(plan.values[key]), plan.load.find_max
    warmed = False

    def probe(load: float) -> tuple[ProbeOutcome, tuple[Run, Summary]]:
        nonlocal warmed
        point: Point = {key: int(load) if key == "concurrency" else load}
        if not plan.values.keys() & {"requests", "duration_s"}:
            point["requests"] = max(REQUESTS_A_PROBE, math.ceil(REQUESTS_A_UNIT[key] * load))
        number = sum(each.load == load for each in search.probes)
        run, summary = work.measure(point, probe_label(key, load, number), warmup=None if not warmed else 0)
        warmed = True
        if run.partial:
            raise _StoppedError
        if (run.client or {}).get("verdict") == "saturated":
            return ProbeOutcome.DISCARDED, (run, summary)
        return ProbeOutcome.MISSED if _missed(summary) else ProbeOutcome.MET, (run, summary)

    def say(each: Probe[tuple[Run, Summary]]) -> None:
        work.console.note(f"{key} {each.load:g}: {each.answer.value}")

    search: Search[tuple[Run, Summary]] = Search(
        probe=probe,
        start=start,
        maximum=math.inf if maximum is None else float(maximum),
        whole=key == "concurrency",
        on_probe=say,
    )
    partial = False
    try:
        found = search.run()
    except _StoppedError:
        partial, found = True, search.found()
    tried = [(each.load, each.answer.value, each.result[1]) for each in found.probes]
    report = FoundLoad(key=key, load=found.load, next_load=found.next_load, limit=found.limit.value, probes=tried)

    def text() -> str:
        text = report.text()
        if found.result is not None:
            text += "\n" + summary_text(found.result[1]) + load_text(*found.result)
            if plan.values.get("plot"):
                text += "\n" + plot_run(found.result[0], ascii_only=call.ascii_only)
        return text

    config = work.measurer.config(spec_of(WorkloadSpec, plan.values)) | {"slo": plan.values["slo"]}
    body = {"found": report.as_dict(), "summary": None if found.result is None else found.result[1].as_dict()}
    return Result(
        document=lambda: document("loadgen", config, body, partial=partial, schema="find"),
        text=text,
        code=int(partial or found.load is None),
    )


class _StoppedError(Exception):
    """The person pressed Ctrl-C during a probe."""


def _missed(summary: Summary) -> bool:
    return any(not result.met for result in summary.slo or ())


def _warnings(summaries: Sequence[Summary]) -> list[str]:
    """Return the warnings of the rows, each once."""
    return list(dict.fromkeys(text for summary in summaries for text in (*summary.warnings, *summary.violations)))


def _is_saturated(summaries: Sequence[Summary]) -> bool:
    return any((summary.client or {}).get("verdict") == "saturated" for summary in summaries)


def _saturated(summaries: Sequence[Summary]) -> list[str]:
    """Return what to say where the client was too slow."""
    text = "the client was saturated: the figures are as much its own as the server's; see --processes"
    return [text] if _is_saturated(summaries) else []


def _code(work: Work, summaries: Sequence[Summary], *, missed: bool) -> int:
    lost = any(summary.requests.failed or summary.requests.rejected or summary.partial for summary in summaries)
    return int(lost or missed or (work.measurer.load.strict and _is_saturated(summaries)))
