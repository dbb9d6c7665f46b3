"""Every figure of fixtures/tables.json, to the digit: the acceptance table of the cost model and the scheduler."""

from __future__ import annotations

import json
import unittest
from typing import Any

from servesim.catalog.hardware import find_hardware
from servesim.catalog.models import find_model
from servesim.cost.roofline import critical_batch
from servesim.units import GIB
from tests.command import ROOT, servesim

TABLES: dict[str, Any] = json.loads((ROOT / "fixtures" / "tables.json").read_text(encoding="utf-8"))

FROM_ROW = {
    "concurrency": lambda row: row["concurrency"],
    "output_tokens_per_s": lambda row: round(row["throughput"]["output_tokens_per_s"], 1),
    "ttft_ms_p50": lambda row: round(row["ttft_ms"]["p50"], 1),
    "tpot_ms_p50": lambda row: round(row["tpot_ms"]["p50"], 1),
    "tpot_ms_p95": lambda row: round(row["tpot_ms"]["p95"], 1),
    "queue_ms_p95": lambda row: round(row["queue_ms"]["p95"], 1),
    "mean_batch": lambda row: round(row["engine"]["mean_batch"], 1),
    "kv_peak_percent": lambda row: round(100 * row["engine"]["kv_peak"], 1),
    "preemptions": lambda row: row["engine"]["preemptions"],
}


class Sweeps(unittest.TestCase):
    def test_the_sweeps_come_out_to_the_digit_under_either_rule_set(self) -> None:
        for table in TABLES["sweeps"]:
            for rules in ("vllm-0.32", "vllm-0.18"):
                with self.subTest(args=table["args"], rules=rules):
                    said = servesim(*table["args"], "--json", "--rules", rules)
                    self.assertEqual(said.code, 0, said.err)
                    rows = json.loads(said.out)["rows"]
                    got = [[FROM_ROW[column](row) for column in table["columns"]] for row in rows]
                    self.assertEqual(got, table["rows"])
                    self.assertEqual([row["engine"]["steps"] for row in rows], table["steps"])

    def test_the_printed_table_shows_the_same_digits(self) -> None:
        for table in TABLES["sweeps"]:
            said = servesim(*table["args"], "--quiet")
            printed = [line.split() for line in said.out.splitlines()[2 : 2 + len(table["rows"])]]
            self.assertEqual(
                printed,
                [
                    [
                        str(cell) if name != "kv_peak_percent" else f"{cell}%"
                        for name, cell in zip(table["columns"], row, strict=True)
                    ]
                    for row in table["rows"]
                ],
            )


class Capacity(unittest.TestCase):
    def test_the_l4_holds_what_the_table_says(self) -> None:
        want = TABLES["capacity"]
        got = json.loads(servesim(*want["args"], "--json").out)
        self.assertEqual(round(got["weights_bytes"] / 1e9, 2), want["weights_gb"])
        self.assertEqual(got["kv_bytes_per_token"] / 1024, want["kv_per_token_kib"])
        self.assertEqual(round(got["budget_bytes"] / GIB, 2), want["budget_gib"])
        self.assertEqual(round(got["kv_cache_bytes"] / GIB, 2), want["kv_cache_gib"])
        self.assertEqual(got["num_blocks"], want["blocks"])
        self.assertEqual(got["kv_tokens"], want["kv_tokens"])
        self.assertEqual(round(got["max_concurrency"], 2), want["max_concurrency_at_4096"])
        self.assertEqual(round(got["decode_step_ms"], 2), want["decode_step_ms"])
        self.assertEqual(round(got["critical_batch"]), want["critical_batch"])

    def test_the_70b_does_not_fit_one_h100_and_the_line_says_why(self) -> None:
        want = TABLES["does_not_fit"]
        said = servesim(*want["args"])
        self.assertEqual((said.code, said.out), (want["exit"], ""))
        self.assertEqual(said.err.count("\n"), 1)
        for figure in (f"{want['weights_gb']:.2f} GB", f"{want['reserve_gib']} GiB", f"{want['budget_gib']} GiB"):
            self.assertIn(figure, said.err)

    def test_critical_batches_and_the_raw_ridge(self) -> None:
        batch = critical_batch(find_model("llama-3.1-8b"), find_hardware("h100-sxm-80gb"))
        want = TABLES["critical_batch"]
        assert batch is not None
        self.assertEqual(round(batch), want["llama-3.1-8b on h100-sxm-80gb"])
        ridge = find_hardware("rtx-4050-laptop-6gb").ridge_flop_per_byte
        self.assertEqual(round(ridge), want["raw ridge of rtx-4050-laptop-6gb, FLOP per byte"])


class MeasuredElsewhere(unittest.TestCase):
    def test_the_m4_pro_is_within_what_its_preset_says_of_its_fit(self) -> None:
        measured = TABLES["m4_pro_qwen3_0_6b"]
        base = ("sweep", "--hardware", "apple-m4-pro", "--model", "qwen3-0.6b", "--requests", "1", "--concurrency", "1")
        flags = {"output_tokens": "--output-tokens", "input_tokens": "--prompt-tokens"}
        for scan, swept, fixed in (
            ("output_scan", "output_tokens", "input_tokens"),
            ("input_scan", "input_tokens", "output_tokens"),
        ):
            with self.subTest(scan=scan):
                table = measured[scan]
                values = ",".join(map(str, table[swept]))
                said = servesim(*base, flags[swept], values, flags[fixed], str(table[fixed]), "--json")
                rows = json.loads(said.out)["rows"]
                errors = [
                    abs(row["e2e_ms"]["p50"] / 1000 / latency_s - 1)
                    for row, latency_s in zip(rows, table["latency_s"], strict=True)
                ]
                self.assertLess(sum(errors) / len(errors), 0.05)
                self.assertLess(max(errors), 0.17)


if __name__ == "__main__":
    unittest.main()
