"""What real servers sent, over a real socket and through the whole client: the record that comes of each capture."""

from __future__ import annotations

import unittest

from servesim.runs.records import Run
from servesim.workload.workload import ClosedLoop
from tests.client_case import always, plain_requests, run_against, verdict_of
from tests.test_captures import CAPTURES, load
from tests.truth_server import Step, VirtualServer

# name: api, asked tokens; token events, prompt, output and cached tokens (-1: not told), whether a limit ended it
STREAMS = {
    "llamacpp-chat-stream": ("chat", 16, (16, 37, 16, 36, False)),
    "llamacpp-chat-stream-raw": ("chat", 4, (4, 31, 4, 0, False)),
    "llamacpp-chat-stream-no-usage": ("chat", 4, (4, 5, 4, -1, False)),
    "llamacpp-completions-stream": ("completions", 8, (8, 4, 8, 0, False)),
    "llamacpp-completion-native-stream": ("llamacpp", 4, (4, 2, 4, 1, False)),
    "llamacpp-responses-stream": ("responses", 4, (4, 31, 4, 30, False)),
    "llamacpp-stream-context-full": ("chat", 200, (69, 931, 93, 24, True)),
    "vllm-chat-stream": ("chat", 8, (4, 130, 8, -1, False)),
    "vllm-chat-stream-continuous-usage": ("chat", 3, (2, 130, 3, -1, False)),
    "vllm-completion-stream": ("completions", 6, (3, 4, 6, -1, False)),
    "vllm-completion-stream-cached-tokens-2": ("completions", 4, (1, 100, 4, 96, False)),
}
WHOLE_ANSWERS = {
    "vllm-chat": ("chat", 8, (1, 130, 8, -1, False)),
    "vllm-chat-n2": ("chat", 16, (1, 130, 16, -1, False)),
    "vllm-chat-max-completion-tokens": ("chat", 4, (1, 4, 4, -1, False)),
    "vllm-completion": ("completions", 6, (1, 4, 6, -1, False)),
    "vllm-completion-1023": ("completions", 4, (1, 1023, 1, -1, True)),
    "vllm-completion-cached-tokens-1": ("completions", 4, (1, 100, 4, 0, False)),
    "vllm-completion-default-max-tokens": ("completions", 4, (1, 1020, 4, -1, False)),
    "vllm-completion-output-capped-at-max-model-len": ("completions", 200, (1, 900, 124, -1, True)),
    "vllm-completion-token-ids": ("completions", 4, (1, 6, 4, -1, False)),
}
NO_ANSWERS = "metrics models props health load ping version tokenize startup".split()


def replay(name: str, api: str = "chat", output: int = 3, *, pieces: int = 1) -> Run:
    """Return the run of one request that is answered with a capture, sent in so many writes."""
    wire = (CAPTURES / f"{name}.txt").read_bytes().partition(b"\r\n\r\n")[0] + b"\r\n\r\n" + load(name).body
    cuts = [len(wire) * number // pieces for number in range(pieces + 1)]
    steps = [Step(0.0002, wire[start:end]) for start, end in zip(cuts, cuts[1:], strict=False)]
    with VirtualServer(always(*steps)) as server:
        return run_against(server, ClosedLoop(plain_requests(1, output=output), 1), api=api)


class CapturesTest(unittest.TestCase):
    def check(self, name: str, api: str, asked: int, expected: tuple, *, pieces: int = 1) -> Run:
        run = replay(name, api, asked, pieces=pieces)
        records = run.records
        self.assertEqual(verdict_of(run), ("completed", None))
        told = (records.prompt_tokens[0], records.output_tokens[0], records.cached_tokens[0])
        self.assertEqual((len(run.token_times(0)), *told, 0 in records.capped), expected)
        return run

    def test_every_stream_becomes_its_record_in_however_many_reads(self) -> None:
        for name, (api, asked, expected) in STREAMS.items():
            for pieces in (1, 23):
                with self.subTest(name, pieces=pieces):
                    run = self.check(name, api, asked, expected, pieces=pieces)
                    extra = run.records.extra.get(0, {})
                    self.assertEqual("timings" in extra, name.startswith("llamacpp"))
                    self.assertEqual(extra.keys() - {"timings"}, {"estimated"} if "no-usage" in name else set())

    def test_every_whole_answer_is_one_event_marked_as_such(self) -> None:
        for name, (api, asked, expected) in WHOLE_ANSWERS.items():
            with self.subTest(name):
                run = self.check(name, api, asked, expected)
                self.assertEqual(run.records.extra[0], {"non_stream": True})

    def test_every_error_is_that_requests_failure_with_status_and_message(self) -> None:
        names = sorted(path.stem for path in CAPTURES.glob("*-error-*.txt"))
        self.assertEqual(len(names), 16)
        for name in names:
            with self.subTest(name):
                run, status = replay(name), load(name).status
                self.assertEqual(verdict_of(run), ("failed", f"http_{status}"))
                self.assertEqual(run.records.extra[0]["status"], status)
                self.assertGreater(len(run.records.extra[0]["message"]), 5)
        self.assertEqual(
            replay("llamacpp-error-context").records.extra[0]["message"],
            "request (2031 tokens) exceeds the available context size (1024 tokens), try increasing it",
        )

    def test_no_captured_answer_is_left_out(self) -> None:
        answers = {path.stem for path in CAPTURES.glob("*.txt") if not any(word in path.stem for word in NO_ANSWERS)}
        errors = {name for name in answers if "-error-" in name}
        self.assertEqual(answers - errors, {*STREAMS, *WHOLE_ANSWERS})


if __name__ == "__main__":
    unittest.main()
