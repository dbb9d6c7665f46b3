"""`plan`: edges that are edges, cuts that are certain, costs that add up, rows in any order."""

from __future__ import annotations

import doctest
import random
import unittest
from typing import Any

from servesim.catalog.servers import SERVERS
from servesim.config.build import build_server
from servesim.config.fleet import FleetSpec
from servesim.config.server import ServerSpec
from servesim.config.workload import WorkloadSpec
from servesim.diagnose.binding import BANDWIDTH, COMPUTE, KV_BLOCKS, SEQUENCES, STEP_TOKENS, binding_of
from servesim.diagnose.rules import REMEDIES
from servesim.engine.simulate import run_workload
from servesim.errors import InputError
from servesim.fleet.build import Deployment, build_deployment
from servesim.plan import plan
from servesim.plan import shards as plan_shards
from servesim.plan import space as plan_space
from servesim.plan.plan import Planner, PlanSpec, plan_body, replicas_for
from servesim.plan.search import Search
from servesim.plan.shards import plan_digest
from servesim.plan.space import Candidate, candidates, prices_an_hour, prospect_of
from servesim.plan.trial import EDGE, Load, Question, Row, Unit, load_of, run_trial, work
from servesim.report.plan import plan_text
from servesim.summary.slo import parse_slos
from servesim.summary.summary import summarize
from tests.extent import once

SLOS = ("ttft_p95=500ms", "tpot_p95=50ms")


def question(*slos: str, **load: Any) -> Question:
    workload = WorkloadSpec(**{"requests": 150, "rate": 1.0, **load})
    return Question(workload=workload, slos=tuple(parse_slos(slos or SLOS)))


def spec_of(*servers: dict[str, Any], fleets: tuple[FleetSpec, ...] = (FleetSpec(),), **rest: Any) -> PlanSpec:
    asked = rest.pop("question", None) or question()
    found = candidates([ServerSpec(**server) for server in servers], fleets)
    return PlanSpec(candidates=tuple(found), question=asked, **rest)


def carried_out(spec: PlanSpec, rows: list[Row] | None = None) -> Planner:
    planner = Planner(spec, rows or [])
    while units := planner.missing():
        for unit in units:
            planner.add(work(spec.question, unit))
    return planner


def deployment(**server: Any) -> Deployment:
    return build_deployment(ServerSpec(**server), FleetSpec())


@once
class Trials(unittest.TestCase):
    def test_every_rate_meets_the_same_requests_stretched(self) -> None:
        load = load_of(question().workload, 7)
        slow, fast = load.at(2.0).requests, load.at(8.0).requests
        self.assertEqual(slow.prompt_tokens, fast.prompt_tokens)
        for slow_s, fast_s in zip(slow.arrival_s, fast.arrival_s, strict=True):
            self.assertAlmostEqual(slow_s, 4 * fast_s)

    def test_a_trial_is_the_run_that_simulate_makes(self) -> None:
        asked = question()
        trial = run_trial(deployment(), load_of(asked.workload, 7), 20.0, asked.slos)
        spec = WorkloadSpec(requests=150, rate=20.0)
        summary = summarize(run_workload(build_server(ServerSpec()), spec), asked.slos)
        assert summary.slo is not None
        for got, expected in zip(trial.slos, summary.slo, strict=True):
            self.assertAlmostEqual(got.value_ms or 0, expected.value_ms or 0, places=6)

    def test_a_cut_is_certain_the_whole_run_misses_too(self) -> None:
        rng = random.Random(7)
        cuts = 0
        for seed in range(40):
            metric, percentile = rng.choice(["ttft", "tpot", "e2e", "queue"]), rng.choice(["p50", "p90", "p99", "max"])
            limit = rng.choice([20, 100, 400, 2000]) * (5 if metric == "e2e" else 0.2 if metric == "tpot" else 1)
            asked = question(f"{metric}_{percentile}={limit}ms", requests=rng.choice([40, 150]), seed=seed)
            rate = rng.choice([5.0, 30.0, 60.0, 200.0])
            trial = run_trial(deployment(), load_of(asked.workload, seed), rate, asked.slos)
            load: Load = load_of(asked.workload, seed)
            whole = run_workload(build_server(ServerSpec()), asked.workload, workload=load.at(rate))
            [result] = summarize(whole, asked.slos).slo or []
            with self.subTest(seed=seed, slo=str(asked.slos[0]), rate=rate):
                self.assertEqual(trial.met, bool(result.met))
            cuts += trial.cut is not None
        self.assertGreater(cuts, 5)

    def test_sessions_and_closed_forms_are_never_cut(self) -> None:
        asked = question("ttft_p95=1ms", turns="2-3")
        trial = run_trial(deployment(), load_of(asked.workload, 7), 5.0, asked.slos)
        self.assertIsNone(trial.cut)
        self.assertFalse(trial.met)


