"""The routes of the live page: three files that ship with the package, the feed, the controls where there are any."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from servesim.errors import InputError, ServesimError
from servesim.live.feed import Feed
from servesim.live.guard import refusal
from servesim.serve.app import Handler, Response
from servesim.serve.connection import Connection
from servesim.serve.http import HttpRequest

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
        asked = json.loads(request.body)
        if not isinstance(asked, dict):
            raise InputError("the body must be a JSON object")
        return _json(200, control(asked))
    except (ServesimError, ValueError, RecursionError) as error:
        return _json(400, {"error": str(error)[:300]})


def _json(status: int, body: Mapping[str, Any]) -> Response:
    fields = (("cache-control", "no-store"), ("x-content-type-options", "nosniff"))
    return Response(status, json.dumps(body, allow_nan=False).encode(), fields=fields)
