"""Everything that a server can do to a stream, over a real socket: what is recorded of it."""

from __future__ import annotations

import gzip
import json
import unittest
import zlib

from servesim.client.flavour import API_FLAVOURS
from servesim.client.loop import Timeouts
from servesim.client.run import LoadGenerator
from servesim.client.target import parse_target
from servesim.summary.latency import Completed
from servesim.workload.workload import ClosedLoop
from tests.client_case import PAUSE_S, plain_requests, run_against, run_script, stream, times_ms, verdict_of
from tests.truth_server import (
    CLOSE,
    DONE,
    FINISH,
    HALF_CLOSE,
    HEAD_OF_STREAM,
    KEEP_SILENT,
    RESET,
    ROLE,
    Step,
    TruthServer,
    VirtualServer,
    answer,
    chunk,
    content,
    event,
    usage,
)

A, B, C = event(content("a")), event(content("b")), event(content("c"))
R, F, U, Z = event(ROLE), event(FINISH), event(usage(3)), DONE
END = F + U + Z
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def delta(**fields: object) -> bytes:
    return event(json.dumps({"choices": [{"index": 0, "delta": fields}]}).encode())


class StreamsAreReadByTheLetterTest(unittest.TestCase):
    """Each row: the writes of one stream, and the token events and tokens that must come out."""

    def check(self, writes: tuple, events: int, tokens: int) -> None:
        run = run_script(stream(*writes))
        self.assertEqual(verdict_of(run), ("completed", None))
        self.assertEqual(len(run.token_times(0)), events)
        self.assertEqual(run.records.output_tokens[0], tokens)

    def test_every_legal_shape_of_a_stream_gives_its_tokens(self) -> None:
        bytewise = tuple(bytes([byte]) for byte in R + A + B + C + END)
        character = event(content("中"))
        cut = character.index("中".encode()) + 1
        counted = ({**json.loads(content("a")), "usage": {"completion_tokens": n}} for n in (1, 2, 3))
        growing = tuple(event(json.dumps(one).encode()) for one in counted)
        four = event(content("a b c d"))
        rows = {
            "no space after the colon": ((b"data:" + content("a") + b"\n\n", B, C, END), 3, 3),
            "carriage return and line feed": (((R + A + B + C + END).replace(b"\n", b"\r\n"),), 3, 3),
            "carriage return alone": (((R + A + B + C + END).replace(b"\n", b"\r"),), 3, 3),
            "comments between events": ((b": ping\n\n", R, b":\n\n", A, B, C, END), 3, 3),
            "a byte a chunk": (bytewise, 3, 3),
            "two events in one write": ((R, A + B, C, END), 3, 3),
            "an event over two data lines": (
                (b'data: {"choices":\ndata: [{"delta": {"content": "a"}}]}\n\n', B, C, END),
                3,
                3,
            ),
            "a character cut in two": ((R, character[:cut], character[cut:], B, C, END), 3, 3),
            "blank lines inside the text": ((event(content("a:\n\nb")), B, C, END), 3, 3),
            "a control character inside the JSON": (
                (b'data: {"choices":[{"delta":{"content":"a\x01"}}]}\n\n', B, C, END),
                3,
                3,
            ),
            "null content between two texts": ((A, delta(content=None), B, event(FINISH) + event(usage(2)) + Z), 2, 2),
            "an empty first text": ((delta(content=""), A, B, C, END), 3, 3),
            "usage without choices": (
                (A, B, C, F, b'data: {"usage": {"prompt_tokens": 5, "completion_tokens": 3}}\n\n', Z),
                3,
                3,
            ),
            "filter results first": ((b'data: {"choices":[],"prompt_filter_results":[]}\n\n', R, A, B, C, END), 3, 3),
            "usage on every event": ((*growing, F, Z), 3, 3),
            "four tokens an event": ((four, four, F + event(usage(8)) + Z), 2, 8),
            "an error that is null": ((b'data: {"error": null, "choices": []}\n\n', A, B, C, END), 3, 3),
            "tool calls": ((delta(tool_calls=[{"index": 0}]), delta(tool_calls=[{"index": 0}]), END), 2, 3),
            "no answer at all": ((R, F + event(usage(0)) + Z), 0, 0),
        }
        for name, (writes, events, tokens) in rows.items():
            with self.subTest(name):
                self.check(writes, events, tokens)

    def test_the_first_token_is_the_first_text_not_the_role(self) -> None:
        run = run_script(stream(R, PAUSE_S * 5, A, B, C, END))
        self.assertAlmostEqual(times_ms(run)[0], 100.0, delta=0.5)

    def test_a_heartbeat_is_no_token(self) -> None:
        run = run_script(stream(R, PAUSE_S, b":\n\n", PAUSE_S, A, B, C, END))
        self.assertAlmostEqual(times_ms(run)[0], 40.0, delta=0.5)
        self.assertEqual(len(run.token_times(0)), 3)

    def test_reasoning_counts_but_is_not_visible(self) -> None:
        run = run_script(stream(delta(reasoning_content="x"), delta(reasoning="y"), PAUSE_S, A, END))
        self.assertEqual(run.records.visible[0] - run.records.first[0], 2)
        self.assertGreater(Completed(run).ttfo()[0], Completed(run).ttft()[0] + 0.01)

    def test_an_event_is_stamped_when_its_data_line_was_whole(self) -> None:
        run = run_script(stream(R, A[:-1], PAUSE_S * 2, A[-1:], B, C, END))
        self.assertLess(times_ms(run)[0], 0.5)

    def test_events_of_one_read_have_one_stamp_and_are_counted_as_coalesced(self) -> None:
        run = run_script(stream(A + B + C + A, PAUSE_S, B + C + A + B, F + event(usage(8)) + Z))
        self.assertEqual(len(set(run.token_times(0))), 2)
        self.assertEqual(run.client["coalesced_fraction"], 6 / 8)

    def test_one_event_and_then_silence_does_not_wait_for_the_silence(self) -> None:
        run = run_script(stream(A, 0.3, B, C, END))
        self.assertLess(times_ms(run)[0], 0.5)
        self.assertAlmostEqual(times_ms(run)[1], 300.0, delta=0.5)

    def test_a_late_usage_chunk_is_not_in_the_latency(self) -> None:
        run = run_script(stream(A, B, C, 0.1, END))
        self.assertLess(Completed(run).e2e()[0], 0.0005)
        self.assertGreater(run.records.end_s[0] - run.records.sent_s[0], 0.1)

    def test_usage_is_read_after_the_finish_reason(self) -> None:
        run = run_script(stream(A, B, F, PAUSE_S, event(usage(64, prompt=9)), PAUSE_S, Z))
        self.assertEqual((run.records.prompt_tokens[0], run.records.output_tokens[0]), (9, 64))

    def test_usage_in_the_event_that_finishes_is_read(self) -> None:
        both = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 7}}
        run = run_script(stream(A, B, event(json.dumps(both).encode()), Z))
        self.assertEqual(run.records.output_tokens[0], 7)

    def test_tokens_are_estimated_from_events_when_there_is_no_usage(self) -> None:
        run = run_script(stream(A, B, C, F, Z))
        self.assertEqual(run.records.output_tokens[0], 3)
        self.assertTrue(run.records.extra[0]["estimated"])

    def test_malformed_json_is_counted_and_passed_over(self) -> None:
        run = run_script(stream(A, b"data: {oops\n\n", B, C, END))
        self.assertEqual(verdict_of(run), ("completed", None))
        self.assertEqual(run.records.extra[0]["malformed_events"], 1)

    def test_cached_tokens_are_kept_and_unknown_ones_are_minus_one(self) -> None:
        counts = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
        run = run_script(stream(A, B, C, F, event(json.dumps({"choices": [], "usage": counts}).encode()), Z))
        self.assertEqual(run.records.cached_tokens[0], 4)
        self.assertEqual(run_script(stream(A, B, C, END)).records.cached_tokens[0], -1)

    def test_an_answer_cut_by_the_context_is_capped(self) -> None:
        short = event(json.dumps({"choices": [{"delta": {}, "finish_reason": "length"}]}).encode())
        run = run_script(stream(A, B, short, event(usage(2)), Z))
        self.assertEqual(run.records.capped, {0})
        self.assertEqual(run_script(stream(A, B, C, short, U, Z)).records.capped, set())


