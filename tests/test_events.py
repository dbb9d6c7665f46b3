"""Tests of what an event means: every API's shapes, null and absent fields, errors. Rows of the fault list that concern
reading are here with their exact bytes, folded as a client folds them.
"""

from __future__ import annotations

import json
import random
import unittest
from dataclasses import dataclass, field
from typing import Any

from servesim.wire.events import READERS, EventFact, Usage, read_event, read_usage
from servesim.wire.faults import ErrorFact, error_from_body, error_of
from servesim.wire.ndjson import open_stream
from servesim.wire.sse import Event
from tests.extent import seeds

R: dict[str, Any] = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
F: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
U: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}}
Z = b"data: [DONE]\n\n"


def T(content: Any, **more: Any) -> dict[str, Any]:  # noqa: N802
    """A chat chunk whose delta has this content, as the fault list writes it."""
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}], **more}


def E(value: Any) -> bytes:  # noqa: N802
    """An event of the fault list."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@dataclass
class Answer:
    """What a client makes of a stream's facts, as far as these tests need it."""

    facts: list[EventFact] = field(default_factory=list)
    stamps: list[float] = field(default_factory=list)  # of token events
    visible: list[float] = field(default_factory=list)
    usage: Usage | None = None
    error: ErrorFact | None = None
    finished: bool = False
    malformed: int = 0

    @property
    def text(self) -> str:
        return "".join(fact.text for fact in self.facts)


def read(*reads: bytes, reader: str = "chat", stream_format: str = "sse") -> Answer:
    """Run reads stamped 0, 1, 2, ... through the splitter and the reader to the stream's end."""
    stream = open_stream(stream_format)
    events: list[Event] = []
    for stamp, data in enumerate(reads):
        events += stream.feed(data, float(stamp))
    answer = Answer()
    for event in events + stream.eof():
        fact = read_event(event.data, reader, event.name)
        answer.facts.append(fact)
        answer.malformed += fact.malformed
        answer.usage = fact.usage or answer.usage
        answer.error = answer.error or fact.error
        answer.finished |= fact.done or bool(fact.finished)
        if fact.is_token:
            answer.stamps.append(event.stamp)
        if fact.is_visible:
            answer.visible.append(event.stamp)
    return answer


