"""Is the server there, and has it loaded its model: `--wait-ready`, and the one check that may abort a run."""

from __future__ import annotations

import time
from collections.abc import Callable

from servesim.client.fetch import Answer, Fetcher, FetchError
from servesim.client.target import Target
from servesim.errors import RunError
from servesim.units import format_duration
from servesim.wire.faults import error_from_body

HEALTH, MODELS = "/health", "/v1/models"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
ABSENT = (404, 405, 501)  # a server without this route
LOADING = (425, 429, 502, 503, 504)  # the server, or the proxy in front of it, says "not yet"


def check_reachable(target: Target, *, timeout_s: float = 10.0) -> None:
    """Open and close one connection. Raises RunError where it is refused or its name does not resolve.

    Anything else (a timeout, a TLS failure) is left to the requests, which will each say so.
    """
    connection = target.connection(timeout_s)
    try:
        connection.connect()
    except (OSError, ValueError) as error:
        failure = Fetcher(target, timeout_s)._failed(error)
        if failure.kind in ("refused", "unresolvable"):
            raise failure from error
    finally:
        connection.close()


def wait_ready(
    target: Target,
    limit_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    waiting: Callable[[str], None] = lambda why: None,
) -> float:
    """Poll `/health` and then `/v1/models` until both answer, or are not offered; return the seconds it took.

    A refused connection and a 503 are "not yet" (llama.cpp answers 503 on every path while it loads). `waiting` hears
    why, after every try. Raises RunError after `limit_s`, or at once when the server is there but refuses the key.
    """
    start = clock()
    pause = FIRST_PAUSE_S
    with Fetcher(target) as fetcher:
        while True:
            why = _not_ready(fetcher)
            waited = clock() - start
            if why is None:
                return waited
            if waited >= limit_s:
                raise RunError(f"{target.url} is not ready after {format_duration(limit_s)}: {why}")
            waiting(why)
            sleep(min(pause, limit_s - waited))
            pause = min(pause * 1.5, LONGEST_PAUSE_S)


def _not_ready(fetcher: Fetcher) -> str | None:
    """Return why the server is not ready, None when it is."""
    for route in (HEALTH, MODELS):
        try:
            answer = fetcher.get(route)
        except FetchError as error:
            return str(error)
        if answer.status in LOADING:
            return _says(route, answer)
        if answer.status in (401, 403):
            if route == MODELS:
                raise RunError(f"{_says(route, answer)}; give the key with --api-key-env")
        elif answer.status >= 500 and answer.status not in ABSENT:
            return _says(route, answer)
    return None


def _says(route: str, answer: Answer) -> str:
    return f"{route} answers {answer.status}: {error_from_body(answer.body).message}"
