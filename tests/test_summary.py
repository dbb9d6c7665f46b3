from __future__ import annotations

import json
import math
import unittest

from servesim.errors import InputError
from servesim.runs.records import EngineTotals, Outcome, Run
from servesim.stats import PERCENTILES
from servesim.summary.latency import Completed, late_gaps, token_events
from servesim.summary.slo import parse_slos
from servesim.summary.summary import summarize
from tests.extent import seeds
from tests.runs import measured, random_simulated


def naive_percentile(values: list[float], percentile: float) -> float:
    ordered = sorted(values)
    return ordered[max(1, math.ceil(round(percentile * len(ordered) / 100, 9))) - 1]


def naive_latencies(run: Run) -> dict[str, list[list[float]]]:
    """Every metric in seconds, a list a completed request, by walking every token."""
    records = run.records
    found: dict[str, list[list[float]]] = {}
    for i in range(len(records)):
        if records.outcome[i] != Outcome.COMPLETED:
            continue
        times, sent, planned = run.token_times(i), records.sent_s[i], records.planned_s[i]
        of_request = {
            "ttft": [times[0] - sent],
            "ttfo": [times[0] - sent],
            "tpot": [(times[-1] - times[0]) / (len(times) - 1)] if len(times) > 1 else [],
            "itl": [b - a for a, b in zip(times, times[1:], strict=False)],
            "e2e": [times[-1] - sent],
            "queue": [records.admitted_s[i] - sent],
            "lateness": [sent - planned],
            "ttft_from_planned": [times[0] - planned],
            "e2e_from_planned": [times[-1] - planned],
        }
        for metric, values in of_request.items():
            found.setdefault(metric, []).append(values)
    return found


