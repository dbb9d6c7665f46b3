"""`servesim plan`: what a person types, shards, merges, and what is refused."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

from servesim.cli.plan import TUNED, build_parser, plan_spec
from servesim.report.schemas.registry import schema
from tests.command import servesim
from tests.extent import in_full, once
from tests.json_schema import problems

SMALL = (
    "plan",
    "--quiet",
    "--jobs",
    "1",
    "--requests",
    "120",
    "--slo",
    "ttft_p95=500ms,tpot_p95=50ms",
    "--hardware",
    "h100-sxm-80gb,l4-24gb",
    "--max-num-seqs",
    "32,128",
)


class Plan(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def json(self, *argv: str) -> dict[str, Any]:
        said = servesim(*argv, "--json")
        self.assertEqual(said.code, 0, said.err)
        return json.loads(said.out)  # type: ignore[no-any-return]

    def test_prints_the_choice_with_the_commands_that_start_it(self) -> None:
        said = servesim(*SMALL, "--rate", "60", "--price", "h100-sxm-80gb=3/h,l4-24gb=0.7/h")
        self.assertEqual((said.code, said.err), (0, ""))
        for line in (
            "to serve     60 requests/s",
            "front: cost (price per hour) against latency",
            "vllm         vllm serve meta-llama/Llama-3.1-8B",
            "llama.cpp    llama-server -m",
            "sglang       python -m sglang.launch_server",
            "next         more compute",
            "not          l4-24gb 32/128: no rate meets tpot_p95",
        ):
            self.assertIn(f"\n{line}", f"\n{said.out}")

    def test_json_says_what_was_asked_and_runs_again_from_itself(self) -> None:
        body = self.json(*SMALL)
        self.assertEqual((body["schema"], body["command"], body["partial"]), ("servesim.plan/1", "plan", False))
        document = self.path("plan.json")
        Path(document).write_text(json.dumps(body), encoding="utf-8")
        again = self.json("plan", "--quiet", "--jobs", "1", "--config", document)
        self.assertEqual(again, body)

    @in_full
    def test_any_number_of_jobs_prints_the_same(self) -> None:
        two = tuple("2" if word == "1" else word for word in SMALL)
        self.assertEqual(servesim(*SMALL).out, servesim(*two).out)

    def test_shards_merge_in_any_order_any_number_of_times(self) -> None:
        whole = servesim(*SMALL)
        one, two = self.path("1.jsonl"), self.path("2.jsonl")
        for shard, path in (("1/2", one), ("2/2", two)):
            self.assertEqual(servesim(*SMALL, "--shard", shard, "-o", path).code, 0)
        merged = servesim("plan", "--from", two, one, two, "--quiet", "--jobs", "1")
        self.assertEqual((merged.code, merged.out), (0, whole.out))

    def test_what_shards_lack_is_computed(self) -> None:
        one = self.path("1.jsonl")
        servesim(*SMALL, "--shard", "1/3", "-o", one)
        merged = servesim("plan", "--from", one, "--jobs", "1")
        self.assertIn("2 of 4 candidates are in no shard", merged.err)
        self.assertEqual(merged.out, servesim(*SMALL).out)

    def test_a_shard_that_was_killed_goes_on_where_it_was(self) -> None:
        path = self.path("1.jsonl")
        servesim(*SMALL, "--shard", "1/1", "-o", path)
        whole = Path(path).read_text(encoding="utf-8")
        Path(path).write_text(whole[:-100], encoding="utf-8")
        said = servesim(*[word for word in SMALL if word != "--quiet"], "--shard", "1/1", "-o", path)
        self.assertEqual(said.code, 0)
        self.assertIn("has 3 rows already", said.err)
        self.assertEqual(servesim("plan", "--from", path, "--quiet", "--jobs", "1").out, servesim(*SMALL).out)

    def test_shards_go_to_stdout_without_a_file(self) -> None:
        lines = [json.loads(line) for line in servesim(*SMALL, "--shard", "2/2").out.splitlines()]
        self.assertEqual([line["kind"] for line in lines], ["header", "edge", "edge"])

    def test_rows_of_another_plan_are_refused(self) -> None:
        one, other = self.path("1.jsonl"), self.path("2.jsonl")
        servesim(*SMALL, "--shard", "1/4", "-o", one)
        servesim(*SMALL, "--seed", "8", "--shard", "2/4", "-o", other)
        for argv in (
            ("plan", "--from", one, other),
            ("plan", "--from", one, "--seed", "9"),
            (*SMALL, "--seed", "9", "--shard", "1/4", "-o", one),
        ):
            said = servesim(*argv, "--quiet")
            self.assertEqual((said.code, said.out, said.err.count("\n")), (2, "", 1), said)

    def test_a_row_that_came_out_differently_is_refused(self) -> None:
        one, other = self.path("1.jsonl"), self.path("2.jsonl")
        servesim(*SMALL, "--shard", "1/4", "-o", one)
        text = Path(one).read_text(encoding="utf-8")
        Path(other).write_text(text.replace('"too_short":false', '"too_short":true'), encoding="utf-8")
        self.assertIn("came out differently", servesim("plan", "--from", one, other).err)

    def test_a_shard_that_never_wrote_its_header_is_one_that_lacks_everything(self) -> None:
        one, two = self.path("1.jsonl"), self.path("2.jsonl")
        servesim(*SMALL, "--shard", "1/2", "-o", one)
        for rest in ("", '{"kind":"head'):
            Path(two).write_text(rest, encoding="utf-8")
            merged = servesim("plan", "--from", two, one, "--jobs", "1")
            self.assertIn("what was lost is computed again", merged.err)
            self.assertEqual(merged.out, servesim(*SMALL).out)
            self.assertIn("2.jsonl: no header of a plan's shard", servesim("plan", "--from", two).err)

    def test_a_row_with_something_else_in_a_field_s_place_is_named(self) -> None:
        one, other = self.path("1.jsonl"), self.path("2.jsonl")
        servesim(*SMALL, "--shard", "1/4", "-o", one)
        header, line = Path(one).read_text(encoding="utf-8").splitlines()
        row = json.loads(line)
        for field, value in (("rate", "x"), ("at", None), ("probes", 7), ("seed", True), ("next_rate", [1])):
            Path(other).write_text(f"{header}\n{json.dumps(row | {field: value})}\n", encoding="utf-8")
            said = servesim("plan", "--from", other, "--quiet")
            self.assertEqual((said.code, said.err.count("\n")), (2, 1), said.err)
            self.assertIn(f"2.jsonl:2: {field} is ", said.err)

    def test_the_row_of_a_candidate_that_cannot_do_it_is_what_its_schema_says(self) -> None:
        for more in (("--slo", "ttft_p95=1ms"), ("--model", "llama-3.1-70b")):
            said = servesim(*SMALL, *more, "--shard", "1/1")
            for line in map(json.loads, said.out.splitlines()):
                with self.subTest(more=more, line=line["kind"]):
                    self.assertEqual(problems(schema("plan-shard"), line, strict=True), [])

    @once
    def test_the_corners_of_a_grid_whose_options_do_not_go_together_are_left_out_and_noted(self) -> None:
        base = ("plan", "--jobs", "1", "--requests", "60", "--slo", "ttft_p95=2s", "--hardware", "l4-24gb")
        slots, budgets = ("--max-num-seqs", "1,512"), ("--max-num-batched-tokens", "64,8192")
        said = servesim(*base, *slots, *budgets)
        self.assertEqual(said.code, 0, said.err)
        self.assertIn("searched     3 candidates", said.out)
        self.assertIn("left out of the grid: max_num_batched_tokens is 64, must be at least max_num_seqs", said.err)
        models = ("--model", "llama-3.1-8b,smollm2-135m", "--tensor-parallel-size", "1,2")
        self.assertIn("left out of the grid: tensor_parallel_size is 2", servesim(*base, *models).err)
        alone = servesim(*base, "--max-num-seqs", "512", "--max-num-batched-tokens", "64")
        self.assertEqual((alone.code, alone.out, alone.err.count("\n")), (2, "", 1))

    def test_what_cannot_be_planned_is_one_line(self) -> None:
        broken = self.path("broken.jsonl")
        Path(broken).write_text("nonsense\n", encoding="utf-8")
        for code, argv in (
            (2, ("plan",)),
            (2, ("plan", "--slo", "ttft_p95=5")),
            (2, (*SMALL, "--price", "h100-sxm-80gb=3/h")),
            (2, (*SMALL, "--price", "h100-sxm-80gb=3")),
            (2, (*SMALL, "--shard", "3/2")),
            (2, (*SMALL, "--shard", "x")),
            (2, (*SMALL, "--disagg", "1")),
            (2, (*SMALL, "--concurrency", "8")),
            (2, (*SMALL, "--prompt-tokens", "1,2")),
            (2, (*SMALL, "--trace", "-")),
            (2, ("plan", "--from", broken)),
            (2, ("plan", "--from", self.path("missing.jsonl"))),
            (2, ("plan", "--from", broken, "--shard", "1/2")),
            (1, (*SMALL, "-o", self.path("no/such/folder"))),
        ):
            with self.subTest(argv=argv):
                said = servesim(*argv)
                self.assertEqual((said.code, said.out, said.err.count("\n")), (code, "", 1), said)

    def test_nothing_that_meets_is_exit_1(self) -> None:
        said = servesim("plan", "--quiet", "--jobs", "1", "--slo", "tpot_p95=1ms", "--requests", "20")
        self.assertEqual(said.code, 1)
        self.assertIn("nothing meets the objectives", said.out)

    def test_tune_tries_what_was_not_given(self) -> None:
        values = {"slo": ["ttft_p95=1s"], "tune": True, "max_num_seqs": 64, "shared_prefix_tokens": 100}
        spec = plan_spec(values)
        self.assertEqual({c.server.max_num_seqs for c in spec.candidates}, {64})
        self.assertEqual(len(spec.candidates), 2 * 2 * 2)
        alone = plan_spec({key: value for key, value in values.items() if key != "shared_prefix_tokens"})
        self.assertEqual({c.server.prefix_caching for c in alone.candidates}, {None})

    def test_every_tuned_knob_is_an_option(self) -> None:
        self.assertLessEqual(TUNED.keys(), build_parser().options.keys())


if __name__ == "__main__":
    unittest.main()
