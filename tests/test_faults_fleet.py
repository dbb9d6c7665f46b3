"""Faults reported of simulators that serve prefill and decode apart, or with a host in front: each as a small input.

A step takes one second; the link carries 1,000 bytes a second and a token's KV has 10 bytes unless said otherwise.
"""

from __future__ import annotations

import json
import math
import unittest
from collections.abc import Sequence
from typing import Any

from servesim.config.engine import EngineConfig
from servesim.engine.engine import Engine
from servesim.errors import RunError
from servesim.fleet.disaggregation import Disaggregation, Link
from servesim.fleet.fleet import Kind
from servesim.runs.records import Outcome, Run
from servesim.summary.summary import summarize
from servesim.workload.workload import Delayed
from tests.case import Case, Row, StepCost


def run_apart(rows: Sequence[Row], *, decode: dict[str, Any] | None = None, kv: float = 10.0, **link: Any) -> Run:
    case = Case(seed=0, config=EngineConfig(num_blocks=1000), rows=tuple(rows))
    pools = [
        [Kind(name=name, config=EngineConfig(**{"num_blocks": 1000, **limits}), cost=StepCost(True))]
        for name, limits in (("prefill", {}), ("decode", decode or {}))
    ]
    carrier = Link(**{"bytes_per_s": 1000.0, **link})
    fleet = Disaggregation(case.workload(), *pools, carrier, kv_bytes_per_token=kv)
    fleet.advance()
    return fleet.run()


def stages_of(run: Run, index: int) -> list[float]:
    """Return when a request was sent, its prompt done, its KV across, its decode admitted, its last token out."""
    assert run.stages is not None
    columns = [run.stages[name] for name in ("prefill_end_s", "transfer_end_s", "decode_start_s")]
    return [run.records.sent_s[index], *(column[index] for column in columns), run.token_times(index)[-1]]


class Apart(unittest.TestCase):
    def test_every_request_goes_through_its_stages_in_order(self) -> None:
        for decode in ({}, {"max_num_seqs": 2}, {"async_scheduling": True}, {"num_blocks": 8}):
            for overlap in ("none", "chunk", "layer"):
                with self.subTest(decode=decode, overlap=overlap):
                    rows = [Row(0, 20 + i, 1 + i % 3) for i in range(20)]
                    run = run_apart(rows, decode=decode, overlap=overlap)
                    self.assertEqual((run.records.outcome.count(Outcome.COMPLETED), run.violations), (20, []))
                    for index in range(20):
                        stages = stages_of(run, index)
                        self.assertEqual(stages, sorted(stages))
                        self.assertEqual(len(run.token_times(index)), 1 + index % 3)

    def test_the_first_token_waits_for_link_and_decode_queue(self) -> None:
        run = run_apart([Row(0, 100, 3), Row(0, 100, 3)], decode={"max_num_seqs": 1})
        # Both prompts take one step; their KV, 1,000 bytes each, crosses one after the other; then the only slot.
        self.assertEqual(stages_of(run, 0), [0.0, 1.0, 2.0, 2.0, 4.0])
        self.assertEqual(run.token_times(0), [2.0, 3.0, 4.0])
        self.assertEqual(stages_of(run, 1), [0.0, 1.0, 3.0, 4.0, 6.0])
        self.assertEqual(run.token_times(1), [4.0, 5.0, 6.0])

    def test_e2e_is_never_below_ttft(self) -> None:
        run = run_apart([Row(i / 3, 60, 1 + i % 4) for i in range(30)], decode={"max_num_seqs": 3})
        for index in range(30):
            times = run.token_times(index)
            self.assertTrue(0 < times[0] - run.records.sent_s[index] <= times[-1] - run.records.sent_s[index])
        json.dumps(summarize(run).as_dict(), allow_nan=False)

    def test_the_link_carries_the_prompts_kv_and_nothing_else(self) -> None:
        rows = [Row(0, 100, 5), Row(0, 37, 1), Row(3, 16, 9)]
        for kv in (10.0, 5.0):  # a narrower KV cache ships fewer bytes
            for overlap in ("none", "chunk", "layer"):
                run = run_apart(rows, kv=kv, overlap=overlap)
                assert run.link is not None
                self.assertEqual(run.link.moved_bytes, 153 * kv)

    def test_what_the_decode_engine_has_already_does_not_cross(self) -> None:
        shared = ((0, 64),)
        rows = [Row(0, 100, 2, shared), Row(50, 100, 2, shared)]
        run = run_apart(rows, decode={"prefix_caching": True})
        assert run.link is not None
        self.assertEqual(run.link.moved_bytes, 1000 + 360)
        self.assertEqual(stages_of(run, 1)[2], 51.0 + 0.36)
        cold = run_apart(rows)
        assert cold.link is not None
        self.assertEqual(cold.link.moved_bytes, 2000)

    def test_a_tiny_decode_cache_ends_or_names_the_request(self) -> None:
        rows = [Row(0, 40 + i, 40) for i in range(12)]
        for num_blocks in range(1, 12):
            with self.subTest(num_blocks=num_blocks):
                try:
                    run = run_apart(rows, decode={"num_blocks": num_blocks})
                except RunError as error:
                    self.assertRegex(str(error), "request [0-9]+ ")
                    continue
                outcomes = run.records.outcome
                self.assertEqual(outcomes.count(Outcome.COMPLETED) + outcomes.count(Outcome.REJECTED), 12)
                for index, outcome in enumerate(outcomes):
                    fits = -(-(40 + index + 39) // 16) <= num_blocks
                    self.assertEqual(outcome == Outcome.COMPLETED, fits)
                    if outcome == Outcome.COMPLETED:
                        self.assertEqual(len(run.token_times(index)), 40)


class InFrontOfTheEngine(unittest.TestCase):
    def test_a_hosts_delay_is_in_the_clients_ttft_and_not_in_the_engines_work(self) -> None:
        found = []
        for delay_s in (0.0, 0.25):
            case = Case(seed=0, config=EngineConfig(num_blocks=100), rows=(Row(0, 16, 4),))
            engine = Engine(case.config, case.cost(), Delayed(case.workload(), delay_s))
            engine.advance()
            run = engine.run()
            found.append((run.token_times(0)[0] - run.records.sent_s[0], math.fsum(run.steps.durations_s())))
        self.assertEqual(found, [(1.0, 4.0), (1.25, 4.0)])


if __name__ == "__main__":
    unittest.main()
