"""The live page by itself, read-only: for a server that is watched and for a load that `loadgen` makes.

It is served by the loop of `serve`, with its bounds on connections, bodies and time, and no engine behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any

from servesim import __version__
from servesim.live.feed import SAMPLE_S, Feed
from servesim.live.figures import CHARTS, WINDOW_S, Figures
from servesim.live.page import page_routes
from servesim.serve.app import Handler, Response
from servesim.serve.connection import Connection
from servesim.serve.http import HttpRequest
from servesim.serve.loop import Loop, listen

MAX_CONNECTIONS = 64
MAX_BODY_BYTES = 4096
POLL_S = 0.1


class NoEngine:
    """The clock of a server that has none: nothing is ever due."""

    due_s = free_until_s = float("inf")
    idle = True

    def __init__(self) -> None:
        self.awaited: set[object] = set()

    def hand_out(self, now: float) -> bool:
        return False

    def decide(self, now: float, *, more: bool = False) -> None:
        """There is nothing to decide."""


class Site:
    """Answers requests for the page, its files and its feed (see `App` of the loop)."""

    def __init__(self, feed: Feed) -> None:
        self.clock = NoEngine()
        self.draining = False
        self.loop: Loop | None = None
        self._routes: Mapping[str, Mapping[str, Handler]] = page_routes(feed, None, "")

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        methods = self._routes.get(request.path)
        handler = None if methods is None else methods.get(request.method)
        if handler is not None:
            response = handler(connection, request)
        elif methods is None:
            response = _text(404, "not found")
        else:
            response = Response(405, b"", "text/plain", (("allow", ", ".join(sorted(methods))),))
        if response is not None:
            fields = [("content-type", response.content_type), *response.fields]
            connection.answer(response.status, fields, response.body)
            assert self.loop is not None
            self.loop.over(connection)

    def tidy(self) -> None:
        """There is nothing to tidy."""

    def count_connections(self, count: int) -> None:
        """Nobody asks."""


class LiveSite:
    """A page that shows what `show` is told, from any thread; `run` serves it until `should_stop`."""

    def __init__(self, host: str, port: int, *, kind: str, title: str, about: str, sources: list[str]) -> None:
        self._told: SimpleQueue[tuple[float, Mapping[str, Figures]] | str] = SimpleQueue()
        self._words = {"kind": kind, "title": title, "about": about, "sources": sources}
        self._notice: str | None = None
        self.feed = Feed(self._hello)
        site = Site(self.feed)
        self._listener = listener = listen(host, port)
        self._loop = Loop(
            site, listener, max_connections=MAX_CONNECTIONS, max_body_bytes=MAX_BODY_BYTES, grace_s=2 * SAMPLE_S
        )
        site.loop = self.feed.sockets = self._loop
        self._site = site
        name, number = listener.getsockname()[:2]
        self.url = f"http://[{name}]:{number}/" if ":" in name else f"http://{name}:{number}/"

    def show(self, at_s: float, sources: Mapping[str, Figures]) -> None:
        """Show the figures of every source."""
        self._told.put((at_s, sources))

    def notice(self, text: str) -> None:
        """Show a sentence above the charts; an empty one takes it away."""
        self._told.put(text)

    def stop(self) -> None:
        """Ask to stop, from any thread."""
        self._loop.stop()

    def forget(self) -> None:
        """Let go of the port, in the process that forked the one which serves it."""
        self._listener.close()

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        self._loop.later(0.0, self._tick)
        self._loop.run(should_stop)

    def _hello(self) -> dict[str, Any]:
        charts = [chart.as_dict() for chart in CHARTS.values()]
        words = {"version": __version__, "window_s": WINDOW_S, "charts": charts, "controls": None}
        return {**self._words, **words, "notice": self._notice}

    def _tick(self) -> None:
        while True:
            try:
                told = self._told.get_nowait()
            except Empty:
                break
            if isinstance(told, str):
                if told != (self._notice or ""):
                    self._notice = told or None
                    self.feed.tell("notice", {"text": told})
            else:
                self.feed.sample(*told)
        if self._site.draining:
            self.feed.tell("end", {})
            self.feed.end()
            return
        self._loop.later(POLL_S, self._tick)


def _text(status: int, text: str) -> Response:
    return Response(status, f"{text}\n".encode(), "text/plain; charset=utf-8")
