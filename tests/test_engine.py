"""The engine as its users see it: slices, observers, hash seeds, horizons, deadlines, retries, bounds, slots, queues.

That its schedule is the textbook's is shown elsewhere (`test_oracle`). A step takes one second unless said otherwise.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import tempfile
import unittest
from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from servesim.config.engine import EngineConfig
from servesim.engine.engine import Engine
from servesim.fleet.simulate import simulate
from servesim.runs.records import Outcome, Run
from servesim.runs.writer import write_run
from servesim.summary.summary import Summary, summarize
from servesim.workload.requests import Requests
from servesim.workload.workload import OpenLoop
from tests.case import Case, Row, StepCost
from tests.command import in_shell, servesim
from tests.extent import in_full, once, seeds
from tests.oracle import difference_of_runs
from tests.random_cases import random_case


def case_of(rows: Sequence[Row], **limits: Any) -> Case:
    """Return a case; `limits` are fields of `Case` and `EngineConfig`."""
    load = {name: limits.pop(name) for name in Case.__slots__ if name in limits}
    return Case(seed=0, rows=tuple(rows), config=EngineConfig(**{"num_blocks": 1000, **limits}), **load)


def run_case(case: Case, slices: Sequence[float] = (), **options: Any) -> Run:
    engine = Engine(case.config, case.cost(), case.workload(), **options)
    for until_s in slices:
        engine.advance(min(until_s, case.until_s))
    engine.advance(case.until_s)
    return engine.run()


def run_rows(rows: Sequence[Row], **limits: Any) -> Run:
    return run_case(case_of(rows, **limits))


def saved(run: Run) -> bytes:
    """Return the bytes of a run as it is saved, with the time of every token."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        write_run(str(path), run, "simulate", token_times=True)
        return path.read_bytes()


def steady_case(sequences: int) -> Case:
    """Return a case of long answers side by side: stretches in which nothing but decoding happens."""
    return case_of([Row(0, 40 + 7 * i, 300 + 31 * i) for i in range(sequences)], unit_steps=False)


class OneRun(unittest.TestCase):
    """However an engine is driven or watched, it is the same run."""

    def test_advancing_in_slices_equals_one_go(self) -> None:
        for seed in seeds(120):
            case, rng = random_case(seed), random.Random(seed)
            whole = run_case(case)
            end_s = max(whole.times, default=1.0)
            for slices in (
                sorted(rng.uniform(0, end_s) for _ in range(rng.randint(1, 60))),
                list(whole.times),  # at the very moment at which a step ends
                [at + offset for at in whole.times for offset in (-1e-9, 1e-9)],
            ):
                with self.subTest(seed=seed):
                    self.assertIsNone(difference_of_runs(whole, run_case(case, slices)))

    def test_steady_stretches_can_be_cut_anywhere(self) -> None:
        for sequences in range(1, 8):
            case = steady_case(sequences)
            whole = run_case(case)
            slices = sorted(random.Random(sequences).uniform(0, whole.times[-1]) for _ in range(80))
            self.assertEqual(saved(run_case(case, slices)), saved(whole))

    def test_an_observer_changes_no_byte_of_a_saved_run(self) -> None:
        for case in [*map(random_case, seeds(120)), *map(steady_case, range(1, 8))]:
            with self.subTest(case=case.seed):
                seen: list[dict[str, Any]] = []
                run = run_case(case, observer=seen.append)
                self.assertEqual(saved(run), saved(run_case(case)))
                self.assertGreaterEqual(len(seen), len(run.times))

    def test_no_hash_seed_changes_a_byte(self) -> None:
        script = (
            "import hashlib; from tests.random_cases import random_case; from tests.test_engine import run_case, saved;"
            "print([hashlib.sha256(saved(run_case(random_case(seed)))).hexdigest() for seed in range(15)])"
        )
        found = {in_shell(f'python3 -c "{script}"', PYTHONHASHSEED=seed).out for seed in ("0", "1")}
        self.assertEqual(len(found), 1)
        self.assertEqual(found.pop().count("'"), 30)

    def test_a_finished_engine_has_nothing_left_to_do(self) -> None:
        case = case_of([Row(0, 16, 5)])
        engine = Engine(case.config, case.cost(), case.workload())
        for until_s in (3.0, 1.0, math.inf, 100.0, math.inf):  # the past changes nothing either
            engine.advance(until_s)
        self.assertEqual((engine.now, len(engine.log)), (5.0, 5))

    def test_an_engine_without_requests_has_a_run(self) -> None:
        run = run_rows([])
        self.assertEqual((len(run.times), summarize(run).requests.offered, run.violations), (0, 0, []))

    def test_any_number_of_jobs_gives_the_same_bytes(self) -> None:
        argv = ("sweep", "--requests", "60", "--rate", "20,60", "--kv-tokens", "3000,20000", "--prefix-caching")
        argv += ("--shared-prefix-tokens", "64", "--async-scheduling", "--json", "--quiet")
        found = {servesim(*argv, "--jobs", jobs).out for jobs in ("1", "2", "5")}
        self.assertEqual(len(found), 1)
        self.assertIn('"preemptions": ', found.pop())


