"""Runs the `sh run` blocks of a document as a reader would, against `servesim serve`.

The blocks of one document run in order in one folder that sees the project: a file that one command saves is there for
the next. A server that a block starts is started, on a free port and faster than its device; what a block does not
start is asked of servers under the ports of the documents. Waits and loads are cut short, and limits are such as the
slowest machine keeps.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.command import Said, in_shell
from tests.guides import commands
from tests.serve_case import FAST, LiveServer

VLLM_PORT, LLAMACPP_PORT = 8000, 8080
"""Where the documents say that the servers listen."""

_SHORTER = (
    (re.compile(r"--duration \S+"), "--duration 2s"),
    (re.compile(r"(loadgen .*--requests) \d+"), r"\1 4"),
    (re.compile(r"\bsleep \S+"), "sleep 0.2"),
    (re.compile(r"--window \S+"), "--window 1s"),
    (re.compile(r"(loadgen .*--slo ttft_p95=)\S+"), r"\g<1>10m"),
)


class Runner:
    """Runs the `sh run` blocks of a document; servers that they start end with their block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._ports: dict[int, str] = {}
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Runner:
        four_slots = {"kv_tokens": 4096, "slots": 4}
        for port, dialect, engine in ((VLLM_PORT, "vllm", {}), (LLAMACPP_PORT, "llamacpp", four_slots)):
            live = self._stack.enter_context(LiveServer(engine, dialect=dialect))
            self._ports[port] = live.url
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, body: str) -> Iterator[tuple[str, Said]]:
        """Yield each command of a block with what it said."""
        ports = dict(self._ports)
        try:
            for command in commands(body):
                if re.search(r"\bservesim serve\b", command):
                    ports[_port(command)] = self._serve(command)
                    continue
                yield command, in_shell(_shortened(command, ports), folder=self._folder)
        finally:
            for process in self._started:
                process.terminate()
                process.wait(60)
                if process.stdout is not None:
                    process.stdout.close()
            self._started.clear()

    def _serve(self, command: str) -> str:
        """Start the server that `command` asks for, on a free port; return its URL."""
        words = shlex.split(command.rstrip(" &"))
        asked = words[words.index("serve") + 1 :]
        argv = [sys.executable, "-m", "servesim", "serve", *asked, "--port", "0", "--speed", str(FAST)]
        process = subprocess.Popen(
            [*argv, "--grace", "1s"], cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._started.append(process)
        assert process.stdout is not None
        return process.stdout.readline().rsplit(" ", 1)[-1].strip()


def _port(command: str) -> int:
    found = re.search(r"--port (\d+)", command)
    return VLLM_PORT if found is None else int(found[1])


def _shortened(command: str, ports: dict[int, str]) -> str:
    """Return `command` against the servers that are there, for moments instead of minutes."""
    for pattern, shorter in _SHORTER:
        command = pattern.sub(shorter, command)
    for port, url in ports.items():
        command = re.sub(rf"http://(?:127\.0\.0\.1|localhost):{port}\b", url, command)
    return command
