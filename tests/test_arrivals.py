"""Arrival processes: the rate and burstiness asked for, the same under any hash seed, and bounded work."""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import subprocess
import sys
import unittest
from itertools import pairwise

from servesim.errors import InputError
from servesim.workload.arrivals import ARRIVALS, draw_arrivals
from servesim.workload.seeds import random_stream


class ArrivalsTest(unittest.TestCase):
    def test_rate_and_burstiness_are_those_asked_for(self) -> None:
        # vllm bench serve: gaps are gamma with shape = burstiness, so their squared variation is 1 / burstiness.
        for kind, burstiness in (("poisson", 1.0), ("gamma", 0.25), ("gamma", 1.0), ("gamma", 4.0)):
            with self.subTest(kind=kind, burstiness=burstiness):
                times = draw_arrivals(kind, rate=20.0, seed=7, count=40_000, burstiness=burstiness)
                gaps = [after - before for before, after in pairwise(times)]
                self.assertAlmostEqual(statistics.mean(gaps) * 20, 1.0, delta=0.03)
                variation = statistics.pvariance(gaps) / statistics.mean(gaps) ** 2
                self.assertAlmostEqual(variation * burstiness, 1.0, delta=0.06)

    def test_a_burstiness_of_one_is_poisson(self) -> None:
        self.assertEqual(
            draw_arrivals("gamma", rate=3.0, seed=7, count=99), draw_arrivals("poisson", rate=3.0, seed=7, count=99)
        )

    def test_constant_arrivals_do_not_drift(self) -> None:
        times = draw_arrivals("constant", rate=10.0, seed=7, count=100_001)
        self.assertEqual((times[0], times[1], times[-1]), (0.0, 0.1, 10_000.0))

    def test_times_are_in_order_and_not_negative(self) -> None:
        for kind in ARRIVALS:
            times = draw_arrivals(kind, rate=1e6, seed=7, count=1000)
            self.assertTrue(times[0] >= 0.0 and all(before <= after for before, after in pairwise(times)))

    def test_a_duration_ends_them(self) -> None:
        times = draw_arrivals("constant", rate=2.0, seed=7, until_s=3.0)
        self.assertEqual(list(times), [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0])
        longer = draw_arrivals("poisson", rate=2.0, seed=7, until_s=30.0)
        self.assertEqual(
            draw_arrivals("poisson", rate=2.0, seed=7, until_s=15.0), longer[: sum(t <= 15 for t in longer)]
        )

    def test_a_ramp_lets_the_rate_grow_evenly_and_then_changes_nothing(self) -> None:
        times = draw_arrivals("constant", rate=2.0, seed=7, count=9, ramp_s=4.0)
        self.assertEqual([round(at, 6) for at in times], [0.0, 2.0, 2.828427, 3.464102, 4.0, 4.5, 5.0, 5.5, 6.0])
        steady = draw_arrivals("poisson", rate=50.0, seed=7, count=20_000)
        ramp = draw_arrivals("poisson", rate=50.0, seed=7, count=20_000, ramp_s=100.0)
        self.assertAlmostEqual(sum(at <= 50.0 for at in ramp) / 625, 1.0, delta=0.1)  # 50/s x 50^2 s^2 / (2 x 100 s)
        self.assertAlmostEqual(sum(at <= 100.0 for at in ramp) / 2500, 1.0, delta=0.05)
        self.assertAlmostEqual(ramp[-1] - steady[-1], 50.0)
        cut = draw_arrivals("poisson", rate=50.0, seed=7, until_s=30.0, ramp_s=100.0)
        self.assertEqual(cut, ramp[: len(cut)])
        self.assertGreater(ramp[len(cut)], 30.0)

    def test_what_would_never_end_or_says_nothing_is_refused(self) -> None:
        for rate in (0.0, -1.0, math.nan, math.inf, 1e-9, 1e-320, 1e300):
            with self.subTest(rate=rate), self.assertRaisesRegex(InputError, "^rate is "):
                draw_arrivals("poisson", rate=rate, seed=7, count=256)
        with self.assertRaisesRegex(InputError, "too many"):
            draw_arrivals("poisson", rate=1e6, seed=7, until_s=1e6)
        for burstiness in (0.0, -1.0, math.nan, math.inf, 1e-9):
            with self.subTest(burstiness=burstiness), self.assertRaisesRegex(InputError, "^burstiness is "):
                draw_arrivals("gamma", rate=1.0, seed=7, count=9, burstiness=burstiness)
        with self.assertRaisesRegex(InputError, "use gamma"):
            draw_arrivals("poisson", rate=1.0, seed=7, count=9, burstiness=2.0)
        with self.assertRaisesRegex(InputError, "did you mean 'poisson'"):
            draw_arrivals("poison", rate=1.0, seed=7, count=9)

    def test_bytes_do_not_depend_on_the_hash_seed(self) -> None:
        code = (
            "import hashlib; from servesim.workload.arrivals import draw_arrivals as d;"
            "print(hashlib.sha256(b''.join(d(k, rate=3.0, seed=7, count=500).tobytes()"
            " for k in ('poisson', 'gamma', 'constant'))).hexdigest())"
        )
        digests = {
            subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for seed in ("0", "1", "4242")
        }
        here = hashlib.sha256(
            b"".join(draw_arrivals(k, rate=3.0, seed=7, count=500).tobytes() for k in ("poisson", "gamma", "constant"))
        )
        self.assertEqual(digests, {here.hexdigest() + "\n"})

    def test_purposes_have_streams_of_their_own(self) -> None:
        self.assertNotEqual(random_stream(7, "arrivals").random(), random_stream(7, "prefixes").random())
        self.assertNotEqual(random_stream(7, "arrivals").random(), random_stream(8, "arrivals").random())


if __name__ == "__main__":
    unittest.main()
