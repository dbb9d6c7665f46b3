"""`servesim compare A B`: two runs side by side, with intervals, verdicts and gates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from servesim.cli.options import JSON, OUTPUT, QUIET
from servesim.cli.output import result_to
from servesim.cli.parser import Parser
from servesim.comparison.compare import MARGIN, compare
from servesim.comparison.gate import TRIPPED, UNKNOWN, judge, parse_gates
from servesim.comparison.input import read_side
from servesim.config.option import Group, Option, text
from servesim.console import Console
from servesim.errors import InputError
from servesim.report.comparison import comparison_markdown, comparison_text
from servesim.report.documents import document, to_json
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
    )
    parser.usage = "servesim compare A B [options]"
    parser.add_argument("a", metavar="A", help="what it was: FILE, or FILE#ROW of a sweep")
    parser.add_argument("b", metavar="B", help="what it is, in the same forms")
    return parser


def run(argv: Sequence[str]) -> int:
    values = build_parser().read(argv)
    if values is None:
        return 0
    if values.get("json") and values.get("markdown"):
        raise InputError("--json and --markdown are given; choose one")
    gates = parse_gates(values.get("fail_if", ()))
    console = Console(quiet=values.get("quiet", False))
    with result_to(values.get("output")) as write:
        comparison = compare(read_side(values["a"]), read_side(values["b"]), values.get("margin", MARGIN))
        results = [judge(gate, comparison) for gate in gates]
        config = {key: values.get(key) for key in ("a", "b", "margin", "fail_if", "strict")}
        body = comparison.as_dict() | {"gates": [result.as_dict() for result in results]}
        told = document("compare", config, body)
        if values.get("json"):
            write(to_json(told))
        else:
            write(comparison_markdown(told) if values.get("markdown") else comparison_text(told))
    for result in results:
        if result.result == UNKNOWN:
            console.warn(f"gate {result.gate.text} cannot tell and does not trip: {result.reason}")
    failing = (TRIPPED, UNKNOWN) if values.get("strict") else (TRIPPED,)
    for result in results:
        if result.result == TRIPPED:
            console.warn(f"gate {result.gate.text} tripped: {result.reason}")
    return int(any(result.result in failing for result in results))
