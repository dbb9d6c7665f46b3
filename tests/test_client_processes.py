"""Several loops: the shares of a workload are the workload, and the merged run is one run."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import unittest
from array import array
from pathlib import Path

from servesim.client.flavour import API_FLAVOURS
from servesim.client.processes import measure_in_processes
from servesim.client.run import LoadGenerator, Progress, Watchers
from servesim.client.shares import deal
from servesim.client.target import Target, parse_target
from servesim.errors import RunError
from servesim.interrupts import Interrupts
from servesim.runs.reader import read_run
from servesim.runs.records import Outcome, Run
from servesim.runs.writer import RunWriter
from servesim.workload.requests import Requests, rows_of
from servesim.workload.workload import ClosedLoop, OpenLoop, Retrying, SessionLoop
from tests.client_case import always, payload, plain_requests
from tests.serve_case import eventually
from tests.truth_server import TruthServer, token_stream

QUICK = token_stream(3, ttft_s=0.01, gap_s=0.002)


def measure(target: Target, requests: Requests, build, workers: int, concurrency: int | None, **options) -> Run:
    return measure_in_processes(
        deal(requests, build, workers=workers, concurrency=concurrency),
        requests,
        payload,
        make=lambda interrupts: LoadGenerator(target, API_FLAVOURS["chat"], interrupts=interrupts, grace_s=60.0),
        config={},
        concurrency=concurrency,
        **options,
    )


class SharesTest(unittest.TestCase):
    def test_every_request_is_in_one_hand_and_the_concurrency_adds_up(self) -> None:
        for size, workers, concurrency in ((10, 3, 4), (2, 8, 5), (7, 2, None), (5, 3, 1)):
            with self.subTest(size=size, workers=workers, concurrency=concurrency):
                build = ClosedLoop if concurrency else _at_once
                shares = deal(plain_requests(size), build, workers=workers, concurrency=concurrency)
                self.assertEqual(sorted(n for share in shares for n in share.numbers), list(range(size)))
                self.assertEqual(sum(share.concurrency for share in shares), concurrency or 0)

    def test_a_session_stays_in_one_hand(self) -> None:
        requests = plain_requests(8)
        requests.sessions = ["a", "b", "a", None, "b", "c", "a", "c"]
        requests.turns = array("q", [1, 1, 2, 1, 2, 1, 3, 2])
        shares = deal(requests, lambda part, own: SessionLoop(part, concurrency=own), workers=2, concurrency=2)
        for session in "abc":
            turns = {n for n, name in enumerate(requests.sessions) if name == session}
            self.assertEqual(sum(bool(turns.intersection(share.numbers)) for share in shares), 1)

    def test_selected_rows_keep_every_column(self) -> None:
        requests = plain_requests(3)
        requests.ids, requests.priority = ["x", "y", "z"], array("q", [3, 2, 1])
        chosen = rows_of(requests, [2, 0])
        self.assertEqual((chosen.ids, list(chosen.priority), len(chosen)), (["z", "x"], [1, 3], 2))

    def test_retries_are_told_under_the_numbers_of_the_whole(self) -> None:
        def build(part: Requests, own: int) -> Retrying:
            return Retrying(ClosedLoop(part, own), retries=1, backoff_s=0.0)

        _, share = deal(plain_requests(4), build, workers=2, concurrency=2)
        self.assertEqual(share.take(0.0), [1])
        self.assertTrue(share.finished(1, 1.0, "http_429"))
        self.assertEqual(share.attempts, {1: 2})


class ProcessesTest(unittest.TestCase):
    def test_two_processes_give_the_run_that_one_would(self) -> None:
        for name, build, concurrency in (("closed", ClosedLoop, 4), ("open", lambda part, own: OpenLoop(part), None)):
            with self.subTest(name), TruthServer(always(*QUICK)) as server:
                requests = plain_requests(21)
                if concurrency is None:
                    requests.arrival_s = array("d", [0.01 * k for k in range(21)])
                seen: list[Progress] = []
                run = measure(
                    parse_target(server.url), requests, build, 2, concurrency, watchers=Watchers(progress=seen.append)
                )
                self.assertEqual(sorted(asked.json()["id"] for asked in server.asked), list(range(21)))
                self.assertEqual(run.records.outcome.count(Outcome.COMPLETED), 21)
                self.assertEqual(len(run.times), 63)
                for index in range(21):
                    times = run.token_times(index)
                    self.assertEqual(len(times), 3)
                    self.assertLess(run.records.sent_s[index], times[0])
                self.assertEqual(run.client["processes"], 2)
                self.assertEqual(run.client["concurrency"]["asked"], concurrency)
                self.assertEqual(seen[-1].done, 21)

    def test_a_file_that_was_opened_before_gets_every_line(self) -> None:
        with tempfile.TemporaryDirectory() as folder, TruthServer(always(*QUICK)) as server:
            path = str(Path(folder) / "run.jsonl")
            with RunWriter(path, live=True) as writer:

                def count(filed: int) -> None:
                    writer.requests += filed

                watchers = Watchers(
                    filed=writer.request,
                    filed_elsewhere=count,
                    begun=lambda run: writer.header(run, "loadgen"),
                )
                run = measure(parse_target(server.url), plain_requests(20), ClosedLoop, 2, 2, watchers=watchers)
                writer.footer(run)
            saved = read_run(path)
        self.assertEqual(list(saved.records.sent_s), list(run.records.sent_s))

    def test_an_unreachable_server_ends_the_run_in_one_line(self) -> None:
        with self.assertRaisesRegex(RunError, "connection refused"):
            measure(parse_target("http://127.0.0.1:9"), plain_requests(4), ClosedLoop, 2, 2)

    def test_an_interrupt_is_passed_on(self) -> None:
        interrupts = Interrupts()

        def press() -> None:
            eventually(self, lambda: len(server.asked) > 20, True)
            interrupts.count += 1

        with TruthServer(always(*QUICK)) as server:
            threading.Thread(target=press).start()
            run = measure(parse_target(server.url), plain_requests(1000), ClosedLoop, 2, 2, interrupts=interrupts)
        self.assertTrue(run.partial)
        self.assertEqual(run.records.outcome.count(Outcome.UNFINISHED), 0)
        self.assertGreater(run.records.outcome.count(Outcome.COMPLETED), 2)

    def test_a_process_that_dies_leaves_a_partial_run(self) -> None:
        def die(run: Run, index: int) -> None:
            if index == 5:
                os.kill(os.getpid(), signal.SIGKILL)

        with TruthServer(always(*QUICK)) as server:
            run = measure(parse_target(server.url), plain_requests(10), ClosedLoop, 2, 2, watchers=Watchers(filed=die))
        self.assertTrue(run.partial)
        self.assertEqual(run.records.outcome.count(Outcome.COMPLETED), 5)
        self.assertIn("died", run.warnings[0])


def _at_once(part: Requests, concurrency: int) -> OpenLoop:
    part.arrival_s = array("d", [0.0]) * len(part)
    return OpenLoop(part)


if __name__ == "__main__":
    unittest.main()
