"""The faults that fuzzing found stay mended, a short seeded run finds no new one, and the fuzzer does find faults."""

from __future__ import annotations

import json
import random
import unittest
from unittest import mock

from servesim.errors import InputError
from tests.extent import seeds
from tests.fuzz import FAULTS, TARGETS, case, fault_of, smallest
from tests.fuzz_inputs import minimise_words, mutate
from tests.fuzz_targets import FaultError, Target

MOST_MARKS = "servesim.report.series.MOST_MARKS"  # a million of them take seconds to draw
SEED = 20_000  # away from where `make fuzz` begins


def plant(data: bytes) -> None:
    """Read like a reader with two faults in it."""
    if b"bad" in data:
        raise InputError("bad input, and told so")
    if b"\0" in data:
        raise KeyError("a fault")
    if data.count(b"[") > 1:
        raise FaultError("another")


class Faults(unittest.TestCase):
    def test_those_that_were_found_are_mended(self) -> None:
        kept = sorted(FAULTS.glob("*.json"))
        self.assertGreater(len(kept), 3)
        for path in kept:
            found = json.loads(path.read_text(encoding="utf-8"))
            with self.subTest(file=path.name, was=found["fault"]), mock.patch(MOST_MARKS, 50_000):
                self.assertIsNone(fault_of(TARGETS[found["target"]], found["input"].encode("latin-1")))

    def test_a_short_run_finds_no_new_one(self) -> None:
        for number in range(SEED, SEED + len(seeds(45))):
            for name, target in TARGETS.items():
                with self.subTest(target=name, seed=number):
                    self.assertIsNone(fault_of(target, case(name, number)))

    def test_every_target_reads_its_good_inputs(self) -> None:
        for name, target in TARGETS.items():
            for number, seed in enumerate(target.seeds()[:4]):
                with self.subTest(target=name, seed=number):
                    self.assertIsNone(fault_of(target, seed))


class Fuzzer(unittest.TestCase):
    target = Target(run=plant, seeds=lambda: [b'{"key": [1, 2], "bad": 0}', b"plain\n"])

    def test_it_finds_faults_and_cuts_them_down(self) -> None:
        good = self.target.seeds()
        inputs = [mutate(random.Random(number), good) for number in range(600)]
        found = {fault: data for data in inputs if (fault := fault_of(self.target, data)) is not None}
        self.assertEqual(len(found), 2, found)
        for fault, data in found.items():
            least = smallest(self.target, data, fault)
            self.assertIn(least, (b"\0", b"[["))
            self.assertEqual(fault_of(self.target, least), fault)

    def test_a_case_is_the_same_every_time(self) -> None:
        for name in TARGETS:
            self.assertEqual(case(name, 5), case(name, 5))

    def test_words_that_do_not_matter_go(self) -> None:
        words = ["simulate", "--rate", "1", "--json", "x", "--seed", "2"]
        self.assertEqual(minimise_words(words, lambda less: "x" in less and "simulate" in less), ["simulate", "x"])


if __name__ == "__main__":
    unittest.main()
