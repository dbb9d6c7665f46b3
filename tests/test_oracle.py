"""The engine equals the textbook on seeded random workloads: `SERVESIM_SEEDS=5000` digs deeper than the default.

What is compared: every observed step, the step log, every column of the records, the totals; and all of it but the
steps once more without an observer, which is how users run it. `python3 -m tests.random_cases` makes a failure smaller.
"""

from __future__ import annotations

import unittest
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

from servesim.config.engine import RULES, EngineConfig
from servesim.runs.records import Outcome
from servesim.workload.requests import OPEN_END, Content
from tests.case import Case, Row
from tests.extent import seeds
from tests.oracle import first_difference, gaps_of, run_observed
from tests.random_cases import follower_case, minimised, random_case
from tests.reference import Reference
from tests.vllm_replay import engine_class_named

SAMPLE = 250  # for the laws of the textbook and of the generator


class TheEngineEqualsTheTextbook(unittest.TestCase):
    def test_on_random_workloads(self) -> None:
        engine = engine_class_named("servesim")
        for seed in seeds(800):
            case = random_case(seed)
            difference = first_difference(case, engine)
            if difference is not None:
                self.fail(
                    f"seed {seed} differs: {difference}\n{case}\nsee python3 -m tests.random_cases --seeds {seed}"
                )

    def test_on_requests_that_follow_others_closely(self) -> None:
        engine = engine_class_named("servesim")
        for seed in seeds(800):
            self.assertIsNone(first_difference(follower_case(seed), engine), f"seed {seed}")

    def test_when_a_step_without_anybody_makes_a_token_known(self) -> None:
        """The first preempts itself, which ends the step (priority): the second's last token is known one step early,
        so that the third, which follows it, hits one block more."""
        rows = (
            Row(5, 81, 42, ((0, 13), (1, OPEN_END)), priority=3),
            Row(10, 136, 51, ((2, 101), (3, OPEN_END))),
            Row(12, 214, 2, ((2, 101), (3, 187))),
        )
        config = EngineConfig(
            num_blocks=17,
            max_num_seqs=2,
            prefix_caching=True,
            async_scheduling=True,
            long_prefill_token_threshold=16,
            policy="priority",
            rules="vllm-0.18",
        )
        case = Case(seed=0, config=config, rows=rows)
        self.assertIsNone(first_difference(case, engine_class_named("servesim")))
        self.assertEqual(list(run_observed(Reference, case)[1].records.cached_tokens), [0, 0, 160])

    def test_whenever_chains_of_which_nothing_is_left_are_forgotten(self) -> None:
        engine = engine_class_named("servesim")
        with mock.patch("servesim.engine.blocks.MANY_CHAINS", 2):
            for seed in seeds(400):
                self.assertIsNone(first_difference(random_case(seed), engine), f"seed {seed}")


class Forgetful(Reference):
    """A textbook with one mistake: a preempted request goes to the back of the queue."""

    def queue(self, live: Any) -> None:
        if live.preempted and self.config.policy == "fcfs":
            self.waiting.append(live)
        else:
            super().queue(live)


class TheOracleFindsMistakes(unittest.TestCase):
    def test_a_wrong_rule_is_found_and_its_case_made_smaller(self) -> None:
        for seed in range(1000):
            case = random_case(seed)
            if first_difference(case, Forgetful) is not None:
                break
        else:
            self.fail("no case differs")
        smaller = minimised(case, Forgetful)
        self.assertLessEqual(len(smaller.rows), len(case.rows))
        self.assertLessEqual(len(smaller.rows), 4)
        self.assertIsNotNone(first_difference(smaller, Forgetful))
        self.assertIn(f"of {len(smaller.rows)} requests", str(smaller))

    def test_the_same_seed_draws_the_same_case(self) -> None:
        for seed in range(20):
            self.assertEqual(repr(random_case(seed)), repr(random_case(seed)))

    def test_the_cases_reach_what_they_are_meant_to_reach(self) -> None:
        reached: Counter[str] = Counter()
        for seed in range(SAMPLE):
            case = random_case(seed)
            steps, run = run_observed(Reference, case)
            assert run.engine is not None
            reached.update(features_of(case.config))
            reached.update(run.records.reason.values())
            reached.update(Outcome(outcome).name for outcome in run.records.outcome)
            reached["preempted"] += run.engine.preemptions
            reached["evicted"] += run.engine.evictions
            reached["hit"] += run.engine.hit_tokens
            reached["recomputed"] += run.engine.recomputed_tokens
            reached["retried"] += len(run.records.attempts)
            reached["capped"] += len(run.records.capped)
            reached["resumed on its own blocks"] += sum(
                step.get("prefix", {}).get(index, {"hits": 0})["hits"] for step in steps for index in step["resumed"]
            )
        wanted = [*RULES, "async", "priority", "sjf", "whole prompts", "threshold", "watermark", "COMPLETED"]
        wanted += ["preempted", "evicted", "hit", "recomputed", "retried", "capped", "resumed on its own blocks"]
        wanted += ["timeout", "queue_full", "prompt_too_long", "over_kv_cache", "over_token_budget"]
        wanted += ["over_max_tokens_in_flight", "UNFINISHED", "WITHHELD"]
        self.assertEqual([name for name in wanted if not reached[name]], [])


