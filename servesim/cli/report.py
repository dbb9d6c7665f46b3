"""`servesim report`: pictures and exports of saved runs and of the documents of sweeps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from servesim.catalog.hardware import load_hardware
from servesim.catalog.models import load_model
from servesim.cli.options import OUTPUT, QUIET, SLO
from servesim.cli.parser import Parser
from servesim.cli.runner import Call, Result
from servesim.config.option import Group, Option, one_of, text
from servesim.console import one_line
from servesim.errors import InputError
from servesim.inputs import Contents, FileKind, recognise
from servesim.report.charts import FIGURES
from servesim.report.input import ReportInput, ReportRun, distinct, grid_of
from servesim.report.renderers import RENDERERS, format_of
from servesim.report.roofline import device_of
from servesim.runs.reader import read_saved
from servesim.summary.slo import Slo, parse_slos
from servesim.summary.summary import summarize
from servesim.units import parse_list

EXAMPLES = (
    "servesim report run.jsonl -o report.html",
    "servesim report simulated.jsonl measured.jsonl --slo ttft_p95=500ms -o compared.html",
    "servesim report sweep.json -o curve.svg",
    "servesim report run.jsonl --figures timeline,itl -o incident.svg",
    "servesim report run.jsonl --format chrome-trace -o trace.json",
    "servesim report measured.jsonl --hardware l4-24gb --model llama-3.1-8b --format markdown",
)

MAX_FILES = 12


def _figure_names(value: Any, name: str) -> list[str]:
    return list(dict.fromkeys(parse_list(value, one_of("figure", FIGURES), name)))


SHOWN = Group(
    "what is shown",
    (
        Option(
            "--format",
            "format",
            f"{', '.join(RENDERERS)}",
            one_of("format", RENDERERS),
            "NAME",
            "by the name of -o FILE, else html",
        ),
        Option("--figures", "figures", f"of {', '.join(FIGURES)}", _figure_names, "LIST", "all"),
        Option("--title", "title", "the title of the report", text, "TEXT", "the names of the files"),
        SLO,
        Option("--hardware", "hardware", "the device of a measured run, for its roofline", text, "NAME"),
        Option("--model", "model", "the model of a measured run, for its roofline", text, "NAME", "the run's own"),
    ),
)

JSON = Option("--json", "json", "the summaries as one JSON document: --format json")


def build_parser() -> Parser:
    formats = "\n".join(f"  {name:<14}{renderer.summary}" for name, renderer in RENDERERS.items())
    parser = Parser(
        "report",
        "Pictures and exports of saved runs (--save) and of the JSON documents of sweep, loadgen and simulate.\n"
        "Several runs are drawn into the same pictures. Exit 1: the file cannot be written.\n\n"
        f"{formats}",
        EXAMPLES,
        (SHOWN, Group("output", (JSON, OUTPUT, QUIET))),
        usage="RUN... [options]",
    )
    parser.add_argument("files", nargs="*", metavar="RUN", help="saved runs and JSON documents")
    return parser


def run(call: Call) -> Result:
    values = call.values
    files = values.get("files") or []
    if not files:
        raise InputError("name a saved run or a document: servesim report run.jsonl -o report.html")
    if len(files) > MAX_FILES:
        raise InputError(f"{len(files)} files are too many for one picture; give at most {MAX_FILES}")
    if values.get("json") and values.get("format", "json") != "json":
        raise InputError(f"--json is --format json, and --format {values['format']} was given as well")
    name = "json" if values.get("json") else values.get("format") or format_of(values.get("output"))
    report = read_report(files, parse_slos(values.get("slo", ())), title=values.get("title"))
    report.hardware, report.model = values.get("hardware"), values.get("model")
    _check_device(report)
    for note in report.notes:
        call.console.note(note)
    return Result(text=lambda: RENDERERS[name].render(report, values.get("figures") or list(FIGURES)))


def read_report(files: Sequence[str], slos: Sequence[Slo] = (), *, title: str | None = None) -> ReportInput:
    """Return what is in `files`; raise `InputError` for one that is neither a saved run nor a document.

    Objectives are those of `slos`, or those that a run was made with.
    """
    report = ReportInput(title or "servesim: " + ", ".join(map(os.path.basename, files)))
    names = distinct([_stem(path) for path in files])
    for path, name in zip(files, names, strict=True):
        file = recognise(path)
        if file.kind is not FileKind.RUN:
            report.grids.append(grid_of(_document(file), name=name, path=path))
            continue
        saved = read_saved(path)
        limits = list(slos) or _own_slos(saved.run.config)
        report.runs.append(
            ReportRun(
                name=name,
                path=path,
                command=saved.command,
                version=saved.version,
                run=saved.run,
                summary=summarize(saved.run, limits),
                slos=limits,
            )
        )
        if not len(saved.run.records):
            report.notes.append(f"{name}: the run has no request that is over")
    return report


def _stem(path: str) -> str:
    """Return the name of a file without what tells its form."""
    name = os.path.basename(path) or path
    return name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json") or name


def _own_slos(config: Mapping[str, Any]) -> list[Slo]:
    """Return the objectives in a saved configuration; whatever cannot be read as one is left out."""
    texts = config.get("slo")
    try:
        return parse_slos([each for each in texts if isinstance(each, str)]) if isinstance(texts, list) else []
    except InputError:
        return []


def _document(file: Contents) -> dict[str, Any]:
    if file.fault:
        cause = one_line(file.fault)[:60]
        raise InputError(f"{file.path}: is no JSON ({cause}); give a saved run or a document")
    if not isinstance(file.value, dict):
        raise InputError(f"{file.path}: must be a saved run or a JSON object that servesim wrote")
    return file.value


def _check_device(report: ReportInput) -> None:
    """Refuse a device that was named and is none."""
    if report.model is not None and report.hardware is None:
        raise InputError("--model is of a measured run's roofline, which wants --hardware too")
    if report.hardware is None:
        return
    load_hardware(report.hardware)
    if report.model is not None:
        load_model(report.model)
    configs: list[Mapping[str, Any]] = [named.run.config for named in report.runs]
    configs = configs or [grid.config for grid in report.grids]
    if all(device_of(config, report.hardware, report.model) is None for config in configs):
        raise InputError(
            f"the model of the run is unknown or does not fit {report.hardware}; name a preset or a file with --model"
        )
