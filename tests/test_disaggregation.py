"""Prefill and decode apart: every stage in its order, every KV moved once, nobody lost, and what it is good for."""

from __future__ import annotations

import importlib.util
import json
import math
import unittest
from pathlib import Path
from typing import Any

from servesim.config.engine import EngineConfig
from servesim.config.fleet import TRANSFER_OVERLAPS, FleetSpec
from servesim.config.server import ServerSpec
from servesim.config.workload import WorkloadSpec, load_requests
from servesim.cost.model import COST_MODELS
from servesim.engine.engine import Engine
from servesim.engine.sequence import ENDED
from servesim.errors import RunError
from servesim.fleet.build import build_deployment
from servesim.fleet.disaggregation import Disaggregation, Link
from servesim.fleet.fleet import Kind
from servesim.fleet.simulate import run_deployment, simulate
from servesim.runs.records import Outcome, Run
from servesim.summary.metrics import STAGES, moments
from servesim.summary.summary import Summary, summarize
from servesim.workload.workload import OpenLoop
from tests.case import Case, Row, StepCost
from tests.command import ROOT
from tests.extent import seeds
from tests.fleet_cases import KV_BYTES, advanced, difference, random_disaggregation

MIXED = str(ROOT / "fixtures" / "mixed.jsonl")


def apart(case: Case, decode: dict[str, Any] | None = None, **link: Any) -> Disaggregation:
    """Return one prefill and one decode engine over `case`; a token's KV takes a second over the default link."""
    pools = [
        [Kind(name=name, config=EngineConfig(**{"num_blocks": 1000, **limits}), cost=case.cost())]
        for name, limits in (("prefill", {}), ("decode", decode or {}))
    ]
    carrier = Link(**{"bytes_per_s": float(KV_BYTES), **link})
    return Disaggregation(case.workload(), *pools, carrier, kv_bytes_per_token=KV_BYTES)


def case_of(*rows: Row, unit_steps: bool = True) -> Case:
    return Case(seed=0, config=EngineConfig(num_blocks=1000), rows=rows, unit_steps=unit_steps)


class Invariants(unittest.TestCase):
    def test_hold_on_random_runs(self) -> None:
        for seed in seeds(250):
            case, fleet = random_disaggregation(seed)
            with self.subTest(seed=seed):
                self.check(case, fleet, advanced(fleet, case))

    def check(self, case: Case, fleet: Disaggregation, run: Run) -> None:
        records, requests = run.records, run.requests
        self.assertEqual(run.violations, [])
        counts = summarize(run).requests
        self.assertEqual(counts.offered, counts.completed + counts.failed + counts.rejected + counts.unfinished)
        if case.until_s == math.inf and case.duration_s is None:
            self.assertEqual((counts.offered, counts.unfinished), (len(requests), 0))
        at = moments(run)
        for index, outcome in enumerate(records.outcome):
            stages = [at(name)[index] for name in ("sent_s", *(end for _, end in STAGES.values()))]
            if index in records.attempts:
                stages = stages[1:]  # of the latest attempt; the first send was before
            known = [time for time in stages if time == time]
            if outcome == Outcome.COMPLETED:
                times = run.token_times(index)
                self.assertEqual(known, stages)
                passed = [*stages, *times[1:]]
                self.assertEqual(passed, sorted(passed))
                self.assertEqual(times[0], stages[-1])
                self.assertEqual(len(times), records.output_tokens[index])
            elif index not in records.attempts:
                self.assertEqual(known, sorted(known))
        caching = case.config.prefix_caching
        crossed = [index for index, end_s in enumerate(run.stages["transfer_end_s"]) if end_s == end_s]
        least = sum(requests.prompt_tokens[index] for index in crossed) * KV_BYTES
        assert run.link is not None
        if (
            not caching
            and case.until_s == math.inf
            and not records.attempts
            and not any(reason == "timeout" for reason in records.reason.values())
        ):
            self.assertEqual(run.link.moved_bytes, least)
        for replica in fleet.replicas:  # the source's blocks are free once the link has brought away what they hold
            if case.until_s == math.inf:
                self.assertEqual((len(replica.engine.scheduler.in_transfer), replica.engine.pool.used), (0, 0))
            self.assertGreaterEqual(replica.in_flight, 0)

    def test_slices_change_nothing(self) -> None:
        for seed in seeds(80):
            with self.subTest(seed=seed):
                case, whole = random_disaggregation(seed)
                _, sliced = random_disaggregation(seed)
                second = 1.0 if case.unit_steps else 0.05
                slices = [number * 3.7 * second for number in range(1, 12)]
                want, have = advanced(whole, case), advanced(sliced, case, slices)
                self.assertIsNone(difference(want, have))
                self.assertEqual(repr(want.stages), repr(have.stages))
                self.assertEqual(want.link, have.link)


