"""Tests of the search for the highest load that meets the SLOs."""

from __future__ import annotations

import doctest
import math
import random
import unittest
from collections.abc import Callable

from servesim.errors import InputError
from servesim.plan import search
from servesim.plan.search import Limit, ProbeOutcome, Search
from tests.extent import seeds


def edge_at(limit: float) -> Callable[[float], tuple[ProbeOutcome, float]]:
    """Return a probe without noise whose loads up to `limit` meet."""
    return lambda load: (ProbeOutcome.MET if load <= limit else ProbeOutcome.MISSED, load)


class SearchTest(unittest.TestCase):
    def test_a_whole_edge_is_found_exactly(self) -> None:
        for edge in (1, 2, 3, 7, 8, 9, 100, 1023):
            with self.subTest(edge=edge):
                found = Search(probe=edge_at(edge), start=8, whole=True, votes=1, resolution=0.0).run()
                self.assertEqual((found.load, found.next_load, found.limit), (edge, edge + 1, Limit.SLO))
                self.assertEqual(found.result, edge)

    def test_a_rate_is_found_within_the_resolution(self) -> None:
        for seed in seeds(200):
            edge = math.exp(random.Random(seed).uniform(-3.5, 6))
            with self.subTest(seed=seed, edge=edge):
                found = Search(probe=edge_at(edge), start=1.0, votes=1, resolution=0.02).run()
                assert found.load is not None and found.next_load is not None
                self.assertLessEqual(found.load, edge)
                self.assertGreater(found.next_load, edge)
                self.assertLessEqual(found.next_load, found.load * 1.02 + 1e-9)

    def test_nothing_meets(self) -> None:
        whole = Search(probe=edge_at(0), start=8, whole=True, votes=3).run()
        self.assertEqual((whole.load, whole.next_load, whole.result), (None, 1, None))
        self.assertEqual([probe.load for probe in whole.probes], [8, 4, 2, 1, 1])
        rate = Search(probe=edge_at(0), start=1.0, votes=1).run()
        self.assertIsNone(rate.load)
        self.assertEqual([probe.load for probe in rate.probes], [0.5**halvings for halvings in range(7)])

    def test_everything_meets_up_to_the_maximum(self) -> None:
        found = Search(probe=edge_at(math.inf), start=1, whole=True, maximum=100, votes=1).run()
        self.assertEqual((found.load, found.next_load, found.limit), (100, None, Limit.MAXIMUM))

    def test_a_saturated_client_bounds_the_search_and_is_named(self) -> None:
        def probe(load: float) -> tuple[ProbeOutcome, None]:
            return (ProbeOutcome.DISCARDED if load > 40 else ProbeOutcome.MET), None

        found = Search(probe=probe, start=1, whole=True, votes=3, resolution=0.0).run()
        self.assertEqual((found.load, found.next_load, found.limit), (40, 41, Limit.CLIENT))

    def test_loads_at_the_edge_are_asked_again_and_others_are_not(self) -> None:
        found = Search(probe=edge_at(20), start=8, whole=True, votes=3, resolution=0.0).run()
        asked = [probe.load for probe in found.probes]
        self.assertEqual((asked.count(20), asked.count(21)), (2, 2))
        self.assertEqual(
            {load: asked.count(load) for load in asked if load not in (20, 21)}, {8: 1, 16: 1, 32: 1, 24: 1, 22: 1}
        )

    def test_one_lucky_probe_does_not_decide(self) -> None:
        lucky = {32: [ProbeOutcome.MET]}  # the first time only

        def probe(load: float) -> tuple[ProbeOutcome, None]:
            answers = lucky.get(int(load))
            return (answers.pop() if answers else edge_at(20)(load)[0]), None

        found = Search(probe=probe, start=8, maximum=32, whole=True, votes=3, resolution=0.0).run()
        self.assertEqual(found.load, 20)

    def test_noise_near_the_edge_moves_the_answer_by_little(self) -> None:
        for seed in seeds(200):
            stream = random.Random(seed)

            def probe(load: float, stream: random.Random = stream) -> tuple[ProbeOutcome, None]:
                return (ProbeOutcome.MET if load * stream.gauss(1, 0.03) <= 64 else ProbeOutcome.MISSED), None

            with self.subTest(seed=seed):
                found = Search(probe=probe, start=4, whole=True).run()
                assert found.load is not None
                self.assertTrue(56 <= found.load <= 72, found.load)
                self.assertLess(len(found.probes), 60)

    def test_the_number_of_probes_is_bounded(self) -> None:
        found = Search(probe=edge_at(1000), start=1, whole=True, votes=1, max_probes=4).run()
        self.assertEqual((found.load, found.limit, len(found.probes)), (8, Limit.PROBES, 4))

    def test_every_probe_is_told_as_it_ends(self) -> None:
        told: list[float] = []
        Search(probe=edge_at(2), start=1, whole=True, votes=1, on_probe=lambda probe: told.append(probe.load)).run()
        self.assertEqual(told, [1, 2, 4, 3])

    def test_senseless_limits_are_refused(self) -> None:
        for wrong in ({"start": 0}, {"start": 9, "maximum": 8}, {"votes": 2}, {"max_probes": 0}, {"resolution": -1.0}):
            with self.subTest(wrong=wrong), self.assertRaises(InputError):
                Search(probe=edge_at(1), **wrong)


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    for module in (search,):
        tests.addTests(doctest.DocTestSuite(module))
    return tests


if __name__ == "__main__":
    unittest.main()
