"""Tests of the API table: the exact body of one request per flavour."""

from __future__ import annotations

import doctest
import unittest

from servesim.client import flavour as flavour_module
from servesim.client.flavour import API_FLAVOURS, RequestOptions, find_flavour, text_of
from servesim.errors import InputError

FULL = RequestOptions(model="m", max_tokens=64, min_tokens=8, ignore_eos=True, temperature=0.5)
BODIES = {
    "chat": {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 64,
        "stream_options": {"include_usage": True},
        "model": "m",
        "temperature": 0.5,
        "min_tokens": 8,
        "ignore_eos": True,
        "stream": True,
    },
    "completions": {
        "prompt": "hi",
        "max_tokens": 64,
        "stream_options": {"include_usage": True},
        "model": "m",
        "temperature": 0.5,
        "min_tokens": 8,
        "ignore_eos": True,
        "stream": True,
    },
    "responses": {
        "input": "hi",
        "max_output_tokens": 64,
        "model": "m",
        "temperature": 0.5,
        "min_tokens": 8,
        "ignore_eos": True,
        "stream": True,
    },
    "llamacpp": {"prompt": "hi", "n_predict": 64, "temperature": 0.5, "ignore_eos": True, "stream": True},
    "ollama": {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "options": {"num_predict": 64, "temperature": 0.5},
    },
    "tgi": {"inputs": "hi", "parameters": {"max_new_tokens": 64, "details": True, "temperature": 0.5}},
    "generate": {"prompt": "hi", "max_output_tokens": 64, "temperature": 0.5},
}


class FlavourTest(unittest.TestCase):
    def test_every_flavour_builds_its_body(self) -> None:
        self.assertEqual(set(BODIES), set(API_FLAVOURS))
        for name, body in BODIES.items():
            with self.subTest(api=name):
                self.assertEqual(API_FLAVOURS[name].build_body("hi", FULL), body)

    def test_what_was_not_asked_for_is_not_in_the_body(self) -> None:
        for name, flavour in API_FLAVOURS.items():
            with self.subTest(api=name):
                body = flavour.build_body("hi", RequestOptions())
                self.assertNotIn(None, body.values())
                self.assertFalse({"model", "max_tokens", "temperature", "ignore_eos", "options"} & set(body))

    def test_stream_options_are_only_sent_with_a_stream(self) -> None:
        for name in ("chat", "completions"):
            body = API_FLAVOURS[name].build_body("hi", RequestOptions(stream=False))
            self.assertFalse({"stream", "stream_options"} & set(body))

    def test_an_extra_body_wins_merges_objects_and_a_null_takes_a_field_out(self) -> None:
        extra = {"max_tokens": None, "max_completion_tokens": 9, "stream_options": {"continuous_usage_stats": True}}
        body = API_FLAVOURS["chat"].build_body("hi", RequestOptions(max_tokens=64, extra_body=extra))
        self.assertNotIn("max_tokens", body)
        self.assertEqual(body["max_completion_tokens"], 9)
        self.assertEqual(body["stream_options"], {"include_usage": True, "continuous_usage_stats": True})
        native = API_FLAVOURS["ollama"].build_body("hi", RequestOptions(extra_body={"options": {"num_ctx": 512}}))
        self.assertEqual(native["options"], {"num_ctx": 512})

    def test_messages_reach_a_chat_as_they_are_and_a_text_api_as_text(self) -> None:
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "user"}]
        self.assertEqual(API_FLAVOURS["chat"].build_body(messages, RequestOptions())["messages"], messages)
        self.assertEqual(API_FLAVOURS["completions"].build_body(messages, RequestOptions())["prompt"], "s\n\nu")
        self.assertEqual(text_of("t"), "t")

    def test_tgi_asks_for_greedy_decoding_instead_of_temperature_0(self) -> None:
        body = API_FLAVOURS["tgi"].build_body("hi", RequestOptions(temperature=0.0))
        self.assertEqual(body["parameters"], {"details": True, "do_sample": False})
        chat = API_FLAVOURS["chat"].build_body("hi", RequestOptions(temperature=0.0))
        self.assertEqual(chat["temperature"], 0.0)

    def test_an_unknown_api_is_bad_input_that_names_the_known(self) -> None:
        with self.assertRaisesRegex(InputError, "unknown api 'chatt'"):
            find_flavour("chatt")
        self.assertIs(find_flavour("tgi"), API_FLAVOURS["tgi"])

    def test_every_flavour_says_what_it_is_and_what_it_cannot(self) -> None:
        options = set(RequestOptions.__dataclass_fields__)
        for name, flavour in API_FLAVOURS.items():
            with self.subTest(api=name):
                self.assertEqual(flavour.name, name)
                self.assertTrue(flavour.about)
                self.assertIn(flavour.stream_format, ("sse", "ndjson", "json"))
                self.assertLessEqual(flavour.cannot, options)


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    for module in (flavour_module,):
        tests.addTests(doctest.DocTestSuite(module))
    return tests


if __name__ == "__main__":
    unittest.main()
