"""What the load generator says about itself, from notes made by hand."""

from __future__ import annotations

import unittest

from servesim.client.health import (
    Health,
    Lags,
    achieved_concurrency,
    coalesced_fraction,
    median_gap_s,
    rates,
    report_health,
)
from tests.runs import measured


class LagsTest(unittest.TestCase):
    def test_a_percentile_is_the_upper_edge_of_its_bucket_and_never_above_the_longest(self) -> None:
        lags = Lags()
        self.assertIsNone(lags.percentile(99))
        for _ in range(99):
            lags.add(0.00012)
        lags.add(0.0123)
        self.assertAlmostEqual(lags.percentile(99), 0.00015)
        self.assertEqual(lags.percentile(100), 0.0123)
        lags.add(7.0)
        self.assertEqual(lags.percentile(100), 7.0)

    def test_negative_delays_of_skewed_clocks_count_as_none(self) -> None:
        lags = Lags()
        lags.add(-1e-6)
        self.assertEqual(lags.percentile(50), 0.0)

    def test_merged_lags_are_those_of_both(self) -> None:
        one, other = Lags(), Lags()
        one.add(0.001)
        other.add(0.5)
        one.merge(other)
        self.assertEqual(one.percentile(100), 0.5)


class VerdictTest(unittest.TestCase):
    def setUp(self) -> None:
        self.run_of_10_ms = measured(*({"sent": 0.0, "times": [0.02, 0.03, 0.04], "end": 0.05} for _ in range(3)))

    def test_the_largest_of_three_bounds_is_held_against_the_median_tpot(self) -> None:
        for name in ("turn_bound", "heartbeat", "kernel_delay"):
            for delay_s, verdict in ((0.0029, "ok"), (0.0052, "marginal"), (0.0105, "saturated")):
                with self.subTest(name=name, delay_s=delay_s):
                    health = Health()
                    health.turn_bound.add(0.0001)
                    getattr(health, name).add(delay_s)
                    report = report_health(health, self.run_of_10_ms, concurrency=3)
                    self.assertEqual(report["verdict"], verdict)

    def test_nothing_completed_gives_no_verdict(self) -> None:
        health = Health()
        health.heartbeat.add(0.001)
        report = report_health(health, measured({"times": [], "outcome": 2, "reason": "connect"}), concurrency=1)
        self.assertIsNone(report["verdict"])

    def test_answers_of_one_piece_are_held_against_their_latency(self) -> None:
        run = measured({"sent": 1.0, "times": [3.0], "tokens": 1})
        self.assertEqual(median_gap_s(run), 2.0)

    def test_streams_that_were_read_in_one_piece_are_held_against_their_latency_too(self) -> None:
        run = measured(*({"sent": 0.0, "times": [0.5] * 4, "end": 0.5} for _ in range(3)))
        for delay_s, verdict in ((0.001, "ok"), (0.2, "marginal"), (0.6, "saturated")):
            health = Health()
            health.turn_bound.add(delay_s)
            self.assertEqual(report_health(health, run, concurrency=3)["verdict"], verdict)


class CountsTest(unittest.TestCase):
    def test_events_of_one_stamp_in_one_answer_are_coalesced(self) -> None:
        run = measured({"times": [1.0, 1.0, 1.0, 2.0]}, {"times": [2.0, 2.0]})
        self.assertEqual(coalesced_fraction(run), 3 / 6)
        self.assertIsNone(coalesced_fraction(measured({"times": []})))

    def test_rates_are_those_of_the_plan_and_of_what_was_sent(self) -> None:
        run = measured(*({"planned": 0.5 * k, "sent": 1.0 * k, "times": [9.0]} for k in range(5)))
        self.assertEqual(rates(run), (2.0, 1.0))
        self.assertEqual(rates(measured({"times": [1.0]})), (None, None))
        self.assertEqual(report_health(Health(), run, concurrency=None)["rate"], {"asked": 2.0, "achieved": 1.0})
        self.assertIsNone(report_health(Health(), run, concurrency=5)["rate"]["asked"])

    def test_concurrency_is_the_mean_over_time_and_the_most_at_once(self) -> None:
        run = measured(
            {"sent": 0.0, "times": [1.0], "end": 2.0},
            {"sent": 1.0, "times": [2.0], "end": 3.0},
            {"sent": 3.0, "times": [3.5], "end": 4.0},
        )
        self.assertEqual(achieved_concurrency(run), (5.0 / 4.0, 2))

    def test_processes_add_up(self) -> None:
        one, other = Health(cpu_s=1.0, wall_s=4.0, stale_reconnects=1), Health(cpu_s=2.0, wall_s=5.0, processes=2)
        one.merge(other)
        self.assertEqual((one.cpu_s, one.wall_s, one.stale_reconnects, one.processes), (3.0, 5.0, 1, 3))


if __name__ == "__main__":
    unittest.main()
