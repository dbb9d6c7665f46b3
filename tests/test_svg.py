"""Pictures: every mark inside its axes, curves that never fall, ticks at round numbers, nothing lost by thinning."""

from __future__ import annotations

import math
import random
import re
import unittest
from collections.abc import Iterator
from itertools import pairwise
from xml.etree import ElementTree

from servesim import simulate
from servesim.report import explain
from servesim.report.charts import FIGURES, curve, draw, gaps_of, itl_over_time, sample_of
from servesim.report.figure import (
    Figure,
    Panel,
    axis_of_counts,
    axis_of_seconds,
    axis_of_time,
    linear,
    logarithmic,
    nice_step,
    picture,
)
from servesim.report.input import ReportInput
from servesim.report.roofline import device_of, roofline, step_places
from servesim.report.series import (
    cloud_points,
    counted,
    evenly,
    kv_use,
    line_points,
    means,
    output_rate,
    run_end_s,
    running,
    step_tokens,
    token_weights,
    waiting,
)
from servesim.report.svg import HEIGHT, WIDTH, escape, line_path, steps_path
from servesim.report.timeline import PHASES, chosen_lanes, request_lanes, spans_of, timeline
from tests.extent import once, seeds
from tests.report_runs import GOLDEN, HOSTILE, burst, divided, golden_pictures, materials, named, streams
from tests.runs import measured, random_simulated

COMMAND = re.compile(r"([MLHVhZ])([^MLHVhZ]*)")


def places(path: str) -> Iterator[tuple[int | None, int | None]]:
    """Yield the (x, y) of every command of a path; None where a command leaves a coordinate as it is."""
    for command, rest in COMMAND.findall(path):
        numbers = [int(number) for number in rest.split()]
        if command in "ML":
            yield numbers[0], numbers[1]
        elif command == "H":
            yield numbers[0], None
        elif command == "V":
            yield None, numbers[0]
        else:
            assert command == "Z" or numbers == [0], path


def outside(figure: Figure) -> list[tuple[int | None, int | None]]:
    """Return the places of a figure's marks that are not inside their axes."""
    found = []
    for panel in figure.panels:
        for mark in panel.marks:
            for x, y in places(re.search(r' d="([^"]*)"', mark)[1]):  # type: ignore[index]
                if not (0 <= (x or 0) <= WIDTH and 0 <= (y or 0) <= HEIGHT):
                    found.append((x, y))
    return found


class Marks(unittest.TestCase):
    @once
    def test_every_mark_is_inside_its_axes_whatever_the_run(self) -> None:
        for seed in seeds(60):
            report = ReportInput("t", [named(random_simulated(seed), "a", "ttft_p95=10ms"), named(streams(seed), "b")])
            for figure in draw(report):
                with self.subTest(seed=seed, figure=figure.name):
                    self.assertEqual(outside(figure), [])

    def test_every_figure_is_well_formed_xml(self) -> None:
        for name, report in materials().items():
            with self.subTest(report=name):
                ElementTree.fromstring(picture(draw(report), HOSTILE))

    def test_the_golden_pictures_are_what_is_drawn(self) -> None:
        """For the eye that reads a diff: what a picture must be is said by the other tests of this file."""
        drawn = golden_pictures()
        self.assertEqual({path.name for path in GOLDEN.glob("*.svg")}, set(drawn))
        for name, content in drawn.items():
            with self.subTest(name=name):
                same = (GOLDEN / name).read_text(encoding="utf-8") == content
                self.assertTrue(same, "make golden rewrites it; look at the picture")

    def test_paths_say_nothing_twice(self) -> None:
        self.assertEqual(line_path([(0, 0), (0, 0), (5, 1)]), "M0 0L5 1")
        self.assertEqual(steps_path([(0, 9), (4, 9), (4, 2), (8, 2)]), "M0 9H4V2H8")

    def test_text_from_outside_stays_text(self) -> None:
        told = escape(HOSTILE)
        for character in "<>\"'\x00\x1b\u202e\ud800":
            self.assertNotIn(character, told)
        told.encode("utf-8")
        self.assertLess(len(escape("<" * 10_000)), 3000)

    def test_a_run_of_nothing_draws_nothing(self) -> None:
        empty = ReportInput("t", [named(measured())])
        self.assertEqual(draw(empty), [])


