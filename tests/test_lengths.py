"""Lengths of prompts and outputs: the exact stream of the golden figures, and the named distributions."""

from __future__ import annotations

import doctest
import random
import statistics
import unittest

from servesim.errors import InputError
from servesim.workload import lengths, seeds
from servesim.workload.lengths import LENGTHS, draw_lengths, parse_lengths
from servesim.workload.traces import fields as times


def draw(text: str, count: int = 4000, seed: int = 7) -> list[int]:
    return list(draw_lengths(count, parse_lengths(text), parse_lengths("1"), seed)[0])


class RangeTest(unittest.TestCase):
    def test_ranges_are_what_two_calls_of_randint_per_request_give(self) -> None:
        for seed in range(50):
            choose = random.Random(seed)
            with self.subTest(seed=seed):
                bounds = []
                for _ in range(2):
                    low = choose.randint(1, 2000)
                    bounds.append((low, low + choose.choice((0, 1, 2, 7, 255, 256, 768, choose.randint(0, 10**6)))))
                rng = random.Random(seed)
                expected = [(rng.randint(*bounds[0]), rng.randint(*bounds[1])) for _ in range(300)]
                prompt, output = (parse_lengths(f"{low}-{high}") for low, high in bounds)
                self.assertEqual(list(zip(*draw_lengths(300, prompt, output, seed), strict=True)), expected)

    def test_the_default_lengths_of_seed_seven(self) -> None:
        prompts, outputs = draw_lengths(4, parse_lengths("256-1024"), parse_lengths("64-256"), 7)
        self.assertEqual(list(prompts), [587, 660, 305, 804])
        self.assertEqual(list(outputs), [102, 230, 82, 88])

    def test_a_fixed_length_is_fixed(self) -> None:
        self.assertEqual(draw("40", 3), [40, 40, 40])

    def test_a_range_next_to_a_distribution_draws_from_the_same_stream(self) -> None:
        prompts, outputs = draw_lengths(100, parse_lengths("256-1024"), parse_lengths("exponential:50"), 7)
        self.assertEqual(prompts[0], 587)
        self.assertNotEqual(len(set(outputs)), 1)

    def test_uniform_is_another_spelling_of_a_range(self) -> None:
        self.assertEqual(draw("uniform:256-1024"), draw("256-1024"))

    def test_units_are_understood(self) -> None:
        self.assertEqual((parse_lengths("1k-2k").low, parse_lengths("1k-2k").high), (1000, 2000))


class DistributionTest(unittest.TestCase):
    def test_means_are_those_asked_for(self) -> None:
        for text, mean in (("lognormal:512:0.8", 512), ("normal:512:50", 512), ("exponential:300", 300)):
            with self.subTest(text=text):
                self.assertAlmostEqual(statistics.mean(draw(text, 20_000)) / mean, 1.0, delta=0.03)

    def test_draws_outside_the_bounds_are_set_to_them(self) -> None:
        for text in ("lognormal:512:2:100-600", "normal:512:500:100-600", "exponential:300:100-600"):
            with self.subTest(text=text):
                drawn = draw(text)
                self.assertEqual((min(drawn), max(drawn)), (100, 600))

    def test_nothing_is_shorter_than_one_token(self) -> None:
        self.assertEqual(min(draw("exponential:1")), 1)

    def test_zipf_makes_its_second_length_two_to_the_exponent_rarer(self) -> None:
        drawn = draw("zipf:1:10-1000", 50_000)
        self.assertAlmostEqual(drawn.count(10) / drawn.count(11), 2.0, delta=0.15)
        self.assertTrue(min(drawn) >= 10 and max(drawn) <= 1000)

    def test_a_zipf_of_exponent_zero_is_uniform(self) -> None:
        self.assertAlmostEqual(statistics.mean(draw("zipf:0:1-100", 20_000)), 50.5, delta=1.0)

    def test_the_same_seed_gives_the_same_lengths(self) -> None:
        for text in ("lognormal:512:0.8", "zipf:1.2:1-99"):
            self.assertEqual(draw(text, 50, seed=3), draw(text, 50, seed=3))
            self.assertNotEqual(draw(text, 50, seed=3), draw(text, 50, seed=4))

    def test_every_kind_can_be_drawn_as_its_usage_says(self) -> None:
        numbers = {"MEAN": "300", "SIGMA": "0.5", "DEVIATION": "20", "EXPONENT": "1.1", "LOW-HIGH": "16-64"}
        for name, kind in LENGTHS.items():
            text = kind.usage.replace("[", "").replace("]", "")
            for word, number in numbers.items():
                text = text.replace(word, number)
            with self.subTest(name=name, text=text):
                self.assertTrue(all(16 <= length <= 64 for length in draw(text, 100)))

    def test_bad_spellings_are_named(self) -> None:
        for text, words in (
            ("0", "prompt_tokens is '0', must be 1 or more"),
            ("-5", "prompt_tokens"),
            ("512-256", "smaller end"),
            ("", "prompt_tokens is ''"),
            ("nan", "unknown distribution of prompt_tokens 'nan'"),
            (True, "prompt_tokens is True"),
            (None, "prompt_tokens is None"),
            ("1e999", "prompt_tokens"),
            ("lognorml:5:1", "did you mean 'lognormal'?"),
            ("lognormal:512", "must be lognormal:MEAN:SIGMA"),
            ("lognormal:512:1:2:3", "must be lognormal:MEAN:SIGMA"),
            ("lognormal:512:99", "sigma between 0 and 10"),
            ("lognormal:nan:1", "prompt_tokens is 'nan'"),
            ("exponential:0", "mean must be 1 or more"),
            ("zipf:1", "must be zipf:EXPONENT:LOW-HIGH"),
            ("zipf:1:1-1000000000", "must span at most"),
            ("uniform:5:6", "must be uniform:LOW-HIGH"),
            ("1-2000000000", "at most 1000000000"),
        ):
            with self.subTest(text=text), self.assertRaises(InputError) as caught:
                parse_lengths(text, "prompt_tokens")
            self.assertIn(words, str(caught.exception))


class DoctestTest(unittest.TestCase):
    def test_the_examples_of_this_room_are_true(self) -> None:
        for module in (lengths, seeds, times):
            with self.subTest(module=module.__name__):
                self.assertEqual(doctest.testmod(module).failed, 0)


if __name__ == "__main__":
    unittest.main()
