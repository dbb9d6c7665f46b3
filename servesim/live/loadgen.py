"""The live page of a load that `loadgen` makes: the client's metrics beside the server's, from a process of its own.

The measuring process must not be held up, so it only writes short lines into a pipe and never waits. The process that
reads them, scrapes `/metrics` and serves the page is forked before there are threads and sockets, and ends with the
pipe.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from servesim.client.run import Progress
from servesim.client.target import Target
from servesim.errors import RunError
from servesim.live.feed import SAMPLE_S
from servesim.live.meter import LiveFigures, Meter
from servesim.live.page import LiveSite
from servesim.live.watcher import LiveSample, PageWatcher, WatchThread
from servesim.runs.records import Outcome, Run

SCRAPE_S = 1.0
MAX_LINE = 512  # below what a pipe takes in one piece, so that lines of several processes never mix


@dataclass(slots=True)
class ClientSource:
    """The client's figures from the lines that it writes."""

    meter: Meter = field(default_factory=lambda: Meter(monotonic()))
    in_flight: float | None = None
    _elapsed_s: float = 0.0
    _tokens: int = 0
    _errors: int = 0

    def take_line(self, line: bytes) -> None:
        """Take in one line: `[seconds, tokens, in flight, errors]` of a run so far, or `{ttft, tpot}` of a request."""
        message: Any = json.loads(line)
        if isinstance(message, list):
            elapsed_s, tokens, self.in_flight, errors = message
            if elapsed_s < self._elapsed_s:  # a new run
                self._tokens = self._errors = 0
            self.meter.tokens(max(0, tokens - self._tokens))  # what was counted before it was read may be less
            self.meter.failed(errors - self._errors)
            self._elapsed_s, self._tokens, self._errors = elapsed_s, max(tokens, self._tokens), errors
            return
        now = monotonic()
        if message["ttft"] is not None:
            self.meter.first_token(now, message["ttft"])
        self.meter.completed(now, message["tpot"])

    def figures(self) -> LiveFigures:
        return self.meter.figures(monotonic(), running=self.in_flight)


class LoadPage:
    """The side of the process that measures. Close it, or use it in a `with` block."""

    def __init__(self, target: Target, port: int, host: str = "127.0.0.1") -> None:
        """Open the port and fork. Raises RunError where the port cannot be had."""
        sources = ["client", "server"]
        site = LiveSite(host, port, kind="loadgen", title=f"loadgen to {target.url}", about="", sources=sources)
        self.url = site.url
        reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_serve, args=(site, target, reading, self._writing), daemon=True)
        self._process.start()
        os.close(reading)
        site.forget()

    def __enter__(self) -> LoadPage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the page."""
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1
            self._process.join(5.0)

    def progress(self, state: Progress) -> None:
        """Report how far the run is."""
        self._write([state.elapsed_s, state.token_events, state.in_flight, state.errors])

    def filed(self, run: Run, index: int) -> None:
        """Report a request that is over."""
        if run.records.outcome[index] == Outcome.COMPLETED:
            ttft_s, tpot_s = latencies(run, index)
            self._write({"ttft": ttft_s, "tpot": tpot_s})

    def _write(self, message: object) -> None:
        line = json.dumps(message).encode() + b"\n"
        if self._writing >= 0 and len(line) <= MAX_LINE:
            try:
                os.write(self._writing, line)
            except OSError:  # full, or nobody reads: the measurement goes on
                pass


def latencies(run: Run, index: int) -> tuple[float | None, float | None]:
    """Return TTFT and TPOT of one completed request, as `servesim.summary.latency` has them for all of a run."""
    records, times = run.records, run.times
    first, last, tokens = records.first[index], records.last[index], records.output_tokens[index]
    if first < 0 or last == first:
        tpot_s = None
    else:
        tpot_s = (times[last] - times[first]) / (tokens - 1) if tokens > 1 else None
    whole = first < 0 or records.extra.get(index, {}).get("non_stream")
    return None if whole else times[first] - records.sent_s[index], tpot_s


def _serve(site: LiveSite, target: Target, reading: int, writing: int) -> None:
    """Serve the page until the pipe ends; runs in the forked process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the load goes on after the first Ctrl-C, and so does its page
    os.close(writing)
    seen = _Sides()
    watcher = PageWatcher(target, interval_s=SCRAPE_S)
    threading.Thread(target=_watch_server, args=(watcher, seen), daemon=True).start()
    threading.Thread(target=_read_lines, args=(reading, seen, site), daemon=True).start()
    site.run()


@dataclass(slots=True)
class _Sides:
    """What is known of both sides."""

    client: ClientSource = field(default_factory=ClientSource)
    server: LiveFigures | None = None

    def on_sample(self, sample: LiveSample) -> None:
        self.server = sample.figures


def _watch_server(watcher: PageWatcher, seen: _Sides) -> None:
    """Watch the server, once it is there; one without the page is watched from the client's side alone."""
    for _ in range(60):
        try:
            watcher.begin()
        except RunError:
            time.sleep(SCRAPE_S)
            continue
        WatchThread(watcher, seen.on_sample, SCRAPE_S).start()
        return


def _read_lines(reading: int, seen: _Sides, site: LiveSite) -> None:
    """Take in the client's lines and show the figures of both sides, until there are no more."""
    due_s = 0.0
    for line in _lines(reading):
        seen.client.take_line(line)
        if monotonic() >= due_s:
            due_s = monotonic() + SAMPLE_S - 0.1  # lines come four times a second
            sources = {"client": seen.client.figures()}
            site.show(time.time(), sources if seen.server is None else sources | {"server": seen.server})
    site.stop()


def _lines(reading: int) -> Iterator[bytes]:
    held = b""
    while data := os.read(reading, 1 << 16):
        *lines, held = (held + data).split(b"\n")
        yield from lines