class AgainstEveryToken(unittest.TestCase):
    def test_every_distribution_is_that_of_a_walk_over_all_tokens(self):
        for seed in seeds(300):
            run = random_simulated(seed)
            summary = summarize(run)
            for metric, values in naive_latencies(run).items():
                pooled = [value for of_request in values for value in of_request]
                distribution = getattr(summary, f"{metric}_ms")
                with self.subTest(seed=seed, metric=metric):
                    if not pooled:
                        self.assertIsNone(distribution)
                        continue
                    self.assertEqual(distribution.count, len(pooled))
                    self.assertEqual((distribution.min, distribution.max), (min(pooled) * 1000, max(pooled) * 1000))
                    self.assertAlmostEqual(distribution.mean, math.fsum(pooled) / len(pooled) * 1000, places=9)
                    for name, percentile in PERCENTILES.items():
                        self.assertEqual(getattr(distribution, name), naive_percentile(pooled, percentile) * 1000)

    def test_ttft_and_all_gaps_add_up_to_e2e(self):
        for seed in seeds(100):
            summary = summarize(random_simulated(seed, outcomes=False))
            assert summary.ttft_ms is not None
            assert summary.e2e_ms is not None
            gaps = summary.itl_ms.mean * summary.itl_ms.count if summary.itl_ms else 0.0
            with self.subTest(seed=seed):
                self.assertEqual(
                    summary.itl_ms.count if summary.itl_ms else 0, summary.tokens.output - summary.requests.completed
                )
                self.assertAlmostEqual(
                    summary.ttft_ms.mean * summary.ttft_ms.count + gaps,
                    summary.e2e_ms.mean * summary.e2e_ms.count,
                    places=6,
                )

    def test_the_step_logs_own_weights_give_the_same_gaps(self):
        for seed in seeds(100):
            run = random_simulated(seed, outcomes=False)
            assert run.steps is not None
            jumps = sum(len(slices) - 1 for slices in run.records.slices.values())
            summary = summarize(run)
            with self.subTest(seed=seed):
                self.assertEqual(sum(run.steps.decodes) + jumps, summary.itl_ms.count if summary.itl_ms else 0)

    def test_offered_is_the_sum_of_its_parts(self):
        for seed in seeds(100):
            run = random_simulated(seed)
            requests = summarize(run).requests
            with self.subTest(seed=seed):
                self.assertEqual(
                    requests.offered,
                    requests.completed + requests.failed + requests.rejected + requests.unfinished,
                )
                self.assertEqual(requests.offered, len(run.records) - run.records.outcome.count(Outcome.WITHHELD))

    def test_every_slo_and_goodput_are_those_of_a_walk_over_all_tokens(self):
        metrics = ("ttft", "tpot", "itl", "e2e", "queue", "e2e_from_planned", "lateness")
        for seed in seeds(300):
            run = random_simulated(seed)
            share = ("p50", "p90", "p99.9", "max")[seed % 4]
            slos = parse_slos(f"{metric}_{share}={1 + seed % 37}ms" for metric in metrics)
            summary = summarize(run, slos)
            found = naive_latencies(run)
            assert summary.slo is not None
            assert summary.goodput is not None
            good = [True] * summary.requests.completed
            for slo, result in zip(slos, summary.slo, strict=True):
                of_requests = found.get(slo.metric, [])
                infinite = [
                    math.inf
                    for i, outcome in enumerate(run.records.outcome)
                    if outcome not in (Outcome.COMPLETED, Outcome.WITHHELD)
                    for _ in range(max(1, run.requests.output_tokens[i] - 1) if slo.metric == "itl" else 1)
                ]
                pooled = [value for values in of_requests for value in values] + infinite
                for k, values in enumerate(of_requests):
                    good[k] &= not values or naive_percentile(values, slo.percentile) <= slo.limit_s
                with self.subTest(seed=seed, slo=str(slo)):
                    if not pooled:
                        self.assertIsNone(result.met)
                        continue
                    value_s = naive_percentile(pooled, slo.percentile)
                    self.assertEqual(result.met, value_s <= slo.limit_s)
                    self.assertEqual(result.value_ms, None if math.isinf(value_s) else value_s * 1000)
            with self.subTest(seed=seed):
                self.assertEqual(
                    summary.goodput.fraction, sum(good) / summary.requests.offered if summary.requests.offered else None
                )

    def test_a_summary_is_finite_json_whatever_happened(self):
        for seed in seeds(100):
            document = summarize(random_simulated(seed), parse_slos(["itl_p99=5ms"])).as_dict()
            with self.subTest(seed=seed):
                self.assertEqual(json.loads(json.dumps(document, allow_nan=False)), document)

    def test_one_engine_after_the_other_in_one_array_of_times_is_their_union(self):
        """A fleet's logs stand one behind the other; time falls back between two, where no request has a gap."""
        for seed in range(30):
            one, two = random_simulated(seed, outcomes=False), random_simulated(seed + 1000, outcomes=False)
            streams = [
                {"sent": run.records.sent_s[i], "times": run.token_times(i)}
                for run in (one, two)
                for i in range(len(run.records))
            ]
            both = summarize(measured(*streams))
            gaps = sum(summary.itl_ms.count for run in (one, two) if (summary := summarize(run)).itl_ms)
            with self.subTest(seed=seed):
                self.assertEqual(both.itl_ms.count if both.itl_ms else 0, gaps)
                self.assertTrue(both.itl_ms is None or both.itl_ms.min >= 0)


