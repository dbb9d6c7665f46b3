"""Trace files: what is read, what is accepted with a note, what is refused and in which words."""

from __future__ import annotations

import gc
import gzip
import io
import json
import random
import sys
import tempfile
import tracemalloc
import unittest
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

from servesim.config.workload import WorkloadSpec, build_workload
from servesim.errors import InputError
from servesim.inputs import MAX_LINE_BYTES
from servesim.workload.requests import Requests
from servesim.workload.traces.fields import parse_iso
from servesim.workload.traces.trace import TRACE_FORMATS, Trace, read_trace, trace_lines
from tests.extent import once, seeds


class TraceCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "t.jsonl"

    def read(self, content: str | bytes | Iterable[dict], **options: object) -> Trace:
        if isinstance(content, str):
            content = content.encode()
        elif not isinstance(content, bytes):
            content = "".join(json.dumps(row) + "\n" for row in content).encode()
        self.path.write_bytes(content)
        return read_trace(str(self.path), **options)  # type: ignore[arg-type]

    def refused(self, content: str | bytes | Iterable[dict], **options: object) -> str:
        with self.assertRaises(InputError) as caught:
            self.read(content, **options)
        message = str(caught.exception)
        self.assertNotIn("\n", message)
        self.assertLess(len(message), 300)
        return message


def row(arrival_s: object = 0.0, prompt_tokens: object = 10, output_tokens: object = 5, **more: object) -> dict:
    return {"arrival_s": arrival_s, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens, **more}


def columns(requests: Requests) -> dict[str, str]:
    return {name: repr(getattr(requests, name)) for name in Requests.__slots__}


class ReadingTest(TraceCase):
    def test_rows_become_columns(self) -> None:
        trace = self.read([row(0.5, 100, 20, **{"class": "chat"}, priority=-1), row(1, 3.0, 4)])
        requests = trace.requests
        self.assertEqual(list(zip(requests.arrival_s, requests.prompt_tokens, strict=True)), [(0.5, 100), (1.0, 3)])
        self.assertEqual((list(requests.output_tokens), requests.class_names), ([20, 4], ["chat", None]))
        self.assertEqual((list(requests.priority or ()), requests.id(0)), ([-1, 0], "0"))
        self.assertEqual(trace.notes, ())

    def test_what_was_understood_is_said_in_one_line(self) -> None:
        trace = self.read([row(0), row(4), row(5)])
        self.assertEqual(trace.describe(), "t.jsonl: servesim, 3 requests over 5.00 s (relative s), 0.6 requests/s")

    def test_a_last_turn_without_an_arrival_does_not_hide_the_span(self) -> None:
        last_turn = {"prompt_tokens": 30, "output_tokens": 4, "session": "s", "turn": 2}
        trace = self.read([row(0), {**row(4), "session": "s", "turn": 1}, last_turn])
        self.assertEqual(trace.describe(), "t.jsonl: servesim, 3 requests over 4.00 s (relative s), 0.75 requests/s")

    def test_a_byte_order_mark_carriage_returns_blank_lines_and_a_missing_end_are_no_trouble(self) -> None:
        text = b"\xef\xbb\xbf" + json.dumps(row()).encode() + b"\r\n\r\n  \n" + json.dumps(row(1)).encode()
        self.assertEqual(len(self.read(text).requests), 2)

    def test_gzip_and_standard_input_are_read(self) -> None:
        plain = "".join(json.dumps(row(at)) + "\n" for at in range(3)).encode()
        for data in (plain, gzip.compress(plain)):
            self.assertEqual(len(self.read(data).requests), 3)
            with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(data))):
                trace = read_trace("-")
            self.assertEqual((trace.name, len(trace.requests)), ("stdin", 3))

    def test_a_limit_reads_the_first_rows_only(self) -> None:
        self.assertEqual(len(self.read(json.dumps(row()) + "\n" + "garbage\n", limit=1).requests), 1)

    def test_a_null_field_is_a_field_that_is_not_there(self) -> None:
        self.assertIsNone(self.read([row(session=None, prefix=None, priority=None)]).requests.sessions)

    def test_an_unknown_field_is_ignored_with_one_note(self) -> None:
        trace = self.read([row(model="x", user=1), row(1, model="y", colour=2)])
        self.assertEqual(trace.notes, ("t.jsonl: unknown field 'model' (line 1) and any others are ignored",))


