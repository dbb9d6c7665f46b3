"""A device in a JSON file: what it may say, what it inherits, and that nothing in it is guessed."""

from __future__ import annotations

import json
import random
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any

from servesim.catalog.hardware import HARDWARE, SCHEMA, device_document, load_hardware
from servesim.config.build import build_server
from servesim.config.server import ServerSpec
from servesim.errors import InputError
from tests.command import servesim

L4 = HARDWARE["l4-24gb"]


class Files(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "mine.json"

    def write(self, document: Any) -> str:
        self.path.write_text(json.dumps(document), encoding="utf-8")
        return str(self.path)

    def test_what_is_not_said_is_the_bases(self) -> None:
        device = load_hardware(self.write({"base": "l4-24gb", "mbu": 0.9}))
        self.assertEqual(device, replace(L4, name="mine", mbu=0.9))

    def test_a_device_of_its_own_needs_three_figures(self) -> None:
        own = {"memory_gib": 8, "bandwidth_gb_s": 100, "tflops": 5}
        device = load_hardware(self.write(own))
        self.assertEqual((device.name, device.memory_gib, device.mfu, device.mbu), ("mine", 8, 0.5, 0.75))
        self.assertIn("mine.json", device.source)
        for name in own:
            with self.assertRaisesRegex(InputError, f"mine.json: {name} is missing"):
                load_hardware(self.write({key: value for key, value in own.items() if key != name}))

    def test_what_is_written_reads_back_equal(self) -> None:
        fitted = replace(L4, name="fitted", mfu=0.61, overhead_ms=2.25, detailed={"kv_mbu": 0.8}, fitted="from a run")
        for device in (*HARDWARE.values(), fitted):
            with self.subTest(name=device.name):
                document = device_document(device, base="l4-24gb", provenance={"runs": ["a.jsonl"], "error": 0.01})
                self.assertEqual(load_hardware(self.write(document)), device)
        self.assertEqual(document["provenance"]["runs"], ["a.jsonl"])
        self.assertEqual(document["schema"], SCHEMA)

    def test_a_new_efficiency_ends_the_fit_of_the_base(self) -> None:
        self.assertEqual(load_hardware(self.write({"base": "apple-m4-pro", "mbu": 0.5})).fitted, "")
        self.assertNotEqual(load_hardware(self.write({"base": "apple-m4-pro", "reserve_gib": 2})).fitted, "")

    def test_whatever_is_wrong_is_named_with_its_file(self) -> None:
        wrong: list[tuple[Any, str]] = [
            ([], "must be a JSON object"),
            ({"base": "l5"}, "unknown hardware 'l5'"),
            ({"base": 3}, "base is 3, must be text"),
            ({"base": "l4-24gb", "mbuu": 1}, "unknown field 'mbuu'; did you mean 'mbu'"),
            ({"base": "l4-24gb", "mbu": 0}, "mbu of hardware 'mine' is 0"),
            ({"base": "l4-24gb", "mbu": "0.5 of it"}, "mbu is '0.5 of it', must be a finite number"),
            ({"base": "l4-24gb", "mfu": True}, "mfu is True"),
            ({"base": "l4-24gb", "mfu": 1e300}, "mfu"),
            ({"base": "l4-24gb", "kind": "tpu"}, "kind of hardware 'mine' is 'tpu'"),
            ({"base": "l4-24gb", "name": "a\nb"}, "printable"),
            ({"base": "l4-24gb", "detailed": [1]}, r"detailed is \[1\], must be an object"),
            ({"base": "l4-24gb", "detailed": {"kv_mbu": "fast"}}, "detailed: kv_mbu is 'fast'"),
            ({"schema": "servesim.summary/1"}, "schema is 'servesim.summary/1', must be 'servesim.device/1'"),
        ]
        for document, problem in wrong:
            with self.subTest(document=document), self.assertRaisesRegex(InputError, problem) as caught:
                load_hardware(self.write(document))
            self.assertIn("mine.json", str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))
        with self.assertRaisesRegex(InputError, "cannot read .*none.json: no such file"):
            load_hardware(str(self.path.with_name("none.json")))

    def test_fields_of_every_wrong_kind_give_a_device_or_one_line(self) -> None:
        good = device_document(L4)
        values = (0, -1, 10**400, True, "x", [], {}, None, 1e9, "1k", {"a": []})
        for seed in range(200):
            rng = random.Random(seed)
            document = {**good, rng.choice(sorted(good)): rng.choice(values)}
            try:
                load_hardware(self.write(document))
            except InputError as error:
                self.assertNotIn("\n", str(error))

    def test_every_verb_takes_the_file(self) -> None:
        path = self.write(device_document(replace(L4, name="my-l4", overhead_ms=3.0), base="l4-24gb"))
        self.assertIn("llama-3.1-8b on my-l4\n", servesim("capacity", "--hardware", path).out)
        self.assertIn("3 ms overhead", servesim("capacity", "--hardware", path).out)
        self.assertEqual(servesim("simulate", "--hardware", path, "--requests", "2").code, 0)
        self.assertIn("my-l4\n  memory", servesim("hardware", path).out)

    def test_a_fitted_device_brings_the_cost_model_that_was_fitted(self) -> None:
        path = self.write({"base": "l4-24gb", "detailed": {"mbu": 0.7}, "fitted_for": "detailed"})
        for options, expected in ({}, "detailed"), ({"cost_model": "roofline"}, "roofline"):
            self.assertEqual(build_server(ServerSpec(hardware=path, **options)).spec.cost_model, expected)
        with self.assertRaisesRegex(InputError, "unknown cost model 'roof'"):
            build_server(ServerSpec(hardware=self.write({"base": "l4-24gb", "fitted_for": "roof"})))

    def test_a_listed_device_is_a_file_of_it(self) -> None:
        listed = json.loads(servesim("hardware", "rtx-4090-24gb", "--json").out)["devices"][0]
        self.assertEqual(load_hardware(self.write(listed)), HARDWARE["rtx-4090-24gb"])


if __name__ == "__main__":
    unittest.main()
