"""The memory plan: its golden figures, what it refuses and how, and whether a server would start."""

from __future__ import annotations

import math
import random
import unittest
from typing import Any

from servesim.catalog.hardware import HARDWARE
from servesim.catalog.model import Model
from servesim.catalog.models import MODELS
from servesim.cost.memory import CapacityPlan, StartCheck, plan_capacity
from servesim.errors import CapacityError, InputError, RunError
from servesim.units import GIB

LLAMA, LLAMA_70B = MODELS["llama-3.1-8b"], MODELS["llama-3.1-70b"]
H100, L4, RTX_3090 = HARDWARE["h100-sxm-80gb"], HARDWARE["l4-24gb"], HARDWARE["rtx-3090-24gb"]


def started(plan: CapacityPlan) -> StartCheck:
    assert plan.start is not None
    return plan.start


class Plan(unittest.TestCase):
    def test_the_golden_figures_of_an_8b_model_on_an_l4_come_out(self) -> None:
        plan = plan_capacity(LLAMA, L4)
        self.assertEqual(f"{plan.weights_bytes / 1e9:.2f}", "16.06")
        self.assertEqual(plan.kv_bytes_per_token / 1024, 128.0)
        self.assertEqual(plan.budget_bytes / GIB, 20.25)
        self.assertEqual(f"{plan.kv_cache_bytes / GIB:.2f}", "3.79")
        self.assertEqual((plan.num_blocks, plan.kv_tokens), (1941, 31_056))
        self.assertEqual(f"{plan.max_concurrency:.2f}", "7.58")
        self.assertEqual(f"{plan_capacity(LLAMA, L4, tokens_per_request=1500).max_concurrency:.2f}", "20.70")

    def test_a_plan_adds_up_whatever_goes_in(self) -> None:
        rng = random.Random(11)
        for _ in range(300):
            model, device = rng.choice(list(MODELS.values())), rng.choice(list(HARDWARE.values()))
            try:
                plan = plan_capacity(
                    model,
                    device,
                    gpu_memory_utilization=rng.choice((0.3, 0.9, 0.92, 1.0)),
                    block_size=rng.choice((1, 16, 128)),
                    tensor_parallel=rng.choice((1, 2, 8)),
                    reserve_bytes=rng.randint(0, 4 * GIB),
                )
            except (CapacityError, InputError):
                continue
            self.assertEqual(plan.budget_bytes - plan.device_weights_bytes - plan.reserve_bytes, plan.kv_cache_bytes)
            self.assertLessEqual(plan.num_blocks * plan.block_bytes, plan.kv_cache_bytes)
            self.assertGreater((plan.num_blocks + 1) * plan.block_bytes, plan.kv_cache_bytes)
            self.assertLessEqual(plan.budget_bytes, device.memory_bytes)
            self.assertGreaterEqual(plan.device_weights_bytes * plan.tensor_parallel, plan.weights_bytes)

    def test_weights_that_do_not_fit_say_what_and_name_three_ways_out(self) -> None:
        with self.assertRaises(CapacityError) as caught:
            plan_capacity(LLAMA_70B, H100)
        message = str(caught.exception)
        self.assertIsInstance(caught.exception, RunError)
        self.assertEqual(caught.exception.exit_code, 1)
        self.assertNotIn("\n", message)
        self.assertTrue(message.startswith("llama-3.1-70b does not fit h100-sxm-80gb: "), message)
        self.assertIn("141.20 GB of weights + 2.0 GiB reserve > 71.64 GiB", message)
        for way in ("quantise", "tensor parallelism (--tensor-parallel-size 2 would do)", "a bigger device"):
            self.assertIn(way, message)
        plan_capacity(LLAMA_70B, H100, tensor_parallel=2)

    def test_room_for_less_than_a_block_is_no_room(self) -> None:
        with self.assertRaisesRegex(CapacityError, r"leave 1\.8 MiB of 16\.46 GiB .* less than a block of 2\.0 MiB"):
            plan_capacity(LLAMA, L4, gpu_memory_utilization=0.7315)

    def test_tensor_parallel_figures_are_one_devices(self) -> None:
        plan = plan_capacity(LLAMA_70B, H100, tensor_parallel=4)
        self.assertEqual((plan.weights_bytes, plan.device_weights_bytes), (141_200_000_000, 35_300_000_000))
        self.assertEqual(plan.kv_bytes_per_token, 2 * 80 * 2 * 128 * 2)
        self.assertEqual(plan.whole_kv_bytes_per_token, 4 * plan.kv_bytes_per_token)
        with self.assertRaisesRegex(InputError, "must divide the 64 heads"):
            plan_capacity(LLAMA_70B, H100, tensor_parallel=3)

    def test_kv_tokens_are_usable_whole_blocks_and_must_fit_the_device(self) -> None:
        plan = plan_capacity(MODELS["smollm2-135m-q8_0"], HARDWARE["cpu-4vcpu"], kv_tokens=4096)
        self.assertEqual((plan.num_blocks, plan.num_gpu_blocks, plan.kv_tokens, plan.warnings), (256, 256, 4096, ()))
        rounded = plan_capacity(LLAMA, L4, kv_tokens=100)
        self.assertEqual(rounded.num_blocks, 6)
        self.assertEqual(rounded.warnings, ("kv_tokens 100 is rounded down to 96, whole blocks",))
        with self.assertRaisesRegex(CapacityError, r"> 22\.50 GiB of memory; at most 49,488 kv_tokens fit$"):
            plan_capacity(LLAMA, L4, kv_tokens=100_000)
        self.assertEqual(plan_capacity(LLAMA, L4, kv_tokens=49_488).num_blocks, 3093)
        self.assertRaises(CapacityError, plan_capacity, LLAMA, L4, kv_tokens=49_504)
        with self.assertRaisesRegex(CapacityError, "the weights alone do not fit"):
            plan_capacity(LLAMA_70B, L4, kv_tokens=16)

    def test_kv_blocks_of_a_log_have_one_null_block_and_only_warn(self) -> None:
        plan = plan_capacity(LLAMA, L4, kv_blocks=1941)
        self.assertEqual((plan.num_blocks, plan.num_gpu_blocks, plan.warnings), (1940, 1941, ()))
        self.assertRegex(plan_capacity(LLAMA, L4, kv_blocks=9000).warnings[0], "the block count is taken as given")
        self.assertEqual(plan_capacity(LLAMA_70B, L4, kv_blocks=9000).num_blocks, 8999)

    def test_a_4090_has_the_blocks_that_vllm_found(self) -> None:
        self.assertEqual(plan_capacity(LLAMA, HARDWARE["rtx-4090-24gb"]).num_blocks, 2588)

    def test_a_sliding_window_makes_room_for_more(self) -> None:
        gpt = MODELS["gpt-oss-20b"]
        short = plan_capacity(gpt, H100, tokens_per_request=128)
        long = plan_capacity(gpt, H100, tokens_per_request=65_536)
        self.assertAlmostEqual(long.num_blocks / short.num_blocks, 2.0, delta=0.01)

    def test_hostile_values_are_refused_by_name(self) -> None:
        wrong: list[dict[str, Any]] = [
            *({"gpu_memory_utilization": value} for value in (0, -0.1, 1.01, math.nan, math.inf, True, "0.9", None)),
            *({"block_size": value} for value in (0, -16, 1.5, True, 10**30)),
            *({"reserve_bytes": value} for value in (-1, 1.5, math.nan)),
            *({"tensor_parallel": value} for value in (0, -1, True, 1.0)),
            *({"kv_tokens": value} for value in (0, 15, -1, math.nan)),
            *({"kv_blocks": value} for value in (0, 1, True)),
            *({"max_model_len": value} for value in (0, -1, 0.5)),
            *({"tokens_per_request": value} for value in (0, False)),
            {"kv_tokens": 160, "kv_blocks": 10},
        ]
        for options in wrong:
            with self.subTest(options=options):
                with self.assertRaises(InputError) as caught:
                    plan_capacity(LLAMA, L4, **options)
                self.assertIn(next(iter(options)), str(caught.exception))