@once
class Edges(unittest.TestCase):
    def edge(self, asked: Question, **server: Any) -> Row:
        return work(asked, Unit(kind=EDGE, candidate=Candidate(server=ServerSpec(**server)), seed=7))

    def test_an_edge_lies_between_a_rate_that_meets_and_one_that_misses(self) -> None:
        asked = question()
        row = self.edge(asked)
        self.assertLess(row["next_rate"] / row["rate"], 1.0501)
        for rate, met in ((row["rate"], True), (row["next_rate"], False)):
            self.assertEqual(run_trial(deployment(), load_of(asked.workload, 7), rate, asked.slos).met, met)

    def test_a_latency_that_a_lone_request_misses_is_no_search(self) -> None:
        row = self.edge(question(), hardware="l4-24gb")
        self.assertIsNone(row["rate"])
        self.assertIn("one decode step of one sequence takes 72.5 ms", row["impossible"])
        prompt = self.edge(question("ttft_p50=10ms"))
        self.assertRegex(prompt["impossible"], r"no rate meets ttft_p50 <= 10.0 ms: a prompt of \d+ tokens alone takes")

    def test_such_a_bound_is_true(self) -> None:
        for seed, (server, slo) in enumerate(
            (hardware, slo)
            for hardware in ("l4-24gb", "h100-sxm-80gb", "a100-sxm-80gb")
            for slo in ("tpot_p50=12ms", "ttft_p95=40ms", "itl_p99=9ms", "e2e_p90=1s")
        ):
            asked = question(slo, requests=30)
            load = load_of(asked.workload, seed)
            bound = prospect_of(Candidate(server=ServerSpec(hardware=server)), load.requests, asked.slos)
            if bound.impossible is not None:
                with self.subTest(hardware=server, slo=slo):
                    self.assertFalse(run_trial(deployment(hardware=server), load, 1e-3, asked.slos).met)

    def test_a_model_that_does_not_fit_says_so(self) -> None:
        self.assertIn("does not fit", self.edge(question(), model="llama-3.1-70b")["impossible"])

    def test_a_workload_too_short_to_miss_is_told(self) -> None:
        row = self.edge(question("e2e=1h", requests=20))
        self.assertTrue(row["too_short"])

    def test_the_budget_that_binds_is_named(self) -> None:
        for expected, server, load, slo in (
            ("compute", {}, {}, SLOS),
            ("sequences", {"max_num_seqs": 8}, {}, ("ttft_p95=500ms",)),
            ("kv blocks", {"kv_tokens": 8192}, {}, ("ttft_p95=500ms",)),
            (
                "tokens per step",
                {"max_num_batched_tokens": 64},
                {"prompt_tokens": "1000", "output_tokens": "16"},
                ("ttft_p95=1s",),
            ),
            ("bandwidth", {"hardware": "l4-24gb"}, {}, ("tpot_p95=80ms",)),
        ):
            with self.subTest(budget=expected):
                self.assertEqual(self.edge(question(*slo, **load), **server)["binds"]["budget"], expected)

    def test_shares_of_a_binding_are_shares(self) -> None:
        server = build_server(ServerSpec(hardware="l4-24gb"))
        run = run_workload(server, WorkloadSpec(trace="fixtures/burst.jsonl"))
        binding = binding_of(run, server)
        self.assertEqual(binding.budget, "kv blocks")
        self.assertAlmostEqual(binding.waiting, binding.for_sequences + binding.for_step_tokens + binding.for_kv_blocks)
        self.assertAlmostEqual(binding.compute + binding.bandwidth, 1)
        self.assertEqual(binding.for_sequences, 0)

    def test_every_budget_has_a_remedy_with_a_knob_of_every_server(self) -> None:
        self.assertEqual(set(REMEDIES), {SEQUENCES, STEP_TOKENS, KV_BLOCKS, COMPUTE, BANDWIDTH})
        for remedy in REMEDIES.values():
            self.assertEqual(remedy.knobs().keys(), set(SERVERS))

    def test_a_search_may_grow_by_less_than_double(self) -> None:
        with self.assertRaises(InputError):
            Search(probe=lambda load: None, growth=1.0)  # type: ignore[arg-type,return-value]
        with self.assertRaises(InputError):
            Search(probe=lambda load: None, growth=1.5, whole=True)  # type: ignore[arg-type,return-value]


