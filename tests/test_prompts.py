"""Tests of the prompts: they land on the asked length under any tokenizer, and share only what they are asked to."""

from __future__ import annotations

import doctest
import json
import random
import unittest
from array import array
from collections.abc import Callable
from itertools import takewhile

from servesim.client import prompts
from servesim.client.prompts import (
    WORDS,
    FixedPrompts,
    SyntheticPrompts,
    TokenRate,
    prompt_accuracy,
    read_prompts,
    serial_words,
)
from servesim.errors import InputError
from servesim.workload.requests import OPEN_END, Content, Requests
from tests.extent import seeds

TOKENIZERS: dict[str, Callable[[str], int]] = {
    "one token a word": lambda text: len(text.split()) + 31,
    "bytes": lambda text: len(text) + 12,
    "no template": lambda text: len(text.split()),
    "one word in 64 is split": lambda text: len(text.split()) + text.split().count("tell") + 9,
    "three words in four tokens": lambda text: len(text.split()) * 4 // 3 + 5,
}


def requests_of(lengths: list[int], content: list[Content] | None = None) -> Requests:
    requests = Requests()
    requests.prompt_tokens = array("q", lengths)
    requests.output_tokens = array("q", [1] * len(lengths))
    requests.arrival_s = array("d", [0.0] * len(lengths))
    requests.content = content
    return requests


