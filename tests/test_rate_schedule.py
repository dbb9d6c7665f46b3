"""Rates that change with time: the counts that the integral promises, steady schedules as steady rates, files."""

from __future__ import annotations

import unittest
from bisect import bisect_right
from pathlib import Path
from tempfile import TemporaryDirectory

from servesim import simulate
from servesim.errors import InputError
from servesim.workload.arrivals import RateSchedule, draw_arrivals, draw_scheduled, read_schedule, schedule_of
from tests.command import servesim
from tests.extent import once, seeds

ROOT = Path(__file__).resolve().parent.parent
DAY = RateSchedule((0.0, 100.0, 300.0, 400.0), (2.0, 10.0, 10.0, 2.0))


class Rescaling(unittest.TestCase):
    def test_evenly_spaced_arrivals_come_where_the_integral_is_a_whole_number(self) -> None:
        times = draw_scheduled("constant", DAY, seed=1)
        self.assertEqual(len(times), round(DAY.requests) + 1)
        for number, at in enumerate(times):
            if at <= 100.0:
                self.assertAlmostEqual(2 * at + 0.04 * at * at, number, places=6)
            elif at <= 300.0:
                self.assertAlmostEqual(600 + 10 * (at - 100.0), number, places=6)

    def test_a_schedule_that_never_changes_is_the_steady_process(self) -> None:
        flat = RateSchedule((0.0, 50.0, 1000.0), (3.0, 3.0, 3.0))
        for kind in ("poisson", "gamma", "constant"):
            burstiness = 0.5 if kind == "gamma" else 1.0
            scheduled = draw_scheduled(kind, flat, seed=7, count=5000, burstiness=burstiness)
            steady = draw_arrivals(kind, rate=3.0, seed=7, count=5000, burstiness=burstiness)
            for here, there in zip(scheduled, steady, strict=True):
                self.assertAlmostEqual(here, there, places=6)

    @once
    def test_poisson_counts_have_the_mean_and_the_variance_of_the_integral(self) -> None:
        windows = ((0.0, 50.0, 200.0), (100.0, 200.0, 1000.0), (350.0, 400.0, 200.0))
        counts: dict[float, list[int]] = {begin: [] for begin, _, _ in windows}
        for seed in seeds(300):
            times = draw_scheduled("poisson", DAY, seed=seed)
            self.assertEqual(list(times), sorted(times))
            for begin, end, _ in windows:
                counts[begin].append(bisect_right(times, end) - bisect_right(times, begin))
        for begin, _, expected in windows:
            seen = counts[begin]
            mean = sum(seen) / len(seen)
            variance = sum((count - mean) ** 2 for count in seen) / (len(seen) - 1)
            self.assertAlmostEqual(mean / expected, 1.0, delta=0.02)
            self.assertAlmostEqual(variance / expected, 1.0, delta=0.3)

    def test_it_begins_anew_behind_its_last_row(self) -> None:
        times = draw_scheduled("constant", DAY, seed=1, count=5001)
        once = round(DAY.requests)
        for number in range(0, 5001 - once, 97):
            self.assertAlmostEqual(times[number] + 400.0, times[number + once], places=5)

    def test_nobody_comes_while_the_rate_is_0(self) -> None:
        quiet = RateSchedule((0.0, 10.0, 10.5, 50.0, 50.5, 60.0), (5.0, 5.0, 0.0, 0.0, 5.0, 5.0))
        times = draw_scheduled("poisson", quiet, seed=3, count=500)
        self.assertFalse([at for at in times if 10.5 < at % 60.0 < 50.0])
        self.assertEqual(len(times), 500)


class Files(unittest.TestCase):
    def read(self, text: str) -> RateSchedule:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "rates.csv"
            path.write_text(text, encoding="utf-8")
            return read_schedule(str(path))

    def test_times_have_units_names_and_comments_are_left_out(self) -> None:
        found = self.read("# a day\ntime,rate\n0,1.5\n\n90s, 2\n1h,0\n")
        self.assertEqual(found, RateSchedule((0.0, 90.0, 3600.0), (1.5, 2.0, 0.0)))

    def test_what_is_wrong_is_told_with_its_line(self) -> None:
        for text, words in (
            ("0,1\n5,x\n", "rates.csv:2: rate"),
            ("0,1\n5,1,2\n", "rates.csv:2:"),
            ("0,1\n5 parsecs,1\n", "rates.csv:2: time"),
            ("0,1\n", "two rows"),
            ("1,1\n2,1\n", "time 0"),
            ("0,1\n5,1\n5,2\n", "must rise"),
            ("0,-1\n5,1\n", "rates.csv:1: rate"),
            ("0,0\n5,0\n", "0 throughout"),
            ("", "two rows"),
        ):
            with self.subTest(text=text), self.assertRaises(InputError) as caught:
                self.read(text)
            self.assertIn(words, str(caught.exception))
        with self.assertRaisesRegex(InputError, "^cannot read rate schedule '/no/such': no such file"):
            read_schedule("/no/such")

    def test_the_curve_of_a_trace_expects_as_many_requests_at_the_same_times(self) -> None:
        times = draw_scheduled("poisson", DAY, seed=5, count=20_000)
        curve = schedule_of(times, 20.0)
        self.assertAlmostEqual(curve.requests, 20_000)
        for number in range(6, 15):
            self.assertAlmostEqual(curve.rates[number] / 10.0, 1.0, delta=0.2)

    def test_trace_rates_writes_what_rate_schedule_reads(self) -> None:
        said = servesim("trace", "rates", str(ROOT / "fixtures/burst.jsonl"), "--every", "500ms", "--quiet")
        self.assertEqual(said.code, 0)
        self.assertAlmostEqual(self.read(said.out).requests, 48, delta=0.01)

    def test_the_day_in_fixtures_has_half_a_million_requests(self) -> None:
        day = read_schedule(str(ROOT / "fixtures/day.csv"))
        self.assertEqual(day.span_s, 86_400.0)
        self.assertAlmostEqual(day.requests / 500_000, 1.0, delta=0.01)
        self.assertGreater(day.peak / min(day.rates), 8.0)

    def test_a_run_follows_its_schedule_once_through_or_as_far_as_it_is_asked(self) -> None:
        path = str(ROOT / "fixtures/spike.csv")
        once = simulate(rate_schedule=path, output_tokens="1", prompt_tokens="10")
        self.assertTrue(1000 < once.records.sent_s[-1] <= 1080)
        few = simulate(rate_schedule=path, output_tokens="1", prompt_tokens="10", requests=50)
        self.assertEqual(few.records.sent_s, once.records.sent_s[:50])
        short = simulate(rate_schedule=path, output_tokens="1", prompt_tokens="10", duration_s=60.0)
        self.assertEqual(short.records.sent_s, once.records.sent_s[: len(short.records)])
        self.assertAlmostEqual(len(short.records) / 1200, 1.0, delta=0.1)


if __name__ == "__main__":
    unittest.main()
