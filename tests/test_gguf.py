"""GGUF headers: what an honest file says, and that no other costs more than a line."""

from __future__ import annotations

import random
import struct
import tempfile
import time
import tracemalloc
import unittest
from pathlib import Path
from typing import Any

from servesim.catalog.gguf import MAX_STRINGS, Skipped, read_gguf, read_gguf_model
from servesim.catalog.model import Attention
from servesim.catalog.models import load_model
from servesim.errors import InputError
from tests.extent import seeds
from tests.gguf_files import GgufFile, llama

ROOT = Path(__file__).resolve().parent.parent


class InAFolder(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.path = self.folder / "tiny-q4_0.gguf"

    def refused(self, data: bytes, problem: str) -> None:
        """Hold that a file of `data` is refused in one line that names it and `problem`."""
        self.path.write_bytes(data)
        with self.assertRaises(InputError) as caught:
            read_gguf(str(self.path))
        message = str(caught.exception)
        self.assertTrue(message.startswith(f"{self.path}: "), message)
        self.assertRegex(message, problem)
        self.assertNotIn("\n", message)


class HonestFiles(InAFolder):
    def test_every_version_and_byte_order_reads_the_same(self) -> None:
        seen = set()
        for version, order in ((1, "<"), (2, "<"), (3, "<"), (3, ">")):
            made = llama()
            made.version, made.order = version, order
            header = read_gguf(made.write(self.path))
            self.assertEqual(header.version, version)
            self.assertEqual(header.metadata["llama.block_count"], 2)
            self.assertEqual(header.metadata["tokenizer.ggml.tokens"], Skipped(512))
            seen.add(header.tensors)
        self.assertEqual(len(seen), 1)

    def test_parameters_and_bytes_are_those_of_the_tensors(self) -> None:
        model = read_gguf_model(llama().write(self.path))
        one = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512
        self.assertEqual(model.params, 2 * (one + 512) + 512 * 256 + 256)
        self.assertEqual(model.weights_bytes, 2 * (one * 18 // 32 + 512 * 4) + 512 * 256 * 210 // 256 + 256 * 4)
        self.assertEqual((model.name, model.weight_dtype, model.kv_dtype), ("tiny-q4_0", "q4_0", "fp16"))
        self.assertEqual((model.layers, model.heads, model.hidden, model.vocab), (2, 4, 256, 512))
        self.assertTrue(model.tied_embeddings and model.gated)
        self.assertEqual(model.kv_bytes_per_token(), 2 * 2 * 2 * 64 * 2)

    def test_a_file_is_known_by_its_content_whatever_its_name(self) -> None:
        blob = self.folder / "sha256-667b0c1932bc6ffc593ed1d03f895bf2dc8dc6df21db3042284a6f4416b06a29"
        blob.write_bytes(Path(llama().write(self.path)).read_bytes())
        self.assertEqual(load_model(str(blob)).params, load_model(str(self.path)).params)

    def test_a_head_knows_the_bytes_of_its_own_type(self) -> None:
        self.assertEqual(read_gguf_model(llama().write(self.path)).head_bytes, 512 * 256 * 210 // 256)
        made = llama()
        made.tensors.append(("output.weight", (256, 512), "q8_0"))
        model = read_gguf_model(made.write(self.path))
        self.assertFalse(model.tied_embeddings)
        self.assertEqual(model.head_bytes, 512 * 256 * 34 // 32)

    def test_the_file_type_names_the_format(self) -> None:
        for number, name in ((0, "fp32"), (7, "q8_0"), (15, "q4_k_m"), (30, "iq4_xs"), (38, "mxfp4"), (4, "q4_0")):
            made = llama()
            made.metadata["general.file_type"] = number
            self.assertEqual(read_gguf_model(made.write(self.path)).weight_dtype, name)

    def test_explicit_widths_of_keys_and_values_count(self) -> None:
        made = llama(attention__key_length=96, attention__value_length=32)
        self.assertEqual(read_gguf_model(made.write(self.path)).kv_bytes_per_token(), 2 * 2 * (96 + 32) * 2)

    def test_heads_may_differ_by_layer_and_a_layer_without_keeps_nothing(self) -> None:
        model = read_gguf_model(llama(layers=3, attention__head_count_kv=[4, 0, 2]).write(self.path))
        self.assertEqual(model.kv_bytes_per_token(), (4 + 2) * 2 * 64 * 2)
        self.assertIn(Attention(layers=1, idle=True), model.attention)

    def test_windows_follow_the_architecture_or_the_file(self) -> None:
        for architecture, layers, facts, windows in (
            ("llama", 4, {"attention__sliding_window": 100}, [0]),  # llama.cpp has no window for a llama
            ("gemma3", 6, {"attention__sliding_window": 100}, [0, 500]),
            ("gpt-oss", 4, {"attention__sliding_window": 100}, [0, 200]),
            ("phi3", 4, {"attention__sliding_window": 100, "attention__sliding_window_pattern": 0}, [400]),
            ("any", 4, {"attention__sliding_window": 100, "attention__sliding_window_pattern": 4}, [0, 300]),
            (
                *("any", 4),
                {"attention__sliding_window": 100, "attention__sliding_window_pattern": [True, False, False, True]},
                [0, 200],
            ),
        ):
            with self.subTest(architecture=architecture, facts=facts):
                model = read_gguf_model(llama(architecture=architecture, layers=layers, **facts).write(self.path))
                self.assertEqual([(group.window or 0) * group.layers for group in model.attention], windows)

    def test_a_latent_is_kept_where_keys_are_stored_compressed(self) -> None:
        made = llama(architecture="deepseek2", attention__kv_lora_rank=128)
        made.tensors += [(f"blk.{layer}.attn_k_b.weight", (64, 128, 4), "q8_0") for layer in range(2)]
        self.assertEqual(read_gguf_model(made.write(self.path)).kv_bytes_per_token(), 2 * (128 + 64) * 2)

    def test_recurrent_layers_keep_a_state(self) -> None:
        made = llama(architecture="qwen3next", ssm__inner_size=512, ssm__state_size=16, ssm__conv_kernel=4)
        made.tensors.append(("blk.0.ssm_conv1d.weight", (4, 512), "f32"))
        model = read_gguf_model(made.write(self.path))
        self.assertEqual(model.attention[-1], Attention(layers=1, state_bytes=4 * (512 * 16 + 3 * 512)))
        self.assertEqual(model.kv_bytes_per_token(), 2 * 2 * 64 * 2)

    def test_experts_are_counted_and_a_token_computes_some(self) -> None:
        made = llama(architecture="qwen3moe", expert_count=8, expert_used_count=2, expert_feed_forward_length=128)
        made.tensors = [tensor for tensor in made.tensors if ".ffn_" not in tensor[0] or "norm" in tensor[0]]
        for layer in range(2):
            for part, shape in (("gate", (256, 128, 8)), ("up", (256, 128, 8)), ("down", (128, 256, 8))):
                made.tensors.append((f"blk.{layer}.ffn_{part}_exps.weight", shape, "q4_0"))
        model = read_gguf_model(made.write(self.path))
        assert model.experts is not None
        self.assertEqual((model.experts.layers, model.experts.count, model.experts.top_k), (2, 8, 2))
        self.assertEqual(model.expert_params, 2 * 8 * 3 * 256 * 128)
        self.assertEqual(model.params - model.compute_params, model.expert_params * 6 // 8)
        self.assertEqual(model.mlp_params, 0)

    def test_draft_layers_are_left_out(self) -> None:
        self.assertEqual(read_gguf_model(llama(layers=3, nextn_predict_layers=1).write(self.path)).layers, 2)

    def test_a_file_in_parts_is_read_whole_from_any_of_them(self) -> None:
        whole = llama(layers=2)
        expected = read_gguf_model(whole.write(self.path))
        for number, tensors in ((1, whole.tensors[:9]), (2, whole.tensors[9:])):
            facts = {**(whole.metadata if number == 1 else {"general.architecture": "llama"}), "split.count": 2}
            GgufFile(metadata=facts, tensors=tensors).write(self.folder / f"tiny-0000{number}-of-00002.gguf")
        model = read_gguf_model(str(self.folder / "tiny-00001-of-00002.gguf"))
        self.assertEqual((model.params, model.weights_bytes), (expected.params, expected.weights_bytes))
        self.assertEqual(model.name, "tiny")
        (self.folder / "tiny-00002-of-00002.gguf").unlink()
        with self.assertRaisesRegex(InputError, "cannot read .*00002-of-00002.gguf: no such file"):
            read_gguf_model(str(self.folder / "tiny-00001-of-00002.gguf"))

    def test_a_real_file_reads_as_its_maker_described_it(self) -> None:
        paths = sorted(ROOT.glob(".cache/**/SmolLM2-135M-Instruct.Q4_1.gguf"))
        if not paths:
            self.skipTest("no SmolLM2 in .cache: make smoke puts one there")
        model, preset = load_model(str(paths[0])), load_model("smollm2-135m")
        self.assertEqual((model.params, model.weights_bytes, model.weight_dtype), (134_515_008, 96_576_768, "q4_1"))
        self.assertEqual((model.attention, model.hidden, model.vocab), (preset.attention, preset.hidden, preset.vocab))


class DamagedFiles(InAFolder):
    def test_a_file_cut_anywhere_is_refused(self) -> None:
        data = Path(llama(layers=1).write(self.path)).read_bytes()
        rng = random.Random(3)
        for length in [0, 1, 3, 4, 7, 8, 23, *(rng.randrange(24, len(data)) for _ in range(60))]:
            self.refused(data[:length], r"is cut|is no GGUF|claims")

    def test_what_is_no_gguf_file_says_so(self) -> None:
        self.refused(b"PK\x03\x04" + b"\0" * 100, "is no GGUF file")
        self.refused(b"GGUF" + struct.pack("<I", 4) + b"\0" * 100, "version 4, must be 1, 2 or 3")
        self.refused(b"GGUF" + struct.pack("<I", 0) + b"\0" * 100, "version 0")

    def test_absurd_counts_are_refused_before_anything_is_read(self) -> None:
        for tensors, keys in ((2**64 - 1, 0), (0, 2**64 - 1), (2**40, 1), (1, 2**16), (1000, 0), (0, 1000)):
            with self.subTest(tensors=tensors, keys=keys):
                self.refused(b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + b"\0" * 1000, "claims .* more than")

    def test_lengths_beyond_the_file_are_refused(self) -> None:
        start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
        key = struct.pack("<Q", 1) + b"k"
        for value in (
            struct.pack("<IQ", 8, 2**63),
            struct.pack("<IQ", 8, 2**20),
            struct.pack("<IIQ", 9, 4, 2**62),
            struct.pack("<IIQ", 9, 8, 2**62),
            struct.pack("<IIQQ", 9, 8, 1, 2**62),
            struct.pack("<IIQQ", 9, 8, 2, 2**64 - 1) + b"\0" * 8,
        ):
            with self.subTest(value=value):
                self.refused(start + key + value + b"\0" * 20, "claims|is cut")
        self.refused(start + struct.pack("<Q", 2**62) + b"k" * 64, "claims")

    def test_unknown_and_nested_types_are_refused(self) -> None:
        start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
        self.refused(start + struct.pack("<I", 99) + b"\0" * 40, "type 99")
        deep = struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 1000
        self.refused(start + deep + b"\0" * 40, "a list of type 9")

    def test_keys_and_tensors_stand_once_and_are_printable(self) -> None:
        one = struct.pack("<Q", 1) + b"k" + struct.pack("<II", 4, 1)
        self.refused(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + one + one, "the key 'k' twice")
        for name in (b"\xff", b"a\nb", b""):
            data = struct.pack("<Q", len(name)) + name + struct.pack("<II", 4, 1)
            self.refused(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + data + b"\0" * 20, "UTF-8|printable")
        twice = GgufFile(tensors=[("a", (32,), "f32"), ("a", (32,), "f32")])
        self.refused(Path(twice.write(self.path)).read_bytes(), "the tensor 'a' twice")

    def test_tensors_must_lie_within_the_file_and_be_possible(self) -> None:
        self.refused(Path(llama().write(self.path, missing_bytes=1)).read_bytes(), "is cut: tensor 'blk.1.ffn_down")

        def tensor(dimensions: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
            shape = b"".join(struct.pack("<Q", width) for width in dimensions)
            name = struct.pack("<Q", 1) + b"t" + struct.pack("<I", len(dimensions))
            return (
                b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + name + shape + struct.pack("<IQ", kind, offset) + b"\0" * 200
            )

        self.refused(tensor((2**40, 2**40)), "which f32 cannot have")
        self.refused(tensor((2**50,)), "is cut")
        self.refused(tensor((0,)), "cannot have")
        self.refused(tensor((33,), kind=2), "q4_0 cannot have")
        self.refused(tensor((32,), kind=4), "type 4, which is not known")
        self.refused(tensor((8,), offset=2**63), "is cut")
        self.refused(tensor((8,), offset=7), "its alignment forbids")
        self.refused(tensor((1,) * 5), "5 dimensions")
        overlapping = bytearray(GgufFile(tensors=[("a", (32,), "f32"), ("b", (32,), "f32")]).bytes())
        overlapping[-8:] = struct.pack("<Q", 0)
        self.refused(bytes(overlapping) + b"\0" * 200, "overlap")

    def test_an_alignment_that_is_none_is_refused(self) -> None:
        for alignment in (0, 3, 2**30, "32", -1.0):
            made = GgufFile(metadata={"general.alignment": alignment})
            self.refused(made.bytes() + b"\0" * 64, "alignment")

    def test_a_model_without_what_a_decoder_needs_is_refused(self) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"general.architecture": 3}, "does not name its architecture"),
            ({"llama.block_count": 0}, "block_count is 0"),
            ({"llama.block_count": 10**6}, "block_count is 1000000"),
            ({"llama.embedding_length": "wide"}, "embedding_length is 'wide'"),
            ({"llama.attention.head_count_kv": [1]}, "has 1 items"),
            ({"split.count": 2}, "is one of 2 parts"),
        ]
        for facts, problem in cases:
            with self.subTest(facts=facts):
                made = llama()
                made.metadata |= facts
                with self.assertRaisesRegex(InputError, problem):
                    read_gguf_model(made.write(self.path))
        vocabulary = llama()
        vocabulary.tensors = []
        with self.assertRaisesRegex(InputError, "holds no tensors"):
            read_gguf_model(vocabulary.write(self.path))

    def test_a_large_vocabulary_costs_next_to_no_memory(self) -> None:
        count = 100_000
        start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
        self.path.write_bytes(start + struct.pack("<IIQ", 9, 8, count) + (struct.pack("<Q", 3) + b"abc") * count)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        self.assertEqual(read_gguf(str(self.path)).metadata, {"k": Skipped(count)})
        self.assertLess(tracemalloc.get_traced_memory()[1], 2 * 2**20)

    def test_more_strings_than_any_vocabulary_has_are_refused(self) -> None:
        start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
        with self.path.open("wb") as file:
            file.write(start + struct.pack("<IIQ", 9, 8, MAX_STRINGS + 1))
            file.truncate(2**30)  # a hole
        begun = time.process_time()
        with self.assertRaisesRegex(InputError, "strings"):
            read_gguf(str(self.path))
        self.assertLess(time.process_time() - begun, 10.0)  # to read it all takes minutes

    def test_many_long_texts_are_not_all_kept(self) -> None:
        text = "x" * 60_000
        made = GgufFile(metadata={f"k{number}": text for number in range(800)})
        header = read_gguf(made.write(self.path))
        self.assertLess(sum(len(value) for value in header.metadata.values() if isinstance(value, str)), 40_000_000)
        self.assertEqual(header.metadata["k799"], Skipped(60_000))

    def test_bytes_changed_at_random_give_a_model_or_one_line(self) -> None:
        whole = Path(llama(layers=1).write(self.path)).read_bytes()
        header_bytes = len(llama(layers=1).bytes())
        for seed in seeds(200):
            rng = random.Random(seed)
            data = bytearray(whole)
            for _ in range(rng.choice((1, 1, 2, 8))):
                at = rng.randrange(header_bytes)
                width = rng.choice((1, 1, 4, 8))
                data[at : at + width] = rng.choice((rng.randbytes(width), b"\xff" * width, b"\0" * width))
            self.path.write_bytes(data)
            with self.subTest(seed=seed):
                try:
                    model = read_gguf_model(str(self.path))
                except InputError as error:
                    self.assertNotIn("\n", str(error))
                else:
                    self.assertGreater(model.weights_bytes, 0)

    def test_what_is_no_file_says_why(self) -> None:
        with self.assertRaisesRegex(InputError, "^cannot read .*: no such file or directory$"):
            load_model(str(self.folder / "none.gguf"))


if __name__ == "__main__":
    unittest.main()
