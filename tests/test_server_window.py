"""Tests of a server's own view of a window: deltas between pages, in three dialects, with exact numbers."""

from __future__ import annotations

import json
import unittest
from pathlib import Path
from typing import Any

from servesim.catalog.servers import GAUGE, HISTOGRAM, MEAN, SERVERS, Metric, dialect_of
from servesim.client.window import gauge_sample, server_window, setup_facts, wanted_names
from servesim.errors import InputError
from servesim.runs.records import GaugeSample
from servesim.wire.prometheus import Page, parse_page

CAPTURES = Path(__file__).resolve().parent.parent / "fixtures" / "captures"


def capture(name: str) -> str:
    return (CAPTURES / name).read_text(encoding="utf-8")


def llama(decodes: float, mean: float, **more: float) -> str:
    lines = {"n_decode_total": decodes, "n_busy_slots_per_decode": mean, **more}
    return "".join(f"llamacpp:{name} {value!r}\n" for name, value in lines.items())


def vllm(*series: str) -> str:
    return "".join(f"vllm:{line}\n" for line in series)


class LlamaCppTest(unittest.TestCase):
    def test_the_mean_batch_of_a_window_is_taken_out_of_the_running_mean(self) -> None:
        window = server_window(llama(100, 1.0), llama(300, 3.0))
        self.assertEqual(window["mean_batch"], (3.0 * 300 - 1.0 * 100) / (300 - 100))
        self.assertEqual((window["mean_batch"], window["mean_batch_from"]), (4.0, "n_busy_slots_per_decode"))

    def test_scrapes_in_between_do_not_change_it(self) -> None:
        between = [llama(100, 1.0), llama(160, 2.125), llama(160, 2.125), llama(300, 3.0)]
        self.assertEqual(server_window(llama(100, 1.0), llama(300, 3.0), between)["mean_batch"], 4.0)

    def test_a_window_without_a_decode_has_no_mean_batch(self) -> None:
        self.assertIsNone(server_window(llama(100, 1.0), llama(100, 1.0))["mean_batch"])

    def test_a_restart_inside_the_window_is_noticed(self) -> None:
        window = server_window(llama(100, 1.0), llama(50, 2.0), [llama(200, 1.5)])
        # 200 busy slots in 100 decodes before the restart, 100 in 50 after it.
        self.assertEqual((window["mean_batch"], window["counter_resets"]), ((200 + 100) / (100 + 50), 1))
        self.assertEqual(server_window(llama(1, 1.0), llama(2, 1.0))["counter_resets"], 0)

    def test_cached_prompt_tokens_count_as_prompt_tokens_everywhere(self) -> None:
        window = server_window(capture("llamacpp-metrics-before.txt"), capture("llamacpp-metrics-after.txt"))
        self.assertEqual(window["dialect"], "llama.cpp")
        self.assertEqual(window["prompt_tokens"], (949 - 37) + (60 - 0))
        self.assertEqual((window["cached_tokens"], window["output_tokens"]), (60, 123 - 6))
        self.assertEqual(window["prefix_hit_rate"], 60 / (912 + 60))
        self.assertEqual(window["mean_batch"], 1.0)

    def test_what_it_does_not_offer_is_none_and_not_zero(self) -> None:
        window = server_window(capture("llamacpp-metrics-before.txt"), capture("llamacpp-metrics-after.txt"))
        for key in ("kv_mean", "kv_peak", "preemptions", "ttft", "itl", "tpot", "queue", "e2e", "tokens_per_step"):
            self.assertIsNone(window[key], key)

    def test_the_kv_ratio_of_older_builds_is_read_where_it_is(self) -> None:
        window = server_window(llama(1, 1.0), llama(2, 1.0), [llama(1, 1.0, kv_cache_usage_ratio=0.25)])
        self.assertEqual((window["kv_mean"], window["kv_peak"]), (0.25, 0.25))

    def test_waiting_and_running_are_means_and_maxima_over_the_scrapes(self) -> None:
        scrapes = [llama(1, 1.0, requests_processing=4, requests_deferred=n) for n in (0, 4, 5)]
        idle = llama(1, 1.0, requests_processing=0, requests_deferred=0)
        window = server_window(idle, idle, scrapes)
        self.assertEqual((window["running"], window["waiting"]), ({"mean": 4.0, "max": 4.0}, {"mean": 3.0, "max": 5.0}))
        self.assertEqual(window["scrapes"], 3)


