"""What a server that is asked for becomes: defaults, max_num_seqs beside budget, slots, vLLM's own choices."""

from __future__ import annotations

import unittest
from collections import Counter
from typing import Any

from servesim import simulate
from servesim.config.build import Server, build_server
from servesim.config.server import ServerSpec
from servesim.errors import CapacityError, InputError
from servesim.runs.records import Outcome


def server(**asked: Any) -> Server:
    return build_server(ServerSpec(**asked))


def limits(**asked: Any) -> tuple[int, int]:
    """Return (max_num_seqs, max_num_batched_tokens) in force."""
    config = server(**asked).config
    return config.max_num_seqs, config.max_num_batched_tokens


class Limits(unittest.TestCase):
    def test_the_defaults_are_the_specified_ones(self) -> None:
        config = server(hardware="l4-24gb").config
        self.assertEqual((config.max_num_seqs, config.max_num_batched_tokens, config.block_size), (256, 8192, 16))
        self.assertEqual((config.num_blocks, config.max_model_len, config.prefix_caching), (1941, None, False))
        self.assertFalse(config.async_scheduling)

    def test_seats_that_were_not_given_are_lowered_to_a_given_budget(self) -> None:
        self.assertEqual(limits(max_num_batched_tokens=100), (100, 100))
        self.assertIn("lowered", server(max_num_batched_tokens=100).notes[0])

    def test_a_budget_that_was_not_given_is_raised_to_given_seats(self) -> None:
        self.assertEqual(limits(max_num_seqs=10_000), (10_000, 10_000))
        self.assertIn("raised", server(max_num_seqs=10_000).notes[0])

    def test_a_given_budget_below_given_seats_is_refused(self) -> None:
        with self.assertRaisesRegex(InputError, r"max_num_batched_tokens is 8, must be at least max_num_seqs \(9\)"):
            server(max_num_batched_tokens=8, max_num_seqs=9)

    def test_without_chunked_prefill_a_given_budget_must_hold_max_model_len(self) -> None:
        with self.assertRaisesRegex(InputError, "max_model_len is 9000"):
            server(chunked_prefill=False, max_num_batched_tokens=8192, max_model_len=9000)
        self.assertEqual(limits(chunked_prefill=False, max_num_batched_tokens=9000, max_model_len=9000), (256, 9000))

    def test_without_chunked_prefill_a_budget_that_was_not_given_is_raised(self) -> None:
        self.assertEqual(limits(chunked_prefill=False, max_model_len=20_000), (256, 20_000))
        self.assertEqual(limits(chunked_prefill=False, max_model_len=100), (256, 8192))

    def test_the_watermark_counts_the_null_block_as_vllm_does(self) -> None:
        self.assertEqual(server(kv_tokens=99 * 16, watermark=0.01).config.watermark_blocks, 1)
        self.assertEqual(server(kv_tokens=98 * 16, watermark=0.01).config.watermark_blocks, 0)


class Cache(unittest.TestCase):
    def test_kv_tokens_are_usable_tokens_and_kv_blocks_count_the_null_block(self) -> None:
        self.assertEqual(server(kv_tokens=4096).config.num_blocks, 256)
        self.assertEqual(server(kv_tokens=4100).config.num_blocks, 256)
        self.assertEqual(server(kv_blocks=256).config.num_blocks, 255)

    def test_kv_tokens_must_fit_and_kv_blocks_only_warn(self) -> None:
        with self.assertRaises(CapacityError):
            server(hardware="l4-24gb", kv_tokens=100_000)
        asked = server(hardware="l4-24gb", kv_blocks=100_000)
        self.assertEqual(asked.config.num_blocks, 99_999)
        self.assertIn("taken as given", asked.warnings[0])

    def test_both_at_once_are_refused(self) -> None:
        with self.assertRaisesRegex(InputError, "kv_tokens and kv_blocks"):
            server(kv_tokens=4096, kv_blocks=100)

    def test_a_max_model_len_that_would_not_start_is_warned_about(self) -> None:
        self.assertIn("would not start", server(kv_tokens=4096, max_model_len=5000).warnings[0])
        self.assertEqual(server(kv_tokens=4096, max_model_len=4096).warnings, ())

    def test_a_narrower_kv_cache_holds_twice_the_tokens(self) -> None:
        whole, half = server(hardware="l4-24gb"), server(hardware="l4-24gb", kv_cache_dtype="fp8")
        self.assertIn(half.config.num_blocks - 2 * whole.config.num_blocks, (0, 1))


