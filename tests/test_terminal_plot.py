"""Pictures in characters: what stands out in the run stands out in them, and they fit a terminal."""

from __future__ import annotations

import random
import unittest

from servesim.report.charts import sample_of
from servesim.report.terminal import BLOCKS, COLUMNS, bar, histogram_lines, plot_rows, plot_run, sparkline
from servesim.stats import Values
from servesim.summary.summary import summarize
from tests.report_runs import burst, streams
from tests.runs import measured, random_simulated


class Sparklines(unittest.TestCase):
    def test_they_run_from_nothing_to_full(self) -> None:
        self.assertEqual(sparkline([0, 1, 2, 4, 8]), " ▁▂▄█")
        self.assertEqual(sparkline([0, 0, 0]), "   ")
        self.assertEqual(sparkline([]), "")

    def test_whatever_is_above_nothing_is_seen(self) -> None:
        self.assertEqual(sparkline([1e-9, 1e9])[0], BLOCKS[1])
        self.assertEqual(bar(1, 10**9), "█")

    def test_more_is_never_shown_as_less(self) -> None:
        rng = random.Random(1)
        values = sorted(rng.random() for _ in range(200))
        levels = [BLOCKS.index(character) for character in sparkline(values)]
        self.assertEqual(levels, sorted(levels))

    def test_plain_characters_are_ascii(self) -> None:
        for run in (burst(), streams()):
            self.assertTrue(plot_run(run, ascii_only=True).isascii())


class Histograms(unittest.TestCase):
    def test_every_value_is_in_one_bin(self) -> None:
        rng = random.Random(2)
        for _ in range(200):
            scale = 10 ** rng.uniform(-4, 3)
            values = [rng.random() * scale for _ in range(rng.randint(1, 300))]
            lines = histogram_lines(Values(values))
            counts = [int(line.split()[-1].replace(",", "")) for line in lines]
            self.assertEqual(sum(counts), len(values))
            self.assertLessEqual(len(lines), 30)

    def test_equal_values_are_one_bar(self) -> None:
        self.assertEqual(len(histogram_lines(Values([0.25] * 9))), 1)
        self.assertEqual(len(histogram_lines(Values([0.0]))), 1)


class Plots(unittest.TestCase):
    def test_the_burst_shows_its_queue_its_full_cache_and_its_preemptions(self) -> None:
        text = plot_run(burst())
        self.assertIn("max 36", text)
        self.assertIn("max 100.0%", text)
        line = next(line for line in text.splitlines() if line.startswith("preemptions"))
        self.assertTrue(line.endswith("  7"))
        self.assertIn("TTFT of 48 requests", text)

    def test_a_measured_run_shows_what_its_server_told(self) -> None:
        text = plot_run(streams())
        for name in ("running", "waiting", "KV cache", "preemptions", "tokens/s"):
            self.assertIn(name, text)
        alone = streams()
        alone.gauges = []
        self.assertIn("in flight", plot_run(alone))

    def test_no_line_is_wider_than_a_hundred_columns(self) -> None:
        self.assertLessEqual(COLUMNS, 70)
        for run in (burst(), streams(), *(random_simulated(seed) for seed in range(20)), measured()):
            for line in plot_run(run).splitlines():
                self.assertLessEqual(len(line), 100)

    def test_rows_are_bars_and_the_knee_is_marked(self) -> None:
        summaries = [summarize(random_simulated(seed, outcomes=False)) for seed in range(3)]
        text = plot_rows([{"rate": 0.5}, {"rate": 1.0}, {"rate": 20.0}], summaries, 1)
        self.assertEqual(text.count("knee"), 2)
        self.assertEqual(len(text.splitlines()), 9)

    def test_rows_of_a_grid_are_named_as_in_its_table(self) -> None:
        summaries = [summarize(random_simulated(seed, outcomes=False)) for seed in range(2)]
        text = plot_rows([{"link_bytes_per_s": None, "rate": 1.0}, {"link_bytes_per_s": 5e9, "rate": 2.0}], summaries)
        self.assertEqual(text.splitlines()[0].split("  output")[0].strip(), "link, rate")
        self.assertIn("5 GB/s, 2  ", text)

    def test_a_run_of_nothing_is_no_picture(self) -> None:
        self.assertEqual(plot_run(measured()), "")
        self.assertIsNone(sample_of(measured(), "ttft"))


if __name__ == "__main__":
    unittest.main()
