"""Tests of length scans: rows with exact figures, fitted lines, the table as it prints."""

from __future__ import annotations

import doctest
import json
import unittest

from servesim.client import scan as scan_module
from servesim.client.scan import Line, fit_line, make_scan
from servesim.errors import InputError
from servesim.report.sweep import scan_text
from servesim.runs.as_json import as_json
from servesim.runs.records import Outcome
from servesim.summary.summary import Summary, summarize
from tests.runs import measured


def answers(count: int, *, prompt: int, tokens: int, prefill_s: float, step_s: float, jitter_s: float = 0.0) -> Summary:
    """Return the summary of `count` equal requests, one after the other, each `jitter_s` slower than the last."""
    streams = []
    for number in range(count):
        sent = 100.0 * number
        first = sent + prefill_s + number * jitter_s
        times = [first + step_s * token for token in range(tokens)]
        streams.append({"sent": sent, "times": times, "prompt": prompt, "asked": tokens})
    return summarize(measured(*streams))


class ScanTest(unittest.TestCase):
    def test_an_output_scan_parts_prefill_from_decode(self) -> None:
        table = make_scan(
            "output_tokens",
            [(asked, answers(5, prompt=19, tokens=asked, prefill_s=0.25, step_s=0.0078125)) for asked in (10, 50, 100)],
        )
        first, second, third = table.rows
        self.assertEqual((first.asked_tokens, first.produced_tokens, first.prompt_tokens), (10, 10.0, 19.0))
        self.assertEqual([row.ttft_ms for row in table.rows], [250.0] * 3)
        self.assertEqual([row.tpot_ms for row in table.rows], [7.8125] * 3)
        self.assertEqual((first.e2e_ms, third.e2e_ms), (250 + 9 * 7.8125, 250 + 99 * 7.8125))
        self.assertEqual((first.extra_e2e_ms, second.extra_e2e_ms), (0.0, 40 * 7.8125))
        self.assertEqual(first.tokens_per_s, 10 / (250 + 9 * 7.8125) * 1000)
        self.assertEqual(table.e2e, Line(fixed_ms=242.1875, per_token_ms=7.8125, worst_ms=0.0))
        self.assertEqual(table.warnings, [])

    def test_a_prompt_scan_has_a_line_for_ttft(self) -> None:
        table = make_scan(
            "prompt_tokens",
            [
                (asked, answers(2, prompt=asked, tokens=100, prefill_s=0.125 + asked / 1024, step_s=0.0078125))
                for asked in (64, 256, 1024)
            ],
        )
        assert table.ttft is not None and table.e2e is not None
        self.assertAlmostEqual(table.ttft.fixed_ms, 125.0)
        self.assertAlmostEqual(table.ttft.per_token_ms, 1000 / 1024)
        self.assertAlmostEqual(table.e2e.fixed_ms, 125.0 + 99 * 7.8125)

    def test_e2e_has_its_range_over_the_repeats(self) -> None:
        summary = answers(5, prompt=4, tokens=2, prefill_s=0.5, step_s=0.25, jitter_s=0.125)
        row = make_scan("output_tokens", [(2, summary)]).rows[0]
        self.assertEqual((row.e2e_min_ms, row.e2e_ms, row.e2e_max_ms, row.completed), (750.0, 1000.0, 1250.0, 5))

    def test_asked_and_produced_that_differ_are_warned_of_and_the_line_runs_over_what_was_produced(self) -> None:
        short = answers(5, prompt=19, tokens=30, prefill_s=0.25, step_s=0.125)
        table = make_scan(
            "output_tokens", [(50, short), (60, answers(1, prompt=1, tokens=60, prefill_s=0.25, step_s=0.125))]
        )
        self.assertEqual(table.rows[0].produced_tokens, 30.0)
        self.assertIn("asked for 50 output tokens, got 30.0", table.warnings[0])
        self.assertIn("--ignore-eos", table.warnings[0])
        assert table.e2e is not None
        self.assertEqual(table.e2e.per_token_ms, 125.0)
        prompt = make_scan("prompt_tokens", [(100, answers(1, prompt=103, tokens=2, prefill_s=0.25, step_s=0.125))])
        self.assertEqual(prompt.warnings, ["asked for a prompt of 100 tokens, the server counted 103.0"])

    def test_a_row_that_failed_is_unknown_and_not_zero(self) -> None:
        failed = summarize(measured({"times": [], "outcome": Outcome.FAILED, "reason": "http_500", "asked": 9}))
        good = answers(1, prompt=3, tokens=9, prefill_s=0.25, step_s=0.125)
        table = make_scan("output_tokens", [(9, failed), (9, good)])
        row = table.rows[0]
        self.assertEqual(
            (row.failed, row.completed, row.e2e_ms, row.tokens_per_s, row.extra_e2e_ms), (1, 0, None, None, None)
        )
        self.assertIsNone(table.rows[1].extra_e2e_ms)
        self.assertIsNone(table.e2e)
        self.assertEqual(table.warnings, ["1 requests failed at 9 output tokens"])
        self.assertNotIn("None", scan_text(table))

    def test_no_line_without_two_lengths(self) -> None:
        self.assertIsNone(fit_line([]))
        self.assertIsNone(fit_line([(10, 5.0), (10, 6.0)]))
        self.assertIsNone(fit_line([(10, 5.0), (20, None)]))

    def test_the_line_is_the_least_squares_one_and_says_how_far_rows_lie_from_it(self) -> None:
        line = fit_line([(0, 0.0), (1, 3.0), (2, 3.0)])
        self.assertEqual(line, Line(fixed_ms=0.5, per_token_ms=1.5, worst_ms=1.0))

    def test_an_unknown_axis_is_refused(self) -> None:
        with self.assertRaises(InputError):
            make_scan("rate", [])

    def test_the_table_prints(self) -> None:
        table = make_scan(
            "output_tokens",
            [(asked, answers(5, prompt=19, tokens=asked, prefill_s=0.25, step_s=0.0078125)) for asked in (10, 50)],
        )
        self.assertEqual(
            scan_text(table),
            "scan of output tokens\n"
            " asked      got   prompt   TTFT ms   TPOT ms     E2E ms        E2E min - max    tok/s  extra E2E ms\n"
            "    10     10.0     19.0     250.0      7.81      320.3        320.3 - 320.3     31.2           0.0\n"
            "    50     50.0     19.0     250.0      7.81      632.8        632.8 - 632.8     79.0         312.5\n"
            "E2E  = 242.2 ms fixed + 7.812 ms per output token (rows within 0.0 ms)\n",
        )
        self.assertLessEqual(max(map(len, scan_text(table).splitlines())), 100)

    def test_the_json_is_finite_and_names_every_column(self) -> None:
        table = make_scan("output_tokens", [(9, answers(1, prompt=3, tokens=9, prefill_s=0.25, step_s=0.125))])
        document = json.loads(json.dumps(as_json(table), allow_nan=False))
        self.assertEqual(set(document), {"axis", "rows", "ttft", "e2e", "warnings"})
        self.assertEqual(document["rows"][0]["e2e_ms"], 1250.0)


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    tests.addTests(doctest.DocTestSuite(scan_module))
    return tests


if __name__ == "__main__":
    unittest.main()
