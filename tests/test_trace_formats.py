"""Other people's trace files: each sample to the row, each of its malformed variants in one clear line."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tempfile
import tracemalloc
import unittest
from pathlib import Path
from unittest import mock

from servesim import simulate, summarize
from servesim.errors import InputError
from servesim.runs.writer import write_run
from servesim.workload.requests import OPEN_END
from servesim.workload.traces.trace import TRACE_FORMATS, Trace, read_trace
from tests.command import ROOT, servesim
from tests.extent import once

SAMPLES = ROOT / "fixtures" / "traces"

# file: (format, how its times were read, rows of arrival, prompt, output)
EXPECTED: dict[str, tuple[str, str | None, list[tuple[float | None, int, int]]]] = {
    "servesim.jsonl": (
        "servesim",
        "relative s",
        [(0.0, 100, 20), (0.5, 120, 30), (2.0, 80, 10), (None, 150, 12)],
    ),
    "servesim-run.jsonl": (
        "servesim-run",
        "relative s",
        [(0.0, 72, 7), (0.0, 72, 6), (0.43478745941333335, 118, 6), (0.5072794154666667, 119, 6)],
    ),
    "azure-2023.csv": ("azure", "ISO 8601", [(0.0, 374, 44), (4.314579, 396, 109), (4.541977, 879, 1), (60.0, 91, 16)]),
    "azure-2024.csv": ("azure", "ISO 8601", [(0.0, 2162, 5), (0.007405, 2399, 6), (1.0, 76, 15)]),
    "burstgpt.csv": ("burstgpt", "relative s", [(5.0, 472, 18), (45.0, 1087, 230), (118.5, 360, 276)]),
    "burstgpt-sessions.csv": ("burstgpt", "relative s", [(0.0, 100, 50), (3.0, 40, 10), (20.0, 170, 60)]),
    "mooncake.jsonl": (
        "mooncake",
        "relative ms",
        [(0.0, 1200, 52), (0.0, 1300, 26), (3.052, 400, 10), (6.105, 1800, 7)],
    ),
    "bailian.jsonl": (
        "bailian",
        "relative s",
        [(0.25, 40, 8), (1.0, 33, 5), (30.5, 70, 9), (31.0, 70, 9), (60.0, 96, 4)],
    ),
    "sharegpt.json": ("sharegpt", None, [(None, 7, 6), (None, 16, 3), (None, 7, 6), (None, 6, 2)]),
    "vllm-bench.json": ("vllm-bench", "relative s", [(0.0, 100, 4), (0.5, 200, 3), (3.25, 300, 2)]),
    "guidellm.json": ("guidellm", "epoch s", [(0.0, 128, 20), (1.5, 256, 10), (59.75, 99, 7)]),
    "aiperf.jsonl": ("aiperf", "epoch ns", [(0.0, 300, 30), (0.5, 550, 9), (3.25, 600, 12)]),
    "access-log.jsonl": ("access-log", "epoch ms", [(0.0, 120, 30), (2.5, 80, 5)]),
    "access-log-iso.jsonl": ("access-log", "ISO 8601", [(0.0, 200, 20), (1.5, 210, 21)]),
}


def rows(trace: Trace) -> list[tuple[float | None, int, int]]:
    requests = trace.requests
    arrival_s = (None if at != at else at for at in requests.arrival_s)
    return list(zip(arrival_s, requests.prompt_tokens, requests.output_tokens, strict=True))


class FormatCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def read(self, content: str | bytes, name: str = "t", **options: object) -> Trace:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_trace(str(path), **{"arrivals_required": False, **options})  # type: ignore[arg-type]

    def sample(self, name: str, **options: object) -> Trace:
        return self.read((SAMPLES / name).read_bytes(), name, **options)

    def refused(self, content: str | bytes, **options: object) -> str:
        with self.assertRaises(InputError) as caught:
            self.read(content, **options)
        message = str(caught.exception)
        self.assertNotIn("\n", message)
        self.assertLess(len(message), 250)
        return message


class SamplesTest(FormatCase):
    def test_every_sample_is_recognised_and_read_to_the_row(self) -> None:
        self.assertEqual({path.name for path in SAMPLES.iterdir()} - {"README.md"}, set(EXPECTED))
        for name, (trace_format, times, expected) in EXPECTED.items():
            with self.subTest(name=name):
                trace = self.sample(name)
                self.assertEqual((trace.format, trace.times, rows(trace)), (trace_format, times, expected))

    def test_every_format_has_a_sample(self) -> None:
        self.assertEqual({trace_format for trace_format, _, _ in EXPECTED.values()}, set(TRACE_FORMATS))

    def test_forcing_the_format_reads_the_same(self) -> None:
        for name, (trace_format, _, expected) in EXPECTED.items():
            with self.subTest(name=name):
                self.assertEqual(rows(self.sample(name, trace_format=trace_format)), expected)

    def test_gzip_and_standard_input_read_the_same(self) -> None:
        for name, (trace_format, _, expected) in EXPECTED.items():
            data = (SAMPLES / name).read_bytes()
            with self.subTest(name=name):
                self.assertEqual(rows(self.read(gzip.compress(data))), expected)
                with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(data))):
                    trace = read_trace("-", arrivals_required=False)
                self.assertEqual((trace.format, rows(trace)), (trace_format, expected))

    def test_a_byte_order_mark_carriage_returns_and_a_missing_last_line_end_are_no_trouble(self) -> None:
        for name, (_, _, expected) in EXPECTED.items():
            data = (SAMPLES / name).read_bytes().replace(b"\r\n", b"\n")
            for variant in (b"\xef\xbb\xbf" + data, data.replace(b"\n", b"\r\n"), data.rstrip(), data + b"\n\n"):
                with self.subTest(name=name, begins=variant[:8], ends=variant[-8:]):
                    self.assertEqual(rows(self.read(variant)), expected)

    def test_a_limit_reads_the_first_requests_only(self) -> None:
        for name in EXPECTED:
            with self.subTest(name=name):
                self.assertEqual(len(self.sample(name, limit=2).requests), 2)

    def test_every_sample_is_simulated(self) -> None:
        for name in EXPECTED:
            with self.subTest(name=name):
                said = servesim("simulate", "--trace", str(SAMPLES / name), "--concurrency", "4", "--json", "--quiet")
                self.assertEqual((said.code, said.err), (0, ""))
                self.assertEqual(json.loads(said.out)["requests"]["completed"], len(EXPECTED[name][2]))


class MeaningTest(FormatCase):
    def test_hash_ids_of_mooncake_share_blocks_of_512_tokens(self) -> None:
        content = self.sample("mooncake.jsonl").requests.content
        self.assertEqual(content, [((0, 1024), (1, 1200)), ((0, 1024),), (), ((0, 1024), (1, 1800))])

    def test_chats_of_bailian_follow_their_parents_and_a_second_child_is_a_session_of_its_own(self) -> None:
        requests = self.sample("bailian.jsonl").requests
        self.assertEqual(requests.sessions, ["10", "11", "10", "13", "10"])
        self.assertEqual(list(requests.turns or ()), [1, 1, 2, 1, 3])
        self.assertEqual(requests.class_names, ["text", "search", "text", "text", "text"])
        self.assertEqual((requests.content or [])[1], ((0, 16),))

    def test_a_parent_that_is_not_in_the_file_begins_a_session(self) -> None:
        line = (SAMPLES / "bailian.jsonl").read_text().splitlines()[2]
        trace = self.read(line)
        self.assertEqual((trace.requests.sessions, list(trace.requests.turns or ())), (["12"], [1]))
        self.assertIn("begin a session", trace.notes[0])

    def test_a_conversation_of_sharegpt_is_a_session_whose_prompts_hold_what_was_said(self) -> None:
        trace = self.sample("sharegpt.json")
        self.assertEqual(
            trace.requests.sessions, ["conversation-1", "conversation-1", "conversation-2", "conversation-4"]
        )
        self.assertEqual((trace.requests.content or [])[:2], [((0, OPEN_END),)] * 2)
        self.assertEqual(
            [note.removeprefix("sharegpt.json: ") for note in trace.notes],
            [
                "token counts are estimated, 4 bytes of text a token: the file has only text",
                "answers that nobody asked for count as part of the next prompt",
                "left out 1 messages without text",
                "left out 1 conversations without an answered question",
            ],
        )

    def test_sharegpt_may_be_one_conversation_a_line(self) -> None:
        conversations = json.loads((SAMPLES / "sharegpt.json").read_text())
        text = "".join(json.dumps(conversation) + "\n" for conversation in conversations)
        self.assertEqual(rows(self.read(text)), EXPECTED["sharegpt.json"][2])

    def test_sessions_of_burstgpt_and_aiperf_are_sessions(self) -> None:
        burst = self.sample("burstgpt-sessions.csv").requests
        self.assertEqual((burst.sessions, list(burst.turns or ())), (["s1", None, "s1"], [1, 0, 2]))
        perf = self.sample("aiperf.jsonl").requests
        self.assertEqual((perf.sessions, list(perf.turns or ())), (["u3", "u1", "u1"], [1, 1, 2]))

    def test_what_is_no_request_is_left_out_and_counted(self) -> None:
        for name, words in (
            ("azure-2024.csv", ("left out 1 requests without output (GeneratedTokens is 0)",)),
            ("burstgpt.csv", ("left out 1 failed requests (Response tokens is 0)",)),
            ("vllm-bench.json", ("left out 1 failed requests",)),
            ("guidellm.json", ("left out 1 requests that were incomplete", "left out 1 requests that were errored")),
            ("aiperf.jsonl", ("left out 1 requests of the warm-up", "left out 1 requests that failed or were")),
            ("access-log.jsonl", ("left out 1 requests without usage", "left out 1 requests without output")),
        ):
            notes = " ".join(self.sample(name).notes)
            for word in words:
                with self.subTest(name=name, word=word):
                    self.assertIn(word, notes)

    def test_a_file_of_failed_requests_says_why_nothing_is_in_it(self) -> None:
        text = "Timestamp,Request tokens,Response tokens\n5,100,0\n6,100,0\n"
        self.assertEqual(self.refused(text), "t: no requests in it; left out 2 failed requests (Response tokens is 0)")

    def test_an_access_log_has_its_time_under_any_name_and_in_any_unit(self) -> None:
        seconds = (1765000000.25, 1765000001.75)
        written = {
            "ts": [*seconds],
            "created_at": [int(at * 1e3) for at in seconds],
            "time": [int(at * 1e6) for at in seconds],
            "@timestamp": [int(at * 1e9) for at in seconds],
            "request_time": ["2025-12-06T05:46:40.25Z", "2025-12-06 06:46:41,750+01:00"],
        }
        for name, times in written.items():
            lines = [{name: at, "usage": {"prompt_tokens": 9, "completion_tokens": 3}} for at in times]
            with self.subTest(name=name):
                trace = self.read("\n".join(map(json.dumps, lines)))
                self.assertEqual(trace.format, "access-log")
                self.assertAlmostEqual(trace.span_s, 1.5, places=6)

    def test_an_access_log_may_have_its_counts_at_the_top(self) -> None:
        self.assertEqual(
            rows(self.read('{"ts": 1765000000, "prompt_tokens": 9, "completion_tokens": 3}')), [(0.0, 9, 3)]
        )
        self.assertEqual(rows(self.read('{"ts": 1765000000, "input_tokens": 9, "output_tokens": 3}')), [(0.0, 9, 3)])

    def test_an_access_log_may_begin_with_a_request_that_failed(self) -> None:
        trace = self.read('{"ts": 1764999999, "status": 500, "error": "boom"}\n' + LOG)
        self.assertEqual((trace.format, rows(trace)), ("access-log", [(0.0, 9, 3)]))

    def test_no_more_of_a_prompt_is_cached_than_there_is(self) -> None:
        details = '"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 50}'
        notes = " ".join(self.read(LOG.replace('"prompt_tokens": 9', details)).notes)
        self.assertIn("had 100.0% of the prompt tokens", notes)

    def test_requests_without_a_time_among_others_that_have_one_are_counted(self) -> None:
        text = LOG + LOG.replace("ts", "timestamp")
        self.assertIn("1 of 2 requests have no ts", " ".join(self.read(text).notes))
        self.assertEqual(self.refused(text, arrivals_required=True), "t:2: ts is missing")
        self.assertNotIn("have no", " ".join(self.sample("servesim.jsonl").notes))

    def test_of_several_times_one_is_chosen_and_named(self) -> None:
        self.assertIn("taken from timestamp, not from created", " ".join(self.sample("access-log.jsonl").notes))

    def test_a_table_may_have_its_columns_in_any_order_and_quoted(self) -> None:
        text = (
            '"GeneratedTokens","extra, too","ContextTokens","TIMESTAMP"\n"7","a, b","9","2024-05-10 00:00:00+00:00"\n'
        )
        self.assertEqual(rows(self.read(text)), [(0.0, 9, 7)])

    def test_a_result_without_start_times_is_read_for_a_closed_loop(self) -> None:
        text = (SAMPLES / "vllm-bench.json").read_text().replace("start_times", "other_times")
        trace = self.read(text)
        self.assertIn("no start times", " ".join(trace.notes))
        self.assertEqual(rows(trace)[0], (None, 100, 4))
        self.assertEqual(
            self.refused(text, arrivals_required=True),
            "t:1: start_times is missing; a closed loop needs no times: --concurrency N",
        )


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
MOON = '{"timestamp": 0, "input_length": 1200, "output_length": 52, "hash_ids": [0, 1, 2]}\n'
CHAT = (
    '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0, "input_length": 30, "output_length": 5, "hash_ids": [1, 2]}\n'
)
TALK = '[{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}'
PERF = (
    '{"metadata": {"request_start_ns": 1759813207500000000}, "metrics": {"input_sequence_length": {"value": 5},'
    ' "output_sequence_length": {"value": 9}}, "error": null}\n'
)
LOG = '{"ts": 1765000000, "usage": {"prompt_tokens": 9, "completion_tokens": 3}}\n'
BENCH = '{"input_lens": [1, 2], "output_lens": [3, 4], "start_times": [1.5, 2.5], "errors": ["", ""]}'
GUIDE = '{"benchmarks": [{"requests": {"successful": [{"prompt_tokens": 5, "output_tokens": 6, "start_time": 1.0}]}}]}'


class MalformedTest(FormatCase):
    def check(self, cases: list[tuple[str, str]], **options: object) -> None:
        for text, message in cases:
            with self.subTest(text=text[-80:]):
                self.assertEqual(self.refused(text, **options), message)

    def test_azure(self) -> None:
        self.check(
            [
                (AZURE + "2023-11-16 18:15:47,-3,5\n", "t:3: ContextTokens is -3, must be 1 or more"),
                (AZURE + "2023-11-16 18:15:47,3.5,5\n", "t:3: ContextTokens is 3.5, must be a whole number"),
                (AZURE + "2023-11-16 18:15:47,,5\n", "t:3: ContextTokens is '', must be a whole number"),
                (AZURE + "2023-11-16 18:15:47,9,five\n", "t:3: GeneratedTokens is 'five', must be a whole number"),
                (AZURE + "16.11.2023,9,5\n", "t:3: TIMESTAMP is '16.11.2023', must be a number or an ISO 8601 time"),
                (AZURE + "1700158547,9,5\n", "t:3: TIMESTAMP is 1700158547, but the rows before have ISO 8601 times"),
                (AZURE + "2023-11-16 18:15:47,9\n", "t:3: the row has 2 fields, must have 3 as the header has"),
                (
                    AZURE + '2023-11-16 18:15:47,"1,024",5\n',
                    "t:3: ContextTokens is '1,024', must be a whole number",
                ),
                (AZURE + "2023-11-16 18:15:47,1,024,5\n", "t:3: the row has 4 fields, must have 3 as the header has"),
                (
                    AZURE.replace(",GeneratedTokens", ""),
                    "t:1: no column 'GeneratedTokens'; the header is 'TIMESTAMP,ContextTokens'",
                ),
                (
                    AZURE.replace("TIMESTAMP", "ContextTokens"),
                    "t:1: no column 'TIMESTAMP'; the header is 'ContextTokens,ContextTokens,GeneratedT...",
                ),
                (AZURE[:40], "t: no requests in it"),
                (
                    "TIMESTAMP,ContextTokens,GeneratedTokens\n12.5,3,4\n",
                    "t:2: TIMESTAMP is 12.5, in an unknown unit; say it with --time-unit s, ms, us, ns",
                ),
            ]
        )
        self.assertIn("t:3: quotes that do not close: ", self.refused(AZURE + '"2023-11-16 18:15:47,9,5\n'))

    def test_burstgpt(self) -> None:
        self.check(
            [
                (BURST + "6,ChatGPT,x,5,5,API log\n", "t:3: Request tokens is 'x', must be a whole number"),
                (BURST + "6,ChatGPT,0,5,5,API log\n", "t:3: Request tokens is 0, must be 1 or more"),
                (
                    BURST + "nan,ChatGPT,3,5,5,API log\n",
                    "t:3: Timestamp is 'nan', must be a number or an ISO 8601 time",
                ),
                (BURST + "-1,ChatGPT,3,5,5,API log\n", "t:3: Timestamp is -1, must be 0 or more"),
                (
                    BURST.replace("\n5,", "\n1765000000123,"),
                    (
                        "t:2: Timestamp is 1765000000123, which looks like an epoch time in ms; say so with"
                        " --time-unit ms, or --time-unit s if it is none"
                    ),
                ),
                (
                    BURST.replace("Response tokens", "Answer"),
                    "t:1: no column 'Response tokens'; the header is 'Timestamp,Model,Request tokens,Answer,...",
                ),
            ]
        )
        trace = self.read(BURST.replace("\n5,", "\n1765000000123,"), time_unit="ms")
        self.assertEqual(trace.times, "epoch ms")

    def test_mooncake_and_bailian(self) -> None:
        self.check(
            [
                (MOON + MOON.replace("1200", "-1"), "t:2: input_length is -1, must be 1 or more"),
                (MOON + MOON.replace("1200", '"1200"'), "t:2: input_length is '1200', must be a number, not text"),
                (MOON + MOON.replace("1200", "null"), "t:2: input_length is null, must be a whole number"),
                (MOON + MOON.replace("output_length", "out"), "t:2: output_length is missing"),
                (MOON + MOON.replace("timestamp", "at"), "t:2: timestamp is missing"),
                (
                    MOON + MOON.replace("1200", "1024"),
                    "t:2: hash_ids has 3 blocks of 512, more than input_length (1024) fills",
                ),
                (MOON + MOON.replace("[0, 1, 2]", "7"), "t:2: hash_ids is 7, must be a list of whole numbers"),
                (MOON + MOON.replace("[0, 1, 2]", '["a"]'), "t:2: hash_ids is ['a'], must be a list of whole numbers"),
                (MOON + MOON[:20], "t:2: not JSON: unterminated string at column 18"),
                (
                    MOON + MOON.replace(": 0,", ": 1e15,"),
                    (
                        "t:2: timestamp is 1000000000000000.0, read as relative ms more than ten years from the start;"
                        " say its unit with --time-unit s, ms, us, ns"
                    ),
                ),
                (
                    CHAT + CHAT.replace('"chat_id": 1', '"chat_id": null'),
                    "t:2: chat_id is None, must be a whole number",
                ),
                (
                    CHAT + CHAT.replace('"parent_chat_id"', '"parent"'),
                    "t:2: parent_chat_id is missing, must be a whole number",
                ),
            ],
            arrivals_required=True,
        )

    def test_sharegpt(self) -> None:
        self.check(
            [
                (TALK, "t:1: not JSON: expecting ']', the text ends here"),
                (TALK[:58], "t:1: not JSON: unterminated string"),
                (TALK + ' {"conversations": []}]', "t:1: not JSON: expecting ']'"),
                (TALK + ", {]", "t:1: not JSON: expecting property name enclosed in double quotes"),
                (TALK + ",\n7]", "t:2: conversation 2: conversations is None, must be a list of messages"),
                (
                    TALK + ', {"conversations": [{"from": "human"}]}]',
                    "t:1: conversation 2: message 1: value is None, must be text",
                ),
                (
                    TALK + ', {"conversations": [{"from": "robot", "value": "a"}]}]',
                    "t:1: conversation 2: message 1: from is 'robot', must be human, gpt or system",
                ),
                ("[]", "t: not a trace that is known; say which with --trace-format " + ", ".join(TRACE_FORMATS)),
            ]
        )
        self.assertEqual(
            self.refused(TALK + "]", arrivals_required=True),
            "t:1: arrival_s is missing on the first turn of a session; a closed loop needs no times: --concurrency N",
        )

    def test_results_of_benchmarks(self) -> None:
        self.check(
            [
                (BENCH.replace("input_lens", "lens"), "t: input_lens is missing; save the result with --save-detailed"),
                (BENCH.replace("[3, 4]", "[3]"), "t: output_lens has 1 entries, input_lens has 2; is the file whole?"),
                (BENCH.replace("[3, 4]", '[3, "x"]'), "t:1: output_lens[1] is 'x', must be a number, not text"),
                (BENCH.replace("[1, 2]", "[1, -2]"), "t:1: input_lens[1] is -2, must be 1 or more"),
                (BENCH.replace("[1.5, 2.5]", "[1.5, null]"), "t:1: start_times[1] is None, must be a number"),
                (BENCH.replace("1.5", "NaN"), "t:1: NaN is no JSON, numbers must be finite"),
                (BENCH[:40], "t:1: not JSON: expecting ']', the text ends here"),
                (
                    GUIDE.replace("prompt_tokens", "prompt"),
                    (
                        "t:1: prompt_tokens is missing (looked for prompt_tokens, input_metrics.total_tokens,"
                        " input_metrics.text_tokens)"
                    ),
                ),
                (GUIDE.replace("5", "-5"), "t:1: prompt_tokens is -5, must be 1 or more"),
                (
                    GUIDE.replace("requests", "metrics"),
                    "t: no benchmark in it has its requests; write the report as JSON, with all requests",
                ),
                (GUIDE[:-3], "t:1: not JSON: expecting '}', the text ends here"),
                (
                    PERF + PERF.replace('"value": 5', '"value": "5"'),
                    "t:2: input_sequence_length is '5', must be a number, not text",
                ),
                (PERF + PERF.replace("input_sequence", "input"), "t:2: input_sequence_length is missing"),
                (PERF + PERF.replace('"metadata"', '"data"'), "t:2: metadata is missing, must be an object"),
                (PERF + PERF[:50], "t:2: not JSON: expecting ',' delimiter at column 51"),
            ]
        )

    def test_access_logs(self) -> None:
        self.check(
            [
                (LOG + LOG.replace("9", "-9"), "t:2: prompt_tokens is -9, must be 1 or more"),
                (LOG + LOG.replace("3}", '"3"}'), "t:2: completion_tokens is '3', must be a number, not text"),
                (LOG + LOG.replace('"usage": {"prompt', '"use": {"prompt'), "t:2: usage is missing"),
                (
                    LOG + LOG.replace("1765000000", '"yesterday"'),
                    "t:2: ts is 'yesterday', must be a number or an ISO 8601 time",
                ),
                (
                    LOG.replace("1765000000", "17.5"),
                    "t:1: ts is 17.5, in an unknown unit; say it with --time-unit s, ms, us, ns",
                ),
                (LOG + "garbage\n", "t:2: not JSON: expecting value at column 1"),
            ]
        )
        self.assertIn("t:1: no time under any name that is known: start_time, ", self.refused(LOG.replace("ts", "no")))

    def test_files_that_are_no_traces(self) -> None:
        for text in ("a,b\n1,2\n", "hello\n", "<html></html>", "1;2;3\n"):
            with self.subTest(text=text):
                self.assertTrue(self.refused(text).startswith("t: not a trace that is known; say which with "))
        summary = servesim("simulate", "--requests", "2", "--json", "--quiet").out
        self.assertEqual(
            self.refused(summary), "t: a summary of a run, which has no requests; save the run itself with --save"
        )

    def test_an_empty_file_has_no_requests_in_any_format(self) -> None:
        for name in (None, *TRACE_FORMATS):
            for text in ("", "\n\n", "\ufeff"):
                with self.subTest(name=name, text=text):
                    message = self.refused(text, trace_format=name)
                    self.assertRegex(message, "^t: no requests in it")

    def test_a_table_read_as_something_else_is_refused(self) -> None:
        for name in TRACE_FORMATS:
            if name != "azure":
                with self.subTest(name=name):
                    self.assertTrue(self.refused(AZURE, trace_format=name).startswith(("t:1: ", "t: ")))

    def test_bad_rows_are_skipped_and_counted_when_asked(self) -> None:
        for good, bad in (
            (AZURE, "x,y,z\n"),
            (BURST, "1,2\n"),
            (MOON, MOON.replace("1200", "0")),
            (CHAT, "garbage\n"),
            (PERF, PERF.replace("9}", '"9"}')),
            (LOG, "{}\n"),
            (TALK, ", 7]"),
        ):
            with self.subTest(good=good[:30]):
                trace = self.read(good + bad, skip_bad_rows=True)
                self.assertEqual((len(trace.requests), trace.skipped), (1, 1))
                self.assertIn("1 bad rows skipped, the first: t:", trace.notes[-1])

    def test_what_is_no_utf_8_is_named(self) -> None:
        self.assertEqual(self.refused(TALK.encode() + b"\xff"), "t: not UTF-8: byte 0xff")
        self.assertEqual(self.refused(AZURE.encode() + b"\xff,1,2\n"), "t:3: not UTF-8: byte 0xff at column 1")

    def test_a_file_in_another_encoding_or_packed_twice_is_named_as_no_utf_8(self) -> None:
        for text in (AZURE, MOON, BENCH, TALK + "]"):
            with self.subTest(text=text[:30]):
                self.assertEqual(self.refused(text.encode("utf-16")), "t: not UTF-8: byte 0xff")
                twice = gzip.compress(gzip.compress(text.encode()))
                self.assertEqual(self.refused(twice), "t: not UTF-8: byte 0x8b")

    def test_a_second_result_in_a_file_is_not_left_out_in_silence(self) -> None:
        for text in (BENCH, GUIDE):
            for behind in ("\n" + text, "\0", " junk"):
                with self.subTest(text=text[:20], behind=behind[:5]):
                    self.assertRegex(self.refused(text + behind), "^t:[12]: not JSON: .* behind its end; one result a")
            self.assertEqual(len(self.read(text + " \n\n").requests), 2 if text == BENCH else 1)

    def test_a_damaged_gzip_file_is_named(self) -> None:
        path = self.folder / "t"
        damaged = gzip.compress(AZURE.encode())[:-8] + bytes(8)
        self.assertIn(f"cannot read trace {str(path)!r}: CRC check failed", self.refused(damaged))


class SavedRunTest(FormatCase):
    def test_a_run_that_is_saved_and_replayed_has_the_same_summary(self) -> None:
        server = {"hardware": "l4-24gb", "prefix_caching": True, "kv_tokens": 6000}
        for workload in (
            {"concurrency": 8, "requests": 40},
            {"rate": 20.0, "requests": 60, "shared_prefix_tokens": 64, "prefixes": 3},
            {"rate": 4.0, "requests": 60, "turns": "1-4", "think_s": 0.3},
            {"concurrency": 3, "requests": 40, "turns": "1-4"},
            {"trace": str(SAMPLES / "bailian.jsonl")},
            {"trace": str(SAMPLES / "mooncake.jsonl")},
        ):
            lengths = {} if "trace" in workload else {"prompt_tokens": "16-900", "output_tokens": "1-200"}
            with self.subTest(workload=workload):
                path = str(self.folder / "run.jsonl")
                run = simulate(**server, **workload, **lengths)
                write_run(path, run, "simulate")
                again = simulate(**server, trace=path)
                self.assertEqual(repr(summarize(again).as_dict()), repr(summarize(run).as_dict()))

    def test_clients_that_left_and_came_back_leave_and_come_back_again(self) -> None:
        server = {"hardware": "l4-24gb", "client_timeout_s": 4.0, "retries": 2, "max_num_seqs": 4}
        run = simulate(**server, rate=6.0, requests=40)
        path = str(self.folder / "run.jsonl")
        write_run(path, run, "simulate")
        first, again = summarize(run).as_dict(), summarize(simulate(**server, trace=path)).as_dict()
        self.assertGreater(first["attempts"], 40)
        self.assertEqual(repr(again), repr(first))

    def test_a_cut_file_is_read_up_to_the_cut(self) -> None:
        data = (SAMPLES / "servesim-run.jsonl").read_bytes()
        cut = data[: data.index(b'"index":3')]
        trace = self.read(cut)
        self.assertEqual(len(trace.requests), 3)
        self.assertIn("the file was cut in line 7", trace.notes[0])


@once
class SizeTest(FormatCase):
    def test_a_huge_array_is_read_in_bounded_memory(self) -> None:
        path = self.folder / "t.json"
        talk = [{"from": "human" if turn % 2 == 0 else "gpt", "value": "word " * 400} for turn in range(10)]
        with path.open("w") as file:
            file.write("[" + ",".join([json.dumps({"id": "x", "conversations": talk})] * 650) + "]")
        self.assertGreater(path.stat().st_size, 12 * 2**20)
        tracemalloc.start()
        try:
            trace = read_trace(str(path), arrivals_required=False)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        self.assertEqual(len(trace.requests), 3250)
        self.assertLess(peak, 6 * 2**20)

    def test_one_value_over_many_pieces_is_read_in_linear_time(self) -> None:
        text = json.dumps(
            [{"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y" * 5_000_000}]}]
        )
        self.assertEqual(rows(self.read(text)), [(None, 1, 1_250_000)])

    def test_tables_take_a_few_bytes_a_row(self) -> None:
        text = AZURE + "2023-11-16 18:15:46.68,374,44\n" * 20_000
        path = self.folder / "t"
        path.write_text(text)
        tracemalloc.start()
        try:
            self.assertEqual(len(read_trace(str(path)).requests), 20_001)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        self.assertLess(peak, 20_000 * 110)


if __name__ == "__main__":
    unittest.main()