class ChatFaultsTest(unittest.TestCase):
    def test_the_first_token_is_the_first_text_not_the_role_chunk(self) -> None:
        self.assertEqual(read(E(R), E(T("a")), E(T("b")), E(F), E(U), Z).stamps, [1.0, 2.0])

    def test_an_empty_first_text_is_no_token(self) -> None:
        self.assertEqual(read(E(T("")), E(T("a"))).stamps, [1.0])

    def test_reasoning_counts_under_either_name_and_once(self) -> None:
        for names in (["reasoning_content"], ["reasoning"], ["reasoning_content", "reasoning"]):
            thoughts = [E({"choices": [{"delta": dict.fromkeys(names, text)}]}) for text in ("x", "y", "z")]
            answer = read(*thoughts, E(T("a")), E(F), Z)
            self.assertEqual((answer.stamps, answer.visible), ([0.0, 1.0, 2.0, 3.0], [3.0]))
            self.assertEqual("".join(fact.reasoning for fact in answer.facts), "xyz")

    def test_tool_call_deltas_are_events_but_not_visible_text(self) -> None:
        call = {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}]}
        old = {"choices": [{"delta": {"content": None, "function_call": {"arguments": "{"}}}]}
        answer = read(E(call), E(call), E(old))
        self.assertEqual((answer.stamps, answer.visible, answer.text), ([0.0, 1.0, 2.0], [], ""))
        for nothing in (None, []):
            self.assertFalse(read(E({"choices": [{"delta": {"tool_calls": nothing}}]})).stamps)

    def test_null_content_is_empty(self) -> None:
        answer = read(E(T("a")), E(T(None)), E(T("b")))
        self.assertEqual((answer.text, answer.stamps), ("ab", [0.0, 2.0]))

    def test_choices_may_lack_be_null_or_be_empty(self) -> None:
        usage = {"usage": U["usage"]}
        for event in (usage, U, {**usage, "choices": None}, {**usage, "choices": [None]}, {**usage, "choices": {}}):
            answer = read(E(event))
            self.assertEqual(answer.usage, Usage(prompt_tokens=5, output_tokens=3))
            self.assertFalse(answer.stamps)

    def test_deltas_of_odd_types_say_nothing(self) -> None:
        for choice in ({}, {"delta": None}, {"delta": []}, {"delta": "a"}, {"delta": {"content": 5}}, {"text": None}):
            fact = read_event(json.dumps({"choices": [choice]}).encode())
            self.assertEqual(
                (fact.is_token, fact.finish_reason, fact.malformed, fact.error), (False, None, False, None)
            )

    def test_usage_in_the_finish_chunk_is_read(self) -> None:
        answer = read(E(T("a")), E({**F, "usage": U["usage"]}), Z)
        self.assertEqual((answer.usage, answer.finished), (Usage(prompt_tokens=5, output_tokens=3), True))

    def test_continuous_usage_is_not_summed(self) -> None:
        chunks = [E(T("x", usage={"prompt_tokens": 5, "completion_tokens": count})) for count in (1, 2, 3)]
        answer = read(*chunks, Z)
        self.assertEqual(answer.usage, Usage(prompt_tokens=5, output_tokens=3))
        self.assertEqual(len(answer.stamps), 3)

    def test_usage_behind_the_finish_reason_is_not_lost(self) -> None:
        self.assertEqual(read(E(T("a")), E(F), E(U), Z).usage, Usage(prompt_tokens=5, output_tokens=3))

    def test_filter_results_in_front_are_neither_token_nor_usage(self) -> None:
        answer = read(E({"choices": [], "prompt_filter_results": []}), E(R), E(T("a")))
        self.assertEqual((answer.stamps, answer.usage), ([2.0], None))

    def test_a_chunk_without_text_is_no_token_even_when_usage_grew(self) -> None:
        answer = read(E(T("a", usage={"completion_tokens": 1})), E(T("", usage={"completion_tokens": 2})))
        self.assertEqual((answer.stamps, answer.usage), ([0.0], Usage(output_tokens=2)))

    def test_many_tokens_in_one_chunk_are_one_event(self) -> None:
        usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 12}}
        answer = read(E(T("a b c d e f")), E(T("g")), E(T("h")), E(F), E(usage), Z)
        self.assertEqual((len(answer.stamps), answer.usage and answer.usage.output_tokens), (3, 12))

    def test_everything_in_one_read_is_read(self) -> None:
        answer = read(E(R) + E(T("a")) + E(T("b")) + E(F) + E(U) + Z)
        self.assertEqual((answer.text, answer.stamps, answer.finished), ("ab", [0.0, 0.0], True))

    def test_an_answer_of_no_tokens_is_whole(self) -> None:
        empty = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 0}}
        answer = read(E(R), E(F), E(empty), Z)
        self.assertEqual((answer.stamps, answer.finished), ([], True))
        self.assertEqual(answer.usage, Usage(prompt_tokens=5, output_tokens=0))

    def test_a_stream_that_merely_stops_has_not_finished(self) -> None:
        self.assertFalse(read(E(R), E(T("a")), E(T("b"))).finished)
        for end in (E(F), Z, b"data:[DONE]\n\n", b"data: [DONE] \r\n\r\n", b"data: [DONE]"):
            self.assertTrue(read(E(T("a")), end).finished, end)

    def test_the_last_usage_without_its_blank_line_is_read(self) -> None:
        self.assertEqual(read(E(T("a")) + E(U).rstrip(b"\n")).usage, Usage(prompt_tokens=5, output_tokens=3))

    def test_two_data_lines_are_one_json(self) -> None:
        self.assertEqual(read(b'data: {"choices":\ndata: [{"delta":{"content":"a"}}]}\n\n').text, "a")

    def test_a_multibyte_character_in_two_reads_is_one_character(self) -> None:
        wire = b'data: {"choices":[{"delta":{"content":"\xe4\xb8\xad"}}]}\n\n'
        for at in range(len(wire)):
            self.assertEqual(read(wire[:at], wire[at:]).text, "中")

    def test_several_choices_are_all_read(self) -> None:
        both = {"choices": [{"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}]}
        fact = read_event(json.dumps(both).encode())
        self.assertEqual((fact.choices, fact.text, fact.finished), (2, "ab", ()))
        ends = {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]}
        self.assertEqual(read_event(json.dumps(ends).encode()).finished, (1,))

    def test_content_parts_and_refusals_are_text(self) -> None:
        self.assertEqual(read(E(T([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]))).text, "ab")
        thinking = read(E(T([{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}])))
        self.assertEqual((thinking.text, thinking.facts[0].reasoning), ("", "hm"))
        self.assertEqual(read(E({"choices": [{"delta": {"refusal": "no"}}]})).text, "no")

    def test_one_json_instead_of_a_stream_is_one_event(self) -> None:
        whole = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "a b"}, "finish_reason": "stop"}]}
        body = json.dumps({**whole, "usage": U["usage"]}, indent=1).encode()
        answer = read(body[:9], body[9:])
        self.assertEqual((answer.text, answer.stamps, answer.finished), ("a b", [1.0], True))
        self.assertEqual(answer.usage, Usage(prompt_tokens=5, output_tokens=3))


