"""`servesim trace`: what is in a trace, whatever its format; a cut of it, or another pace, as servesim's JSONL."""

from __future__ import annotations

import math
from typing import Any

from servesim.cli.options import JSON, OUTPUT, QUIET
from servesim.cli.parser import Parser
from servesim.cli.runner import Call, Result
from servesim.config.option import Group, Option, count, options_of, seconds
from servesim.config.workload import WorkloadSpec
from servesim.errors import InputError
from servesim.report.documents import document
from servesim.report.trace import trace_text
from servesim.runs.as_json import as_json
from servesim.units import parse_finite, suggest
from servesim.workload.arrivals import schedule_of
from servesim.workload.requests import Requests
from servesim.workload.reshape import at_rate, at_speed, sample, window
from servesim.workload.traces.describe import describe_trace
from servesim.workload.traces.trace import EXAMPLES as EXAMPLE_TRACES
from servesim.workload.traces.trace import read_trace, trace_lines

EXAMPLES = (
    "servesim trace describe burst",
    "servesim trace describe AzureLLMInferenceTrace_conv.csv --json",
    "servesim trace convert conversation_trace.jsonl -o mooncake.jsonl",
    "servesim trace sample BurstGPT_1.csv.gz --from 1d --to 2d --requests 5000 -o day2.jsonl",
    "servesim trace scale ShareGPT_V3.json --rate 4 -o chats.jsonl",
    "servesim trace rates access.log --every 15m -o day.csv",
    "zcat access.log.gz | servesim trace scale - --speed 2 -o twice.jsonl",
)

ACTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "describe": ("what is in it", ("json",)),
    "convert": ("all of it as servesim's JSONL", ("speed",)),
    "sample": (
        "a cut: a window of time, the first requests, requests at random",
        ("first", "from_s", "to_s", "requests", "seed", "speed"),
    ),
    "scale": ("another pace: --speed or --rate", ("speed", "rate", "seed")),
    "rates": ("its curve of arrivals, for --rate-schedule", ("every_s",)),
}
"""Each action, and the options that are its own."""


def _number(value: Any, name: str) -> float:
    return parse_finite(value, name, above=0.0, maximum=1e9)


READING = Group(
    "reading",
    options_of(WorkloadSpec, "trace_format", "time_unit", "skip_bad_rows"),
)

CUTTING = Group(
    "sample",
    (
        Option("--from", "from_s", "requests that arrive at TIME or later", seconds(), "TIME", "0s"),
        Option("--to", "to_s", "requests that arrive before TIME", seconds(positive=True), "TIME", "the end"),
        Option("--first", "first", "the first N rows", count()),
        Option("--requests", "requests", "N requests at random, sessions kept whole", count()),
        Option("--seed", "seed", "of every random draw", count(minimum=0, maximum=2**63), default="7"),
    ),
)

PACING = Group(
    "scale",
    (
        Option("--speed", "speed", "arrivals X times as fast", _number, "X"),
        Option(
            "--rate",
            "rate",
            "stretch arrivals to a mean of R requests per second; without times, sessions begin R a second (Poisson)",
            _number,
            "R",
        ),
    ),
)


CURVE = Group("rates", (Option("--every", "every_s", "a row every TIME", seconds(positive=True), "TIME", "5m"),))


def build_parser() -> Parser:
    actions = "\n".join(f"  {name:<10}{about}" for name, (about, _) in ACTIONS.items())
    examples = ", ".join(EXAMPLE_TRACES)
    parser = Parser(
        "trace",
        f"Traces of every known format, recognised by content. Exit 1: the file cannot be written.\n\n{actions}",
        EXAMPLES,
        (READING, CUTTING, PACING, CURVE, Group("output", (JSON, OUTPUT, QUIET))),
        usage=f"{'|'.join(ACTIONS)} FILE [options]",
    )
    parser.add_argument("action", nargs="?", help=" or ".join(ACTIONS))
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help=f"the trace, plain or gzip; - is standard input; or an example: {examples}",
    )
    return parser


def run(call: Call) -> Result:
    values, console = call.values, call.console
    action, path = values.get("action"), values.get("file")
    if action is None:
        raise InputError(f"say what to do: servesim trace {'|'.join(ACTIONS)} FILE")
    if action not in ACTIONS:
        raise suggest("action", action, ACTIONS)
    if path is None:
        raise InputError(f"name the trace: servesim trace {action} FILE, or - for standard input")
    _check_options(action, values)
    trace = read_trace(
        path,
        trace_format=values.get("trace_format"),
        time_unit=values.get("time_unit"),
        skip_bad_rows=values.get("skip_bad_rows", False),
        arrivals_required=False,
        limit=values.get("first"),
    )
    requests = _reshaped(trace.requests, values)  # refuses before anything is said
    curve = schedule_of(requests.arrival_s, values.get("every_s", 300.0)) if action == "rates" else None
    for note in (trace.describe(), *trace.notes):
        console.note(note)
    if action == "describe":
        described = describe_trace(trace)
        config = {"trace": path} | {key: values.get(key) for key in ("trace_format", "time_unit", "skip_bad_rows")}
        return Result(
            document=lambda: document("trace", config, as_json(described)), text=lambda: trace_text(described)
        )
    if curve is not None:
        rates = zip(curve.times_s, curve.rates, strict=True)
        return Result(text=lambda: ("time,rate\n", *(f"{time_s:g},{rate:.6g}\n" for time_s, rate in rates)))
    if len(requests) != len(trace.requests):
        console.note(f"{len(requests):,} of {len(trace.requests):,} requests are written")
    return Result(text=lambda: trace_lines(requests))


def _check_options(action: str, values: dict[str, Any]) -> None:
    """Refuse an option that another action has, and an action without what makes it one."""
    allowed = ACTIONS[action][1]
    for group in (CUTTING, PACING, CURVE, Group("", (JSON,))):
        for option in group.options:
            if option.key in values and option.key not in allowed:
                owners = [name for name, (_, keys) in ACTIONS.items() if option.key in keys]
                raise InputError(f"{option.flag} belongs to trace {' and '.join(owners)}, not to {action}")
    if action == "scale" and ("speed" in values) == ("rate" in values):
        raise InputError("trace scale takes one of --speed X and --rate R")
    if action == "sample" and not values.keys() & {"from_s", "to_s", "first", "requests"}:
        raise InputError("trace sample takes at least one of --from, --to, --first and --requests")
    if values.get("from_s", 0.0) >= values.get("to_s", math.inf):
        raise InputError("--from is not before --to")


def _reshaped(requests: Requests, values: dict[str, Any]) -> Requests:
    """Return the requests cut and paced as the options say: first the window, then the sample, then the pace."""
    seed = values.get("seed", 7)
    if values.keys() & {"from_s", "to_s"}:
        requests = window(requests, values.get("from_s", 0.0), values.get("to_s", math.inf))
    if "requests" in values:
        requests = sample(requests, values["requests"], seed)
    if "speed" in values:
        requests = at_speed(requests, values["speed"])
    if "rate" in values:
        requests = at_rate(requests, values["rate"], seed)
    return requests