class WritingTest(TraceCase):
    def check_round_trip(self, requests: Requests) -> None:
        text = "".join(trace_lines(requests))
        self.assertEqual(columns(self.read(text, arrivals_required=False).requests), columns(requests))

    def test_what_is_written_reads_back_equal(self) -> None:
        for options in (
            {"rate": 3.0},
            {"concurrency": 4},
            {"rate": 3.0, "shared_prefix_tokens": 64, "prefixes": 3, "priorities": 2},
            {"rate": 3.0, "turns": "1-4", "think_s": 2.0, "shared_prefix_tokens": 64, "prefixes": 3},
        ):
            with self.subTest(options=options):
                self.check_round_trip(build_workload(WorkloadSpec(requests=40, **options)).requests)  # type: ignore[arg-type]

    def test_random_traces_read_back_equal(self) -> None:
        for seed in range(100):
            rng = random.Random(seed)
            with self.subTest(seed=seed):
                rows, counts = [], {}
                use_ids, kind = rng.random() < 0.5, rng.choice(("prefix", "hash", "session", "mixed"))
                for index in range(rng.randint(1, 20)):
                    made = row(rng.choice((index, rng.random() * 20)), rng.randint(1, 100), rng.randint(1, 50))
                    if use_ids:
                        made["id"] = f"r{index}"
                    what = rng.choice(("prefix", "hash", "session")) if kind == "mixed" else kind
                    if what == "prefix" and rng.random() < 0.7:
                        made |= {"prefix": rng.choice("ab"), "prefix_tokens": rng.randint(0, made["prompt_tokens"])}
                    if what == "hash":
                        size = rng.choice((8, 16))
                        ids = [rng.randint(1, 2) for _ in range(rng.randint(0, -(-made["prompt_tokens"] // size)))]
                        made |= {"hash_ids": ids, "hash_block_tokens": size}
                    if what == "session" or rng.random() < 0.1:
                        session = rng.choice("xyz")
                        counts[session] = counts.get(session, 0) + 1
                        made |= {"session": session, "turn": counts[session], "think_s": rng.choice((0, 1.5))}
                        if counts[session] > 1:
                            made.pop("prefix", None), made.pop("prefix_tokens", None)
                    if rng.random() < 0.2:
                        made |= {"priority": rng.randint(-2, 2), "class": rng.choice(("chat", "batch"))}
                    rows.append(made)
                self.check_round_trip(self.read(rows).requests)


class TimesTest(TraceCase):
    SECONDS = (0.0, 0.25, 1.5, 3600.0)

    def check_same(self, rows: list[dict], note: str | None, **options: object) -> None:
        trace = self.read(rows, **options)
        for read, expected in zip(trace.requests.arrival_s, self.SECONDS, strict=True):
            self.assertAlmostEqual(read, expected, places=6)
        self.assertEqual(len(trace.notes), 0 if note is None else 1)
        if note is not None:
            self.assertIn(note, trace.notes[0])

    def test_the_same_trace_in_every_unit(self) -> None:
        epoch = 1_700_000_000
        for unit, scale in (("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)):
            with self.subTest(unit=unit):
                relative = [row(at * scale) for at in self.SECONDS]
                self.check_same(relative, None, time_unit=unit)
                absolute = [
                    row(int((epoch + at) * 1000) * scale // 1000 if scale > 1 else epoch + at) for at in self.SECONDS
                ]
                self.check_same(absolute, f"epoch {unit} times, shifted", time_unit=unit)
                named = [{f"arrival_{unit}": at * scale, "prompt_tokens": 1, "output_tokens": 1} for at in self.SECONDS]
                self.check_same(named, None)
                stamped = [
                    {"timestamp": made["arrival_s"], "prompt_tokens": 1, "output_tokens": 1} for made in absolute
                ]
                self.check_same(stamped, f"epoch {unit} times, shifted")
        self.check_same([row(epoch + at) for at in self.SECONDS], "arrival_s has epoch s times, shifted")
        iso = ["2023-11-16T18:15:46Z", "2023-11-16 18:15:46.250", "2023-11-16T20:15:47.5+02:00", "2023-11-16T19:15:46"]
        self.check_same([row(at) for at in iso], "arrival_s has ISO 8601 times, shifted")

    def test_a_unit_that_could_be_two_is_refused_with_the_option_that_settles_it(self) -> None:
        for value, words in (
            (1_700_000_000_000, "looks like an epoch time in ms; say so with --time-unit ms"),
            (1_700_000_000_000_000, "--time-unit us"),
            (1_700_000_000_000_000_000, "--time-unit ns"),
            (5_000_000_000, "more than ten years from the start; say its unit with --time-unit"),
        ):
            message = self.refused([row(value)])
            self.assertTrue(message.startswith(f"t.jsonl:1: arrival_s is {value}, "), message)
            self.assertIn(words, message)
        message = self.refused([{"timestamp": 12.5, "prompt_tokens": 1, "output_tokens": 1}])
        self.assertEqual(
            message, "t.jsonl:1: timestamp is 12.5, in an unknown unit; say it with --time-unit s, ms, us, ns"
        )

    def test_epoch_times_beside_relative_ones_are_refused(self) -> None:
        self.assertIn("t.jsonl:2: arrival_s is 3", self.refused([row(1_700_000_000), row(3)]))
        self.assertIn("t.jsonl:2: arrival_s is 1700000000", self.refused([row(3), row(1_700_000_000)]))
        self.assertIn("numbers", self.refused([row(3), row("2023-11-16T18:15:46Z")]))
        self.assertIn("ISO 8601", self.refused([row("2023-11-16T18:15:46Z"), row(3)]))
        mixed = [row(1), {"timestamp": 2, "prompt_tokens": 1, "output_tokens": 1}]
        self.assertIn("timestamp is given, but the times of this trace are in arrival_s", self.refused(mixed))

    def test_iso_times_are_read_to_the_nanosecond(self) -> None:
        self.assertEqual(parse_iso("1970-01-01 00:00:01.123456789Z"), 1_123_456_789)
        self.assertEqual(parse_iso("2023-11-16 18:15:46.6805900"), 1_700_158_546_680_590_000)
        self.assertEqual(parse_iso("1970-01-01T02:00:00+02:00"), 0)
        self.assertEqual(parse_iso("2016-12-31T23:59:60Z"), parse_iso("2017-01-01T00:00:00Z"))
        for text in ("", "now", "2023-13-01T00:00:00", "2023-02-30T00:00:00", "18:15:46", "2023-11-16", "1700000000"):
            self.assertIsNone(parse_iso(text), text)

    def test_arrivals_out_of_order_are_sorted_and_equal_ones_keep_their_order(self) -> None:
        trace = self.read([row(2, id="a"), row(1, id="b"), row(2, id="c"), row(1, id="d"), row(0, id="e")])
        self.assertEqual(trace.requests.ids, ["e", "b", "d", "a", "c"])
        self.assertEqual(trace.notes, ("t.jsonl: 3 of 5 arrivals were not in order of time; sorted",))

    def test_speed_changes_arrivals(self) -> None:
        self.read([row(0), row(3)])
        workload = build_workload(WorkloadSpec(trace=str(self.path), speed=2.0))
        self.assertEqual(list(workload.requests.arrival_s), [0.0, 1.5])

    def test_a_speed_that_takes_more_than_ten_years_is_refused(self) -> None:
        self.read([row(0), row(4)])
        for speed in (1e-8, 1e-320):
            with self.assertRaisesRegex(InputError, "speed is .*, so that the last request would come after"):
                build_workload(WorkloadSpec(trace=str(self.path), speed=speed))

    def test_a_closed_loop_needs_no_times(self) -> None:
        rows = [{"prompt_tokens": 3, "output_tokens": 2}] * 3
        self.assertIn("t.jsonl:1: arrival_s is missing", self.refused(rows))
        workload = build_workload(WorkloadSpec(trace=str(self.path), concurrency=2))
        self.assertEqual(list(workload.take(0.0)), [0, 1])


class BadRowsTest(TraceCase):
    def test_each_bad_value_is_one_line_with_file_line_field_and_value(self) -> None:
        for field in ("prompt_tokens", "output_tokens"):
            for value, words in (
                (0, "is 0, must be 1 or more"),
                (-3, "is -3, must be 1 or more"),
                (2.5, "is 2.5, must be a whole number"),
                ("7", "is '7', must be a number, not text"),
                (True, "is True, must be a whole number"),
                (None, "is null, must be 1 or more"),
                ([5], "is [5], must be a whole number"),
                ({}, "is {}, must be a whole number"),
                (10**12, "is 1000000000000, must be at most 1000000000"),
                (10**60, "must be at most 1000000000"),
            ):
                with self.subTest(field=field, value=value):
                    message = self.refused([row(), row() | {field: value}])
                    self.assertTrue(message.startswith(f"t.jsonl:2: {field} "), message)
                    self.assertIn(words, message)
        for field in ("prompt_tokens", "output_tokens", "arrival_s"):
            bad = row()
            del bad[field]
            self.assertTrue(self.refused([row(), bad]).startswith(f"t.jsonl:2: {field} is missing"))

    def test_times_that_are_none(self) -> None:
        for value in (-1, "soon", "3.5", True, [], {}, 10**40):
            with self.subTest(value=value):
                self.assertTrue(self.refused([row(), row(value)]).startswith("t.jsonl:2: arrival_s is "))
        self.assertEqual(self.refused([row(), row(None)]), "t.jsonl:2: arrival_s is null")
        for text in ("NaN", "Infinity", "-Infinity"):
            message = self.refused(f'{{"arrival_s": {text}, "prompt_tokens": 1, "output_tokens": 1}}')
            self.assertEqual(message, f"t.jsonl:1: arrival_s is {text}, must be finite")
        for text in ("1e999", "-1e999"):
            message = self.refused(f'{{"arrival_s": {text}, "prompt_tokens": 1, "output_tokens": 1}}')
            self.assertIn("must be a finite number", message)

    def test_optional_fields_are_checked_too(self) -> None:
        for more, words in (
            ({"id": ""}, "id is ''"),
            ({"id": "a\nb"}, "id is 'a\\nb'"),
            ({"id": "x" * 500}, "must be 1 to 200 printable characters"),
            ({"id": 1.5}, "id is 1.5"),
            ({"id": True}, "id is True"),
            ({"prefix": "a"}, "prefix is given without prefix_tokens"),
            ({"prefix_tokens": 3}, "prefix_tokens is given without prefix"),
            ({"prefix": "a", "prefix_tokens": 11}, "prefix_tokens is 11, must be at most prompt_tokens (10)"),
            ({"prefix": "a", "prefix_tokens": -1}, "prefix_tokens is -1"),
            ({"hash_ids": [1]}, "hash_ids is given without hash_block_tokens"),
            (
                {"hash_ids": [1, 2], "hash_block_tokens": 16},
                "hash_ids has 2 blocks of 16, more than prompt_tokens (10)",
            ),
            ({"hash_ids": [1.5], "hash_block_tokens": 16}, "hash_ids is [1.5]"),
            ({"hash_ids": "abc", "hash_block_tokens": 16}, "hash_ids is 'abc'"),
            ({"hash_ids": [1], "hash_block_tokens": 0}, "hash_block_tokens is 0"),
            (
                {"hash_ids": [1], "hash_block_tokens": 16, "prefix": "a", "prefix_tokens": 1},
                "hash_ids and prefix are given",
            ),
            ({"content": [[0, 11]]}, "content is [[0, 11]]"),
            ({"content": [[0, 5], [1, 5]]}, "content is"),
            ({"content": [[0, None], [1, 5]]}, "content is"),
            ({"content": {"a": 1}}, "content is"),
            ({"turn": 1}, "turn is given without session"),
            ({"think_s": 1}, "think_s is given without session"),
            ({"session": "a", "turn": 0}, "turn is 0, must be 1 or more"),
            ({"session": "a", "think_s": -1}, "think_s is -1"),
            ({"session": "a", "think_s": "1s"}, "think_s is '1s', must be a number, not text"),
            ({"session": []}, "session is []"),
            ({"priority": "high"}, "priority is 'high'"),
            ({"priority": 10**20}, "priority is"),
            ({"class": 1.5}, "class is 1.5"),
            ({"output_token": 5}, "unknown field 'output_token'; did you mean 'output_tokens'?"),
            ({"Session": "a"}, "did you mean 'session'?"),
        ):
            with self.subTest(more=more):
                message = self.refused([row(**more)])
                self.assertTrue(message.startswith("t.jsonl:1: "), message)
                self.assertIn(words, message)

    def test_duplicate_ids_and_keys_are_refused(self) -> None:
        message = self.refused([row(id="a"), row(id="b"), row(id="a")])
        self.assertEqual(message, "t.jsonl:3: id is 'a', which line 1 has, too")
        self.assertIn("t.jsonl:2: id is missing", self.refused([row(id="a"), row()]))
        self.assertIn("t.jsonl:2: id is 'a', but the lines before have none", self.refused([row(), row(id="a")]))
        text = '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "prompt_tokens": 2}'
        self.assertEqual(self.refused(text), "t.jsonl:1: prompt_tokens is given twice")
        message = self.refused([row(session="a", turn=1), row(session="a", turn=1)])
        self.assertEqual(message, "t.jsonl:2: turn is 1, which line 1 has in this session, too")
        message = self.refused([row(session="a", turn=1), row(session="a")])
        self.assertIn("t.jsonl:2: session 'a' has lines with a turn and lines without", message)

    def test_what_is_no_row_is_refused(self) -> None:
        good = json.dumps(row()) + "\n"
        for text, words in (
            ("{", "not JSON: "),
            ("[1, 2]", "not a row: [1, 2]"),
            ("7", "not a row: 7"),
            ('"text"', "not a row: 'text'"),
            ("null", "not a row: None"),
            ("{} {}", "not JSON: extra data at column 4"),
            ("[" * 100_000, "nested too deeply"),
            ('{"a": ' * 100_000, "nested too deeply"),
            ('{"prompt_tokens": ' + "9" * 10_000 + "}", "prompt_tokens is a number of 10,000 digits"),
            ('{"hash_ids": [1, {"a": NaN}]}', "hash_ids holds NaN, must be finite"),
            ("[NaN]", "NaN is no JSON, numbers must be finite"),
            ("\x00\x01", "not JSON: "),
            ("a,b,c", "not JSON: "),
        ):
            with self.subTest(text=text[:20]):
                message = self.refused(good + text)
                self.assertTrue(message.startswith("t.jsonl:2: "), message)
                self.assertIn(words, message)

    def test_bytes_that_are_no_text_are_refused(self) -> None:
        good = json.dumps(row()).encode() + b"\n"
        self.assertEqual(self.refused(good + b'{"a": "\xff"}'), "t.jsonl:2: not UTF-8: byte 0xff at column 8")
        self.assertIn("not UTF-8: byte 0xff", self.refused(json.dumps(row()).encode("utf-16")))
        self.assertIn("not UTF-8: byte 0x80", self.refused(bytes(range(256))))

    def test_files_that_cannot_be_read_are_named(self) -> None:
        for content in (b"", b"\n \n", b"\xef\xbb\xbf"):
            self.assertEqual(self.refused(content), "t.jsonl: no requests in it")
        with self.assertRaisesRegex(InputError, "^cannot read trace '.*': is a directory$"):
            read_trace(str(self.path.parent))
        with self.assertRaisesRegex(InputError, "^cannot read trace '/no/such': no such file or directory$"):
            read_trace("/no/such")
        with self.assertRaisesRegex(InputError, "^cannot read trace "):
            read_trace("a\x00b")
        packed = gzip.compress("".join(json.dumps(row(at)) + "\n" for at in range(9999)).encode())
        self.assertIn("cannot read trace", self.refused(packed[: len(packed) // 2]))
        self.assertIn("cannot read trace", self.refused(packed[:500] + b"\xff" * 100 + packed[600:]))
        self.assertIn("cannot read trace", self.refused(b"\x1f\x8b"))

    def test_a_line_of_a_hundred_megabytes_takes_no_memory(self) -> None:
        with self.path.open("wb") as file:
            file.write(json.dumps(row()).encode() + b'\n{"a": "')
            for _ in range(100):
                file.write(b"x" * 10**6)
            file.write(b'"}\n' + json.dumps(row(1)).encode())
        tracemalloc.start()
        try:
            with self.assertRaisesRegex(InputError, r"^t\.jsonl:2: the line is longer than 4 MiB$"):
                read_trace(str(self.path))
            self.assertEqual(len(read_trace(str(self.path), skip_bad_rows=True).requests), 2)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        self.assertLess(peak, 5 * MAX_LINE_BYTES)

    def test_bad_rows_can_be_skipped_and_are_counted(self) -> None:
        text = (
            json.dumps(row(0, id="a")) + "\n" + json.dumps(row(1, -3, id="b")) + "\ngarbage\n"
            + json.dumps(row(2, id="a")) + "\n" + json.dumps(row(3, id="b", session="s", turn=0)) + "\n"
            + json.dumps(row(4, id="b")) + "\n"
        )  # fmt: skip
        trace = self.read(text.encode() + b"\xff\n", skip_bad_rows=True)
        self.assertEqual((trace.requests.ids, trace.skipped), (["a", "b"], 5))
        self.assertEqual(
            trace.notes, ("5 bad rows skipped, the first: t.jsonl:2: prompt_tokens is -3, must be 1 or more",)
        )
        self.assertIn("t.jsonl:1: ", self.refused("garbage\n", skip_bad_rows=True, trace_format="servesim"))

    def test_the_collector_of_cycles_works_again_once_a_trace_is_read_or_refused(self) -> None:
        self.read([row()])
        self.assertTrue(gc.isenabled())
        self.refused([row(None, session="a")])
        self.assertTrue(gc.isenabled())

    def test_options_that_do_not_exist_are_refused(self) -> None:
        self.assertIn("did you mean 'servesim'?", self.refused([row()], trace_format="servsim"))
        self.assertIn("unknown time unit 'minutes'", self.refused([row()], time_unit="minutes"))

    def test_random_garbage_never_ends_in_a_traceback(self) -> None:
        good = json.dumps(row(id="a", session="s", turn=1, think_s=0.5, prefix="p", prefix_tokens=5)).encode()
        for seed in seeds(300):
            rng = random.Random(seed)
            data = bytearray(good)
            for _ in range(rng.randint(1, 6)):
                at = rng.randrange(len(data))
                data[at : at + rng.randint(0, 3)] = rng.choice(
                    (b"", b"9", b"-", b"\xff", b"null", b'"', b"{", b"1e9", b",")
                )
            self.path.write_bytes(bytes(data))
            with self.subTest(seed=seed):
                try:
                    read_trace(str(self.path))
                except InputError as error:
                    self.assertNotIn("\n", str(error))


@once
class SizeTest(TraceCase):
    def test_rows_are_read_as_a_stream(self) -> None:
        with self.path.open("w") as file:
            for index in range(20_000):
                file.write(f'{{"arrival_s": {index}.5, "prompt_tokens": {index % 999 + 1}, "output_tokens": 20}}\n')
        tracemalloc.start()
        try:
            self.assertEqual(len(read_trace(str(self.path)).requests), 20_000)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        self.assertLess(peak, 20_000 * 110)

    def test_every_format_says_what_it_is(self) -> None:
        for name, trace_format in TRACE_FORMATS.items():
            self.assertTrue(trace_format.summary, name)


if __name__ == "__main__":
    unittest.main()
