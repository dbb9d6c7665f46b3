"""Each law that a run checks at its end fails when the facts under it are tampered with, and holds otherwise."""

from __future__ import annotations

import math
import unittest
from collections.abc import Callable

from servesim.config.engine import EngineConfig
from servesim.engine.engine import Engine
from servesim.engine.laws import Facts, broken_laws
from servesim.runs.records import Outcome
from tests.case import Case, Row
from tests.random_cases import random_case

TIGHT = EngineConfig(num_blocks=9, max_num_seqs=4, prefix_caching=True)
ROWS = tuple(Row(0.3 * (i // 2), 30 + i, 20 + i, ((0, 16),) if i % 3 else ()) for i in range(12))


def closed_engine(until_s: float = math.inf) -> Engine:
    """Return an engine after a run with preemptions, hits and an idle time, or in its midst."""
    rows = (*ROWS, Row(500.0, 40, 5))
    case = Case(seed=0, config=TIGHT, rows=rows, until_s=until_s, unit_steps=False)
    engine = Engine(case.config, case.cost(), case.workload())
    engine.advance(until_s)
    assert engine.run().violations == []
    return engine


class Tampered(unittest.TestCase):
    def breaks(self, law: str, tamper: Callable[[Engine], object], until_s: float = math.inf) -> None:
        engine = closed_engine(until_s)
        tamper(engine)
        broken = broken_laws(Facts([engine.scheduler], engine.workload.requests, engine.records, engine.log))
        self.assertTrue(any(sentence.startswith(law) for sentence in broken), broken)

    def test_the_run_has_what_the_tests_need(self) -> None:
        engine = closed_engine()
        totals = engine.totals
        self.assertTrue(totals.preemptions and totals.saved_tokens and totals.recomputed_tokens and engine.log.starts)
        self.assertTrue(engine.records.slices and engine.pool.cached)
        midst = closed_engine(1.0)
        self.assertTrue(midst.num_running and midst.num_waiting)

    def test_law_1_a_request_that_vanishes(self) -> None:
        def forget(engine: Engine) -> None:
            engine.records.outcome[3] = Outcome.UNFINISHED

        self.breaks("law 1", forget)
        self.breaks("law 1", lambda engine: engine.scheduler.waiting.popleft(), until_s=1.0)

    def test_law_1_a_request_that_is_in_two_places(self) -> None:
        def complete_one_that_runs(engine: Engine) -> None:
            engine.records.outcome[next(iter(engine.scheduler.running.values())).index] = Outcome.COMPLETED

        self.breaks("law 1", complete_one_that_runs, until_s=1.0)
        self.breaks("law 1", lambda engine: engine.scheduler.waiting.append(engine.scheduler.waiting[0]), until_s=1.0)

    def test_law_1_one_that_never_came_is_over(self) -> None:
        def unsend(engine: Engine) -> None:
            engine.records.sent_s[3] = math.nan

        self.breaks("law 1", unsend)

    def test_law_2_tokens_that_appear_or_disappear(self) -> None:
        for name, by in (
            ("computed_tokens", 1),
            ("computed_tokens", -1),
            ("saved_tokens", 16),
            ("recomputed_tokens", 1),
        ):
            with self.subTest(name=name):
                self.breaks(
                    "law 2",
                    lambda engine, name=name, by=by: setattr(engine.totals, name, getattr(engine.totals, name) + by),
                )

        def miscount(engine: Engine) -> None:
            engine.records.output_tokens[2] += 1

        self.breaks("law 2", miscount)

    def test_law_2_a_token_counted_twice_or_a_gap_at_the_end(self) -> None:
        def one_more_decode(engine: Engine) -> None:
            engine.log.decodes[5] += 1

        def a_phantom_gap(engine: Engine) -> None:
            engine.records.last[0] += 1

        def a_join_across_a_preemption(engine: Engine) -> None:
            engine.records.slices.popitem()

        for tamper in (one_more_decode, a_phantom_gap, a_join_across_a_preemption):
            with self.subTest(tamper=tamper.__name__):
                self.breaks("law 2", tamper)

    def test_law_3_a_block_that_leaks_or_is_given_back_twice(self) -> None:
        for until_s in (1.0, math.inf):
            for name, by in (("keyless", -1), ("keyless", 1), ("cached", 1), ("cached", -1)):
                with self.subTest(name=name, by=by, until_s=until_s):
                    if (name, by, until_s) == ("keyless", 1, 1.0):
                        continue  # blocks in use may be fewer than those held: they are shared
                    self.breaks(
                        "law 3",
                        lambda engine, name=name, by=by: setattr(engine.pool, name, getattr(engine.pool, name) + by),
                        until_s,
                    )

    def test_law_4_admitted_before_it_was_sent(self) -> None:
        def too_early(engine: Engine) -> None:
            engine.records.admitted_s[4] = engine.records.sent_s[4] - 1e-9

        self.breaks("law 4", too_early)

    def test_law_4_a_token_before_its_admission_or_behind_the_last(self) -> None:
        def admitted_late(engine: Engine) -> None:
            engine.records.admitted_s[4] = engine.log.end_s[engine.records.first[4]] + 1e-9

        def backwards(engine: Engine) -> None:
            engine.records.first[4] = engine.records.last[4] + 1

        self.breaks("law 4", admitted_late)
        self.breaks("law 4", backwards)

    def test_law_5_a_clock_that_runs_backwards(self) -> None:
        def swap(engine: Engine) -> None:
            end_s = engine.log.end_s
            end_s[7], end_s[8] = end_s[8], end_s[7]

        def before_the_start(engine: Engine) -> None:
            engine.log.end_s[0] = -0.1

        self.breaks("law 5", swap)
        self.breaks("law 5", before_the_start)

    def test_littles_law_where_a_token_is_in_another_step(self) -> None:
        def move(engine: Engine) -> None:
            durations_s, decodes = engine.log.durations_s(), engine.log.decodes
            first, other = 5, next(i for i in range(6, 50) if abs(durations_s[i] - durations_s[5]) > 1e-4)
            decodes[first] -= 1
            decodes[other] += 1

        def idle_time_at_work(engine: Engine) -> None:
            start = max(engine.log.starts)
            engine.log.decodes[start] += 1
            engine.log.decodes[start + 1] -= 1

        for tamper in (move, idle_time_at_work):
            with self.subTest(tamper=tamper.__name__):
                self.breaks("law 10", tamper)


class Untampered(unittest.TestCase):
    def test_no_random_run_breaks_a_law_however_it_ends(self) -> None:
        for seed in range(150):
            case = random_case(seed)
            for until_s in (case.until_s, 7.5):
                with self.subTest(seed=seed, until_s=until_s):
                    engine = Engine(case.config, case.cost(), case.workload())
                    engine.advance(until_s)
                    self.assertEqual(engine.run().violations, [])


if __name__ == "__main__":
    unittest.main()
