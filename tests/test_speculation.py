"""Speculative decoding: the closed form of the accepted length, tokens neither lost nor made up, a draft's price."""

from __future__ import annotations

import math
import random
import unittest
from typing import Any

from servesim import simulate, summarize
from servesim.catalog.hardware import find_hardware
from servesim.catalog.models import find_model
from servesim.cost.detailed import Detailed
from servesim.cost.model import TermWatch
from servesim.cost.roofline import Roofline
from servesim.engine.speculation import Speculation
from servesim.errors import InputError

ACCEPTANCES = ("0.5", "0.7", "0.9", "0.9:0.6:0.2", "0.0", "1.0")


def expected(acceptance: str, tokens: int) -> float:
    """Return 1 + sum over i of (a_1 x ... x a_i), written down once more."""
    parts = [float(part) for part in acceptance.split(":")]
    each = parts * tokens if len(parts) == 1 else parts
    return 1.0 + sum(math.prod(each[: i + 1]) for i in range(tokens))


class ClosedForm(unittest.TestCase):
    def test_one_probability_accepts_the_sum_of_its_powers(self) -> None:
        for acceptance in (0.0, 0.3, 0.8, 1.0):
            for tokens in (1, 3, 7):
                with self.subTest(acceptance=acceptance, tokens=tokens):
                    speculation = Speculation(tokens, (acceptance,), 7)
                    found = sum(speculation.accepted(tokens) for _ in range(4000)) / 4000
                    expected = sum(acceptance**i for i in range(1, tokens + 1))
                    self.assertAlmostEqual(found, expected, delta=0.05 * expected)

    def test_the_accepted_length_of_a_run_is_the_closed_form(self) -> None:
        for acceptance in ACCEPTANCES:
            with self.subTest(acceptance=acceptance):
                run = simulate(
                    requests=40, concurrency=20, prompt_tokens="50", output_tokens="800", spec_tokens=3,
                    acceptance=acceptance,
                )  # fmt: skip
                figures = summarize(run).speculation
                assert figures is not None
                # A draft at an answer's end is cut: 800 tokens keep that below a step in two hundred.
                self.assertAlmostEqual(figures.accepted_length / expected(acceptance, 3), 1.0, delta=0.02)

    def test_tokens_per_event_are_the_accepted_length_but_for_the_first_token(self) -> None:
        run = simulate(
            requests=20, concurrency=20, prompt_tokens="50", output_tokens="1000", spec_tokens=3, acceptance="0.7"
        )
        self.assertAlmostEqual(summarize(run).tokens.per_event or 0.0, expected("0.7", 3), delta=0.04)