class Laws(unittest.TestCase):
    def test_unlimited_memory_means_no_preemption(self) -> None:
        for seed in seeds(120):
            case = random_case(seed)
            run = run_case(replace(case, config=replace(case.config, num_blocks=10**9)))
            self.assertEqual((run.engine.preemptions, run.engine.evictions, run.records.preempted), (0, 0, {}))

    @once
    def test_one_sequence_at_a_time_is_the_m_d_1_queue(self) -> None:
        self.check_m_d_1((0.3, 8_000, False), (0.6, 15_000, False), (0.6, 15_000, True))

    @in_full
    def test_it_is_that_queue_near_saturation_too(self) -> None:
        self.check_m_d_1((0.9, 80_000, False))

    def check_m_d_1(self, *cases: tuple[float, int, bool]) -> None:
        # Mean wait = load / (2 (1 - load)) x service: Pollaczek 1930, Khinchin 1932. A request of 3 tokens takes 3 s.
        for load, count, ahead in cases:
            with self.subTest(load=load, async_scheduling=ahead):
                waits = self.waits(
                    load / 3.0, count, EngineConfig(num_blocks=10, max_num_seqs=1, async_scheduling=ahead)
                )
                expected = load / (2 * (1 - load)) * 3.0
                batch = count // 20
                means = [statistics.fmean(waits[at : at + batch]) for at in range(0, count, batch)]
                error = statistics.stdev(means) / math.sqrt(len(means))
                self.assertLess(error, 0.06 * expected)
                self.assertLess(abs(statistics.fmean(means) - expected), 3 * error)

    def waits(self, rate: float, count: int, config: EngineConfig) -> list[float]:
        rng, now = random.Random(42), 0.0
        requests = Requests()
        requests.prompt_tokens = array("q", [16]) * count
        requests.output_tokens = array("q", [3]) * count
        for _ in range(count):
            now += rng.expovariate(rate)
            requests.arrival_s.append(now)
        engine = Engine(config, StepCost(True), OpenLoop(requests))
        engine.advance()
        records = engine.run().records
        return [admitted - sent for admitted, sent in zip(records.admitted_s, records.sent_s, strict=True)]

    def test_a_lone_request_takes_the_sum_of_its_steps(self) -> None:
        cost = StepCost(False)
        run = run_rows([Row(2, 50, 30)], unit_steps=False, max_num_batched_tokens=32, max_num_seqs=8)
        now = 2.0 + cost.step(0, 0, [(32, 32)]) + 0.0
        expected = [now := now + cost.step(0, 0, [(18, 50)])]
        expected += [now := now + cost.decode(1, 50 + decoded) for decoded in range(1, 30)]
        self.assertEqual(run.token_times(0), expected)

    def test_a_bigger_load_never_shortens_the_whole(self) -> None:
        ends = [run_rows([Row(0, 40, 30)] * count, num_blocks=20).times[-1] for count in range(1, 30)]
        self.assertEqual(ends, sorted(ends))


class Horizon(unittest.TestCase):
    def test_every_step_that_starts_before_it_is_run_and_no_other(self) -> None:
        for until_s, steps in ((0.0, 0), (0.5, 1), (3.0, 3), (3.5, 4), (5.0, 5), (99.0, 5)):
            run = run_rows([Row(0, 16, 5)], until_s=until_s)
            self.assertEqual((len(run.times), run.records.output_tokens[0]), (steps, steps))
            done = Outcome.COMPLETED if steps == 5 else Outcome.UNFINISHED
            self.assertEqual(run.records.outcome[0], done)

    def test_an_idle_engine_does_not_jump_past_it(self) -> None:
        case = case_of([Row(0, 16, 2), Row(10, 16, 2)])
        engine = Engine(case.config, case.cost(), case.workload())
        engine.advance(6.0)
        self.assertEqual(len(engine.log), 2)
        engine.advance(10.0)  # the second is due then, and starts no earlier
        self.assertEqual(len(engine.log), 2)
        engine.advance(10.5)
        self.assertEqual(list(engine.log.end_s), [1.0, 2.0, 11.0])

    def test_who_was_not_sent_by_then_counts_as_offered_and_unfinished(self) -> None:
        run = run_rows([Row(0, 16, 2), Row(10, 16, 2)], until_s=5)
        counts = summarize(run).requests
        self.assertEqual((counts.offered, counts.completed, counts.unfinished), (2, 1, 1))
        self.assertTrue(math.isnan(run.records.sent_s[1]))

    def test_a_time_limit_for_arrivals_withholds_the_rest(self) -> None:
        run = run_rows([Row(0, 16, 2), Row(10, 16, 2)], duration_s=5)
        counts = summarize(run).requests
        self.assertEqual((counts.offered, counts.completed, counts.unfinished), (1, 1, 0))


