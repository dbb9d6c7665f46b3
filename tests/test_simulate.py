"""The one call that runs a server and a workload: watching, slicing, horizons, floors, and the Python API."""

from __future__ import annotations

import doctest
import json
import unittest
from typing import Any
from unittest import mock

from servesim import simulate, summarize
from servesim.catalog.hardware import Hardware
from servesim.catalog.model import Model
from servesim.cost.model import COST_MODELS
from servesim.engine import simulate as module
from servesim.errors import InputError
from servesim.fleet import simulate as fleet_module
from servesim.runs.records import Run

SMALL: dict[str, Any] = {"requests": 60, "prompt_tokens": "20-200", "output_tokens": "5-40"}


def text(run: Run) -> str:
    return json.dumps([summarize(run).as_dict(), run.config])


class Slices(unittest.TestCase):
    def test_a_watched_run_is_the_same_run_however_it_is_sliced(self) -> None:
        for options in (
            {"concurrency": 4},
            {"rate": 30.0, "prefix_caching": True, "shared_prefix_tokens": 100},
            {"rate": 300.0, "kv_tokens": 600, "async_scheduling": True},
            {"rate": 300.0, "client_timeout_s": 0.2, "retries": 2, "backoff_s": 0.05},
            {"rate": 30.0, "horizon_s": 1.0},
            {"rate": 0.01, "requests": 5},
        ):
            with self.subTest(options=options):
                whole = simulate(**SMALL | options)
                for every_s in (0.0, 1e9):  # slices that halve, slices that double
                    with mock.patch.object(module, "WATCHED_EVERY_S", every_s):
                        self.assertEqual(text(simulate(**SMALL | options, watch=lambda over: False)), text(whole))

    def test_a_watch_is_told_how_many_are_over(self) -> None:
        told: list[int] = []
        with mock.patch.object(module, "WATCHED_EVERY_S", 0.0):
            simulate(**SMALL, watch=lambda over: bool(told.append(over)))
        self.assertEqual(told, sorted(told))
        self.assertGreater(len(told), 3)

    def test_a_watch_can_stop_a_run_which_is_then_partial_and_consistent(self) -> None:
        run = simulate(requests=500, watch=lambda over: over > 20)
        self.assertTrue(run.partial)
        counts = summarize(run).requests
        self.assertGreater(counts.completed, 20)
        self.assertEqual(counts.offered, counts.completed + counts.failed + counts.rejected + counts.unfinished)
        self.assertEqual(run.violations, [])


class Floors(unittest.TestCase):
    def test_an_efficiency_above_1_goes_on_with_a_warning_that_counts_steps(self) -> None:
        run = simulate(**SMALL, mbu=3.0, step_overhead_s=0.0)
        self.assertRegex(" ".join(run.warnings), r"[\d,]+ of [\d,]+ steps are faster than the datasheet")
        self.assertEqual(run.violations, [])

    def test_a_cost_model_that_beats_physics_breaks_a_law(self) -> None:
        class Magic:
            def __init__(self, model: Model, hardware: Hardware, tensor_parallel: int = 1, **_: Any) -> None:
                pass

            def decode(self, sequences: int, context_tokens: int) -> float:
                return 1e-9

            def step(self, sequences: int, context_tokens: int, chunks: object) -> float:
                return 1e-9

        with mock.patch.dict(COST_MODELS, {"magic": Magic}):
            run = simulate(**SMALL, cost_model="magic")
        self.assertIn("faster than the datasheet", " ".join(run.violations))


class Python(unittest.TestCase):
    def test_an_unknown_option_gets_the_nearest(self) -> None:
        with self.assertRaisesRegex(InputError, "did you mean 'concurrency'"):
            simulate(concurency=4)

    def test_a_value_may_be_text_as_on_the_command_line(self) -> None:
        self.assertEqual(text(simulate(requests=9, max_num_seqs="1k")), text(simulate(requests=9, max_num_seqs=1000)))

    def test_a_horizon_must_be_a_time(self) -> None:
        for horizon_s in (0, -1, float("nan")):
            with self.assertRaises(InputError):
                simulate(**SMALL, horizon_s=horizon_s)

    def test_the_docstrings_are_true(self) -> None:
        self.assertEqual(doctest.testmod(fleet_module).failed, 0)


if __name__ == "__main__":
    unittest.main()
