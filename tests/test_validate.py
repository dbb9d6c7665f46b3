"""The evidence: claims that need no data hold, data sets are read as they are, reports say what was skipped."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

from servesim.calibrate.silicon import Group, GroupFit, Held, applied, fit_group, medians, read_groups, transfers, why
from servesim.calibrate.validate import EVIDENCE, Claim, Evidence, Table, validate
from servesim.cli.runner import run_verb
from servesim.errors import InputError
from servesim.report.calibration import evidence_markdown, evidence_text
from tests.command import Said
from tests.extent import DATA, in_full, needs_data

HEADER = (
    "group,engine,engine_version,model,hardware,precision,gemm_quant,moe_quant,tp,pp,attention_dp,moe_tp,moe_ep,"
    "input_tokens,output_tokens,concurrency,ttft_ms_mean,tpot_ms_mean\n"
)


def verb(*argv: str) -> Said:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_verb("validate", argv)
    return Said(code, out.getvalue(), err.getvalue())


def group(**changes: object) -> Group:
    known: dict[str, object] = {
        "key": "g1", "engine": "vllm", "version": "0.19", "model": "Qwen/Qwen3-32B", "hardware": "h100_sxm",
        "quantization": "fp8", "devices": 2, "expert_parallel": False, "ranks": 1, "fixed_lengths": True,
        "input_tokens": 512, "output_tokens": 64,
        "points": ((4, 60.0, 12.0), (8, 65.0, 12.5), (16, 75.0, 13.5), (32, 95.0, 15.0)),
    }  # fmt: skip
    return Group(**{**known, **changes})  # type: ignore[arg-type]


class WithoutData(unittest.TestCase):
    @in_full
    def test_the_claims_that_need_no_data_hold(self) -> None:
        found = validate(None, names=("recovery", "m4-pro"))
        self.assertEqual([each.name for each in found], ["recovery", "m4-pro"])
        for each in found:
            self.assertEqual(each.skipped, "")
            for claim in each.claims:
                with self.subTest(evidence=each.name, claim=claim.what):
                    self.assertTrue(claim.met, claim.value)

    def test_what_has_no_data_is_skipped_and_says_so(self) -> None:
        with tempfile.TemporaryDirectory() as empty:
            for folder in (None, empty):
                for each in validate(folder, names=("vllm-runs", "silicon")):
                    self.assertIn(".csv" if each.name == "silicon" else ".jsonl", each.skipped)
                    self.assertEqual((each.claims, each.met), ((), True))

    def test_every_evidence_says_what_it_asks(self) -> None:
        for name, (about, _) in EVIDENCE.items():
            self.assertGreater(len(about), 20, name)


class SiliconTable(unittest.TestCase):
    def read(self, *rows: str, header: str = HEADER) -> list[Group]:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "silicon.csv")
            with open(path, "w", encoding="utf-8") as file:
                file.write(header + "".join(f"{row}\n" for row in rows))
            return read_groups(path)

    def test_rows_become_groups_in_order_of_concurrency(self) -> None:
        (found,) = self.read(
            "g,sglang,,deepseek-ai/DeepSeek-R1,b200_sxm,fp8,fp8,fp8_block,64,1,1,8,8,1024,1024,8,222.6,12.27",
            "g,sglang,,deepseek-ai/DeepSeek-R1,b200_sxm,fp8,fp8,fp8_block,64,1,1,8,8,1024,1024,4,171.8,10.27",
        )
        self.assertEqual((found.devices, found.expert_parallel, found.fixed_lengths), (8, True, False))
        self.assertEqual(found.points, ((4, 171.8, 10.27), (8, 222.6, 12.27)))
        self.assertEqual(found.model_class, "mixture")
        self.assertEqual([m.concurrency for m in found.measurements()], [4, 8])

    def test_any_model_and_device_of_the_catalogue_is_known(self) -> None:
        for model, hardware, preset in (
            ("Qwen/Qwen3-8B", "l40s", ("qwen3-8b", "l40s-48gb")),
            ("meta-llama/Llama-3.1-8B", "a100_sxm", ("llama-3.1-8b", "a100-sxm-80gb")),
            ("phi-4", "H200_SXM", ("phi-4", "h200-sxm-141gb")),
        ):
            options = group(model=model, hardware=hardware).options()
            self.assertEqual((options["model"], options["hardware"]), preset)

    def test_columns_in_any_order_and_without_those_that_say_nothing_are_read(self) -> None:
        values = {"concurrency": "4.0", "ttft_ms_mean": "171.8", "tpot_ms_mean": "10.27", "input_tokens": "1024"}
        values |= {"output_tokens": "128", "tp": "2", "hardware": "h100_sxm", "model": "phi-4", "engine": "vllm"}
        (found,) = self.read(",".join([*values.values(), "g"]), header=",".join([*values, "group"]) + "\n")
        self.assertEqual((found.key, found.devices, found.ranks, found.fixed_lengths), ("g", 2, 1, True))
        self.assertEqual(found.points, ((4, 171.8, 10.27),))

    def test_a_table_that_is_none_is_refused_with_its_line(self) -> None:
        row = "g,vllm,,phi-4,h100_sxm,,,,1,1,1,1,1,1024,1024,8,222.6,12.27"
        for rows, reason in (
            ((), "silicon.csv: has no row"),
            ((row, row.replace("222.6", "n/a")), "silicon.csv:3: ttft_ms_mean is 'n/a'"),
            ((row.replace("12.27", "0"),), "silicon.csv:2: tpot_ms_mean is '0', must be above 0"),
            ((row.replace(",8,", ",,"),), "silicon.csv:2: concurrency is ''"),
        ):
            with self.subTest(reason=reason), self.assertRaises(InputError) as refused:
                self.read(*rows)
            self.assertIn(reason, str(refused.exception))
        with self.assertRaisesRegex(InputError, "has no column group, engine"):
            self.read("1,2", header="a,b\n")

    def test_a_table_without_a_point_to_hold_is_no_evidence(self) -> None:
        row = "g,vllm,,nobody/knows,h100_sxm,,,,1,1,1,1,1,1024,1024,8,222.6,12.27\n"
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "silicon.csv").write_text(HEADER + row, encoding="utf-8")
            (found,) = validate(folder, names=("silicon",))
        self.assertIn("no preset for nobody/knows", found.skipped)
        self.assertEqual(found.claims, ())

    def test_a_batch_is_spread_over_the_ranks(self) -> None:
        measurements = group(ranks=2).measurements()
        self.assertEqual([m.concurrency for m in measurements], [2, 4, 8, 16])

    def test_tensorrt_admits_only_what_fits_whole(self) -> None:
        for found in group(engine="trtllm", input_tokens=8192, output_tokens=8192).measurements():
            self.assertEqual(found.server.config.max_num_seqs, found.server.plan.kv_tokens // 16384)

    def test_a_group_is_fitted_on_two_points_and_held_against_the_others(self) -> None:
        fit = fit_group(group())
        self.assertEqual(fit.failed, "")
        self.assertEqual([held.concurrency for held in fit.held], [8, 32])
        self.assertEqual([held.concurrency for held in fit.fitted], [4, 16])
        for held in fit.fitted:
            self.assertLess(abs(held.tpot), 0.04)
        for held in fit.held:
            self.assertLess(abs(held.tpot), 0.10)

    def test_a_server_with_a_long_way_to_its_queue_is_not_taken_for_one_that_computes_slowly(self) -> None:
        asked = group(
            devices=1, input_tokens=1024, output_tokens=1024, points=tuple((n, 60.0, 12.0) for n in (4, 8, 16, 32, 64))
        )
        slow = {"ingest_ms": 350.0, "mfu": 0.6}
        known = replace(asked.measurements()[0].server.hardware, detailed=slow)
        figures = [each.on(known, "detailed").predict() for each in asked.measurements()]
        points = [(n, 1e3 * at["ttft_mean"], 1e3 * at["tpot_mean"])
                  for (n, _, _), at in zip(asked.points, figures, strict=True)]  # fmt: skip
        fit = fit_group(group(devices=1, input_tokens=1024, output_tokens=1024, points=tuple(points)))
        self.assertAlmostEqual(fit.values["ingest_ms"], 350, delta=35)
        for held in (*fit.held, *fit.fitted):
            self.assertLess(max(abs(held.ttft), abs(held.tpot)), 0.05)

    def test_what_cannot_be_fitted_says_why(self) -> None:
        for changes, reason in (
            ({"model": "nobody/knows"}, "no preset for nobody/knows"),
            ({"hardware": "abacus"}, "no preset for abacus"),
            ({"quantization": "w3a7"}, "'w3a7'"),
            ({"devices": 7}, "must divide the 64 heads"),
            ({"points": ((4, 60.0, 12.0), (8, 65.0, 12.5))}, "3 are needed"),
            ({"model": "deepseek-ai/DeepSeek-R1", "devices": 1}, "does not fit"),
        ):
            with self.subTest(reason=reason):
                fit = fit_group(group(**changes))
                self.assertIn(reason, fit.failed)
                self.assertEqual(fit.held, ())

    def test_parameters_of_other_models_are_applied_to_a_model_not_in_the_fit(self) -> None:
        fits = [fit_group(group()), fit_group(group(key="g2", model="meta-llama/Llama-3.1-8B-Instruct", devices=1))]
        moved = list(map(applied, transfers(fits)))
        self.assertEqual([each.group.key for each in moved], ["g1", "g2"])
        fitted = {**fits[1].values, "overhead_ms": moved[0].values["overhead_ms"]}
        self.assertEqual(moved[0].values, fitted)
        # The fixed time of a step goes by layers, 64 of one model and 32 of the other.
        self.assertNotEqual(fits[1].values["overhead_ms"], fitted["overhead_ms"])
        self.assertEqual(len(moved[0].held), 4)
        self.assertEqual(transfers(fits[:1]), [])

    def test_a_group_that_is_far_off_has_a_reason(self) -> None:
        held = (Held(concurrency=8, ttft=-0.9, tpot=0.1), Held(concurrency=32, ttft=0.1, tpot=0.0))
        for points, reason in (
            (((4, 60, 12), (8, 65, 5), (16, 75, 13), (32, 95, 15)), "TPOT falls from 12 to 5 ms as load rises to 8"),
            (((4, 60, 12), (8, 9000, 13), (16, 30000, 14), (32, 90000, 15)), "the cache is smaller than planned"),
            (((4, 60, 12), (8, 20, 13), (16, 75, 14), (32, 95, 15)), "TTFT falls from 60 to 20 ms as load rises to 8"),
            (((4, 60, 12), (8, 40, 13), (16, 75, 14), (32, 95, 15)), "TTFT falls from 60 to 40 ms as load rises"),
            (((4, 60, 12), (8, 600, 13), (16, 675, 14), (32, 695, 15)), "jumps from 60 to 600 ms at 8 and stays"),
            (((4, 60, 12), (8, 230, 13), (16, 675, 14), (32, 695, 15)), "a queue in front of it"),
        ):
            with self.subTest(reason=reason):
                fit = GroupFit(group=group(points=points), values={}, held=held)
                self.assertIn(reason, why(fit))

    def test_medians_of_nothing_are_nothing(self) -> None:
        self.assertEqual(medians([]), (0, 0, 0.0, 0.0))


class Reports(unittest.TestCase):
    EVIDENCE = (
        Evidence(
            name="a",
            about="what it asks",
            claims=(Claim(what="x", value=0.012, bound=0.02), Claim(what="y", value=0.5, bound=0.1)),
            tables=(Table(title="a table", columns=("name", "n", "off"), rows=(("p|q", 1200, -0.051),)),),
            notes=("something",),
        ),
        Evidence(name="b", about="what else", skipped="no data"),
    )

    def test_text_says_which_claim_is_not_met_and_what_was_skipped(self) -> None:
        told = evidence_text(each.as_dict() for each in self.EVIDENCE)
        for part in (
            "met     1.2% <= 2%",
            "NOT MET 50.0% <= 10%",
            "1,200  -5.1%",
            "skipped: no data",
            "note  something",
        ):
            self.assertIn(part, told)

    def test_markdown_is_made_of_tables(self) -> None:
        told = evidence_markdown(each.as_dict() for each in self.EVIDENCE)
        for part in ("### a", "| x | 1.2% | 2% | met |", "| p\\|q | 1,200 | -5.1% |", "Skipped: no data."):
            self.assertIn(part, told)


class TheVerb(unittest.TestCase):
    def test_json_holds_every_claim(self) -> None:
        said = verb("--only", "m4-pro", "--json")
        document = json.loads(said.out)
        self.assertEqual((said.code, document["schema"]), (0, "servesim.validate/1"))
        (evidence,) = document["evidence"]
        self.assertTrue(all(claim["met"] for claim in evidence["claims"]))

    def test_unknown_evidence_and_folders_are_bad_input(self) -> None:
        with self.assertRaisesRegex(InputError, "did you mean 'silicon'"):
            verb("--only", "silicone")
        self.assertRaises(InputError, verb, "--data", "/no/such/folder")


@needs_data
class WithData(unittest.TestCase):
    def test_two_real_runs_are_replayed_and_carried_to_the_other_card(self) -> None:
        (found,) = validate(DATA, names=("vllm-runs",))
        for claim in found.claims:
            with self.subTest(claim=claim.what):
                self.assertTrue(claim.met, claim.value)

    def test_the_silicon_table_has_266_groups_and_one_in_twenty_holds_its_bounds(self) -> None:
        groups = read_groups(os.path.join(DATA, "silicon.csv"))
        self.assertEqual(len(groups), 266)
        few = [each for each in groups[::20] if each.output_tokens <= 1024]
        _, points, ttft, tpot = medians(fit_group(each) for each in few)
        self.assertGreater(points, 20)
        self.assertLess(ttft, 0.18)
        self.assertLess(tpot, 0.05)


if __name__ == "__main__":
    unittest.main()
