"""Where a step's time goes: terms add up in one step and over a run, for every cost model."""

from __future__ import annotations

import json
import random
import unittest

from servesim.catalog.hardware import HARDWARE
from servesim.catalog.models import MODELS
from servesim.config.build import build_server
from servesim.config.server import ServerSpec
from servesim.config.workload import WorkloadSpec, build_workload
from servesim.cost.model import COST_MODELS, FloorWatch, terms_of
from servesim.engine.simulate import run_workload, watch_terms
from servesim.report.explain import TERMS, cost_text, plan_shares, run_shares, step_costs
from servesim.runs.as_json import as_json
from tests.command import servesim

LLAMA, H100 = MODELS["llama-3.1-8b"], HARDWARE["h100-sxm-80gb"]


class OneStep(unittest.TestCase):
    def test_terms_add_up_to_the_step_under_every_cost_model(self) -> None:
        for name, make in COST_MODELS.items():
            cost = make(LLAMA, H100, 1)
            for seed in range(50):
                rng = random.Random(seed)
                sequences = rng.randint(0, 300)
                context = sequences * rng.randint(1, 3000)
                chunks = [(n, n + rng.randint(0, 500)) for n in rng.sample(range(1, 5000), rng.randint(0, 2))]
                with self.subTest(cost_model=name, seed=seed):
                    terms = terms_of(cost, sequences, context, chunks)
                    self.assertAlmostEqual(sum(terms.values()), cost.step(sequences, context, chunks), 12)
                    self.assertLessEqual(terms.keys(), TERMS.keys())

    def test_a_watched_model_is_told_like_itself(self) -> None:
        cost = COST_MODELS["roofline"](LLAMA, H100, 1)
        self.assertEqual(terms_of(FloorWatch(cost, LLAMA, H100), 8, 900), terms_of(cost, 8, 900))

    def test_a_model_that_cannot_tell_tells_nothing(self) -> None:
        class Silent:
            def decode(self, sequences: int, context_tokens: int) -> float:
                return 1.0

            def step(self, sequences: int, context_tokens: int, chunks: object) -> float:
                return 1.0

        self.assertEqual(terms_of(Silent(), 1, 1), {})


class AWholeRun(unittest.TestCase):
    def test_the_terms_of_a_run_add_up_to_its_busy_time(self) -> None:
        spec = WorkloadSpec(concurrency=6, requests=20, prompt_tokens="100-900", output_tokens="5-60")
        for cost_model in COST_MODELS:
            with self.subTest(cost_model=cost_model):
                server = build_server(ServerSpec(cost_model=cost_model, max_num_batched_tokens=512))
                watch, run = watch_terms(server, build_workload(spec)), run_workload(server, spec)
                assert run.engine is not None
                shares = run_shares(watch)
                self.assertEqual(sum(share.steps for share in shares), run.engine.steps)
                self.assertAlmostEqual(sum(share.total_s for share in shares) / run.engine.busy_s, 1.0, 9)


class Reports(unittest.TestCase):
    def test_the_largest_term_comes_first_and_shares_are_of_the_step(self) -> None:
        server = build_server(ServerSpec(cost_model="detailed"))
        told = cost_text(plan_shares(server))
        self.assertIn("cost of a decode step of 1 sequence at 2,048 tokens", told)
        self.assertLess(told.index("weights"), told.index("host"))
        self.assertTrue(all(len(line) <= 100 for line in told.splitlines()), told)

    def test_json_has_every_term_of_a_step(self) -> None:
        (one, batch, prompt) = as_json(step_costs(plan_shares(build_server(ServerSpec()))))
        self.assertEqual(set(one["terms_ms"]), {"memory", "overhead"})
        self.assertEqual(set(prompt["terms_ms"]), {"arithmetic", "overhead"})
        self.assertAlmostEqual(sum(batch["terms_ms"].values()), batch["step_ms"])


class TheVerbs(unittest.TestCase):
    def test_a_plan_and_a_run_say_where_their_time_goes_when_asked(self) -> None:
        small = ("--requests", "4", "--prompt-tokens", "50", "--output-tokens", "5", "--quiet")
        for argv in (("capacity",), ("simulate", *small)):
            for cost_model, term in (("roofline", "overhead"), ("detailed", "host")):
                with self.subTest(argv=argv, cost_model=cost_model):
                    asked = servesim(*argv, "--cost-model", cost_model, "--explain-cost")
                    self.assertEqual(asked.code, 0, asked.err)
                    self.assertIn(f"\n  {term} ", asked.out)
                    document = json.loads(servesim(*argv, "--cost-model", cost_model, "--explain-cost", "--json").out)
                    self.assertIn(term, document["cost"][0]["terms_ms"])
                    self.assertNotIn("cost of", servesim(*argv, "--cost-model", cost_model).out)

    def test_a_fleet_is_not_one_engine(self) -> None:
        said = servesim("simulate", "--replicas", "2", "--explain-cost", "--requests", "2")
        self.assertEqual(said.code, 2)
        self.assertIn("explain_cost describes one engine", said.err)


if __name__ == "__main__":
    unittest.main()
