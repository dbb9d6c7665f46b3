"""`report` from the outside, and `--plot`: files in, a file out, and one line for whatever is wrong."""

from __future__ import annotations

import json
import os
import random
import tempfile
import unittest
from pathlib import Path
from typing import Any

from servesim.report.renderers import RENDERERS
from servesim.runs.writer import write_run
from tests.command import servesim
from tests.extent import seeds
from tests.report_runs import burst, hostile, scan_document, streams, sweep_document
from tests.test_cli_loadgen import Model
from tests.truth_server import TruthServer


class Report(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.run_file, self.other = str(self.folder / "burst.jsonl"), str(self.folder / "real.jsonl")
        write_run(self.run_file, burst(), "simulate")
        write_run(self.other, streams(), "loadgen")

    def path(self, name: str, content: Any = None) -> str:
        path = self.folder / name
        if content is not None:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return str(path)

    def test_a_run_becomes_a_page_and_nothing_is_said(self) -> None:
        out = self.path("report.html")
        said = servesim("report", self.run_file, "-o", out)
        self.assertEqual((said.code, said.out, said.err), (0, "", ""))
        self.assertTrue(Path(out).read_text(encoding="utf-8").startswith("<!doctype html>"))

    def test_the_name_of_the_file_decides_the_form_and_the_flag_beats_it(self) -> None:
        for name, begins in (("a.svg", "<svg"), ("a.csv", "run,index"), ("a.md", "# "), ("a.prom", "# HELP")):
            servesim("report", self.run_file, "-o", self.path(name))
            self.assertTrue(Path(self.path(name)).read_text(encoding="utf-8").startswith(begins))
        servesim("report", self.run_file, "-o", self.path("b.html"), "--format", "csv")
        self.assertTrue(Path(self.path("b.html")).read_text(encoding="utf-8").startswith("run,index"))

    def test_every_form_goes_to_stdout_too(self) -> None:
        for form in RENDERERS:
            said = servesim("report", self.run_file, self.other, "--format", form)
            self.assertEqual((said.code, said.err), (0, ""))
            self.assertTrue(said.out.endswith("\n"))

    def test_a_saved_run_gives_the_page_of_the_run_itself(self) -> None:
        first = servesim("report", self.run_file).out
        self.assertEqual(first, servesim("report", self.run_file).out)
        for words in ("17,679.7", 'id="timeline"', 'id="roofline"', "ridge 403"):
            self.assertIn(words, first)

    def test_json_is_the_summaries(self) -> None:
        document = json.loads(servesim("report", self.run_file, self.other, "--json", "--slo", "ttft_p95=1s").out)
        self.assertEqual([run["requests"]["offered"] for run in document["runs"]], [48, 40])
        self.assertEqual(document["runs"][0]["slo"][0]["met"], False)

    def test_figures_can_be_chosen(self) -> None:
        said = servesim("report", self.run_file, "--figures", "itl,timeline")
        self.assertEqual(said.out.count("<figure"), 2)
        said = servesim("report", self.run_file, "--figures", "timeline,nonsense")
        self.assertEqual(said.code, 2)
        self.assertIn("unknown figure 'nonsense'", said.err)

    def test_a_measured_run_gets_a_roofline_by_the_name_of_its_device(self) -> None:
        self.assertNotIn('id="roofline"', servesim("report", self.other).out)
        said = servesim("report", self.other, "--hardware", "l4-24gb")
        self.assertIn("ridge 403", said.out)
        for flags in (
            ("--hardware", "h10"),
            ("--model", "llama-3.1-8b"),
            ("--hardware", "l4-24gb", "--model", "x.json"),
        ):
            wrong = servesim("report", self.other, *flags)
            self.assertEqual((wrong.code, wrong.out, wrong.err.count("\n")), (2, "", 1), wrong.err)

    def test_sweeps_and_scans_become_curves(self) -> None:
        sweep, scan = self.path("sweep.json", sweep_document()), self.path("scan.json", scan_document())
        self.assertIn('id="curve"', servesim("report", sweep).out)
        self.assertIn('id="scan"', servesim("report", scan).out)
        both = servesim("report", sweep, self.path("other.json", sweep_document(90)), "--format", "svg").out
        self.assertIn("other", both)

    def test_a_real_sweep_and_a_real_simulation_are_read(self) -> None:
        quick = ("--requests", "8", "--prompt-tokens", "20", "--output-tokens", "5", "--quiet", "--json")
        sweep = self.path("s.json", servesim("sweep", "--concurrency", "1,2,4", *quick).out)
        said = servesim("report", sweep)
        self.assertEqual((said.code, said.err), (0, ""))
        self.assertIn('id="curve"', said.out)
        single = self.path("one.json", servesim("simulate", *quick).out)
        self.assertEqual(servesim("report", single).code, 0)

    def test_a_run_that_was_cut_is_shown_as_far_as_it_goes(self) -> None:
        lines = Path(self.other).read_text(encoding="utf-8").splitlines(keepends=True)
        cut = self.path("cut.jsonl", "".join(lines[:20]))
        said = servesim("report", cut)
        self.assertEqual(said.code, 0)
        self.assertIn("was cut", said.out)

    def test_hostile_words_come_out_as_words(self) -> None:
        path = self.path("hostile.jsonl")
        write_run(path, hostile(), "loadgen")
        said = servesim("report", path)
        self.assertEqual(said.code, 0)
        self.assertNotIn("<script", said.out)
        self.assertNotIn("<img", said.out)

    def test_what_cannot_be_read_is_one_line_and_leaves_no_file(self) -> None:
        out = self.path("report.html")
        cases = (
            ("missing.jsonl", None),
            ("empty.jsonl", ""),
            ("text.txt", "hello\nworld\n"),
            ("array.json", "[1, 2]"),
            ("cut.json", json.dumps(sweep_document())[:200]),
            ("other.json", {"schema": "servesim.capacity/1", "num_blocks": 5}),
            ("empty.json", {"rows": []}),
        )
        for name, content in cases:
            with self.subTest(name=name):
                said = servesim("report", self.path(name, content), "-o", out)
                self.assertEqual((said.code, said.out, said.err.count("\n")), (2, "", 1), said.err)
                self.assertFalse(os.path.exists(out))
        self.assertEqual(servesim("report").code, 2)
        self.assertEqual(servesim("report", self.run_file, "--json", "--format", "csv").code, 2)

    def test_a_file_that_cannot_be_written_is_1(self) -> None:
        said = servesim("report", self.run_file, "-o", self.path("no/such/folder.html"))
        self.assertEqual((said.code, said.out), (1, ""))

    def test_a_failed_report_leaves_the_old_file_alone(self) -> None:
        out = self.path("old.html", "old")
        servesim("report", self.path("missing.jsonl"), "-o", out)
        self.assertEqual(Path(out).read_text(encoding="utf-8"), "old")

    def test_a_document_with_anything_anywhere_is_drawn_or_refused(self) -> None:
        rng = random.Random(11)
        junk = [None, True, -1, 0, 1e308, "x", [], {}, [1], {"p95": "y"}, 2**70, -0.0]

        def spoil(tree: Any) -> Any:
            if rng.random() < 0.06:
                return rng.choice(junk)
            if isinstance(tree, dict):
                return {key: spoil(value) for key, value in tree.items()}
            return [spoil(each) for each in tree] if isinstance(tree, list) else tree

        for number in seeds(120):
            document = spoil(rng.choice([sweep_document, scan_document])())
            path = self.path("spoilt.json", document)
            for form in ("svg", "csv", "html"):
                with self.subTest(number=number, form=form):
                    said = servesim("report", path, "--format", form)
                    self.assertIn(said.code, (0, 2), said.err)


class Plot(unittest.TestCase):
    SMALL = ("--quiet", "--requests", "8", "--prompt-tokens", "20", "--output-tokens", "5", "--plot")

    def test_simulate_draws_below_its_text(self) -> None:
        said = servesim("simulate", *self.SMALL)
        self.assertEqual(said.code, 0)
        self.assertIn("TTFT of 8 requests", said.out)
        self.assertLess(said.out.index("latency ms"), said.out.index("running  "))

    def test_sweep_draws_bars(self) -> None:
        self.assertIn("█", servesim("sweep", "--concurrency", "1,4", *self.SMALL).out)

    def test_loadgen_draws_one_run_and_the_rows_of_several(self) -> None:
        with TruthServer(Model()) as server:
            flags = ("loadgen", "--url", server.url, "--requests", "4", "--max-tokens", "3", "--plot", "--quiet")
            one = servesim(*flags, "--concurrency", "2")
            several = servesim(*flags, "--concurrency", "1,2")
        self.assertEqual((one.code, several.code), (0, 0), one.err + several.err)
        self.assertIn("TTFT of 4 requests", one.out)
        self.assertIn("█", several.out)

    def test_a_document_takes_no_picture(self) -> None:
        for verb in ("simulate", "sweep"):
            said = servesim(verb, *self.SMALL, "--json")
            self.assertEqual((said.code, said.out, said.err.count("\n")), (2, "", 1))
        said = servesim("loadgen", "--url", "http://127.0.0.1:9", "--plot", "--json")
        self.assertEqual((said.code, said.out, said.err.count("\n")), (2, "", 1))


if __name__ == "__main__":
    unittest.main()
