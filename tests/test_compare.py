"""What `compare` says of two runs: intervals that cover, verdicts, gates, and when it cannot tell."""

from __future__ import annotations

import math
import random
import unittest
from functools import cache, partial
from typing import Any

from servesim.comparison.compare import Comparison, Side, compare, difference_interval, relative_interval
from servesim.comparison.gate import PASSED, TRIPPED, judge, parse_gate, parse_gates
from servesim.comparison.interval import Interval, NoInterval, RunNoise, half_width, long_run_variance, stretches
from servesim.errors import InputError
from servesim.fleet.simulate import simulate
from servesim.report.comparison import CANNOT_TELL
from servesim.stats import STUDENT_T_95, STUDENT_T_97_5
from servesim.summary.summary import summarize
from tests.coverage_of_compare import coverage, estimates
from tests.extent import in_full, once, seeds
from tests.runs import measured, random_simulated


@cache
def side(seed: int = 1, *, records: bool = True, **options: Any) -> Side:
    """Return a run of 1,500 short requests, closed at 8 where `options` say nothing else."""
    load = {"requests": 1500, "prompt_tokens": "50-500", "output_tokens": "10-60"}
    run = simulate(seed=seed, **{**load, **options})
    summary = summarize(run).as_dict()
    return Side(
        label=f"seed {seed}",
        command="simulate",
        source=run.source,
        partial=run.partial,
        config=run.config,
        summary=summary,
        run=run if records else None,
    )


@cache
def slower() -> Comparison:
    return compare(side(1), side(2, mbu=0.5))


@once
class Noise(unittest.TestCase):
    def test_the_interval_of_a_mean_of_correlated_values_covers_in_nine_of_ten(self) -> None:
        """AR(1) with a correlation time of 10 values: single values taken as independent would cover in 4 of 10."""
        rng, covered, runs = random.Random(5), 0, 300
        for _ in range(runs):
            value, values = rng.gauss(0, 1), []
            for _ in range(3000):
                value = 0.9 * value + math.sqrt(1 - 0.81) * rng.gauss(0, 1)
                values.append(value)
            mean = sum(values) / len(values)
            width = half_width([value - mean for value in values], 64, scale=1.0)
            covered += isinstance(width, NoInterval) or abs(mean) <= width
        self.assertGreater(covered / runs, 0.86)
        self.assertLess(covered / runs, 0.95)

    def test_the_long_run_variance_of_independent_values_is_their_variance(self) -> None:
        rng = random.Random(6)
        found = [long_run_variance([rng.gauss(0, 3) for _ in range(64)])[0] for _ in range(400)]
        self.assertAlmostEqual(sum(found) / len(found) / 9, 1.0, delta=0.12)

    def test_the_t_quantiles_leave_the_rest_above(self) -> None:
        tables = ((0.95, STUDENT_T_95), (0.975, STUDENT_T_97_5))
        for share, degrees, quantile in ((share, *entry) for share, table in tables for entry in table.items()):
            scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
            step = quantile / 2000
            area = (
                sum((1 + ((i + 0.5) * step) ** 2 / degrees) ** (-(degrees + 1) / 2) for i in range(2000)) * step * scale
            )
            self.assertAlmostEqual(0.5 + area, share, delta=1e-4)

    def test_a_line_is_drift_and_a_jump_at_an_end_is_an_end(self) -> None:
        rng = random.Random(7)
        noise = [rng.gauss(0, 1) for _ in range(2000)]
        line = [value + index / 100 for index, value in enumerate(noise)]
        burst = [value + 50 * (index < 60) for index, value in enumerate(noise)]
        for values, word in ((line, "drifts"), (burst, "start and end")):
            mean = sum(values) / len(values)
            width = half_width([value - mean for value in values], 64, scale=mean)
            assert isinstance(width, NoInterval)
            self.assertIn(word, width.reason)

    def test_equal_values_have_no_noise(self) -> None:
        self.assertEqual(half_width([0.0] * 200, 32, scale=1.0), 0.0)
        rounding = half_width([1e-17] * 200, 32, scale=0.1)
        assert isinstance(rounding, float)
        self.assertLess(rounding, 1e-15)

    def test_a_burst_is_one_stretch_and_an_even_spread_all(self) -> None:
        self.assertAlmostEqual(stretches([0.0] * 100 + [1.0] * 10 + [0.0] * 210, 32), 1.0)
        self.assertAlmostEqual(stretches([0.0, 1.0] * 160, 32), 32.0)

    def test_a_run_of_nothing_or_of_few_requests_has_reasons_and_no_intervals(self) -> None:
        for run in (measured(), measured({"times": [1.0, 1.1]}), *(random_simulated(seed) for seed in range(40))):
            noise = RunNoise(run)
            for name in noise.names():
                found = noise.interval(name)
                if isinstance(found, Interval):
                    self.assertEqual((name, found), ("failed_share", Interval(0.0, 0.0)))


