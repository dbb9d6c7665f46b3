"""`servesim watch URL`: what a real server does right now, from its `/metrics`: as text, or as the live page."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

from servesim.cli.options import QUIET
from servesim.cli.parser import Parser
from servesim.cli.runner import Call
from servesim.client.target import parse_target
from servesim.config.loadgen import LoadSpec
from servesim.config.option import Group, Option, count, options_of, seconds, text
from servesim.console import is_terminal, one_line
from servesim.errors import InputError
from servesim.interrupts import Interrupts
from servesim.live.page import LiveSite
from servesim.live.terminal import TerminalView, heading, line
from servesim.live.watcher import LiveSample, PageWatcher, WatchThread

EXAMPLES = (
    "servesim watch http://127.0.0.1:8000",
    "servesim watch http://127.0.0.1:8080 --interval 250ms",
    "servesim watch http://127.0.0.1:30000 --page 8900",
    "servesim watch http://127.0.0.1:8000 --samples 60 > minute.txt",
)

INTERVAL_S = 1.0
MIN_INTERVAL_S = 0.1
POLL_S = 0.05


def _interval(value: Any, name: str) -> float:
    interval_s: float = seconds(positive=True)(value, name)
    if interval_s < MIN_INTERVAL_S:
        raise InputError(f"{name} is {interval_s * 1e3:g} ms, must be {MIN_INTERVAL_S * 1e3:g} ms or more")
    return interval_s


_TARGET = ("headers", "api_key_env", "proxy", "insecure", "ca_file")

WATCH = Group(
    "what is watched, and how",
    (
        Option("--interval", "interval_s", "time from one look to the next", _interval, "TIME", "1s"),
        Option("--samples", "samples", "end after N looks", count(), "N", "go on until Ctrl-C"),
        Option("--page", "page", "serve the live page on this port; 0: any", count(minimum=0, maximum=65535), "PORT"),
        Option("--host", "host", "address of the page", text, "HOST", "127.0.0.1"),
        *options_of(LoadSpec, *_TARGET),
    ),
)


def build_parser() -> Parser:
    parser = Parser(
        "watch",
        "Watch a vLLM, llama.cpp or SGLang server by its /metrics. Rates and latencies are those of the last seconds;\n"
        "a p95 is the upper bound of its bucket. On a terminal a block is redrawn, elsewhere every look is a line.\n"
        "Exit 1: nobody is there, no page that is known, Ctrl-C.",
        EXAMPLES,
        (WATCH, Group("output", (QUIET,))),
        usage="URL [options]",
    )
    parser.add_argument("url", nargs="?", metavar="URL", help="the server's base URL")
    return parser


def run(call: Call) -> int:
    values = call.values
    url = values.get("url")
    if not url:
        raise InputError("name a server: servesim watch http://127.0.0.1:8000")
    target = parse_target(url, **{name: values[name] for name in _TARGET if name in values})
    watcher = PageWatcher(target, interval_s=values.get("interval_s", INTERVAL_S))
    try:
        what = one_line(f"{watcher.begin()} at {target.url}")
        with Interrupts() as interrupts:
            if "page" in values:
                return _page(call, watcher, what, lambda: interrupts.asked)
            return _text(call, watcher, what, lambda: interrupts.asked)
    finally:
        watcher.close()


def _text(call: Call, watcher: PageWatcher, title: str, stopped: Callable[[], bool]) -> int:
    """Print one sample after another until the end."""
    out = sys.stdout
    drawn = is_terminal(out)
    screen = TerminalView(title, ascii_only=call.ascii_only)
    if not drawn:
        call.console.note(title)
        out.write(heading())
    left = call.values.get("samples")
    interval_s = call.values.get("interval_s", INTERVAL_S)
    due_s = time.monotonic() + interval_s
    while left is None or left > 0:
        while (wait_s := due_s - time.monotonic()) > 0 and not stopped():
            time.sleep(min(wait_s, POLL_S))
        if stopped():
            return 1
        sample = watcher.sample()
        sample = LiveSample(sample.at_s, sample.figures, sample.error and one_line(sample.error))
        out.write(screen.redraw(sample, shutil.get_terminal_size((100, 24)).columns) if drawn else line(sample))
        out.flush()
        due_s = max(due_s + interval_s, time.monotonic())
        left = None if left is None else left - 1
    return 0


def _page(call: Call, watcher: PageWatcher, what: str, stopped: Callable[[], bool]) -> int:
    """Serve the page, read-only, until Ctrl-C."""
    values = call.values
    host = values.get("host", "127.0.0.1")
    name, _, url = what.rpartition(" at ")
    site = LiveSite(host, values["page"], kind="watch", title=url, about=name, sources=["server"])
    left = values.get("samples")

    def on_sample(sample: LiveSample) -> None:
        nonlocal left
        site.notice(f"no answer: {sample.error}" if sample.error else "")
        site.show(sample.at_s, {"server": sample.figures})
        left = None if left is None else left - 1

    thread = WatchThread(watcher, on_sample, values.get("interval_s", INTERVAL_S))
    thread.start()
    print(f"watching {what}; the page is at {site.url}", flush=True)
    site.run(lambda: stopped() or (left is not None and left <= 0))
    thread.stop()
    return int(stopped())
