"""What the API answers: field by field as the captured servers did, and as the documentation says where they differ."""

from __future__ import annotations

import json
import unittest
from typing import Any

from tests.serve_case import CAPTURES, LiveServer, capture, events, shape

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello there"}]
LIMITED = {"max_model_len": 1024}


class VllmCase(unittest.TestCase):
    """One server for all tests of a class."""

    options: dict[str, Any] = {}  # noqa: RUF012
    engine: dict[str, Any] = LIMITED

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = LiveServer(cls.engine, served_model_name="tiny", **cls.options)
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.__exit__)

    def refused(self, path: str, body: Any) -> tuple[int, Any]:
        status, _, told = self.server.ask("POST", path, body)
        return status, json.loads(told)


class AsVllm(VllmCase):
    def test_whole_answers_have_the_fields_of_vllm_in_their_order(self) -> None:
        for name, path, body in (
            ("vllm-chat.txt", CHAT, {"messages": HELLO, "max_tokens": 4}),
            ("vllm-chat-n2.txt", CHAT, {"messages": HELLO, "max_tokens": 4, "n": 2}),
            ("vllm-chat-max-completion-tokens.txt", CHAT, {"messages": HELLO, "max_completion_tokens": 4}),
            ("vllm-completion.txt", TEXT, {"prompt": "Hello", "max_tokens": 6}),
            ("vllm-completion-token-ids.txt", TEXT, {"prompt": [1, 2, 3, 4, 5, 6], "max_tokens": 4}),
        ):
            with self.subTest(name):
                want = json.loads(capture(name)[2])
                got = self.server.post(path, body)
                self.assertEqual(shape(got), shape(want))
                tokens = body.get("max_tokens", 4) * body.get("n", 1)
                self.assertEqual(got["usage"]["completion_tokens"], tokens)
                self.assertEqual(got["id"].partition("-")[0], want["id"].partition("-")[0])
                self.assertEqual(len(got["choices"]), len(want["choices"]))

    def test_streams_have_the_events_of_vllm(self) -> None:
        usage = {"include_usage": True}
        for name, path, body in (
            ("vllm-chat-stream.txt", CHAT, {"messages": HELLO, "max_tokens": 8, "stream_options": usage}),
            ("vllm-completion-stream.txt", TEXT, {"prompt": "Hello", "max_tokens": 6, "stream_options": usage}),
            (
                "vllm-chat-stream-continuous-usage.txt",
                CHAT,
                {"messages": HELLO, "max_tokens": 3, "stream_options": usage | {"continuous_usage_stats": True}},
            ),
        ):
            with self.subTest(name):
                _, head, want = capture(name)
                status, fields, got = self.server.ask("POST", path, body | {"stream": True})
                self.assertEqual([shape(event) for event in events(got)], [shape(event) for event in events(want)])
                self.assertEqual((status, fields["content-type"]), (200, head["content-type"]))

    def test_refusals_are_vllms_word_for_word(self) -> None:
        hello = {"messages": [{"role": "user", "content": "hi"}], "model": "tiny"}
        words = "word " * 1100
        for name, path, body in (
            ("vllm-error-bad-json.txt", CHAT, b'{"model":"tiny","messages":'),
            ("vllm-error-missing-field.txt", CHAT, {"model": "tiny"}),
            ("vllm-error-model-not-found.txt", CHAT, hello | {"model": "nope"}),
            ("vllm-error-empty-messages.txt", CHAT, hello | {"messages": []}),
            ("vllm-error-empty-prompt.txt", TEXT, {"prompt": ""}),
            ("vllm-error-max-tokens-zero.txt", CHAT, hello | {"max_tokens": 0}),
            ("vllm-error-max-tokens-too-large.txt", CHAT, hello | {"max_tokens": 5000}),
            ("vllm-error-temperature.txt", CHAT, hello | {"temperature": -1}),
            ("vllm-error-stream-options-without-stream.txt", CHAT, hello | {"stream_options": {"include_usage": True}}),
            ("vllm-error-prompt-too-long.txt", CHAT, hello | {"messages": [{"role": "user", "content": words}]}),
            ("vllm-error-completion-prompt-too-long.txt", TEXT, {"prompt": [5] * 1100}),
            ("vllm-error-prompt-equals-max-model-len.txt", TEXT, {"prompt": [5] * 1024}),
        ):
            with self.subTest(name):
                status, _, want = capture(name)
                self.assertEqual(self.refused(path, body), (status, json.loads(want)))

    def test_wrong_paths_and_methods(self) -> None:
        for name, method, path in (
            ("vllm-error-method.txt", "GET", CHAT),
            ("vllm-error-not-found.txt", "GET", "/nope"),
        ):
            status, head, want = capture(name)
            got_status, fields, got = self.server.ask(method, path)
            self.assertEqual((got_status, got, fields.get("allow")), (status, want.strip(), head.get("allow")))

    def test_small_routes_are_vllms(self) -> None:
        for name, path in (("vllm-health.txt", "/health"), ("vllm-ping.txt", "/ping"), ("vllm-load.txt", "/load")):
            status, head, want = capture(name)
            got_status, fields, got = self.server.ask("GET", path)
            self.assertEqual((got_status, got), (status, want.strip()))
            self.assertEqual(fields.get("content-type"), head.get("content-type"))
        for name, path in (("vllm-version.txt", "/version"), ("vllm-models.txt", "/v1/models")):
            got = json.loads(self.server.ask("GET", path)[2])
            self.assertEqual(shape(got), shape(json.loads(capture(name)[2])))

    def test_tokenize_counts_what_a_request_is_charged(self) -> None:
        for text in ("Hello, world", "a\tb  c", "unbelievably long words"):
            counted = self.server.post("/tokenize", {"prompt": text, "return_token_strs": True})
            charged = self.server.post(TEXT, {"prompt": text, "max_tokens": 1})["usage"]["prompt_tokens"]
            self.assertEqual(counted["count"], charged)
            self.assertEqual("".join(counted["token_strs"]), text)
            by_number = self.server.post(TEXT, {"prompt": counted["tokens"], "max_tokens": 1})
            self.assertEqual(by_number["usage"]["prompt_tokens"], charged)
        counted = self.server.post("/tokenize", {"messages": HELLO})
        charged = self.server.post(CHAT, {"messages": HELLO, "max_tokens": 1})["usage"]["prompt_tokens"]
        self.assertEqual(counted["count"], charged)
        want = json.loads(capture("vllm-tokenize.txt")[2])
        self.assertEqual([key for key, _ in shape(counted)], [key for key, _ in shape(want)])

    def test_an_answer_ends_by_itself_unless_it_is_told_not_to(self) -> None:
        ended = self.server.post(CHAT, {"messages": HELLO})
        self.assertEqual(ended["choices"][0]["finish_reason"], "stop")
        self.assertIn(ended["usage"]["completion_tokens"], range(64, 257))
        cut = self.server.post(CHAT, {"messages": HELLO, "max_tokens": 300, "ignore_eos": True})
        self.assertEqual(cut["usage"]["completion_tokens"], 300)
        self.assertEqual(cut["choices"][0]["finish_reason"], "length")
        least = self.server.post(CHAT, {"messages": HELLO, "min_tokens": 280, "max_tokens": 400})
        self.assertGreaterEqual(least["usage"]["completion_tokens"], 280)

    def test_an_output_that_does_not_fit_is_cut_at_the_limit(self) -> None:
        answer = self.server.post(TEXT, {"prompt": [7] * 900, "max_tokens": 1000, "ignore_eos": True})
        self.assertEqual(answer["usage"]["completion_tokens"], 124)
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        short = self.server.post(TEXT, {"prompt": "Hello"})
        self.assertEqual(short["usage"]["completion_tokens"], 16)

    def test_stop_strings_end_an_answer_and_are_told(self) -> None:
        body = {"messages": HELLO, "max_tokens": 400, "ignore_eos": True, "stop": [" the", "nowhere"]}
        choice = self.server.post(CHAT, body)["choices"][0]
        self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", " the"))
        self.assertNotIn(" the", choice["message"]["content"])
        told = events(self.server.ask("POST", CHAT, body | {"stream": True})[2])
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in told if event != "[DONE]")
        self.assertNotIn(" the", text)

    def test_the_same_seed_says_the_same(self) -> None:
        body = {"messages": HELLO, "max_tokens": 30, "seed": 5}
        texts = {self.server.post(CHAT, body)["choices"][0]["message"]["content"] for _ in range(3)}
        self.assertEqual(len(texts), 1)

    def test_several_prompts_and_choices_are_numbered(self) -> None:
        answer = self.server.post(TEXT, {"prompt": ["one", "two three"], "n": 2, "max_tokens": 2})
        self.assertEqual([choice["index"] for choice in answer["choices"]], [0, 1, 2, 3])
        self.assertEqual(answer["usage"], answer["usage"] | {"prompt_tokens": 3, "completion_tokens": 8})

    def test_fields_of_the_wrong_kind_are_named(self) -> None:
        status, told = self.refused(CHAT, {"messages": "hi", "max_tokens": "x", "stream": 3, "n": {}})
        self.assertEqual((status, told["error"]["type"]), (400, "Bad Request"))
        self.assertIn("4 validation errors", told["error"]["message"])
        for body in ([], 3, "x", None):
            self.assertEqual(self.refused(CHAT, json.dumps(body))[0], 400)
        for body in (b"", b"\xff", b"[" * 100_000, b'{"prompt": "\\ud800", "max_tokens": 1, "n": 1e999}'):
            self.assertEqual(self.refused(TEXT, body)[0], 400)
        image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
        self.assertEqual(self.refused(CHAT, {"messages": [image]})[0], 400)

    def test_a_prompt_that_is_too_long_is_refused_in_vllms_words(self) -> None:
        status, told = self.refused(TEXT, {"prompt": [5] * 1100})
        self.assertEqual((status, told["error"]["type"]), (400, "BadRequestError"))
        self.assertIn("maximum context length is 1024 tokens", told["error"]["message"])