class WillItStart(unittest.TestCase):
    def plan_3090(self, **options: Any) -> CapacityPlan:
        return plan_capacity(LLAMA, RTX_3090, reserve_bytes=round(2.4524 * GIB), **options)

    def test_the_known_case_of_an_rtx_3090_comes_out(self) -> None:
        plan = self.plan_3090(max_model_len=20_000)
        self.assertEqual((plan.num_blocks, f"{plan.kv_cache_bytes / GIB:.2f}"), (1952, "3.81"))
        self.assertTrue(started(plan).starts)
        plan.require_start()
        self.assertEqual(plan_capacity(LLAMA, RTX_3090, reserve_bytes=round(2.45 * GIB)).num_blocks, 1953)
        too_few = plan_capacity(LLAMA, RTX_3090, kv_blocks=1478, max_model_len=29_000)
        self.assertFalse(started(too_few).starts)
        self.assertEqual(started(too_few).largest_context, 1477 * 16)
        self.assertIsNone(started(too_few).gpu_memory_utilization)

    def test_the_last_token_that_fits_fits_and_the_next_does_not(self) -> None:
        self.assertTrue(started(self.plan_3090(max_model_len=31_232)).starts)
        self.assertFalse(started(self.plan_3090(max_model_len=31_233)).starts)

    def test_what_would_do_would_do_and_nothing_smaller(self) -> None:
        for length in (31_233, 33_000, 40_000, 60_000):
            start = started(self.plan_3090(max_model_len=length))
            with self.subTest(length=length):
                if start.gpu_memory_utilization is not None:
                    enough = start.gpu_memory_utilization
                    share = {"max_model_len": length, "gpu_memory_utilization": enough}
                    self.assertTrue(started(self.plan_3090(**share)).starts)
                    share["gpu_memory_utilization"] = round(enough - 0.01, 2)
                    self.assertFalse(started(self.plan_3090(**share)).starts)
                self.assertEqual(start.tensor_parallel, 2)
                self.assertTrue(started(self.plan_3090(max_model_len=length, tensor_parallel=2)).starts)
                narrow = plan_capacity(
                    LLAMA.with_kv_dtype("fp8"),
                    RTX_3090,
                    reserve_bytes=round(2.4524 * GIB),
                    max_model_len=length,
                )
                self.assertEqual(start.kv_dtype, "fp8" if started(narrow).starts else None)

    def test_a_refusal_is_one_line_with_the_ways_out(self) -> None:
        with self.assertRaises(CapacityError) as caught:
            self.plan_3090(max_model_len=31_233).require_start()
        self.assertEqual(
            str(caught.exception),
            "llama-3.1-8b on rtx-3090-24gb would not start with max_model_len 31,233: one sequence needs 3.814 GiB "
            "of KV cache, 3.812 GiB are there; a context of 31,232 tokens fits; or use --gpu-memory-utilization 0.91 "
            "or --tensor-parallel-size 2 or an fp8 KV cache",
        )

    def test_vllms_printed_concurrency_counts_the_null_block_and_whole_blocks(self) -> None:
        cpu = HARDWARE["cpu-4vcpu"]
        plan = plan_capacity(MODELS["qwen3-0.6b"], cpu, kv_blocks=41, block_size=32)
        self.assertEqual(f"{plan.vllm_concurrency(1024):.2f}", "1.28")
        self.assertEqual(int(plan.vllm_concurrency(1024) * 1024), 1312)
        self.assertEqual(plan.vllm_concurrency(1025), 41 / 33)

    def test_a_window_decides_the_largest_context(self) -> None:
        model: Model = MODELS["gpt-oss-20b"]
        plan = plan_capacity(model, HARDWARE["rtx-4090-24gb"], max_model_len=300_000)
        start = started(plan)
        size = model.kv_bytes_of_sequence
        self.assertLessEqual(size(start.largest_context), start.available_bytes)
        self.assertGreater(size(start.largest_context + 16), start.available_bytes)


if __name__ == "__main__":
    unittest.main()