@once
class Coverage(unittest.TestCase):
    @in_full
    def test_equal_runs_lie_within_their_interval_about_nine_times_of_ten(self) -> None:
        load = {"concurrency": 4, "requests": 800, "prompt_tokens": "50-500", "output_tokens": "10-60"}
        told = coverage(map(partial(estimates, load), range(30)))
        judged = [found.covered for found in told.values() if found.covered is not None and found.judged > 0.8]
        self.assertGreater(len(judged), 6)
        self.assertGreater(sum(judged) / len(judged), 0.84)
        self.assertLess(sum(judged) / len(judged), 0.96)

    def test_every_interval_holds_the_figure_itself(self) -> None:
        for each in (side(1), side(2, rate=60.0), side(3, concurrency=1)):
            noise, rows = RunNoise(each.run), compare(each, each).rows  # type: ignore[arg-type]
            for name in noise.names():
                found = noise.interval(name)
                row = rows.get(name)
                if isinstance(found, Interval) and row is not None and row.a is not None:
                    self.assertLessEqual(found.low, row.a * (1 + 1e-12) + 1e-12, name)
                    self.assertGreaterEqual(found.high, row.a * (1 - 1e-12) - 1e-12, name)


class Verdicts(unittest.TestCase):
    def test_a_slower_server_is_worse_in_latency_and_in_throughput(self) -> None:
        rows = slower().rows
        for name in ("tpot_mean", "tpot_p50", "e2e_mean", "itl_p50", "requests_per_s"):
            self.assertEqual(rows[name].verdict, "worse", name)
        self.assertEqual(compare(side(2, mbu=0.5), side(1)).rows["tpot_p50"].verdict, "better")

    def test_a_run_against_itself_is_the_same_with_or_without_records(self) -> None:
        for records in (True, False):
            comparison = compare(side(1, records=records), side(1, records=records))
            self.assertEqual({row.verdict for row in comparison.rows.values()}, {"same", None})
            self.assertIn("equal in every figure", comparison.notes[0])

    def test_within_the_margin_is_the_same(self) -> None:
        wide = compare(side(1), side(2), margin=0.3)
        self.assertEqual(wide.rows["tpot_p50"].verdict, "same")
        narrow = compare(side(1), side(2), margin=0.0)
        self.assertNotEqual(narrow.rows["tpot_p50"].verdict, "same")

    def test_an_overloaded_run_has_no_interval_of_its_ttft_and_says_why(self) -> None:
        row = compare(side(1), side(3, rate=120.0, requests=3000, max_num_seqs=8)).rows["ttft_p50"]
        self.assertEqual(row.verdict, "cannot tell")
        self.assertIn("B: ", row.reason or "")

    def test_too_short_a_run_says_how_long_it_must_be(self) -> None:
        row = compare(side(1, requests=100), side(2, requests=100)).rows["ttft_p50"]
        self.assertEqual(row.reason, "A and B: needs a run of 20 mean E2E latencies, this one has 13")

    def test_summaries_have_differences_without_intervals(self) -> None:
        comparison = compare(side(1), side(2, records=False))
        row = comparison.rows["ttft_p95"]
        self.assertIsNotNone(row.difference)
        self.assertIsNone(row.relative_interval)
        self.assertEqual(row.verdict, "cannot tell")
        self.assertIn("B without per-request records", comparison.notes[0])

    def test_other_work_and_the_same_seed_are_told(self) -> None:
        self.assertIn("same work", " ".join(compare(side(1), side(2, output_tokens="20-120")).notes))
        self.assertIn("both have seed 1", " ".join(compare(side(1), side(1, mbu=0.5)).notes))
        self.assertEqual(compare(side(1), side(1, mbu=0.5)).changed["mbu"], (0.75, 0.5))

    def test_what_is_no_number_is_bad_input(self) -> None:
        for value in ("7", True, [1], 1e301):
            broken = Side(
                label="x.json",
                command="simulate",
                source="simulated",
                partial=False,
                config={},
                summary={"requests": {}, "throughput": {"requests_per_s": value}},
            )
            with self.assertRaisesRegex(InputError, r"x.json: throughput.requests_per_s is"):
                compare(side(1), broken)

    def test_differences_of_lopsided_intervals_keep_their_side(self) -> None:
        got = difference_interval(10.0, 10.0, Interval(9.0, 10.0), Interval(10.0, 14.0))
        self.assertEqual((got.low, round(got.high, 3)), (0.0, 4.123))
        self.assertIsNone(relative_interval(0.0, 1.0, Interval(0.0, 0.0), Interval(1.0, 1.0)))
        got = relative_interval(100.0, 110.0, Interval(100.0, 100.0), Interval(105.0, 120.0))  # type: ignore[assignment]
        self.assertEqual((round(got.low, 6), round(got.high, 6)), (0.05, 0.2))


