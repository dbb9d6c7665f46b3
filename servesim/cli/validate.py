"""`servesim validate`: rerun the evidence for the cost models, and say which claims hold."""

from __future__ import annotations

import os
from dataclasses import replace

from servesim.calibrate.validate import EVIDENCE, validate
from servesim.cli.options import JOBS, JSON, OUTPUT, QUIET
from servesim.cli.parser import Parser
from servesim.cli.runner import Call, Result
from servesim.config.option import Group, Option, text
from servesim.errors import InputError
from servesim.report.calibration import evidence_markdown, evidence_text
from servesim.report.documents import document
from servesim.units import parse_list, suggest

EXAMPLES = (
    "servesim validate --only recovery,m4-pro",
    "servesim validate --data ~/measurements --markdown -o evidence.md",
    "SERVESIM_DATA=~/measurements servesim validate --json",
)

DATA_VARIABLE = "SERVESIM_DATA"


def build_parser() -> Parser:
    names = ", ".join(EVIDENCE)
    evidence = Group(
        "evidence",
        (
            Option("--data", "data", "the folder of the data sets", text, "FOLDER", f"${DATA_VARIABLE}"),
            Option("--only", "only", f"a comma list of {names}", text, "NAMES", "all"),
            replace(JOBS, default="one a core"),
            Option("--markdown", "markdown", "print Markdown instead of text"),
        ),
    )
    return Parser(
        "validate",
        "Rerun the evidence: fit each data set and hold the model against what was not fitted. A data set that is not\n"
        "at hand is skipped, and said so. Exit 1: a claim does not hold.",
        EXAMPLES,
        (evidence, Group("output", (JSON, OUTPUT, QUIET))),
    )


def run(call: Call) -> Result:
    values, console = call.values, call.console
    folder = values.get("data") or os.environ.get(DATA_VARIABLE) or None
    if folder is not None and not os.path.isdir(folder):
        raise InputError(f"data is {folder!r}, must be a folder")
    names = parse_list(values["only"], text, "--only") if "only" in values else []
    for name in names:
        if name not in EVIDENCE:
            raise suggest("evidence", name, EVIDENCE)
    jobs = values.get("jobs") or os.cpu_count() or 1
    with console.progress("groups", None) as progress:
        found = validate(
            folder, names=names, jobs=jobs, progress=lambda done, total: progress.update(done, f"of {total}")
        )
    for each in found:
        if each.skipped:
            console.note(f"{each.name} was skipped: {each.skipped}")
    evidence = [each.as_dict() for each in found]
    config = {"only": values.get("only"), "data": folder}
    return Result(
        document=lambda: document("validate", config, {"evidence": evidence}),
        text=lambda: evidence_markdown(evidence) if values.get("markdown") else evidence_text(evidence),
        code=int(not all(each.met for each in found)),
    )