def features_of(config: EngineConfig) -> Iterator[str]:
    yield config.rules
    yield config.policy
    if config.async_scheduling:
        yield "async"
    if not config.chunked_prefill:
        yield "whole prompts"
    if config.long_prefill_token_threshold:
        yield "threshold"
    if config.watermark_blocks:
        yield "watermark"


class TheTextbookKeepsTheLaws(unittest.TestCase):
    """Else the engine could equal it and both be wrong."""

    def test_blocks_requests_and_tokens_are_conserved(self) -> None:
        for seed in seeds(SAMPLE):
            case = random_case(seed)
            with self.subTest(seed=seed):
                engine = Reference(case.config, case.cost(), case.workload(), observer=lambda step: None)
                engine.observer = lambda step, engine=engine: self.check_blocks(engine)
                run = engine.run(case.until_s)
                self.assertEqual(gaps_of(run), list(engine.log.decodes))
                totals, records = engine.totals, run.records
                for index, outcome in enumerate(records.outcome):
                    if outcome == Outcome.COMPLETED:
                        asked = run.requests.output_tokens[index]
                        produced = records.output_tokens[index]
                        self.assertTrue(produced == asked or (index in records.capped and produced < asked))
                        times = run.token_times(index)
                        self.assertEqual(len(times), produced)
                        self.assertEqual(sorted(set(times)), times)
                        self.assertLessEqual(records.sent_s[index], records.admitted_s[index])
                        self.assertLess(records.admitted_s[index], times[0])
                if case.until_s > 1e9:
                    self.assertEqual(len(engine.cache.free), case.config.num_blocks)
                    if not records.reason and not records.attempts:
                        needed = sum(
                            run.requests.prompt_tokens[index] + records.output_tokens[index] - 1
                            for index, outcome in enumerate(records.outcome)
                            if outcome == Outcome.COMPLETED
                        )
                        computed = totals.computed_tokens + totals.saved_tokens - totals.recomputed_tokens
                        self.assertEqual(computed, needed)
                self.assertLessEqual(totals.kv_peak_blocks, case.config.num_blocks)

    def check_blocks(self, engine: Reference) -> None:
        held: Counter[int] = Counter(block.number for live in engine.running for block in live.blocks)
        self.assertTrue(all(not live.blocks for live in engine.waiting))
        free = [block.number for block in engine.cache.free]
        self.assertEqual(len(free) + len(held), engine.config.num_blocks)
        self.assertEqual(len(set(free) | set(held)), engine.config.num_blocks)
        for live in engine.running:
            self.assertTrue(all(block.holders == held[block.number] for block in live.blocks))
        for key, blocks in engine.cache.table.items():
            self.assertTrue(blocks and all(block.key == key for block in blocks))

    def test_unlimited_memory_means_no_preemption(self) -> None:
        for seed in seeds(SAMPLE):
            case = random_case(seed)
            steps, _ = run_observed(Reference, replace(case, config=replace(case.config, num_blocks=3_000)))
            self.assertFalse(any(step["preempted"] for step in steps))

    def test_equal_last_blocks_behind_different_heads_share_nothing(self) -> None:
        def content(head: int) -> Content:
            return ((head, 16), (9, 32))

        rows = (Row(0, 33, 1, content(1)), Row(5, 33, 1, content(2)), Row(9, 33, 1, content(1)))
        config = EngineConfig(num_blocks=100, prefix_caching=True)
        _, run = run_observed(Reference, Case(seed=0, config=config, rows=rows))
        self.assertEqual(list(run.records.cached_tokens), [0, 0, 32])


if __name__ == "__main__":
    unittest.main()