class OneRequest(unittest.TestCase):
    def test_a_single_token_has_a_ttft_but_no_gap_and_no_tpot(self):
        summary = summarize(measured({"sent": 1.0, "times": [1.5]}))
        self.assertEqual(summary.tokens.output, 1)
        self.assertIsNone(summary.itl_ms)
        self.assertIsNone(summary.tpot_ms)
        assert summary.ttft_ms is not None
        self.assertEqual(summary.ttft_ms.p50, 500.0)

    def test_tpot_counts_the_tokens_of_the_usage_not_the_chunks(self):
        summary = summarize(measured({"times": [0.1, 0.2, 0.3], "tokens": 12}))
        assert summary.tpot_ms is not None
        self.assertAlmostEqual(summary.tpot_ms.p50, 200 / 11)
        self.assertEqual(summary.tokens.per_event, 4.0)
        assert summary.itl_ms is not None
        self.assertEqual(summary.itl_ms.count, 2)

    def test_tpot_counts_produced_tokens_not_those_asked_for(self):
        summary = summarize(measured({"times": [1.0, 2.0, 3.0, 4.0, 5.0], "asked": 100}))
        assert summary.tpot_ms is not None
        self.assertEqual(summary.tpot_ms.p50, 1000.0)

    def test_a_late_usage_chunk_is_in_neither_e2e_nor_tpot(self):
        summary = summarize(measured({"times": [0.1, 0.2], "end": 0.9}))
        assert summary.e2e_ms is not None
        self.assertEqual(summary.e2e_ms.max, 200.0)
        self.assertEqual(summary.duration_s, 0.2)

    def test_reasoning_before_the_answer_is_in_ttfo_not_in_ttft(self):
        summary = summarize(measured({"times": [0.5, 0.75, 1.0], "visible": 2}))
        assert summary.ttft_ms is not None
        assert summary.ttfo_ms is not None
        self.assertEqual((summary.ttft_ms.p50, summary.ttfo_ms.p50), (500.0, 1000.0))

    def test_an_answer_in_one_piece_has_e2e_only(self):
        summary = summarize(measured({"times": [2.0], "tokens": 64, "extra": {"non_stream": True}}))
        self.assertEqual((summary.ttft_ms, summary.ttfo_ms, summary.tpot_ms, summary.itl_ms), (None,) * 4)
        assert summary.e2e_ms is not None
        self.assertEqual(summary.e2e_ms.p50, 2000.0)
        self.assertEqual(summary.throughput.output_tokens_per_s, 32.0)

    def test_an_answer_without_a_token_is_a_success_without_latencies(self):
        summary = summarize(measured({"times": []}, {"times": [0.5, 1.0]}))
        self.assertEqual((summary.requests.completed, summary.requests.empty), (2, 1))
        assert summary.ttft_ms is not None
        assert summary.e2e_ms is not None
        self.assertEqual((summary.ttft_ms.count, summary.e2e_ms.count), (1, 1))
        self.assertEqual(summary.ttft_ms.min, 500.0)

    def test_a_latency_of_zero_is_zero_and_not_absent(self):
        summary = summarize(measured({"sent": 1.0, "times": [1.0, 1.0]}))
        assert summary.ttft_ms is not None
        assert summary.itl_ms is not None
        self.assertEqual((summary.ttft_ms.max, summary.itl_ms.max), (0.0, 0.0))
        self.assertIsNone(summary.throughput.output_tokens_per_s)

    def test_a_rare_stall_is_seen(self):
        times = [0.005 * k for k in range(200)]
        summary = summarize(measured({"times": [*times, times[-1] + 1.0]}))
        assert summary.itl_ms is not None
        self.assertEqual(round(summary.itl_ms.p999), 1000)
        self.assertAlmostEqual(summary.itl_ms.p50, 5.0)

    def test_usage_that_never_came_is_counted_as_estimated(self):
        tokens = summarize(measured({"times": [1.0, 2.0, 3.0], "extra": {"estimated": True}})).tokens
        self.assertEqual((tokens.output, tokens.estimated), (3, 3))