class Stages(unittest.TestCase):
    def test_add_up_to_the_time_to_the_first_token(self) -> None:
        for overlap in TRANSFER_OVERLAPS:
            run = simulate(
                disagg="2:1", link_bytes_per_s=5e9, transfer_overlap=overlap, link_latency_s=0.002,
                rate=40.0, requests=200, output_tokens="1-60",
            )  # fmt: skip
            at = moments(run)
            for index in range(200):
                ttft_s = run.token_times(index)[0] - run.records.sent_s[index]
                parts = [at(end)[index] - at(start)[index] for start, end in STAGES.values()]
                self.assertAlmostEqual(math.fsum(parts), ttft_s, places=9)
                self.assertGreaterEqual(min(parts), 0.0)
            told = summarize(run)
            assert told.stages_ms is not None and told.ttft_ms is not None
            self.assertEqual(list(told.stages_ms), list(STAGES))
            means = [stage.mean for stage in told.stages_ms.values() if stage is not None]
            self.assertAlmostEqual(math.fsum(means), told.ttft_ms.mean, places=6)

    def test_a_second_request_waits_for_the_link_and_then_crosses(self) -> None:
        fleet = apart(case_of(Row(0.0, 10, 2), Row(0.0, 4, 2)))
        run = advanced(fleet, case_of())
        at = moments(run)
        found = [[at(name)[index] for name in ("prefill_end_s", "link_start_s", "transfer_end_s")] for index in (0, 1)]
        self.assertEqual(found, [[1.0, 1.0, 11.0], [1.0, 11.0, 15.0]])

    def test_a_layer_crosses_while_the_next_is_computed(self) -> None:
        ended = {}
        for overlap in TRANSFER_OVERLAPS:
            case = case_of(Row(0.0, 64, 3), unit_steps=False)
            config = EngineConfig(num_blocks=100, max_num_batched_tokens=16, max_num_seqs=8)
            kinds = [[Kind(name=name, config=config, cost=case.cost())] for name in ("prefill", "decode")]
            link = Link(bytes_per_s=16 * KV_BYTES / 0.04, overlap=overlap)
            fleet = Disaggregation(case.workload(), *kinds, link, kv_bytes_per_token=KV_BYTES, layers=8)
            run = advanced(fleet, case)
            ended[overlap] = run.stages["transfer_end_s"][0] - run.stages["prefill_end_s"][0]
            self.assertEqual(link.moved_bytes, 64 * KV_BYTES)
        # Four chunks of 16 tokens, each crossing in 40 ms and computed in more: all but the last cross on the way.
        self.assertAlmostEqual(ended["none"], 0.160)
        self.assertAlmostEqual(ended["chunk"], 0.040)
        self.assertAlmostEqual(ended["layer"], 0.040 / 8)


class Deadlines(unittest.TestCase):
    def test_are_kept_in_their_order_though_kv_arrives_in_another(self) -> None:
        # Two links: the first request's KV takes longer than the second's, whose client waits until later.
        rows = (Row(0.0, 40, 30), Row(1.0, 4, 30), Row(1.0, 4, 3))
        case = case_of(*rows)
        limits = EngineConfig(num_blocks=100, client_timeout_s=50.0, async_scheduling=True)
        kinds = [[Kind(name=name, config=limits, cost=StepCost(True))] for name in ("prefill", "decode")]
        kinds[0] = [Kind(name="prefill", config=limits, cost=StepCost(True), count=2)]
        link = Link(bytes_per_s=float(KV_BYTES), scope="pair")
        fleet = Disaggregation(case.workload(), *kinds, link, kv_bytes_per_token=KV_BYTES, router="round-robin")
        run = advanced(fleet, case)
        self.assertEqual(dict(run.records.reason), {0: "timeout"})
        self.assertEqual(list(run.records.output_tokens)[1:], [30, 3])
        self.assertEqual(run.violations, [])

    def test_an_engine_whose_steps_compute_nothing_names_the_request(self) -> None:
        case = case_of(Row(0.0, 4, 3))
        engine = Engine(case.config, case.cost(), case.workload())
        engine.advance(0.5)
        sequence = next(iter(engine.scheduler.running.values()))
        sequence.state = ENDED  # and nobody will ever release it
        engine.scheduler.decoding.remove(sequence)
        with self.assertRaisesRegex(RunError, "request 0 gets no further: steps compute nothing"):
            engine.advance()


