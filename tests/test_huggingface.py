"""Models from a config.json and what lies beside it: shapes, formats, bytes, and hostile files."""

from __future__ import annotations

import copy
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from servesim.catalog.huggingface import read_hugging_face
from servesim.catalog.model import Attention, Model
from servesim.catalog.models import MODELS, find_model, load_model, repositories
from servesim.errors import InputError, ServesimError
from tests.command import servesim
from tests.extent import seeds

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "fixtures" / "models"
PRESETS = ROOT / "servesim" / "catalog" / "data"
# Where a card rounds its parameters or its checkpoint's size, and GPT-2's biases.
ROUNDED = {"llama-3.1-70b": 0.0007, "gpt-oss-120b": 0.002, "tinystories-gpt-47m": 0.0015}

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
ONE_LAYER = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64
PARAMS = 4 * ONE_LAYER + 2 * 100 * 64 + 64


def path_of(name: str) -> Path:
    """Return the configuration of a preset, or the folder of a fixture."""
    return PRESETS / f"{name}.json" if name in MODELS else CONFIGS / name


def config_of(name: str) -> dict[str, Any]:
    """Return a configuration without what a preset says beside it."""
    path = path_of(name)
    document: dict[str, Any] = json.loads((path / "config.json" if path.is_dir() else path).read_text(encoding="utf-8"))
    document.pop("servesim", None)
    return document


def safetensors(tensors: dict[str, tuple[str, tuple[int, ...], int]]) -> bytes:
    """Return the bytes of a file of `tensors`, (dtype, shape, bytes) by name; its data is zeros."""
    header, at = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * at