@once
class Gates(unittest.TestCase):
    def result(self, text: str, comparison: Comparison | None = None) -> str:
        return judge(parse_gate(text), slower() if comparison is None else comparison).result

    def test_each_form_of_limit_means_its_own_thing(self) -> None:
        for text, kind, limit in (
            ("ttft_p95>+10%", "relative", 0.1),
            ("throughput<-5%", "relative", -0.05),
            ("ttft_p95>500ms", "value", 500.0),
            (" tpot_mean > +2ms ", "difference", 2.0),
            ("requests_per_s<4k", "value", 4000.0),
            ("output_tokens_per_s<-100", "difference", -100.0),
            ("ttft_p99.9>1s", "value", 1000.0),
            ("failed_share>0.01", "value", 0.01),
        ):
            gate = parse_gate(text)
            self.assertEqual((gate.kind, gate.limit, gate.above), (kind, limit, ">" in text), text)
        self.assertEqual([gate.figure for gate in parse_gates(["ttft_p95>1s,e2e_mean>2s"])], ["ttft_p95", "e2e_mean"])

    def test_a_wrong_gate_says_what_is_wrong(self) -> None:
        for text, words in (
            ("", "must be a figure"),
            ("ttft_p95", "must be a figure"),
            ("ttft_p95>=10%", "must be a figure"),
            ("ttft_p95>>10%", "must be a figure"),
            ("ttft_p95>10%", r"must have its sign.*ttft_p95>\+10%"),
            ("throughput<5%", r"throughput<-5%"),
            ("ttft_p95>500", "a time with its unit"),
            ("ttft_p96>1s", "did you mean 'ttft_p9"),
            ("tfft_p95>1s", "did you mean 'ttft_p95'"),
            ("mean_batch>3", "unknown figure"),
            ("throughput>+x%", "finite number"),
            ("ttft_p95>+10%,", "must be a figure"),
        ):
            with self.subTest(text=text), self.assertRaisesRegex(InputError, words):
                parse_gates(text.split(";") if ";" in text else [text])

    def test_it_trips_when_the_interval_excludes_the_limit_and_only_then(self) -> None:
        self.assertEqual(self.result("tpot_p50>+10%"), TRIPPED)
        self.assertEqual(self.result("tpot_p50>+1ms"), TRIPPED)
        self.assertEqual(self.result("tpot_p50>1ms"), TRIPPED)
        self.assertEqual(self.result("tpot_p50<-10%"), PASSED)
        self.assertEqual(self.result("tpot_p50>10s"), PASSED)
        change = slower().rows["tpot_p50"].relative
        assert change is not None
        self.assertEqual(self.result(f"tpot_p50>+{change * 100:.4f}%"), CANNOT_TELL)

    def test_equal_servers_do_not_trip_it(self) -> None:
        for seed in seeds(9):
            comparison = compare(side(1), side(seed + 2))
            for text in ("ttft_p50>+10%", "tpot_p95>+5%", "throughput<-5%", "e2e_p95>+10%", "failed_share>0.01"):
                self.assertNotEqual(self.result(text, comparison), TRIPPED, (seed, text))

    def test_without_an_interval_it_cannot_tell(self) -> None:
        comparison = compare(side(1), side(2, mbu=0.5, records=False))
        got = judge(parse_gate("tpot_p50>+1%"), comparison)
        self.assertEqual(got.result, CANNOT_TELL)
        self.assertIn("summary", got.reason)


if __name__ == "__main__":
    unittest.main()
