"""Weights and caches in other formats, and models over several devices: what each holds, to the byte."""

from __future__ import annotations

import unittest
from dataclasses import replace

from servesim.catalog.hardware import HARDWARE
from servesim.catalog.models import MODELS
from servesim.catalog.weights import EVERY, EXPERTS, GGML_TYPES, KV_BYTES, LINEAR, WEIGHT_BYTES, WEIGHT_FORMATS
from servesim.cost.memory import Parallel, plan_capacity
from servesim.cost.roofline import Roofline
from servesim.errors import CapacityError, InputError
from servesim.report.capacity import capacity_of, capacity_text
from tests.command import servesim

LLAMA, LLAMA_70B = MODELS["llama-3.1-8b"], MODELS["llama-3.1-70b"]
MIXTURE, DEEPSEEK = MODELS["qwen3-30b-a3b"], MODELS["deepseek-v3"]
H100 = HARDWARE["h100-sxm-80gb"]


class Formats(unittest.TestCase):
    def test_every_format_has_its_source_and_says_what_it_covers(self) -> None:
        for form in WEIGHT_FORMATS.values():
            with self.subTest(name=form.name):
                self.assertGreater(len(form.source), 5)
                self.assertIn(form.covers, (EVERY, LINEAR, EXPERTS))
                self.assertIn(form.compute, ("bf16", "fp8", "int8", "fp4"))
                self.assertTrue(1 <= form.bits <= 32)

    def test_blocks_count_their_scales(self) -> None:
        for name, size in (("q8_0", 34 / 32), ("q4_1", 20 / 32), ("q4_k", 144 / 256), ("mxfp4", 17 / 32), ("fp8", 1)):
            self.assertEqual(WEIGHT_BYTES[name], size)
        self.assertEqual(WEIGHT_BYTES["nvfp4"], 36 / 64)
        names = {name for name, _, _ in GGML_TYPES.values() if name.startswith(("q", "iq", "tq"))}
        self.assertLessEqual(names, set(WEIGHT_FORMATS))

    def test_embeddings_and_head_stay_in_16_bits_under_a_recipe(self) -> None:
        outer = 2 * 128256 * 4096
        for name, size in (("fp8", 1), ("int8", 1), ("awq", 4.15625 / 8), ("gptq", 4.15625 / 8), ("nvfp4", 4.5 / 8)):
            with self.subTest(name=name):
                model = LLAMA.quantized(name)
                self.assertEqual(model.kept_params, outer)
                self.assertEqual(model.weights_bytes, round((LLAMA.params - outer) * size) + 2 * outer)
        self.assertEqual(LLAMA.quantized("fp8").compute_dtype, "fp8")
        self.assertEqual(LLAMA.quantized("awq").compute_dtype, "bf16")

    def test_a_tied_table_is_kept_once(self) -> None:
        self.assertEqual(MODELS["qwen3-0.6b"].quantized("awq").kept_params, 151936 * 1024)

    def test_a_gguf_format_covers_every_weight(self) -> None:
        self.assertEqual(LLAMA.quantized("q8_0").weights_bytes, round(8.03e9 * 34 / 32))
        # The file of Llama-3.1-8B in Q4_K_M that everybody downloads has 4.92 GB.
        self.assertAlmostEqual(LLAMA.quantized("q4_k_m").weights_bytes / 4.92e9, 1, delta=0.005)

    def test_routers_stay_and_mxfp4_covers_experts_alone(self) -> None:
        outer = MIXTURE.embedding_params + MIXTURE.head_params + MIXTURE.router_params
        self.assertEqual(MIXTURE.quantized("fp8").kept_params, outer)
        self.assertEqual(MIXTURE.quantized("mxfp4").kept_params, MIXTURE.params - MIXTURE.expert_params)
        self.assertEqual(LLAMA.quantized("mxfp4").kept_params, 2 * 128256 * 4096)
        # The card of gpt-oss-20b says 12.8 GiB.
        gpt = MODELS["gpt-oss-20b"]
        self.assertAlmostEqual(gpt.quantized("mxfp4").weights_bytes / gpt.weights_bytes, 1, delta=0.005)

    def test_a_recipe_may_leave_parts_alone(self) -> None:
        kimi = MODELS["kimi-k2.5"]
        self.assertEqual(kimi.params - kimi.kept_params, kimi.expert_params)
        self.assertAlmostEqual(kimi.weights_bytes / 594e9, 1, delta=0.005)  # the checkpoint's own size
        kept = MIXTURE.quantized("fp8", keep=("attention",)).kept_params - MIXTURE.quantized("fp8").kept_params
        self.assertEqual(kept, MIXTURE.attention_params)

    def test_quantising_again_keeps_what_was_kept_in_its_dtype(self) -> None:
        self.assertEqual(DEEPSEEK.quantized("nvfp4").kept_dtype, "bf16")
        self.assertEqual(replace(LLAMA, weight_dtype="fp16").quantized("awq").kept_dtype, "fp16")
        self.assertEqual(replace(LLAMA, file_bytes=1).quantized("q4_0").file_bytes, None)

    def test_parts_add_up_to_the_parameters(self) -> None:
        for model in MODELS.values():
            with self.subTest(name=model.name):
                parts = (
                    *(model.attention_params, model.mlp_params, model.expert_params, model.shared_expert_params),
                    *(model.router_params, model.head_params, model.embedding_params),
                )
                self.assertEqual(sum(parts), model.params)
                self.assertGreater(model.attention_params, 0)
                self.assertLessEqual(model.expert_bytes + model.head_bytes, model.weights_bytes)

    def test_a_cache_takes_the_bytes_of_its_dtype(self) -> None:
        values = 2 * 32 * 8 * 128
        for name, size in (("bf16", 2), ("fp8_e4m3", 1), ("q8_0", 34 / 32), ("q4_0", 18 / 32), ("nvfp4", 36 / 64)):
            self.assertEqual(LLAMA.with_kv_dtype(name).kv_bytes_per_token(), values * size)
        self.assertEqual(min(KV_BYTES.values()), 18 / 32)


