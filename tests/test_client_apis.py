"""Every API flavour from the request line to the record, against an answer of its own shape."""

from __future__ import annotations

import json
import unittest

from servesim.client.flavour import API_FLAVOURS
from servesim.summary.latency import Completed
from servesim.workload.workload import OpenLoop
from tests.client_case import always, plain_requests, run_against, stream, verdict_of
from tests.truth_server import HEAD_OF_STREAM, LAST_CHUNK, Asked, Step, VirtualServer, answer, chunk


def sse(*events: dict, names: bool = False) -> list[Step]:
    writes = [
        (f"event: {one['type']}\n" if names else "").encode() + b"data: " + json.dumps(one).encode() + b"\n\n"
        for one in events
    ]
    return stream(*writes)


def ndjson(*lines: dict) -> list[Step]:
    text = [Step(0.005, chunk(json.dumps(line).encode() + b"\n")) for line in lines]
    return [Step(0.0, HEAD_OF_STREAM), *text, Step(0.0, LAST_CHUNK)]


ANSWERS = {
    "chat": (
        "/v1/chat/completions",
        sse(
            {"choices": [{"delta": {"content": "a"}}]},
            {"choices": [{"delta": {"content": "b"}}]},
            {
                "choices": [{"delta": {}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 9, "completion_tokens": 2},
            },
        ),
    ),
    "completions": (
        "/v1/completions",
        sse(
            {"choices": [{"text": "a"}]},
            {"choices": [{"text": "b", "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}},
        ),
    ),
    "responses": (
        "/v1/responses",
        sse(
            {"type": "response.created", "response": {}},
            {"type": "response.output_text.delta", "delta": "a"},
            {"type": "response.output_text.delta", "delta": "b"},
            {
                "type": "response.completed",
                "response": {"status": "completed", "usage": {"input_tokens": 9, "output_tokens": 2}},
            },
            names=True,
        ),
    ),
    "llamacpp": (
        "/completion",
        sse(
            {"content": "a", "stop": False},
            {"content": "b", "stop": False},
            {"content": "", "stop": True, "stop_type": "limit", "tokens_evaluated": 9, "tokens_predicted": 2},
        ),
    ),
    "ollama": (
        "/api/chat",
        ndjson(
            {"message": {"content": "a"}, "done": False},
            {"message": {"content": "b"}, "done": False},
            {"message": {"content": ""}, "done": True, "prompt_eval_count": 9, "eval_count": 2},
        ),
    ),
    "tgi": (
        "/generate_stream",
        sse(
            {"token": {"text": "a"}},
            {
                "token": {"text": "b"},
                "generated_text": "ab",
                "details": {"finish_reason": "length", "generated_tokens": 2, "input_length": 9},
            },
        ),
    ),
}


class ApisTest(unittest.TestCase):
    def test_every_streaming_api_gives_the_same_record(self) -> None:
        self.assertEqual({name for name, row in API_FLAVOURS.items() if row.stream_format != "json"}, set(ANSWERS))
        for api, (path, steps) in ANSWERS.items():
            with self.subTest(api), VirtualServer(always(*steps)) as server:
                run = run_against(server, api=api)
                self.assertEqual(server.asked[0].line, f"POST {path} HTTP/1.1")
                self.assertEqual(verdict_of(run), ("completed", None))
                self.assertEqual((run.records.prompt_tokens[0], run.records.output_tokens[0]), (9, 2))
                self.assertEqual(len(run.token_times(0)), 2)

    def test_whole_answers_are_asked_for_where_they_are_given(self) -> None:
        ollama = {"message": {"content": "ab"}, "done": True, "prompt_eval_count": 9, "eval_count": 2}
        tgi = [{"generated_text": "ab", "details": {"finish_reason": "length", "generated_tokens": 2, "prefill": [1]}}]
        for api, path, body in (("ollama", "/api/chat", ollama), ("tgi", "/generate", tgi)):
            steps = [Step(0.01, answer("200 OK", json.dumps(body).encode()))]
            with self.subTest(api), VirtualServer(always(*steps)) as server:
                run = run_against(server, api=api, stream=False)
                self.assertEqual(server.asked[0].line, f"POST {path} HTTP/1.1")
                self.assertEqual(verdict_of(run), ("completed", None))
                self.assertEqual((run.records.output_tokens[0], run.records.extra[0]["non_stream"]), (2, True))

    def test_a_plain_generate_has_only_an_end_and_the_servers_own_latency(self) -> None:
        body = {"text": "ab", "input_tokens": 9, "output_tokens": 2, "latency_s": 0.04, "tokens_per_second": 50.0}
        steps = [Step(0.05, answer("200 OK", json.dumps(body).encode()))]
        with VirtualServer(always(*steps)) as server:
            run = run_against(server, api="generate")
        self.assertEqual(verdict_of(run), ("completed", None))
        done = Completed(run)
        self.assertNotEqual(done.ttft()[0], done.ttft()[0])  # NaN: nobody knows
        self.assertAlmostEqual(done.e2e()[0], 0.05, delta=0.0005)
        self.assertEqual(run.records.extra[0]["timings"], {"latency_s": 0.04, "tokens_per_second": 50.0})

    def test_a_refused_generate_is_a_failure_with_its_detail(self) -> None:
        body = {"detail": [{"loc": ["body", "max_output_tokens"], "msg": "must be at most 256"}]}
        with VirtualServer(always(Step(0.0, answer("422 Unprocessable", json.dumps(body).encode())))) as server:
            run = run_against(server, api="generate")
        self.assertEqual(verdict_of(run), ("failed", "http_422"))
        self.assertEqual(run.records.extra[0]["message"], "body.max_output_tokens: must be at most 256")


class HonestLoadTest(unittest.TestCase):
    def test_a_server_that_cannot_keep_up_cannot_hide_its_queue(self) -> None:
        free_s = 0.0

        def one_at_a_time(asked: Asked) -> list[Step]:
            nonlocal free_s
            free_s = max(free_s, asked.kernel_s) + 0.02
            event = b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n'
            return [Step(free_s - asked.kernel_s, answer("200 OK", event))]

        requests = plain_requests(20, output=1)
        for index in range(20):
            requests.arrival_s[index] = 0.01 * index
        with VirtualServer(one_at_a_time) as server:
            run = run_against(server, OpenLoop(requests))
        waits = Completed(run).ttft_from_planned()
        self.assertEqual(waits, sorted(waits))
        self.assertAlmostEqual(waits[-1] - waits[0], 0.19, delta=0.0005)
        self.assertLess(max(Completed(run).lateness()), 0.0005)


if __name__ == "__main__":
    unittest.main()
