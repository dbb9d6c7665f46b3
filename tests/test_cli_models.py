"""`servesim models` and `servesim hardware`: everything that is known is listed, and described with its source."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path

from servesim.catalog.hardware import HARDWARE
from servesim.catalog.models import MODELS
from servesim.catalog.weights import WEIGHT_FORMATS
from tests.command import ROOT, servesim
from tests.gguf_files import llama


class Lists(unittest.TestCase):
    def test_each_entry_has_a_row_that_fits_a_terminal(self) -> None:
        for argv, known in (
            (("models",), MODELS),
            (("hardware",), HARDWARE),
            (("models", "--formats"), WEIGHT_FORMATS),
        ):
            with self.subTest(argv=argv):
                said = servesim(*argv)
                self.assertEqual((said.code, said.err), (0, ""))
                lines = said.out.splitlines()
                self.assertEqual([line.split()[0] for line in lines[1:]], list(known))
                self.assertLessEqual(max(map(len, lines)), 100)

    def test_json_has_every_entry_with_its_source(self) -> None:
        for argv, key, known in (
            (("models",), "models", MODELS),
            (("hardware",), "devices", HARDWARE),
            (("models", "--formats"), "formats", WEIGHT_FORMATS),
        ):
            document = json.loads(servesim(*argv, "--json").out)
            self.assertEqual(document["schema"], f"servesim.{argv[0]}/1")
            self.assertEqual([entry["name"] for entry in document[key]], list(known))
            self.assertTrue(all(entry["source"] for entry in document[key]))


class Descriptions(unittest.TestCase):
    def test_a_model_is_described_with_its_source(self) -> None:
        said = servesim("models", "deepseek-v3", "llama-3.1-8b")
        self.assertEqual((said.code, said.err), (0, ""))
        for text in (
            "671,026,419,200 (671B)",
            "8 of 256 and 1 for every token in 58 layers, 2,048 wide",
            "61 layers: a latent of 576 numbers",
            "672.99 GB, fp8, 1.96B parameters in bf16",
            "deepseek-ai/DeepSeek-V3 config.json",
            "32 layers: 8 heads of 128, keys and values",
            "meta-llama/Llama-3.1-8B-Instruct",
        ):
            self.assertIn(text, said.out)
        self.assertLessEqual(max(map(len, said.out.splitlines())), 100)

    def test_every_preset_can_be_described(self) -> None:
        said = servesim("models", *MODELS)
        self.assertEqual(said.code, 0)
        self.assertLessEqual(max(map(len, said.out.splitlines())), 100)
        said = servesim("hardware", *HARDWARE)
        self.assertEqual(said.code, 0)
        self.assertLessEqual(max(map(len, said.out.splitlines())), 100)

    def test_a_model_of_ones_own_is_described_from_its_files(self) -> None:
        said = servesim("models", str(ROOT / "fixtures/models/nemotron-h-8b"))
        self.assertIn("24 layers: a state of 2.1 MiB, whatever the length", said.out)
        self.assertIn("24 layers: nothing", said.out)
        with tempfile.TemporaryDirectory() as folder:
            path = llama().write(Path(folder) / "tiny.gguf")
            self.assertIn("2 layers: 2 heads of 64, keys and values", servesim("models", path).out)

    def test_formats_can_be_tried_on(self) -> None:
        model = json.loads(servesim("models", "llama-3.1-8b", "--quantization", "q8_0", "--json").out)["models"][0]
        self.assertEqual((model["weight_dtype"], model["weights_bytes"]), ("q8_0", 8_531_875_000))
        self.assertEqual(sum(model["parts"].values()), model["params"])

    def test_a_device_is_described_with_its_source(self) -> None:
        said = servesim("hardware", "rtx-4090-24gb")
        for text in ("1008 GB/s, of which a step reaches 0.75 (mbu)", "330.3 in FP8", "NVIDIA Ada GPU architecture"):
            self.assertIn(text, said.out)

    def test_unknown_names_and_mixed_questions_are_bad_input(self) -> None:
        for argv, problem in (
            (("models", "lama-3.1-8b"), "did you mean 'llama-3.1-8b'?"),
            (("hardware", "h10"), "did you mean 'h100-sxm-80gb'?"),
            (("models", "phi-4", "--formats"), "--formats lists the formats of weights"),
            (("models", "--quantization", "q4"), "unknown quantization 'q4'"),
            (("hardware", "none.json"), "cannot read none.json: no such file or directory"),
        ):
            with self.subTest(argv=argv):
                said = servesim(*argv)
                self.assertEqual((said.code, said.out), (2, ""))
                self.assertIn(problem, said.err)
                self.assertEqual(said.err.count("\n"), 1)

    def test_the_result_can_go_to_a_file(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "models.txt"
            self.assertEqual(servesim("models", "-o", str(path)).out, "")
            self.assertEqual(path.read_text(encoding="utf-8"), servesim("models").out)


if __name__ == "__main__":
    unittest.main()