class InAFolder(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "tiny"
        self.folder.mkdir()

    def model(self, config: dict[str, Any] | None = None, **changes: Any) -> Model:
        """Return the model of `config` (a small Llama) with `changes`; None takes a field away."""
        values = {**(LLAMA if config is None else config), **changes}
        values = {key: value for key, value in values.items() if value is not None}
        (self.folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
        return read_hugging_face(str(self.folder))


class KnownModels(unittest.TestCase):
    def test_every_preset_is_a_file_and_every_file_a_preset(self) -> None:
        self.assertEqual(sorted(f"{name}.json" for name in MODELS), sorted(path.name for path in PRESETS.iterdir()))
        for name in MODELS:
            self.assertEqual(MODELS[name].name, name)

    def test_the_published_parameters_of_a_preset_are_those_that_its_shapes_make(self) -> None:
        checked = 0
        for name, preset in MODELS.items():
            if "base" in json.loads(path_of(name).read_text(encoding="utf-8"))["servesim"]:
                continue  # the same shapes with other weights
            checked += 1
            with self.subTest(name=name):
                model = load_model(str(path_of(name)))
                self.assertEqual(model.attention, preset.attention)
                self.assertEqual(model.experts, preset.experts)
                self.assertEqual((model.heads, model.hidden, model.vocab), (preset.heads, preset.hidden, preset.vocab))
                self.assertEqual(model.tied_embeddings, preset.tied_embeddings)
                self.assertEqual(model.weight_dtype, preset.weight_dtype)
                delta = ROUNDED.get(name, 0.0005)
                self.assertAlmostEqual(model.params / preset.params, 1, delta=delta)
                self.assertAlmostEqual(model.weights_bytes / preset.weights_bytes, 1, delta=delta)
                if not name.startswith("gpt-oss"):  # whose card leaves the embedding table out
                    self.assertAlmostEqual(model.compute_params / preset.compute_params, 1, delta=0.002)
        self.assertGreaterEqual(checked, 39)

    def test_published_counts_come_out(self) -> None:
        for name, params, active in (
            ("llama-3.1-8b", 8_030_261_248, 8_030_261_248),
            ("qwen3-0.6b", 596_049_920, 596_049_920),
            ("qwen3-30b-a3b", 30_532_122_624, None),
            ("mixtral-8x7b", 46_702_792_704, None),
            ("jamba-v0.1", 51.6e9, 12e9),
            ("nemotron-h-8b", 8.1e9, 8.1e9),
            ("llama-4-scout", 107.8e9, 17.2e9),
        ):
            model = load_model(str(path_of(name)))
            exact = isinstance(params, int)
            self.assertAlmostEqual(model.params / params, 1, delta=1e-9 if exact else 0.002, msg=name)
            if active is not None:
                self.assertAlmostEqual(model.compute_params / active, 1, delta=0.011, msg=name)

    def test_hybrids_keep_what_their_layers_keep(self) -> None:
        jamba = load_model(str(CONFIGS / "jamba-v0.1"))
        scan, window = 8192 * 16 * 2, 8192 * 3 * 2
        self.assertEqual(
            jamba.attention,
            (Attention(layers=4, kv_heads=8, head_dim=128), Attention(layers=28, state_bytes=scan + window)),
        )
        nemotron = load_model(str(CONFIGS / "nemotron-h-8b"))
        self.assertEqual([group.layers for group in nemotron.attention], [4, 24, 24])
        self.assertTrue(nemotron.attention[2].idle)
        self.assertEqual(nemotron.mlp_layers, 24)

    def test_repositories_stand_for_presets(self) -> None:
        self.assertLessEqual(set(repositories().values()), set(MODELS))
        self.assertIs(load_model("Qwen/Qwen3-32B"), MODELS["qwen3-32b"])
        with self.assertRaisesRegex(InputError, "did you mean 'Qwen/Qwen3-32B'"):
            find_model("Qwen/Qwen3-33B")

    def test_every_model_of_the_published_measurements_is_known(self) -> None:
        data = os.environ.get("SERVESIM_DATA")
        if not data:
            self.skipTest("SERVESIM_DATA is not set: no measurements to look into")
        with (Path(data) / "silicon.csv").open(encoding="utf-8") as file:
            column = next(file).split(",").index("model")
            for name in sorted({line.split(",")[column] for line in file}):
                self.assertIn(name, repositories())


class Shapes(InAFolder):
    def test_a_plain_decoder_is_counted_to_the_parameter(self) -> None:
        model = self.model()
        self.assertEqual((model.params, model.name, model.layers), (PARAMS, "tiny", 4))
        self.assertEqual(model.kv_bytes_per_token(), 2 * 4 * 2 * 16 * 2)
        self.assertEqual(self.model(tie_word_embeddings=True).params, PARAMS - 100 * 64)

    def test_a_file_is_read_as_its_folder_is(self) -> None:
        self.assertEqual(self.model(), load_model(str(self.folder / "config.json")))
        (self.folder / "other.json").write_text(json.dumps(LLAMA), encoding="utf-8")
        self.assertEqual(load_model(str(self.folder / "other.json")).name, "other")

    def test_a_cache_of_the_hub_names_the_model(self) -> None:
        snapshot = self.folder / "models--org--Small-1B" / "snapshots" / "0a1b"
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
        self.assertEqual(load_model(str(snapshot)).name, "Small-1B")

    def test_an_explicit_head_dim_beats_the_quotient(self) -> None:
        self.assertEqual(self.model(head_dim=40).kv_bytes_per_token(), 2 * 4 * 2 * 40 * 2)
        with self.assertRaisesRegex(InputError, "head_dim is missing"):
            self.model(num_attention_heads=3)

    def test_every_way_to_say_which_layers_slide_is_understood(self) -> None:
        for changes, sliding in (
            ({"sliding_window": 8}, 4),
            ({"sliding_window": 8, "use_sliding_window": False}, 0),
            ({"sliding_window": 8, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}, 3),
            ({"sliding_window": 8, "sliding_window_pattern": 2}, 2),
            ({"sliding_window": 8, "sliding_window_pattern": "LLLG"}, 3),
            ({"sliding_window": 8, "model_type": "qwen2", "max_window_layers": 3}, 1),
            ({"model_type": "gemma2", "head_dim": 16}, 2),
            ({"model_type": "llama4_text", "attention_chunk_size": 8, "num_experts_per_tok": 1}, 3),
            ({"model_type": "llama4_text", "no_rope_layers": [1, 0, 1, 0], "num_experts_per_tok": 1}, 2),
        ):
            with self.subTest(changes=changes):
                groups = self.model(**changes).attention
                self.assertEqual(sum(group.layers for group in groups if group.window), sliding)

    def test_every_way_to_say_which_layers_mix_experts_is_understood(self) -> None:
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        for changes, mixing in (
            ({}, 4),
            ({"first_k_dense_replace": 1}, 3),
            ({"moe_layer_freq": 2}, 2),
            ({"moe_layer_freq": [0, 1, 1, 1]}, 3),
            ({"decoder_sparse_step": 2}, 2),
            ({"mlp_only_layers": [0, 3]}, 2),
            ({"mlp_layer_types": ["dense", "sparse", "sparse", "dense"]}, 2),
            ({"expert_layer_period": 4, "expert_layer_offset": 2}, 1),
            ({"moe_layers": [1]}, 1),
        ):
            with self.subTest(changes=changes):
                model = self.model(**experts, **changes)
                assert model.experts is not None
                self.assertEqual((model.experts.layers, model.mlp_layers), (mixing, 4 - mixing))
        self.assertIsNone(self.model(num_experts=1, num_experts_per_tok=1).experts)

    def test_shared_experts_compute_every_token(self) -> None:
        experts = {"num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
        plain = self.model(**experts)
        shared = self.model(**experts, shared_expert_intermediate_size=96)
        self.assertEqual(shared.params - plain.params, 4 * 3 * 64 * 96)
        self.assertEqual(shared.compute_params - plain.compute_params, 4 * 3 * 64 * 96)
        self.assertEqual(self.model(**experts, n_shared_experts=2).shared_expert_params, 4 * 2 * 3 * 64 * 32)

    def test_layers_that_borrow_keys_and_values_keep_none(self) -> None:
        self.assertEqual(self.model(num_kv_shared_layers=3).kv_bytes_per_token(), 2 * 1 * 2 * 16 * 2)

    def test_older_names_of_the_fields_are_known(self) -> None:
        gpt2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 100, "n_positions": 32}
        model = self.model(gpt2)
        self.assertFalse(model.gated)
        self.assertTrue(model.tied_embeddings)
        self.assertEqual(model.params, 4 * (4 * 64 * 64 + 2 * 64 * 256 + 2 * 64) + 100 * 64 + 64 + 32 * 64)

    def test_lightning_and_delta_attention_keep_states(self) -> None:
        minimax = self.model(attn_type_list=[0, 0, 0, 1])
        self.assertEqual(minimax.attention[1], Attention(layers=3, state_bytes=4 * 16 * 16 * 4))
        kimi = self.model(
            linear_attn_config={"full_attn_layers": [4], "kda_layers": [1, 2, 3], "num_heads": 4, "head_dim": 16}
        )
        self.assertEqual(kimi.attention[1], Attention(layers=3, state_bytes=4 * 16 * 16 * 4 + 3 * 64 * 3 * 2))


class Formats(InAFolder):
    def test_a_quantised_checkpoint_leaves_embeddings_and_head_in_16_bits(self) -> None:
        outer = 2 * 100 * 64
        for quantization, name, bits in (
            ({"quant_method": "fp8"}, "fp8", 8),
            ({"quant_method": "awq", "bits": 4}, "awq", 4.15625),
            ({"quant_method": "gptq", "bits": 4}, "gptq", 4.15625),
            ({"quant_method": "gptq", "bits": 8}, "int8", 8),
            ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 4.5),
            ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4", 4.5),
            ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 8),
            (
                {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
                },
                *("fp8", 8),
            ),
            (
                {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}},
                },
                *("gptq", 4.15625),
            ),
        ):
            with self.subTest(quantization=quantization):
                model = self.model(quantization_config=quantization)
                self.assertEqual(model.weight_dtype, name)
                self.assertEqual(model.weights_bytes, round((PARAMS - outer) * bits / 8) + outer * 2)

    def test_parts_that_a_recipe_left_alone_are_counted_as_they_are(self) -> None:
        quantization = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]}
        model = self.model(quantization_config=quantization)
        self.assertEqual(model.kept_params, 2 * 100 * 64 + model.attention_params)

    def test_modelopt_keeps_its_recipe_in_a_file_of_its_own(self) -> None:
        (self.folder / "hf_quant_config.json").write_text(
            json.dumps({"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}), encoding="utf-8"
        )
        self.assertEqual(self.model().weight_dtype, "nvfp4")

    def test_an_unknown_recipe_needs_files_that_can_be_counted(self) -> None:
        with self.assertRaisesRegex(InputError, "quantisation 'magic' is not known"):
            self.model(quantization_config={"quant_method": "magic"})
        (self.folder / "model.safetensors").write_bytes(safetensors({"a": ("U8", (50,), 50)}))
        self.assertEqual(self.model(quantization_config={"quant_method": "magic"}).weights_bytes, 50)

    def test_an_unknown_dtype_is_refused(self) -> None:
        with self.assertRaisesRegex(InputError, "torch_dtype is 'float13'"):
            self.model(torch_dtype="float13")
        self.assertEqual(self.model(torch_dtype="float32").weights_bytes, PARAMS * 4)


class WeightsBesideIt(InAFolder):
    def test_an_index_gives_the_bytes_to_the_byte(self) -> None:
        index = {"metadata": {"total_size": 123_456}, "weight_map": {"a": "model-00001-of-00002.safetensors"}}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        model = self.model()
        self.assertEqual((model.weights_bytes, model.params), (123_456, PARAMS))
        self.assertIn("total_size of model.safetensors.index.json", model.source)

    def test_headers_give_bytes_and_parameters_without_towers_and_drafts(self) -> None:
        (self.folder / "model.safetensors").write_bytes(
            safetensors(
                {
                    "model.layers.0.mlp.weight": ("BF16", (10, 10), 200),
                    "model.layers.4.mlp.weight": ("BF16", (10, 10), 200),  # a draft: there are four layers
                    "visual.layers.9.weight": ("BF16", (10,), 20),
                    "mtp.weight": ("BF16", (10,), 20),
                }
            )
        )
        model = self.model()
        self.assertEqual((model.weights_bytes, model.params), (220, 100))

    def test_shards_are_summed(self) -> None:
        for number in (1, 2):
            data = safetensors({f"t{number}": ("F32", (8,), 32)})
            (self.folder / f"model-0000{number}-of-00002.safetensors").write_bytes(data)
        index = {
            "metadata": {"total_size": 1},
            "weight_map": {f"t{n}": f"model-0000{n}-of-00002.safetensors" for n in (1, 2)},
        }
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        self.assertEqual(self.model().weights_bytes, 64)

    def test_packed_weights_leave_the_count_to_the_shapes(self) -> None:
        (self.folder / "model.safetensors").write_bytes(safetensors({"w": ("I32", (8,), 32)}))
        model = self.model(quantization_config={"quant_method": "awq", "bits": 4})
        self.assertEqual((model.weights_bytes, model.params, model.weight_dtype), (32, PARAMS, "awq"))

    def test_damaged_weights_are_one_line(self) -> None:
        good = safetensors({"w": ("BF16", (8,), 16)})
        path = self.folder / "model.safetensors"
        for data, problem in (
            (good[:-1], "beyond the end"),
            (good[:20], "cut"),
            (b"", "cut"),
            (struct.pack("<Q", 2**63) + good[8:], "cut"),
            (struct.pack("<Q", 3) + b"{}x", "not JSON"),
            (good.replace(b"BF16", b"BF15"), "makes no sense"),
            (good.replace(b"[0, 16]", b"[0, 15]"), "makes no sense"),
            (good.replace(b"[0, 16]", b"[0, 99]"), "beyond the end"),
            (good.replace(b'"shape": [8]', b'"shape": "8"'), "makes no sense"),
        ):
            with self.subTest(data=data[:60]):
                path.write_bytes(data)
                with self.assertRaisesRegex(InputError, problem) as caught:
                    self.model()
                self.assertIn("model.safetensors", str(caught.exception))

    def test_an_index_cannot_point_outside_of_its_folder(self) -> None:
        index = {"metadata": {"total_size": 9}, "weight_map": {"a": "../../secret.safetensors"}}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        with self.assertRaisesRegex(InputError, "outside of its folder"):
            self.model()


class Refusals(InAFolder):
    def test_what_is_no_decoder_says_which_field_is_missing(self) -> None:
        for field in ("hidden_size", "num_hidden_layers", "vocab_size"):
            with self.subTest(field=field), self.assertRaisesRegex(InputError, f"config.json: {field} is missing"):
                self.model(**{field: None})
        with self.assertRaisesRegex(InputError, "encoder-decoder"):
            self.model(is_encoder_decoder=True)

    def test_files_that_are_none_are_one_line(self) -> None:
        path = self.folder / "config.json"
        for data, problem in (
            (b"", "not JSON"),
            (b"[]", "must be a JSON object"),
            (b'{"hidden_size": NaN}', "not JSON"),
            (b"\xff\xfe", "not UTF-8"),
            (b"[" * 100_000, "not JSON"),
            (b'{"a": "' + b"x" * 2**24 + b'"}', "larger than"),
        ):
            with self.subTest(data=data[:20]):
                path.write_bytes(data)
                with self.assertRaisesRegex(InputError, problem):
                    load_model(str(path))
        path.unlink()
        with self.assertRaisesRegex(InputError, "holds no config.json"):
            load_model(str(self.folder))
        with self.assertRaisesRegex(InputError, "cannot read .*none.json: no such file"):
            load_model(str(self.folder / "none.json"))
        with self.assertRaisesRegex(InputError, "no model at './none'"):
            load_model("./none")

    def test_fields_of_every_wrong_kind_give_a_model_or_one_line(self) -> None:
        wrong = (0, -1, 1.5, 10**30, True, "many", [], {}, [1, "a", None], {"a": 1}, None, 2**31, [[]], "", 1e300)
        names = [*(name for name in MODELS if len(config_of(name)) > 1), *(folder.name for folder in CONFIGS.iterdir())]
        for seed in seeds(200):
            rng = random.Random(seed)
            config = copy.deepcopy(config_of(rng.choice(names)))
            for _ in range(rng.choice((1, 1, 2, 4))):
                part = rng.choice([config, *(value for value in config.values() if isinstance(value, dict) and value)])
                part[rng.choice(sorted(part))] = copy.deepcopy(rng.choice(wrong))
            (self.folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
            with self.subTest(seed=seed):
                try:
                    model = load_model(str(self.folder))
                    self.assertGreater(model.weights_bytes, 0)
                    self.assertGreaterEqual(model.kv_bytes_of_sequence(100), 0)
                except ServesimError as error:
                    self.assertNotIn("\n", str(error))


class FromTheCommandLine(unittest.TestCase):
    def test_a_run_takes_a_folder_for_a_model(self) -> None:
        said = servesim(
            *("simulate", "--model", str(CONFIGS / "nemotron-h-8b"), "--hardware", "l4-24gb", "--requests", "4"),
            *("--prompt-tokens", "64", "--output-tokens", "8"),
        )
        self.assertEqual((said.code, said.err), (0, ""))

    def test_a_start_reads_the_preset_that_is_asked_for_and_no_other(self) -> None:
        code = (
            "import sys; from servesim.cli.main import main; main(['capacity', '-o', '/dev/null']);"
            "from servesim.catalog import models;"
            "print('servesim.catalog.gguf' in sys.modules, models._document.cache_info().currsize)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.splitlines()[-1], "False 1")


if __name__ == "__main__":
    unittest.main()
