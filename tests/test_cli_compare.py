"""`compare` from the outside: what it reads, what it prints, when it exits 1 and when 2."""

from __future__ import annotations

import json
import os
import tempfile
import unittest
from pathlib import Path

from tests.command import Said, servesim

SMALL = ("simulate", "--quiet", "--requests", "600", "--prompt-tokens", "50-500", "--output-tokens", "10-60")


class Compare(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        for name, flags in (("a", ()), ("b", ("--seed", "8")), ("slow", ("--seed", "9", "--mbu", "0.4"))):
            servesim(*SMALL, *flags, "--save", cls.path(f"{name}.jsonl"), "--json", "-o", cls.path(f"{name}.json"))
        servesim("sweep", *SMALL[1:], "--concurrency", "2,8", "--json", "-o", cls.path("sweep.json"))

    @classmethod
    def path(cls, name: str) -> str:
        return str(cls.folder / name)

    def compare(self, a: str, b: str, *flags: str) -> Said:
        return servesim("compare", self.path(a), self.path(b), *flags)

    def test_two_saved_runs_stand_side_by_side_with_verdicts(self) -> None:
        said = self.compare("a.jsonl", "slow.jsonl")
        self.assertEqual((said.code, said.err), (0, ""))
        self.assertRegex(said.out, r"(?m)^tpot_p50 ms .* \+\d+\.\d% \.\. \+\d+\.\d%  worse$")
        self.assertIn("mbu 0.75 -> 0.4", said.out)
        for line in said.out.splitlines():
            self.assertLessEqual(len(line), 100 + len(self.path("slow.jsonl")) * ("jsonl:" in line), line)

    def test_a_gate_that_trips_is_1_and_one_that_cannot_tell_is_0_and_says_so(self) -> None:
        said = self.compare("a.jsonl", "slow.jsonl", "--fail-if", "tpot_p50>+5%")
        self.assertEqual(said.code, 1)
        self.assertIn("tpot_p50>+5%: tripped", said.out)
        said = self.compare("a.jsonl", "b.jsonl", "--fail-if", "tpot_p50>+5%,throughput<-30%")
        self.assertEqual((said.code, said.err), (0, ""))
        flags = ("--fail-if", "tpot_p999>+5%")
        said = self.compare("a.jsonl", "slow.jsonl", *flags)
        self.assertEqual(said.code, 0)
        self.assertIn("cannot tell and does not trip", said.err)
        self.assertEqual(self.compare("a.jsonl", "slow.jsonl", *flags, "--strict").code, 1)

    def test_summaries_and_rows_are_compared_without_intervals(self) -> None:
        for a, b in (("a.json", "slow.json"), ("a.jsonl", "b.json"), ("sweep.json#concurrency=8", "sweep.json#1")):
            said = self.compare(a, b)
            self.assertEqual(said.code, 0, said.err)
            self.assertIn("without per-request records", said.out)
            self.assertNotIn(" worse", said.out)
        said = self.compare("sweep.json#concurrency=8", "sweep.json#concurrency=2")
        self.assertIn("concurrency 8 -> 2", said.out)

    def test_a_row_of_several_must_be_named(self) -> None:
        for name in ("sweep.json", "sweep.json#3", "sweep.json#concurrency=9"):
            said = self.compare("a.json", name)
            self.assertEqual((said.code, said.out, said.err.count("\n")), (2, "", 1))
            self.assertIn("sweep.json#concurrency=2", said.err)

    def test_json_holds_every_figure_and_only_finite_numbers(self) -> None:
        said = self.compare("a.jsonl", "slow.jsonl", "--json", "--fail-if", "tpot_p50>+5%")
        got = json.loads(said.out, parse_constant=self.fail)
        self.assertEqual((said.code, got["schema"], got["command"]), (1, "servesim.compare/1", "compare"))
        figures = {figure["name"]: figure for figure in got["figures"]}
        self.assertEqual(figures["tpot_p50"]["verdict"], "worse")
        self.assertEqual(figures["mean_batch"]["verdict"], None)
        low, high = figures["tpot_p50"]["relative_interval"]
        self.assertTrue(low < figures["tpot_p50"]["relative"] < high)
        self.assertEqual(got["gates"][0]["result"], "tripped")
        self.assertEqual(got["changed"]["mbu"], {"a": 0.75, "b": 0.4})

    def test_markdown_is_a_table_with_whole_rows(self) -> None:
        said = self.compare("a.jsonl", "b.jsonl", "--markdown")
        rows = [line for line in said.out.splitlines() if line.startswith("|")]
        self.assertGreater(len(rows), 20)
        self.assertEqual({row.count("|") for row in rows}, {8})

    def test_what_a_file_says_cannot_steer_a_terminal(self) -> None:
        document = json.loads(Path(self.path("a.json")).read_text())
        document["command"] = document["config"]["model"] = "x\x1b[2J\nB"
        Path(self.path("hostile.json")).write_text(json.dumps(document))
        for flags in ((), ("--markdown",)):
            said = self.compare("hostile.json", "b.json", *flags)
            self.assertEqual(said.code, 0)
            self.assertNotIn("\x1b", said.out)

    def test_a_cut_file_is_compared_up_to_the_cut_and_called_partial(self) -> None:
        lines = Path(self.path("a.jsonl")).read_text().splitlines(keepends=True)
        Path(self.path("cut.jsonl")).write_text("".join(lines[: len(lines) // 2]))
        said = self.compare("cut.jsonl", "b.jsonl")
        self.assertEqual(said.code, 0)
        self.assertIn("A is partial", said.out)

    def test_what_goes_to_a_file_does_not_go_to_stdout(self) -> None:
        said = self.compare("a.jsonl", "b.jsonl", "-o", self.path("out.txt"))
        self.assertEqual((said.code, said.out), (0, ""))
        self.assertEqual(Path(self.path("out.txt")).read_text(), self.compare("a.jsonl", "b.jsonl").out)

    def test_the_help_begins_with_examples_and_names_both_runs(self) -> None:
        said = servesim("compare", "--help")
        self.assertEqual(said.code, 0)
        self.assertTrue(said.out.startswith("examples:\n  servesim compare "))
        self.assertIn("usage: servesim compare A B [options]", said.out)

    def test_bad_input_is_one_line_and_2(self) -> None:
        for name, content in (("empty", ""), ("list", "[]"), ("none", "{}"), ("rows", '{"schema": "x", "rows": [1]}')):
            Path(self.path(name)).write_text(content)
        for argv in (
            (),
            (self.path("a.json"),),
            (self.path("a.json"), self.path("b.json"), "third"),
            *((self.path("a.json"), self.path(name)) for name in ("missing", "empty", "list", "none", "rows")),
            (self.path("a.json"), self.path("a.json#1")),
            (self.path("a.json"), self.path("a.jsonl#1")),
            (self.path("a.json"), os.fspath(self.folder)),
            (self.path("a.json"), self.path("b.json"), "--fail-if", "ttft_p95>10%"),
            (self.path("a.json"), self.path("b.json"), "--margin", "2"),
            (self.path("a.json"), self.path("b.json"), "--json", "--markdown"),
        ):
            with self.subTest(argv=argv):
                said = servesim("compare", *argv)
                self.assertEqual((said.code, said.out, said.err.count("\n")), (2, "", 1), said.err)


if __name__ == "__main__":
    unittest.main()