class Axes(unittest.TestCase):
    def test_ticks_are_round_and_inside_whatever_the_range(self) -> None:
        rng = random.Random(5)
        for _ in range(500):
            low = rng.choice([0.0, rng.uniform(0, 10) * 10 ** rng.randint(-6, 6)])
            high = low + rng.uniform(0.001, 10) * 10 ** rng.randint(-6, 6)
            for axis in (linear("x", low, high), linear("x", low, high, snug=True), logarithmic("x", high / 99, high)):
                with self.subTest(low=low, high=high, log=axis.log):
                    shares = [tick.share for tick in axis.ticks]
                    self.assertEqual(shares, sorted(set(shares)))
                    self.assertTrue(all(-1e-9 <= share <= 1 + 1e-9 for share in shares))
                    self.assertLessEqual(len(shares), 20)
                    self.assertEqual(len({tick.label for tick in axis.ticks}), len(shares))
                    if not axis.log:
                        self.assertLessEqual(axis.low, low)
                    self.assertGreaterEqual(axis.high * (1 + 1e-9), high)

    def test_a_step_is_one_two_or_five(self) -> None:
        for power in range(-9, 10):
            for rough in (0.9, 1.7, 3.3, 8.0):
                digits = nice_step(rough * 10.0**power) / 10.0**power
                self.assertTrue(any(math.isclose(digits, nice) for nice in (0.5, 1, 2, 5, 10)), digits)

    def test_a_placer_is_the_share_and_a_value_comes_back(self) -> None:
        rng = random.Random(6)
        for axis in (linear("x", 2, 9), logarithmic("x", 0.02, 700)):
            place = axis.placer(WIDTH)
            for _ in range(300):
                value = rng.uniform(-1, 900) if rng.random() < 0.5 else rng.uniform(0.01, 10)
                self.assertAlmostEqual(place(value), axis.share(value) * WIDTH, delta=0.51)
                if axis.low < value < axis.high:
                    self.assertAlmostEqual(axis.value(axis.share(value)), value)

    def test_whole_things_have_no_ticks_between_them(self) -> None:
        for high in (0, 1, 2, 3, 7):
            labels = [tick.label for tick in axis_of_counts("requests", high).ticks]
            self.assertTrue(all(label.isdigit() for label in labels), labels)

    def test_a_time_has_the_unit_that_a_person_would_choose(self) -> None:
        for end_s, unit in ((0.5, "ms"), (90, "s"), (3000, "min"), (90_000, "h")):
            self.assertTrue(axis_of_time(0.0, end_s).title.endswith(f", {unit}"))

    def test_latencies_that_spread_far_are_logarithmic_and_others_begin_at_nothing(self) -> None:
        self.assertTrue(axis_of_seconds("gap", [0.01] * 99 + [4.0]).log)
        even = axis_of_seconds("ttft", [0.1 + 0.01 * n for n in range(50)])
        self.assertEqual((even.log, even.low), (False, 0.0))


