"""The options of `loadgen` beside the workload's: where requests go, what they say, how the run is measured."""

from __future__ import annotations

from typing import Any

from servesim.cli.load_options import SLO, TRACE, WORKLOAD
from servesim.cli.options import CONFIG, JSON, OUTPUT, PLOT, QUIET, SAVE
from servesim.cli.parser import Group, Option
from servesim.client.flavour import API_FLAVOURS
from servesim.config.loadgen import LOAD_CHECKS, SEARCHED, LoadSpec
from servesim.config.server import count, one_of


def _option(flag: str, about: str, metavar: str = "N", default: str = "", *, key: str = "", **more: Any) -> Option:
    key = key or flag.strip("-").replace("-", "_")
    check = one_of("api", API_FLAVOURS) if key == "api" else LOAD_CHECKS[key]
    return Option(flag, key, about, check, metavar, default, **more)


SERVER = Group(
    "server",
    (
        _option("--url", "base URL, with or without a path, /v1 or a whole route", "URL"),
        _option("--api", f"what the server speaks: {', '.join(API_FLAVOURS)}", "NAME", "chat"),
        _option("--model", "the model to ask for", "NAME", "the first that /v1/models lists"),
        _option("--api-key-env", "environment variable that holds the API key; never printed, never saved", "NAME"),
        _option("--header", "one more header, 'Name: value'; may be given again", "HEADER", key="headers", repeat=True),
        Option("--insecure", "insecure", "accept any TLS certificate"),
        _option("--ca-file", "certificate authorities to trust, PEM", "FILE"),
        _option("--proxy", "go through this proxy; env: the environment's. Without it, none is used", "URL"),
        _option("--wait-ready", "wait up to TIME for the server to load its model", "TIME", "0s", key="wait_ready_s"),
    ),
)

REQUEST = Group(
    "requests",
    (
        Option("--ignore-eos", "ignore_eos", "go on to the asked length past the model's own end"),
        _option("--min-tokens", "fewest output tokens"),
        _option("--temperature", "sampling temperature", "X", "the server's"),
        _option("--extra-body", "JSON object merged into every request; null takes a field out", "JSON"),
        Option("--no-stream", "no_stream", "ask for one answer instead of a stream: E2E only"),
        _option("--prompt", "the same text for every request", "TEXT"),
        _option("--prompts", "texts or messages from FILE, one JSON object a line, in turn", "FILE"),
        _option("--prompt-salt", "make the synthetic prompts of an earlier run again", "TEXT", "new for each run"),
    ),
)

MEASUREMENT = Group(
    "measurement",
    (
        _option("--warmup", "requests before the clock starts, one after the other, not counted", default="2; scans 3"),
        _option("--repeat", "measure N times and show the spread", default="1; scans 5 requests a length"),
        _option("--client-timeout", "give a request up after TIME", "TIME", "never", key="client_timeout_s"),
        _option("--idle-timeout", "give a request up TIME after its last event", "TIME", "5min", key="idle_timeout_s"),
        _option("--grace", "after Ctrl-C, wait up to TIME for what is in flight", "TIME", "10s", key="grace_s"),
        _option("--processes", "client processes on one schedule; gains only where cores are free", default="1"),
        Option("--strict", "strict", "exit 1 when the client was saturated: it measured itself"),
        _option("--find", f"search for the highest load within the --slo: {' or '.join(SEARCHED)}", "LOAD"),
        _option("--find-max", "highest load that the search may try", "X", "no limit"),
    ),
)

LIVE = Option(
    "--live",
    "live",
    "show the client's and the server's figures on a page at this port while it runs; 0: any",
    count(minimum=0, maximum=65535),
    "PORT",
)

NOT_ON_THE_WIRE = ("priorities",)

CLIENT_GROUPS = (
    SERVER,
    REQUEST,
    Group(WORKLOAD.title, tuple(option for option in WORKLOAD.options if option.key not in NOT_ON_THE_WIRE)),
    TRACE,
    MEASUREMENT,
    Group("output", (SLO, JSON, OUTPUT, SAVE, PLOT, LIVE, CONFIG, QUIET)),
)


def load_spec(values: dict[str, Any]) -> LoadSpec:
    """Return how the server is measured, as `values` ask for it."""
    return LoadSpec(**{key: values[key] for key in LOAD_CHECKS if key in values})
