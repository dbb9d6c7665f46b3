"""Tests of event streams: the WHATWG rules to the letter, every split of bytes, stamps, bounds. Rows of the fault list
that concern splitting are here with their exact bytes; what an event means is `test_events`.
"""

from __future__ import annotations

import json
import random
import unittest

from servesim.wire.faults import MAX_EVENT_BYTES, ProtocolError
from servesim.wire.ndjson import JsonDecoder, NdjsonDecoder, StreamDecoder, open_stream
from servesim.wire.sse import DONE, Event, SseDecoder


def token(text: str) -> str:
    """A chat chunk whose delta has this content: T(x) of the fault list."""
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}, ensure_ascii=False)


def event(data: str) -> bytes:
    """E(j) of the fault list."""
    return f"data: {data}\n\n".encode()


ROLE = json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]})


def split(*reads: bytes) -> list[tuple[float, bytes, str]]:
    """Feed the reads stamped 0, 1, 2, ...; return all events, one that was pending at the end included."""
    decoder = SseDecoder()
    events = [item for stamp, read in enumerate(reads) for item in decoder.feed(read, float(stamp))]
    return [(item.stamp, item.data, item.name) for item in events + decoder.eof()]


def data_of(*reads: bytes) -> list[bytes]:
    return [data for _, data, _ in split(*reads)]


class SplitTest(unittest.TestCase):
    def check(self, wire: bytes, expected: list[bytes]) -> None:
        """The same events whole, byte by byte, and cut at every point."""
        self.assertEqual(data_of(wire), expected)
        self.assertEqual(data_of(*(wire[at : at + 1] for at in range(len(wire)))), expected)
        for at in range(len(wire) + 1):
            self.assertEqual(data_of(wire[:at], wire[at:]), expected, at)

    def test_the_space_after_the_colon_is_optional_and_only_one_is_taken(self) -> None:
        one = token("a").encode()
        self.check(b"data:" + one + b"\n\n", [one])
        self.check(b"data:  " + one + b"\n\n", [b" " + one])
        self.check(b"data:\t" + one + b"\n\n", [b"\t" + one])

    def test_all_three_line_ends_end_a_line_in_any_mixture(self) -> None:
        wire = event(ROLE) + event(token("a"))
        expected = [ROLE.encode(), token("a").encode()]
        for end in (b"\r\n", b"\r", b"\n"):
            self.check(wire.replace(b"\n", end), expected)
        self.check(b"data: 1\r\r\ndata: 2\n\rdata: 3\r\n\ndata: 4\r\n\r\n", [b"1", b"2", b"3", b"4"])
        self.check(b"data: 1\n\r\n", [b"1"])

    def test_a_carriage_return_dispatches_without_waiting_for_the_next_byte(self) -> None:
        decoder = SseDecoder()
        self.assertEqual(decoder.feed(b"data: 1\r\r", 1.0), [Event(1.0, b"1")])
        self.assertEqual(decoder.feed(b"\ndata: 2\r", 2.0), [])
        self.assertEqual(decoder.feed(b"\r", 3.0), [Event(2.0, b"2")])

    def test_other_characters_that_python_calls_line_ends_are_text(self) -> None:
        for character in ("\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"):
            self.check(event(token(f"a{character}b")), [token(f"a{character}b").encode()])

    def test_comments_and_heartbeats_are_no_events(self) -> None:
        self.check(b": ping\n\n" + event(ROLE) + b":\n\n:\n" + event(token("a")), [ROLE.encode(), token("a").encode()])
        decoder = SseDecoder()
        self.assertEqual(decoder.feed(b": ping\n\n:\n\ndata: 1\n: inside\n\n"), [Event(0.0, b"1")])
        self.assertEqual(decoder.eof(), [])

    def test_no_data_lines_make_no_event_but_empty_data_does(self) -> None:
        self.check(b"\n\n\nevent: x\n\nid: 1\n\nretry: 5\n\n", [])
        self.check(b"data\n\n", [b""])
        self.check(b"data:\n\n", [b""])
        self.check(b"data\ndata\n\n", [b"\n"])

    def test_data_lines_of_one_event_are_joined(self) -> None:
        self.check(
            b'data: {"choices":\ndata: [{"delta":{"content":"a"}}]}\n\n', [b'{"choices":\n[{"delta":{"content":"a"}}]}']
        )
        self.check(b"data: a\nevent: x\ndata: b\n\n", [b"a\nb"])

    def test_escaped_line_ends_inside_json_cut_nothing(self) -> None:
        one = token("a:\n\nb")
        self.assertIn("\\n\\n", one)
        self.check(event(one), [one.encode()])

    def test_multibyte_characters_and_blanks_survive_every_cut(self) -> None:
        self.check(event(token("中")), [token("中").encode()])
        self.check(event(token("A Z")) + event(token(" \n")), [token("A Z").encode(), token(" \n").encode()])

    def test_several_events_in_one_read_are_several_events(self) -> None:
        self.check(event(token("a")) + event(token("b")), [token("a").encode(), token("b").encode()])
        self.check(
            (event(token("a")) + event(token("b"))).replace(b"\n", b"\r\n"), [token("a").encode(), token("b").encode()]
        )

    def test_one_byte_order_mark_at_the_start_is_passed_over(self) -> None:
        mark = "\ufeff".encode()
        self.check(mark + b"data: 1\n\ndata: 2\n\n", [b"1", b"2"])
        self.check(mark + mark + b"data: 1\n\ndata: 2\n\n", [b"2"])  # the second belongs to a field of no known name
        self.check(b"data: 1\n\n" + mark + b"data: 2\n\n", [b"1"])
        self.check(b"", [])
        self.check(b"\xef\xbb", [])

    def test_fields_of_other_names_are_passed_over(self) -> None:
        self.check(b"Data: 1\n data: 2\ndata : 3\ndatum: 4\n{}\ndata: 5\n\n", [b"5"])

    def test_the_type_is_the_last_one_and_id_and_retry_are_passed_over(self) -> None:
        decoder = SseDecoder()
        events = decoder.feed(
            b"event: one\nevent: two\nid: 7\nretry: 250\ndata: 1\n\ndata: 2\nid: a\0b\nretry: -1\n\nid\n\n"
        )
        self.assertEqual(events, [Event(0.0, b"1", "two"), Event(0.0, b"2", "")])
        self.assertEqual(split(b"event: x\n\n", b"data: 1\n\n")[0][2], "")
        self.assertEqual(split(b"event: x\n", b"data: 1\n\n")[0][2], "x")

    def test_random_streams_read_alike_in_random_pieces(self) -> None:
        alphabet = [
            b"data",
            b":",
            b" ",
            b"\n",
            b"\r",
            b"\r\n",
            b"\n\n",
            b"x",
            b"\xef\xbb\xbf",
            b"event",
            b"id",
            b"data: y\n\n",
        ]
        for seed in range(300):
            rng = random.Random(seed)
            wire = b"".join(rng.choices(alphabet, k=rng.randint(0, 30)))
            cuts = sorted(rng.choices(range(len(wire) + 1), k=rng.randint(0, 10)))
            pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
            with self.subTest(seed=seed):
                self.assertEqual(data_of(*pieces), data_of(wire))


