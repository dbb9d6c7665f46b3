"""`servesim serve`: the simulated engine behind an OpenAI-compatible HTTP API on the wall clock."""

from __future__ import annotations

import signal

from servesim.cli.options import CONFIG, QUIET, SERVER_GROUPS
from servesim.cli.parser import Parser
from servesim.cli.runner import Call
from servesim.config.build import build_server
from servesim.config.option import Group, groups_of, spec_of
from servesim.config.serve import ServeSpec
from servesim.config.server import ServerSpec
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


NOT_SERVED = ("client_timeout_s",)  # clients leave by themselves


def build_parser() -> Parser:
    return Parser(
        "serve",
        "Serve a simulated engine over HTTP, at the pace of the device: for clients, gateways and dashboards\n"
        "that want a server, without a GPU. Exit 1: cannot listen, answers were cut off, Ctrl-C.",
        EXAMPLES,
        (
            *groups_of(ServeSpec),
            *(group.without(*NOT_SERVED) for group in SERVER_GROUPS),
            Group("output", (CONFIG, QUIET)),
        ),
    )


def run(call: Call) -> int:
    values, console = call.values, call.console
    server = build_server(spec_of(ServerSpec, values))
    for note in server.notes:
        console.note(note)
    for warning in server.warnings:
        console.warn(warning)
    spec = spec_of(ServeSpec, values)
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
        late = f"{bound_s * 1e3:g} ms or less" if bound_s < 1e9 else "more than a second"
        console.note(f"{steps:,} steps, {int(own.tokens.value()):,} tokens; 99 % of the steps were late by {late}")