class VllmTest(unittest.TestCase):
    def test_several_engines_add_up(self) -> None:
        page = vllm('num_requests_running{engine="0"} 3', 'num_requests_running{engine="1"} 4')
        self.assertEqual(server_window(page, page)["running"], {"mean": 7.0, "max": 7.0})

    def test_fractions_over_engines_are_averaged_and_peak_at_the_largest(self) -> None:
        page = vllm('kv_cache_usage_perc{engine="0"} 0.6', 'kv_cache_usage_perc{engine="1"} 0.7')
        window = server_window(page, page)
        self.assertAlmostEqual(window["kv_mean"], 0.65, places=12)
        self.assertEqual(window["kv_peak"], 0.7)

    def test_a_metric_is_found_under_its_new_and_its_old_name(self) -> None:
        for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc"):
            self.assertEqual(server_window("", vllm(f"{name} 0.5"))["kv_peak"], 0.5)
        for name in ("inter_token_latency_seconds", "time_per_output_token_seconds"):
            before = vllm(f'{name}_bucket{{le="0.1"}} 0', f'{name}_bucket{{le="+Inf"}} 0')
            after = vllm(f'{name}_bucket{{le="0.1"}} 2', f'{name}_bucket{{le="+Inf"}} 2')
            self.assertEqual(server_window(before, after)["itl"]["count"], 2)

    def test_one_nan_sample_costs_only_itself(self) -> None:
        page = vllm("kv_cache_usage_perc NaN", "num_requests_running 2", "num_requests_waiting +Inf")
        window = server_window(page, page)
        self.assertEqual((window["kv_mean"], window["running"]["max"], window["waiting"]["max"]), (None, 2.0, None))

    def test_counters_of_one_engine_that_restarts_count_from_zero_again(self) -> None:
        def page(first: int, second: int) -> str:
            return vllm(
                f'generation_tokens_total{{engine="0"}} {first}', f'generation_tokens_total{{engine="1"}} {second}'
            )

        window = server_window(page(100, 100), page(30, 160), [page(150, 120)])
        self.assertEqual((window["output_tokens"], window["counter_resets"]), (50 + 30 + 60, 1))

    def test_a_restart_that_has_overtaken_its_counters_is_told_by_the_start_time(self) -> None:
        def page(start: int, tokens: int) -> str:
            return f"process_start_time_seconds {start}\n" + vllm(f"generation_tokens_total {tokens}")

        window = server_window(page(1, 100), page(2, 130))
        self.assertEqual((window["output_tokens"], window["counter_resets"]), (130, 1))

    def test_a_page_without_the_start_time_is_no_restart(self) -> None:
        def page(start: str, tokens: int) -> str:
            return start + vllm(f"generation_tokens_total {tokens}")

        told, silent = "process_start_time_seconds 5\n", ("", "process_start_time_seconds NaN\n")
        for missing in silent:
            window = server_window(page(told, 1000), page(told, 1300), [page(missing, 1100), page(told, 1200)])
            self.assertEqual((window["output_tokens"], window["counter_resets"]), (300, 0))
            again = "process_start_time_seconds 9\n"
            window = server_window(page(told, 1000), page(again, 1300), [page(missing, 1100)])
            self.assertEqual((window["output_tokens"], window["counter_resets"]), (1400, 1))

    def test_a_bucket_without_a_bound_is_passed_over(self) -> None:
        def page(count: int) -> str:
            bounds = ("-Inf", "NaN", "x", "0.5", "+Inf")
            return vllm(*(f'time_to_first_token_seconds_bucket{{le="{bound}"}} {count}' for bound in bounds))

        interval = {"gt": None, "le": 0.5}
        expected = {"count": 10, "mean": None, **dict.fromkeys(("p50", "p90", "p95", "p99"), interval)}
        self.assertEqual(server_window(page(0), page(10))["ttft"], expected)

    def test_a_series_that_appears_inside_the_window_began_at_zero(self) -> None:
        before = vllm('generation_tokens_total{engine="0"} 5')
        after = vllm('generation_tokens_total{engine="0"} 7', 'generation_tokens_total{engine="1"} 4')
        self.assertEqual(server_window(before, after)["output_tokens"], 6)

    def test_percentiles_are_intervals_of_the_growth(self) -> None:
        def page(counts: dict[str, int], total: float) -> str:
            lines = [f'time_to_first_token_seconds_bucket{{engine="0",le="{le}"}} {n}' for le, n in counts.items()]
            return vllm(*lines, f'time_to_first_token_seconds_sum{{engine="0"}} {total}')

        before = page({"0.1": 10, "0.5": 10, "1.0": 10, "+Inf": 10}, 1.0)
        after = page({"0.1": 60, "0.5": 100, "1.0": 108, "+Inf": 110}, 21.0)
        # 100 observations: 50 up to 0.1, 90 up to 0.5, 98 up to 1.0, 2 beyond.
        self.assertEqual(
            server_window(before, after)["ttft"],
            {
                "count": 100,
                "mean": 0.2,
                "p50": {"gt": None, "le": 0.1},
                "p90": {"gt": 0.1, "le": 0.5},
                "p95": {"gt": 0.5, "le": 1.0},
                "p99": {"gt": 1.0, "le": None},
            },
        )
        self.assertIsNone(server_window(after, after)["ttft"])

    def test_histograms_of_several_engines_are_one(self) -> None:
        after = vllm(
            *(f'request_queue_time_seconds_bucket{{engine="{n}",le="{le}"}} 3' for n in "01" for le in ("0.3", "+Inf")),
            'request_queue_time_seconds_sum{engine="0"} 0.25',
            'request_queue_time_seconds_sum{engine="1"} 0.5',
        )
        before = vllm("num_requests_running 0")
        window = server_window(before, after)
        self.assertEqual((window["queue"]["count"], window["queue"]["mean"]), (6, 0.125))

    def test_a_real_page_before_and_after_a_load(self) -> None:
        window = server_window(
            capture("vllm-small-cache-metrics-before.txt"),
            capture("vllm-small-cache-metrics-after.txt"),
            [capture("vllm-small-cache-metrics-under-load.txt")],
            window_s=2.5,
            version="0.32.0",
        )
        expected = {
            "dialect": "vllm",
            "version": "0.32.0",
            "window_s": 2.5,
            "running": {"mean": 6.0, "max": 6.0},
            "waiting": {"mean": 10.0, "max": 10.0},
            "kv_mean": 0.925,
            "kv_peak": 0.925,
            "preemptions": 8,
            "prefix_hit_rate": 1024 / 1926,
            "prompt_tokens": 1926,
            "cached_tokens": 1024,
            "output_tokens": 2424,
            "mean_batch": 2424 / 455,
            "tokens_per_step": 3326 / 455,
            "counter_resets": 0,
        }
        self.assertEqual({key: window[key] for key in expected}, expected)
        self.assertEqual(window["ttft"]["count"], 19)
        self.assertEqual(window["ttft"]["p50"], {"gt": 0.08, "le": 0.1})

    def test_the_growth_of_a_window_leaves_out_what_came_before_it(self) -> None:
        window = server_window(capture("vllm-metrics-after.txt"), capture("vllm-metrics-after-load.txt"))
        self.assertEqual(window["output_tokens"], 13884 - 51)
        self.assertEqual(window["prefix_hit_rate"], (21216 - 512) / (28515 - 664))
        self.assertEqual((window["queue"]["count"], window["itl"]["count"]), (213 - 8, 13671 - 43))

    def test_its_cache_configuration_is_a_setup_fact(self) -> None:
        facts = setup_facts(parse_page(capture("vllm-metrics-before.txt")))
        self.assertEqual((facts["block_size"], facts["num_gpu_blocks"]), ("32", "4096"))
        self.assertEqual(setup_facts(parse_page(llama(1, 1.0))), {})