class Impatience(unittest.TestCase):
    def counts(self, run: Run) -> tuple[int, int, int, int]:
        requests = summarize(run).requests
        self.assertEqual(run.violations, [])
        return requests.completed, requests.failed, requests.rejected, requests.unfinished

    def test_a_client_that_leaves_keeps_the_tokens_it_had_and_frees_its_seat(self) -> None:
        run = run_rows([Row(0, 16, 5), Row(1, 16, 1)], max_num_seqs=1, client_timeout_s=3.0)
        self.assertEqual(self.counts(run), (1, 1, 0, 0))
        self.assertEqual(run.records.reason, {0: "timeout"})
        self.assertEqual(run.token_times(0), [1.0, 2.0, 3.0])  # the one at its deadline is in time
        self.assertEqual((run.records.admitted_s[1], run.token_times(1)), (3.0, [4.0]))

    def test_one_that_waits_leaves_without_having_been_served(self) -> None:
        run = run_rows([Row(0, 16, 4), Row(0, 16, 2)], max_num_seqs=1, client_timeout_s=4.0)
        self.assertEqual(self.counts(run), (1, 1, 0, 0))
        self.assertEqual((run.records.first[1], run.records.output_tokens[1]), (-1, 0))

    def test_retries_are_counted_apart_and_their_tokens_once(self) -> None:
        run = run_rows([Row(0, 16, 5)], client_timeout_s=3.0, retries=2, backoff_s=2.0)
        # Sent at 0, 5 (3 + 2) and 12 (8 + 4); each attempt has 3 of 5 tokens.
        self.assertEqual(list(run.times), [1.0, 2.0, 3.0, 6.0, 7.0, 8.0, 13.0, 14.0, 15.0])
        summary = summarize(run)
        self.assertEqual((self.counts(run), summary.attempts), ((0, 1, 0, 0), 3))
        self.assertEqual((summary.tokens.output, run.records.output_tokens[0]), (0, 3))
        self.assertEqual((run.records.sent_s[0], run.token_times(0)), (0.0, [13.0, 14.0, 15.0]))
        self.assertEqual(summary.errors, {"timeout": 1})

    def test_a_retry_that_is_served_is_one_completed_request_since_its_first_send(self) -> None:
        rows = [Row(0, 16, 6), Row(0, 16, 3)]
        run = run_rows(rows, max_num_seqs=1, client_timeout_s=6.0, retries=1, backoff_s=1.0)
        summary = summarize(run)
        self.assertEqual((self.counts(run), summary.attempts, run.records.attempts), ((2, 0, 0, 0), 3, {1: 2}))
        self.assertEqual(run.token_times(1), [8.0, 9.0, 10.0])
        self.assertEqual(summary.ttft_ms.max, 8000.0)

    def test_in_overload_seats_work_for_clients_that_leave(self) -> None:
        rows = [Row(i / 4, 16, 8) for i in range(80)]
        patient, not_so = (run_rows(rows, max_num_seqs=4, client_timeout_s=limit) for limit in (None, 20.0))
        self.assertEqual(self.counts(patient), (80, 0, 0, 0))
        # Who gets a slot has waited so long that nearly all leave before their last token: the slots work for nobody.
        self.assertEqual(self.counts(not_so), (8, 72, 0, 0))
        self.assertGreater(not_so.engine.computed_tokens, 15 * 23)


