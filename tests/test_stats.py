from __future__ import annotations

import doctest
import math
import random
import unittest
from array import array
from fractions import Fraction

from servesim import stats
from servesim.stats import PERCENTILES, Tally, Values, Weighted, describe, nearest_rank
from tests.extent import once, seeds


def textbook_rank(percentile: str, count: int) -> int:
    """The smallest rank r with 100 r / count >= percentile, found by trying them all."""
    exact = Fraction(percentile) * count / 100
    return next(r for r in range(1, count + 1) if r * exact.denominator >= exact.numerator)


class Ranks(unittest.TestCase):
    @once
    def test_a_rank_is_the_textbooks_at_every_count(self):
        for count in [*range(1, 220), 1000, 2000, 9999, 10_000]:
            for percentile in ("0.1", "25", "50", "90", "95", "99", "99.9", "99.99", "100"):
                with self.subTest(count=count, percentile=percentile):
                    self.assertEqual(nearest_rank(float(percentile), count), textbook_rank(percentile, count))

    def test_a_large_count_is_not_rounded(self):
        self.assertEqual(nearest_rank(99.9, 160_000_000_000), 159_840_000_000)

    def test_the_examples_hold(self):
        self.assertEqual(doctest.testmod(stats).failed, 0)


class Samples(unittest.TestCase):
    def test_no_data_is_none(self):
        for sample in (Values([]), Values([math.nan]), Tally({}), Weighted({}), Weighted({1: array("d")})):
            self.assertIsNone(describe(sample))

    def test_one_value_is_every_percentile(self):
        described = describe(Values([0.25]), 1000)
        assert described is not None
        self.assertEqual({getattr(described, name) for name in (*PERCENTILES, "min", "max", "mean")}, {250.0})

    def test_unknown_values_are_left_out(self):
        sample = Values([3.0, math.nan, 1.0])
        self.assertEqual((sample.count, sample.total(), sample.at(1), sample.at(2)), (2, 4.0, 1.0, 3.0))

    def test_a_total_does_not_depend_on_the_order(self):
        values = [1e16, 1.0, -1e16, 0.1] * 25
        for seed in range(20):
            random.Random(seed).shuffle(values)
            self.assertEqual(Values(values[:]).total(), math.fsum([1.0, 0.1] * 25))

    def test_a_tally_is_the_list_it_counts(self):
        for seed in range(100):
            rng = random.Random(seed)
            counts = {rng.randint(0, 50): rng.randint(1, 5) for _ in range(rng.randint(1, 10))}
            plain = Values([float(value) for value, count in counts.items() for _ in range(count)])
            with self.subTest(seed=seed):
                self.assertEqual(describe(Tally(counts)), describe(plain))

    def test_weighted_groups_are_the_list_they_stand_for(self):
        for seed in seeds(200):
            rng = random.Random(seed)
            groups = {
                weight: array("d", [rng.choice([0.0, -0.5, 5e-324, rng.random()]) for _ in range(rng.randint(0, 6))])
                for weight in rng.sample(range(1, 9), rng.randint(1, 5))
            }
            every = sorted(value for weight, values in groups.items() for value in values for _ in range(weight))
            sample = Weighted(groups)
            with self.subTest(seed=seed):
                self.assertEqual(sample.count, len(every))
                self.assertEqual([sample.at(rank) for rank in range(1, len(every) + 1)], every)
                self.assertAlmostEqual(sample.total(), math.fsum(every), places=12)


if __name__ == "__main__":
    unittest.main()
