"""Tests of what the load generator asks beside the load: metrics, readiness, the model, the server's setup."""

from __future__ import annotations

import doctest
import json
import socket
import threading
import time
import unittest
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from servesim.client import setup
from servesim.client.fetch import Fetcher, FetchError, check_reachable, wait_ready
from servesim.client.scraper import Scraper
from servesim.client.setup import pick_model, read_setup, simulate_options
from servesim.client.target import Target, parse_target
from servesim.config.server import ServerSpec
from servesim.config.workload import WorkloadSpec
from servesim.errors import RunError
from tests.serve_case import PATIENCE_S, eventually

CAPTURES = Path(__file__).resolve().parent.parent / "fixtures" / "captures"
Reply = tuple[int, bytes]
Answering = Callable[[str, dict[str, str]], Reply]


@contextmanager
def server(answer: Answering) -> Iterator[Target]:
    """Serve GETs by `answer(path, headers)`; a status of 0 closes the connection without a word."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = answer(self.path, {name.lower(): value for name, value in self.headers.items()})
            if not status:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that left early

    running = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield parse_target(f"http://127.0.0.1:{running.server_port}")
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


def routes(table: Mapping[str, object]) -> Answering:
    """Answer from a table of path to body; other paths are a 404."""

    def answer(path: str, headers: dict[str, str]) -> Reply:
        if path not in table:
            return 404, b'{"error": {"message": "not found"}}'
        body = table[path]
        return 200, body if isinstance(body, bytes) else json.dumps(body).encode()

    return answer


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def capture(name: str) -> bytes:
    """Return the body of a recorded answer."""
    data = (CAPTURES / name).read_bytes()
    head, blank, body = data.partition(b"\r\n\r\n" if b"\r\n\r\n" in data else b"\n\n")
    return body if head.startswith(b"HTTP/") and blank else data


class ScraperTest(unittest.TestCase):
    def test_pages_before_during_and_after_are_kept_with_their_times(self) -> None:
        count = iter(range(1000))

        def answer(path: str, headers: dict[str, str]) -> Reply:
            return 200, f"llamacpp:tokens_predicted_total {next(count)}\n".encode()

        with server(answer) as target:
            scraper = Scraper(target, interval_s=0.02)
            self.assertTrue(scraper.first())
            scraper.start()
            eventually(self, lambda: len(scraper.pages) >= 3, True)
            raw = scraper.stop()
        pages = [page.parse() for page in raw]
        values = [page.samples["llamacpp:tokens_predicted_total"][0].value for page in pages]
        self.assertEqual(values, list(range(len(pages))))
        self.assertGreaterEqual(len(pages), 4)
        times = [page.at_s for page in raw]
        self.assertEqual(times, sorted(times))

    def test_a_server_without_the_page_is_asked_once(self) -> None:
        asked: list[str] = []

        def answer(path: str, headers: dict[str, str]) -> Reply:
            asked.append(path)
            return 501, b'{"error": {"message": "This server does not support metrics endpoint."}}'

        with server(answer) as target:
            scraper = Scraper(target, interval_s=0.01)
            self.assertFalse(scraper.first())
            scraper.start()
            time.sleep(0.03)
            self.assertEqual(scraper.stop(), [])
        self.assertEqual(asked, ["/metrics"])

    def test_a_slow_page_delays_nobody_but_itself(self) -> None:
        asked: list[str] = []
        released = threading.Event()

        def answer(path: str, headers: dict[str, str]) -> Reply:
            asked.append(path)
            if len(asked) == 2:
                released.wait()
            return 200, b"a 1\n"

        with server(answer) as target:
            scraper = Scraper(target, interval_s=0.01, timeout_s=PATIENCE_S)
            scraper.first()
            scraper.start()  # and whoever starts it goes on
            eventually(self, lambda: len(asked), 2)
            time.sleep(0.05)
            self.assertEqual(len(asked), 2)  # what was due meanwhile is not made up for
            released.set()
            self.assertEqual(len(scraper.stop()), len(asked))

    def test_a_page_that_fails_is_a_gap(self) -> None:
        asked: list[int] = []

        def answer(path: str, headers: dict[str, str]) -> Reply:
            asked.append(0)
            return (500, b"busy") if len(asked) % 2 == 0 else (200, b"a 1\n")

        with server(answer) as target:
            scraper = Scraper(target, interval_s=0.01)
            scraper.first()
            scraper.start()
            eventually(self, lambda: len(asked) >= 5, True)
            pages = scraper.stop()
        self.assertEqual(len(pages), (len(asked) + 1) // 2)

    def test_a_connection_that_the_server_has_closed_is_opened_again(self) -> None:
        count = iter(range(1000))

        def answer(path: str, headers: dict[str, str]) -> Reply:
            return (0, b"") if next(count) == 1 else (200, b"fine")

        with server(answer) as target, Fetcher(target) as fetcher:
            self.assertEqual([fetcher.get("/").body for _ in range(3)], [b"fine"] * 3)

    def test_an_answer_that_is_cut_short_is_none(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def answer() -> None:
                peer, _ = listener.accept()
                with peer:
                    peer.recv(4096)
                    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\nvllm:generation_tokens_total 13")

            threading.Thread(target=answer, daemon=True).start()
            target = parse_target(f"http://127.0.0.1:{listener.getsockname()[1]}")
            with Fetcher(target) as fetcher, self.assertRaisesRegex(FetchError, "no answer from .*: incompleteread"):
                fetcher.get("/metrics")

    def test_headers_and_key_go_to_every_route(self) -> None:
        seen: list[tuple[str, str | None]] = []

        def answer(path: str, headers: dict[str, str]) -> Reply:
            seen.append((path, headers.get("authorization")))
            return (200, b'{"data": [{"id": "m"}]}') if headers.get("authorization") else (401, b"{}")

        with server(answer) as plain:
            target = parse_target(f"{plain.url}/x/v1", api_key_env="KEY", environ={"KEY": "k"})
            self.assertEqual(pick_model(target), "m")
            scraper = Scraper(target)
            scraper.first()
            scraper.stop()
            self.assertIsNone(pick_model(plain))
        self.assertEqual(seen[:2], [("/x/v1/models", "Bearer k"), ("/x/metrics", "Bearer k")])
        self.assertEqual(seen[-1], ("/v1/models", None))


class ReadyTest(unittest.TestCase):
    def test_503_is_not_yet(self) -> None:
        count = iter(range(1000))

        def answer(path: str, headers: dict[str, str]) -> Reply:
            if next(count) < 3:
                return 503, b'{"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}'
            return 200, b"{}"

        heard: list[str] = []
        with server(answer) as target:
            wait_ready(target, 5.0, sleep=lambda seconds: None, waiting=heard.append)
        self.assertEqual(heard, ["/health answers 503: Loading model"] * 3)

    def test_models_may_still_be_loading_when_health_is_fine(self) -> None:
        count = iter(range(1000))

        def answer(path: str, headers: dict[str, str]) -> Reply:
            return (503, b"") if path == "/v1/models" and next(count) < 2 else (200, b"{}")

        heard: list[str] = []
        with server(answer) as target:
            wait_ready(target, 5.0, sleep=lambda seconds: None, waiting=heard.append)
        self.assertEqual(len(heard), 2)

    def test_a_server_without_either_route_is_ready(self) -> None:
        with server(routes({})) as target:
            self.assertLess(wait_ready(target, PATIENCE_S), PATIENCE_S)

    def test_a_refused_connection_is_not_yet_and_the_limit_ends_the_wait(self) -> None:
        target = parse_target(f"http://127.0.0.1:{unused_port()}")
        now = iter(float(second) for second in range(100))
        with self.assertRaisesRegex(RunError, "is not ready after 3.00 s: cannot connect .* refused"):
            wait_ready(target, 3.0, clock=lambda: next(now), sleep=lambda seconds: None)

    def test_a_server_that_refuses_the_key_is_not_waited_for(self) -> None:
        told = "/v1/models answers 401: no key; give the key"
        with server(lambda *_: (401, b'{"error": "no key"}')) as target, self.assertRaisesRegex(RunError, told):
            wait_ready(target, 60.0)

    def test_only_a_refused_connection_or_an_unresolvable_name_aborts(self) -> None:
        with self.assertRaisesRegex(RunError, "connection refused; is the server running"):
            check_reachable(parse_target(f"http://127.0.0.1:{unused_port()}"))
        with self.assertRaisesRegex(RunError, "cannot resolve 'no.such.host.invalid'"):
            check_reachable(parse_target("http://no.such.host.invalid"))
        with server(routes({})) as target:
            check_reachable(target)
            check_reachable(parse_target(f"https://127.0.0.1:{target.port}"))  # no TLS there: each request says so

    def test_a_fetch_that_times_out_says_so(self) -> None:
        def answer(path: str, headers: dict[str, str]) -> Reply:
            over.wait()
            return 200, b""

        over = threading.Event()
        with server(answer) as target, Fetcher(target, timeout_s=0.05) as fetcher:
            with self.assertRaises(FetchError) as caught:
                fetcher.get("/")
            over.set()
        self.assertEqual(caught.exception.kind, "timeout")


class SetupTest(unittest.TestCase):
    def test_llama_cpp_tells_its_slots_and_their_context(self) -> None:
        table = {
            "/v1/models": json.loads(capture("llamacpp-models.json")),
            "/props": {"total_slots": 4, "build_info": "b11434", "default_generation_settings": {"n_ctx": 1024}},
            "/slots": [{"id": number, "n_ctx": 1024} for number in range(4)],
            "/metrics": capture("llamacpp-metrics-before.txt"),
        }
        with server(routes(table)) as target:
            scraper = Scraper(target)
            scraper.first()
            facts = read_setup(target, scraper.pages[0])
            scraper.stop()
            without_metrics = read_setup(target)
        self.assertEqual(
            facts,
            {
                "dialect": "llama.cpp",
                "version": "b11434",
                "model": "smollm2-135m",
                "params": 134515008,
                "weights_bytes": 96576768,
                "quantization": "Q4_1",
                "context_trained": 8192,
                "slots": 4,
                "slot_tokens": 1024,
                "kv_tokens": 4096,
            },
        )
        self.assertEqual(without_metrics, facts)
        self.assertEqual(simulate_options(facts), {"slots": 4, "kv_tokens": 4096})

    def test_vllm_tells_its_blocks_and_its_version(self) -> None:
        table = {
            "/v1/models": capture("vllm-models.txt"),
            "/version": capture("vllm-version.txt"),
            "/metrics": capture("vllm-small-cache-metrics-before.txt"),
        }
        with server(routes(table)) as target:
            scraper = Scraper(target)
            scraper.first()
            facts = read_setup(target, scraper.pages[0])
            scraper.stop()
        self.assertEqual(
            facts,
            {
                "dialect": "vllm",
                "version": "0.32.0",
                "model": "tiny",
                "max_model_len": 1024,
                "num_gpu_blocks": 41,
                "block_size": 32,
                "prefix_caching": True,
                "gpu_memory_utilization": 0.92,
                "kv_cache_dtype": "auto",
            },
        )
        self.assertEqual(
            simulate_options(facts),
            {
                "like_vllm": True,
                "rules": "vllm-0.32",
                "kv_blocks": 41,
                "max_model_len": 1024,
                "block_size": 32,
                "prefix_caching": True,
            },
        )

    def test_the_rules_follow_the_version(self) -> None:
        for version, rules in (
            ("0.14.1", "vllm-0.18"),
            ("v0.18.0", "vllm-0.18"),
            ("0.19.0", "vllm-0.32"),
            ("1.0", "vllm-0.32"),
        ):
            with self.subTest(version=version):
                self.assertEqual(simulate_options({"dialect": "vllm", "version": version})["rules"], rules)
        self.assertEqual(simulate_options({"dialect": "vllm", "version": "main"}), {"like_vllm": True})

    def test_a_saved_run_becomes_the_options_of_a_simulation(self) -> None:
        load = WorkloadSpec(requests=16, concurrency=4, prompt_tokens="40", output_tokens="64")
        facts = {"dialect": "llama.cpp", "model": "smollm2-135m", "quantization": "Q8_0", "slots": 4, "kv_tokens": 4096}
        options = setup.like_run({**load.as_dict(), "url": "http://h", "api": "chat", "model": "x"}, facts)
        self.assertEqual(
            {key: options[key] for key in ("model", "slots", "kv_tokens")},
            {"model": "smollm2-135m-q8_0", "slots": 4, "kv_tokens": 4096},
        )
        self.assertNotIn("url", options)
        server = {key: options.pop(key) for key in ("model", "slots", "kv_tokens")}
        self.assertEqual(ServerSpec(**server).slots, 4)
        self.assertEqual(WorkloadSpec(**options), load)

    def test_a_server_that_tells_nothing_has_no_facts(self) -> None:
        with server(routes({})) as target:
            self.assertEqual(read_setup(target), {})
            self.assertIsNone(pick_model(target))
        with self.assertRaises(RunError):
            pick_model(parse_target(f"http://127.0.0.1:{unused_port()}"))
        self.assertEqual(simulate_options({}), {})

    def test_nonsense_is_nothing_said(self) -> None:
        table: dict[str, object] = {
            "/v1/models": {"data": [{"id": 3, "meta": []}, "x", {"id": "second", "max_model_len": -1}]},
            "/props": ["total_slots"],
            "/slots": {"n_ctx": 4},
            "/version": b"\xff not json",
            "/get_server_info": {"max_running_requests": True},
        }
        with server(routes(table)) as target:
            self.assertEqual(read_setup(target), {"model": "second"})

    def test_a_count_of_thousands_of_digits_is_nothing_said(self) -> None:
        many = "9" * 5000
        table = {"/metrics": f'vllm:cache_config_info{{num_gpu_blocks="{many}",block_size="16"}} 1\n'.encode()}
        with server(routes(table)) as target:
            scraper = Scraper(target)
            scraper.first()
            self.assertEqual(read_setup(target, scraper.pages[0]), {"dialect": "vllm", "block_size": 16})
            scraper.stop()
        self.assertEqual(simulate_options({"dialect": "vllm", "version": f"{many}.1"}), {"like_vllm": True})

    def test_a_server_that_does_not_answer_in_time_is_asked_no_more(self) -> None:
        asked: list[str] = []

        def answer(path: str, headers: dict[str, str]) -> Reply:
            asked.append(path)
            over.wait()
            return 200, b"{}"

        over = threading.Event()
        with server(answer) as target:
            self.assertEqual(read_setup(target, timeout_s=0.05), {})
            over.set()
        self.assertEqual(asked, ["/v1/models"])

    def test_ollama_and_several_models(self) -> None:
        with server(routes({"/v1/models": {"data": [{"id": "a"}, {"id": "b"}]}})) as target:
            self.assertEqual(read_setup(target), {"model": "a", "models": ["a", "b"]})


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    for module in (setup,):
        tests.addTests(doctest.DocTestSuite(module))
    return tests


if __name__ == "__main__":
    unittest.main()