class Slots(unittest.TestCase):
    def test_each_slot_has_its_own_share_rounded_down(self) -> None:
        config = server(slots=3, kv_tokens=4096).config
        self.assertEqual((config.max_num_seqs, config.max_model_len), (3, 1365))
        self.assertEqual(config.num_blocks, 3 * -(-1365 // 16))

    def test_a_lower_max_model_len_still_limits(self) -> None:
        self.assertEqual(server(slots=4, kv_tokens=4096, max_model_len=500).config.max_model_len, 500)

    def test_what_shares_tokens_is_refused(self) -> None:
        for name, value in (("prefix_caching", True), ("like_vllm", True), ("max_num_seqs", 5)):
            with self.subTest(name=name), self.assertRaisesRegex(InputError, name):
                server(slots=4, kv_tokens=4096, **{name: value})

    def test_a_prompt_that_can_never_enter_whole_is_rejected_alone(self) -> None:
        run = simulate(slots=2, chunked_prefill=False, prompt_tokens="8000-9000", output_tokens="5", requests=12)
        self.assertEqual(set(run.records.reason.values()), {"over_token_budget"})
        enter = sum(prompt + 4 <= 8192 for prompt in run.requests.prompt_tokens)
        self.assertEqual(Counter(run.records.outcome)[Outcome.COMPLETED], enter)

    def test_a_share_too_small_for_a_request_is_refused(self) -> None:
        with self.assertRaisesRegex(InputError, "slots is 4096"):
            server(slots=4096, kv_tokens=4096)


class LikeVllm(unittest.TestCase):
    def test_the_api_servers_defaults_by_device(self) -> None:
        for hardware, want in (
            ("h100-sxm-80gb", (1024, 8192, 0.92, True)),
            ("a100-sxm-80gb", (256, 2048, 0.92, True)),
            ("l4-24gb", (256, 2048, 0.92, True)),
            ("mi300x-192gb", (1024, 16384, 0.92, True)),
        ):
            with self.subTest(hardware=hardware):
                asked = server(like_vllm=True, hardware=hardware)
                config, utilization = asked.config, asked.spec.gpu_memory_utilization
                got = (config.max_num_seqs, config.max_num_batched_tokens, utilization, config.async_scheduling)
                self.assertEqual(got, want)
                self.assertTrue(config.prefix_caching)

    def test_a_cpu_never_schedules_ahead(self) -> None:
        config = server(like_vllm=True, hardware="cpu-4vcpu", model="smollm2-135m-q8_0").config
        self.assertEqual((config.max_num_seqs, config.max_num_batched_tokens), (128, 2048))
        self.assertFalse(config.async_scheduling)

    def test_the_older_rules_have_the_older_utilisation(self) -> None:
        self.assertEqual(server(like_vllm=True, rules="vllm-0.18").spec.gpu_memory_utilization, 0.90)

    def test_what_was_given_beats_it(self) -> None:
        config = server(like_vllm=True, prefix_caching=False, async_scheduling=False, max_num_seqs=8).config
        self.assertEqual((config.prefix_caching, config.async_scheduling, config.max_num_seqs), (False, False, 8))

    def test_the_budget_is_cut_to_what_the_seats_can_use(self) -> None:
        self.assertEqual(limits(like_vllm=True, max_num_seqs=4, max_model_len=1000), (4, 4000))


class Values(unittest.TestCase):
    def test_no_field_takes_nonsense(self) -> None:
        for name, values in {
            "max_num_seqs": (0, -1, 1.5, True, "x", float("nan"), [1]),
            "gpu_memory_utilization": (0, 1.01, float("nan"), float("inf"), "", True),
            "reserve_gib": (-1, float("inf")),
            "watermark": (-0.1, 1.5),
            "mfu": (0, -1, float("nan")),
            "step_overhead_s": (-1, "1", float("inf")),
            "client_timeout_s": (0, "5"),
            "policy": ("lifo", 3),
            "rules": ("vllm-1.0",),
            "model": ("", 5, "llama-9"),
            "hardware": ("h10", "a\0b"),
            "cost_model": ("magic",),
            "prefix_caching": ("yes", 1),
            "tensor_parallel_size": (0, 3),
        }.items():
            for value in values:
                with self.subTest(name=name, value=value), self.assertRaises(InputError) as caught:
                    server(**{name: value})
                self.assertNotIn("\n", str(caught.exception))

    def test_an_efficiency_above_1_is_named(self) -> None:
        self.assertIn("mfu is 1.2, above 1", server(mfu=1.2).warnings[0])

    def test_a_server_described_and_asked_for_again_is_the_same(self) -> None:
        for asked in (
            {},
            {"hardware": "l4-24gb", "like_vllm": True},
            {"slots": 4, "kv_tokens": 4096},
            {"slots": 1, "chunked_prefill": False},
            {"slots": 2, "chunked_prefill": False, "max_num_batched_tokens": 100},
            {"kv_blocks": 500, "step_overhead_s": 0.0007, "mfu": 0.4},
            {"max_num_seqs": 10_000, "reserve_gib": 3.3},
        ):
            with self.subTest(asked=asked):
                first = server(**asked)
                again = {k: v for k, v in first.describe().items() if k != "num_blocks"}
                second = server(**again)
                self.assertEqual((second.spec, second.config), (first.spec, first.config))
                self.assertEqual(second.cost().decode(7, 1000), first.cost().decode(7, 1000))


if __name__ == "__main__":
    unittest.main()