class SglangTest(unittest.TestCase):
    def test_its_gauges_and_counters_come_under_the_same_words(self) -> None:
        def page(prompt: int, cached: int, output: int) -> str:
            return (
                f'sglang:prompt_tokens_total{{model_name="m"}} {prompt}\nsglang:generation_tokens_total {output}\n'
                f"sglang:cached_tokens_total {cached}\nsglang:num_running_reqs 3\n"
                "sglang:num_queue_reqs 2\nsglang:token_usage 0.28\n"
            )

        window = server_window(page(10, 0, 1), page(110, 25, 31))
        expected = {"dialect": "sglang", "prompt_tokens": 100, "output_tokens": 30, "kv_peak": 0.28, "mean_batch": None}
        self.assertEqual({key: window[key] for key in expected}, expected)
        self.assertEqual((window["running"]["max"], window["waiting"]["max"]), (3.0, 2.0))
        self.assertEqual(window["prefix_hit_rate"], 0.25)

    def test_a_hit_rate_that_is_only_a_gauge_is_averaged_over_the_scrapes(self) -> None:
        pages = [f"sglang:cache_hit_rate {rate}\n" for rate in (0.25, 0.75)]
        self.assertEqual(server_window(pages[0], pages[1])["prefix_hit_rate"], 0.5)