class WhatIsMissing(unittest.TestCase):
    def test_nothing_completed_is_valid_json_of_nulls(self):
        run = measured({"times": [], "outcome": Outcome.REJECTED, "reason": "over_kv_cache"})
        document = json.loads(json.dumps(summarize(run).as_dict(), allow_nan=False))
        self.assertEqual((document["requests"]["completed"], document["requests"]["rejected"]), (0, 1))
        self.assertEqual(document["errors"], {"over_kv_cache": 1})
        for key in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queue_ms", "prompt_tokens", "duration_s"):
            self.assertIsNone(document[key], key)

    def test_a_run_of_no_request_at_all_has_a_summary(self):
        summary = summarize(measured(), parse_slos(["ttft_p95=1s"]))
        self.assertEqual(summary.requests.offered, 0)
        assert summary.slo is not None
        self.assertIsNone(summary.slo[0].met)

    def test_quick_errors_do_not_improve_the_latencies(self):
        bad = {"times": [], "outcome": Outcome.FAILED, "reason": "http_500"}
        summary = summarize(measured(*[{"times": [0.5, 1.0]}, bad] * 10))
        assert summary.e2e_ms is not None
        self.assertEqual((summary.e2e_ms.p50, summary.e2e_ms.count), (1000.0, 10))
        self.assertEqual(summary.errors, {"http_500": 10})

    def test_percentiles_of_the_slo_count_a_failure_as_infinitely_late(self):
        lost = {"times": [], "outcome": Outcome.FAILED, "reason": "stream_cut"}
        run = measured({"times": [1.0]}, {"times": [2.0]}, lost, lost)
        summary = summarize(run, parse_slos(["ttft_p95=10s", "ttft_p50=2s"]))
        assert summary.ttft_ms is not None
        assert summary.slo is not None
        self.assertEqual(summary.ttft_ms.p50, 1000.0)
        self.assertEqual([(result.value_ms, result.met) for result in summary.slo], [(None, False), (2000.0, True)])

    def test_goodput_is_over_offered(self):
        lost = {"times": [], "outcome": Outcome.UNFINISHED}
        run = measured(*[{"times": [0.5, 1.0]}] * 50, *[lost] * 50)
        goodput = summarize(run, parse_slos(["e2e_p50=2s"])).goodput
        assert goodput is not None
        self.assertEqual((goodput.fraction, goodput.requests_per_s), (0.5, 50.0))

    def test_a_horizon_that_cuts_most_requests_says_so(self):
        run = measured(*[{"times": [1.0]}] * 10, *[{"times": [], "outcome": Outcome.UNFINISHED}] * 90)
        summary = summarize(run)
        self.assertEqual((summary.requests.offered, summary.requests.unfinished), (100, 90))
        self.assertIn("90 of 100 requests are unfinished", summary.warnings[0])

    def test_throughput_counts_only_tokens_of_completed_requests(self):
        cut = {"times": [0.5, 1.0, 1.5, 2.0], "outcome": Outcome.UNFINISHED}
        summary = summarize(measured({"times": [0.5, 1.0]}, cut))
        self.assertEqual(summary.throughput.output_tokens_per_s, 1.0)

    def test_an_unknown_queue_is_null_and_its_slo_cannot_be_judged(self):
        summary = summarize(measured({"times": [1.0]}), parse_slos(["queue_p95=1s"]))
        self.assertIsNone(summary.queue_ms)
        assert summary.slo is not None
        self.assertIsNone(summary.slo[0].met)
        self.assertTrue(any("queue" in warning for warning in summary.warnings))

    def test_an_slo_was_not_asked_and_is_not_there(self):
        document = summarize(measured({"times": [1.0]})).as_dict()
        self.assertNotIn("slo", document)
        self.assertNotIn("goodput", document)

    def test_latency_from_the_plan_shows_the_queue_that_a_late_client_hides(self):
        summary = summarize(
            measured(*[{"planned": 0.1 * k, "sent": 0.2 * k, "times": [0.2 * k + 0.2]} for k in range(50)])
        )
        assert summary.ttft_ms is not None
        assert summary.ttft_from_planned_ms is not None
        assert summary.lateness_ms is not None
        self.assertAlmostEqual(summary.ttft_ms.max, 200.0)
        self.assertAlmostEqual(summary.ttft_from_planned_ms.max, 5100.0)
        self.assertAlmostEqual(summary.lateness_ms.max, 4900.0)

    def test_warmup_is_outside_everything(self):
        run = measured({"times": [1.0]})
        run.warmup = measured({"times": [9.0]}, {"times": [8.0]})
        summary = summarize(run)
        self.assertEqual((summary.requests.warmup, summary.requests.offered), (2, 1))
        assert summary.ttft_ms is not None
        self.assertEqual(summary.ttft_ms.max, 1000.0)

    def test_retries_are_attempts_not_requests(self):
        run = measured({"times": [1.0]}, {"times": [2.0]})
        run.records.attempts[1] = 3
        summary = summarize(run)
        self.assertEqual((summary.requests.offered, summary.attempts), (2, 4))