def shared_words(one: list[str], other: list[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class LandingTest(unittest.TestCase):
    def test_two_warm_up_requests_teach_any_tokenizer(self) -> None:
        for name, count in TOKENIZERS.items():
            for seed in seeds(50):
                stream = random.Random(seed)
                lengths = [stream.randint(64, 1024) for _ in range(40)]
                rate = TokenRate()
                warmup = SyntheticPrompts(requests_of([max(lengths) // 2, max(lengths)]), rate, salt=f"{seed}")
                for index in range(2):
                    warmup.learn(index, count(warmup.prompt(index)))
                source = SyntheticPrompts(requests_of(lengths), rate, salt=f"{seed}", first_serial=2)
                counted = [count(source.prompt(index)) for index in range(len(lengths))]
                with self.subTest(tokenizer=name, seed=seed):
                    accuracy = prompt_accuracy(lengths, counted)
                    assert accuracy is not None
                    self.assertGreaterEqual(accuracy.within_tolerance, 0.95, accuracy)

    def test_one_length_is_enough_for_one_token_a_word(self) -> None:
        rate = TokenRate()
        rate.learn(40, 71)
        self.assertEqual((rate.overhead, rate.per_word), (31.0, 1.0))

    def test_one_length_tells_bytes_from_a_template(self) -> None:
        rate = TokenRate()
        rate.learn(100, 511)
        self.assertEqual(rate.words_for(511), 100)
        self.assertAlmostEqual(rate.per_word, 5.11)

    def test_a_server_that_does_not_count_the_prompt_teaches_nothing(self) -> None:
        rate = TokenRate()
        rate.learn(100, 0)
        self.assertFalse(rate.learned)
        rate.learn(100, 131)
        rate.learn(400, 1)  # all but one token came from its cache
        self.assertEqual(rate.words_for(131), 100)

    def test_usage_that_comes_late_belongs_to_the_text_that_was_sent(self) -> None:
        rate = TokenRate()
        source = SyntheticPrompts(requests_of([100, 300]), rate, salt="s")
        texts = [source.prompt(0), source.prompt(1)]
        for index, text in enumerate(texts):
            source.learn(index, len(text.split()) + 20)
        self.assertEqual((rate.overhead, rate.per_word), (20.0, 1.0))

    def test_a_prompt_is_never_empty(self) -> None:
        source = SyntheticPrompts(requests_of([1]), TokenRate(overhead=30.0), salt="s")
        self.assertEqual(len(source.prompt(0).split()), 1)

    def test_accuracy_leaves_out_what_was_not_counted(self) -> None:
        accuracy = prompt_accuracy([100, 100, 1000, 1000], [102, 0, 1010, 1011])
        assert accuracy is not None
        self.assertEqual((accuracy.count, accuracy.max_error_tokens), (3, 11))
        self.assertAlmostEqual(accuracy.within_tolerance, 2 / 3)
        self.assertIsNone(prompt_accuracy([5], [0]))


class SharingTest(unittest.TestCase):
    def test_words_are_distinct_and_of_one_length(self) -> None:
        self.assertEqual((len(WORDS), len(set(WORDS)), {len(word) for word in WORDS}), (64, 64, {4}))

    def test_requests_of_a_run_differ_and_neighbours_from_the_first_word_on(self) -> None:
        source = SyntheticPrompts(requests_of([50] * 500), TokenRate(), salt="s")
        texts = [source.prompt(index) for index in range(500)]
        self.assertEqual(len(set(texts)), 500)
        self.assertTrue(all(a.split()[0] != b.split()[0] for a, b in zip(texts, texts[1:], strict=False)))

    def test_short_prompts_are_unique_too(self) -> None:
        source = SyntheticPrompts(requests_of([2] * 1000), TokenRate(), salt="s")
        self.assertEqual(len({source.prompt(index) for index in range(1000)}), 1000)
        self.assertEqual(serial_words(64), [WORDS[0], WORDS[1]])

    def test_another_salt_or_phase_gives_other_texts_and_the_same_gives_the_same(self) -> None:
        requests = requests_of([40])
        first = SyntheticPrompts(requests, TokenRate(), salt="a").prompt(0)
        self.assertEqual(first, SyntheticPrompts(requests, TokenRate(), salt="a").prompt(0))
        self.assertNotEqual(first, SyntheticPrompts(requests, TokenRate(), salt="b").prompt(0))
        self.assertNotEqual(first, SyntheticPrompts(requests, TokenRate(), salt="a", first_serial=1).prompt(0))

    def test_shared_segments_are_shared_to_the_token_and_no_further(self) -> None:
        rate = TokenRate(overhead=10.0, per_word=1.0)
        content: list[Content] = [((7, 74),), ((7, 74),), ((8, 74),), ((7, 74), (9, 84)), ((7, 30),)]
        source = SyntheticPrompts(requests_of([110] * 5, content), rate, salt="s")
        words = [source.prompt(index).split() for index in range(5)]
        self.assertEqual([len(each) for each in words], [100] * 5)
        self.assertEqual(shared_words(words[0], words[1]), 64)  # 74 tokens, of which 10 are the template
        self.assertEqual(shared_words(words[0], words[2]), 0)
        self.assertEqual(shared_words(words[0], words[3]), 64)
        self.assertIn(shared_words(words[0], words[4]), (20, 21))  # one in 64 own words is the same by chance

    def test_a_sessions_next_turn_repeats_the_earlier_one(self) -> None:
        content: list[Content] = [((3, OPEN_END),), ((3, OPEN_END),)]
        source = SyntheticPrompts(requests_of([50, 90], content), TokenRate(), salt="s")
        self.assertEqual(source.prompt(1).split()[:50], source.prompt(0).split())

    def test_a_shared_head_longer_than_the_prompt_is_cut(self) -> None:
        source = SyntheticPrompts(requests_of([20], [((1, 100),)]), TokenRate(), salt="s")
        self.assertEqual(len(source.prompt(0).split()), 20)


class GivenTest(unittest.TestCase):
    def test_prompts_go_round(self) -> None:
        fixed = FixedPrompts(("a", "b"))
        self.assertEqual([fixed.prompt(index) for index in range(3)], ["a", "b", "a"])
        fixed.learn(0, 5)

    def test_a_file_of_prompts_is_read(self) -> None:
        lines = [
            '{"prompt": "Why is the sky blue?", "output_tokens": 32}\n',
            "\n",
            '{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}\n',
            '"just text"\n',
        ]
        given = read_prompts(lines, "p.jsonl")
        self.assertEqual([each.output_tokens for each in given], [32, 8, None])
        self.assertEqual(given[1].prompt, [{"role": "user", "content": "hi"}])
        self.assertEqual(given[2].prompt, "just text")

    def test_a_bad_line_is_named_with_file_line_and_field(self) -> None:
        for row, part in (
            ("{", r"p:2: not JSON"),
            ('{"messages": [' + "[" * 100_000, r"p:2: not JSON: maximum recursion depth"),
            ('{"messages": [{"seed": NaN}]}', r"p:2: not JSON: NaN is no JSON number"),
            ("7", r"p:2: must be a JSON object"),
            ("{}", r"p:2: needs 'prompt'"),
            ('{"prompt": ""}', r"p:2: needs 'prompt'"),
            ('{"prompt": 3}', r"p:2: needs 'prompt'"),
            ('{"messages": []}', r"p:2: needs 'prompt'"),
            ('{"prompt": "a", "output_tokens": 0}', r"p:2: output_tokens is 0"),
            ('{"prompt": "a", "output_tokens": true}', r"p:2: output_tokens is true"),
            ('{"prompt": "a", "max_tokens": "9"}', r'p:2: output_tokens is "9"'),
        ):
            with self.subTest(row=row), self.assertRaisesRegex(InputError, part):
                read_prompts([json.dumps({"prompt": "fine"}), row], "p")
        with self.assertRaisesRegex(InputError, "p holds no prompt"):
            read_prompts(["\n"], "p")


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    tests.addTests(doctest.DocTestSuite(prompts))
    return tests


if __name__ == "__main__":
    unittest.main()
