"""Tests against what real servers sent: every captured answer through body, events and reader, at every split point."""

from __future__ import annotations

import unittest
from pathlib import Path
from typing import NamedTuple

from servesim.wire.events import EventFact, Usage, read_event
from servesim.wire.faults import error_from_body
from servesim.wire.http_body import LAST_CHUNK, encode_chunk, open_body
from servesim.wire.ndjson import StreamDecoder
from servesim.wire.prometheus import Family as MetricFamily
from servesim.wire.prometheus import format_page, parse_page

CAPTURES = Path(__file__).resolve().parent.parent / "fixtures" / "captures"


class Capture(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


def load(name: str) -> Capture:
    head, _, body = (CAPTURES / f"{name}.txt").read_bytes().partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = [(key, value) for key, _, value in (line.partition(":") for line in lines)]
    if ("Transfer-Encoding", " chunked") in headers and body.startswith(
        b"data:"
    ):  # the framing was taken off: put it back
        events = body.split(b"\n\n")[:-1]
        body = b"".join(encode_chunk(event + b"\n\n") for event in events) + LAST_CHUNK
    return Capture(int(first.split()[1]), headers, body)


def read(name: str, *, reader: str = "chat", cut: int | None = None) -> list[EventFact]:
    """Return the facts of a captured answer, its body cut in two at `cut`."""
    status, headers, wire = load(name)
    body, stream = open_body(status, headers), StreamDecoder()
    pieces = [wire] if cut is None else [wire[:cut], wire[cut:]]
    events = [event for piece in pieces for event in stream.feed(body.feed(piece), 0.0)] + stream.eof()
    assert body.complete and not body.excess and not stream.unterminated
    return [read_event(event.data, reader, event.name) for event in events]


def last_usage(facts: list[EventFact]) -> Usage | None:
    return [fact.usage for fact in facts if fact.usage][-1]


class StreamsTest(unittest.TestCase):
    def test_llamacpp_chat(self) -> None:
        for name in ("llamacpp-chat-stream", "llamacpp-chat-stream-raw"):
            facts = read(name)
            self.assertFalse(facts[0].is_token)  # the role chunk, with null content
            self.assertEqual([fact.finish_reason for fact in facts if fact.finish_reason], ["length"])
            self.assertTrue(facts[-1].done)
            self.assertFalse(any(fact.malformed or fact.error for fact in facts))
        self.assertEqual(sum(fact.is_token for fact in read("llamacpp-chat-stream")), 16)
        usage = last_usage(read("llamacpp-chat-stream"))
        self.assertEqual(usage, Usage(prompt_tokens=37, output_tokens=16, cached_tokens=36))
        timings = read("llamacpp-chat-stream")[-2].timings
        self.assertEqual(timings and (timings["prompt_n"], timings["predicted_ms"]), (1, 156.94))

    def test_llamacpp_sends_the_role_and_the_first_token_in_one_chunk(self) -> None:
        status, headers, wire = load("llamacpp-chat-stream-raw")
        first = wire[: wire.index(b"\r\n", wire.index(b"\n\n\r\n")) + 2]
        stream = StreamDecoder()
        events = stream.feed(open_body(status, headers).feed(first), 0.0)
        self.assertEqual([read_event(event.data).is_token for event in events], [False, True])

    def test_llamacpp_gives_timings_even_where_it_gives_no_usage(self) -> None:
        facts = read("llamacpp-chat-stream-no-usage")
        self.assertFalse(any(fact.usage for fact in facts))
        self.assertEqual(sum(fact.is_token for fact in facts), 4)
        self.assertEqual([fact.timings["predicted_n"] for fact in facts if fact.timings], [4])

    def test_llamacpp_completions_put_usage_into_the_finish_chunk(self) -> None:
        facts = read("llamacpp-completions-stream", reader="completions")
        self.assertEqual(sum(fact.is_token for fact in facts), 8)
        self.assertEqual((facts[-2].finish_reason, facts[-2].choices), ("length", 1))
        self.assertEqual(facts[-2].usage, Usage(prompt_tokens=4, output_tokens=8, cached_tokens=0))

    def test_llamacpp_ends_a_request_that_filled_its_slot(self) -> None:
        facts = read("llamacpp-stream-context-full")
        usage = last_usage(facts)
        self.assertEqual(usage, Usage(prompt_tokens=931, output_tokens=93, cached_tokens=24))
        self.assertEqual([fact.finish_reason for fact in facts if fact.finish_reason], ["length"])

    def test_llamacpp_native_completion_ends_with_stop_and_without_done(self) -> None:
        facts = read("llamacpp-completion-native-stream", reader="llamacpp")
        self.assertEqual([fact.is_token for fact in facts], [True] * 4 + [False])
        self.assertEqual([fact.done for fact in facts], [False] * 4 + [True])
        self.assertEqual(facts[-1].finish_reason, "length")
        self.assertEqual(
            facts[-1].usage, Usage(prompt_tokens=2, output_tokens=4, cached_tokens=(facts[-1].timings or {})["cache_n"])
        )

    def test_llamacpp_responses(self) -> None:
        facts = read("llamacpp-responses-stream", reader="responses")
        self.assertEqual([fact.is_token for fact in facts].count(True), 4)
        self.assertEqual((facts[-1].done, facts[-1].finish_reason), (True, "stop"))
        self.assertEqual(last_usage(facts), Usage(prompt_tokens=31, output_tokens=4, cached_tokens=30))
        self.assertEqual((facts[-1].timings or {})["predicted_n"], 4)

    def test_vllm_chat(self) -> None:
        facts = read("vllm-chat-stream")
        self.assertEqual(
            [fact.is_token for fact in facts[:3]], [False, True, False]
        )  # a chunk with empty text is no token
        self.assertEqual(last_usage(facts), Usage(prompt_tokens=130, output_tokens=8))
        self.assertTrue(facts[-1].done)

    def test_vllm_continuous_usage_counts_up_and_the_last_one_holds(self) -> None:
        facts = read("vllm-chat-stream-continuous-usage")
        self.assertEqual([fact.usage.output_tokens for fact in facts if fact.usage], [0, 1, 2, 3, 3])

    def test_vllm_completions(self) -> None:
        facts = read("vllm-completion-stream", reader="completions")
        self.assertEqual([fact.is_token for fact in facts], [True, False, True, False, True, False, False, False])
        self.assertEqual(last_usage(facts), Usage(prompt_tokens=4, output_tokens=6))
        cached = last_usage(read("vllm-completion-stream-cached-tokens-2", reader="completions"))
        self.assertEqual(cached and (cached.prompt_tokens, cached.cached_tokens), (100, 96))

    def test_every_stream_reads_alike_wherever_it_is_cut(self) -> None:
        for name, reader in (
            ("llamacpp-chat-stream-raw", "chat"),
            ("llamacpp-responses-stream", "responses"),
            ("vllm-chat-stream-continuous-usage", "chat"),
            ("vllm-completion-stream", "completions"),
        ):
            whole = read(name, reader=reader)
            for cut in range(0, len(load(name).body), 3):
                self.assertEqual(read(name, reader=reader, cut=cut), whole, (name, cut))


class WholeAnswersTest(unittest.TestCase):
    def test_vllm_answers_that_were_not_streamed_are_one_event(self) -> None:
        for name, output in (
            ("vllm-chat", 8),
            ("vllm-chat-max-completion-tokens", 4),
            ("vllm-completion-1023", 1),
            ("vllm-completion", 6),
        ):
            (fact,) = read(name)
            usage = fact.usage
            self.assertEqual(
                (fact.is_token, fact.finish_reason, usage and usage.output_tokens), (True, "length", output), name
            )
        (both,) = read("vllm-chat-n2")
        self.assertEqual((both.choices, both.finished), (2, (0, 1)))

    def test_an_answer_with_no_body_is_complete_at_once(self) -> None:
        status, headers, body = load("vllm-health")
        self.assertEqual((body, open_body(status, headers).complete), (b"", True))


class ErrorsTest(unittest.TestCase):
    def test_every_captured_error_is_one_line_with_the_servers_words(self) -> None:
        names = sorted(path.stem for path in CAPTURES.glob("*-error-*.txt"))
        self.assertEqual(len(names), 16)
        for name in names:
            status, headers, wire = load(name)
            fact = error_from_body(open_body(status, headers).feed(wire))
            self.assertGreaterEqual(status, 400)
            self.assertNotIn("\n", fact.message)
            self.assertTrue(fact.message, name)

    def test_errors_that_frameworks_make_are_read(self) -> None:
        self.assertEqual(error_from_body(load("vllm-error-method").body).message, "Method Not Allowed")
        self.assertEqual(error_from_body(load("llamacpp-error-bad-request").body).type, "invalid_request_error")


class MetricPagesTest(unittest.TestCase):
    def test_every_line_of_every_page_is_read_and_written_back_alike(self) -> None:
        pages = sorted(CAPTURES.glob("*-metrics-*.txt"))
        self.assertEqual(len(pages), 9)
        for path in pages:
            text = path.read_text(encoding="utf-8")
            if text.startswith("HTTP/"):
                text = text.partition("\n\n")[2]
            page = parse_page(text)
            lines = [line for line in text.splitlines() if line and not line.startswith("#")]
            self.assertEqual((page.malformed_lines, sum(map(len, page.samples.values()))), (0, len(lines)), path.name)
            families = [
                MetricFamily(name=name, kind="untyped", about="x", samples=tuple(samples))
                for name, samples in page.samples.items()
            ]
            self.assertEqual(parse_page(format_page(families)).samples, page.samples)


if __name__ == "__main__":
    unittest.main()
