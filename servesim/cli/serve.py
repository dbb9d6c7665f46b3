"""`servesim serve`: the simulated engine behind an OpenAI-compatible HTTP API on the wall clock."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from servesim.cli.options import CONFIG, QUIET, SERVER_GROUPS, gather, server_spec
from servesim.cli.parser import Group, Option, Parser
from servesim.config.build import build_server
from servesim.config.serve import DIALECTS, SERVE_CHECKS, ServeSpec
from servesim.console import Console
from servesim.interrupts import Interrupts
from servesim.live.attach import attach
from servesim.serve.run import Serving, prepare

EXAMPLES = (
    "servesim serve --like-vllm --hardware l4-24gb --max-model-len 8192",
    "servesim serve --port 8080 --dialect llamacpp --hardware cpu-4vcpu --model smollm2-135m-q8_0 --slots 4",
    "servesim serve --prefix-caching --speed 10 --max-num-queued-reqs 64",
    "servesim serve --fail-rate 0.01 --stall 0.01 --cut-streams 0.01",
)


def _option(flag: str, about: str, metavar: str = "N", default: str = "", *, key: str = "") -> Option:
    key = key or flag.strip("-").replace("-", "_")
    return Option(flag, key, about, SERVE_CHECKS[key], metavar, default)


NETWORK = Group(
    "network",
    (
        _option("--host", "address to listen on", "HOST", "127.0.0.1"),
        _option("--port", "port to listen on; 0: any that is free", default="8000"),
        _option("--api-key-env", "environment variable with the key that clients must give", "NAME", "no key"),
        _option("--allow-origin", "pages that may read the answers: * or a comma list", "ORIGIN", "*"),
        _option("--max-connections", "connections at once; beyond, idle ones are closed", default="1024"),
        _option("--max-body", "largest body of a request", "SIZE", "16MiB", key="max_body_bytes"),
        _option("--grace", "when told to stop, let answers finish for TIME", "TIME", "30s", key="grace_s"),
    ),
)

API = Group(
    "API",
    (
        _option("--dialect", f"what it looks like: {', '.join(DIALECTS)}", "NAME", "vllm"),
        _option("--served-model-name", "the model's name in the API", "NAME", "that of --model"),
        _option("--answer-tokens", "length of an answer that nothing else ends, drawn from A-B", "A-B", "64-256"),
        Option("--enable-prompt-tokens-details", "enable_prompt_tokens_details", "tell the cached tokens in the usage"),
        _option("--seed", "of what is drawn: lengths, texts, faults", default="7"),
    ),
)

CLOCK = Group(
    "clock",
    (
        _option("--speed", "times as fast as the real device", "X", "1"),
        _option(
            "--settle",
            "count what a client asks within TIME of its last answer's end as asked at once",
            "TIME",
            "10ms, at most half a step",
            key="settle_s",
        ),
    ),
)

FAULTS = Group(
    "faults on demand",
    (
        _option("--fail-rate", "share of requests that are answered with a 500", "X", "0"),
        _option("--stall", "share of answers that fall silent half-way", "X", "0"),
        _option("--stall-for", "how long they are silent", "TIME", "10s", key="stall_for_s"),
        _option("--cut-streams", "share of answers whose connection is closed half-way", "X", "0"),
    ),
)

NOT_SERVED = ("client_timeout_s",)  # clients leave by themselves

GROUPS = (
    NETWORK,
    API,
    CLOCK,
    *(
        Group(group.title, tuple(option for option in group.options if option.key not in NOT_SERVED))
        for group in SERVER_GROUPS
    ),
    FAULTS,
    Group("output", (CONFIG, QUIET)),
)


def build_parser() -> Parser:
    return Parser(
        "serve",
        "Serve a simulated engine over HTTP, at the pace of the device: for clients, gateways and dashboards\n"
        "that want a server, without a GPU. Exit 1: cannot listen, answers were cut off, Ctrl-C.",
        EXAMPLES,
        GROUPS,
    )


def serve_spec(values: dict[str, Any]) -> ServeSpec:
    """Return how the server is put on the network, as `values` ask for it."""
    return ServeSpec(**{key: values[key] for key in SERVE_CHECKS if values.get(key) is not None})


def run(argv: Sequence[str]) -> int:
    parser = build_parser()
    flags = parser.read(argv)
    if flags is None:
        return 0
    values = gather(parser, flags)
    console = Console(quiet=values.get("quiet", False))
    server = build_server(server_spec(values))
    for note in server.notes:
        console.note(note)
    for warning in server.warnings:
        console.warn(warning)
    spec = serve_spec(values)
    serving = prepare(server, spec)
    app = serving.app
    attach(serving)
    print(f"serving {app.model_name} as {spec.dialect} at {serving.url}", flush=True)
    console.note(f"the live page is at {serving.url}/")
    with Interrupts() as interrupts, Interrupts(number=signal.SIGTERM) as terminations:
        serving.loop.run(lambda: interrupts.asked or terminations.asked)
    _report(serving, console)
    return int(interrupts.asked or serving.loop.cut_off > 0)


def _report(serving: Serving, console: Console) -> None:
    own = serving.app.metrics.own
    steps = int(own.steps.value())
    if serving.loop.cut_off:
        console.warn(f"{serving.loop.cut_off:,} answers were cut off; a longer --grace lets them finish")
    if steps:
        bound_s = own.lateness.quantile_bound(0.99)
        told = f"{bound_s * 1e3:g} ms or less" if bound_s < 1e9 else "more than a second"
        console.note(f"{steps:,} steps, {int(own.tokens.value()):,} tokens; 99 % of the steps were late by {told}")
