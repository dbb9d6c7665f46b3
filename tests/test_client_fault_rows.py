"""The faults that were found in public in tools of this kind, one row each, and the tests that keep them out of here.

`ROWS` is the list; a row names the tests that hold it, and a meta test sees to it that they exist and that no row is
without one. The rows whose exact bytes stand in no other test are tested here, through the whole client.
"""

from __future__ import annotations

import json
import unittest
from collections.abc import Sequence
from importlib import import_module

from servesim.runs.records import Outcome, Run
from servesim.summary.latency import Completed
from servesim.summary.summary import summarize
from servesim.workload.workload import ClosedLoop
from tests.client_case import PAUSE_S, always, plain_requests, run_against, run_script, stream, times_ms, verdict_of
from tests.truth_server import (
    CLOSE,
    DONE,
    FINISH,
    ROLE,
    Asked,
    Step,
    VirtualServer,
    content,
    event,
    token_stream,
    usage,
)

R, F, Z = event(ROLE), event(FINISH), DONE
A, B, C = event(content("a")), event(content("b")), event(content("c"))
U = event(usage(3))
NEAR_MS = 0.5

ROWS: dict[str, tuple[str, ...]] = {
    "data: without a space": ("client_faults.Streams", "sse.Split.the_space_after_the_colon"),
    "only line feeds end events": ("client_fault_rows.Bytes.carriage_returns_and_a_pause", "sse.Split.all_three"),
    "two CRLF events in one read": ("client_faults.Streams", "sse.Split.all_three"),
    "keep-alive comments read as JSON or timed": ("client_fault_rows.Bytes.comments_between", "sse.Split.comments"),
    "heartbeats of one byte": ("client_faults.WholeHeads.a_stream_written_a_byte", "http_body.Chunked.heartbeats"),
    "text that looks like framing": ("client_faults.Streams", "sse.Split.escaped_line_ends"),
    "data lines of one event apart": ("client_faults.Streams", "events.ChatFaults.two_data_lines"),
    "a character in two reads": ("client_faults.Streams", "events.ChatFaults.a_multibyte_character"),
    "stripped reads": (
        "client_fault_rows.Bytes.a_space_at_the_end_of_a_read",
        "sse.Split.multibyte_characters_and_blanks",
    ),
    "two events in one read": ("client_faults.Streams", "sse.Split.several_events_in_one_read"),
    "one stamp for many events": ("client_fault_rows.Bytes.five_events_in_one_write",),
    "control characters in JSON": ("client_faults.Streams", "events.Malformed.raw_control"),
    "the last event without its blank line": ("client_faults.Failures.a_last_event_without",),
    "a read that waits for more": ("client_faults.Streams.one_event_and_then_silence",),
    "small buffers": ("client_faults.Bodies.a_large_request_and_a_large_event",),
    "the role chunk as first token": ("client_faults.Streams.the_first_token_is_the_first_text",),
    "an empty first text as first token": ("client_fault_rows.Bytes.an_empty_first_text",),
    "reasoning left out": ("client_fault_rows.Bytes.three_thoughts",),
    "tool calls left out": ("client_fault_rows.Bytes.three_tool_calls",),
    "null content": ("client_faults.Streams", "events.ChatFaults.null_content"),
    "usage without choices": ("client_faults.Streams", "events.ChatFaults.choices_may_lack"),
    "empty choices": ("client_faults.Streams", "events.ChatFaults.choices_may_lack"),
    "usage in the finish chunk": ("client_faults.Streams.usage_in_the_event_that_finishes",),
    "usage on every chunk added up": ("client_faults.Streams", "events.ChatFaults.continuous_usage"),
    "usage behind the finish lost": ("client_faults.Streams.usage_is_read_after_the_finish",),
    "filter results in front": ("client_faults.Streams", "events.ChatFaults.filter_results"),
    "the asked length as the produced one": ("client_fault_rows.Bytes.without_usage_events_are_counted",),
    "a TTFT of 0 as none": (
        "client_fault_rows.Bytes.everything_in_the_first_write",
        "summary.OneRequest.a_latency_of_zero",
    ),
    "no output as a success of 0 latency": ("client_fault_rows.Bytes.an_answer_of_no_tokens",),
    "several tokens in the first chunk": ("client_fault_rows.Bytes.several_tokens_an_event",),
    "speculative chunks as tokens": ("client_fault_rows.Bytes.several_tokens_an_event",),
    "late usage in the latency": ("client_faults.Streams.a_late_usage_chunk", "summary.OneRequest.a_late_usage_chunk"),
    "an error inside a 200 stream": ("client_faults.Failures.an_error_inside_a_stream",),
    "a clean cut as a success": ("client_faults.Failures.a_stream_that_stops",),
    "a reset loses the record": ("client_faults.Failures.a_reset_keeps", "client_faults.Failures.one_failure"),
    "a closed idle connection as the server's failure": (
        "client_fault_rows.Bytes.an_idle_close_while_the_client_thinks",
        "client_run.Connections.a_stale_connection",
    ),
    "hidden retries": ("client_faults.Failures.a_429_is_a_result", "client_run.Pacing.a_request_is_tried_again_only"),
    "a loading server fails the run": ("cli_loadgen.End.a_server_that_is_still", "client_scraper.Ready.503"),
    "quick errors improve the mean": ("summary.WhatIsMissing.quick_errors",),
    "infinite latencies in percentiles": ("summary.WhatIsMissing.percentiles_of_the_slo",),
    "goodput differs between outputs": ("cli_loadgen.End.an_objective_that_is_not_met",),
    "Ctrl-C loses everything": ("cli_loadgen.Interrupt.ctrl_c_gives_a_partial", "client_run.Interrupts.once"),
    "a stalled stream hangs": ("client_faults.Failures.a_token_and_then_silence", "client_faults.Failures.the_total"),
    "the base path lost or doubled": ("client_target.Address.every_spelling",),
    "IPv6 without brackets": ("client_run.Connections.ipv6", "client_target.Address.ipv6"),
    "the environment's proxy": ("client_run.Connections.no_proxy", "client_target.Way.the_environments_proxy"),
    "compressed streams": ("client_faults.Bodies.compressed_streams", "client_target.Secret.compressed_streams"),
    "no key for /v1/models": (
        "cli_loadgen.Request.the_key_goes_to_every_route",
        "client_scraper.Scraper.headers_and_key",
    ),
    "a whole answer for a stream": ("client_faults.Bodies.a_whole_answer", "client_captures.Captures.every_whole"),
    "renamed KV usage": ("server_window.Vllm.a_metric_is_found",),
    "renamed ITL": ("server_window.Vllm.a_metric_is_found",),
    "a metric taken away": ("server_window.LlamaCpp.what_it_does_not_offer",),
    "colons in metric names": ("prometheus.Sample.names_may_hold",),
    "the content type decides": ("client_faults.Bodies.a_whole_answer", "client_scraper.Scraper.pages_before"),
    "one engine of several": ("server_window.Vllm.several_engines",),
    "shares added up": ("server_window.Vllm.fractions_over_engines",),
    "one NaN loses the page": ("prometheus.Page.one_nan", "server_window.Vllm.one_nan"),
    "exponents": ("prometheus.Sample.numbers_come",),
    "metrics that change between versions": ("cli_loadgen.Report.the_servers_own_metrics",),
    "scraping inside the timed span": ("cli_loadgen.Report.a_slow_metrics_page", "client_scraper.Scraper.a_slow_page"),
    "the client's own delay": ("client_health.Verdict.the_largest_of_three", "client_run.Pacing.stamps_are_never"),
    "the client's queue hides the server's": ("client_apis.HonestLoad",),
    "fewer in flight than asked": ("client_run.Connections.fifty_asked",),
    "a burst at the start": (
        "cli_loadgen.Request.a_first_wave_can_be_spread",
        "client_run.Connections.a_closed_loop_keeps",
    ),
    "one pool for all": ("client_fault_rows.Bytes.a_thousand_streams",),
    "a tokenizer of its own": ("client_fault_rows.Bytes.the_usage_counts_whatever_the_text",),
    "averages in place of gaps": ("summary.OneRequest.a_rare_stall",),
    "incomplete requests in the throughput": (
        "client_run.Pacing.a_time_limit",
        "summary.WhatIsMissing.throughput_counts_only",
    ),
    "accuracy that nobody checks": ("client_run.Pacing.stamps_are_never",),
}
"""What went wrong elsewhere -> tests, each `module.Class` or `module.Class.beginning of its sentence`."""


