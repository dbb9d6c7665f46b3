"""Facts: each has its source, agrees with itself, and refuses to be nonsense."""

from __future__ import annotations

import math
import re
import unittest
from dataclasses import FrozenInstanceError, replace
from typing import Any

from servesim.catalog.hardware import HARDWARE, Hardware, find_hardware
from servesim.catalog.model import Attention, Experts, Model
from servesim.catalog.models import MODELS, find_model
from servesim.catalog.servers import vllm_defaults
from servesim.config.build import build_server
from servesim.config.server import ServerSpec
from servesim.errors import InputError

# Of models with a latent: the rank of queries (0: none), and the widths of a head without rotation, of its rotary part
# and of its value. Of GLM-5 besides: an indexer with 32 heads of 128 over the queries' rank and the hidden channels.
LATENTS = {
    "deepseek-v2-lite": (0, 128, 64, 128),
    "deepseek-v3": (1536, 128, 64, 128),
    "deepseek-r1": (1536, 128, 64, 128),
    "kimi-k2": (1536, 128, 64, 128),
    "kimi-k2.5": (1536, 128, 64, 128),
    "glm-5": (2048, 192, 64, 256),
}
# Of models with gated delta nets: heads of values; keys have 16 heads, all heads are 128 wide.
DELTA_NETS = {"qwen3-next-80b-a3b": 32, "qwen3.5-397b-a17b": 64}


def latent_parameters(model: Model, latent_dim: int) -> int:
    """Return the parameters of one layer of multi-head latent attention."""
    rank, nope, rope, value = LATENTS[model.name]
    hidden, heads = model.hidden, model.heads
    queries = rank * (hidden + heads * (nope + rope)) if rank else hidden * heads * (nope + rope)
    index = rank * 32 * 128 + hidden * (128 + 32) if model.name == "glm-5" else 0
    return queries + hidden * latent_dim + (latent_dim - rope) * heads * (nope + value) + heads * value * hidden + index


def parameters_by_shape(model: Model) -> tuple[int, int]:
    """Return (all, active) parameters that the layer shapes imply, without norms and biases."""
    hidden = model.hidden
    attention = 0
    for group in model.attention:
        if group.latent_dim:
            attention += group.layers * latent_parameters(model, group.latent_dim)
        elif group.state_bytes:  # queries, keys, values, their gate and the output; two numbers a head; a short window
            keys, values = 2048, DELTA_NETS[model.name] * 128
            attention += group.layers * hidden * (2 * keys + 3 * values + 2 * DELTA_NETS[model.name])
        else:
            queries = model.heads * (3 if model.name in DELTA_NETS else 2)  # queries, their gate, the output
            attention += group.layers * hidden * (queries + 2 * group.kv_heads) * group.head_dim
    experts = model.experts
    dense_layers = model.layers - (experts.layers if experts else 0)
    matrices = 2 if model.name.startswith("tinystories") else 3  # an up and a down projection, or a gate too
    always = attention + dense_layers * matrices * hidden * model.intermediate
    always += model.vocab * hidden * (1 if model.tied_embeddings else 2)
    if experts is None:
        return always, always
    one = 3 * hidden * experts.intermediate
    router = hidden * experts.count
    return (
        always + experts.layers * ((experts.count + experts.shared) * one + router),
        always + experts.layers * ((experts.top_k + experts.shared) * one + router),
    )


