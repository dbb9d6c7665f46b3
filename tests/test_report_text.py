from __future__ import annotations

import json
import unittest
from dataclasses import replace

from servesim import __version__, simulate
from servesim.report.documents import document, summary_document, sweep_document, to_json
from servesim.report.sweep import sweep_text
from servesim.report.text import summary_text, warmup_text
from servesim.runs.records import EngineTotals, Outcome
from servesim.stats import Values, describe
from servesim.summary.slo import parse_slos
from servesim.summary.summary import Summary, summarize
from tests.runs import measured, random_simulated

LOST = {"times": [], "outcome": Outcome.FAILED, "reason": "timeout"}


def figures(**changes: object) -> Summary:
    return replace(summarize(measured({"times": [0.5, 1.0]})), **changes)  # type: ignore[arg-type]


def same(value_ms: float) -> object:
    return describe(Values([value_ms]))


class Block(unittest.TestCase):
    def test_the_block_of_a_small_run_is_this(self):
        run = measured({"times": [0.5, 0.75, 1.0], "prompt": 1000, "cached": 16}, {"times": [0.25, 2.0], "prompt": 24})
        run.engine = EngineTotals(
            steps=4, scheduled=5, num_blocks=10, kv_peak_blocks=5, kv_block_seconds=5.0, elapsed_s=2.0, preemptions=1
        )
        self.assertEqual(
            summary_text(summarize(run, parse_slos(["ttft_p95=600ms"]))),
            """\
source       measured
requests     2 completed
duration     2.00 s
throughput   2.5 output tok/s   514.5 total tok/s   1.00 req/s
tokens       1,024 prompt (16 cached)   5 output
latency ms          mean        p50        p90        p95        p99      p99.9        max
ttft               375.0      250.0      500.0      500.0      500.0      500.0      500.0
tpot             1,000.0      250.0    1,750.0    1,750.0    1,750.0    1,750.0    1,750.0
itl                750.0      250.0    1,750.0    1,750.0    1,750.0    1,750.0    1,750.0
e2e              1,500.0    1,000.0    2,000.0    2,000.0    2,000.0    2,000.0    2,000.0
queue                  -          -          -          -          -          -          -
engine       4 steps   mean batch 1.2   KV peak 50.0%   KV mean 25.0%
             preemptions 1   evictions 0   prefix hit rate -
slo          ttft_p95 <= 600.0 ms: met (500.0 ms)
goodput      1.00 req/s   100.0% of offered
""",
        )

    def test_what_is_missing_is_shown_as_a_sum(self):
        gone = {"times": [], "outcome": Outcome.UNFINISHED}
        text = summary_text(summarize(measured({"times": [1.0]}, LOST, gone, gone)))
        self.assertIn("4 offered = 1 completed + 1 failed + 0 rejected + 2 unfinished", text)
        self.assertIn("errors       1 timeout\n", text)
        self.assertIn("warning      2 of 4 requests are unfinished", text)

    def test_nothing_completed_prints_dashes_and_no_zero_latency(self):
        text = summary_text(summarize(measured(LOST)))
        for label in ("ttft", "tpot", "itl", "e2e", "queue"):
            row = next(line for line in text.splitlines() if line.startswith(f"{label} "))
            self.assertEqual(set(row[len(label) :].split()), {"-"})
        self.assertIn("throughput   - output tok/s", text)
        nothing = summary_text(summarize(simulate(requests=3, rate=1.0, horizon_s=0.001)))
        self.assertNotIn("ttfo", nothing)  # no different from ttft: neither has any value

    def test_every_line_fits_100_columns(self):
        for seed in range(50):
            summary = summarize(random_simulated(seed), parse_slos(["ttft_from_planned_p99.99=500ms,itl=3ms"]))
            for line in summary_text(summary).splitlines():
                self.assertLessEqual(len(line), 100, line)

    def test_latencies_from_the_plan_are_shown_only_where_they_differ(self):
        plain = summary_text(summarize(measured({"times": [1.0]})))
        late = summary_text(summarize(measured({"planned": -1.0, "times": [1.0]})))
        self.assertNotIn("planned", plain)
        self.assertNotIn("ttfo", plain)
        self.assertIn("ttft planned     2,000.0", late)
        self.assertIn("lateness         1,000.0", late)

    def test_a_partial_run_and_a_broken_law_are_said(self):
        run = measured({"times": [1.0]})
        run.partial, run.violations = True, ["blocks leaked"]
        text = summary_text(summarize(run))
        self.assertIn("partial", text.splitlines()[0])
        self.assertIn("law broken   blocks leaked\n", text)

    def test_a_failed_objective_names_failures_where_no_value_exists(self):
        text = summary_text(summarize(measured({"times": [1.0]}, LOST), parse_slos(["ttft_p95=2s,queue=1s"])))
        self.assertIn("ttft_p95 <= 2,000.0 ms: not met (requests that did not complete)", text)

    def test_warmup_is_printed_apart_and_its_first_is_cold(self):
        warmup = measured({"times": [2.0, 3.0]}, LOST, {"times": [0.5, 1.0]})
        self.assertEqual(
            warmup_text(warmup),
            "warm-up      ttft 2,000.0 ms   e2e 3,000.0 ms   (cold)\n"
            "warm-up      timeout\n"
            "warm-up      ttft 500.0 ms   e2e 1,000.0 ms\n",
        )