@once
class Plans(unittest.TestCase):
    def test_the_cheapest_is_chosen_and_confirmed_on_fresh_seeds(self) -> None:
        spec = spec_of(
            {"hardware": "h100-sxm-80gb"},
            {"hardware": "l40s-48gb"},
            {"hardware": "l4-24gb"},
            prices={"h100-sxm-80gb": 3.0, "l40s-48gb": 1.1, "l4-24gb": 0.7},
        )
        body = plan_body(carried_out(spec))
        chosen = body["chosen"]
        costs = [row["cost"] for row in body["candidates"] if row["cost"] is not None]
        self.assertEqual(chosen["cost"], min(costs))
        self.assertEqual([row["seed"] for row in chosen["fresh"]], [10, 11, 12])
        self.assertGreaterEqual(sum(row["met"] for row in chosen["fresh"]), 2)
        self.assertAlmostEqual(chosen["cost"], 3.0 / 3600 / chosen["rate"] * 1e6)
        self.assertLess(chosen["interval"]["low"], sum(chosen["rates"]) / 3)
        self.assertIn("no rate meets", next(r["cut"] for r in body["candidates"] if r["hardware"] == "l4-24gb"))

    def test_the_front_pays_more_for_less_latency_only(self) -> None:
        front = plan_body(carried_out(spec_of({}, {"tensor_parallel_size": 2})))["front"]
        self.assertGreater(len(front), 2)
        for cheaper, faster in zip(front, front[1:], strict=False):
            self.assertGreater(faster["cost"], cheaper["cost"])
            self.assertLess(faster["at"]["share_of_limit"], cheaper["at"]["share_of_limit"])

    def test_the_least_replicas_for_a_rate(self) -> None:
        spec = spec_of({}, rate=100.0)
        planner = carried_out(spec)
        body = plan_body(planner)
        replicas = body["chosen"]["replicas"]
        load = load_of(spec.question.workload, 7)
        self.assertTrue(run_trial(deployment(), load, 100.0 / replicas, spec.question.slos).met)
        met = [
            run_trial(deployment(), load_of(spec.question.workload, s), 100 / (replicas - 1), spec.question.slos).met
            for s in (7, 8, 9)
        ]
        self.assertFalse(all(met) and not body["chosen"]["steps_back"])
        self.assertEqual(body["chosen"]["fleet"]["router"], "least-loaded")
        self.assertTrue(body["chosen"]["fleet"]["at"]["met"])

    def test_together_against_apart(self) -> None:
        apart = FleetSpec(disagg="1:1", link_bytes_per_s=25e9)
        body = plan_body(carried_out(spec_of({}, fleets=(FleetSpec(), apart))))
        self.assertEqual([row["devices"] for row in body["candidates"]], [1, 2])
        self.assertEqual([row["disagg"] for row in body["candidates"]], [None, "1:1"])
        self.assertIn(body["candidates"][1]["binds"]["budget"], ("prefill engines", "decode engines", "link"))

    def test_a_knob_that_changes_nothing_is_told_once(self) -> None:
        body = plan_body(carried_out(spec_of({"max_num_seqs": 512}, {"max_num_seqs": 1024})))
        first, second = body["candidates"]
        self.assertEqual((first["same_as"], second["same_as"]), (None, first["key"]))
        self.assertIn("512/1,024", plan_text(body))

    def test_rows_in_any_order_make_the_same_plan(self) -> None:
        spec = spec_of({}, {"max_num_seqs": 64}, {"hardware": "l40s-48gb"}, rate=40.0)
        planner = carried_out(spec)
        expected, rows = plan_body(planner), list(planner.rows.values())
        for seed in range(3):
            random.Random(seed).shuffle(rows)
            part = rows[: len(rows) // (seed + 1)]
            self.assertEqual(plan_body(carried_out(spec, [*part, *part])), expected)

    def test_an_interrupted_plan_tells_what_there_is(self) -> None:
        spec = spec_of({}, {"max_num_seqs": 64})
        planner = Planner(spec)
        planner.add(work(spec.question, planner.missing()[0]))
        planner.interrupted = True
        body = plan_body(planner)
        self.assertEqual((len(body["candidates"]), body["chosen"], body["front"]), (1, None, []))
        self.assertIn("interrupted: nothing is chosen", plan_text(body, partial=True))

    def test_nothing_that_meets_is_an_answer(self) -> None:
        body = plan_body(carried_out(spec_of({"hardware": "l4-24gb"})))
        self.assertIsNone(body["chosen"])
        self.assertIn("nothing meets the objectives", plan_text(body))

    def test_a_trace_has_one_seed_and_no_fresh_ones(self) -> None:
        asked = Question(workload=WorkloadSpec(trace="fixtures/burst.jsonl"), slos=tuple(parse_slos(["ttft_p95=2s"])))
        body = plan_body(carried_out(spec_of({"hardware": "l4-24gb"}, question=asked)))
        self.assertEqual((body["search_seeds"], body["fresh_seeds"]), ([7], []))
        self.assertIsNone(body["chosen"]["interval"])

    def test_prices_are_for_all_devices_or_for_none(self) -> None:
        found = candidates([ServerSpec(), ServerSpec(hardware="l4-24gb")], [FleetSpec()])
        self.assertEqual(prices_an_hour(found, ()), {})
        self.assertEqual(prices_an_hour(found, ("2.5/h", "l4-24gb=0.7/h")), {"h100-sxm-80gb": 2.5, "l4-24gb": 0.7})
        for prices in (["h100-sxm-80gb=1/h"], ["h100-sxm-80gb=1/h", "l4-24gb=1/h", "t4-16gb=1/h"]):
            with self.assertRaises(InputError):
                prices_an_hour(found, prices)

    def test_a_digest_depends_on_what_rows_depend_on(self) -> None:
        base = spec_of({}, {"max_num_seqs": 64})
        same = spec_of({"max_num_seqs": 64}, {}, rate=5.0)
        self.assertEqual(plan_digest(base), plan_digest(same))
        for other in (spec_of({}), spec_of({}, {"max_num_seqs": 64}, question=question(seed=8))):
            self.assertNotEqual(plan_digest(base), plan_digest(other))

    def test_replicas_are_whole(self) -> None:
        self.assertEqual([replicas_for(rate, 10.0) for rate in (0.1, 10.0, 10.1, 100.0)], [1, 1, 2, 10])

    def test_the_docstrings_are_true(self) -> None:
        for module in (plan, plan_space, plan_shards):
            self.assertEqual(doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed, 0)


if __name__ == "__main__":
    unittest.main()
