"""`servesim serve` as a program: it says where it is, ends when it is told to, and refuses what makes no sense."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from servesim.cli.serve import build_parser
from servesim.config.option import checks_of, spec_of
from servesim.config.serve import ServeSpec
from tests.command import servesim
from tests.serve_case import PATIENCE_S, eventually

ROOT = Path(__file__).resolve().parent.parent


class Program:
    """A server process, killed at the end if it is still there."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "servesim", "serve", "--port", "0", *options]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def __enter__(self) -> Program:
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.port = int(self.line.rpartition(":")[2] or 0)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        _, told = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, told


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


class AsAProgram(unittest.TestCase):
    def test_it_says_where_it_is_and_ends_when_it_is_told_to(self) -> None:
        for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 1)):
            with self.subTest(number), Program("--speed", "20") as program:
                self.assertRegex(program.line, r"^serving llama-3.1-8b as vllm at http://127.0.0.1:\d+\n$")
                connection = http.client.HTTPConnection("127.0.0.1", program.port, timeout=PATIENCE_S)
                connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 3}))
                self.assertEqual(connection.getresponse().status, 200)
                connection.close()
                got, told = program.end(number)
                self.assertEqual(got, code, told)
                self.assertIn("3 steps, 3 tokens", told)
                self.assertNotIn("Traceback", told)

    def test_a_second_ctrl_c_ends_it_at_once(self) -> None:
        with Program("--grace", "1h") as program:
            connection = http.client.HTTPConnection("127.0.0.1", program.port, timeout=PATIENCE_S)
            body: dict[str, Any] = {"prompt": "a", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
            connection.request("POST", "/v1/completions", json.dumps(body))
            connection.getresponse().read(10)
            program.process.send_signal(signal.SIGINT)
            eventually(self, lambda: is_open(program.port), False)  # it has heard the first one
            self.assertIsNone(program.process.poll())
            code, told = program.end(signal.SIGINT)
            connection.close()
        self.assertEqual(code, 1)
        self.assertNotIn("Traceback", told)

    def test_a_port_that_is_taken_is_one_line_and_exit_code_1(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            done = subprocess.run(
                [sys.executable, "-m", "servesim", "serve", "--port", port],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn(f"cannot listen on 127.0.0.1:{port}", done.stderr)


class Options(unittest.TestCase):
    def test_every_field_of_the_spec_is_an_option(self) -> None:
        self.assertLessEqual(checks_of(ServeSpec).keys(), build_parser().options.keys())

    def test_values_take_units(self) -> None:
        argv = "--max-body 1MiB --settle 2ms --grace 1s --answer-tokens 5-9 --stall-for 200ms --fail-rate 0.5".split()
        spec = spec_of(ServeSpec, build_parser().read(argv) or {})
        self.assertEqual(
            (spec.max_body_bytes, spec.settle_s, spec.grace_s, spec.answer_tokens, spec.stall_for_s, spec.fail_rate),
            (1 << 20, 0.002, 1.0, (5, 9), 0.2, 0.5),
        )

    def test_nonsense_is_one_line_and_exit_code_2(self) -> None:
        for argv in (
            ["--fail-rate", "2"],
            ["--port", "99999"],
            ["--dialect", "vlm"],
            ["--speed", "0"],
            ["--client-timeout", "3s"],
            ["--api-key-env", "SERVESIM_NO_SUCH_VARIABLE"],
        ):
            with self.subTest(argv), mock.patch("servesim.serve.run.listen", side_effect=AssertionError("it serves")):
                said = servesim("serve", *argv)
                self.assertEqual((said.code, said.out, said.err.count("\n")), (2, "", 1), said.err)


if __name__ == "__main__":
    unittest.main()
