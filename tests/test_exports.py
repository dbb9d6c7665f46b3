"""CSV, Markdown, metric pages, trace events and JSON: what is in them is what the summary says, and text stays text."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
import tempfile
import unittest
from pathlib import Path
from typing import Any

from servesim.report.charts import FIGURES
from servesim.report.chrome_trace import chrome_trace
from servesim.report.csv import to_csv
from servesim.report.input import ReportInput, distinct, grid_of
from servesim.report.prometheus import HISTOGRAMS, metric_page, openmetrics_page
from servesim.report.renderers import RENDERERS, format_of
from servesim.report.tables import escape_markdown, markdown
from servesim.report.vllm_bench import vllm_bench
from servesim.runs.records import Run
from servesim.wire.prometheus import parse_page
from servesim.workload.traces.trace import read_trace
from tests.report_runs import HOSTILE, burst, hostile, materials, named, streams, sweep_document
from tests.runs import measured, random_simulated


def rows(report: ReportInput) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO("".join(to_csv(report)))))


def events(report: ReportInput) -> list[dict[str, Any]]:
    return json.loads("".join(chrome_trace(report)))["traceEvents"]  # type: ignore[no-any-return]


class Csv(unittest.TestCase):
    def test_its_latencies_are_those_of_the_summary(self) -> None:
        for run in (burst(), streams(), random_simulated(3)):
            one = named(run)
            told = rows(ReportInput("t", [one]))
            for metric in ("ttft", "tpot", "e2e", "queue", "lateness"):
                values = sorted(float(row[f"{metric}_ms"]) for row in told if row[f"{metric}_ms"])
                distribution = getattr(one.summary, f"{metric}_ms")
                if distribution is None:
                    self.assertEqual(values, [])
                    continue
                self.assertEqual(len(values), distribution.count)
                self.assertTrue(math.isclose(values[-1], distribution.max, abs_tol=1e-9))
                self.assertTrue(math.isclose(math.fsum(values) / len(values), distribution.mean, abs_tol=1e-9))

    def test_it_has_every_request_that_was_offered(self) -> None:
        for seed in range(20):
            one = named(random_simulated(seed))
            self.assertEqual(len(rows(ReportInput("t", [one]))), one.summary.requests.offered)

    def test_a_formula_stays_text(self) -> None:
        run = streams(2, 6)
        run.requests.ids = ["=1+1", "+1", "-1", "@x", "a,b\nc", "plain"]
        told = [row["id"] for row in rows(ReportInput("t", [named(run)]))]
        self.assertEqual(told, ["'=1+1", "'+1", "'-1", "'@x", "a,b c", "plain"])

    def test_a_grid_is_a_row_a_row(self) -> None:
        report = ReportInput("t", grids=[grid_of(sweep_document(), name="s", path="s")])
        told = rows(report)
        self.assertEqual([row["concurrency"] for row in told], ["1", "8", "32", "128", "256"])
        self.assertEqual([row["knee"] for row in told], ["0", "0", "1", "0", "0"])
        self.assertEqual(float(told[4]["ttft_ms.p95"]), 30 + 20.0 * 256)

    def test_what_was_swept_is_told_beside_what_came_of_it(self) -> None:
        document = sweep_document()
        for row in document["rows"]:
            length = row.pop("concurrency")
            row |= {"swept": {"output_tokens": str(length), "link_bytes_per_s": 5e9}, "output_tokens": {"mean": 7.5}}
        report = ReportInput("t", grids=[grid_of(document, name="s", path="s")])
        told = rows(report)[1]
        self.assertEqual((told["output_tokens"], told["output_tokens.mean"]), ("8", "7.5"))
        labels = parse_page(metric_page(report)).samples["servesim_row_e2e_mean_milliseconds"][1].labels
        self.assertEqual(labels["output_tokens"], "8")
        self.assertIn("| 8 | 5 GB/s |", "".join(markdown(report)))


class OpenMetrics(unittest.TestCase):
    def test_it_says_what_the_metric_page_says_in_its_own_grammar(self) -> None:
        for report in (*materials().values(), ReportInput(HOSTILE, [named(hostile(), HOSTILE)])):
            text, plain = openmetrics_page(report), parse_page(metric_page(report))
            page = parse_page(text)
            self.assertEqual((page.samples, page.malformed_lines), (plain.samples, 0))
            self.assertTrue(text.endswith("# EOF\n"))
            self.assertEqual(text.count("# EOF"), 1)
            family = ""
            for line in text.splitlines()[:-1]:
                words = line.split(" ")
                if line.startswith("# TYPE "):
                    self.assertFalse(words[2].endswith("_total"), line)
                    family, kind = words[2], words[3]
                elif line.startswith("# "):
                    self.assertEqual(words[2], family)
                    self.assertTrue(words[1] != "UNIT" or family.endswith(f"_{words[3]}"))
                else:
                    self.assertTrue(line.startswith(family), line)
                    self.assertTrue(kind != "counter" or line.startswith(f"{family}_total"), line)


class VllmBench(unittest.TestCase):
    def result(self, run: Run, *slos: str) -> dict[str, Any]:
        return json.loads("".join(vllm_bench(ReportInput("t", [named(run, "run", *slos)]))))  # type: ignore[no-any-return]

    def test_its_lists_are_the_requests_and_its_figures_the_summarys(self) -> None:
        for run in (burst(), streams(), random_simulated(3)):
            summary = named(run).summary
            told = self.result(run)
            for name in ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors"):
                self.assertEqual(len(told[name]), told["num_prompts"])
            self.assertEqual(told["completed"] + told["failed"], told["num_prompts"])
            self.assertEqual(told["errors"].count(""), told["completed"])
            self.assertEqual(sum(told["output_lens"]), told["total_output_tokens"])
            self.assertEqual(told["output_throughput"], summary.throughput.output_tokens_per_s)
            itls = [gap for gaps in told["itls"] for gap in gaps]
            ttfts = [ttft for ttft, error in zip(told["ttfts"], told["errors"], strict=True) if not error]
            for name, values, distribution in (("itl", itls, summary.itl_ms), ("ttft", ttfts, summary.ttft_ms)):
                if distribution is not None and len(values) == distribution.count:
                    self.assertAlmostEqual(told[f"mean_{name}_ms"], statistics.fmean(values) * 1000)
                    self.assertAlmostEqual(told[f"std_{name}_ms"], statistics.pstdev(values) * 1000)
                    self.assertEqual(told[f"median_{name}_ms"], distribution.p50)

    def test_it_is_a_trace_of_the_same_requests(self) -> None:
        run = burst()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "result.json"
            path.write_text(json.dumps(self.result(run)), encoding="utf-8")
            trace = read_trace(str(path))
        self.assertEqual(trace.format, "vllm-bench")
        self.assertEqual(trace.requests.prompt_tokens, run.requests.prompt_tokens)
        self.assertEqual(trace.requests.output_tokens, run.requests.output_tokens)

    def test_its_peaks_are_those_of_the_seconds(self) -> None:
        told = self.result(measured({"sent": 0.5, "times": [0.9, 1.1, 1.2]}, {"sent": 2.5, "times": [2.9]}))
        self.assertEqual((told["max_output_tokens_per_s"], told["max_concurrent_requests"]), (2.0, 1))

    def test_a_grid_is_a_line_a_row(self) -> None:
        grid = ReportInput("t", grids=[grid_of(sweep_document(), name="s", path="s")])
        told = [json.loads(line) for line in vllm_bench(grid)]
        self.assertEqual([row["max_concurrency"] for row in told], [1, 8, 32, 128, 256])
        self.assertEqual(told[4]["p95_ttft_ms"], 30 + 20.0 * 256)


class Markdown(unittest.TestCase):
    def test_every_row_of_a_table_has_its_columns(self) -> None:
        for report in (*materials().values(), ReportInput(HOSTILE, [named(hostile(), HOSTILE)])):
            text = "".join(markdown(report))
            width = 0
            for line in text.splitlines():
                cells = line.replace("\\|", "").count("|")
                width = 0 if not cells else width or cells
                self.assertEqual(cells, width, line)

    def test_text_from_outside_stays_text(self) -> None:
        text = "".join(markdown(ReportInput(HOSTILE, [named(hostile(), HOSTILE)])))
        text.encode("utf-8")
        for marks in ("<script", "<img", "\x1b", "\u202e"):
            self.assertNotIn(marks, text.replace("\\<", ""))
        self.assertEqual(escape_markdown("[x](javascript:y)"), r"\[x\]\(javascript\:y\)")

    def test_the_figures_are_the_summarys(self) -> None:
        text = "".join(markdown(materials()["burst"]))
        self.assertIn("| ttft | 21,401.5 | 17,679.7 |", text)
        self.assertIn("not met", text)


class MetricPage(unittest.TestCase):
    def test_it_reads_back_whole_and_its_histograms_count_every_value(self) -> None:
        for run in (burst(), streams(), random_simulated(5)):
            one = named(run, "run", "ttft_p95=1s")
            page = parse_page(metric_page(ReportInput("t", [one])))
            self.assertEqual(page.malformed_lines, 0)
            for metric, (name, _, bounds) in HISTOGRAMS.items():
                distribution = getattr(one.summary, f"{metric}_ms")
                buckets = [sample.value for sample in page.samples.get(f"{name}_bucket", ())]
                if distribution is None:
                    self.assertEqual(buckets, [])
                    continue
                self.assertEqual(len(buckets), len(bounds) + 1)
                self.assertEqual(buckets, sorted(buckets))
                self.assertEqual(buckets[-1], distribution.count)
                total = page.samples[f"{name}_sum"][0].value
                self.assertTrue(math.isclose(total, distribution.mean * distribution.count / 1000, abs_tol=1e-9))

    def test_a_hostile_name_is_one_label(self) -> None:
        page = parse_page(metric_page(ReportInput("t", [named(hostile(), 'a"} 1\nevil 2')])))
        self.assertEqual(page.malformed_lines, 0)
        self.assertNotIn("evil", page.samples)
        self.assertEqual(page.samples["servesim_requests_total"][0].labels["run"], 'a"} 1\nevil 2')

    def test_its_bounds_are_those_of_the_captured_page(self) -> None:
        from tests.command import ROOT

        text = (ROOT / "fixtures" / "captures" / "vllm-metrics-after-load.txt").read_text(encoding="utf-8")
        captured = parse_page(text)
        for metric, theirs in (
            ("ttft", "vllm:time_to_first_token_seconds"),
            ("itl", "vllm:inter_token_latency_seconds"),
            ("e2e", "vllm:e2e_request_latency_seconds"),
            ("queue", "vllm:request_queue_time_seconds"),
        ):
            bounds = dict.fromkeys(float(each.labels["le"]) for each in captured.samples[f"{theirs}_bucket"])
            self.assertEqual([*HISTOGRAMS[metric][2], math.inf], list(bounds), metric)

    def test_a_grid_is_gauges_with_what_was_swept(self) -> None:
        page = parse_page(metric_page(materials()["grids"]))
        told = page.samples["servesim_row_e2e_mean_milliseconds"]
        self.assertEqual(told[0].labels["concurrency"], "1")


class TraceEvents(unittest.TestCase):
    def test_slices_of_a_thread_nest_and_never_cross(self) -> None:
        for run in (burst(), streams(), *(random_simulated(seed) for seed in range(30))):
            threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
            for event in events(ReportInput("t", [named(run)])):
                if event["ph"] == "X":
                    self.assertGreaterEqual(event["dur"], 0)
                    slice_ = (event["ts"], event["ts"] + event["dur"])
                    threads.setdefault((event["pid"], event["tid"]), []).append(slice_)
            for slices in threads.values():
                open_: list[int] = []
                for start, end in sorted(slices, key=lambda each: (each[0], -each[1])):
                    while open_ and open_[-1] <= start:
                        open_.pop()
                    self.assertTrue(not open_ or end <= open_[-1])
                    open_.append(end)

    def test_a_request_is_as_long_as_its_e2e_and_its_phases_fill_it(self) -> None:
        told = events(materials()["burst"])
        lanes: dict[int, list[dict[str, Any]]] = {}
        for event in told:
            if event.get("cat") in ("request", "phase"):
                lanes.setdefault(event["tid"], []).append(event)
        found = 0
        for each in lanes.values():
            for request in (event for event in each if event["cat"] == "request"):
                start, end = request["ts"], request["ts"] + request["dur"]
                inside = [e for e in each if e["cat"] == "phase" and start <= e["ts"] and e["ts"] + e["dur"] <= end]
                self.assertEqual(sum(event["dur"] for event in inside), request["dur"])
                found += 1
        self.assertEqual(found, 48)
        self.assertEqual(sum(event["name"] == "preemption" for event in told), 7)
        self.assertEqual({event["name"] for event in told if event["ph"] == "C"},
                         {"running", "waiting", "KV in use, %", "tokens per step"})  # fmt: skip

    def test_every_event_has_what_the_format_asks(self) -> None:
        for event in events(ReportInput(HOSTILE, [named(hostile(), HOSTILE), named(burst(), "b")])):
            self.assertLessEqual({"name", "ph", "pid"}, event.keys())
            if event["ph"] != "M":
                self.assertIsInstance(event["ts"], int)

    def test_a_report_without_runs_is_a_trace_without_events(self) -> None:
        self.assertEqual(events(materials()["grids"]), [])


class Forms(unittest.TestCase):
    def test_every_form_writes_every_material(self) -> None:
        for form, renderer in RENDERERS.items():
            for name, report in materials().items():
                with self.subTest(form=form, report=name):
                    self.assertTrue("".join(renderer.render(report, list(FIGURES))))

    def test_json_is_finite_and_has_the_summaries(self) -> None:
        def refuse(word: str) -> float:
            raise ValueError(word)

        text = "".join(RENDERERS["json"].render(materials()["measured"], ()))
        document = json.loads(text, parse_constant=refuse)
        self.assertEqual(document["schema"], "servesim.report/1")
        self.assertEqual([run["source"] for run in document["runs"]], ["simulated", "measured"])

    def test_a_files_name_tells_its_form(self) -> None:
        for path, form in (("a.HTML", "html"), ("a.svg", "svg"), ("a.md", "markdown"), ("a.prom", "prometheus")):
            self.assertEqual(format_of(path), form)
        self.assertEqual(format_of(None), "html")

    def test_names_are_told_apart(self) -> None:
        self.assertEqual(len(set(distinct(["a", "b", "a", "a"]))), 4)


if __name__ == "__main__":
    unittest.main()
