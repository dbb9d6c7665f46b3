"""`sweep`: grids, processes, the knee, length scans, and what counts as success."""

from __future__ import annotations

import doctest
import json
import unittest
from typing import Any

from servesim.plan import sweep as analysis
from servesim.plan.sweep import grid, knee
from tests.command import servesim

SMALL = ("sweep", "--quiet", "--requests", "8", "--prompt-tokens", "20", "--output-tokens", "5")


def rows(*argv: str) -> list[dict[str, Any]]:
    said = servesim(*argv, "--json")
    assert said.code < 2, said.err
    return json.loads(said.out)["rows"]  # type: ignore[no-any-return]


class Grids(unittest.TestCase):
    def test_the_default_is_five_concurrencies(self) -> None:
        self.assertEqual([row["concurrency"] for row in rows(*SMALL)], [1, 8, 32, 128, 256])

    def test_two_lists_make_a_grid_and_the_load_varies_slowest(self) -> None:
        got = rows(*SMALL, "--max-num-seqs", "2,4", "--concurrency", "1,8")
        self.assertEqual([(row["concurrency"], row["max_num_seqs"]) for row in got], [(1, 2), (1, 4), (8, 2), (8, 4)])

    def test_a_rate_replaces_the_default_concurrencies(self) -> None:
        self.assertEqual([row["rate"] for row in rows(*SMALL, "--rate", "5,50")], [5.0, 50.0])

    def test_a_trace_is_swept_over_servers(self) -> None:
        got = rows("sweep", "--quiet", "--trace", "fixtures/burst.jsonl", "--hardware", "l4-24gb,h100-sxm-80gb")
        self.assertEqual([row["hardware"] for row in got], ["l4-24gb", "h100-sxm-80gb"])
        self.assertGreater(got[0]["ttft_ms"]["p50"], got[1]["ttft_ms"]["p50"])

    def test_a_row_does_not_depend_on_the_rows_beside_it(self) -> None:
        alone = rows(*SMALL, "--concurrency", "8")[0]
        self.assertEqual(alone, rows(*SMALL, "--concurrency", "1,8")[1])

    def test_any_number_of_jobs_prints_the_same_bytes(self) -> None:
        for flags in ((), ("--json",)):
            one = servesim(*SMALL, *flags)
            three = servesim(*SMALL, *flags, "--jobs", "3")
            self.assertEqual(one, three)

    def test_an_error_in_a_process_is_the_same_one_line(self) -> None:
        said = servesim("sweep", "--hardware", "l4-24gb", "--kv-tokens", "1k,10M", "--jobs", "2")
        self.assertEqual((said.code, said.out, said.err.count("\n")), (1, "", 1))

    def test_a_server_that_cannot_be_is_found_before_anything_runs(self) -> None:
        said = servesim("sweep", "--hardware", "h100-sxm-80gb,l4", "--requests", "1000000")
        self.assertEqual((said.code, said.out), (2, ""))


class Success(unittest.TestCase):
    def test_an_objective_that_one_row_meets_is_enough(self) -> None:
        self.assertEqual(servesim(*SMALL, "--concurrency", "1,8", "--slo", "ttft_p95=9ms").code, 0)
        self.assertEqual(servesim(*SMALL, "--concurrency", "1,8", "--slo", "ttft_p95=1ms").code, 1)

    def test_rejected_requests_do_not_count_against_a_sweep(self) -> None:
        got = servesim(*SMALL, "--kv-tokens", "160", "--prompt-tokens", "10-300", "--json")
        self.assertGreater(json.loads(got.out)["rows"][0]["requests"]["rejected"], 0)
        self.assertEqual(got.code, 0)


class Knees(unittest.TestCase):
    def test_the_knee_is_where_power_peaks(self) -> None:
        self.assertEqual(knee([1, 2, 4, 8], [10, 20, 39, 40], [1.0, 1.0, 1.05, 2.0]), 2)

    def test_it_does_not_depend_on_the_order_and_ties_go_to_the_lower_load(self) -> None:
        self.assertEqual(knee([8, 4, 2, 1], [40, 39, 20, 10], [2.0, 1.05, 1.0, 1.0]), 1)
        self.assertEqual(knee([4, 1, 2], [8, 4, 8], [2.0, 1.0, 2.0]), 1)

    def test_fewer_than_three_usable_points_have_none(self) -> None:
        self.assertIsNone(knee([1, 2], [1, 2], [1, 1]))
        self.assertIsNone(knee([1, 2, 3], [1, None, 2], [1, 1, None]))

    def test_it_is_looked_for_along_one_load_only(self) -> None:
        for flags, found in (
            ((), True),
            (("--rate", "1,10,100,1000"), True),
            (("--max-num-seqs", "1,2,3", "--concurrency", "4"), False),
            (("--max-num-seqs", "1,2", "--concurrency", "1,2,3"), False),
        ):
            with self.subTest(flags=flags):
                self.assertEqual(json.loads(servesim(*SMALL, *flags, "--json").out)["knee"] is not None, found)

    def test_the_docstrings_are_true(self) -> None:
        self.assertEqual(doctest.testmod(analysis).failed, 0)
        self.assertEqual(grid({}), [{}])


class Scans(unittest.TestCase):
    def test_a_list_of_output_lengths_is_a_scan_at_concurrency_1(self) -> None:
        said = servesim(*SMALL[:4], "--max-tokens", "10,50,100", "--prompt-tokens", "19", "--json")
        got = json.loads(said.out)
        self.assertEqual([row["asked_tokens"] for row in got["scan"]["rows"]], [10, 50, 100])
        self.assertEqual({row["concurrency"] for row in got["rows"]}, {1})
        self.assertEqual([row["swept"]["output_tokens"] for row in got["rows"]], ["10", "50", "100"])

    def test_a_scan_takes_the_flags_of_loadgen_and_its_five_requests_a_length(self) -> None:
        flags = ("--max-tokens", "1,2", "--prompt-tokens", "19", "--ignore-eos", "--warmup", "3")
        for more, completed in (((), 5), (("--repeat", "2"), 2), (("--requests", "7"), 7)):
            got = json.loads(servesim("sweep", "--quiet", *flags, *more, "--json").out)
            self.assertEqual([row["completed"] for row in got["scan"]["rows"]], [completed] * 2)

    def test_ranges_are_swept_as_a_grid(self) -> None:
        got = json.loads(servesim(*SMALL, "--output-tokens", "1-5,5-9", "--json").out)
        self.assertNotIn("scan", got)


if __name__ == "__main__":
    unittest.main()
