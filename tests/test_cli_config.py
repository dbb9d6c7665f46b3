"""`--config`: a result can be run again from itself, and a flag always wins."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

from tests.command import servesim

SMALL = ("--quiet", "--requests", "12", "--prompt-tokens", "20-90", "--output-tokens", "5-20")


class Config(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = str(Path(folder.name) / "document.json")

    def write(self, document: Any) -> None:
        text = document if isinstance(document, str) else json.dumps(document)
        Path(self.path).write_text(text, encoding="utf-8")

    def config(self, verb: str, *flags: str) -> dict[str, Any]:
        said = servesim(verb, "--config", self.path, "--json", "--quiet", *flags)
        self.assertLess(said.code, 2, said.err)
        config: dict[str, Any] = json.loads(said.out)["config"]
        return config

    def refused(self, verb: str, *flags: str) -> str:
        said = servesim(verb, "--config", self.path, *flags)
        self.assertEqual((said.code, said.out), (2, ""), said.err)
        self.assertEqual(said.err.count("\n"), 1)
        return said.err

    def test_every_document_runs_again_to_the_same_bytes(self) -> None:
        for verb, *flags in (
            ("capacity", "--hardware", "l4-24gb", "--context", "1000", "--max-model-len", "8k"),
            ("simulate", "--concurrency", "3"),
            ("simulate", "--rate", "40", "--burstiness", "0.5", "--slo", "ttft_p95=1s", "--like-vllm"),
            ("simulate", "--hardware", "l4-24gb", "--trace", "fixtures/burst.jsonl", "--policy", "sjf"),
            ("simulate", "--slots", "4", "--kv-tokens", "4096", "--concurrency", "6", "--horizon", "3s"),
            ("simulate", "--rate", "50", "--client-timeout", "100ms", "--retries", "2", "--backoff", "10ms"),
            ("sweep", "--concurrency", "1,4", "--max-num-seqs", "2,300"),
            ("sweep", "--rate", "5,50", "--hardware", "l4-24gb,h100-sxm-80gb"),
        ):
            with self.subTest(verb=verb, flags=flags):
                small = SMALL if verb != "capacity" and "--trace" not in flags else ("--quiet",)
                first = servesim(verb, *small, *flags, "--json")
                self.assertLess(first.code, 2, first.err)
                self.write(first.out)
                again = servesim(verb, "--config", self.path, "--json", "--quiet")
                self.assertEqual(again.out, first.out)

    def test_a_saved_run_is_such_a_document(self) -> None:
        first = servesim("simulate", *SMALL, "--concurrency", "3", "--save", self.path, "--json")
        self.assertEqual(servesim("simulate", "--config", self.path, "--json", "--quiet").out, first.out)

    def test_a_flag_always_wins(self) -> None:
        self.write(servesim("simulate", *SMALL, "--concurrency", "3", "--seed", "5", "--json").out)
        got = self.config("simulate", "--seed", "6", "--no-chunked-prefill")
        self.assertEqual((got["seed"], got["concurrency"], got["requests"]), (6, 3, 12))
        self.assertFalse(got["chunked_prefill"])

    def test_another_kind_of_load_replaces_the_one_in_the_file(self) -> None:
        self.write(servesim("simulate", *SMALL, "--concurrency", "3", "--json").out)
        got = self.config("simulate", "--rate", "50")
        self.assertEqual((got["rate"], got["concurrency"], got["prompt_tokens"]), (50.0, None, "20-90"))
        got = self.config("simulate", "--trace", "fixtures/burst.jsonl")
        self.assertEqual((got["concurrency"], got["prompt_tokens"]), (None, None))
        self.write(servesim("simulate", "--trace", "fixtures/burst.jsonl", "--json", "--quiet").out)
        got = self.config("simulate", "--prompt-tokens", "50", "--rate", "9", "--requests", "5")
        self.assertEqual((got["trace"], got["prompt_tokens"]), (None, "50"))

    def test_another_device_brings_its_own_defaults_and_keeps_what_was_asked_for(self) -> None:
        self.write(servesim("capacity", "--json", "--mfu", "0.4").out)
        got = self.config("capacity", "--hardware", "l4-24gb")
        self.assertEqual((got["hardware"], got["reserve_gib"], got["mfu"]), ("l4-24gb", 1.5, 0.4))

    def test_another_cache_size_replaces_the_one_in_the_file(self) -> None:
        self.write({"kv_blocks": 300})
        self.assertEqual(self.config("capacity", "--kv-tokens", "1600")["kv_blocks"], None)

    def test_an_object_written_by_hand_is_taken_and_its_slips_are_named(self) -> None:
        self.write({"max_num_seqs": 4, "requests": 6, "concurrency": 2})
        self.assertEqual(self.config("simulate")["max_num_seqs"], 4)
        self.write({"max_num_seq": 4})
        self.assertIn("did you mean 'max_num_seqs'?", self.refused("simulate"))

    def test_a_wrong_value_names_file_key_and_value(self) -> None:
        for key, value in (
            ("max_num_seqs", "many"),
            ("max_num_seqs", -4),
            ("concurrency", 1.5),
            ("chunked_prefill", "no"),
            ("rate", True),
            ("trace", 7),
            ("slo", ["ttft"]),
            ("watermark", {"a": 1}),
            ("concurrency", [1, 2]),
        ):
            with self.subTest(key=key, value=value):
                self.write({key: value})
                told = self.refused("simulate")
                if key != "slo":
                    self.assertIn(f"{self.path}: {key} is ", told)

    def test_a_name_that_nothing_has_is_looked_up_where_the_file_is_known_unless_a_flag_replaces_it(self) -> None:
        for key, kind in (("hardware", "hardware"), ("model", "model"), ("policy", "policy")):
            with self.subTest(key=key):
                self.write({key: "nothing"})
                self.assertIn(f"error: {self.path}: unknown {kind} 'nothing'", self.refused("simulate"))
        self.write({"hardware": "nothing", "requests": 2})
        self.assertEqual(self.config("simulate", "--hardware", "l4-24gb")["hardware"], "l4-24gb")
        self.write({"hardware": ["l4-24gb", "nothing"]})
        self.assertIn(f"error: {self.path}: unknown hardware 'nothing'", self.refused("sweep"))

    def test_what_is_no_configuration_is_refused(self) -> None:
        for text in ("", "[]", "5", "{", '{"schema": "x"}', '{"config": 5}', '{"seed": NaN}', "[" * 100_000, "\0"):
            with self.subTest(text=text[:20]):
                self.write(text)
                self.assertIn(self.path, self.refused("simulate"))
        Path(self.path).write_bytes(b'{"seed": "\xff"}')
        self.assertIn("UTF-8", self.refused("simulate"))
        Path(self.path).unlink()
        self.assertIn("no such file or directory", self.refused("simulate"))
        Path(self.path).mkdir()
        self.assertIn("is a directory", self.refused("simulate"))


if __name__ == "__main__":
    unittest.main()