def delta(**fields: object) -> bytes:
    return event(json.dumps({"choices": [{"index": 0, "delta": fields}]}).encode())


class BytesTest(unittest.TestCase):
    """Rows by their exact bytes."""

    def read(self, *writes: bytes | float, events: int, tokens: int = 3) -> Run:
        run = run_script(stream(*writes))
        self.assertEqual(verdict_of(run), ("completed", None))
        self.assertEqual((len(run.token_times(0)), run.records.output_tokens[0]), (events, tokens))
        return run

    def check_times(self, run: Run, expected_ms: Sequence[float]) -> None:
        for seen, expected in zip(times_ms(run), expected_ms, strict=True):
            self.assertAlmostEqual(seen, expected, delta=NEAR_MS)

    def test_carriage_returns_and_a_pause_do_not_hold_an_answer_back(self) -> None:
        crlf = [part.replace(b"\n", b"\r\n") for part in (R, A, B + C, F + U + Z)]
        run = self.read(crlf[0], PAUSE_S, crlf[1], PAUSE_S, *crlf[2:], events=3)
        self.check_times(run, (20.0, 40.0, 40.0))

    def test_comments_between_events_are_neither_read_nor_timed(self) -> None:
        run = self.read(b": ping\n\n", PAUSE_S, R, PAUSE_S, b":\n\n", PAUSE_S, A, F + U + Z, events=1)
        self.check_times(run, (60.0,))
        self.assertNotIn("malformed_events", run.records.extra.get(0, {}))

    def test_a_space_at_the_end_of_a_read_stays(self) -> None:
        one = event(content("A Z"))
        cut = one.index(b"A Z") + 2
        run = self.read(one[:cut], one[cut:], event(content(" ")), F + U + Z, events=2)
        self.assertNotIn("malformed_events", run.records.extra.get(0, {}))

    def test_five_events_in_one_write_are_five_of_one_stamp(self) -> None:
        five = event(content("x")) * 5
        run = self.read(five, 0.025, five, 0.025, five, F + event(usage(15)) + Z, events=15, tokens=15)
        self.check_times(run, [at for at in (0.0, 25.0, 50.0) for _ in range(5)])
        self.assertEqual(run.client["coalesced_fraction"], 12 / 15)
        self.assertEqual(Completed(run).tpot()[0], (run.times[-1] - run.times[0]) / 14)

    def test_an_empty_first_text_does_not_stop_the_clock(self) -> None:
        run = self.read(delta(content=""), 0.1, A, B, C, F + U + Z, events=3)
        self.check_times(run, (100.0,) * 3)

    def test_three_thoughts_count_and_are_not_the_first_output(self) -> None:
        for name in ("reasoning_content", "reasoning"):
            thoughts = [write for _ in range(3) for write in (PAUSE_S, delta(**{name: "hm"}))]
            run = self.read(R, *thoughts, PAUSE_S, A, F + event(usage(4)) + Z, events=4, tokens=4)
            done = Completed(run)
            self.assertAlmostEqual(done.ttft()[0] * 1000, 20.0, delta=NEAR_MS)
            self.assertAlmostEqual(done.ttfo()[0] * 1000, 80.0, delta=NEAR_MS)

    def test_three_tool_calls_are_three_events(self) -> None:
        call = delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}])
        finish = event(b'{"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}')
        run = run_script(stream(R, call, call, call, finish + U + Z))
        self.assertEqual(verdict_of(run), ("completed", "tool_calls"))
        self.assertEqual((len(run.token_times(0)), run.records.visible[0]), (3, -1))

    def test_without_usage_events_are_counted_and_the_count_is_an_estimate(self) -> None:
        with VirtualServer(always(*stream(A, B, C, F, Z))) as server:
            run = run_against(server, ClosedLoop(plain_requests(1, output=64), 1))
        tokens = summarize(run).tokens
        self.assertEqual((tokens.output, tokens.estimated), (3, 3))

    def test_everything_in_the_first_write_still_has_a_first_token(self) -> None:
        run = self.read(R + A + B + C + F + U + Z, events=3)
        summary = summarize(run)
        self.assertEqual((summary.ttft_ms.count, summary.tpot_ms.count, summary.tpot_ms.max), (1, 1, 0.0))
        self.assertIsNotNone(run.client["verdict"])

    def test_an_answer_of_no_tokens_is_a_success_without_latencies(self) -> None:
        summary = summarize(self.read(R, F, event(usage(0)), Z, events=0, tokens=0))
        self.assertEqual((summary.requests.completed, summary.requests.empty), (1, 1))
        self.assertEqual((summary.ttft_ms, summary.tpot_ms, summary.errors), (None, None, {}))

    def test_several_tokens_an_event_are_told_and_gaps_are_not_scaled(self) -> None:
        run = self.read(
            event(content("a b c d e f")), PAUSE_S, A, PAUSE_S, B, F + event(usage(12)) + Z, events=3, tokens=12
        )
        summary = summarize(run)
        self.assertEqual((summary.tokens.per_event, summary.itl_ms.count), (4.0, 2))
        self.assertAlmostEqual(summary.itl_ms.mean, 20.0, delta=NEAR_MS)
        self.assertAlmostEqual(summary.tpot_ms.mean, 40.0 / 11, delta=0.1)

    def test_the_usage_counts_whatever_the_text(self) -> None:
        self.read(event(content("one two three four five six seven")), F + U + Z, events=1)

    def test_an_idle_close_while_the_client_thinks_is_no_failure(self) -> None:
        quick = token_stream(3, ttft_s=0.005, gap_s=0.002)

        def script(asked: Asked) -> list[Step]:  # the server's idle time is over just as the next request arrives
            return [Step(0.0, act=CLOSE)] if asked.number == 1 else quick

        with VirtualServer(script) as server:
            run = run_against(server, ClosedLoop(plain_requests(2), 1))
            self.assertEqual([asked.connection for asked in server.asked], [0, 0, 1])
        self.assertEqual(run.records.outcome.count(Outcome.COMPLETED), 2)
        self.assertEqual(run.client["stale_reconnects"], 1)

    def test_a_thousand_streams_are_a_thousand_connections(self) -> None:
        with VirtualServer(always(*stream(0.5, A, F + U + Z))) as server:
            run = run_against(server, ClosedLoop(plain_requests(1000), 1000), concurrency=1000)
            self.assertEqual(server.connections, 1000)
        self.assertEqual(run.records.outcome.count(Outcome.COMPLETED), 1000)
        self.assertEqual(run.client["concurrency"]["max"], 1000)


class TableTest(unittest.TestCase):
    def test_every_row_has_tests_that_exist(self) -> None:
        self.assertEqual(len(ROWS), 69)
        for row, names in ROWS.items():
            self.assertTrue(names, row)
            for name in names:
                with self.subTest(row, name=name):
                    self.assertTrue(tests_of(name), f"no test is called {name}")


def tests_of(name: str) -> list[str]:
    """Return the tests that `module.Class[.beginning]` names; a class may be named by its beginning too."""
    module, owner, *sentence = name.split(".", 2)
    found = import_module(f"tests.test_{module}")
    beginning = f"test_{sentence[0] if sentence else ''}"
    return [
        method
        for kind in vars(found).values()
        if isinstance(kind, type) and issubclass(kind, unittest.TestCase) and kind.__name__.startswith(owner)
        for method in dir(kind)
        if method.startswith(beginning)
    ]


if __name__ == "__main__":
    unittest.main()
