"""The load generator drives a workload: pacing, connections, redirects, interrupts, and what it counts about itself."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
import unittest
from array import array
from pathlib import Path
from unittest import mock

from servesim.client.flavour import API_FLAVOURS
from servesim.client.loop import Timeouts
from servesim.client.run import LoadGenerator, Progress, Watchers
from servesim.client.target import parse_target
from servesim.errors import RunError
from servesim.interrupts import Interrupts
from servesim.runs.records import Outcome, Run
from servesim.summary.latency import Completed
from servesim.workload.workload import ClosedLoop, OpenLoop, Retrying, SessionLoop
from tests.client_case import always, payload, plain_requests, run_against, verdict_of
from tests.serve_case import eventually
from tests.tls_front import HAVE_OPENSSL, TlsFront, make_certificate
from tests.truth_server import CLOSE, Asked, Step, TruthServer, VirtualServer, answer, token_stream

QUICK = token_stream(3, ttft_s=0.01, gap_s=0.002)


def open_loop(arrivals: list[float], **options: object) -> OpenLoop:
    requests = plain_requests(len(arrivals))
    requests.arrival_s = array("d", arrivals)
    return OpenLoop(requests, **options)  # type: ignore[arg-type]


class ConnectionsTest(unittest.TestCase):
    def test_a_closed_loop_keeps_its_connections(self) -> None:
        with VirtualServer(always(*QUICK)) as server:
            run = run_against(server, ClosedLoop(plain_requests(12), 3), concurrency=3)
            self.assertEqual(server.connections, 3)
        self.assertEqual(run.records.outcome.count(Outcome.COMPLETED), 12)
        self.assertEqual(run.client["concurrency"]["max"], 3)
        self.assertGreater(run.client["concurrency"]["mean"], 2.5)

    def test_a_second_run_uses_the_connections_of_the_first(self) -> None:
        with (
            TruthServer(always(*QUICK)) as server,
            LoadGenerator(parse_target(server.url), API_FLAVOURS["chat"]) as generator,
        ):
            for _ in range(3):
                generator.measure(ClosedLoop(plain_requests(4), 2), payload, config={}, concurrency=2)
            self.assertEqual(server.connections, 2)

    def test_fifty_asked_in_flight_are_fifty(self) -> None:
        slow = token_stream(3, ttft_s=0.1, gap_s=0.05)
        with VirtualServer(always(*slow)) as server:
            run = run_against(server, ClosedLoop(plain_requests(100), 50), concurrency=50)
        self.assertEqual(run.client["concurrency"]["max"], 50)
        self.assertGreater(run.client["concurrency"]["mean"], 45)

    def test_connection_close_costs_a_new_connection_and_nothing_else(self) -> None:
        closing = [Step(0.0, answer("200 OK", b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n'))]
        closing[0].data = closing[0].data.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
        with TruthServer(always(*closing, Step(0.0, act=CLOSE))) as server:
            run = run_against(server, ClosedLoop(plain_requests(4), 1))
            self.assertEqual(server.connections, 4)
        self.assertEqual(run.records.outcome.count(Outcome.COMPLETED), 4)
        self.assertEqual(run.client["stale_reconnects"], 0)

    def test_a_stale_connection_is_replaced_once_and_counted(self) -> None:
        def script(asked: Asked) -> list[Step]:
            return [Step(0.0, act=CLOSE)] if asked.number == 1 else QUICK

        with VirtualServer(script) as server:
            run = run_against(server, ClosedLoop(plain_requests(3), 1))
            self.assertEqual(len(server.asked), 4)
        self.assertEqual(run.records.outcome.count(Outcome.COMPLETED), 3)
        self.assertEqual(run.client["stale_reconnects"], 1)
        self.assertTrue(run.records.extra[1]["stale_reconnect"])

    def test_a_server_that_closes_behind_every_answer_is_believed_after_two(self) -> None:
        with VirtualServer(always(*QUICK, Step(0.002, act=CLOSE))) as server:
            run = run_against(server, ClosedLoop(plain_requests(8), 1))
            self.assertEqual(server.connections, 8)
        self.assertEqual(run.records.outcome.count(Outcome.COMPLETED), 8)
        self.assertLessEqual(run.client["stale_reconnects"], 2)
        self.assertFalse(run.client["keep_alive"])

    @unittest.skipUnless(sys.platform.startswith("linux"), "needs a kernel that drops what its queue cannot take")
    def test_a_server_that_takes_no_connection_in_time_is_a_failure_of_each_request(self) -> None:
        with socket.socket() as full:  # its queue of connections is full: the kernel drops the next one
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            url = f"http://127.0.0.1:{full.getsockname()[1]}"
            with contextlib.ExitStack() as stack:
                for _ in range(3):
                    waiting = stack.enter_context(socket.socket())
                    waiting.setblocking(False)
                    waiting.connect_ex(full.getsockname())
                timeouts = Timeouts(connect_s=0.1)
                generator = stack.enter_context(
                    LoadGenerator(parse_target(url), API_FLAVOURS["chat"], timeouts=timeouts)
                )
                run = generator.measure(ClosedLoop(plain_requests(2), 1), payload, config={}, concurrency=1)
        self.assertEqual([verdict_of(run, index) for index in (0, 1)], [("failed", "connect")] * 2)
        self.assertIn("timed out", run.records.extra[0]["message"])

    def test_a_fresh_connection_that_is_closed_again_is_a_failure(self) -> None:
        def script(asked: Asked) -> list[Step]:
            return [Step(0.0, act=CLOSE)] if asked.number in (1, 2) else QUICK

        with VirtualServer(script) as server:
            run = run_against(server, ClosedLoop(plain_requests(3), 1))
        self.assertEqual(verdict_of(run, 1), ("failed", "no_response"))
        self.assertEqual(verdict_of(run, 2), ("completed", None))

    def test_an_idle_connection_that_the_server_closed_is_not_used(self) -> None:
        with VirtualServer(always(*QUICK), idle_close_s=0.05) as server:
            run = run_against(server, open_loop([0.0, 0.3]))
        self.assertEqual(run.records.outcome.count(Outcome.COMPLETED), 2)
        self.assertEqual(run.client["stale_reconnects"], 0)

    def test_an_unreachable_server_ends_the_run_in_one_line(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        for url, words in ((f"http://127.0.0.1:{port}", "refused"), ("http://no-such-host.invalid", "cannot resolve")):
            with (
                self.subTest(url),
                self.assertRaisesRegex(RunError, words),
                LoadGenerator(parse_target(url), API_FLAVOURS["chat"]) as generator,
            ):
                generator.measure(ClosedLoop(plain_requests(1), 1), payload, config={}, concurrency=1)

    def test_a_server_that_goes_away_later_is_a_failure_of_each_request(self) -> None:
        with TruthServer(always(*QUICK)) as server:
            generator = LoadGenerator(parse_target(server.url), API_FLAVOURS["chat"])
            generator.connect(1)
        with generator:  # the server is gone by now
            run = generator.measure(ClosedLoop(plain_requests(2), 1), payload, config={}, concurrency=0)
        self.assertEqual(run.records.reason[1], "connect")
        self.assertIn("connection refused", run.records.extra[1]["message"])

    @unittest.skipUnless(socket.has_ipv6, "needs IPv6")
    def test_ipv6_is_bracketed(self) -> None:
        try:
            server = TruthServer(always(*QUICK), host="::1")
        except OSError:
            self.skipTest("needs IPv6")
        with server:
            run = run_against(server, target=parse_target(f"http://[::1]:{server.port}/v1"))
            self.assertEqual(server.asked[0].headers["host"], f"[::1]:{server.port}")
            self.assertEqual(server.asked[0].line, "POST /v1/chat/completions HTTP/1.1")
        self.assertEqual(verdict_of(run), ("completed", None))

    def test_no_proxy_is_used_that_was_not_asked_for(self) -> None:
        with (
            mock.patch.dict(os.environ, {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}),
            TruthServer(always(*QUICK)) as server,
        ):
            self.assertEqual(verdict_of(run_against(server)), ("completed", None))

    @unittest.skipUnless(HAVE_OPENSSL, "needs openssl to make a certificate")
    def test_tls_streams_are_stamped_as_they_come(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            certificate, key = make_certificate(Path(folder))
            slow = token_stream(5, ttft_s=0.05, gap_s=0.03)
            with TruthServer(always(*slow)) as server, TlsFront(server.port, certificate, key) as front:
                for options in ({"insecure": True}, {"ca_file": str(certificate)}):
                    run = run_against(server, target=parse_target(front.url, **options))
                    self.assertEqual(verdict_of(run), ("completed", None))
                    self.assertEqual(run.token_times(0), sorted(run.token_times(0)))
                    for number, at_s in enumerate(run.token_times(0)):  # never before it was sent
                        self.assertGreater(at_s - run.records.sent_s[0], 0.048 + 0.03 * number)
                run = run_against(server, target=parse_target(front.url))  # only nobody there aborts a run
                self.assertEqual(verdict_of(run), ("failed", "tls"))
                self.assertRegex(run.records.extra[0]["message"], "no TLS with .*--ca-file")


class RedirectsTest(unittest.TestCase):
    def test_307_and_308_keep_method_and_body(self) -> None:
        for status in ("307 Temporary Redirect", "308 Permanent Redirect"):

            def script(asked: Asked, status: str = status) -> list[Step]:
                if asked.line.startswith("POST /moved"):
                    return QUICK
                return [Step(0.05, answer(status, b"", "Location: /moved?x=1"))]

            with self.subTest(status), TruthServer(script) as server:
                target = parse_target(server.url, headers=["Authorization: Bearer secret"])
                run = run_against(server, target=target)
                first, second = server.asked
                self.assertEqual(second.line, "POST /moved?x=1 HTTP/1.1")
                self.assertEqual(first.body, second.body)
                self.assertEqual(second.headers["authorization"], "Bearer secret")
                self.assertEqual(verdict_of(run), ("completed", None))
                self.assertGreater(Completed(run).ttft()[0], 0.06)  # timed from the first send
                self.assertEqual(run.records.extra[0]["redirects"], 1)

    def test_credentials_stay_behind_on_another_host(self) -> None:
        with TruthServer(always(*QUICK)) as other:
            moved = answer("307 Temporary Redirect", b"", f"Location: http://localhost:{other.port}/there")
            with TruthServer(always(Step(0.0, moved))) as server:
                run = run_against(server, target=parse_target(server.url, headers=["Authorization: Bearer secret"]))
            self.assertEqual(verdict_of(run), ("completed", None))
            self.assertNotIn("authorization", other.asked[0].headers)
            self.assertEqual(other.asked[0].line, "POST /there HTTP/1.1")

    def test_more_than_three_hops_and_other_redirects_are_failures(self) -> None:
        with TruthServer(always(Step(0.0, answer("307 Temporary Redirect", b"", "Location: /again")))) as server:
            self.assertEqual(verdict_of(run_against(server)), ("failed", "redirect"))
            self.assertEqual(len(server.asked), 4)
        for address in ("//[::1", "http://h:port/", "http://a..b/", "ftp://h/", "/a b", "/\xe9"):
            moved = answer("308 Permanent Redirect", b"", f"Location: {address}")
            with self.subTest(address), TruthServer(always(Step(0.0, moved))) as server:
                run = run_against(server)
                self.assertEqual(verdict_of(run), ("failed", "redirect"))
                self.assertIn("which is no address", run.records.extra[0]["message"])
        with TruthServer(always(Step(0.0, answer("302 Found", b"", "Location: /again")))) as server:
            self.assertEqual(verdict_of(run_against(server)), ("failed", "http_302"))


class PacingTest(unittest.TestCase):
    def test_an_open_loop_sends_on_time(self) -> None:
        arrivals = [0.02 * k + 0.0007 * (k % 5) for k in range(20)]
        with VirtualServer(always(*QUICK)) as server:
            run = run_against(server, open_loop(arrivals), concurrency=4)
        self.assertEqual(list(run.records.planned_s), arrivals)
        lateness = sorted(Completed(run).lateness())
        self.assertGreaterEqual(lateness[0], 0.0)
        self.assertLess(lateness[-1], 0.0005)

    def test_stamps_are_never_before_the_servers_own(self) -> None:
        """How near they are, and that the verdict on the client is right, is a matter of `make bench`."""
        started: list[float] = []

        def start() -> float:
            started.append(time.monotonic())
            return started[0]

        requests = plain_requests(64, output=20)
        with (
            TruthServer(always(*token_stream(20, ttft_s=0.02, gap_s=0.005))) as server,
            LoadGenerator(parse_target(server.url), API_FLAVOURS["chat"]) as generator,
        ):
            run = generator.measure(ClosedLoop(requests, 32), payload, config={}, concurrency=32, start=start)
            asked = {each.json()["id"]: each for each in server.asked}
        self.assertEqual(run.records.outcome.count(Outcome.COMPLETED), 64)
        late_s = []
        for index in range(64):
            sent_s = [at_s - started[0] for at_s in asked[index].token_s]
            late_s += [seen - sent for seen, sent in zip(run.token_times(index), sent_s, strict=True)]
        self.assertGreaterEqual(min(late_s), 0.0)
        self.assertEqual(len(late_s), 64 * 20)

    def test_a_closed_loop_plans_each_request_at_the_end_of_another(self) -> None:
        with VirtualServer(always(*QUICK)) as server:
            run = run_against(server, ClosedLoop(plain_requests(6), 2), concurrency=2)
        ends = sorted(run.records.end_s)
        self.assertEqual(sorted(run.records.planned_s)[2:], ends[:4])

    def test_sessions_think_between_turns(self) -> None:
        requests = plain_requests(2)
        requests.sessions, requests.turns = ["s", "s"], array("q", [1, 2])
        requests.think_s, requests.arrival_s = array("d", [0.0, 0.1]), array("d", [0.0, float("nan")])
        with VirtualServer(always(*QUICK)) as server:
            run = run_against(server, SessionLoop(requests))
        self.assertAlmostEqual(run.records.sent_s[1], run.records.end_s[0] + 0.1, delta=0.0005)

    def test_a_request_is_tried_again_only_when_the_workload_says_so(self) -> None:
        def script(asked: Asked) -> list[Step]:
            return QUICK if asked.number else [Step(0.0, answer("429 Too Many Requests", b"{}"))]

        with VirtualServer(script) as server:
            run = run_against(server, Retrying(ClosedLoop(plain_requests(1), 1), retries=2, backoff_s=0.05))
        self.assertEqual(verdict_of(run), ("completed", None))
        self.assertEqual(run.records.attempts, {0: 2})
        self.assertEqual(run.records.planned_s[0], 0.0)
        self.assertGreater(Completed(run).ttft()[0], 0.05)  # from the first send

    def test_a_bad_request_is_not_tried_again(self) -> None:
        with VirtualServer(always(Step(0.0, answer("400 Bad Request", b"{}")))) as server:
            run = run_against(server, Retrying(ClosedLoop(plain_requests(1), 1), retries=2, backoff_s=0.01))
            self.assertEqual(len(server.asked), 1)
        self.assertEqual(verdict_of(run), ("failed", "http_400"))

    def test_a_time_limit_ends_the_arrivals_and_what_runs_too_long_is_unfinished(self) -> None:
        endless = token_stream(3, ttft_s=5.0, gap_s=0.01)
        with VirtualServer(lambda asked: QUICK if asked.number < 4 else endless) as server:
            run = run_against(server, ClosedLoop(plain_requests(100), 1, duration_s=0.2), grace_s=0.1)
        self.assertFalse(run.partial)
        outcomes = [run.records.outcome.count(outcome) for outcome in Outcome]
        self.assertEqual(outcomes, [1, 4, 0, 0, 95])
        self.assertLess(max(t for t in run.records.end_s if t == t), 0.5)


class InterruptsTest(unittest.TestCase):
    def interrupted(self, presses: int, steps: list[Step]) -> Run:
        """Press Ctrl-C a tenth of a second after two requests were sent."""
        interrupts = Interrupts()

        def press() -> None:
            interrupts.count += presses

        def script(asked: Asked) -> list[Step]:
            if asked.number == 1:
                server.at(0.1, press)
            return steps

        with VirtualServer(script) as server:
            run = run_against(server, ClosedLoop(plain_requests(100), 2), concurrency=2, interrupts=interrupts)
        self.assertTrue(run.partial)
        return run

    def test_once_lets_what_is_in_flight_finish(self) -> None:
        run = self.interrupted(1, token_stream(3, ttft_s=0.3, gap_s=0.05))
        outcomes = [run.records.outcome.count(outcome) for outcome in Outcome]
        self.assertEqual(outcomes, [0, 2, 0, 0, 98])

    def test_twice_ends_at_once_and_keeps_what_came(self) -> None:
        run = self.interrupted(2, token_stream(3, ttft_s=0.05, gap_s=3.0))
        self.assertEqual(run.records.outcome.count(Outcome.UNFINISHED), 2)
        self.assertEqual(len(run.times), 2)

    def test_the_signal_is_counted_and_its_handler_put_back(self) -> None:
        before = signal.getsignal(signal.SIGINT)
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGINT)
            eventually(self, lambda: interrupts.count, 1)
        self.assertIs(signal.getsignal(signal.SIGINT), before)


class WatchersTest(unittest.TestCase):
    def test_every_record_is_filed_once_and_progress_adds_up(self) -> None:
        filed, seen = [], []
        watchers = Watchers(filed=lambda run, index: filed.append(index), progress=seen.append)
        with TruthServer(always(*QUICK)) as server:
            run_against(server, ClosedLoop(plain_requests(9), 3), concurrency=3, watchers=watchers)
        self.assertEqual(sorted(filed), list(range(9)))
        last: Progress = seen[-1]
        self.assertEqual((last.done, last.total, last.in_flight, last.token_events), (9, 9, 0, 27))

    def test_tokens_are_counted_as_they_come_and_not_when_their_answer_ends(self) -> None:
        seen: list[Progress] = []
        with VirtualServer(always(*token_stream(12, ttft_s=0.05, gap_s=0.1))) as server:
            run_against(
                server, ClosedLoop(plain_requests(2), 2), concurrency=2, watchers=Watchers(progress=seen.append)
            )
        under_way = [told.token_events for told in seen if not told.done]
        self.assertGreater(len(under_way), 2)
        self.assertEqual(under_way, sorted(set(under_way)))
        self.assertEqual((seen[-1].done, seen[-1].token_events), (2, 24))


if __name__ == "__main__":
    unittest.main()