class Devices(unittest.TestCase):
    def test_the_presets_of_the_specification_have_its_figures(self) -> None:
        for name, memory_gib, bandwidth, tflops, reserve_gib in (
            ("h100-sxm-80gb", 79.6, 3350, 989, 2.0),
            ("a100-sxm-80gb", 80.0, 2039, 312, 2.0),
            ("l4-24gb", 22.5, 300, 121, 1.5),
            ("cpu-4vcpu", 16, 20, 0.1, 0.5),
            ("rtx-4050-laptop-6gb", 6.0, 192, 8.986, 0.5),
        ):
            with self.subTest(name=name):
                device = HARDWARE[name]
                figures = (device.memory_gib, device.bandwidth_gb_s, device.tflops, device.reserve_gib)
                self.assertEqual(figures, (memory_gib, bandwidth, tflops, reserve_gib))
        cpu, m4 = HARDWARE["cpu-4vcpu"], HARDWARE["apple-m4-pro"]
        self.assertEqual((cpu.mfu, cpu.mbu, cpu.overhead_ms), (1, 1, 2.0))
        self.assertEqual((m4.memory_gib, m4.bandwidth_gb_s, m4.reserve_gib), (24, 273, 1.0))
        self.assertEqual(round(HARDWARE["rtx-4050-laptop-6gb"].ridge_flop_per_byte), 47)

    def test_no_preset_stands_without_its_source_and_date(self) -> None:
        presets: list[Hardware | Model] = [*HARDWARE.values(), *MODELS.values()]
        for preset in presets:
            with self.subTest(name=preset.name):
                self.assertGreater(len(preset.source), 15)
                self.assertRegex(preset.date, re.compile(r"20\d\d(-\d\d)?", re.ASCII))
        for name, device in HARDWARE.items():
            self.assertEqual(name, device.name)

    def test_efficiency_is_the_default_or_says_why_not(self) -> None:
        for device in HARDWARE.values():
            with self.subTest(name=device.name):
                is_default = (device.mfu, device.mbu, device.overhead_ms) == (0.50, 0.75, 1.0)
                self.assertTrue(is_default or device.fitted or device.name == "cpu-4vcpu")

    def test_fp8_is_twice_the_rate_of_bf16_wherever_a_device_has_it(self) -> None:
        for device in HARDWARE.values():
            if device.fp8_tflops is not None:
                with self.subTest(name=device.name):
                    self.assertAlmostEqual(device.fp8_tflops / device.tflops, 2.0, delta=0.03)

    def test_a_device_checks_itself(self) -> None:
        good = HARDWARE["l4-24gb"]
        wrong: list[dict[str, Any]] = [
            {"memory_gib": 0},
            {"bandwidth_gb_s": -1},
            {"tflops": math.nan},
            {"mfu": math.inf},
            {"mbu": 0},
            {"overhead_ms": -1},
            {"reserve_gib": math.nan},
            {"tflops": True},
            {"tflops": "121"},
            {"kind": "tpu"},
            {"name": ""},
        ]
        for fields in wrong:
            with self.subTest(fields=fields):
                self.assertRaises(InputError, replace, good, **fields)
        with self.assertRaises(FrozenInstanceError):
            good.mfu = 1.0  # type: ignore[misc]

    def test_efficiency_set_by_hand_ends_the_fit_of_a_preset(self) -> None:
        m4 = HARDWARE["apple-m4-pro"]
        self.assertEqual(m4.with_efficiency(mbu=0.5).fitted, "")
        self.assertEqual(m4.with_efficiency(mbu=0.5).mfu, m4.mfu)
        self.assertIs(m4.with_efficiency(), m4)

    def test_an_unknown_name_is_answered_with_the_nearest(self) -> None:
        with self.assertRaisesRegex(InputError, r"^unknown hardware 'h10'; did you mean 'h100-sxm-80gb'\?$"):
            find_hardware("h10")
        with self.assertRaisesRegex(InputError, "did you mean 'llama-3.1-8b'"):
            find_model("llama-3.1-8")
        self.assertIs(find_model("llama-3.1-8b"), MODELS["llama-3.1-8b"])


