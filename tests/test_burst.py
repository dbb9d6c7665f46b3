"""The Monday incident: the fixture is what its generator makes, and a run of it tells the story."""

from __future__ import annotations

import importlib.util
import json
import math
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from servesim.config.engine import EngineConfig
from servesim.config.workload import WorkloadSpec, build_workload
from servesim.runs.records import Run
from tests.reference import Reference

FIXTURES = Path(__file__).parent.parent / "fixtures"
L4_BLOCKS = 1941

STORY = {  # within about 20 %
    "plain": {"steps": 704, "batch": 17.5, "kv_peak": 1.0, "kv_mean": 0.84, "p50": 16.7, "p95": 48.5, "rate": 158},
    "caching": {"steps": 373, "batch": 33.1, "kv_peak": 0.74, "kv_mean": 0.60, "p50": 1.8, "p95": 2.5, "rate": 293},
}


class L4Roofline:
    """Llama 3.1 8B on an L4, as SPEC.md section 2 says; written out, so that the story does not lean on the catalog."""

    def decode(self, sequences: int, context_tokens: int) -> float:
        compute = 2 * 8.03e9 * sequences / (121e12 * 0.5)
        memory = (16.06e9 + context_tokens * 131072) / (300e9 * 0.75)
        return 1e-3 + max(compute, memory)

    def step(self, sequences: int, context_tokens: int, chunks: Sequence[tuple[int, int]]) -> float:
        new = sum(tokens for tokens, _ in chunks)
        return self.decode(sequences + new, context_tokens + sum(computed for _, computed in chunks))


def run(**limits: Any) -> Run:
    workload = build_workload(WorkloadSpec(trace=str(FIXTURES / "burst.jsonl")))
    return Reference(EngineConfig(num_blocks=L4_BLOCKS, **limits), L4Roofline(), workload).run()


def ttfts(of: Run) -> list[float]:
    return sorted(of.times[first] - sent for first, sent in zip(of.records.first, of.records.sent_s, strict=True))


def figures(of: Run) -> dict[str, float]:
    engine, first_token = of.engine, ttfts(of)
    assert engine is not None
    size = len(first_token)
    duration_s = max(of.times[last] for last in of.records.last) - min(of.records.sent_s)
    return {
        "steps": engine.steps,
        "batch": engine.scheduled / engine.steps,
        "kv_peak": engine.kv_peak_blocks / L4_BLOCKS,
        "kv_mean": engine.kv_block_seconds / engine.elapsed_s / L4_BLOCKS,
        "p50": first_token[math.ceil(0.5 * size) - 1],
        "p95": first_token[math.ceil(0.95 * size) - 1],
        "rate": sum(of.records.output_tokens) / duration_s,
    }


class BurstTest(unittest.TestCase):
    def test_the_fixture_is_what_its_generator_makes(self) -> None:
        spec = importlib.util.spec_from_file_location("make_burst", FIXTURES / "make_burst.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        made = "".join(json.dumps(row) + "\n" for row in module.burst_rows())
        self.assertEqual((FIXTURES / "burst.jsonl").read_text(), made)

    def test_it_is_the_burst_of_the_story(self) -> None:
        requests = build_workload(WorkloadSpec(trace=str(FIXTURES / "burst.jsonl"))).requests
        self.assertEqual(len(requests), 48)
        self.assertLess(requests.arrival_s[-1], 3.5)
        self.assertAlmostEqual(sum(requests.prompt_tokens) / 63_500, 1.0, delta=0.05)
        self.assertAlmostEqual(sum(requests.output_tokens) / 12_300, 1.0, delta=0.05)
        assert requests.content is not None
        self.assertEqual(set(requests.content), {((0, 1024),), ((1, 1024),)})

    def test_a_run_tells_the_story_plain_and_with_prefix_caching(self) -> None:
        for name, caching in (("plain", False), ("caching", True)):
            made = run(prefix_caching=caching)
            assert made.engine is not None
            for figure, value in figures(made).items():
                with self.subTest(name=name, figure=figure):
                    self.assertAlmostEqual(value / STORY[name][figure], 1.0, delta=0.2)
            if caching:
                self.assertEqual((made.engine.preemptions, made.engine.evictions), (0, 0))
                self.assertAlmostEqual(made.engine.hit_tokens / made.engine.looked_up_tokens / 0.71, 1.0, delta=0.2)
            else:
                self.assertIn(made.engine.preemptions, range(4, 9))

    def test_more_seats_change_nothing(self) -> None:
        usual, more = run(), run(max_num_seqs=512)
        self.assertEqual(usual.times, more.times)
        self.assertEqual((usual.records.first, usual.records.last), (more.records.first, more.records.last))

    def test_fewer_tokens_in_flight_end_the_preemptions_and_lengthen_the_wait(self) -> None:
        usual, held_back = run(), run(max_tokens_in_flight=28_000)
        assert held_back.engine is not None
        self.assertEqual(held_back.engine.preemptions, 0)
        self.assertGreater(figures(held_back)["p95"], figures(usual)["p95"])


if __name__ == "__main__":
    unittest.main()