class SweepTable(unittest.TestCase):
    def setUp(self) -> None:
        base = figures()
        self.row = replace(
            base,
            throughput=replace(base.throughput, output_tokens_per_s=4177.94),
            ttft_ms=same(100.31),
            tpot_ms=same(22.66),
            queue_ms=same(2403.51),
            engine=replace(base.engine, mean_batch=86.92, kv_peak=0.2231, preemptions=0),
        )

    def test_a_row_has_the_figures_of_the_reference_table(self):
        row = sweep_text([{"concurrency": 128}], [self.row]).splitlines()[2]
        self.assertEqual(row.split(), "128 4177.9 100.3 22.7 22.7 2403.5 86.9 22.3% 0".split())

    def test_the_columns_are_named_over_two_lines(self):
        top, bottom, *_ = sweep_text([{"concurrency": 128}], [self.row]).splitlines()
        names = ["output tok/s", "TTFT p50 ms", "TPOT p50", "TPOT p95", "queue p95", "mean batch", "KV peak"]
        self.assertEqual(top.split(), " ".join(name.rpartition(" ")[0] for name in names).split())
        self.assertEqual(bottom.split(), ["concurrency", *(name.rpartition(" ")[2] for name in names), "preemptions"])

    def test_a_grid_names_both_keys_and_fits_100_columns(self):
        points = [{"rate": 0.5, "max_num_seqs": 64}, {"rate": 26.0, "max_num_seqs": 64}]
        lost = replace(self.row, requests=replace(self.row.requests, offered=3))
        lines = sweep_text(points, [self.row, lost], knee=0).splitlines()
        self.assertEqual(lines[2].split()[:2], ["0.5", "64"])
        self.assertEqual(lines[3].split()[-1], "2")
        self.assertTrue(all(len(line) <= 100 for line in lines[:4]))

    def test_the_knee_is_named_with_what_the_next_row_costs(self):
        slow = replace(
            self.row, throughput=replace(self.row.throughput, output_tokens_per_s=4177.94 * 1.5), e2e_ms=same(3000.0)
        )
        points = [{"concurrency": 32}, {"concurrency": 128}]
        text = sweep_text(points, [self.row, slow], knee=0)
        knee = "knee: concurrency 32, the most throughput per latency; next row: 1.50x output tok/s, 3.00x mean E2E"
        self.assertEqual(text.splitlines()[-1], knee)
        self.assertLessEqual(len(knee), 100)
        last = sweep_text(points, [self.row, slow], knee=1).splitlines()[-1]
        self.assertIn("last row", last)
        self.assertLessEqual(len(last), 100)

    def test_unknown_figures_are_dashes(self):
        row = sweep_text([{"concurrency": 1}], [summarize(measured(LOST))]).splitlines()[2]
        self.assertEqual(row.split(), ["1", *"--------", "1"])

    def test_an_asked_objective_has_a_column(self):
        summary = summarize(measured({"times": [1.0]}), parse_slos(["ttft_p95=500ms"]))
        self.assertEqual(sweep_text([{"rate": 1.0}], [summary]).splitlines()[2].split()[-2:], ["missed", "0.0%"])


class Documents(unittest.TestCase):
    def test_every_document_has_the_frame(self):
        framed = document("capacity", {"seed": 7}, {"num_blocks": 3})
        self.assertEqual(
            framed,
            {
                "schema": "servesim.capacity/1",
                "servesim": __version__,
                "command": "capacity",
                "config": {"seed": 7},
                "partial": False,
                "num_blocks": 3,
            },
        )

    def test_a_simulated_and_a_measured_summary_have_the_same_schema_and_keys(self):
        run = measured({"times": [1.0]})
        simulated = summary_document("simulate", {}, summarize(random_simulated(1)))
        real = summary_document("loadgen", {}, summarize(run))
        self.assertEqual(simulated["schema"], real["schema"])
        beside = {"overload"}  # only the simulated one has clients that came back
        self.assertEqual([key for key in simulated if key not in beside], list(real))

    def test_the_names_that_others_build_on_are_there(self):
        summary = summary_document("simulate", {}, summarize(random_simulated(1), parse_slos(["ttft=1s"])))
        for key, names in {
            "requests": "offered completed failed rejected unfinished capped warmup",
            "tokens": "prompt output cached estimated per_event",
            "throughput": "output_tokens_per_s total_tokens_per_s requests_per_s",
            "ttft_ms": "count mean min p50 p90 p95 p99 p999 max",
            "goodput": "requests_per_s fraction",
            "engine": "steps mean_batch kv_peak kv_mean preemptions evictions prefix_hit_rate",
        }.items():
            self.assertLessEqual(set(names.split()), set(summary[key]), key)
        self.assertEqual(list(summary["slo"][0]), ["metric", "percentile", "limit_ms", "value_ms", "met"])
        distributions = "ttft ttfo tpot itl e2e queue lateness ttft_from_planned e2e_from_planned"
        for key in [f"{name}_ms" for name in distributions.split()] + ["prompt_tokens", "output_tokens"]:
            self.assertIn(key, summary)

    def test_a_sweep_is_rows_of_summaries_with_their_swept_values(self):
        summary = figures()
        sweep = sweep_document({"seed": 7}, [{"concurrency": 1}, {"concurrency": 8}], [summary, summary], knee=1)
        self.assertEqual([row["concurrency"] for row in sweep["rows"]], [1, 8])
        self.assertEqual((sweep["rows"][0]["source"], sweep["knee"]), ("measured", 1))

    def test_a_partial_run_makes_a_partial_document(self):
        self.assertTrue(summary_document("simulate", {}, figures(partial=True))["partial"])

    def test_no_document_has_a_number_that_json_has_not(self):
        text = to_json(document("loadgen", {}, {"a": float("nan"), "b": [float("inf")], "c": 1.5}))
        self.assertEqual({key: json.loads(text)[key] for key in "abc"}, {"a": None, "b": [None], "c": 1.5})


if __name__ == "__main__":
    unittest.main()
