"""`servesim calibrate`: the figures of a device from measurements of real runs, through the simulator itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from servesim.calibrate.calibrate import Calibration, calibrate
from servesim.calibrate.input import read_measurements
from servesim.calibrate.parameters import FITTABLE
from servesim.catalog.hardware import device_document
from servesim.cli.options import CONFIG, JSON, OUTPUT, QUIET, SERVER_GROUPS
from servesim.cli.parser import Parser
from servesim.cli.runner import Call, Result
from servesim.config.option import Group, Option, given_of, one_of, text
from servesim.config.server import ServerSpec
from servesim.console import OutputFile
from servesim.errors import InputError, RunError
from servesim.report.calibration import calibration_text
from servesim.report.documents import document, to_json
from servesim.runs.as_json import as_json
from servesim.units import parse_list

EXAMPLES = (
    "servesim calibrate c1.jsonl c32.jsonl --hardware rtx-4090-24gb --model llama-3.1-8b -o fitted.json",
    "servesim calibrate report.json run.jsonl table.csv --hardware l4-24gb --cost-model detailed",
    "servesim calibrate c1.jsonl c32.jsonl --hardware l4-24gb --cost-model detailed --fit mfu,mbu,overhead_ms",
)

ABOUT = """\
Fit the cost model of a device to measurements: saved runs, reports (loadgen --json), an engine's log of requests, or
tables (CSV or JSON: prompt_tokens, output_tokens, concurrency, ttft_ms, tpot_ms, e2e_s, ...), in any mixture. The last
line is the fitted device; -o writes it as a file that every verb's --hardware takes. Exit 1: the fit is unusable."""

# What a fit finds, or what makes no difference to it.
_FITTED = ("mfu", "mbu", "step_overhead_s", "cost_model")

FIT = Group(
    "fit",
    (
        Option(
            "--cost-model",
            "cost_model",
            "what is fitted: {choices}",
            one_of("cost model", FITTABLE),
            "NAME",
            "roofline",
            common=True,
        ),
        Option(
            "--fit",
            "fit",
            "a comma list of the model's parameters, free of any guess",
            text,
            "NAMES",
            "all that make sense",
            common=True,
        ),
        replace(OUTPUT, key="device_file", help="write the fitted device to FILE, for --hardware FILE"),
    ),
)


def build_parser() -> Parser:
    server = [group.without(*_FITTED) for group in SERVER_GROUPS]
    for key in ("model", "hardware"):
        server[0] = server[0].changed(key, default="as the file says")
    parser = Parser(
        "calibrate",
        ABOUT,
        EXAMPLES,
        (FIT, *(group for group in server if group.options), Group("output", (JSON, CONFIG, QUIET))),
        usage="FILE... [options]",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="a saved run, a report, an engine's log or a table")
    return parser


def run(call: Call) -> Result:
    values = call.values
    files = values.get("files") or []
    if not files:
        raise InputError("name what was measured: a saved run, a report, an engine's log or a table")
    known = given_of(ServerSpec, values)
    options = {key: value for key, value in values.items() if key in known and key not in _FITTED}
    cost_model = values.get("cost_model", "roofline")
    names = parse_list(values["fit"], text, "--fit") if "fit" in values else []
    measurements = [found for path in files for found in read_measurements(path, options)]
    with ExitStack() as stack:
        kept = stack.enter_context(OutputFile(values["device_file"])) if "device_file" in values else None
        fit = calibrate(measurements, cost_model=cost_model, names=names)
        if kept is not None and fit.usable:
            kept.write(to_json(_device(fit, files)))
            kept.commit()
    fitted = fit.reported()
    config = {**options, "cost_model": cost_model, "fit": values.get("fit"), "files": files}
    unusable = RunError(f"the fit is unusable: its points are off by {fit.mean_error:.0%} on average")
    return Result(
        document=lambda: document("calibrate", config, as_json(fitted)),
        text=lambda: calibration_text(fitted),
        in_text=fit.warnings,
        error=None if fit.usable else unusable,
    )


def _device(fit: Calibration, files: Sequence[str]) -> dict[str, Any]:
    """Return the file of the fitted device, with where its figures came from."""
    preset = fit.preset()
    fitted = as_json(fit.reported())
    provenance = {key: fitted[key] for key in ("cost_model", "parameters", "points", "mean_error", "hints", "warnings")}
    whole = device_document(fit.hardware, base=preset.get("base"), provenance={"files": list(files), **provenance})
    return {**whole, "name": preset["name"]}