class Source(unittest.TestCase):
    def test_holds_its_blocks_until_the_kv_has_arrived(self) -> None:
        fleet = apart(case_of(Row(0.0, 32, 2)))
        used = []
        for until in (0.5, 1.5, 32.9, 33.1, 50.0):
            fleet.advance(until)
            used.append(fleet.replicas[0].engine.pool.used)
        self.assertEqual(used, [2, 2, 2, 0, 0])

    def test_a_prompt_waits_for_blocks_that_are_still_being_read(self) -> None:
        case = case_of(Row(0.0, 32, 2), Row(0.0, 32, 2))
        kinds = [
            [Kind(name=name, config=EngineConfig(num_blocks=blocks), cost=StepCost(True))]
            for name, blocks in (("prefill", 3), ("decode", 100))
        ]
        fleet = Disaggregation(case.workload(), *kinds, Link(bytes_per_s=10.0 * KV_BYTES), kv_bytes_per_token=KV_BYTES)
        run = advanced(fleet, case)
        self.assertEqual(list(run.stages["prefill_end_s"]), [1.0, 5.2])  # 1 + 3.2 for the link, then a step
        self.assertEqual(run.records.outcome.count(Outcome.COMPLETED), 2)


class Colocated(unittest.TestCase):
    def test_an_infinite_link_and_one_request_equal_the_colocated_engine(self) -> None:
        for overlap in TRANSFER_OVERLAPS:
            for prompt, output in ((1, 1), (100, 1), (100, 50), (9000, 7)):
                for cost_model in COST_MODELS:
                    load: dict[str, Any] = {"requests": 1, "cost_model": cost_model}
                    load |= {"prompt_tokens": str(prompt), "output_tokens": str(output)}
                    together = simulate(**load)
                    alone = simulate(**load, disagg="1:1", link_bytes_per_s=1e300, transfer_overlap=overlap)
                    case = f"{cost_model}, overlap {overlap}, {prompt} prompt and {output} output tokens"
                    self.assertEqual(together.token_times(0), alone.token_times(0), case)


class SmallDecodePool(unittest.TestCase):
    def test_ends_in_counts(self) -> None:
        for blocks, horizon_s in ((40, None), (80, None), (40, 3.0), (80, 3.0)):
            with self.subTest(blocks=blocks, horizon_s=horizon_s):
                kinds = {"replicas": [{"role": "prefill", "count": 2}, {"role": "decode", "kv_tokens": blocks * 16}]}
                run = simulate(fleet=kinds, link_bytes_per_s=25e9, rate=30.0, requests=150, horizon_s=horizon_s)
                counts = summarize(run).requests
                self.assertEqual(run.violations, [])
                self.assertEqual(counts.offered, counts.completed + counts.rejected + counts.unfinished)
                self.assertEqual(counts.rejected > 0, blocks == 40)
                self.assertEqual(counts.unfinished > 0, horizon_s is not None)


class Mixed(unittest.TestCase):
    """What it is good for, on long prompts among short chats."""

    def summary(self, *, documents: bool = True, **fleet: Any) -> Summary:
        spec = WorkloadSpec(trace=MIXED)
        requests = load_requests(spec)
        if not documents:
            for index, prompt in enumerate(requests.prompt_tokens):
                requests.prompt_tokens[index] = 250 if prompt == 8000 else prompt
        deployment = build_deployment(ServerSpec(), FleetSpec(**fleet))
        return summarize(run_deployment(deployment, spec, workload=OpenLoop(requests)))

    def test_the_fixture_is_what_its_generator_makes(self) -> None:
        spec = importlib.util.spec_from_file_location("make_mixed", ROOT / "fixtures" / "make_mixed.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        made = "".join(json.dumps(row) + "\n" for row in module.mixed_rows())
        self.assertEqual(Path(MIXED).read_text(encoding="utf-8"), made)

    def test_itl_stays_flat_while_long_prompts_arrive_but_not_where_they_are_computed(self) -> None:
        itl = {}
        for documents in (False, True):
            for name, fleet in (
                ("apart", {"disagg": "3:1", "link_bytes_per_s": 25e9}),
                ("together", {"replicas": 4}),
            ):
                found = self.summary(documents=documents, **fleet).itl_ms
                assert found is not None
                itl[name, documents] = found.p99
        self.assertLess(itl["apart", True], 1.6 * itl["apart", False])  # more KV to read
        self.assertLess(itl["apart", True], 15.0)
        self.assertGreater(itl["together", True], 10 * itl["together", False])

    def test_a_fast_link_beats_the_colocated_engines_and_a_slow_one_does_not(self) -> None:
        together = self.summary(replicas=4).ttft_ms
        slow = self.summary(disagg="3:1", link_bytes_per_s=10e9).ttft_ms
        fast = self.summary(disagg="3:1", link_bytes_per_s=25e9).ttft_ms
        assert together and slow and fast
        self.assertLess(fast.p95, together.p95)
        self.assertLess(together.p95, slow.p95)


if __name__ == "__main__":
    unittest.main()