class AsVllmBenchAsks(VllmCase):
    """The requests of `vllm bench serve` and its way of reading answers (vllm/benchmarks/lib/endpoint_request_func)."""

    def read(self, path: str, body: Any) -> tuple[str, int]:
        text, tokens = "", 0
        raw = self.server.ask("POST", path, body, {"Authorization": "Bearer None", "Content-Type": "application/json"})[
            2
        ]
        for line in raw.split(b"\n\n"):
            line = line.strip()
            if not line or line.startswith(b":"):
                continue
            chunk = line.decode().removeprefix("data: ")
            if chunk == "[DONE]":
                continue
            data = json.loads(chunk)
            if choices := data.get("choices"):
                text += choices[0].get("text") or (choices[0].get("delta") or {}).get("content") or ""
            elif usage := data.get("usage"):
                tokens = usage["completion_tokens"]
        return text, tokens

    def test_completions(self) -> None:
        body = {"model": "tiny", "prompt": "a b c", "temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": 20}
        body |= {"logprobs": None, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        text, tokens = self.read(TEXT, body)
        self.assertEqual(tokens, 20)
        self.assertEqual(self.server.post("/tokenize", {"prompt": text})["count"], 20)

    def test_chat(self) -> None:
        content = [{"type": "text", "text": "a b c"}]
        body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_completion_tokens": 20}
        body |= {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0.0, "ignore_eos": True}
        text, tokens = self.read(CHAT, body)
        self.assertEqual(tokens, 20)
        self.assertTrue(text)


class Cached(VllmCase):
    engine = LIMITED | {"prefix_caching": True}
    options = {"enable_prompt_tokens_details": True}  # noqa: RUF012

    def cached(self, path: str, body: Any) -> int:
        usage = self.server.post(path, body)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    def test_equal_prompts_and_equal_beginnings_are_found(self) -> None:
        prompt = [*range(100, 200)]
        self.assertEqual(self.cached(TEXT, {"prompt": prompt, "max_tokens": 2}), 0)
        self.assertEqual(self.cached(TEXT, {"prompt": prompt, "max_tokens": 2}), 96)
        self.assertEqual(self.cached(TEXT, {"prompt": prompt[:50] + [1] * 50, "max_tokens": 2}), 48)
        self.assertEqual(self.cached(TEXT, {"prompt": [9, *prompt], "max_tokens": 2}), 0)
        self.assertEqual(self.cached(TEXT, {"prompt": prompt[:96], "max_tokens": 2}), 80)

    def test_the_next_turn_of_a_conversation_finds_the_answer_too(self) -> None:
        talk = [{"role": "user", "content": "tell me something long and dull about nothing at all"}]
        first = self.server.post(CHAT, {"messages": talk, "max_tokens": 100, "ignore_eos": True})
        talk += [first["choices"][0]["message"], {"role": "user", "content": "go on"}]
        known = first["usage"]["prompt_tokens"] + 99  # the last token was never computed
        self.assertEqual(self.cached(CHAT, {"messages": talk, "max_tokens": 5}), known // 16 * 16)

    def test_the_page_counts_hits(self) -> None:
        self.server.post(TEXT, {"prompt": [77] * 64, "max_tokens": 1})
        before = self.server.metric("vllm:prefix_cache_hits_total")
        self.server.post(TEXT, {"prompt": [77] * 65, "max_tokens": 1})
        self.assertEqual(self.server.metric("vllm:prefix_cache_hits_total"), before + 64)


class AsLlamaCpp(VllmCase):
    engine = {"kv_tokens": 4096, "slots": 4}  # noqa: RUF012
    options = {"dialect": "llamacpp"}  # noqa: RUF012

    def test_streams_have_the_events_of_llamacpp(self) -> None:
        chat = {"messages": HELLO, "max_tokens": 4, "stream": True}
        for name, path, body, times in (
            ("llamacpp-chat-stream-no-usage.txt", CHAT, chat, 4),
            ("llamacpp-chat-stream-raw.txt", CHAT, chat | {"stream_options": {"include_usage": True}}, 4),
        ):
            with self.subTest(name):
                want = events(capture(name)[2])
                got = events(self.server.ask("POST", path, body)[2])
                self.assertEqual(len(got), times + 3 + ("raw" in name))
                self.assertEqual([shape(e) for e in (*got[:2], *got[-2:])], [shape(e) for e in (*want[:2], *want[-2:])])

    def test_its_answers_name_the_build_that_its_properties_name(self) -> None:
        build = json.loads(self.server.ask("GET", "/props")[2])["build_info"]
        told = json.loads(self.server.ask("POST", CHAT, {"messages": HELLO, "max_tokens": 1})[2])
        self.assertEqual(told["system_fingerprint"], build)

    def test_its_own_route_streams_without_a_last_word(self) -> None:
        body = {"prompt": "Hi there", "n_predict": 4, "stream": True}
        got = events(self.server.ask("POST", "/completion", body)[2])
        want = events(capture("llamacpp-completion-native-stream.txt")[2])
        self.assertEqual([shape(event) for event in got[:-1]], [shape(event) for event in want[:-1]])
        self.assertLessEqual({*got[-1]}, {*want[-1]})
        self.assertEqual((got[-1]["stop_type"], got[-1]["tokens_predicted"]), ("limit", 4))

    def test_refusals_are_llamacpps(self) -> None:
        status, _, want = capture("llamacpp-error-bad-request.txt")
        self.assertEqual(self.refused(CHAT, {"messages": "x"}), (status, json.loads(want)))
        status, told = self.refused(TEXT, {"prompt": [1] * 2031})
        self.assertEqual(told, json.loads(capture("llamacpp-error-context.txt")[2]))

    def test_a_request_that_fills_its_slot_ends_there(self) -> None:
        answer = self.server.post(TEXT, {"prompt": [1] * 931, "max_tokens": 200, "ignore_eos": True})
        self.assertEqual(answer["usage"]["total_tokens"], 1024)
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")

    def test_models_props_and_slots_are_there(self) -> None:
        want = json.loads((CAPTURES / "llamacpp-models.json").read_text())
        got = json.loads(self.server.ask("GET", "/v1/models")[2])
        self.assertEqual([*got["models"][0]], [*want["models"][0]])
        self.assertEqual([*got["data"][0]], [*want["data"][0]])
        props = json.loads(self.server.ask("GET", "/props")[2])
        self.assertEqual((props["total_slots"], props["default_generation_settings"]["n_ctx"]), (4, 1024))
        slots = json.loads(self.server.ask("GET", "/slots")[2])
        self.assertEqual([slot["is_processing"] for slot in slots], [False] * 4)


if __name__ == "__main__":
    unittest.main()