class Thinning(unittest.TestCase):
    def test_a_thinned_line_keeps_its_highest_and_its_lowest(self) -> None:
        rng = random.Random(7)
        times = [float(n) for n in range(50_000)]
        values = [rng.random() for _ in times]
        values[31_234], values[777] = 5.0, -3.0
        panel = Panel(linear("x", 0, 50_000, snug=True), linear("y", -5, 10))
        points = line_points(panel, (times, values))
        self.assertLess(len(points), 4000)
        self.assertEqual([x for x, _ in points], sorted(x for x, _ in points))
        _, top = panel.point(0, 5.0)
        _, low = panel.point(0, -3.0)
        self.assertEqual((min(y for _, y in points), max(y for _, y in points)), (top, low))

    def test_a_cloud_keeps_a_point_near_every_point(self) -> None:
        rng = random.Random(8)
        panel = Panel(linear("x", 0, 1), linear("y", 0, 1))
        cloud = [(rng.random() ** 3, rng.random() ** 3) for _ in range(40_000)]
        kept = cloud_points(panel, cloud)
        self.assertLess(len(kept), 20_000)
        near = set(kept)
        for place in cloud[::97]:
            x, y = panel.point(*place)
            self.assertTrue(any(abs(x - a) <= 10 and abs(y - b) <= 12 for a, b in near))

    def test_a_mean_weighs_by_time(self) -> None:
        _, told = means(([0.0, 1.0, 100.0], [10.0, 0.0, 2.0]), 0.0, 200.0)
        self.assertAlmostEqual(sum(told) / len(told), (10 * 1 + 0 + 2 * 100) / 200)

    def test_an_even_sample_has_both_ends(self) -> None:
        for size in (1, 2, 9, 1000):
            for most in (1, 2, 5, 64):
                kept = evenly(range(size), most)
                self.assertEqual(len(kept), min(size, most))
                self.assertEqual(kept, sorted(set(kept)))
                if most > 1:
                    self.assertEqual((kept[0], kept[-1]), (0, size - 1))


class Curves(unittest.TestCase):
    def test_a_distribution_never_falls_and_ends_at_all_of_it(self) -> None:
        for seed in range(30):
            for run in (random_simulated(seed), streams(seed, 500 if seed == 0 else 30)):
                for metric in ("ttft", "tpot", "itl", "e2e"):
                    sample = sample_of(run, metric)
                    if sample is None or not sample.count:
                        continue
                    axis = axis_of_seconds("x", [sample.at(1), sample.at(sample.count)])
                    points = curve(axis, sample)
                    with self.subTest(seed=seed, metric=metric):
                        self.assertEqual(points, sorted(points, key=lambda point: (point[0], -point[1])))
                        self.assertEqual([y for _, y in points], sorted((y for _, y in points), reverse=True))
                        self.assertEqual((points[0][1], points[-1]), (HEIGHT, (WIDTH, 0)))

    def test_counts_at_a_value_agree_with_ranks(self) -> None:
        for seed in range(20):
            run = random_simulated(seed)
            for metric in ("ttft", "itl"):
                sample = sample_of(run, metric)
                if sample is None:
                    continue
                values = [sample.at(rank) for rank in range(1, sample.count + 1)]
                for value in values:
                    self.assertEqual(sample.up_to(value), sum(other <= value for other in values))
                self.assertEqual(sample.up_to(-1.0), 0)