class Engine(unittest.TestCase):
    def test_engine_figures_are_fractions(self):
        run = measured({"times": [1.0]})
        run.engine = EngineTotals(
            steps=4, scheduled=10, num_blocks=20, kv_peak_blocks=5, kv_block_seconds=8.0, elapsed_s=4.0, preemptions=3,
            evictions=2, looked_up_tokens=100, hit_tokens=25,
        )  # fmt: skip
        engine = summarize(run).engine
        self.assertEqual((engine.steps, engine.mean_batch, engine.kv_peak, engine.kv_mean), (4, 2.5, 0.25, 0.1))
        self.assertEqual((engine.preemptions, engine.evictions, engine.prefix_hit_rate), (3, 2, 0.25))

    def test_no_lookup_is_no_hit_rate(self):
        run = measured({"times": [1.0]})
        run.engine = EngineTotals(steps=1, scheduled=1)
        self.assertIsNone(summarize(run).engine.prefix_hit_rate)

    def test_a_measured_server_lends_its_own_figures(self):
        run = measured({"times": [1.0]})
        run.server = {"mean_batch": 3.5, "kv_peak": None, "preemptions": 0}
        engine = summarize(run).engine
        self.assertEqual((engine.mean_batch, engine.kv_peak, engine.preemptions, engine.steps), (3.5, None, 0, None))

    def test_what_a_spoilt_file_tells_of_an_engine_is_unknown(self) -> None:
        run = measured({"times": [0.1]})
        run.server = {"mean_batch": {"a": []}, "kv_mean": "0.5", "preemptions": 2}
        engine = summarize(run).engine
        self.assertEqual((engine.mean_batch, engine.kv_mean, engine.preemptions), (None, None, 2))
        run.engine = EngineTotals(num_blocks=1, kv_block_seconds=27.0, elapsed_s=5e-324)
        self.assertIsNone(summarize(run).engine.kv_mean)


class Gaps(unittest.TestCase):
    def test_late_gaps_and_events_are_those_of_a_walk(self):
        for seed in seeds(100):
            run = random_simulated(seed)
            done = Completed(run)
            gaps = naive_latencies(run).get("itl", [])
            with self.subTest(seed=seed):
                self.assertEqual(
                    list(late_gaps(run, done, 0.02)),
                    [(sum(gap > 0.02 for gap in of_request), len(of_request)) for of_request in gaps],
                )
                self.assertEqual(token_events(run, done), sum(len(of_request) + 1 for of_request in gaps))


class SloGrammar(unittest.TestCase):
    def test_a_limit_and_a_share_are_read(self):
        for text, metric, percentile, limit_s in (
            ("ttft_p95=500ms", "ttft", 95, 0.5),
            ("tpot_p50=50ms", "tpot", 50, 0.05),
            ("e2e_p99=20s", "e2e", 99, 20.0),
            ("itl_p99.9=80ms", "itl", 99.9, 0.08),
            ("itl_p999=80ms", "itl", 99.9, 0.08),
            ("itl_p9999=80ms", "itl", 99.99, 0.08),
            ("queue_max=1m", "queue", 100, 60.0),
            ("ttft_p100=1s", "ttft", 100, 1.0),
            ("ttft=1s", "ttft", 100, 1.0),
            (" TTFT_P95 = 500ms ", "ttft", 95, 0.5),
            ("ttft_from_planned_p95=1s", "ttft_from_planned", 95, 1.0),
        ):
            with self.subTest(text=text):
                (slo,) = parse_slos([text])
                self.assertEqual((slo.metric, slo.percentile, slo.limit_s), (metric, percentile, limit_s))

    def test_a_comma_list_is_several_and_twice_the_same_is_one(self):
        self.assertEqual(len(parse_slos(["ttft_p95=1s,tpot_p95=50ms", "ttft_p95=1s"])), 2)

    def test_nonsense_is_one_line_with_a_remedy(self):
        for text, part in (
            ("tfft_p95=500ms", "did you mean 'ttft'?"),
            ("ttft_p95", "ttft_p95=500ms"),
            ("ttft_p95=500", "unit"),
            ("ttft_p95=0ms", "above 0"),
            ("ttft_p95=-1s", "limit of slo ttft_p95"),
            ("ttft_p95=nan", "unit"),
            ("ttft_p0=1s", "percentile"),
            ("ttft_p101=1s", "percentile"),
            ("ttft_p=1s", "percentile"),
            ("ttft_p1.2.3=1s", "percentile"),
            ("", "must be a limit"),
            ("ttft_p95=1s,", "must be a limit"),
            ("mean_ttft=1s", "unknown slo metric"),
        ):
            with self.subTest(text=text), self.assertRaises(InputError) as caught:
                parse_slos([text])
            self.assertIn(part, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
