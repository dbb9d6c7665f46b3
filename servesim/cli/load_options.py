"""The options of a workload, each defined once, and the frozen spec that they become."""

from __future__ import annotations

from typing import Any

from servesim.cli.parser import Check, Group, Option
from servesim.config.server import count, one_of, seconds, text
from servesim.config.workload import WorkloadSpec
from servesim.summary.slo import Slo, parse_slos
from servesim.units import parse_count, parse_finite
from servesim.workload.arrivals import ARRIVALS
from servesim.workload.lengths import LENGTHS, parse_lengths
from servesim.workload.traces.fields import TIME_UNITS
from servesim.workload.traces.trace import TRACE_FORMATS


def _lengths(value: Any, name: str) -> str:
    return parse_lengths(value if isinstance(value, str) else str(parse_count(value, name)), name).text


def _rate(value: Any, name: str) -> float:
    return parse_finite(value, name, above=0.0)


def _share(value: Any, name: str) -> float:
    return parse_finite(value, name, minimum=0.0, maximum=1000.0)


def _load(
    flag: str, about: str, check: Check, metavar: str = "N", default: str = "", *, key: str = "", swept: bool = True
) -> Option:
    key = key or flag.strip("-").replace("-", "_")
    aliases = ("--max-tokens",) if flag == "--output-tokens" else ()
    return Option(flag, key, about, check, metavar, default, aliases=aliases, swept=swept)


LENGTHS_TEXT = "N, LOW-HIGH or a distribution: " + ", ".join(kind.usage for kind in LENGTHS.values())

WORKLOAD = Group(
    "workload",
    (
        _load("--requests", "how many requests", count(), default="256; every row of a trace"),
        _load("--prompt-tokens", f"tokens of a prompt: {LENGTHS_TEXT}", _lengths, "LENGTH", "256-1024"),
        _load("--output-tokens", "tokens of an answer, in the same forms", _lengths, "LENGTH", "64-256"),
        _load("--seed", "of every random draw", count(minimum=0, maximum=2**63), default="7"),
        _load("--concurrency", "closed loop: N requests in flight, each end releases the next", count()),
        _load("--stagger", "closed loop: spread the first wave over TIME", seconds(), "TIME", "0s", key="stagger_s"),
        _load("--rate", "open loop: requests per second, whatever the server does", _rate, "R"),
        _load(
            "--arrivals", f"open loop: {', '.join(ARRIVALS)}", one_of("arrival process", ARRIVALS), "NAME", "poisson"
        ),
        _load("--burstiness", "open loop: shape of gamma gaps, below 1 burstier than Poisson", _rate, "X", "1"),
        _load("--ramp", "open loop: the rate grows from 0 over TIME", seconds(), "TIME", "0s", key="ramp_s"),
        Option(
            "--rate-schedule",
            "rate_schedule",
            "open loop: a rate that changes, from time,rate rows in FILE; once through, or to --requests or --duration",
            text,
            "FILE",
        ),
        _load("--duration", "no arrivals after TIME", seconds(positive=True), "TIME", "no limit", key="duration_s"),
        _load("--shared-prefix-tokens", "tokens before the prompt that requests share", count(minimum=0), default="0"),
        _load("--prefixes", "how many different shared prefixes there are", count(), default="1"),
        _load("--turns", "turns of a session, each prompt holding the earlier turns", _lengths, "LENGTH", "1"),
        _load("--think-time", "pause between the turns of a session", seconds(), "TIME", "0s", key="think_s"),
        _load("--priorities", "levels of priority, equally likely, for --policy priority", count(), default="1"),
        Option(
            "--classes",
            "classes",
            "who asks what, a comma list: NAME=WEIGHT and, if they differ, /priority=P /prompt=LENGTH /output=LENGTH "
            "/adapter=NAME behind it",
            text,
            "CLASSES",
        ),
        _load("--adapters", "LoRA adapters, equally likely, for --max-loras", count(minimum=0), default="0"),
        _load("--retries", "how often a client comes back after a failure", count(minimum=0), default="0"),
        _load("--retry-budget", "retries of all clients per request of theirs", _share, "X", "no limit"),
        _load(
            "--backoff", "pause before the first retry, doubled for each next", seconds(), "TIME", "1s", key="backoff_s"
        ),
    ),
)

TRACE = Group(
    "trace",
    (
        _load("--trace", "replay the requests of FILE", text, "FILE", swept=False),
        _load(
            "--trace-format",
            f"instead of recognising it: {', '.join(TRACE_FORMATS)}",
            one_of("trace format", TRACE_FORMATS),
            "NAME",
            swept=False,
        ),
        _load(
            "--time-unit",
            f"of the trace's times, where that is ambiguous: {', '.join(TIME_UNITS)}",
            one_of("time unit", TIME_UNITS),
            "UNIT",
            swept=False,
        ),
        Option("--skip-bad-rows", "skip_bad_rows", "leave out rows that cannot be read, and count them"),
        _load("--speed", "replay the arrivals X times as fast", _rate, "X", "1"),
    ),
)

HORIZON = _load(
    "--horizon",
    "stop the simulation at TIME, whatever is unfinished",
    seconds(positive=True),
    "TIME",
    "run to the end",
    key="horizon_s",
)

WORKLOAD_GROUPS = (WORKLOAD, TRACE)

SLO = Option(
    "--slo",
    "slo",
    "a limit on a share of the requests, such as ttft_p95=500ms; a comma list, or given again",
    text,
    "LIMIT",
    repeat=True,
)


def workload_spec(values: dict[str, Any]) -> WorkloadSpec:
    """Return the workload that `values` ask for."""
    known = [option.key for group in WORKLOAD_GROUPS for option in group.options]
    return WorkloadSpec(**{key: values[key] for key in known if key in values})


def slos_of(values: dict[str, Any]) -> list[Slo]:
    """Return the objectives that `values` ask for."""
    return parse_slos(values.get("slo", ()))
