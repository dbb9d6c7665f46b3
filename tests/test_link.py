"""The link by itself: first come first served, in one queue or in one for every pair."""

from __future__ import annotations

import math
import random
import unittest

from servesim.catalog.models import load_model
from servesim.errors import InputError
from servesim.fleet.disaggregation import Link


class Carrying(unittest.TestCase):
    def test_two_thousand_tokens_of_llama_8b_take_10_5_ms_over_25_gb_a_second(self) -> None:
        kv_bytes = 2000 * load_model("llama-3.1-8b").kv_bytes_per_token()
        _, arrived_s = Link(bytes_per_s=25e9).carry(0, 1, kv_bytes, 0.0)
        self.assertAlmostEqual(arrived_s, 10.5e-3, delta=0.05e-3)
        self.assertEqual(kv_bytes, 262_144_000)

    def test_one_link_serves_transfers_in_their_order(self) -> None:
        link = Link(bytes_per_s=100.0)
        self.assertEqual(link.carry(0, 2, 200, 1.0), (1.0, 3.0))
        self.assertEqual(link.carry(1, 3, 100, 1.5), (3.0, 4.0))  # waits, whoever sends it
        self.assertEqual(link.carry(0, 2, 100, 9.0), (9.0, 10.0))
        self.assertEqual((link.moved_bytes, link.transfers, link.busy_s), (400, 3, 4.0))

    def test_pairs_do_not_wait_for_each_other(self) -> None:
        link = Link(bytes_per_s=100.0, scope="pair")
        self.assertEqual(link.carry(0, 2, 200, 0.0), (0.0, 2.0))
        self.assertEqual(link.carry(0, 3, 200, 0.0), (0.0, 2.0))
        self.assertEqual(link.carry(0, 2, 100, 0.0), (2.0, 3.0))

    def test_latency_delays_and_keeps_nothing_busy(self) -> None:
        link = Link(bytes_per_s=100.0, latency_s=5.0)
        self.assertEqual([link.carry(0, 1, 100, 0.0)[1] for _ in range(3)], [6.0, 7.0, 8.0])
        self.assertEqual(link.busy_s, 3.0)

    def test_an_infinite_link_takes_no_time(self) -> None:
        self.assertEqual(Link(bytes_per_s=math.inf).carry(0, 1, 10**15, 3.0), (3.0, 3.0))

    def test_the_last_byte_waits_for_what_is_still_being_computed(self) -> None:
        link = Link(bytes_per_s=100.0)
        self.assertEqual(link.carry(0, 1, 100, 0.0, last_s=4.0), (0.0, 4.0))
        self.assertEqual(link.carry(0, 1, 100, 0.0, last_s=4.0), (4.0, 5.0))

    def test_never_carries_more_than_its_bandwidth(self) -> None:
        rng = random.Random(3)
        link = Link(bytes_per_s=50.0, scope="pair")
        ended: dict[tuple[int, int], float] = {}
        now = 0.0
        for _ in range(500):
            now += rng.expovariate(1.0)
            pair, size = (rng.randrange(2), rng.randrange(2)), rng.randint(0, 200)
            started_s, arrived_s = link.carry(*pair, size, now)
            self.assertGreaterEqual(started_s, max(now, ended.get(pair, 0.0)))
            self.assertAlmostEqual(arrived_s - started_s, size / 50.0)
            ended[pair] = arrived_s

    def test_what_cannot_be_is_refused(self) -> None:
        for wrong in ({"bytes_per_s": 0.0}, {"bytes_per_s": -1.0}, {"bytes_per_s": math.nan}):
            with self.assertRaisesRegex(InputError, "must be above 0"):
                Link(**wrong)
        with self.assertRaisesRegex(InputError, "latency"):
            Link(bytes_per_s=1.0, latency_s=-1.0)
        with self.assertRaisesRegex(InputError, "did you mean 'shared'"):
            Link(bytes_per_s=1.0, scope="share")
        with self.assertRaisesRegex(InputError, "did you mean 'layer'"):
            Link(bytes_per_s=1.0, overlap="layers")


if __name__ == "__main__":
    unittest.main()
