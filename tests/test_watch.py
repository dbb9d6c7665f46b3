"""`watch`: what it reads from the pages of vLLM, llama.cpp and SGLang, and how it shows it as text and as the page."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from servesim import simulate
from servesim.client.target import parse_target
from servesim.client.window import server_window
from servesim.errors import RunError
from servesim.live.loadgen import ClientSource, latencies
from servesim.live.meter import LiveFigures, shown
from servesim.live.terminal import COLUMNS, TerminalView, heading, line
from servesim.live.watcher import LiveSample, PageWatcher
from servesim.summary.latency import Completed
from tests.command import ROOT, servesim
from tests.serve_case import CAPTURES, PATIENCE_S, LiveServer
from tests.test_live_feed import Viewer

SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{model_name="m"}} 7
sglang:num_queue_reqs{{model_name="m"}} 3
sglang:token_usage{{model_name="m"}} 0.42
sglang:cache_hit_rate{{model_name="m"}} 0.25
sglang:prompt_tokens_total{{model_name="m"}} {prompt}
sglang:generation_tokens_total{{model_name="m"}} {output}
sglang:time_to_first_token_seconds_bucket{{le="0.1",model_name="m"}} {count}
sglang:time_to_first_token_seconds_bucket{{le="+Inf",model_name="m"}} {count}
sglang:time_to_first_token_seconds_count{{model_name="m"}} {count}
sglang:time_to_first_token_seconds_sum{{model_name="m"}} {sum}
"""