class MalformedTest(unittest.TestCase):
    def test_raw_control_characters_are_read_and_counted(self) -> None:
        answer = read(b'data: {"choices":[{"delta":{"content":"a\x01"}}]}\n\n', E(T("b")))
        self.assertEqual((answer.text, answer.malformed), ("a\x01b", 1))

    def test_broken_utf8_is_read_and_counted(self) -> None:
        answer = read(b'data: {"choices":[{"delta":{"content":"a\xff"}}]}\n\n')
        self.assertEqual((answer.text, answer.malformed), ("a\ufffd", 1))

    def test_what_is_no_object_is_counted_and_passed_over(self) -> None:
        for data in (
            b"",
            b"{",
            b"ping",
            b"5",
            b"null",
            b'"a"',
            b"[]",
            b"[1, 2]",
            b"[" * 100_000,
            b"1" * 5000,
            b"[done]",
        ):
            answer = read(E(T("a")), b"data: " + data + b"\n\n", E(T("b")))
            self.assertEqual((answer.text, answer.malformed, answer.error), ("ab", 1, None), data[:20])

    def test_numbers_that_json_does_not_know_hurt_nobody(self) -> None:
        self.assertEqual(read(b'data: {"choices":[{"delta":{"content":"a"},"logprobs":NaN}]}\n\n').text, "a")


class ErrorTest(unittest.TestCase):
    def test_an_error_object_in_a_stream_is_an_error_wherever_it_comes(self) -> None:
        error = E({"error": {"message": "out of memory", "type": "server_error", "code": 500}})
        expected = ErrorFact("out of memory", "server_error", "500")
        self.assertEqual(read(error).error, expected)
        answer = read(E(R), E(T("a")), E(T("b")), error, Z)
        self.assertEqual((answer.error, answer.text, answer.stamps), (expected, "ab", [1.0, 2.0]))

    def test_every_spelling_of_an_error_is_one(self) -> None:
        for value, expected in (
            ({"error": "boom"}, ErrorFact("boom")),
            ({"error": "boom", "error_type": "generation"}, ErrorFact("boom", "generation")),
            ({"error": {"message": "a\n  b\x1b[31m"}}, ErrorFact("a b [31m")),
            (
                {"error": {"message": None, "type": "t", "code": None}},
                ErrorFact('{"message": null, "type": "t", "code": null}', "t"),
            ),
            ({"error": {}}, ErrorFact("no message")),
            ({"error": {"message": {"detail": "deep"}}}, ErrorFact("deep")),
            ({"error": ["x"]}, ErrorFact('["x"]')),
            ({"error": True}, ErrorFact("true")),
            (
                {"object": "error", "message": "old", "type": "BadRequestError", "code": 400},
                ErrorFact("old", "BadRequestError", "400"),
            ),
            ({"error": {"message": "lone \ud800 half"}}, ErrorFact("lone half")),
        ):
            self.assertEqual(read(E(value)).error, expected)

    def test_a_null_or_empty_error_is_none(self) -> None:
        for nothing in (None, "", False, [], 0):
            answer = read(E(T("a", error=nothing)), Z)
            self.assertEqual((answer.error, answer.text), (None, "a"))

    def test_an_event_of_type_error_is_an_error(self) -> None:
        self.assertEqual(
            read(b'event: error\ndata: {"message": "boom", "code": 3}\n\n').error, ErrorFact("boom", "", "3")
        )

    def test_finish_reasons_that_mean_failure_are_errors(self) -> None:
        for reason in ("error", "abort", {"type": "abort", "message": "x"}):
            answer = read(E({"choices": [{"delta": {}, "finish_reason": reason}]}))
            self.assertEqual(answer.error and answer.error.type, "aborted")
        self.assertIsNone(read(E({"choices": [{"delta": {}, "finish_reason": ""}]})).facts[0].finish_reason)

    def test_error_bodies_of_any_shape_give_one_line(self) -> None:
        for body, expected in (
            (b'{"detail":"Not Found"}', ErrorFact("Not Found")),
            (
                b'{"detail":[{"loc":["body","n"],"msg":"must be 1"},{"loc":["body"],"msg":"x"}]}',
                ErrorFact("body.n: must be 1; body: x"),
            ),
            (b"<html>\n<b>502 Bad Gateway</b></html>", ErrorFact("<html> <b>502 Bad Gateway</b></html>")),
            (b"", ErrorFact("Too Many Requests")),
            (b'"plain"', ErrorFact("plain")),
            (b"\xff\xfe", ErrorFact("��")),
            (b'{"message": "m", "type": "t"}', ErrorFact("m", "t")),
            (b"{}", ErrorFact("no message")),
            (b"[" * 100_000, ErrorFact("[" * 497 + "...")),
        ):
            self.assertEqual(error_from_body(body, reason="Too Many Requests"), expected)
        self.assertIsNone(error_of({"message": "not an error by itself"}))


