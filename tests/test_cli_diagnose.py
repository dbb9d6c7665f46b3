"""`servesim diagnose`: pages, reports, sweeps and saved runs in; words and JSON out."""

from __future__ import annotations

import json
import re
import tempfile
import unittest
from pathlib import Path
from typing import Any

from tests.command import Said, servesim

CAPTURES = "fixtures/captures"
BURST = ("--hardware", "l4-24gb", "--trace", "fixtures/burst.jsonl", "--quiet")


class Diagnoses(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def file(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def json(self, *argv: str) -> dict[str, Any]:
        said = servesim("diagnose", *argv, "--json")
        self.assertEqual(said.code, 0, said.err)
        return json.loads(said.out)  # type: ignore[no-any-return]

    def test_two_pages_with_the_flags(self) -> None:
        said = servesim(
            "diagnose",
            f"{CAPTURES}/vllm-small-cache-metrics-before.txt",
            f"{CAPTURES}/vllm-small-cache-metrics-under-load.txt",
            "--window",
            "30s",
            "--flags",
            "vllm serve tiny --max-num-seqs 128 --max-num-batched-tokens 128 --port 8000",
        )
        self.assertEqual(said.code, 0)
        self.assertIn("binds          kv blocks: KV use 92% at its peak, 5 waiting", said.out)
        self.assertIn("will not help  --max-num-seqs", said.out)
        self.assertIn("GPU utilisation is no evidence", said.out)
        self.assertIn("not read from the flags: --port", said.err)
        self.assertLessEqual(max(map(len, said.out.splitlines())), 100)

    def test_what_a_server_answers_that_is_away_or_has_no_metrics_is_told_as_that(self) -> None:
        for text, told in (
            ("", "is empty; a metric page comes from a server that runs"),
            ('{"error":{"code":501,"type":"not_supported_error"}}', "llama.cpp with --metrics, sglang with"),
        ):
            said = servesim("diagnose", self.file("page.txt", text))
            self.assertEqual((said.code, said.out), (2, ""))
            self.assertIn(told, said.err)

    def page(self, name: str, **gauges: str) -> str:
        """Return a capture under load in which the gauges of these names have other values."""
        text = Path(f"{CAPTURES}/vllm-metrics-under-load.txt").read_text(encoding="utf-8")
        for gauge, value in gauges.items():
            text = re.sub(rf"(vllm:{gauge}\{{[^}}]*\}}) .*", rf"\1 {value}", text)
        return self.file(name, text)

    def test_a_page_that_does_not_tell_what_requests_wait_for_is_not_healthy(self) -> None:
        body = self.json(self.page("unknown", kv_cache_usage_perc="NaN"))
        self.assertEqual((body["binds"], body["queueing"]), (None, True))
        said = servesim("diagnose", self.page("again", kv_cache_usage_perc="NaN"))
        self.assertIn("not clear: requests wait", said.out)
        self.assertNotIn("does what it is asked to", said.out)
        lines = Path(f"{CAPTURES}/llamacpp-metrics-after.txt").read_text(encoding="utf-8").splitlines()
        bare = self.file("bare", "\n".join(line for line in lines if "llamacpp:requests_" not in line))
        self.assertIs(self.json(bare)["queueing"], None)
        self.assertIn("nothing that is known of the server says whether requests wait", servesim("diagnose", bare).out)
        self.assertIs(self.json(f"{CAPTURES}/llamacpp-metrics-after.txt")["queueing"], False)

    def test_a_server_whose_clients_gave_up_is_not_healthy(self) -> None:
        report = str(self.folder / "given-up.json")
        load = "--rate 20 --requests 60 --client-timeout 1s --json --quiet".split()
        servesim("simulate", "--hardware", "l4-24gb", *load, "-o", report)
        said = servesim("diagnose", report)
        self.assertIn("not clear: 60 requests failed (timeout), and nothing that is", said.out)
        self.assertNotIn("does what it is asked to", said.out)

    def test_a_report_with_a_text_for_its_errors_is_refused_in_one_line(self) -> None:
        report = json.loads(servesim("simulate", "--requests", "4", "--json", "--quiet").out)
        said = servesim("diagnose", self.file("broken.json", json.dumps(report | {"errors": "x"})))
        self.assertEqual((said.code, said.err.count("\n")), (2, 1), said.err)

    def test_pages_of_two_servers_are_refused_and_pages_in_the_wrong_order_are_noted(self) -> None:
        vllm = [f"{CAPTURES}/vllm-metrics-{when}.txt" for when in ("after", "before")]
        said = servesim("diagnose", vllm[0], f"{CAPTURES}/llamacpp-metrics-after.txt")
        self.assertEqual(said.code, 2)
        self.assertIn("the pages are of two servers, vllm and llama.cpp", said.err)
        self.assertIn("the counters started again", servesim("diagnose", *vllm).err)
        self.assertNotIn("the counters started again", servesim("diagnose", *reversed(vllm)).err)

    def test_seats_of_several_engines_behind_one_page_are_each_engine_s_own(self) -> None:
        text = Path(self.page("one", num_requests_running="70")).read_text(encoding="utf-8")
        both = self.file("both", text + text.replace('engine="0"', 'engine="1"'))
        flags = ("--flags", "vllm serve tiny --max-num-seqs 128 --data-parallel-size 2")
        said = servesim("diagnose", both, *flags)
        self.assertNotIn("of 128 max_num_seqs slots", said.out.partition("turn first")[0])
        self.assertIn("the page tells of 2 engines", said.err)
        evidence = self.json(both, *flags)["evidence"]
        self.assertEqual((evidence["running_max"], evidence["waiting"]), (70, 56))

    def test_a_fleet_that_scales_is_not_taken_for_one_server(self) -> None:
        report = str(self.folder / "scaled.json")
        scaled = "--autoscale 1:3 --scale-on waiting --target 2 --cold-start 2s --rate 3 --requests 60".split()
        servesim("simulate", "--hardware", "l4-24gb", *scaled, "--json", "--quiet", "-o", report)
        said = servesim("diagnose", report, "--try")
        self.assertIn("a fleet's figures are taken together", said.err)
        self.assertNotIn("slots:", said.out)

    def test_the_incident_from_its_report_and_from_its_saved_run(self) -> None:
        report, saved = str(self.folder / "report.json"), str(self.folder / "run.jsonl")
        servesim("simulate", *BURST, "--json", "-o", report, "--save", saved)
        for path in (report, saved):
            body = self.json(path)
            self.assertEqual(body["binds"], "kv blocks")
            self.assertEqual(body["findings"][0]["knobs"]["vllm"], "--enable-prefix-caching")
            self.assertEqual(body["findings"][0]["useless"][0]["option"], "max_num_seqs")

    def test_the_knob_is_turned_when_asked(self) -> None:
        report = str(self.folder / "report.json")
        servesim("simulate", *BURST, "--json", "-o", report)
        tried = self.json(report, "--try")["tried"]
        self.assertEqual(tried["changed"], {"prefix_caching": True})
        self.assertEqual(tried["figures"]["preemptions"], {"before": 7.0, "after": 0.0})
        self.assertIn("preemptions 7 -> 0", servesim("diagnose", report, "--try").out)
        page = self.json(f"{CAPTURES}/vllm-metrics-under-load.txt", "--try")
        self.assertIsNone(page["tried"])
        self.assertIn("only the report of a simulated run", page["notes"][-1])

    def test_a_sweep_is_diagnosed_row_by_row(self) -> None:
        path = str(self.folder / "sweep.json")
        servesim(
            "sweep",
            "--quiet",
            "--requests",
            "128",
            "--max-num-seqs",
            "8",
            "--concurrency",
            "2,64",
            "--json",
            "-o",
            path,
        )
        body = self.json(path)
        self.assertEqual([row["binds"] for row in body["rows"]], ["client", "sequences"])
        self.assertEqual([row["point"]["concurrency"] for row in body["rows"]], [2, 64])
        self.assertEqual(servesim("diagnose", path).out.count("\nrow "), 1)

    def test_a_measured_report_takes_the_flags(self) -> None:
        report = self.folder / "report.json"
        servesim("simulate", "--concurrency", "64", "--max-num-seqs", "16", "--quiet", "--json", "-o", str(report))
        measured = json.loads(report.read_text(encoding="utf-8"))
        server = {"dialect": "vllm", "running": {"mean": 15.5, "max": 16}, "waiting": {"mean": 40, "max": 48}}
        measured |= {"source": "measured", "server": {**server, "kv_mean": 0.1, "kv_peak": 0.2}}
        measured["config"] = {"concurrency": 64}
        measured["engine"] = dict.fromkeys(measured["engine"])
        report.write_text(json.dumps(measured), encoding="utf-8")
        self.assertIsNone(self.json(str(report))["binds"])
        body = self.json(str(report), "--flags", "vllm serve x/y --max-num-seqs 16")
        self.assertEqual(body["binds"], "sequences")
        self.assertEqual(body["findings"][0]["evidence"], "16 running of 16 max_num_seqs slots, 40 waiting, KV use 20%")
        self.assertIn(
            "will not help  --max-num-batched-tokens",
            servesim("diagnose", str(report), "--flags", "vllm serve x/y --max-num-seqs 16").out,
        )

    def test_a_fleet_is_not_taken_for_one_server(self) -> None:
        report = str(self.folder / "report.json")
        fleet = ("--replicas", "2", "--rate", "5", "--requests", "40", "--quiet", "--json", "-o", report)
        servesim("simulate", *fleet)
        body = self.json(report)
        self.assertIn("a fleet's figures", body["notes"][0])
        self.assertNotIn("max_num_seqs", body["evidence"])

    def test_a_device_adds_the_memory_plan(self) -> None:
        page = self.file(
            "page.txt",
            'vllm:num_requests_waiting 0\nvllm:cache_config_info{num_gpu_blocks="1900",block_size="16",'
            'gpu_memory_utilization="0.9",enable_prefix_caching="True"} 1\n',
        )
        body = self.json(page, "--hardware", "l4-24gb", "--model", "llama-3.1-8b")
        self.assertEqual([check["agrees"] for check in body["checks"]], [True])
        self.assertIn("1,941 blocks, the server says 1,900", body["checks"][0]["told"])

    def test_a_model_is_taken_from_the_page_but_never_guessed(self) -> None:
        info = 'vllm:cache_config_info{num_gpu_blocks="1900",block_size="16",gpu_memory_utilization="0.9"%s} 1\n'
        waiting = "vllm:num_requests_waiting 0\n"
        named = self.file("named.txt", waiting + info % ',model_name="meta-llama/Llama-3.1-8B-Instruct"')
        self.assertEqual(len(self.json(named, "--hardware", "l4-24gb")["checks"]), 1)
        body = self.json(self.file("unnamed.txt", waiting + info % ""), "--hardware", "l4-24gb")
        self.assertEqual(body["checks"], [])
        self.assertIn("give --model", body["notes"][0])

    def test_a_device_that_cannot_hold_the_model_is_told_and_the_rest_goes_on(self) -> None:
        body = self.json(f"{CAPTURES}/vllm-metrics-after.txt", "--hardware", "l4-24gb", "--model", "llama-3.1-70b")
        self.assertIsNone(body["binds"])
        self.assertIn("does not fit", body["notes"][0])

    def test_what_cannot_be_read_is_one_line_and_exit_2(self) -> None:
        for files in (
            (),
            ("missing.txt",),
            (self.file("a", "hello\n"),),
            (self.file("b", "{}"),),
            (self.file("c", "{"),),
            (self.file("d", '{"schema":"servesim.summary/1","config":{}}'),),
            (self.file("e", '{"schema":"servesim.sweep/1","config":{},"rows":[1]}'),),
            (self.file("f", '{"kind":"header","schema":"x"}'),),
            (f"{CAPTURES}/vllm-metrics-after.txt",) * 3,
            (f"{CAPTURES}/vllm-metrics-after.txt", "--flags", "ls"),
            (f"{CAPTURES}/vllm-metrics-after.txt", "--hardware", "l5"),
        ):
            with self.subTest(files=files):
                said: Said = servesim("diagnose", *files)
                self.assertEqual((said.code, said.out, said.err.count("\n")), (2, "", 1), said)

    def test_a_verdict_is_never_an_exit_1(self) -> None:
        self.assertEqual(servesim("diagnose", f"{CAPTURES}/vllm-metrics-under-load.txt").code, 0)


if __name__ == "__main__":
    unittest.main()
