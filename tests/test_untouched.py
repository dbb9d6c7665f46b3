"""With tiers, drafts, adapters, classes, schedules, scaling and costs off, saved runs are byte for byte as before."""

from __future__ import annotations

import hashlib
import re
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.command import ROOT, servesim

SHARED = "--rate 20 --requests 100 --prefix-caching --turns 2 --arrivals constant --shared-prefix-tokens 64"
BURST = "--hardware l4-24gb --trace fixtures/burst.jsonl"

BEFORE = (
    ("8093bc4c8f048deb7c2f82e249da45b9", "--concurrency 8 --requests 64"),
    ("690ce6fed039dbd4d36a3ae99a553c33", SHARED),
    ("7319e95ce9ca7e97c94ba1f861da1c11", BURST),
    ("7e50e96b911b27b8a1efaf1abde342b2", f"{BURST} --prefix-caching --async-scheduling"),
)
"""The first half of the SHA-256 of saved runs without their version, taken before any of it was there; their flags."""


class Untouched(unittest.TestCase):
    def test_saved_runs_are_byte_for_byte_as_before(self) -> None:
        for digest, flags in BEFORE:
            with self.subTest(flags=flags), TemporaryDirectory() as folder:
                path = Path(folder) / "run.jsonl"
                argv = flags.replace("fixtures/", f"{ROOT}/fixtures/").split()
                self.assertEqual(servesim("simulate", *argv, "--quiet", "--save", str(path)).code, 0)
                saved = path.read_text(encoding="utf-8").replace(f"{ROOT}/", "")
                saved = re.sub(r'"servesim":"[^"]*"', '"servesim":""', saved, count=1)
                self.assertEqual(hashlib.sha256(saved.encode()).hexdigest()[:32], digest)


if __name__ == "__main__":
    unittest.main()
