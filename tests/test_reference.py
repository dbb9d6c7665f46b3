"""The textbook equals vLLM's own steps; it and the engine keep the rules of the text that no trace pins.

Each of the latter is a small input whose right outcome was worked out by hand from vLLM's rules.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from servesim.config.engine import EngineConfig
from servesim.runs.records import Outcome, Run
from servesim.workload.requests import OPEN_END
from tests.case import Case, Row
from tests.oracle import run_observed
from tests.reference import Reference
from tests.vllm_replay import engine_class_named, replay
from tests.vllm_traces import read_traces

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
TRACES = {"vllm-0.32": 53, "vllm-0.32-async": 41, "vllm-0.18": 53}


class TheTextbookEqualsVllm(unittest.TestCase):
    def test_every_trace_is_replayed_step_by_step(self) -> None:
        for folder, count in TRACES.items():
            traces = list(read_traces(FIXTURES / folder))
            self.assertEqual(len(traces), count)
            for trace in traces:
                with self.subTest(folder=folder, trace=trace.name):
                    self.assertIsNone(replay(trace, Reference))


class RulesThatNoTracePins:
    """Mixed into a TestCase for each engine. A step takes one second; blocks hold four tokens unless said otherwise."""

    engine: Callable[..., Any]

    def steps(self, rows: list[Row], **limits: Any) -> list[dict[str, Any]]:
        return self.both(rows, **limits)[0]

    def both(self, rows: list[Row], **limits: Any) -> tuple[list[dict[str, Any]], Run]:
        config = EngineConfig(**{"num_blocks": 100, "block_size": 4, **limits})
        return run_observed(type(self).engine, Case(seed=0, config=config, rows=tuple(rows)))

    # The watermark.

    def test_the_watermark_keeps_blocks_free_at_an_admission_beside_others(self) -> None:
        rows = [Row(0, 64, 5), Row(0, 64, 5), Row(0, 16, 1)]
        steps = self.steps(rows, block_size=16, num_blocks=10, watermark_blocks=2)
        self.assertEqual(steps[0]["admitted"], [0, 1])  # the second takes 4 of 6 and leaves exactly 2
        self.assertEqual(steps[0]["waiting"], [2])  # 1 of 2 would leave 1
        self.assertEqual(steps[5]["admitted"], [2])
        steps = self.steps(rows, block_size=16, num_blocks=10, watermark_blocks=3)
        self.assertEqual(steps[0]["admitted"], [0])

    def test_the_watermark_binds_neither_a_lone_request_nor_a_running_one(self) -> None:
        steps = self.steps([Row(0, 16, 5)], num_blocks=5, watermark_blocks=5)
        self.assertEqual(steps[0]["admitted"], [0])
        self.assertEqual(steps[1]["free_blocks_at_schedule"], 0)  # its second token takes the last block

    def test_hits_that_lie_in_the_free_queue_count_as_need_beside_the_watermark(self) -> None:
        shared = ((0, 8),)
        rows = [Row(0, 9, 1, shared), Row(1, 4, 20), Row(2, 9, 1, shared)]
        # In step 2 the runner holds 2 of 6 blocks. Request 2 needs one new block and its two hits, which lie free.
        for watermark, admitted in ((1, [2]), (2, [])):
            steps = self.steps(rows, num_blocks=6, watermark_blocks=watermark, prefix_caching=True)
            self.assertEqual(steps[2]["admitted"], admitted)

    # Asynchronous keys.

    def test_a_block_filled_by_decoding_is_hit_in_the_step_that_fills_it(self) -> None:
        same = ((0, OPEN_END),)
        steps = self.steps([Row(0, 3, 10, same), Row(1, 9, 1, same)], prefix_caching=True)
        self.assertEqual(steps[1]["prefix"], {1: {"queries": 9, "hits": 4}})

    def test_asynchronously_its_key_comes_one_step_later(self) -> None:
        same = ((0, OPEN_END),)
        for arrival_s, hits in ((1, 0), (2, 4)):
            steps = self.steps(
                [Row(0, 3, 10, same), Row(arrival_s, 9, 1, same)], prefix_caching=True, async_scheduling=True
            )
            self.assertEqual(steps[arrival_s]["prefix"], {1: {"queries": 9, "hits": hits}})

    def test_asynchronously_a_request_that_stops_leaves_the_key_of_its_last_full_block(self) -> None:
        same = ((0, OPEN_END),)
        # Its second and last token comes from step 1, which fills the block; step 2 is empty and processes it.
        for arrival_s, hits in ((2, 4), (5, 4)):
            steps = self.steps(
                [Row(0, 3, 2, same), Row(arrival_s, 9, 1, same)], prefix_caching=True, async_scheduling=True
            )
            found = next(step["prefix"][1] for step in steps if 1 in step["prefix"])
            self.assertEqual(found["hits"], hits if arrival_s > 2 else 0)

    def test_the_last_sampled_token_never_completes_a_block(self) -> None:
        same = ((0, OPEN_END),)
        for asynchronous in (False, True):
            steps = self.steps(
                [Row(0, 3, 1, same), Row(9, 9, 1, same)], prefix_caching=True, async_scheduling=asynchronous
            )
            self.assertEqual(steps[-1 - asynchronous]["prefix"], {1: {"queries": 9, "hits": 0}})

    # Policy priority.

    def test_of_equal_priority_victims_the_last_submitted_goes(self) -> None:
        steps = self.steps([Row(0, 4, 4), Row(0, 4, 4)], num_blocks=2, policy="priority")
        self.assertEqual(steps[0]["running"], [0, 1])
        self.assertEqual(steps[1]["preempted"], [1])
        self.assertEqual(steps[1]["scheduled"], {0: 1})

    def test_of_equal_priorities_the_later_arrival_goes_wherever_it_stands(self) -> None:
        rows = [Row(0, 4, 9, priority=1), Row(1, 4, 9, priority=0)]
        steps = self.steps(rows, num_blocks=4, policy="priority")
        self.assertEqual(steps[1]["running"], [0, 1])
        victims = [victim for step in steps for victim in step["preempted"]]
        self.assertEqual(set(victims), {0})  # the first in the list has the worse priority

    def test_the_tokens_of_an_undone_victim_return_to_the_budget(self) -> None:
        rows = [Row(0, 4, 8, priority=9), Row(1, 12, 1), Row(1, 8, 1)]
        steps = self.steps(
            rows,
            num_blocks=5,
            max_num_seqs=3,
            max_num_batched_tokens=5,
            long_prefill_token_threshold=3,
            reserve_full_isl=False,
            policy="priority",
        )
        self.assertEqual(steps[1]["scheduled"], {0: 1, 1: 3, 2: 1})
        self.assertEqual(steps[2]["scheduled"], {0: 1, 1: 3, 2: 1})
        # Request 1 lacks a block; request 0, already served with 1 token, gives way; request 2 finds 5 - 3 = 2.
        self.assertEqual(steps[3]["preempted"], [0])
        self.assertEqual(steps[3]["scheduled"], {1: 3, 2: 2})
        self.assertEqual(steps[3]["free_blocks_at_schedule"], 1)

    def test_a_request_that_is_its_own_victim_ends_the_loop_over_running(self) -> None:
        rows = [Row(0, 3, 8, priority=9), Row(1, 4, 2), Row(1, 4, 2)]
        steps, run = self.both(rows, num_blocks=3, policy="priority")
        self.assertEqual(steps[1]["scheduled"], {0: 1, 1: 4, 2: 4})
        self.assertEqual(steps[2]["preempted"], [0])
        self.assertEqual(steps[2]["scheduled"], {})
        self.assertEqual(len(run.times), len(steps) - 1)  # the empty step takes no time
        self.assertEqual(list(run.times), [float(number) for number in range(1, len(run.times) + 1)])

    # Limits of servesim's own.

    def test_max_tokens_in_flight_admits_by_the_sum_of_lengths_and_never_preempts(self) -> None:
        rows = [Row(0, 800, 100) for _ in range(4)]
        limited = self.steps(rows, num_blocks=4000, max_tokens_in_flight=2000)
        self.assertEqual(limited[0]["running"], [0, 1])
        self.assertEqual(limited[0]["waiting"], [2, 3])
        self.assertFalse(any(step["preempted"] for step in limited))
        self.assertEqual(self.steps(rows, num_blocks=4000)[0]["running"], [0, 1, 2, 3])

    def test_sjf_admits_the_shortest_first_and_preempts_the_youngest(self) -> None:
        steps = self.steps([Row(0, 9, 9), Row(0, 3, 3), Row(0, 3, 4)], policy="sjf")
        self.assertEqual(steps[0]["admitted"], [1, 2, 0])
        steps = self.steps([Row(0, 4, 9), Row(1, 4, 4)], num_blocks=3, policy="sjf")
        self.assertEqual([step["preempted"] for step in steps if step["preempted"]], [[1]])

    def test_each_rejection_names_its_reason(self) -> None:
        for reason, row, limits in (
            ("prompt_too_long", Row(0, 20, 5), {"max_model_len": 20}),
            ("over_max_tokens_in_flight", Row(0, 20, 5), {"max_tokens_in_flight": 24}),
            ("over_kv_cache", Row(0, 20, 6), {"num_blocks": 6}),
            ("over_token_budget", Row(0, 20, 6), {"chunked_prefill": False, "max_num_batched_tokens": 24}),
            ("queue_full", Row(0, 20, 6), {"max_num_queued_reqs": 0}),
            ("queue_full", Row(0, 20, 6), {"max_num_queued_tokens": 19}),
        ):
            with self.subTest(reason=reason):
                _, run = self.both([row, Row(5, 1, 1)], max_num_seqs=8, **limits)
                self.assertEqual(run.records.reason.get(0), reason)
                self.assertEqual(run.records.outcome[0], Outcome.REJECTED)
                if reason != "queue_full" or "max_num_queued_tokens" in limits:
                    self.assertEqual(run.records.outcome[1], Outcome.COMPLETED)

    def test_each_limit_lets_in_what_just_fits(self) -> None:
        for limits in (
            {"max_model_len": 21},
            {"max_tokens_in_flight": 25},
            {"num_blocks": 6},
            {"chunked_prefill": False, "max_num_batched_tokens": 24},
            {"max_num_queued_reqs": 1},
            {"max_num_queued_tokens": 20},
        ):
            with self.subTest(limits=limits):
                _, run = self.both([Row(0, 20, 5)], max_num_seqs=8, **limits)
                self.assertEqual(run.records.outcome[0], Outcome.COMPLETED)
                self.assertEqual(run.records.capped, {0} if "max_model_len" in limits else set())

    def test_a_last_token_at_the_deadline_counts_and_one_after_it_does_not(self) -> None:
        for asynchronous in (False, True):
            for patience_s, outcome, tokens in ((3.0, Outcome.COMPLETED, 3), (2.5, Outcome.FAILED, 2)):
                with self.subTest(asynchronous=asynchronous, patience_s=patience_s):
                    _, run = self.both([Row(0, 4, 3)], client_timeout_s=patience_s, async_scheduling=asynchronous)
                    self.assertEqual(run.records.outcome[0], outcome)
                    self.assertEqual(run.records.output_tokens[0], tokens)
                    self.assertEqual(run.records.reason, {} if tokens == 3 else {0: "timeout"})

    def test_blocks_of_a_client_that_left_are_free_for_those_who_arrive_at_that_moment(self) -> None:
        rows = [Row(0, 8, 9), Row(2, 8, 1)]
        steps = self.steps(rows, num_blocks=4, max_num_seqs=1, client_timeout_s=2.0)
        self.assertEqual(steps[2]["admitted"], [1])
        self.assertEqual(steps[2]["free_blocks_at_schedule"], 2)


class TheTextbookKeepsThem(RulesThatNoTracePins, unittest.TestCase):
    engine = Reference


class TheEngineKeepsThem(RulesThatNoTracePins, unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.engine = engine_class_named("servesim")


if __name__ == "__main__":
    unittest.main()