class BodiesTest(unittest.TestCase):
    def test_a_body_may_end_with_the_connection(self) -> None:
        for version in (b"HTTP/1.0", b"HTTP/1.1"):
            with self.subTest(version):
                head = version + b" 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
                run = run_script([Step(0.0, head + A + B + C + END), Step(0.0, act=CLOSE)])
                self.assertEqual(verdict_of(run), ("completed", None))

    def test_informational_responses_are_skipped_and_any_2xx_is_success(self) -> None:
        early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
        head = b"HTTP/1.1 206 Partly\r\nTransfer-Encoding: chunked\r\n\r\n"
        run = run_script([Step(0.0, early), Step(PAUSE_S, head + chunk(A + B + C + END) + b"0\r\n\r\n")])
        self.assertEqual(verdict_of(run), ("completed", None))

    def test_chunk_extensions_and_trailers_are_legal(self) -> None:
        body = A + B + C + END
        text = CHUNKED + b"%x;name=value\r\n%b\r\n0\r\nExpires: never\r\n\r\n" % (len(body), body)
        self.assertEqual(verdict_of(run_script([Step(0.0, text)])), ("completed", None))

    def test_a_chunk_size_is_hexadecimal_digits_and_nothing_else(self) -> None:
        run = run_script([Step(0.0, CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n")])
        self.assertEqual(verdict_of(run), ("failed", "malformed"))

    def test_what_is_no_http_is_malformed(self) -> None:
        self.assertEqual(verdict_of(run_script([Step(0.0, b"SSH-2.0-OpenSSH_9.6\r\n")])), ("failed", "malformed"))

    def test_compressed_streams_are_read(self) -> None:
        for coding, compressor in (
            ("gzip", zlib.compressobj(wbits=31)),
            ("deflate", zlib.compressobj()),
            ("deflate", zlib.compressobj(wbits=-15)),
        ):
            with self.subTest(coding):
                head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
                steps = [Step(0.0, head)]
                for part in (R, A, B, C, END):
                    packed = compressor.compress(part) + compressor.flush(zlib.Z_SYNC_FLUSH)
                    steps.append(Step(PAUSE_S, chunk(packed)))
                steps.append(Step(0.0, chunk(compressor.flush()) + b"0\r\n\r\n"))
                run = run_script(steps)
                self.assertEqual(verdict_of(run), ("completed", None))
                self.assertEqual(len(set(run.token_times(0))), 3)

    def test_a_whole_answer_in_place_of_a_stream_is_one_event_marked_non_stream(self) -> None:
        message = {
            "choices": [{"message": {"content": "a b c"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 3},
        }
        body = json.dumps(message).encode()
        for kind in ("application/json", "text/event-stream"):
            with self.subTest(kind):
                run = run_script([Step(0.0, answer("200 OK", body, f"Content-Type: {kind}"))])
                self.assertEqual(verdict_of(run), ("completed", None))
                self.assertTrue(run.records.extra[0]["non_stream"])
                self.assertNotEqual(Completed(run).ttft()[0], Completed(run).ttft()[0])  # NaN
                self.assertEqual(run.records.output_tokens[0], 3)

    def test_a_large_request_and_a_large_event_go_through(self) -> None:
        text = "x" * 70_000
        with VirtualServer(lambda asked: stream(event(content(text)), B, C, END)) as server:
            with LoadGenerator(parse_target(server.url), API_FLAVOURS["chat"]) as generator:
                body = json.dumps({"prompt": "y" * 300_000}).encode()
                run = generator.measure(ClosedLoop(plain_requests(1), 1), lambda index: body, config={}, concurrency=1)
            self.assertEqual(server.asked[0].body, body)
        self.assertEqual(verdict_of(run), ("completed", None))


class FailuresAreToldApartTest(unittest.TestCase):
    def test_a_stream_that_stops_is_cut_not_short(self) -> None:
        for name, steps in {
            "whole body, no finish": stream(R, A, B),
            "clean close": [*stream(R, A, B, end=False), Step(PAUSE_S, act=CLOSE)],
            "half close": [*stream(R, A, B, end=False), Step(PAUSE_S, act=HALF_CLOSE)],
            "body that ends with the connection": [
                Step(0.0, b"HTTP/1.0 200 OK\r\n\r\n" + R + A + B),
                Step(0.0, act=CLOSE),
            ],
        }.items():
            with self.subTest(name):
                run = run_script(steps)
                self.assertEqual(verdict_of(run), ("failed", "stream_cut"))
                self.assertEqual(len(run.token_times(0)), 2)  # the partial timing is kept

    def test_a_reset_keeps_what_came_before_it(self) -> None:
        run = run_script([*stream(R, A, B, end=False), Step(PAUSE_S, act=RESET)])
        self.assertEqual(verdict_of(run), ("failed", "reset"))
        self.assertEqual(len(run.token_times(0)), 2)

    def test_a_cut_after_the_end_is_a_whole_answer_and_flagged(self) -> None:
        for act in (CLOSE, RESET):
            for last in (F, F + U + Z):
                with self.subTest(act=act, last=last):
                    run = run_script([*stream(R, A, B, C, last, end=False), Step(PAUSE_S, act=act)])
                    self.assertEqual(verdict_of(run), ("completed", None))
                    self.assertTrue(run.records.extra[0]["cut_after_end"])

    def test_a_last_event_without_its_blank_line_is_read_and_flagged(self) -> None:
        run = run_script(stream(A, B, C, F, event(usage(3))[:-2]))
        self.assertEqual(verdict_of(run), ("completed", None))
        self.assertEqual(run.records.prompt_tokens[0], 5)
        self.assertTrue(run.records.extra[0]["unterminated"])

    def test_an_error_inside_a_stream_that_began_well_is_a_failure(self) -> None:
        error = event(b'{"error": {"message": "out of memory", "type": "server_error"}}')
        for name, writes in {
            "first": (error,),
            "after two texts": (R, A, B, error),
            "then done": (A, error, Z),
        }.items():
            with self.subTest(name):
                run = run_script(stream(*writes))
                self.assertEqual(verdict_of(run), ("failed", "error_in_stream"))
                self.assertEqual(run.records.extra[0]["message"], "out of memory")

    def test_http_errors_are_kept_with_status_and_message(self) -> None:
        for status, body, message in (
            ("500 Internal Server Error", b'{"error": {"message": "boom"}}', "boom"),
            ("404 Not Found", b'{"detail": "Not Found"}', "Not Found"),
            ("422 Unprocessable", b'{"detail": [{"loc": ["body", "x"], "msg": "bad"}]}', "body.x: bad"),
        ):
            with self.subTest(status):
                run = run_script([Step(0.0, answer(status, body))])
                code = int(status[:3])
                self.assertEqual(verdict_of(run), ("failed", f"http_{code}"))
                self.assertEqual(run.records.extra[0], {"status": code, "message": message})

    def test_a_429_is_a_result_with_its_retry_after_and_is_not_tried_again(self) -> None:
        with VirtualServer(lambda asked: [Step(0.0, answer("429 Too Many", b"{}", "Retry-After: 1"))]) as server:
            run = run_against(server)
            self.assertEqual(len(server.asked), 1)
        self.assertEqual(verdict_of(run), ("failed", "http_429"))
        self.assertEqual(run.records.extra[0]["retry_after"], "1")

    def test_a_connection_closed_before_a_byte_is_no_response(self) -> None:
        run = run_script([Step(PAUSE_S, act=CLOSE)])
        self.assertEqual(verdict_of(run), ("failed", "no_response"))
        self.assertEqual(run.client["stale_reconnects"], 0)

    def test_the_idle_timeout_counts_events_not_heartbeats(self) -> None:
        beats = [write for _ in range(20) for write in (0.05, b":\n\n")]
        run = run_script(stream(A, *beats, B, C, END), timeouts=Timeouts(idle_s=0.2))
        self.assertEqual(verdict_of(run), ("failed", "idle_timeout"))
        self.assertEqual(len(run.token_times(0)), 1)
        self.assertAlmostEqual(run.records.end_s[0], run.times[0] + 0.2, delta=0.03)  # looked at every 20 ms

    def test_a_token_and_then_silence_ends_with_the_idle_timeout(self) -> None:
        steps = [*stream(A, end=False), Step(0.0, act=KEEP_SILENT)]
        run = run_script(steps, timeouts=Timeouts(idle_s=0.1))
        self.assertEqual(verdict_of(run), ("failed", "idle_timeout"))

    def test_the_total_timeout_ends_a_stream_that_goes_on(self) -> None:
        writes = [write for _ in range(40) for write in (0.02, A)]
        run = run_script(stream(*writes, END), timeouts=Timeouts(idle_s=1.0, total_s=0.2))
        self.assertEqual(verdict_of(run), ("failed", "total_timeout"))
        self.assertGreater(len(run.token_times(0)), 5)

    def test_one_failure_does_not_touch_the_others(self) -> None:
        bad = [*stream(R, A, end=False), Step(0.0, act=RESET)]
        with TruthServer(lambda asked: bad if asked.number % 2 else stream(R, A, B, C, END)) as server:
            run = run_against(server, ClosedLoop(plain_requests(10), 2), concurrency=2)
        self.assertEqual([verdict_of(run, i)[0] for i in range(10)].count("completed"), 5)
        self.assertEqual([verdict_of(run, i)[1] for i in range(10)].count("reset"), 5)


class WholeHeadsTest(unittest.TestCase):
    def test_a_stream_written_a_byte_at_a_time_is_the_same_stream(self) -> None:
        text = HEAD_OF_STREAM + chunk(R + A) + chunk(B + C) + chunk(END) + b"0\r\n\r\n"
        run = run_script([Step(0.0, text[i : i + 1]) for i in range(len(text))])
        self.assertEqual(verdict_of(run), ("completed", None))
        self.assertEqual(run.records.output_tokens[0], 3)

    def test_a_gzip_answer_of_one_piece_is_read(self) -> None:
        body = gzip.compress(R + A + B + C + END)
        run = run_script([Step(0.0, answer("200 OK", body, "Content-Encoding: gzip"))])
        self.assertEqual(verdict_of(run), ("completed", None))


if __name__ == "__main__":
    unittest.main()
