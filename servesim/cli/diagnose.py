"""`servesim diagnose`: what binds a server, from its metric pages or from a report, and which knob to turn first."""

from __future__ import annotations

from dataclasses import replace

from servesim.catalog.hardware import load_hardware
from servesim.catalog.models import load_model
from servesim.cli.options import DEVICE, JSON, LIMITS, OUTPUT, QUIET, SLO
from servesim.cli.parser import Parser
from servesim.cli.runner import Call, Result
from servesim.config.option import Group, Option, given_of, seconds, text
from servesim.config.server import ServerSpec
from servesim.config.server_flags import parse_flags
from servesim.diagnose.diagnose import diagnosis
from servesim.diagnose.input import ServerHints, read_inputs
from servesim.errors import InputError
from servesim.report.diagnosis import diagnosis_text
from servesim.report.documents import document
from servesim.summary.slo import parse_slos

EXAMPLES = (
    "servesim diagnose before.txt after.txt --window 30s --flags 'vllm serve Qwen/Qwen3-8B --max-num-seqs 256'",
    "servesim diagnose metrics.txt --hardware l4-24gb --model llama-3.1-8b",
    "curl -s localhost:8000/metrics | servesim diagnose -",
    "servesim diagnose report.json",
)

READ = Group(
    "what is known",
    (
        Option(
            "--window",
            "window_s",
            "time between two metric pages",
            seconds(positive=True),
            "TIME",
            "unknown: no rates",
            common=True,
        ),
        Option(
            "--flags",
            "flags",
            "the command line that started the server",
            text,
            "'vllm serve ...'",
            common=True,
        ),
        Option("--try", "try", "turn the first knob in the simulator (reports of simulate and sweep)", common=True),
        replace(SLO, help="objectives for a saved run"),
    ),
)


def build_parser() -> Parser:
    parser = Parser(
        "diagnose",
        "Which budget binds, which knob to turn first, what will not help. FILE is a /metrics page (or two, the\n"
        "earlier first), the JSON report of simulate, loadgen or sweep, or a saved run. Never exit 1 by its verdict.",
        EXAMPLES,
        (READ, DEVICE, LIMITS, Group("output", (JSON, OUTPUT, QUIET))),
        usage="FILE... [options]",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="what to read; - is standard input")
    return parser


def run(call: Call) -> Result:
    values = call.values
    files = values.get("files", [])
    if not files:
        raise InputError("name a file: servesim diagnose FILE..., such as a saved /metrics page")
    hints = ServerHints(
        window_s=values.get("window_s"),
        flags=parse_flags(values["flags"]) if "flags" in values else None,
        options=given_of(ServerSpec, values),
        slos=tuple(parse_slos(values.get("slo", ()))),
    )
    if "hardware" in values:
        load_hardware(values["hardware"])  # a name mistyped here is worth more than a note
    if "model" in values:
        load_model(values["model"])
    found = diagnosis(*read_inputs(files, hints), try_it=values.get("try", False))
    for note in found.notes:
        call.console.note(note)
    config = {"files": files, **{key: value for key, value in values.items() if key not in ("files", "json", "output")}}
    return Result(document=lambda: document("diagnose", config, found.as_dict()), text=lambda: diagnosis_text(found))