class AnyServerTest(unittest.TestCase):
    def test_no_page_or_a_strangers_page_says_nothing(self) -> None:
        for before, after in (("", ""), ("x 1\n", "x 2\n"), (Page(), Page())):
            window = server_window(before, after)
            self.assertIsNone(window["dialect"])
            self.assertEqual(window["running"], {"mean": None, "max": None})
            self.assertIsNone(window["output_tokens"])

    def test_a_server_that_died_is_known_up_to_its_last_page(self) -> None:
        window = server_window(llama(100, 1.0), "", [llama(300, 3.0)])
        self.assertEqual(window["mean_batch"], 4.0)

    def test_the_window_is_the_time_between_the_two_pages(self) -> None:
        pages = [parse_page(llama(1, 1.0), at_s=at) for at in (10.0, 14.5)]
        self.assertEqual(server_window(pages[0], pages[1])["window_s"], 4.5)

    def test_every_result_is_json_with_finite_numbers(self) -> None:
        for stem in ("vllm-metrics", "vllm-small-cache-metrics", "llamacpp-metrics"):
            window = server_window(capture(f"{stem}-before.txt"), capture(f"{stem}-after.txt"))
            self.assertEqual(json.loads(json.dumps(window, allow_nan=False)), window)

    def test_pages_cut_down_to_the_wanted_names_say_the_same(self) -> None:
        texts = [capture(f"vllm-small-cache-metrics-{when}.txt") for when in ("before", "under-load", "after")]
        whole = [parse_page(text) for text in texts]
        cut = [parse_page(text, wanted=wanted_names()) for text in texts]
        self.assertEqual(server_window(cut[0], cut[2], [cut[1]]), server_window(whole[0], whole[2], [whole[1]]))
        self.assertLess(sum(map(len, cut[0].samples.values())), 150)

    def test_a_page_is_a_gauge_sample_of_the_run(self) -> None:
        page = parse_page(capture("vllm-metrics-under-load.txt"), at_s=3.0)
        expected = GaugeSample(
            at_s=3.0,
            running=128,
            waiting=56,
            kv_blocks=None,
            kv_fraction=0.08083028083028088,
            preemptions=0,
            output_tokens=5599,
        )
        self.assertEqual(gauge_sample(page), expected)
        self.assertIsNone(gauge_sample(parse_page("x 1")))


class CatalogTest(unittest.TestCase):
    def test_every_metric_of_a_dialect_carries_its_prefix_and_fractions_are_averaged(self) -> None:
        for dialect in SERVERS.values():
            for key, metric in dialect.metrics.items():
                for name in metric.names:
                    self.assertTrue(name.startswith(dialect.prefix), name)
                if key in ("kv_usage", "hit_rate"):
                    self.assertEqual((metric.type, metric.across), (GAUGE, MEAN))
            self.assertTrue(dialect.source)

    def test_every_vllm_and_llamacpp_name_of_today_is_on_a_captured_page(self) -> None:
        for dialect, page in (("vllm", "vllm-metrics-after.txt"), ("llama.cpp", "llamacpp-metrics-after.txt")):
            names = parse_page(capture(page)).samples
            for key, metric in SERVERS[dialect].metrics.items():
                suffix = "_bucket" if metric.type == HISTOGRAM else ""
                if (dialect, key) != ("llama.cpp", "kv_usage"):  # gone, kept for older builds
                    self.assertIn(metric.names[0] + suffix, names, key)

    def test_a_dialect_is_known_by_its_names(self) -> None:
        self.assertIs(dialect_of(["python_info", "vllm:num_requests_running"]), SERVERS["vllm"])
        self.assertIsNone(dialect_of(["python_info"]))

    def test_a_metric_that_makes_no_sense_is_refused(self) -> None:
        bad: list[dict[str, Any]] = [
            {"names": (), "type": GAUGE},
            {"names": ("a",), "type": "x"},
            {"names": ("a",), "type": GAUGE, "across": "max"},
        ]
        for fields in bad:
            with self.assertRaises(InputError):
                Metric(**fields)


if __name__ == "__main__":
    unittest.main()