class Laws(unittest.TestCase):
    def test_every_request_has_exactly_its_tokens_under_any_memory_and_scheduler(self) -> None:
        for seed in range(12):
            draw = random.Random(seed)
            options: dict[str, Any] = {
                "requests": 60,
                "seed": seed,
                "concurrency": draw.choice((1, 4, 30)),
                "prompt_tokens": "20-200",
                "output_tokens": "1-90",
                "kv_tokens": draw.choice((600, 2000, 200_000)),
                "spec_tokens": draw.randint(1, 6),
                "acceptance": draw.choice(("0.5", "0.95", "1")),
                "async_scheduling": draw.random() < 0.5,
                "prefix_caching": draw.random() < 0.5,
            }
            with self.subTest(**options):
                run = simulate(**options)
                self.assertEqual(run.violations, [])
                self.assertEqual(run.records.output_tokens, run.requests.output_tokens)
                totals = run.engine
                assert totals is not None
                self.assertLessEqual(totals.accepted_tokens, totals.drafted_tokens)

    def test_a_draft_that_is_never_accepted_only_costs(self) -> None:
        base: dict[str, Any] = {"requests": 40, "concurrency": 8, "prompt_tokens": "100", "output_tokens": "50"}
        plain, drafted = (simulate(**base, **more) for more in ({}, {"spec_tokens": 4, "acceptance": "0"}))
        self.assertEqual(len(plain.times), len(drafted.times))
        self.assertTrue(all(map(float.__le__, plain.times, drafted.times)))

    def test_drafts_pay_at_a_small_batch_and_stop_paying_at_a_large_one(self) -> None:
        def gain(concurrency: int) -> float:
            base: dict[str, Any] = {
                "requests": 3 * concurrency, "concurrency": concurrency, "prompt_tokens": "50", "output_tokens": "100",
                "max_num_seqs": 1024, "max_num_batched_tokens": 16384,
            }  # fmt: skip
            with_it, without = (
                summarize(simulate(**base, **more)).throughput.output_tokens_per_s or 0.0
                for more in ({"spec_tokens": 4, "acceptance": "0.7"}, {})
            )
            return with_it / without

        self.assertGreater(gain(2), 2.0)
        self.assertLess(gain(512), 1.0)

    def test_spec_tokens_and_acceptance_belong_together(self) -> None:
        for options in ({"spec_tokens": 2}, {"acceptance": "0.5"}, {"spec_tokens": 3, "acceptance": "0.5:0.4"}):
            with self.subTest(**options), self.assertRaises(InputError):
                simulate(requests=1, **options)

    def test_an_acceptance_that_is_none_is_told_how_a_list_is_written(self) -> None:
        for acceptance in ("0.9,0.6,0.3", "1.2", "-0.1", "0.9::0.3", "", "often"):
            with self.subTest(acceptance=acceptance), self.assertRaisesRegex(InputError, "such as 0.9:0.7:0.5"):
                simulate(spec_tokens=3, acceptance=acceptance)

    def test_a_sweep_may_go_down_to_no_draft_at_all(self) -> None:
        base: dict[str, Any] = {"requests": 8, "prompt_tokens": "50", "output_tokens": "20"}
        plain, none = (simulate(**base, **more) for more in ({}, {"spec_tokens": 0, "acceptance": "0.7"}))
        self.assertEqual(plain.times, none.times)
        self.assertIsNone(summarize(none).speculation)


class Price(unittest.TestCase):
    """A draft is a chunk (tokens, 0): tokens that read no KV of their own."""

    def test_the_roofline_computes_k_plus_1_tokens_and_reads_each_context_once(self) -> None:
        cost = Roofline(find_model("llama-3.1-8b"), find_hardware("h100-sxm-80gb"))
        self.assertEqual(cost.step(10, 5000, [(30, 0)]), cost.seconds(40, 5000))

    def test_a_draft_keeps_the_detailed_model_s_step_unmixed_and_in_its_cuda_graph(self) -> None:
        cost = Detailed(find_model("llama-3.1-8b"), find_hardware("h100-sxm-80gb"))
        terms = cost.terms(10, 50_000, [(30, 0)])
        plain = cost.terms(10, 50_000)
        for name in ("mixed", "attention"):
            self.assertEqual(terms[name], 0.0)
        for name in ("kv", "launches", "host"):
            self.assertEqual(terms[name], plain[name])
        self.assertGreater(terms["compute"], plain["compute"])
        self.assertGreater(terms["head"], plain["head"])

    def test_a_step_with_drafts_alone_is_told_among_those_that_decode(self) -> None:
        watch = TermWatch(Detailed(find_model("llama-3.1-8b"), find_hardware("h100-sxm-80gb")))
        for chunks in ([(30, 0)], [(64, 64)], [(64, 64), (30, 0)]):
            watch.step(10, 5000, chunks)
        self.assertEqual((watch.decode_steps, watch.mixed_steps), (1, 2))

    def test_the_terms_of_a_step_with_a_draft_add_up_to_it(self) -> None:
        for model in ("llama-3.1-8b", "gemma-3-12b", "qwen3-30b-a3b"):
            cost = Detailed(find_model(model), find_hardware("h100-sxm-80gb"))
            for chunks in ([(30, 0)], [(512, 512), (30, 0)], [(200, 900), (64, 64), (9, 0)]):
                with self.subTest(model=model, chunks=chunks):
                    found = math.fsum(cost.terms(10, 50_000, chunks).values())
                    self.assertAlmostEqual(found, cost.step(10, 50_000, chunks), places=12)


if __name__ == "__main__":
    unittest.main()
