"""`servesim compare A B`: two runs side by side, with intervals, verdicts and gates."""

from __future__ import annotations

from typing import Any

from servesim.cli.options import JSON, OUTPUT, QUIET
from servesim.cli.parser import Parser
from servesim.cli.runner import Call, Result
from servesim.comparison.compare import MARGIN, compare
from servesim.comparison.gate import TRIPPED, judge, parse_gates
from servesim.comparison.input import read_side
from servesim.config.option import Group, Option, text
from servesim.errors import InputError
from servesim.report.comparison import CANNOT_TELL, comparison_markdown, comparison_text
from servesim.report.documents import document
from servesim.units import parse_finite

EXAMPLES = (
    "servesim compare yesterday.jsonl today.jsonl",
    "servesim compare simulated.jsonl measured.jsonl --markdown",
    "servesim compare main.jsonl branch.jsonl --fail-if 'ttft_p95>+10%' --fail-if 'throughput<-5%'",
    "servesim compare run-a.jsonl run-b.jsonl --fail-if 'ttft_p95>500ms,failed_share>0.01' --json",
    "servesim compare 'sweep.json#concurrency=8' 'sweep.json#concurrency=32'",
)


def _share(value: Any, name: str) -> float:
    if isinstance(value, str) and value.endswith("%"):
        return parse_finite(value[:-1], name, minimum=0.0, maximum=100.0) / 100
    raise InputError(f"{name} is {value!r:.42}, must be a percentage such as 2%")


FAIL_IF = Option(
    "--fail-if",
    "fail_if",
    "exit 1 where the whole interval passes a limit: 'ttft_p95>+10%' on the change, 'ttft_p95>500ms' on B; a comma "
    "list, or given again",
    text,
    "LIMIT",
    repeat=True,
)
GATE = Group("gate", (FAIL_IF, Option("--strict", "strict", "exit 1 as well where a gate cannot tell")))
RESULT = Group(
    "output",
    (
        Option(
            "--margin", "margin", "a difference that lies within it is none", _share, "PERCENT", f"{MARGIN * 100:g}%"
        ),
        JSON,
        Option("--markdown", "markdown", "print Markdown instead of text"),
        OUTPUT,
        QUIET,
    ),
)


def build_parser() -> Parser:
    parser = Parser(
        "compare",
        "Compare two runs: saved runs (--save), or the --json of simulate, loadgen or one row of sweep.\n"
        "Saved runs have intervals, 90 % of noise within, so that a gate is tripped by a change and not by noise.\n"
        "Exit 1: a --fail-if trips.",
        EXAMPLES,
        (GATE, RESULT),
        usage="A B [options]",
    )
    parser.add_argument("a", metavar="A", help="what it was: FILE, or FILE#ROW of a sweep")
    parser.add_argument("b", metavar="B", help="what it is, in the same forms")
    return parser


def run(call: Call) -> Result:
    values = call.values
    if values.get("json") and values.get("markdown"):
        raise InputError("--json and --markdown are given; choose one")
    gates = parse_gates(values.get("fail_if", ()))
    comparison = compare(read_side(values["a"]), read_side(values["b"]), values.get("margin", MARGIN))
    results = [judge(gate, comparison) for gate in gates]
    config = {key: values.get(key) for key in ("a", "b", "margin", "fail_if", "strict")}
    body = comparison.as_dict() | {"gates": [result.as_dict() for result in results]}
    compared = document("compare", config, body)
    unknown = [each for each in results if each.result == CANNOT_TELL]
    tripped = [each for each in results if each.result == TRIPPED]
    return Result(
        document=lambda: compared,
        text=lambda: comparison_markdown(compared) if values.get("markdown") else comparison_text(compared),
        code=int(bool(tripped or (unknown and values.get("strict")))),
        warnings=[
            *(f"gate {each.gate.text} cannot tell and does not trip: {each.reason}" for each in unknown),
            *(f"gate {each.gate.text} tripped: {each.reason}" for each in tripped),
        ],
    )
