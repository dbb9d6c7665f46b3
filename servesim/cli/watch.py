"""`servesim watch URL`: what a real server does right now, from its `/metrics`: as text, or as the live page."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from servesim.cli.options import QUIET
from servesim.cli.output import ascii_only
from servesim.cli.parser import Parser
from servesim.client.target import parse_target
from servesim.config.loadgen import LoadSpec
from servesim.config.option import Group, Option, count, options_of, seconds, text
from servesim.console import Console, is_terminal, one_line
from servesim.errors import InputError, RunError
from servesim.interrupts import Interrupts
from servesim.live.page import LiveSite
from servesim.live.terminal import Screen, heading, line
from servesim.live.watcher import Look, PageWatcher, WatchThread

EXAMPLES = (
    "servesim watch http://127.0.0.1:8000",
    "servesim watch http://127.0.0.1:8080 --interval 250ms",
    "servesim watch http://127.0.0.1:30000 --page 8900",
    "servesim watch http://127.0.0.1:8000 --samples 60 > minute.txt",
)

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
    )
    parser.usage = "servesim watch URL [options]"
    parser.add_argument("url", nargs="?", metavar="URL", help="the server's base URL")
    return parser


def run(argv: Sequence[str]) -> int:
    flags = build_parser().read(argv)
    if flags is None:
        return 0
    url = flags.get("url")
    if not url:
        raise InputError("name a server: servesim watch http://127.0.0.1:8000")
    target = parse_target(url, **{name: flags[name] for name in _TARGET if name in flags})
    interval_s = flags.get("interval_s", 1.0)
    watcher = PageWatcher(target, interval_s=interval_s)
    try:
        what = one_line(f"{watcher.begin()} at {target.url}")
        with Interrupts() as interrupts:
            if "page" in flags:
                return _page(watcher, what, flags, interval_s, lambda: interrupts.asked)
            return _text(watcher, what, flags, interval_s, lambda: interrupts.asked)
    finally:
        watcher.close()


def _text(
    watcher: PageWatcher, title: str, flags: dict[str, Any], interval_s: float, stopped: Callable[[], bool]
) -> int:
    """Look again and again and print what is seen."""
    out = sys.stdout
    if out is None:
        raise RunError("cannot write the result: stdout is closed")
    drawn = is_terminal(out)
    screen = Screen(title, ascii_only=ascii_only(None))
    if not drawn:
        if not flags.get("quiet"):
            Console().note(title)
        out.write(heading())
    left = flags.get("samples")
    due_s = time.monotonic() + interval_s
    while left is None or left > 0:
        while (wait_s := due_s - time.monotonic()) > 0 and not stopped():
            time.sleep(min(wait_s, POLL_S))
        if stopped():
            return 1
        look = watcher.look()
        look = Look(look.at_s, look.figures, look.error and one_line(look.error))
        out.write(screen.redraw(look, shutil.get_terminal_size((100, 24)).columns) if drawn else line(look))
        out.flush()
        due_s = max(due_s + interval_s, time.monotonic())
        left = None if left is None else left - 1
    return 0


def _page(
    watcher: PageWatcher, what: str, flags: dict[str, Any], interval_s: float, stopped: Callable[[], bool]
) -> int:
    """Serve the page, read-only, until Ctrl-C."""
    host = flags.get("host", "127.0.0.1")
    name, _, url = what.rpartition(" at ")
    site = LiveSite(host, flags["page"], kind="watch", title=url, about=name, sources=["server"])
    left = flags.get("samples")

    def heard(look: Look) -> None:
        nonlocal left
        site.notice(f"no answer: {look.error}" if look.error else "")
        site.show(look.at_s, {"server": look.figures})
        left = None if left is None else left - 1

    thread = WatchThread(watcher, heard, interval_s)
    thread.start()
    print(f"watching {what}; the page is at {site.url}", flush=True)
    site.run(lambda: stopped() or (left is not None and left <= 0))
    thread.stop()
    return int(stopped())
