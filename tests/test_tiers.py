"""KV tiers below the device: a block is in one place, an endless free tier is a cache that never evicts."""

from __future__ import annotations

import json
import math
import unittest
from dataclasses import replace
from typing import Any

from servesim import simulate, summarize
from servesim.config.build import build_server
from servesim.config.engine import TierConfig
from servesim.config.server import ServerSpec
from servesim.config.workload import WorkloadSpec, build_workload
from servesim.engine.engine import Engine
from servesim.errors import InputError
from servesim.plan.sweep import stops_paying
from tests.case import Case
from tests.command import servesim
from tests.extent import seeds
from tests.random_cases import random_case

CHATS: dict[str, Any] = {
    "requests": 150,
    "turns": "6",
    "think_s": 2.0,
    "concurrency": 12,
    "prompt_tokens": "50-300",
    "output_tokens": "20-80",
    "prefix_caching": True,
}
CHATTER = "--requests 120 --turns 6 --think-time 2s --concurrency 12 --kv-tokens 8k --prefix-caching --quiet".split()


def run_case(case: Case) -> Any:
    engine = Engine(case.config, case.cost(), case.workload())
    engine.advance(case.until_s)
    return engine.run({})


class Laws(unittest.TestCase):
    def test_an_endless_free_tier_equals_a_cache_that_never_evicts(self) -> None:
        endless = TierConfig(blocks=None, block_s=0.0)
        server = build_server(ServerSpec(kv_tokens=8_000, prefix_caching=True))
        for seed in range(4):
            with self.subTest(seed=seed):
                load = {key: value for key, value in CHATS.items() if key != "prefix_caching"}
                runs = []
                for blocks, tiers in ((server.config.num_blocks, (endless,)), (200_000, ())):
                    # Fewer slots than the memory that they may take: only the prefix cache is short of it.
                    config = replace(server.config, num_blocks=blocks, kv_tiers=tiers, max_num_seqs=3)
                    engine = Engine(config, server.cost(), build_workload(WorkloadSpec(**load, seed=seed)))
                    engine.advance()
                    runs.append(engine.run({}))
                tiered, large = runs
                self.assertGreater(tiered.engine.evictions, 0)
                self.assertGreater(tiered.engine.fetched_tokens, 0)
                self.assertEqual(large.engine.evictions, 0)
                self.assertEqual(tiered.times, large.times)
                self.assertEqual(tiered.records.first, large.records.first)
                self.assertEqual(tiered.engine.hit_tokens, large.engine.hit_tokens)

    def test_no_law_breaks_on_random_loads_whatever_the_tiers(self) -> None:
        ran = 0
        for seed in seeds(400):
            case = random_case(seed)
            if not case.config.prefix_caching:
                continue
            tiers = (
                (TierConfig(blocks=None, block_s=0.0),)
                if seed % 2
                else (TierConfig(blocks=seed % 7, block_s=0.001), TierConfig(blocks=5, block_s=0.01, name="disk"))
            )
            config = replace(case.config, kv_tiers=tiers, kv_tiers_overlap=seed % 3 == 0)
            with self.subTest(seed=seed):
                run = run_case(replace(case, config=config))
                ran += 1
                self.assertEqual(run.violations, [])
        self.assertGreater(ran, len(seeds(400)) // 4)

    def test_every_block_that_fell_is_there_or_was_fetched_or_dropped(self) -> None:
        run = simulate(**CHATS, kv_tokens=8_000, kv_offload="500MB+1GB", offload_link="25GB/s+2GB/s")
        host, disk = run.offload
        totals = run.engine
        assert totals is not None
        self.assertEqual(host.fallen_blocks, totals.evictions)
        self.assertEqual(disk.fallen_blocks, host.dropped_blocks)
        for tier in (host, disk):
            self.assertLessEqual(tier.peak_blocks, tier.blocks)
            left = tier.fallen_blocks - tier.fetched_blocks - tier.dropped_blocks
            self.assertTrue(0 <= left <= tier.blocks, tier)
        self.assertEqual(16 * (host.fetched_blocks + disk.fetched_blocks), totals.fetched_tokens)

    def test_a_tier_of_nothing_changes_nothing(self) -> None:
        server = build_server(ServerSpec(kv_tokens=8_000, prefix_caching=True))
        for seed in seeds(200)[::5]:
            case = random_case(seed)
            empty = replace(case.config, kv_tiers=(TierConfig(blocks=0, block_s=9.0),))
            with self.subTest(seed=seed):
                self.assertEqual(run_case(case).times, run_case(replace(case, config=empty)).times)
        self.assertEqual(server.config.kv_tiers, ())

    def test_an_overlapped_fetch_is_never_slower_and_a_slower_link_never_faster(self) -> None:
        def mean_ms(**options: Any) -> float:
            ttft = summarize(simulate(**CHATS, kv_tokens=8_000, kv_offload="64GB", **options)).ttft_ms
            assert ttft is not None
            return ttft.mean

        fast, slow = mean_ms(offload_link="25GB/s"), mean_ms(offload_link="1GB/s")
        self.assertLess(fast, slow)
        self.assertLess(mean_ms(offload_link="1GB/s", offload_overlap=True), slow)


class Sizes(unittest.TestCase):
    def test_a_size_is_the_server_s_and_a_link_a_device_s(self) -> None:
        one = build_server(ServerSpec(prefix_caching=True, kv_offload="64GB", offload_link="20GB/s"))
        four = build_server(
            ServerSpec(prefix_caching=True, kv_offload="64GB", offload_link="20GB/s", tensor_parallel_size=4)
        )
        (alone,), (shared,) = one.config.kv_tiers, four.config.kv_tiers
        self.assertEqual(alone.blocks, 64 * 10**9 // (16 * 131072))
        self.assertEqual(alone.blocks, shared.blocks)
        self.assertTrue(math.isclose(alone.block_s, 16 * 131072 / 20e9))
        self.assertTrue(math.isclose(shared.block_s, alone.block_s / 4))

    def test_what_makes_no_sense_is_refused_in_one_line(self) -> None:
        for options in (
            {"kv_offload": "64GB"},
            {"kv_offload": "64", "prefix_caching": True},
            {"kv_offload": "1MB", "prefix_caching": True},
            {"kv_offload": "0", "prefix_caching": True},
            {"kv_offload": "64GB+1TB", "offload_link": "1GB/s+2GB/s+3GB/s", "prefix_caching": True},
            {"offload_link": "25GB/s"},
            {"offload_overlap": True},
        ):
            with self.subTest(**options), self.assertRaises(InputError) as caught:
                build_server(ServerSpec(**options))
            self.assertNotIn("\n", str(caught.exception))

    def test_the_size_where_more_stops_paying(self) -> None:
        self.assertEqual(stops_paying(["1GB", "2GB", "4GB"], [9.0, 5.0, 4.95]), 1)
        self.assertIsNone(stops_paying(["1GB", "2GB", "4GB"], [9.0, 5.0, 3.0]))
        self.assertEqual(stops_paying(["1GB", "2GB"], [9.0, 9.0]), 0)
        self.assertIsNone(stops_paying([], []))


class Report(unittest.TestCase):
    def test_simulate_shows_what_each_tier_did_and_the_run_without_them(self) -> None:
        said = servesim("simulate", *CHATTER, "--kv-offload", "1GB", "--kv-offload", "1TB")
        self.assertEqual(said.code, 0)
        for words in ("hit rate: device", "host 1.0 GB", "disk 1,000.0 GB", "recompute avoided", "with, without"):
            self.assertIn(words, said.out)

    def test_its_json_has_both_and_is_a_configuration(self) -> None:
        said = servesim("simulate", *CHATTER, "--kv-offload", "64GB", "--json")
        document = json.loads(said.out)
        offload = document["offload"]
        self.assertLess(document["ttft_ms"]["mean"], offload["without"]["ttft_ms"]["mean"])
        self.assertGreater(offload["recompute_avoided_tokens"], 0)
        self.assertEqual(document["config"]["kv_offload"], "64GB")
        self.assertNotIn("offload_link", document["config"])
        total = offload["device_hit_rate"] + sum(tier["hit_rate"] for tier in offload["tiers"])
        self.assertAlmostEqual(total, document["engine"]["prefix_hit_rate"], delta=0.02)

    def test_the_tiers_of_prefill_engines_are_told_too(self) -> None:
        said = servesim("simulate", *CHATTER, "--kv-offload", "64GB", "--disagg", "2:1", "--link", "25GB/s", "--json")
        offload = json.loads(said.out)["offload"]
        self.assertGreater(offload["recompute_avoided_tokens"], 0)
        self.assertIn("without", offload)

    def test_capacity_says_what_the_tiers_hold(self) -> None:
        said = servesim("capacity", "--prefix-caching", "--kv-offload", "64GB", "--kv-offload", "1TB", "--quiet")
        self.assertIn("30,517 blocks = 488,272 tokens", said.out)
        self.assertIn("kv tier disk", said.out)
        document = json.loads(servesim("capacity", "--prefix-caching", "--kv-offload", "64GB", "--json").out)
        self.assertEqual(document["kv_tiers"][0]["blocks"], 30_517)

    def test_a_sweep_over_sizes_says_where_more_stops_paying(self) -> None:
        said = servesim("sweep", *CHATTER, "--kv-offload", "500MB,64GB,128GB")
        self.assertIn("64GB is where more stops paying", said.out)
        self.assertIn("tier", said.out)

    def test_given_again_a_list_is_joined_with_each(self) -> None:
        document = json.loads(
            servesim("sweep", *CHATTER, "--kv-offload", "1GB,2GB", "--kv-offload", "1TB", "--json").out
        )
        self.assertEqual([row["kv_offload"] for row in document["rows"]], ["1GB+1TB", "2GB+1TB"])


if __name__ == "__main__":
    unittest.main()