class Shapes(unittest.TestCase):
    def test_the_presets_of_the_specification_have_its_figures(self) -> None:
        for name, params, layers, kv_heads, head_dim, weights_bytes in (
            ("llama-3.1-8b", 8_030_000_000, 32, 8, 128, 16_060_000_000),
            ("llama-3.1-70b", 70_600_000_000, 80, 8, 128, 141_200_000_000),
            ("smollm2-135m-q8_0", 134_500_000, 30, 3, 64, 142_906_250),
            ("smollm2-135m-q4_1", 134_500_000, 30, 3, 64, 84_062_500),
        ):
            with self.subTest(name=name):
                model = MODELS[name]
                self.assertEqual((model.params, model.layers, model.weights_bytes), (params, layers, weights_bytes))
                self.assertEqual(model.kv_bytes_per_token(), 2 * layers * kv_heads * head_dim * 2)

    def test_parameters_agree_with_the_shapes_of_the_layers(self) -> None:
        for model in MODELS.values():
            with self.subTest(name=model.name):
                every, active = parameters_by_shape(model)
                slack = 0.013 if model.name.startswith("tinystories") else 0.001  # positions and biases
                self.assertAlmostEqual(every / model.params, 1.0, delta=slack)
                # The card of gpt-oss leaves the embedding table out of its active parameters.
                table = model.vocab * model.hidden if model.name.startswith("gpt-oss") else 0
                self.assertAlmostEqual((active - table) / model.compute_params, 1.0, delta=max(slack, 0.002))

    def test_a_latent_is_kept_once_and_by_every_rank(self) -> None:
        model = MODELS["deepseek-v3"]
        self.assertEqual(MODELS["glm-5"].kv_bytes_per_token(tensor_parallel=8), 78 * (576 * 2 + 128 + 4))
        self.assertEqual(model.kv_bytes_per_token(), 61 * 576 * 2)
        self.assertEqual(model.kv_bytes_per_token(tensor_parallel=8), 61 * 576 * 2)

    def test_a_sliding_layer_keeps_its_window_and_no_more(self) -> None:
        model = MODELS["gpt-oss-20b"]
        per_group = 2 * 12 * 8 * 64 * 2
        self.assertEqual(model.kv_bytes_of_sequence(100), 100 * 2 * per_group)
        self.assertEqual(model.kv_bytes_of_sequence(4096), (4096 + 128) * per_group)
        self.assertEqual(model.kv_bytes_per_token(context=4096), math.ceil((4096 + 128) * per_group / 4096))
        self.assertEqual(model.kv_bytes_per_token(context=128), model.kv_bytes_per_token())

    def test_a_recurrent_layer_keeps_a_state_whatever_the_length(self) -> None:
        hybrid = (Attention(layers=2, kv_heads=4, head_dim=64), Attention(layers=6, state_bytes=1000))
        model = replace(MODELS["qwen3-0.6b"], name="hybrid", attention=hybrid)
        self.assertEqual(model.layers, 8)
        self.assertEqual(model.kv_bytes_of_sequence(10), 10 * 2 * 2 * 4 * 64 * 2 + 6000)
        self.assertEqual(model.kv_bytes_of_sequence(10, tensor_parallel=2), 10 * 2 * 2 * 2 * 64 * 2 + 3000)

    def test_tensor_parallelism_divides_heads_and_never_below_one(self) -> None:
        model = MODELS["llama-3.1-8b"]
        self.assertEqual(model.kv_bytes_per_token(tensor_parallel=4), 131_072 // 4)
        self.assertEqual(model.kv_bytes_per_token(tensor_parallel=16), 131_072 // 8)
        with self.assertRaisesRegex(InputError, "^tensor_parallel_size is 3, must divide the 32 heads of llama"):
            model.check_tensor_parallel(3)

    def test_an_fp8_cache_is_half_of_a_bf16_one(self) -> None:
        model = MODELS["llama-3.1-8b"]
        self.assertEqual(model.with_kv_dtype("fp8").kv_bytes_per_token(), 65_536)
        with self.assertRaisesRegex(InputError, "unknown kv cache dtype 'fp4'"):
            model.with_kv_dtype("fp4")

    def test_a_model_checks_itself(self) -> None:
        good = MODELS["mixtral-8x7b"]
        wrong: list[dict[str, Any]] = [
            {"params": 0},
            {"params": True},
            {"params": 1.5},
            {"params": 10**30},
            {"active_params": good.params + 1},
            {"attention": ()},
            {"weight_dtype": "bf15"},
            {"file_bytes": 0},
            {"vocab": -1},
            {"name": "a\nb"},
        ]
        for fields in wrong:
            with self.subTest(fields=fields):
                self.assertRaises(InputError, replace, good, **fields)
        self.assertRaises(InputError, Attention, layers=0, kv_heads=1, head_dim=1)
        self.assertRaises(InputError, Attention, layers=1)
        self.assertRaises(InputError, Attention, layers=1, kv_heads=1, head_dim=1, latent_dim=1)
        self.assertRaises(InputError, Attention, layers=1, kv_heads=1, head_dim=1, window=0)
        self.assertRaises(InputError, Experts, layers=1, count=4, top_k=5, intermediate=1)


class VllmsOwnDefaults(unittest.TestCase):
    def test_the_table_is_looked_up_by_memory_and_name(self) -> None:
        for name, rules, usage, limits in (
            ("b200-sxm-180gb", "vllm-0.32", "server", (16384, 1024)),
            ("b200-sxm-180gb", "vllm-0.18", "server", (8192, 1024)),
            ("mi300x-192gb", "vllm-0.32", "server", (16384, 1024)),
            ("h100-sxm-80gb", "vllm-0.32", "server", (8192, 1024)),
            ("h100-sxm-80gb", "vllm-0.32", "llm-class", (16384, 1024)),
            ("rtx-pro-6000-96gb", "vllm-0.18", "server", (8192, 1024)),
            ("a100-sxm-80gb", "vllm-0.32", "server", (2048, 256)),
            ("a100-sxm-80gb", "vllm-0.32", "llm-class", (8192, 256)),
            ("l4-24gb", "vllm-0.32", "server", (2048, 256)),
            ("cpu-4vcpu", "vllm-0.32", "server", (2048, 128)),
            ("cpu-4vcpu", "vllm-0.32", "llm-class", (4096, 256)),
        ):
            with self.subTest(name=name, rules=rules, usage=usage):
                chosen = vllm_defaults(HARDWARE[name], rules, usage=usage)
                self.assertEqual((chosen.max_num_batched_tokens, chosen.max_num_seqs), limits)

    def test_rules_set_the_utilisation_and_the_device_sets_the_rest(self) -> None:
        gpu, cpu = HARDWARE["l4-24gb"], HARDWARE["cpu-4vcpu"]
        self.assertEqual(vllm_defaults(gpu).gpu_memory_utilization, 0.92)
        self.assertEqual(vllm_defaults(gpu, "vllm-0.18").gpu_memory_utilization, 0.90)
        self.assertTrue(vllm_defaults(gpu).async_scheduling and vllm_defaults(gpu).prefix_caching)
        self.assertFalse(vllm_defaults(cpu).async_scheduling)
        self.assertEqual((vllm_defaults(gpu).block_size, vllm_defaults(cpu).block_size), (16, 128))
        self.assertEqual(vllm_defaults(cpu, tensor_parallel=2).max_num_seqs, 256)
        self.assertRaises(InputError, vllm_defaults, gpu, "vllm-0.1")

    def test_what_was_not_set_follows_what_was(self) -> None:
        for given, limits in (
            ({}, (8192, 1024)),
            ({"max_num_seqs": 2, "max_model_len": 1000}, (2000, 2)),
            ({"max_model_len": 4}, (4096, 1024)),
            ({"max_num_batched_tokens": 512}, (512, 512)),
            ({"max_model_len": 20_000, "chunked_prefill": False}, (20_000, 1024)),
            ({"max_model_len": 9000, "chunked_prefill": False, "max_num_batched_tokens": 9000}, (9000, 1024)),
        ):
            with self.subTest(given=given):
                spec = build_server(ServerSpec(like_vllm=True, **given)).spec
                self.assertEqual((spec.max_num_batched_tokens, spec.max_num_seqs), limits)


class Meta(unittest.TestCase):
    def test_presets_are_of_their_class(self) -> None:
        self.assertTrue(all(isinstance(device, Hardware) for device in HARDWARE.values()))
        self.assertTrue(all(isinstance(model, Model) for model in MODELS.values()))


if __name__ == "__main__":
    unittest.main()