class Levels(unittest.TestCase):
    def test_running_and_waiting_are_never_negative_and_end_at_none(self) -> None:
        for seed in range(80):
            run = random_simulated(seed, outcomes=False)
            for read in (running, waiting):
                series = read(run)
                if series is not None:
                    times, values = series
                    self.assertEqual(times, sorted(set(times)))
                    self.assertGreaterEqual(min(values), 0)
                    self.assertEqual(values[-1], 0)

    def test_the_burst_peaks_as_its_own_engine_says(self) -> None:
        run = burst()
        assert run.engine is not None and run.steps is not None
        cache, tokens, most = kv_use(run), step_tokens(run), running(run)
        assert cache is not None and tokens is not None and most is not None
        self.assertEqual(max(cache[1]), run.engine.kv_peak_blocks / run.engine.num_blocks)
        self.assertEqual(sum(run.steps.decodes) + sum(run.steps.prefill_tokens), run.engine.computed_tokens)
        self.assertEqual(max(tokens[1]), max(map(sum, zip(run.steps.decodes, run.steps.prefill_tokens, strict=True))))
        self.assertLess(max(most[1]), 48)

    def test_every_token_is_at_one_time(self) -> None:
        for run in (burst(), streams(), *(random_simulated(seed, outcomes=False) for seed in range(30))):
            tokens = sum(len(run.token_times(index)) for index in range(len(run.records)))
            self.assertEqual(sum(token_weights(run)), tokens)
            rates = output_rate(run, 0.0, run_end_s(run), 50)
            assert rates is not None
            self.assertAlmostEqual(sum(rates[1]) * run_end_s(run) / 50, tokens, places=4)

    def test_what_is_counted_adds_up(self) -> None:
        self.assertEqual(sum(counted([0.0, 0.5, 1.0, 1.0], 0.0, 1.0, 7)[1]), 4)

    def test_a_fleet_is_drawn_as_the_sum_of_its_replicas(self) -> None:
        from servesim import simulate

        run = simulate(requests=60, rate=60, prompt_tokens="300", output_tokens="30", replicas=3)
        assert run.engine is not None
        series = kv_use(run)
        assert series is not None
        times, values = series
        self.assertEqual(times, sorted(times))
        area = sum(value * (b - a) for value, a, b in zip(values, times, times[1:], strict=False))
        self.assertAlmostEqual(area * run.engine.num_blocks, run.engine.kv_block_seconds, places=6)
        self.assertEqual(values[-1], 0)


