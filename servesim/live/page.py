"""The routes of the live page (its three files, the feed, the controls) and the page served by itself, read-only.

Controls answer this page and programs that are no browser, never a page from elsewhere in somebody's browser, which
can send requests to any address. Three things keep it out: its `Origin` is not ours, `Sec-Fetch-Site` says so too, and
a browser does not send a JSON body across origins without asking first. A name that an attacker points at 127.0.0.1
(DNS rebinding) is a `Host` that is neither an address nor the name that we were started with.

By itself (`LiveSite`) the page shows a server that is watched or a load that `loadgen` makes. It is served by the loop
of `serve`, with its bounds on connections, bodies and time, and no engine behind it.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from queue import Empty, SimpleQueue
from typing import Any

from servesim import __version__
from servesim.errors import InputError, ServesimError
from servesim.live.feed import SAMPLE_S, Feed
from servesim.live.meter import CHARTS, WINDOW_S, LiveFigures
from servesim.serve.app import Handler, Response
from servesim.serve.connection import Connection
from servesim.serve.http import HttpRequest
from servesim.serve.loop import Loop, listen

MAX_CONTROL_BYTES = 4096


def refusal(request: HttpRequest, own_host: str) -> tuple[int, str] | None:
    """Return the status and the reason for which a request must not steer, None if it may."""
    host = request.header("host")
    if not _is_ours(host, own_host):
        return 403, f"steering wants an address or the name that the server was started with, not {host[:100]!r}"
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return 403, "steering is for this server's own page"
    if request.header("sec-fetch-site") not in ("", "same-origin", "none"):
        return 403, "steering is for this server's own page"
    if request.header("content-type").partition(";")[0].strip().lower() != "application/json":
        return 415, "the body must be application/json"
    if len(request.body) > MAX_CONTROL_BYTES:
        return 413, f"the body is longer than {MAX_CONTROL_BYTES} bytes"
    return None


def _is_ours(host: str, own_host: str) -> bool:
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]").lower()
    if name in ("localhost", own_host.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


FEED, CONTROL = "/live/feed", "/live/control"
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/live/page.css": ("page.css", "text/css; charset=utf-8"),
    "/live/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
POLICY += "form-action 'none'; frame-ancestors 'none'"
FIELDS = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-cache"),
)

Control = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes what the page asks for and returns the state that follows. Raises InputError."""


def page_routes(feed: Feed, control: Control | None, own_host: str) -> Mapping[str, Mapping[str, Handler]]:
    """Return the handlers by path and method; without `control` the page only looks on."""
    static = files("servesim.live") / "static"
    routes: dict[str, Mapping[str, Handler]] = {}
    for path, (name, content_type) in FILES.items():
        response = Response(200, (static / name).read_bytes(), content_type, FIELDS)
        handler = _always(response)
        routes[path] = {"GET": handler, "HEAD": handler}
    routes[FEED] = {"GET": lambda connection, request: feed.attend(connection)}
    if control is not None:
        routes[CONTROL] = {"POST": lambda connection, request: _steer(request, control, own_host)}
    return routes


def _always(response: Response) -> Handler:
    def handler(connection: Connection, request: HttpRequest) -> Response:
        return response

    return handler


def _steer(request: HttpRequest, control: Control, own_host: str) -> Response:
    refused = refusal(request, own_host)
    if refused is not None:
        return _json(refused[0], {"error": refused[1]})
    try:
        body = json.loads(request.body)
        if not isinstance(body, dict):
            raise InputError("the body must be a JSON object")
        return _json(200, control(body))
    except (ServesimError, ValueError, RecursionError) as error:
        return _json(400, {"error": str(error)[:300]})


def _json(status: int, body: Mapping[str, Any]) -> Response:
    fields = (("cache-control", "no-store"), ("x-content-type-options", "nosniff"))
    return Response(status, json.dumps(body, allow_nan=False).encode(), fields=fields)


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
    """A page that shows what `show` is given, from any thread; `run` serves it until `should_stop`."""

    def __init__(self, host: str, port: int, *, kind: str, title: str, about: str, sources: list[str]) -> None:
        self._waiting: SimpleQueue[tuple[float, Mapping[str, LiveFigures]] | str] = SimpleQueue()
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

    def show(self, at_s: float, sources: Mapping[str, LiveFigures]) -> None:
        """Show the figures of every source."""
        self._waiting.put((at_s, sources))

    def notice(self, text: str) -> None:
        """Show a sentence above the charts; an empty one takes it away."""
        self._waiting.put(text)

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
                item = self._waiting.get_nowait()
            except Empty:
                break
            if isinstance(item, str):
                if item != (self._notice or ""):
                    self._notice = item or None
                    self.feed.send("notice", {"text": item})
            else:
                self.feed.sample(*item)
        if self._site.draining:
            self.feed.send("end", {})
            self.feed.end()
            return
        self._loop.later(POLL_S, self._tick)


def _text(status: int, text: str) -> Response:
    return Response(status, f"{text}\n".encode(), "text/plain; charset=utf-8")
