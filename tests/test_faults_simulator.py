"""Faults that users of such tools reported in public, each as a small input with the right outcome, and their siblings.

Scheduling and metrics are asked of the engine and of the textbook alike. A step takes one second unless said otherwise;
blocks hold 16 tokens.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
import unittest
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest import mock

from servesim.catalog.hardware import HARDWARE
from servesim.catalog.models import MODELS
from servesim.config.engine import EngineConfig
from servesim.cost.memory import plan_capacity
from servesim.engine.engine import Engine
from servesim.fleet.simulate import simulate
from servesim.runs.records import Outcome, Run
from servesim.summary.slo import parse_slo
from servesim.summary.summary import Summary, summarize
from servesim.units import GIB
from tests.case import Case, Row, StepCost
from tests.command import in_shell, servesim
from tests.extent import in_full
from tests.oracle import first_difference, run_observed
from tests.reference import Reference

Step = dict[str, Any]
BURST = ("simulate", "--hardware", "l4-24gb", "--trace", "fixtures/burst.jsonl", "--quiet")
TWO_IN_TOO_SMALL_A_CACHE = [Row(0, 32, 40), Row(0, 32, 40)]  # 5 blocks each, of 6


def case_of(rows: Sequence[Row], limits: dict[str, Any]) -> Case:
    """Return a case; `limits` are fields of `Case` and `EngineConfig`."""
    load = {name: limits.pop(name) for name in Case.__slots__ if name in limits}
    return Case(seed=0, rows=tuple(rows), config=EngineConfig(**{"num_blocks": 1000, **limits}), **load)


class OnAnEngine:
    """Mixed into a TestCase for each engine."""

    engine: Callable[..., Any]

    def both(self, rows: Sequence[Row], **limits: Any) -> tuple[list[Step], Run]:
        return run_observed(type(self).engine, case_of(rows, limits))

    def steps(self, rows: Sequence[Row], **limits: Any) -> list[Step]:
        return self.both(rows, **limits)[0]

    def run_of(self, rows: Sequence[Row], **limits: Any) -> Run:
        return self.both(rows, **limits)[1]

    def summary(self, rows: Sequence[Row], *slos: str, **limits: Any) -> Summary:
        return summarize(self.run_of(rows, **limits), list(map(parse_slo, slos)))


def gaps(run: Run, index: int) -> list[float]:
    times = run.token_times(index)
    return [after - before for before, after in zip(times, times[1:], strict=False)]


class MetricFaults(OnAnEngine):
    def test_output_tokens_are_counted_once_however_often_a_request_is_preempted(self) -> None:
        summary = self.summary(TWO_IN_TOO_SMALL_A_CACHE, num_blocks=6)
        self.assertEqual((summary.tokens.output, summary.engine.preemptions), (80, 1))
        for more in ({"async_scheduling": True}, {"prefix_caching": True}, {"policy": "priority"}):
            again = self.summary([Row(0, 32, 40)] * 7, num_blocks=6, **more)
            self.assertEqual(again.tokens.output, 280)
            self.assertGreater(again.engine.preemptions or 0, 1)

    def test_a_preemption_leaves_one_gap_in_itl_and_ttft_as_it_was(self) -> None:
        run = self.run_of(TWO_IN_TOO_SMALL_A_CACHE, num_blocks=6)
        self.assertEqual(gaps(run, 0), [1.0] * 39)
        self.assertEqual(gaps(run, 1), [1.0] * 16 + [24.0] + [1.0] * 22)
        for index, e2e in ((0, 40.0), (1, 63.0)):
            times = run.token_times(index)
            self.assertEqual((times[0], times[-1]), (1.0, e2e))
            self.assertEqual(times[0] + sum(gaps(run, index)), e2e)
        summary = summarize(run)
        self.assertEqual((summary.ttft_ms.count, summary.ttft_ms.max), (2, 1000.0))
        self.assertEqual((summary.itl_ms.count, summary.itl_ms.max), (78, 24_000.0))
        self.assertEqual(summary.itl_ms.mean * 78, 39_000 + 62_000)

    def test_the_token_that_the_prefill_makes_is_counted_and_has_no_gap(self) -> None:
        summary = self.summary([Row(0, 32, 1)])
        self.assertEqual((summary.tokens.output, summary.ttft_ms.mean, summary.e2e_ms.mean), (1, 1000.0, 1000.0))
        self.assertIsNone(summary.itl_ms)
        self.assertIsNone(summary.tpot_ms)

    def test_there_is_no_phantom_gap_at_completion(self) -> None:
        for outputs in ([1], [1, 1, 1], [1, 5, 1, 2], [3, 1, 8]):
            summary = self.summary([Row(0, 10 + output, output) for output in outputs])
            found = 0 if summary.itl_ms is None else summary.itl_ms.count
            self.assertEqual(found, sum(output - 1 for output in outputs))

    def test_tpot_divides_by_the_tokens_that_were_made(self) -> None:
        summary = self.summary([Row(0, 10, 100)], max_model_len=15)
        self.assertEqual((summary.tokens.output, summary.requests.capped), (5, 1))
        self.assertEqual((summary.tpot_ms.count, summary.tpot_ms.mean), (1, 1000.0))

    def test_a_run_in_which_nothing_completed_has_nulls_and_no_nan(self) -> None:
        summary = self.summary([Row(0, 500, 5)], num_blocks=10)
        self.assertEqual((summary.requests.completed, summary.requests.rejected), (0, 1))
        self.assertEqual((summary.ttft_ms, summary.tpot_ms, summary.duration_s), (None, None, None))
        json.dumps(summary.as_dict(), allow_nan=False)

    def test_kv_in_use_is_weighted_by_time_and_idle_counts_nothing(self) -> None:
        # Step 1 holds one block of four, steps 2 to 17 two of them; then nothing until the second request, at 20.
        summary = self.summary([Row(0, 16, 17), Row(20, 16, 1)], num_blocks=4)
        self.assertEqual(summary.engine.kv_mean, (1 + 16 * 2 + 1) / (21 * 4))
        self.assertEqual(summary.engine.kv_peak, 0.5)

    def test_the_run_ends_with_its_last_token_not_with_a_timer(self) -> None:
        for more in ({"client_timeout_s": 1e6}, {"until_s": 1e6}):
            run = self.run_of([Row(0, 16, 5), Row(2, 16, 5)], **more)
            self.assertEqual(summarize(run).duration_s, 7.0)
            self.assertEqual(run.engine.elapsed_s, 7.0)

    def test_goodput_is_over_offered(self) -> None:
        rows = [Row(i, 16 if i % 2 else 500, 2) for i in range(100)]  # every second one is too big
        summary = self.summary(rows, "ttft_p50=10s", num_blocks=10)
        self.assertEqual((summary.requests.completed, summary.goodput.fraction), (50, 0.5))
        unfinished = self.summary([Row(0, 16, 10)] * 4, "ttft_p50=10s", max_num_seqs=1, until_s=15)
        self.assertEqual(unfinished.goodput.fraction, 0.25)

    def test_a_horizon_that_cuts_most_requests_is_warned_about(self) -> None:
        summary = self.summary([Row(0, 16, 10)] * 20, max_num_seqs=1, until_s=20)
        self.assertEqual(
            (summary.requests.offered, summary.requests.completed, summary.requests.unfinished), (20, 2, 18)
        )
        self.assertIn("18 of 20 requests are unfinished", summary.warnings[0])


class SchedulingFaults(OnAnEngine):
    def test_a_queue_is_not_stranded_when_the_batch_empties(self) -> None:
        for more, second in (({}, 5.0), ({"async_scheduling": True}, 5.0)):
            run = self.run_of([Row(0, 4, 5), Row(0, 4, 5)], max_num_seqs=1, **more)
            self.assertEqual(list(run.records.admitted_s), [0.0, second])
            self.assertEqual(run.token_times(1), [6.0, 7.0, 8.0, 9.0, 10.0])

    def test_a_request_bigger_than_the_cache_is_rejected_and_the_one_behind_it_served(self) -> None:
        run = self.run_of([Row(0, 200, 5), Row(0, 20, 3)], num_blocks=10)
        self.assertEqual(run.records.reason, {0: "over_kv_cache"})
        self.assertEqual(run.token_times(1), [1.0, 2.0, 3.0])

    def test_the_largest_request_that_fits_is_served(self) -> None:
        for output, outcome in ((81, Outcome.COMPLETED), (82, Outcome.REJECTED)):  # the last token is never computed
            run = self.run_of([Row(0, 80, output)], num_blocks=10)
            self.assertEqual(run.records.outcome[0], outcome)

    def test_thirty_long_requests_in_a_cache_for_two_end_with_few_preemptions(self) -> None:
        rows = [Row(0, 100, 1600 + i * 196 // 29) for i in range(30)]
        run = self.run_of(rows, num_blocks=262)
        self.assertEqual(run.records.outcome.count(Outcome.COMPLETED), 30)
        self.assertLess(run.engine.preemptions, 200)
        self.assertEqual(sum(run.records.output_tokens), sum(row.output for row in rows))

    def test_no_block_leaks_whatever_is_preempted(self) -> None:
        rng = random.Random(7)
        rows = [Row(i // 2, rng.randint(1, 200), rng.randint(1, 60)) for i in range(1000)]
        computed: Counter[int] = Counter()
        for step in self.steps(rows, num_blocks=25):  # the largest needs 17
            for victim in step["preempted"]:
                del computed[victim]
            for index, tokens in step["scheduled"].items():
                computed[index] += tokens
            used = sum(-(-tokens // 16) for tokens in computed.values())
            self.assertEqual(step["free_blocks_at_schedule"], 25 - used)
            for index in step["finished"]:
                del computed[index]
        self.assertEqual(step["free_blocks"], 25)

    def test_the_partly_filled_last_block_is_used(self) -> None:
        for more in ({}, {"prefix_caching": True}):
            steps = self.steps([Row(0, 17, 1)], num_blocks=2, max_num_batched_tokens=8, max_num_seqs=8, **more)
            self.assertEqual([step["scheduled"] for step in steps], [{0: 8}, {0: 8}, {0: 1}])
            self.assertEqual([step["free_blocks_at_schedule"] for step in steps], [1, 1, 0])

    def test_an_answer_ends_at_the_length_limit_and_says_so(self) -> None:
        run = self.run_of([Row(0, 40, 100)], max_model_len=50)
        self.assertEqual((run.records.output_tokens[0], run.records.capped), (10, {0}))
        self.assertEqual(run.engine.computed_tokens, 49)
        for prompt, tokens, reason in ((49, 1, None), (50, 0, "prompt_too_long"), (51, 0, "prompt_too_long")):
            run = self.run_of([Row(0, prompt, 100)], max_model_len=50)
            self.assertEqual((run.records.output_tokens[0], run.records.reason.get(0)), (tokens, reason))
        self.assertEqual(self.run_of([Row(0, 40, 10)], max_model_len=50).records.capped, set())

    def test_a_block_is_not_hit_after_its_content_is_gone(self) -> None:
        shared = ((0, 64),)
        rows = [Row(0, 65, 1, shared), Row(5, 160, 1), Row(9, 65, 1, shared)]  # the second takes all ten blocks
        for more in ({}, {"rules": "vllm-0.18"}, {"async_scheduling": True}):
            run = self.run_of(rows, num_blocks=10, prefix_caching=True, **more)
            self.assertEqual(list(run.records.cached_tokens), [0, 0, 0])
            self.assertEqual(run.engine.evictions, 4 + 5)  # the shared head; then five of the ten for the third

    def test_a_hit_run_stops_at_the_first_block_that_is_gone(self) -> None:
        shared = ((0, 64),)
        for taken, hit in ((6, 64), (7, 48), (8, 32), (9, 16), (10, 0)):  # four keyed ones lie behind six others
            rows = [Row(0, 65, 1, shared), Row(5, 16 * taken, 1), Row(9, 65, 1, shared)]
            run = self.run_of(rows, num_blocks=10, prefix_caching=True)
            self.assertEqual(list(run.records.cached_tokens), [0, 0, hit])

    def test_equal_blocks_behind_different_heads_share_nothing(self) -> None:
        heads = (1, 2, 1, 2)
        rows = [Row(5 * i, 33, 1, ((head, 16), (9, 32))) for i, head in enumerate(heads)]
        run = self.run_of(rows, prefix_caching=True)
        self.assertEqual(list(run.records.cached_tokens), [0, 0, 32, 32])

    def test_what_is_hit_is_taken_off_once(self) -> None:
        shared = ((0, 512),)
        steps, run = self.both([Row(0, 1024, 1, shared), Row(5, 1024, 1, shared)], prefix_caching=True)
        self.assertEqual([step["scheduled"] for step in steps], [{0: 1024}, {1: 512}])
        self.assertEqual(run.engine.computed_tokens, 1024 + 512)
        priced = self.run_of([Row(0, 1024, 1, shared), Row(5, 1024, 1, shared)], prefix_caching=True, unit_steps=False)
        self.assertEqual(priced.steps.durations_s()[1], 5 + StepCost(False).step(0, 0, [(512, 1024)]) - 5)

    def test_a_request_completes_once(self) -> None:
        for more in ({}, {"async_scheduling": True}, {"policy": "priority"}, {"prefix_caching": True}):
            steps = self.steps([Row(i // 3, 40, 30) for i in range(20)], num_blocks=9, **more)
            self.assertEqual(Counter(index for step in steps for index in step["finished"]), Counter(range(20)))

    def test_a_look_up_that_admits_nobody_is_not_counted(self) -> None:
        shared = ((0, 32),)
        rows = [Row(0, 40, 20, shared), *[Row(1, 40, 1, shared)] * 3]  # three wait for the only slot
        _, run = self.both(rows, prefix_caching=True, max_num_seqs=1)
        self.assertEqual((run.engine.looked_up_tokens, run.engine.hit_tokens), (160, 96))
        resumed = self.run_of([Row(0, 32, 40, ((0, 32),))] * 4, num_blocks=6, prefix_caching=True)
        self.assertGreater(resumed.engine.preemptions, 0)
        self.assertEqual((resumed.engine.looked_up_tokens, resumed.engine.hit_tokens), (4 * 32, 3 * 16))

    def test_a_second_prompt_gets_the_budget_that_is_left(self) -> None:
        steps = self.steps([Row(0, 4, 1), Row(0, 8, 1)], max_num_batched_tokens=8, max_num_seqs=8)
        self.assertEqual([step["scheduled"] for step in steps], [{0: 4, 1: 4}, {1: 4}])

    def test_prompts_are_not_padded_to_the_longest(self) -> None:
        run = self.run_of([Row(0, 10, 1), Row(0, 1000, 1)], max_num_batched_tokens=1100, unit_steps=False)
        self.assertEqual(len(run.times), 1)
        self.assertEqual(run.times[0], StepCost(False).step(0, 0, [(10, 10), (1000, 1000)]))
        self.assertEqual(list(run.steps.prefill_tokens), [1010])

    def test_a_request_that_can_never_be_admitted_is_rejected_while_the_others_go_on(self) -> None:
        limits = {"chunked_prefill": False, "max_model_len": 200, "max_num_batched_tokens": 100, "max_num_seqs": 8}
        run = self.run_of([Row(0, 50, 2), Row(0, 150, 2), Row(0, 60, 2)], **limits)
        completed, rejected = Outcome.COMPLETED, Outcome.REJECTED
        self.assertEqual(list(run.records.outcome), [completed, rejected, completed])
        self.assertEqual(run.records.reason, {1: "over_token_budget"})

    def test_nobody_vanishes_at_any_time(self) -> None:
        rows = [Row(i / 2, 300 if i % 9 == 8 else 40, 12) for i in range(60)]
        limits = {"num_blocks": 12, "max_num_seqs": 4, "client_timeout_s": 25.0, "max_num_queued_reqs": 8}
        kinds: Counter[Outcome] = Counter()
        for until_s in range(1, 90, 4):
            steps, run = self.both(rows, until_s=until_s, **limits)
            came = sum(1 for sent_s in run.records.sent_s if not math.isnan(sent_s))
            over = len(rows) - run.records.outcome.count(Outcome.UNFINISHED)
            inside = len(steps[-1]["running"]) + len(steps[-1]["waiting"])
            self.assertTrue(0 <= came - over <= inside)  # `inside` stood before the clients that left since
            counts = summarize(run).requests
            self.assertEqual(
                counts.offered, counts.completed + counts.failed + counts.rejected + counts.unfinished, until_s
            )
            kinds.update(map(Outcome, run.records.outcome))
        self.assertEqual(len(kinds), 4)

    def test_events_of_one_instant_come_by_submission_number(self) -> None:
        for more in ({}, {"policy": "priority"}, {"policy": "sjf"}):
            steps = self.steps([Row(3, 16, 2)] * 30, max_num_seqs=7, **more)
            self.assertEqual([index for step in steps for index in step["admitted"]], list(range(30)))


class OfTheEngine(MetricFaults, SchedulingFaults, unittest.TestCase):
    engine = Engine

    def test_a_probe_of_the_cache_changes_nothing(self) -> None:
        shared = ((0, 32),)
        case = case_of([Row(i, 40, 9, shared) for i in range(12)], {"num_blocks": 9, "prefix_caching": True})
        plain = Engine(case.config, case.cost(), case.workload())
        plain.advance()

        def probe(_: Step) -> None:
            for sequence in probed.scheduler.running.values():
                probed.pool.look_up(sequence, probed.scheduler.decoding.tick)

        probed = Engine(case.config, case.cost(), case.workload(), observer=probe)
        probed.advance()
        self.assertEqual(probed.run().engine, plain.run().engine)

    def test_it_equals_the_textbook_in_overload_too(self) -> None:
        for more in ({}, {"prefix_caching": True}, {"async_scheduling": True}):
            rows = [Row(i / 4, 20 + i % 30, 10 + i % 17, ((0, 16),)) for i in range(80)]  # far beyond what it can do
            case = case_of(rows, {"num_blocks": 14, "max_num_seqs": 5, **more})
            self.assertIsNone(first_difference(case, Engine))
            self.assertTrue(all(step["waiting"] for step in run_observed(Engine, case)[0][10:100]))


class OfTheTextbook(MetricFaults, SchedulingFaults, unittest.TestCase):
    engine = Reference


class WorkloadFaults(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def document(self, *argv: str) -> dict[str, Any]:
        said = servesim(*argv, "--json", "--quiet")
        self.assertLess(said.code, 2, said.err)
        return dict(json.loads(said.out))

    def write(self, name: str, rows: list[dict[str, Any]]) -> str:
        path = self.folder / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    def test_one_trace_in_every_unit_of_time_is_one_run(self) -> None:
        arrivals_us = list(accumulate(random.Random(3).randint(1, 2_000_000) for _ in range(20)))
        epoch_us = 1_700_000_000_000_000
        written = {
            "s": lambda at: at / 1e6,
            "ms": lambda at: at / 1e3,
            "us": lambda at: at,
            "epoch us": lambda at: at + epoch_us,
            "ISO": lambda at: f"2023-11-14T22:13:{20 + at // 10**6:02d}.{at % 10**6:06d}Z",
        }
        found = set()
        for name, spell in written.items():
            rows = [
                {"timestamp": spell(at - arrivals_us[0]), "prompt_tokens": 300, "output_tokens": 20}
                for at in arrivals_us
            ]
            unit = ("--time-unit", name) if len(name) <= 2 else ()
            got = self.document("simulate", "--trace", self.write("trace.jsonl", rows), *unit)
            self.assertEqual(got["requests"]["completed"], 20)
            found.add(json.dumps([round(got["ttft_ms"][key], 3) for key in ("mean", "p50", "p99")]))
        self.assertEqual(len(found), 1)

    def test_the_span_and_the_rate_that_were_understood_are_printed(self) -> None:
        rows = [{"arrival_ms": 100 * i, "prompt_tokens": 9, "output_tokens": 2} for i in range(101)]
        said = servesim("simulate", "--trace", self.write("t.jsonl", rows))
        self.assertIn("101 requests over 10.00 s (relative ms), 10.1 requests/s", said.err)

    def test_a_rate_that_is_none_is_one_line(self) -> None:
        for value in ("0", "-1", "nan", "inf", "1e-9"):
            said = servesim("simulate", "--rate", value)
            self.assertEqual((said.code, said.out, said.err.count("\n")), (2, "", 1), said.err)

    def test_no_requests_are_refused(self) -> None:
        said = servesim("simulate", "--requests", "0")
        self.assertEqual((said.code, said.err), (2, "error: --requests is '0', must be 1 or more\n"))

    def test_an_answer_of_no_tokens_is_refused_in_a_trace(self) -> None:
        rows = [{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": n} for n in (1, 0)]
        said = servesim("simulate", "--trace", self.write("t.jsonl", rows))
        self.assertEqual((said.code, said.out), (2, ""))
        self.assertEqual(said.err, "error: t.jsonl:2: output_tokens is 0, must be 1 or more\n")

    def test_failed_rows_of_burstgpt_are_left_out_and_counted(self) -> None:
        path = self.folder / "burst.csv"
        head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        path.write_text(head + "".join(f"{i},ChatGPT,40,{n},{40 + n},API log\n" for i, n in enumerate((5, 0, 7, 0))))
        said = servesim("simulate", "--trace", str(path), "--json")
        self.assertIn("2 failed requests", said.err)
        got = json.loads(said.out)
        self.assertEqual((got["requests"]["offered"], got["tokens"]["output"]), (2, 12))

    def test_a_closed_loop_is_replayed_at_the_times_at_which_it_was_sent(self) -> None:
        saved = str(self.folder / "run.jsonl")
        load = ("--concurrency", "4", "--requests", "30", "--max-num-seqs", "2")
        first = json.loads(servesim("simulate", *load, "--quiet", "--json", "--save", saved).out)
        again = self.document("simulate", "--trace", saved, "--max-num-seqs", "2")
        for name in ("requests", "tokens", "duration_s", "ttft_ms", "itl_ms", "e2e_ms", "queue_ms", "engine"):
            self.assertEqual(again[name], first[name])

    def test_a_hundred_and_one_requests_over_seven_clients_are_a_hundred_and_one(self) -> None:
        run = simulate(requests=101, concurrency=7, prompt_tokens="20", output_tokens="3")
        self.assertEqual(summarize(run).requests.completed, 101)

    def test_a_saved_run_replays_to_the_same_bytes(self) -> None:
        saved = str(self.folder / "run.jsonl")
        for load in (BURST[1:-1], ("--concurrency", "5", "--requests", "40"), ("--rate", "30", "--requests", "40")):
            first = servesim("simulate", *load, "--quiet", "--json", "--save", saved)
            self.assertEqual(servesim("simulate", "--config", saved, "--quiet", "--json").out, first.out)

    def test_a_flag_beats_a_config_file_and_the_value_in_force_is_printed(self) -> None:
        config = str(self.folder / "config.json")
        Path(config).write_text(servesim("simulate", "--requests", "4", "--max-num-seqs", "2", "--json").out)
        said = servesim("simulate", "--config", config, "--max-num-seqs", "3")
        self.assertIn("max_num_seqs 3", said.out)
        self.assertEqual(self.document("simulate", "--config", config)["config"]["max_num_seqs"], 2)

    def test_options_at_their_off_values_change_no_byte(self) -> None:
        off = ("--max-tokens-in-flight", "0", "--long-prefill-token-threshold", "0", "--retries", "0")
        off += ("--watermark", "0", "--policy", "fcfs", "--no-async-scheduling", "--no-prefix-caching")
        saved = [str(self.folder / name) for name in ("plain", "off")]
        plain, switched_off = servesim(*BURST, "--save", saved[0]), servesim(*BURST, *off, "--save", saved[1])
        self.assertEqual(plain.out, switched_off.out)
        self.assertEqual(*(Path(path).read_bytes() for path in saved))

    def test_a_rejected_request_in_json_and_text(self) -> None:
        argv = ("simulate", "--kv-tokens", "160", "--prompt-tokens", "200", "--requests", "1")
        got = self.document(*argv)
        self.assertEqual((got["requests"]["completed"], got["requests"]["rejected"]), (0, 1))
        self.assertEqual((got["ttft_ms"], got["errors"]), (None, {"over_kv_cache": 1}))
        said = servesim(*argv)
        self.assertEqual(said.code, 1)
        self.assertNotIn("nan", said.out.lower())

    def test_a_horizon_shows_offered_completed_and_unfinished_beside_the_latencies(self) -> None:
        argv = ("simulate", "--requests", "200", "--rate", "500", "--max-num-seqs", "4", "--horizon", "10s")
        said, got = servesim(*argv), self.document(*argv)["requests"]
        self.assertGreater(got["unfinished"], 0.8 * got["offered"])
        for count, name in ((got["offered"], "offered"), (got["completed"], "completed"), (got["unfinished"], "unfin")):
            self.assertRegex(said.out, rf"{count:,} {name}")
        self.assertIn("warning      169 of 200 requests are unfinished", said.out)


class CostFaults(unittest.TestCase):
    def test_the_steps_overhead_is_in_ttft_once_and_in_e2e_once_a_step(self) -> None:
        load = {"requests": 1, "concurrency": 1, "prompt_tokens": "100", "output_tokens": "10"}
        with_it, without = (summarize(simulate(**load, step_overhead_s=overhead)) for overhead in (0.005, 0.0))
        self.assertAlmostEqual(with_it.ttft_ms.mean - without.ttft_ms.mean, 5.0, places=9)
        self.assertAlmostEqual(with_it.e2e_ms.mean - without.e2e_ms.mean, 50.0, places=9)

    def test_blocks_and_tokens_are_printed_and_a_logs_own_figure_is_taken(self) -> None:
        self.assertRegex(servesim("capacity", "--hardware", "l4-24gb").out, r"blocks +1,941 .*\n.*kv tokens +31,056 ")
        said = servesim("capacity", "--hardware", "l4-24gb", "--kv-blocks", "1300")
        self.assertRegex(said.out, r"blocks +1,299 .*\n.*kv tokens +20,784 ")

    def test_the_reserve_stays(self) -> None:
        for name in ("l4-24gb", "h100-sxm-80gb", "a100-sxm-80gb"):
            plan = plan_capacity(MODELS["llama-3.1-8b"], HARDWARE[name])
            taken = plan.device_weights_bytes + plan.reserve_bytes + plan.num_blocks * plan.block_bytes
            self.assertLessEqual(taken, plan.budget_bytes)
            self.assertGreater(taken + plan.block_bytes, plan.budget_bytes)
            self.assertEqual(plan.reserve_bytes, HARDWARE[name].reserve_gib * GIB)

    def test_kv_bytes_follow_each_kind_of_layer(self) -> None:
        # Sliding layers keep their window, a latent is one vector, heads that share keys and values keep them once.
        gpt_oss, gemma = MODELS["gpt-oss-20b"], MODELS["gemma-3-27b"]
        self.assertEqual(gpt_oss.kv_bytes_of_sequence(4096), (4096 + 128) * 2 * 12 * 8 * 64 * 2)
        self.assertEqual(gemma.kv_bytes_of_sequence(8192), (10 * 8192 + 52 * 1024) * 2 * 16 * 128 * 2)
        self.assertEqual(MODELS["deepseek-v3"].kv_bytes_per_token(), 61 * 576 * 2)
        self.assertEqual(MODELS["llama-3.1-8b"].kv_bytes_per_token(), 131_072)

    def test_every_bandwidth_is_one_that_a_device_can_have_and_says_where_it_is_from(self) -> None:
        for name, device in HARDWARE.items():
            with self.subTest(name=name):
                self.assertTrue(10 <= device.bandwidth_gb_s <= 10_000)
                self.assertTrue(device.source and device.date)

    def test_the_clock_of_the_machine_does_not_leak_into_the_run(self) -> None:
        load = {"requests": 60, "rate": 40, "client_timeout_s": 2.0, "retries": 1, "hardware": "l4-24gb"}
        plain = simulate(**load)
        for seed in range(5):
            erratic = random.Random(seed)
            clock = mock.Mock(perf_counter=lambda erratic=erratic: erratic.uniform(0, 0.3))
            with mock.patch("servesim.engine.simulate.time", clock):
                watched = simulate(**load, watch=lambda over: False)
            self.assertEqual(watched.times, plain.times)
            self.assertEqual(repr(summarize(watched)), repr(summarize(plain)))

    @in_full
    def test_a_busy_machine_gives_the_same_bytes(self) -> None:
        command = "servesim simulate --requests 100 --rate 20 --quiet --json"
        busy = f"for i in 1 2; do nice -n 19 python3 -c 'while 1: pass' & done; {command}; kill $(jobs -p)"
        self.assertEqual(in_shell(busy).out, in_shell(command).out)


if __name__ == "__main__":
    unittest.main()
