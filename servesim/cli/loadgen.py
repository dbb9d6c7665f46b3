"""`servesim loadgen`: measure a real server, with the simulator's own workloads, metrics and reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

from servesim.analysis.search import Answer, Probe, Search
from servesim.analysis.sweep import Point, knee
from servesim.cli.client_options import CLIENT_GROUPS
from servesim.cli.load_options import workload_spec
from servesim.cli.load_plan import make_plan, point_label, probe_label
from servesim.cli.load_work import Work
from servesim.cli.options import gather
from servesim.cli.output import ascii_only, check_output, result_to
from servesim.cli.parser import Parser
from servesim.client.scan import make_scan
from servesim.console import Console
from servesim.records import Run
from servesim.report.documents import document, summary_document, sweep_document, to_json
from servesim.report.load import FoundLoad, load_json, load_text, spread_json, spread_text, target_text
from servesim.report.scan import scan_json, scan_text
from servesim.report.sweep import sweep_text
from servesim.report.terminal import plot_rows, plot_run
from servesim.report.text import summary_text
from servesim.summary import Summary

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


def build_parser() -> Parser:
    return Parser(
        "loadgen",
        "Measure a server. A comma list on an option of the workload makes a row of each value, two lists a grid.\n"
        "Exit 1: out of reach, a request failed, an --slo is not met, --strict and the client saturated, interrupted.",
        EXAMPLES,
        CLIENT_GROUPS,
        lists=True,
    )


def run(argv: Sequence[str]) -> int:
    parser = build_parser()
    flags = parser.read(argv)
    if flags is None:
        return 0
    values = gather(parser, flags)
    check_output(values)
    plan = make_plan(parser, values)
    console = Console(quiet=plan.values.get("quiet", False))
    with ExitStack() as stack:
        write = stack.enter_context(result_to(plan.values.get("output")))
        work = stack.enter_context(Work.begin(plan, console))
        report = _search if plan.load.find else _rows if plan.axes else _single
        text, code = report(work)
        write(text)
    for error in work.file_errors[:1]:
        console.error(str(error))
    return 1 if work.file_errors else code


def _single(work: Work) -> tuple[str, int]:
    """Measure one point and return its report and exit code."""
    run, summary, repeats = work.repeated({}, "")
    if work.plan.values.get("json"):
        told = summary_document("loadgen", run.config, summary) | load_json(run, summary)
        if len(repeats) > 1:
            told["repeats"] = spread_json(repeats)
        text = to_json(told)
    else:
        text = target_text(run) + summary_text(summary) + load_text(run, summary)
        if len(repeats) > 1:
            text += spread_text(repeats)
        if work.plan.values.get("plot"):
            text += "\n" + plot_run(run, ascii_only=ascii_only(work.plan.values.get("output")))
    _warn(work, [summary])
    return text, _code(work, repeats, missed=any(_missed(each) for each in repeats))


def _rows(work: Work) -> tuple[str, int]:
    """Measure every point of the grid and return the table and the exit code."""
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
    if work.plan.values.get("json"):
        config = {**runs[0].config, **plan.axes}
        rows = [{**point, "swept": point} for point in points]
        told = sweep_document(config, rows, summaries, knee=at, command="loadgen")
        told["partial"] = len(summaries) < len(plan.points) or told["partial"]
        if scan is not None:
            told["scan"] = scan_json(scan)
        text = to_json(told)
    else:
        text = scan_text(scan) if scan is not None else sweep_text(points, summaries, at)
        if plan.values.get("plot"):
            text += "\n" + plot_rows(points, summaries, at, ascii_only=ascii_only(plan.values.get("output")))
    _warn(work, summaries, always=True)
    whole = len(summaries) == len(plan.points) and not runs[-1].partial
    if not whole:
        work.console.warn(f"interrupted: {len(summaries):,} of {len(plan.points):,} rows, the last may be partial")
    for warning in () if scan is None else scan.warnings:
        work.console.warn(warning)
    missed = all(_missed(summary) for summary in summaries)
    return text, max(int(not whole), _code(work, summaries, missed=missed))


def _search(work: Work) -> tuple[str, int]:
    """Search for the highest load that meets the objectives and return its report and exit code."""
    plan = work.plan
    key = str(plan.load.find)
    start, maximum = float(plan.values[key]), plan.load.find_max
    warmed = False

    def probe(load: float) -> tuple[Answer, tuple[Run, Summary]]:
        nonlocal warmed
        asked: Point = {key: int(load) if key == "concurrency" else load}
        if not plan.values.keys() & {"requests", "duration_s"}:
            asked["requests"] = max(REQUESTS_A_PROBE, math.ceil(REQUESTS_A_UNIT[key] * load))
        number = sum(each.load == load for each in search.probes)
        run, summary = work.measure(asked, probe_label(key, load, number), warmup=None if not warmed else 0)
        warmed = True
        if run.partial:
            raise _StoppedError
        if (run.client or {}).get("verdict") == "saturated":
            return Answer.DISCARDED, (run, summary)
        return Answer.MISSED if _missed(summary) else Answer.MET, (run, summary)

    def told(each: Probe[tuple[Run, Summary]]) -> None:
        work.console.note(f"{key} {each.load:g}: {each.answer.value}")

    search: Search[tuple[Run, Summary]] = Search(
        probe=probe,
        start=start,
        maximum=math.inf if maximum is None else float(maximum),
        whole=key == "concurrency",
        on_probe=told,
    )
    partial = False
    try:
        found = search.run()
    except _StoppedError:
        partial, found = True, search.found()
    tried = [(each.load, each.answer.value, each.result[1]) for each in found.probes]
    report = FoundLoad(key=key, load=found.load, next_load=found.next_load, limit=found.limit.value, probes=tried)
    if plan.values.get("json"):
        best = None if found.result is None else found.result[1].as_dict()
        config = work.measurer.config(workload_spec(plan.values)) | {"slo": plan.values["slo"]}
        body = {"found": report.as_dict(), "summary": best}
        text = to_json(document("loadgen", config, body, partial=partial, schema="find"))
    else:
        text = report.text()
        if found.result is not None:
            text += "\n" + summary_text(found.result[1]) + load_text(*found.result)
            if plan.values.get("plot"):
                text += "\n" + plot_run(found.result[0], ascii_only=ascii_only(plan.values.get("output")))
    return text, int(partial or found.load is None)


class _StoppedError(Exception):
    """The person pressed Ctrl-C during a probe."""


def _missed(summary: Summary) -> bool:
    return any(not result.met for result in summary.slo or ())


def _warn(work: Work, summaries: Sequence[Summary], *, always: bool = False) -> None:
    """Say on stderr what the result does not say itself."""
    if always or work.plan.values.get("json") or "output" in work.plan.values:
        for warning in dict.fromkeys(
            text for summary in summaries for text in (*summary.warnings, *summary.violations)
        ):
            work.console.warn(warning)


def _code(work: Work, summaries: Sequence[Summary], *, missed: bool) -> int:
    lost = any(summary.requests.failed or summary.requests.rejected or summary.partial for summary in summaries)
    verdicts = {(summary.client or {}).get("verdict") for summary in summaries}
    if "saturated" in verdicts:
        work.console.warn("the client was saturated: the figures are as much its own as the server's; see --processes")
    strict = work.measurer.load.strict and "saturated" in verdicts
    return int(bool(lost or missed or strict))