class UsageTest(unittest.TestCase):
    def test_every_name_of_a_count_is_known(self) -> None:
        full = Usage(prompt_tokens=9, output_tokens=4, cached_tokens=8, reasoning_tokens=2)
        for usage in (
            {
                "prompt_tokens": 9,
                "completion_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 8},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            {
                "input_tokens": 9,
                "output_tokens": 4,
                "input_tokens_details": {"cached_tokens": 8},
                "output_tokens_details": {"reasoning_tokens": 2},
            },
            {"prompt_tokens": 9.0, "completion_tokens": 4, "prompt_cache_hit_tokens": 8, "reasoning_tokens": 2},
        ):
            self.assertEqual(read_usage(usage), full)

    def test_absent_and_odd_counts_are_unknown_never_zero(self) -> None:
        plain = Usage(prompt_tokens=9, output_tokens=4)
        for details in (
            None,
            {},
            {"cached_tokens": None},
            {"cached_tokens": -1},
            {"cached_tokens": True},
            {"cached_tokens": "8"},
            5,
        ):
            self.assertEqual(
                read_usage({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": details}), plain
            )
        for nothing in (
            None,
            {},
            [],
            "x",
            {"total_tokens": 5},
            {"prompt_tokens": None},
            {"prompt_tokens": float("inf")},
        ):
            self.assertIsNone(read_usage(nothing))
        self.assertEqual(
            read_usage({"prompt_tokens": 0, "completion_tokens": 0}), Usage(prompt_tokens=0, output_tokens=0)
        )


class ShapesTest(unittest.TestCase):
    def test_completions(self) -> None:
        def chunk(text: str, reason: str | None = None) -> bytes:
            return E({"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": reason}]})

        answer = read(chunk("a"), chunk(""), chunk("b", "length"), E(U), Z, reader="completions")
        self.assertEqual((answer.text, answer.stamps, answer.facts[2].finish_reason), ("ab", [0.0, 2.0], "length"))

    def test_responses(self) -> None:
        def event(kind: str, **more: Any) -> bytes:
            return f"event: {kind}\n".encode() + E({"type": kind, **more})

        usage = {"input_tokens": 7, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}}
        answer = read(
            event("response.created", response={"object": "response", "status": "in_progress"}),
            event("response.reasoning_summary_text.delta", delta="hm"),
            event("response.output_text.delta", delta="a"),
            event("response.function_call_arguments.delta", delta="{"),
            event("response.output_text.delta", delta=""),
            event("response.output_text.done", text="a"),
            event("response.completed", response={"status": "completed", "usage": usage}, timings={"prompt_n": 7}),
            reader="responses",
        )
        self.assertEqual((answer.stamps, answer.visible, answer.text), ([1.0, 2.0, 3.0], [2.0], "a"))
        self.assertEqual(answer.usage, Usage(prompt_tokens=7, output_tokens=3, cached_tokens=4))
        self.assertEqual((answer.finished, answer.facts[-1].finish_reason), (True, "stop"))
        self.assertEqual(answer.facts[-1].timings, {"prompt_n": 7})

    def test_responses_that_end_early_or_fail(self) -> None:
        cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        fact = read_event(json.dumps({"type": "response.incomplete", "response": cut}).encode(), "responses")
        self.assertEqual((fact.finish_reason, fact.done, fact.error), ("length", True, None))
        failed = {
            "type": "response.failed",
            "response": {"status": "failed", "error": {"code": "x", "message": "boom"}},
        }
        self.assertEqual(read_event(json.dumps(failed).encode(), "responses").error, ErrorFact("boom", "", "x"))
        event = {"type": "error", "code": "server_error", "message": "boom"}
        self.assertEqual(
            read_event(json.dumps(event).encode(), "responses").error, ErrorFact("boom", "error", "server_error")
        )

    def test_a_whole_response(self) -> None:
        content = [{"type": "output_text", "text": "a"}, {"type": "output_text", "text": "b"}]
        whole = {
            "object": "response",
            "status": "completed",
            "error": None,
            "output": [{"type": "reasoning", "summary": [{"text": "hm"}]}, {"type": "message", "content": content}],
            "usage": {"input_tokens": 7, "output_tokens": 3},
        }
        fact = read_event(json.dumps(whole).encode(), "responses")
        self.assertEqual((fact.text, fact.reasoning, fact.done, fact.error), ("ab", "hm", True, None))
        self.assertEqual(fact.usage, Usage(prompt_tokens=7, output_tokens=3))

    def test_llamacpp_completion(self) -> None:
        end = {"content": "", "stop": True, "stop_type": "limit", "tokens_predicted": 2, "tokens_evaluated": 9}
        timings = {"cache_n": 8, "prompt_n": 1, "predicted_ms": 12.5}
        answer = read(
            E({"content": "a", "stop": False, "tokens_predicted": 1, "tokens_evaluated": 9}),
            E({"content": "b", "stop": False}),
            E({**end, "tokens_cached": 10, "timings": timings}),
            reader="llamacpp",
        )
        self.assertEqual((answer.text, answer.stamps, answer.finished), ("ab", [0.0, 1.0], True))
        self.assertEqual(answer.usage, Usage(prompt_tokens=9, output_tokens=2, cached_tokens=8))
        self.assertEqual((answer.facts[-1].finish_reason, answer.facts[-1].timings), ("length", timings))
        for field_name, reason in (("stopped_limit", "length"), ("stopped_eos", "stop")):
            old = read_event(json.dumps({"content": "", "stop": True, field_name: True}).encode(), "llamacpp")
            self.assertEqual((old.finish_reason, old.usage), (reason, None))

    def test_ollama_chat_and_generate(self) -> None:
        lines = [
            {"message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": False},
            {"message": {"role": "assistant", "content": "a"}, "done": False},
            {
                "message": {"role": "assistant", "content": ""},
                "done": True,
                "done_reason": "length",
                "prompt_eval_count": 9,
                "eval_count": 2,
                "eval_duration": 5,
                "total_duration": 7,
            },
        ]
        answer = read(*(json.dumps(line).encode() + b"\n" for line in lines), reader="ollama", stream_format="ndjson")
        self.assertEqual((answer.stamps, answer.visible, answer.finished), ([0.0, 1.0], [1.0], True))
        self.assertEqual(answer.usage, Usage(prompt_tokens=9, output_tokens=2))
        self.assertEqual(answer.facts[-1].finish_reason, "length")
        self.assertEqual(answer.facts[-1].timings, {"eval_duration": 5, "total_duration": 7})
        self.assertEqual(read_event(b'{"response":"a","done":false}', "ollama").text, "a")
        self.assertEqual(read_event(b'{"error":"model not found"}', "ollama").error, ErrorFact("model not found"))

    def test_tgi(self) -> None:
        def token(text: str, special: bool = False, **more: Any) -> bytes:
            return E({"index": 1, "token": {"id": 5, "text": text, "special": special}, **more})

        details = {"finish_reason": "eos_token", "generated_tokens": 3, "input_length": 9}
        answer = read(
            token("a", generated_text=None, details=None),
            token(" b"),
            token("</s>", True, generated_text="a b", details=details),
            reader="tgi",
        )
        self.assertEqual((answer.text, answer.stamps, answer.finished), ("a b", [0.0, 1.0], True))
        self.assertEqual(answer.usage, Usage(prompt_tokens=9, output_tokens=3))
        self.assertEqual(answer.facts[-1].finish_reason, "stop")
        whole = read_event(b'[{"generated_text":"a b","details":{"generated_tokens":3,"prefill":[{},{}]}}]', "tgi")
        self.assertEqual((whole.text, whole.usage), ("a b", Usage(prompt_tokens=2, output_tokens=3)))
        failed = read(E({"error": "overloaded", "error_type": "overloaded"}), reader="tgi")
        self.assertEqual(failed.error, ErrorFact("overloaded", "overloaded"))

    def test_the_plain_generate_answer(self) -> None:
        body = {"text": "a b", "input_tokens": 9, "output_tokens": 2, "latency_s": 0.5, "tokens_per_second": 4.0}
        answer = read(json.dumps(body).encode(), reader="generate", stream_format="json")
        self.assertEqual((answer.text, answer.finished), ("a b", True))
        self.assertEqual(answer.usage, Usage(prompt_tokens=9, output_tokens=2))
        self.assertEqual(answer.facts[0].timings, {"latency_s": 0.5, "tokens_per_second": 4.0})

    def test_llamacpp_timings_beside_the_usage_are_kept(self) -> None:
        timings = {"prompt_n": 1, "prompt_ms": 11.774}
        self.assertEqual(read(E({**U, "timings": timings})).facts[0].timings, timings)
        self.assertIsNone(read(E({**U, "timings": None})).facts[0].timings)

    def test_of_timings_only_numbers_are_kept_however_deep_the_rest_is(self) -> None:
        odd = {"prompt_ms": 1.5, "cache_n": True, "model": "x", "deep": json.loads("[" * 700 + "NaN" + "]" * 700)}
        self.assertEqual(read(E({**U, "timings": odd})).facts[0].timings, {"prompt_ms": 1.5})

    def test_no_reader_fails_whatever_its_fields_hold(self) -> None:
        names = sorted(
            "choices delta message content text refusal reasoning reasoning_content thinking tool_calls function_call "
            "index finish_reason usage prompt_tokens completion_tokens prompt_tokens_details cached_tokens timings "
            "cache_n error type code detail object response status output incomplete_details reason stop stop_type "
            "tokens_evaluated done done_reason eval_count eval_duration token special generated_text details prefill "
            "input_length".split()
        )
        leaves = (
            None,
            True,
            False,
            0,
            -1,
            5,
            2.5,
            1e400,
            "",
            "a",
            "stop",
            "error",
            "response",
            "response.failed",
            "x.delta",
        )

        def value(rng: random.Random, depth: int) -> Any:
            kind = rng.random() if depth else 1.0
            if kind < 0.45:
                return {name: value(rng, depth - 1) for name in rng.sample(names, rng.randint(0, 8))}
            return [value(rng, depth - 1) for _ in range(rng.randint(0, 3))] if kind < 0.6 else rng.choice(leaves)

        for seed in seeds(400):
            rng = random.Random(seed)
            data = json.dumps({name: value(rng, 4) for name in rng.sample(names, 10)}).encode()
            for reader in READERS:
                with self.subTest(seed=seed, reader=reader):
                    self.assertFalse(read_event(data, reader, rng.choice(["", "error"])).malformed)

    def test_no_reader_fails_on_an_empty_object(self) -> None:
        for reader in READERS:
            fact = read_event(b"{}", reader)
            self.assertEqual((fact.is_token, fact.done, fact.error, fact.usage), (False, False, None, None), reader)


if __name__ == "__main__":
    unittest.main()
