"""A compressed log says what the plain one says, in far fewer entries."""

from __future__ import annotations

import json
import math
import unittest
from dataclasses import replace
from typing import Any
from unittest import mock

from servesim.config.fleet import FleetSpec
from servesim.config.server import ServerSpec
from servesim.config.workload import WorkloadSpec
from servesim.fleet import simulate as module
from servesim.fleet.build import build_deployment
from servesim.fleet.disaggregation import Disaggregation
from servesim.fleet.fleet import Fleet
from servesim.fleet.simulate import run_deployment
from servesim.runs.records import Run
from servesim.runs.step_log import CompressedLog, Starts
from servesim.summary.summary import summarize
from tests.case import Case
from tests.extent import seeds
from tests.fleet_cases import advanced, kind_of, random_disaggregation, random_fleet

SAME = ("planned_s", "sent_s", "admitted_s", "prompt_tokens", "output_tokens", "cached_tokens", "outcome")


def patient(case: Case) -> Case:
    """Return a case without deadlines, which may come between two tokens of a stretch."""
    return replace(case, config=replace(case.config, client_timeout_s=None))


class Folded(unittest.TestCase):
    def assert_alike(self, want: Any, have: Any, where: str = "") -> None:
        """Assert that two documents are equal, numbers up to the rounding of a clock."""
        if isinstance(want, dict):
            self.assertEqual(want.keys(), have.keys(), where)
            for key in want:
                self.assert_alike(want[key], have[key], f"{where}.{key}")
        elif isinstance(want, list):
            self.assertEqual(len(want), len(have), where)
            for place, (one, other) in enumerate(zip(want, have, strict=True)):
                self.assert_alike(one, other, f"{where}[{place}]")
        elif isinstance(want, float) and isinstance(have, float):
            self.assertTrue(math.isclose(want, have, rel_tol=1e-9, abs_tol=1e-9), f"{where}: {want} and {have}")
        else:
            self.assertEqual(want, have, where)

    def assert_same_run(self, want: Run, have: Run) -> None:
        for name in SAME:
            self.assertEqual(repr(getattr(want.records, name)), repr(getattr(have.records, name)), name)
        for index in range(len(want.records)):
            for column in ("first", "last"):
                one, other = getattr(want.records, column)[index], getattr(have.records, column)[index]
                self.assertEqual(one < 0, other < 0)
                if one >= 0:
                    self.assertEqual(want.times[one], have.times[other])  # to the bit
        self.assertEqual((want.violations, have.violations), ([], []))
        self.assert_alike(summarize(want).as_dict(), summarize(have).as_dict())

    def test_random_fleets(self) -> None:
        for seed in seeds(120):
            case, kinds, router = random_fleet(seed)
            case = patient(case)
            kinds = [replace(kind, config=replace(kind.config, client_timeout_s=None)) for kind in kinds]
            with self.subTest(seed=seed):
                runs = []
                for compresses in (False, True):
                    fleet = Fleet(case.workload(), kinds, router=router)
                    if compresses:
                        fleet.compress_logs()
                    runs.append(advanced(fleet, case))
                self.assert_same_run(*runs)

    def test_random_disaggregations(self) -> None:
        for seed in seeds(80):
            case, plain = random_disaggregation(seed)
            if case.config.client_timeout_s is not None:
                continue
            _, compressed = random_disaggregation(seed)
            compressed.compress_logs()
            self.assertIsInstance(compressed, Disaggregation)
            with self.subTest(seed=seed):
                self.assert_same_run(advanced(plain, case), advanced(compressed, case))

    def test_one_replica_and_kinds_of_different_price(self) -> None:
        case, _, _ = random_fleet(3)
        case = patient(case)
        for kinds in ([kind_of(case)], [kind_of(case), replace(kind_of(case), cost=case.cost(), name="other")]):
            runs = []
            for compresses in (False, True):
                fleet = Fleet(case.workload(), kinds, router="round-robin")
                if compresses:
                    fleet.compress_logs()
                runs.append(advanced(fleet, case))
            self.assert_same_run(*runs)

    def test_a_large_fleet_compresses_its_log_by_itself_where_nobody_asks_for_tokens(self) -> None:
        deployment = build_deployment(ServerSpec(), FleetSpec(replicas=4))
        spec = WorkloadSpec(requests=300, rate=3.0)
        with mock.patch.object(module, "COMPRESS_FROM", 300):
            plain, compressed = (run_deployment(deployment, spec, every_token=every) for every in (True, False))
        self.assertIsInstance(compressed.steps, CompressedLog)
        assert compressed.steps is not None and plain.steps is not None and compressed.engine is not None
        self.assertLess(len(compressed.steps), len(plain.steps) / 20)
        self.assertEqual(compressed.engine.steps, len(plain.steps))
        self.assert_same_run(plain, compressed)
        json.dumps(summarize(compressed).as_dict(), allow_nan=False)
        impatient = build_deployment(ServerSpec(client_timeout_s=9.0), FleetSpec(replicas=4))
        self.assertFalse(impatient.can_compress_log)


class StartColumns(unittest.TestCase):
    def test_are_a_mapping_of_which_only_the_last_is_asked_for(self) -> None:
        starts = Starts()
        starts[3] = 1.0
        starts[3] = 2.0
        starts[7] = 5.0
        self.assertEqual(list(starts.pairs()), [(3, 2.0), (7, 5.0)])
        self.assertEqual(
            (len(starts), list(starts), starts[7], starts.pop(7), starts.pop(7, None)), (2, [3, 7], 5.0, 5.0, None)
        )


if __name__ == "__main__":
    unittest.main()