class StampTest(unittest.TestCase):
    def test_the_stamp_is_the_read_that_completed_the_last_data_line(self) -> None:
        self.assertEqual(split(b"da", b"ta: 1", b"\n", b"\n"), [(2.0, b"1", "")])
        self.assertEqual(split(b"data: 1\n", b": ping\n", b"ev", b"ent: x\n", b"\n"), [(0.0, b"1", "x")])
        self.assertEqual(split(b"data: 1\n", b"data: 2\n", b"\n"), [(1.0, b"1\n2", "")])

    def test_events_of_one_read_share_its_stamp(self) -> None:
        self.assertEqual([stamp for stamp, _, _ in split(b"", event("1") * 5, event("2"))], [1.0] * 5 + [2.0])


class EndTest(unittest.TestCase):
    def test_an_event_without_its_blank_line_is_dispatched_at_the_end_and_flagged(self) -> None:
        usage = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}}'
        for ending in (b"", b"\n", b"\r", b"\r\n", b"\n: ping"):
            decoder = SseDecoder()
            self.assertEqual(decoder.feed(event("1") + usage + ending, 4.0), [Event(4.0, b"1")])
            self.assertEqual(decoder.eof(), [Event(4.0, usage[6:])], ending)
            self.assertTrue(decoder.unterminated)
            self.assertEqual(decoder.eof(), [])

    def test_a_stream_that_ends_with_its_last_blank_line_is_not_flagged(self) -> None:
        for wire in (b"", event("1"), DONE, b"data: 1\r\r", b"data: 1\n\n: bye", b"data: 1\n\nevent: x"):
            decoder = SseDecoder()
            decoder.feed(wire)
            self.assertEqual((decoder.eof(), decoder.unterminated), ([], False))