class OverDevices(unittest.TestCase):
    def test_tensor_parallelism_divides_all_weights_as_before(self) -> None:
        for model in MODELS.values():
            for size in (1, 2, 4, 8):
                held = Parallel(tensor=size).device_weights_bytes(model)
                self.assertEqual(held, -(-model.weights_bytes // size))

    def test_a_pipeline_divides_layers_and_their_cache(self) -> None:
        plan = plan_capacity(LLAMA_70B, H100, tensor_parallel=2, pipeline_parallel=4)
        table = 128256 * 8192 * 2
        self.assertEqual(plan.device_weights_bytes, ((141_200_000_000 - 2 * table) // 4 + table) // 2)
        self.assertEqual(plan.kv_bytes_per_token, 2 * 20 * 4 * 128 * 2)
        self.assertEqual(plan.whole_kv_bytes_per_token, 2 * 80 * 8 * 128 * 2)
        self.assertEqual(plan.parallel.devices, 8)

    def test_the_fullest_stage_has_the_layers_that_are_left_over(self) -> None:
        plan = plan_capacity(LLAMA, H100, pipeline_parallel=5)  # 32 layers: 7, 7, 6, 6, 6
        self.assertEqual(plan.kv_bytes_per_token, 2 * 7 * 8 * 128 * 2)

    def test_data_parallel_ranks_repeat_the_model_and_share_the_experts(self) -> None:
        self.assertEqual(Parallel(tensor=2, data=4).device_weights_bytes(LLAMA), LLAMA.weights_bytes // 2)
        held = Parallel(tensor=2, data=4).device_weights_bytes(MIXTURE)
        others = MIXTURE.weights_bytes - MIXTURE.expert_bytes
        self.assertEqual(held, -(-others // 2) + -(-MIXTURE.expert_bytes // 8))

    def test_expert_parallelism_rounds_to_whole_experts(self) -> None:
        whole = Parallel(tensor=1, data=6, expert=True).device_weights_bytes(MIXTURE)  # 128 over 6: 22 at most
        others = MIXTURE.weights_bytes - MIXTURE.expert_bytes
        self.assertEqual(whole, others + -(-MIXTURE.expert_bytes * 22 // 128))
        with self.assertRaisesRegex(InputError, "llama-3.1-8b has no experts"):
            plan_capacity(LLAMA, H100, expert_parallel=True)

    def test_what_cannot_be_spread_is_refused_by_name(self) -> None:
        with self.assertRaisesRegex(InputError, "pipeline_parallel_size is 33, must be at most the 32 layers"):
            plan_capacity(LLAMA, H100, pipeline_parallel=33)
        for name in ("tensor", "pipeline", "data"):
            with self.assertRaisesRegex(InputError, f"{name}_parallel_size is 0"):
                Parallel(**{name: 0})

    def test_the_way_out_of_too_little_memory_keeps_the_pipeline(self) -> None:
        with self.assertRaisesRegex(CapacityError, r"on each of 4 devices .*--tensor-parallel-size 4 would do"):
            plan_capacity(MODELS["deepseek-v3"], HARDWARE["h200-sxm-141gb"], tensor_parallel=2, pipeline_parallel=2)

    def test_the_rooflines_figures_do_not_move(self) -> None:
        self.assertEqual(Roofline(LLAMA, H100).seconds(1, 0), 0.001 + 16.06e9 / (3350e9 * 0.75))
        for options in ([], ["--pipeline-parallel-size", "2"], ["--data-parallel-size", "2"]):
            said = servesim("capacity", *options, "--json", "--quiet")
            self.assertIn('"decode_step_ms": 7.39', said.out)


class OnPaper(unittest.TestCase):
    def test_the_arithmetic_of_a_quantised_model_is_shown(self) -> None:
        text = capacity_text(plan_capacity(LLAMA.quantized("fp8"), H100))
        self.assertIn("6.979B parameters x 1 bytes (fp8) + 1.051B x 2 bytes (bf16)", text)

    def test_devices_and_ranks_are_told(self) -> None:
        plan = plan_capacity(
            MODELS["glm-5"].quantized("fp8"),
            HARDWARE["b200-sxm-180gb"],
            tensor_parallel=8,
            data_parallel=2,
            expert_parallel=True,
        )
        text = capacity_text(plan)
        self.assertIn("glm-5 on b200-sxm-180gb x 16 (tensor 8, data 2 parallel, figures per device)\n", text)
        self.assertIn("745.93 GB / 8, of it 724.78 GB of whole experts / 16", text)
        self.assertIn("78 layers x (576 latent x 2 bytes + 132 of the indexer) (bf16)", text)
        self.assertRegex(text, r"of all ranks +\S+x  2 data-parallel ranks")
        self.assertEqual(capacity_of(plan).devices, 16)

    def test_stages_are_told(self) -> None:
        text = capacity_text(plan_capacity(LLAMA_70B, H100, tensor_parallel=2, pipeline_parallel=2))
        self.assertIn("x 4 (tensor 2, pipeline 2 parallel, figures per device)", text)
        self.assertIn("141.20 GB / 2, the fullest of 2 stages", text)
        self.assertIn("2 x 40 layers x 4 KV heads", text)

    def test_no_line_is_too_long(self) -> None:
        for model in MODELS.values():
            for options in ({"pipeline_parallel": 3}, {"tensor_parallel": 4, "data_parallel": 2}):
                try:
                    plan = plan_capacity(model.quantized("nvfp4"), HARDWARE["b300-sxm-288gb"], **options)
                except (CapacityError, InputError):
                    continue
                for line in capacity_text(plan).splitlines():
                    self.assertLessEqual(len(line), 100, line)


class FromTheCommandLine(unittest.TestCase):
    def test_formats_reach_the_plan(self) -> None:
        said = servesim("capacity", "--quantization", "awq", "--kv-cache-dtype", "fp8")
        self.assertEqual((said.code, said.err), (0, ""))
        self.assertIn("(awq)", said.out)
        self.assertIn("64.0 KiB", said.out)
        self.assertEqual(servesim("capacity", "--kv-cache-dtype", "auto").out, servesim("capacity").out)

    def test_an_unknown_format_gets_the_nearest(self) -> None:
        self.assertIn("did you mean 'awq'?", servesim("capacity", "--quantization", "awk").err)

    def test_a_run_says_what_was_simulated(self) -> None:
        said = servesim(
            *("simulate", "--requests", "2", "--quantization", "fp8", "--tensor-parallel-size", "2"),
            *("--pipeline-parallel-size", "2", "--data-parallel-size", "2"),
        )
        self.assertIn("llama-3.1-8b in fp8 on h100-sxm-80gb x 4", said.out)
        self.assertIn("1 replicas x 2 data-parallel ranks", said.out)
        self.assertIn("no two batches overlap", said.out)


if __name__ == "__main__":
    unittest.main()