class QueueBounds(unittest.TestCase):
    def test_arrivals_beyond_so_many_waiting_are_refused_at_once(self) -> None:
        rows = [Row(0, 16, 5), *[Row(1, 16, 5)] * 4]
        run = run_rows(rows, max_num_seqs=1, max_num_queued_reqs=2)
        self.assertEqual(run.records.reason, {3: "queue_full", 4: "queue_full"})
        self.assertEqual(summarize(run).requests.rejected, 2)
        self.assertEqual([run.records.output_tokens[i] for i in (3, 4)], [0, 0])

    def test_the_same_in_prompt_tokens(self) -> None:
        rows = [Row(0, 16, 5), Row(1, 30, 5), Row(1, 30, 5), Row(1, 10, 5)]
        run = run_rows(rows, max_num_seqs=1, max_num_queued_tokens=40)
        self.assertEqual(run.records.reason, {2: "queue_full"})  # 30 + 10 are 40; the one between would make 60

    def test_one_that_was_preempted_takes_a_place_but_no_prompt_tokens(self) -> None:
        rows = [Row(0, 32, 40), Row(0, 32, 40), Row(20, 16, 1), Row(20, 16, 1)]  # request 1 is preempted at 17
        by_count = run_rows(rows, num_blocks=6, max_num_queued_reqs=2)
        self.assertEqual(by_count.records.reason, {3: "queue_full"})
        by_tokens = run_rows(rows, num_blocks=6, max_num_queued_tokens=64)
        self.assertEqual(by_tokens.records.reason, {})

    def test_a_refused_client_may_come_back(self) -> None:
        rows = [Row(0, 16, 4), Row(1, 16, 4), Row(1, 16, 4)]
        run = run_rows(rows, max_num_seqs=1, max_num_queued_reqs=1, retries=3, backoff_s=1.0)
        # Refused at 1, at 2, and at 4, where it comes before the schedule that admits request 1; let in at 8.
        self.assertEqual(summarize(run).requests.completed, 3)
        self.assertEqual((run.records.attempts, run.records.admitted_s[2]), ({2: 4}, 8.0))

    def test_what_is_too_big_does_not_come_back(self) -> None:
        run = run_rows([Row(0, 500, 4)], num_blocks=10, max_num_queued_reqs=1, retries=3, backoff_s=1.0)
        self.assertEqual((run.records.reason, run.records.attempts), ({0: "over_kv_cache"}, {}))


class Slots(unittest.TestCase):
    """`--slots` as llama.cpp's --parallel: N slots with a share of the cache each."""

    def summary(self, prompt: int, output: int, **options: Any) -> Summary:
        load = {"requests": 5, "concurrency": 5, "prompt_tokens": str(prompt), "output_tokens": str(output)}
        return summarize(simulate(slots=4, kv_tokens=4096, **load, **options))

    def test_a_request_that_fills_its_slot_ends_there(self) -> None:
        summary = self.summary(931, 200)
        self.assertEqual((summary.requests.completed, summary.requests.capped), (5, 5))
        self.assertEqual(summary.output_tokens.max, 93)  # 931 + 93 = 1,024, as llama.cpp itself was seen to do
        self.assertEqual(summary.engine.preemptions, 0)

    def test_a_prompt_longer_than_a_slot_is_refused(self) -> None:
        self.assertEqual(self.summary(1023, 200).output_tokens.max, 1)
        self.assertEqual(self.summary(1024, 200).errors, {"prompt_too_long": 5})

    def test_without_a_slot_a_request_waits(self) -> None:
        run = simulate(slots=4, kv_tokens=4096, requests=5, concurrency=5, prompt_tokens="100", output_tokens="50")
        self.assertEqual(list(run.records.admitted_s[:4]), [0.0] * 4)
        self.assertEqual(run.records.admitted_s[4], run.token_times(0)[-1])

    def test_a_share_that_is_no_whole_number_of_blocks_is_a_slots_own_all_the_same(self) -> None:
        run = simulate(slots=3, kv_tokens=100, requests=3, concurrency=3, prompt_tokens="20", output_tokens="50")
        self.assertEqual(list(run.records.output_tokens), [13] * 3)  # 33 tokens each
        self.assertEqual(run.engine.preemptions, 0)


class Steps(unittest.TestCase):
    def test_the_log_is_one_row_a_step_and_its_times_ascend(self) -> None:
        for seed in range(40):
            run = run_case(random_case(seed))
            columns = (run.steps.end_s, run.steps.decodes, run.steps.prefill_tokens, run.steps.kv_blocks)
            self.assertEqual({len(column) for column in columns}, {run.engine.steps})
            self.assertTrue(all(before < after for before, after in pairwise(run.times)))
            self.assertTrue(all(duration_s > 0 for duration_s in run.steps.durations_s()))

    def test_a_million_tokens_take_no_memory_per_token(self) -> None:
        run = run_rows([Row(0, 16, 20_000)] * 50, num_blocks=100_000)
        self.assertEqual(sum(run.records.output_tokens), 1_000_000)
        self.assertEqual(len(run.times), 20_000)
        self.assertLess(sum(map(sys.getsizeof, (run.times, run.steps.decodes, run.steps.kv_blocks))), 10**6)


if __name__ == "__main__":
    unittest.main()