class BoundTest(unittest.TestCase):
    def test_a_line_or_an_event_without_end_is_refused(self) -> None:
        megabyte = b"x" * (1024 * 1024)
        for start, piece in ((b"data: ", megabyte), (b": ", megabyte), (b"", b"data: " + megabyte + b"\n")):
            decoder = SseDecoder()
            decoder.feed(start)
            with (
                self.subTest(start=start),
                self.assertRaisesRegex(ProtocolError, f"longer than {MAX_EVENT_BYTES} bytes"),
            ):
                for _ in range(18):
                    decoder.feed(piece)

    def test_a_large_event_in_small_reads_costs_what_its_size_costs(self) -> None:
        text = b"x" * 300_000
        reads = [text[at : at + 7] for at in range(0, len(text), 7)]
        self.assertEqual(data_of(b"data: ", *reads, b"\n\n"), [text])


class NdjsonTest(unittest.TestCase):
    def test_lines_are_events_however_they_are_split(self) -> None:
        wire = '{"message":{"content":"中"}}\r\n\n{"done":true}\n'.encode()
        expected = ['{"message":{"content":"中"}}'.encode(), b'{"done":true}']
        for at in range(len(wire) + 1):
            decoder = NdjsonDecoder()
            events = [
                item for stamp, part in enumerate((wire[:at], wire[at:])) for item in decoder.feed(part, float(stamp))
            ]
            self.assertEqual([item.data for item in events], expected)
            self.assertEqual((decoder.eof(), decoder.unterminated), ([], False))

    def test_a_last_line_without_its_end_is_an_event_and_flagged(self) -> None:
        decoder = NdjsonDecoder()
        self.assertEqual(decoder.feed(b'{"a":1}\n{"b"', 1.0), [Event(1.0, b'{"a":1}')])
        self.assertEqual(decoder.feed(b":2}", 2.0), [])
        self.assertEqual((decoder.eof(), decoder.unterminated), ([Event(2.0, b'{"b":2}')], True))

    def test_a_line_without_end_is_refused(self) -> None:
        decoder = NdjsonDecoder()
        with self.assertRaises(ProtocolError):
            for _ in range(18):
                decoder.feed(b"x" * (1024 * 1024))


class WholeAnswerTest(unittest.TestCase):
    def test_a_server_that_ignores_stream_is_noticed_by_its_first_byte(self) -> None:
        body = b'\r\n {"choices":\n\n[{"message":{"content":"a"}}]}\n'
        for at in range(len(body) + 1):
            decoder = StreamDecoder()
            self.assertEqual(decoder.feed(body[:at], 1.0) + decoder.feed(body[at:], 2.0), [])
            (whole,) = decoder.eof()
            self.assertEqual(whole.data, body.strip())
            self.assertTrue(decoder.non_stream)
        self.assertEqual(whole.stamp, 1.0)

    def test_a_stream_is_a_stream_whatever_it_begins_with(self) -> None:
        for wire in (
            event("{}"),
            b"\n\n" + event("{}"),
            b": {\n\n" + event("{}"),
            "\ufeff".encode() + event("{}"),
            b"\n" * 99 + event("{}"),
        ):
            for reads in ([wire], [wire[at : at + 1] for at in range(len(wire))]):
                decoder = StreamDecoder()
                found = [item.data for read in reads for item in decoder.feed(read, 0.0)]
                self.assertEqual((found, decoder.non_stream, decoder.unterminated), ([b"{}"], False, False))

    def test_every_format_has_its_decoder(self) -> None:
        self.assertIsInstance(open_stream("sse"), StreamDecoder)
        self.assertIsInstance(open_stream("ndjson"), NdjsonDecoder)
        decoder = open_stream("json")
        self.assertEqual(decoder.feed(b'{"text":', 1.0) + decoder.feed(b'"a"}', 2.0), [])
        self.assertEqual(decoder.eof(), [Event(2.0, b'{"text":"a"}')])

    def test_an_endless_answer_is_refused(self) -> None:
        decoder = JsonDecoder()
        with self.assertRaises(ProtocolError):
            for _ in range(18):
                decoder.feed(b"x" * (1024 * 1024))


if __name__ == "__main__":
    unittest.main()