class Pages:
    """A server whose `/metrics` shows one page after the other, the last one again and again; a number is a status."""

    def __init__(self, *pages: str | int) -> None:
        asked = iter(pages)
        last = pages[-1]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page: str | int = next(asked, last) if self.path == "/metrics" else 404
                body = b"" if isinstance(page, int) else page.encode()
                self.send_response(page if isinstance(page, int) else 200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Pages:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def captured(name: str) -> str:
    return (CAPTURES / name).read_text(encoding="utf-8")


def samples(*pages: str | int) -> tuple[str, list[LiveSample]]:
    """Return what a server with these pages is, and what is seen of all but the first."""
    with Pages(*pages) as server:
        watcher = PageWatcher(parse_target(server.url))
        try:
            return watcher.begin(), [watcher.sample() for _ in pages[1:]]
        finally:
            watcher.close()


class WhatIsRead(unittest.TestCase):
    def test_vllm(self) -> None:
        before, after = captured("vllm-metrics-before.txt"), captured("vllm-metrics-after-load.txt")
        what, (sample,) = samples(before, after)
        window = server_window(before, after)
        self.assertTrue(what.startswith("vllm"), what)
        figures = sample.figures
        self.assertGreater(figures.output_tokens_per_s or 0, 0)
        self.assertEqual(figures.ttft_mean_s, window["ttft"]["mean"])
        self.assertEqual(figures.ttft_p95_s, window["ttft"]["p95"]["le"])
        self.assertEqual(figures.tpot_mean_s, window["tpot"]["mean"])
        self.assertEqual(figures.running, 0)
        self.assertIsNotNone(figures.kv_usage)

    def test_llama_cpp_tells_the_mean_of_a_token_and_no_first_one(self) -> None:
        what, (sample,) = samples(captured("llamacpp-metrics-before.txt"), captured("llamacpp-metrics-after.txt"))
        self.assertTrue(what.startswith("llama.cpp"), what)
        self.assertAlmostEqual(sample.figures.tpot_mean_s or 0, (1.47349 - 0.047228) / (123 - 6))
        self.assertIsNone(sample.figures.ttft_mean_s)
        self.assertIsNone(sample.figures.completed_per_s)
        self.assertEqual(sample.figures.waiting, 0)

    def test_sglang(self) -> None:
        pages = [
            SGLANG.format(prompt=p, output=o, count=c, sum=s) for p, o, c, s in ((10, 5, 1, 0.5), (90, 45, 3, 0.7))
        ]
        what, (sample,) = samples(*pages)
        self.assertTrue(what.startswith("sglang"), what)
        self.assertAlmostEqual(sample.figures.ttft_mean_s or 0, 0.1)
        self.assertEqual((sample.figures.running, sample.figures.waiting, sample.figures.kv_usage), (7, 3, 0.42))

    def test_a_page_that_is_gone_for_a_while_is_a_gap_and_a_restart_begins_at_0(self) -> None:
        pages = [SGLANG.format(prompt=0, output=output, count=1, sum=0.1) for output in (100, 300, 50)]
        _, (first, gone, again) = samples(pages[0], pages[1], 503, pages[2])
        self.assertGreater(first.figures.output_tokens_per_s or 0, 0)
        self.assertEqual((gone.error, gone.figures), ("/metrics answers HTTP 503", LiveFigures()))
        self.assertIsNone(again.error)
        self.assertGreater(again.figures.output_tokens_per_s or 0, 0)

    def test_what_cannot_be_watched_is_an_error_with_its_remedy(self) -> None:
        for pages, words in (
            ((404,), "--enable-metrics"),
            ((401,), "--api-key-env"),
            (("up 1\n",), "no known server"),
            (("",), "no known server"),
        ):
            with self.subTest(pages=pages), self.assertRaisesRegex(RunError, words):
                samples(*pages)
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            said = servesim("watch", f"http://127.0.0.1:{unused.getsockname()[1]}")
        self.assertEqual(said.code, 1)
        self.assertIn("connection refused", said.err)


class AsText(unittest.TestCase):
    def test_where_nobody_sees_it_move_every_look_is_a_line(self) -> None:
        with LiveServer() as server:
            server.post("/v1/completions", {"prompt": "hello", "max_tokens": 20})
            said = servesim("watch", server.url, "--interval", "100ms", "--samples", "3")
        self.assertEqual(said.code, 0, said.err)
        lines = said.out.splitlines()
        self.assertEqual(lines[0] + "\n", heading())
        self.assertEqual(len(lines), 4)
        for each in lines[1:]:
            self.assertRegex(each, r"^\d\d:\d\d:\d\d ")
            self.assertEqual(len(each.split("  ")[0]), 8)
        self.assertIn("vllm", said.err)

    def test_a_block_is_drawn_again_in_place_within_the_terminals_width(self) -> None:
        screen = TerminalView("vllm at http://127.0.0.1:8000")
        figures = LiveFigures(output_tokens_per_s=1234.5, ttft_mean_s=0.25, ttft_p95_s=0.5, running=3.0, waiting=0.0)
        first = screen.redraw(LiveSample(0.0, figures), 80)
        self.assertNotIn("\x1b", first)
        self.assertIn("output 1,234 tok/s", first)
        self.assertNotIn("KV cache", first)
        second = screen.redraw(LiveSample(1.0, LiveFigures(), "refused"), 80)
        self.assertTrue(second.startswith(f"\x1b[{first.count(chr(10))}A\x1b[J"))
        self.assertIn("no answer: refused", second)
        for columns in (40, 80, 200):
            self.assertLess(max(map(len, screen.block(LiveSample(2.0, figures), columns).splitlines())), columns)

    def test_a_look_that_failed_says_why(self) -> None:
        self.assertIn("no answer: it is gone", line(LiveSample(0.0, error="it is gone")))

    def test_every_column_is_a_figure(self) -> None:
        for name in COLUMNS:
            self.assertTrue(hasattr(LiveFigures(), name), name)

    def test_figures_read_well_at_every_size(self) -> None:
        for value, unit, expected in (
            (0.0, "s", "0 ms"),
            (0.00312, "s", "3.12 ms"),
            (0.9999, "s", "1.00 s"),
            (250.0, "s", "250 s"),
            (12.0, "requests", "12"),
            (0.004, "share", "0%"),
            (0.25, "/s", "0.25/s"),
            (9876.0, "tok/s", "9,876 tok/s"),
        ):
            with self.subTest(value=value, unit=unit):
                self.assertEqual(shown(value, unit), expected)

    def test_bad_input_is_told_in_one_line(self) -> None:
        for argv, words in (
            ((), "name a server"),
            (("http://127.0.0.1:8000", "--interval", "1ms"), "interval"),
            (("ftp://127.0.0.1",), "http"),
            (("http://127.0.0.1:8000", "--page", "70000"), "--page"),
        ):
            with self.subTest(argv=argv):
                said = servesim("watch", *argv)
                self.assertEqual(said.code, 2, said)
                self.assertIn(words, said.err)


class AsThePage(unittest.TestCase):
    def start(self, *argv: str) -> tuple[subprocess.Popen[str], int]:
        """Start a command that says where its page is; return it and the port."""
        process = subprocess.Popen(
            [sys.executable, "-m", "servesim", *argv],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(process.stdout.close)  # type: ignore[union-attr]
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        assert process.stdout is not None
        for text in process.stdout:
            found = re.search(r"the (?:live )?page is at http://127\.0\.0\.1:(\d+)/", text)
            if found:
                return process, int(found[1])
        raise AssertionError("no page")

    def test_the_same_page_is_served_read_only_until_ctrl_c(self) -> None:
        with LiveServer() as server:
            process, port = self.start("watch", server.url, "--interval", "100ms", "--page", "0")
            viewer = Viewer(port)
            self.addCleanup(viewer.close)
            hello = viewer.next("hello")
            self.assertEqual((hello["kind"], hello["sources"], hello["controls"]), ("watch", ["server"], None))
            self.assertEqual(viewer.next("sample")["server"]["running"], 0)
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(b"POST /live/control HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 2\r\n\r\n{}")
                self.assertTrue(client.recv(100).startswith(b"HTTP/1.1 404 "))
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(PATIENCE_S), 1)
            self.assertEqual([name for name, _ in viewer.events()][-1:], ["end"])

    def test_loadgen_shows_both_sides_while_it_runs(self) -> None:
        with LiveServer(speed=5.0) as server:
            options = "--concurrency 4 --duration 1h --prompt-tokens 50 --max-tokens 50 --ignore-eos --grace 1s"
            process, port = self.start("loadgen", "--url", server.url, "--live", "0", "--warmup", "1", *options.split())
            viewer = Viewer(port)
            self.addCleanup(viewer.close)
            unseen = {
                "all in flight": lambda sample: sample["client"]["running"] == 4,
                "tokens": lambda sample: (sample["client"]["output_tokens_per_s"] or 0) > 0,
                "first tokens": lambda sample: sample["client"]["ttft_mean_s"],
                "the server's side": lambda sample: sample.get("server", {}).get("running"),
            }
            name = ""
            for name, data in viewer.events():
                if name == "sample":
                    unseen = {what: seen for what, seen in unseen.items() if not seen(data)}
                    if not unseen:
                        process.send_signal(signal.SIGINT)
                        break
            self.assertEqual([name for name, _ in viewer.events()][-1:], ["end"], unseen)
            self.assertEqual(process.wait(PATIENCE_S), 1)

    def test_the_clients_latencies_are_those_of_the_summary(self) -> None:
        run = simulate(hardware="l4-24gb", requests=12, concurrency=4, prompt_tokens="100", output_tokens="1-5")
        found = [latencies(run, index) for index in range(12)]
        columns = Completed(run)
        self.assertEqual([ttft for ttft, _ in found], columns.ttft())
        self.assertEqual(
            [-1.0 if each is None else each for _, each in found], [-1.0 if t != t else t for t in columns.tpot()]
        )

    def test_lines_of_the_client_add_up_over_several_runs(self) -> None:
        told = ClientSource()
        first, again = [[0.2, 10, 2, 0], [0.5, 32, 3, 1], [0.6, 30, 3, 1]], [0.1, 3, 1, 0]
        for said in (*first[:1], {"ttft": 0.1, "tpot": 0.02}, *first[1:], again, {"ttft": None, "tpot": None}):
            told.take_line(json.dumps(said).encode())
        time.sleep(0.01)
        figures = told.figures()
        self.assertEqual((figures.running, figures.ttft_mean_s, figures.tpot_mean_s), (1, 0.1, 0.02))
        rates: Any = [figures.output_tokens_per_s, figures.completed_per_s, figures.failed_per_s]
        self.assertAlmostEqual(rates[0] / rates[1], 35 / 2)
        self.assertAlmostEqual(rates[2] / rates[1], 1 / 2)


if __name__ == "__main__":
    unittest.main()