class Pictures(unittest.TestCase):
    def test_the_gaps_of_the_burst_are_sorted_by_what_made_them_long(self) -> None:
        gaps = gaps_of(burst())
        self.assertGreaterEqual(len(gaps.preempted), 7)
        longest = max(gap for _, gap in gaps.plain)
        self.assertLess(longest, min(gap for _, gap in gaps.preempted))
        self.assertLess(longest, sum(gap for _, gap in gaps.prefill) / len(gaps.prefill))

    def test_a_time_of_many_preemptions_is_one_upright(self) -> None:
        run = streams(1, 6)
        for sample in run.gauges[2:]:
            sample.preemptions += 1000
        figure = itl_over_time(ReportInput("t", [named(run)]))
        assert figure is not None
        (panel,) = figure.panels
        self.assertEqual(len(panel.notes), len(set(panel.notes)))

    def test_a_lane_is_one_unbroken_time_from_its_send_to_its_last_token(self) -> None:
        run = burst()
        for index in range(48):
            spans = list(spans_of(run, index))
            self.assertEqual(spans[0][1], run.records.sent_s[index])
            self.assertEqual(spans[-1][2], run.times[run.records.last[index]])
            for (_, _, end), (_, start, _) in zip(spans, spans[1:], strict=False):
                self.assertEqual(end, start)

    def test_a_lane_of_a_divided_fleet_has_no_gap(self) -> None:
        run = divided()
        figure = request_lanes(ReportInput("t", [named(run)]))
        assert figure is not None
        self.assertEqual(PHASES.keys(), set(explain.PHASES))
        told = [key.label for key in figure.keys]
        self.assertEqual(told, ["queued", "prefill", "waiting for the link", "transfer of the KV", "decode"])

    def test_a_first_token_that_crossed_a_link_is_no_preemption(self) -> None:
        run = divided()
        self.assertEqual((gaps_of(run).preempted, run.records.preempted), ([], {}))

    def test_labels_of_lanes_do_not_meet(self) -> None:
        for count in range(1, 65):
            figure = request_lanes(ReportInput("t", [named(streams(3, count)), named(streams(4, count))]))
            assert figure is not None
            for panel in figure.panels:
                shares = [tick.share for tick in panel.y.ticks]
                nearest = min((a - b for a, b in pairwise(shares)), default=1.0)
                self.assertGreaterEqual(nearest * panel.height_px, 11.5, count)

    def test_the_label_of_an_upright_fits_a_phone(self) -> None:
        for share in (0.05, 0.3, 0.54, 0.56, 0.7, 0.95):
            panel = Panel(linear("x", 0.0, 1.0), linear("y", 0.0, 1.0))
            panel.upright(share, "ridge 1,403 FLOP/byte")
            room = 300 * (share if 'text-anchor="end"' in panel.notes[1] else 1 - share)
            self.assertGreater(room, 9 + 6 * len("ridge 1,403 FLOP/byte") - 1, share)

    def test_a_bin_has_the_unit_that_a_person_would_choose(self) -> None:
        short = timeline(ReportInput("t", [named(simulate(requests=1, output_tokens="1"))]))
        assert short is not None
        self.assertIn("preemptions per 0.201 ms", [panel.y.title for panel in short.panels])

    def test_lanes_are_few_and_keep_the_worst(self) -> None:
        run = streams(4, 500)
        chosen = chosen_lanes(run, 64)
        self.assertEqual(len(chosen), 64)
        slowest = max(range(500), key=lambda i: run.times[run.records.last[i]] - run.records.sent_s[i])
        self.assertIn(slowest, chosen)

    def test_the_roofline_names_ridge_batch_1_and_critical_batch(self) -> None:
        figure = roofline(materials()["burst"])
        assert figure is not None
        told = "".join(figure.panels[0].notes)
        for words in ("ridge 403 FLOP/byte", "batch 1: 1 FLOP/byte", "critical batch 269"):
            self.assertIn(words, told)
        device = device_of({"hardware": "rtx-4050-laptop-6gb", "model": "smollm2-1.7b"})
        assert device is not None
        self.assertEqual(round(device.hardware.ridge_flop_per_byte), 47)
        self.assertAlmostEqual(device.batch_1_intensity, 1.0)

    def test_a_run_on_another_device_is_told_as_that(self) -> None:
        figure = roofline(ReportInput("t", [named(burst(), "one"), named(divided(), "two")]))
        assert figure is not None
        self.assertIn("two ran llama-3.1-8b on h100-sxm-80gb, whose roof is not drawn.", figure.caption)
        self.assertEqual(outside(figure), [])
        own = device_of(divided().config)
        assert own is not None
        highest = max(reached for _, reached, _ in step_places(divided(), own))
        self.assertGreater(figure.panels[0].y.high, highest)
        alike = roofline(ReportInput("t", [named(burst(), "one"), named(burst(True), "two")]))
        assert alike is not None
        self.assertNotIn("not drawn", alike.caption)

    def test_no_step_stands_above_the_roof(self) -> None:
        run = burst()
        device = device_of(run.config)
        assert device is not None
        for intensity, reached, _ in step_places(run, device):
            self.assertLessEqual(reached, device.roof(intensity, device.hardware.mfu, device.hardware.mbu) * 1.02)

    def test_two_runs_are_told_apart_without_colour(self) -> None:
        drawn = {figure.name: figure for figure in draw(materials()["two"])}
        for name in ("timeline", "latency"):
            marks = "".join(mark for panel in drawn[name].panels for mark in panel.marks)
            self.assertIn('class="line s0"', marks)
            self.assertIn('class="line s1"', marks)
            self.assertEqual([key.label for key in drawn[name].keys], ["plain", "cached"])
        self.assertIn(".line.s1{stroke-dasharray", picture(list(drawn.values()), "t"))

    def test_every_axis_tells_its_unit_or_what_it_counts(self) -> None:
        counted_words = ("requests", "preemptions", "tokens", "request", "per s")
        for report in materials().values():
            for figure in draw(report):
                for panel in figure.panels:
                    for title in (panel.x.title, panel.y.title):
                        self.assertTrue(
                            any(word in title for word in (", s", ", ms", ", min", ", %", "FLOP", *counted_words)),
                            title,
                        )

    def test_every_figure_has_its_name(self) -> None:
        for report in materials().values():
            for name, make in FIGURES.items():
                figure = make(report)
                if figure is not None:
                    self.assertEqual(figure.name, name)


if __name__ == "__main__":
    unittest.main()
