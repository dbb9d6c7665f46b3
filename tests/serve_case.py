"""What the tests of `serve` share: a server in a thread, and clients that speak HTTP by hand."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from servesim.config.build import build_server
from servesim.config.serve import ServeSpec
from servesim.config.server import ServerSpec
from servesim.serve.run import prepare

CAPTURES = Path(__file__).resolve().parent.parent / "fixtures" / "captures"
PATIENCE_S = 60.0  # for what comes at once on an idle machine: only what never comes takes so long
FAST = 50.0  # times as fast as the device
TINY: dict[str, Any] = {"model": "smollm2-135m-q8_0", "hardware": "h100-sxm-80gb", "step_overhead_s": 0.004}


class LiveServer:
    """A server on a free port of the loopback, in a thread of its own, until the block ends."""

    def __init__(self, engine: dict[str, Any] | None = None, **options: Any) -> None:
        spec = {"port": 0, "speed": FAST, "grace_s": 2.0} | options
        self.serving = prepare(build_server(ServerSpec(**(TINY | (engine or {})))), ServeSpec(**spec))
        self.app = self.serving.app
        self.loop = self.serving.loop
        self.url = self.serving.url
        self.port = int(self.url.rpartition(":")[2])
        self._thread = threading.Thread(target=self.loop.run, daemon=True)

    def __enter__(self) -> LiveServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.stop()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            raise AssertionError("the server did not stop")

    def open(self, timeout_s: float = PATIENCE_S) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, header fields and body of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def post(self, path: str, body: Any) -> Any:
        """Return the JSON that a POST is answered with."""
        return json.loads(self.ask("POST", path, body)[2])

    def metric(self, line_start: str) -> float:
        """Return the value of the line of /metrics that begins so."""
        for line in self.ask("GET", "/metrics")[2].decode().splitlines():
            if line.startswith(line_start):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no metric {line_start}")


def events(body: bytes) -> list[Any]:
    """Return the events of a stream as objects, `[DONE]` as itself."""
    found = []
    for block in body.decode().split("\n\n"):
        if block.startswith("data: "):
            data = block[len("data: ") :]
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


def capture(name: str) -> tuple[int, dict[str, str], bytes]:
    """Return status, header fields and body of a captured answer, chunk framing taken off."""
    raw = (CAPTURES / name).read_bytes().replace(b"\r\n", b"\n")
    head, _, body = raw.partition(b"\n\n")
    lines = head.decode().split("\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked" and not body.startswith(b"data:"):
        kept = []
        for line in body.split(b"\n"):
            if not line or not all(character in b"0123456789abcdef" for character in line):
                kept.append(line)
        body = b"\n".join(line for line in kept if line).replace(b"}\ndata:", b"}\n\ndata:") + b"\n\n"
    return int(lines[0].split()[1]), headers, body


def shape(value: Any) -> Any:
    """Return the form of a JSON value: keys in order, types of leaves, `null` told from the rest."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return None if value is None else type(value).__name__


def eventually(test: unittest.TestCase, told: Callable[[], Any], wanted: Any, within_s: float = PATIENCE_S) -> None:
    """Wait until `told` says what is wanted. The bound is for what never comes; a slow machine does not reach it."""
    by = time.monotonic() + within_s
    while (got := told()) != wanted and time.monotonic() < by:
        time.sleep(0.01)
    test.assertEqual(got, wanted)
