"""The memory plan on paper: each figure beside its arithmetic, and stable names in JSON."""

from __future__ import annotations

import json
import re
import unittest

from servesim.catalog.hardware import HARDWARE
from servesim.catalog.models import MODELS
from servesim.cost.memory import plan_capacity
from servesim.errors import CapacityError, InputError
from servesim.report.capacity import capacity_of, capacity_text
from servesim.runs.as_json import as_json
from tests.extent import once

LLAMA, L4 = MODELS["llama-3.1-8b"], HARDWARE["l4-24gb"]

STABLE_NAMES = (
    "weights_bytes kv_bytes_per_token budget_bytes kv_cache_bytes num_blocks kv_tokens max_concurrency "
    "decode_step_ms critical_batch critical_batch_at_context ridge_flop_per_byte"
).split()


class Text(unittest.TestCase):
    def test_each_golden_figure_stands_beside_its_arithmetic(self) -> None:
        text = capacity_text(plan_capacity(LLAMA, L4), 500)
        for label, figure, how in (
            ("weights", "16.06 GB", "8.03B parameters x 2 bytes (bf16)"),
            ("kv per token", "128.0 KiB", "2 x 32 layers x 8 KV heads x 128 head dim x 2 bytes (bf16)"),
            ("budget", "20.25 GiB", "22.50 GiB x 0.9 gpu-memory-utilization"),
            ("kv cache", "3.79 GiB", "budget - 14.96 GiB weights - 1.5 GiB reserve"),
            ("blocks", "1,941", "floor(3.79 GiB / (16 tokens x 128.0 KiB))"),
            ("kv tokens", "31,056", "1,941 blocks x 16 tokens"),
            ("max concurrency", "7.58x", "31,056 tokens / 4,096 tokens per request"),
            ("decode step", "72.38 ms", "1 ms overhead + 16.06 GB / (300 GB/s x 0.75), context 0"),
            ("critical batch", "269", "71.38 ms weights / (2 x 8.03B FLOP / (121 TFLOP/s x 0.5))"),
            ("  at context 500", "never", "never compute-bound: 291.3 us KV read >= 265.5 us compute, each"),
            ("ridge", "403", "FLOP per byte: 121 TFLOP/s / 300 GB/s"),
        ):
            with self.subTest(label=label):
                self.assertRegex(text, rf"(?m)^  {re.escape(label)} +{re.escape(figure)}  {re.escape(how)}$")

    @once
    def test_the_text_fits_a_terminal_whatever_is_asked(self) -> None:
        for model in MODELS.values():
            for device in HARDWARE.values():
                for tensor_parallel in (1, 8):
                    try:
                        plan = plan_capacity(model, device, tensor_parallel=tensor_parallel, max_model_len=131_072)
                    except (CapacityError, InputError):
                        continue
                    for line in capacity_text(plan, 4096).splitlines():
                        self.assertLessEqual(len(line), 100, line)

    def test_the_answer_to_will_it_start_is_a_line_with_what_would_do(self) -> None:
        yes = capacity_text(plan_capacity(LLAMA, L4, max_model_len=20_000))
        self.assertRegex(yes, r"(?m)^  will it start +yes  20,000 tokens need 2\.44 GiB <= 3\.79 GiB of KV cache$")
        self.assertRegex(yes, r"(?m)^  vLLM would log +1\.55x  1,941 blocks / ceil\(20,000 / 16\)$")
        no = capacity_text(plan_capacity(LLAMA, L4, max_model_len=40_000))
        self.assertRegex(no, r"(?m)^  will it start +no  40,000 tokens need 4\.88 GiB > 3\.79 GiB of KV cache$")
        self.assertRegex(no, r"(?m)^  largest context +31,056  1,941 blocks x 16 tokens, one sequence$")
        self.assertRegex(no, r"(?m)^  would do +0\.95  gpu-memory-utilization, at least$")
        self.assertRegex(no, r"(?m)^  would do +2  tensor-parallel-size, at least$")
        self.assertRegex(no, r"(?m)^  would do +fp8  KV cache dtype$")

    def test_a_cache_set_by_hand_says_so(self) -> None:
        self.assertIn("4,096 tokens / 16, as asked for", capacity_text(plan_capacity(LLAMA, L4, kv_tokens=4096)))
        self.assertIn("1,000 in the log - 1 null block", capacity_text(plan_capacity(LLAMA, L4, kv_blocks=1000)))

    def test_windows_and_latents_are_told_as_what_they_are(self) -> None:
        windows = capacity_text(plan_capacity(MODELS["gpt-oss-20b"], HARDWARE["h100-sxm-80gb"]))
        self.assertIn("+ 2 x 12 layers x 8 KV heads x 64 x 2 bytes x 128/4,096 window", windows)
        self.assertIn("note: KV per token is a mean over 4,096 tokens", windows)
        latent = capacity_text(plan_capacity(MODELS["deepseek-v2-lite"], HARDWARE["l40s-48gb"]))
        self.assertIn("27 layers x 576 latent x 2 bytes (bf16)", latent)

    def test_a_fitted_device_says_how_well(self) -> None:
        text = capacity_text(plan_capacity(MODELS["qwen3-0.6b"], HARDWARE["apple-m4-pro"]))
        self.assertIn("note: efficiency fitted", text)

    def test_vllms_own_log_line_is_reproduced(self) -> None:
        plan = plan_capacity(MODELS["qwen3-0.6b"], HARDWARE["cpu-4vcpu"], kv_blocks=41, block_size=32)
        at_once = plan.vllm_concurrency(1024)
        told = f"{int(at_once * 1024):,} tokens, Maximum concurrency for 1,024 tokens per request: {at_once:.2f}x"
        self.assertEqual(told, "1,312 tokens, Maximum concurrency for 1,024 tokens per request: 1.28x")


class Json(unittest.TestCase):
    def test_the_stable_names_are_there_and_finite(self) -> None:
        for context in (None, 0, 400, 10**6):
            document = as_json(capacity_of(plan_capacity(LLAMA, L4, max_model_len=40_000), context))
            self.assertLessEqual(set(STABLE_NAMES), set(document))
            json.dumps(document, allow_nan=False)

    def test_the_golden_figures_come_out(self) -> None:
        document = as_json(capacity_of(plan_capacity(LLAMA, L4), 456))
        self.assertEqual(document["weights_bytes"], 16_060_000_000)
        self.assertEqual((document["num_blocks"], document["kv_tokens"]), (1941, 31_056))
        self.assertEqual((document["critical_batch"], document["critical_batch_at_context"]), (269, None))
        self.assertIsNone(document["start"])

    def test_a_small_critical_batch_keeps_its_decimals(self) -> None:
        plan = plan_capacity(MODELS["smollm2-135m-q8_0"], HARDWARE["cpu-4vcpu"], kv_tokens=4096)
        self.assertEqual(capacity_of(plan).critical_batch, 2.66)


if __name__ == "__main__":
    unittest.main()
