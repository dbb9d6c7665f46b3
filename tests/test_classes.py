"""Classes of requests and LoRA adapters: parts that add up to the whole, one class is no classes, adapters' costs."""

from __future__ import annotations

import json
import math
import unittest
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from servesim import simulate, summarize
from servesim.catalog.models import find_model
from servesim.config.build import build_server
from servesim.config.engine import AdapterConfig
from servesim.config.server import ServerSpec
from servesim.config.workload import WorkloadSpec, build_workload, load_requests
from servesim.cost.memory import adapter_bytes, adapter_params
from servesim.engine.engine import Engine
from servesim.errors import InputError
from servesim.runs.reader import read_run
from servesim.runs.records import Run
from servesim.runs.writer import write_run
from servesim.summary.classes import jain
from servesim.summary.slo import parse_slo, parse_slos
from servesim.workload.classes import parse_classes
from servesim.workload.traces.trace import read_trace, trace_lines
from tests.command import servesim

MIXED = "chat=0.7/priority=0,batch=0.3/priority=5/prompt=1k-2k/output=100-200/adapter=sql"
SMALL: dict[str, Any] = {"requests": 200, "rate": 30.0, "prompt_tokens": "50-300", "output_tokens": "10-80"}
STORM: dict[str, Any] = {"client_timeout_s": 3.0, "retries": 1, "max_num_queued_reqs": 30, "max_num_seqs": 8}


class Parts(unittest.TestCase):
    def test_one_class_equals_no_classes(self) -> None:
        for more in ({}, {"turns": "3"}, {"shared_prefix_tokens": 64, "prefix_caching": True}, STORM):
            with self.subTest(**more):
                plain, classed = (simulate(**SMALL | more, **own) for own in ({}, {"classes": "all=1"}))
                self.assertEqual(plain.times, classed.times)
                self.assertEqual(plain.requests.prompt_tokens, classed.requests.prompt_tokens)
                whole = summarize(classed, parse_slos(["ttft_p95=100ms"]))
                (only,) = whole.classes or ()
                for name in ("requests", "attempts", "tokens", "throughput", "ttft_ms", "itl_ms", "errors", "goodput"):
                    self.assertEqual(getattr(only, name), getattr(whole, name), name)
                self.assertEqual(whole.fairness, 1.0)

    def test_figures_of_classes_add_up_to_the_whole(self) -> None:
        slos = parse_slos(["ttft_p95=300ms,e2e_p99=5s"])
        for more in ({}, STORM, {"policy": "priority"}, {"horizon_s": 3.0}):
            with self.subTest(**more):
                whole = summarize(simulate(**SMALL | more, classes=MIXED), slos)
                classes = whole.classes or []
                self.assertEqual(
                    [one.name for one in classes and sorted(classes, key=str)],
                    [one.name for one in sorted(classes, key=str)],
                )
                for name in ("offered", "completed", "failed", "rejected", "unfinished", "capped", "empty"):
                    parts = sum(getattr(one.requests, name) for one in classes)
                    self.assertEqual(parts, getattr(whole.requests, name), name)
                for name in ("prompt", "output", "cached"):
                    self.assertEqual(sum(getattr(one.tokens, name) for one in classes), getattr(whole.tokens, name))
                self.assertEqual(sum(one.attempts for one in classes), whole.attempts)
                for name in ("output_tokens_per_s", "requests_per_s"):
                    parts = [getattr(one.throughput, name) or 0.0 for one in classes]
                    self.assertAlmostEqual(math.fsum(parts), getattr(whole.throughput, name) or 0.0)
                goodput = math.fsum(one.goodput.requests_per_s or 0.0 for one in classes if one.goodput)
                assert whole.goodput is not None
                self.assertAlmostEqual(goodput, whole.goodput.requests_per_s or 0.0)
                for metric in ("ttft_ms", "itl_ms", "e2e_ms"):
                    parts = [getattr(one, metric) for one in classes if getattr(one, metric) is not None]
                    of_all = getattr(whole, metric)
                    self.assertEqual(sum(part.count for part in parts), of_all.count)
                    self.assertEqual(max(part.max for part in parts), of_all.max)
                    mean = sum(part.mean * part.count for part in parts) / of_all.count
                    self.assertAlmostEqual(mean, of_all.mean)

    def test_an_objective_of_a_class_is_asked_of_it_alone(self) -> None:
        run = simulate(**SMALL, classes=MIXED, policy="priority", max_num_seqs=12)
        asked = ["chat:ttft_p95=200ms", "batch:ttft_p95=200ms", "ttft_p95=200ms"]
        whole = summarize(run, parse_slos(asked))
        results = {result.class_name: result for result in whole.slo or ()}
        by_name = {one.name: one for one in whole.classes or ()}
        for name in ("chat", "batch"):
            ttft = by_name[name].ttft_ms
            assert ttft is not None
            self.assertEqual(results[name].value_ms, ttft.p95)
        self.assertLess(results["chat"].value_ms or 0.0, results["batch"].value_ms or 0.0)
        only_chat = summarize(run, parse_slos(["chat:ttft_p95=1us"])).goodput
        assert only_chat is not None
        self.assertEqual(only_chat.fraction, by_name["batch"].requests.completed / whole.requests.offered)

    def test_an_objective_of_a_class_that_nobody_is_in_is_refused(self) -> None:
        with self.assertRaises(InputError):
            summarize(simulate(**SMALL, classes="chat=1"), [parse_slo("chta:ttft_p95=1s")])

    def test_objectives_read_back_from_their_text(self) -> None:
        slo = parse_slo("chat:ttft_p95=500ms")
        self.assertEqual((slo.class_name, slo.metric, slo.percentile, slo.limit_s), ("chat", "ttft", 95, 0.5))
        self.assertEqual(str(slo), "chat:ttft_p95<=500ms")
        for text in (":ttft_p95=1s", "chat:", "chat:mood=1s"):
            with self.subTest(text=text), self.assertRaises(InputError):
                parse_slo(text)

    def test_jain_s_index_lies_between_1_over_n_and_1(self) -> None:
        self.assertEqual(jain([3.0, 3.0, 3.0]), 1.0)
        self.assertAlmostEqual(jain([1.0, 0.0, 0.0]) or 0.0, 1 / 3)
        self.assertIsNone(jain([]))
        self.assertEqual(jain([None, 2.0]), 1.0)


class Description(unittest.TestCase):
    def test_classes_come_by_their_weights_and_with_their_own(self) -> None:
        requests = load_requests(WorkloadSpec(concurrency=1, requests=4000, classes=MIXED, adapters=3))
        names, adapters = requests.class_names or [], requests.adapters or []
        self.assertAlmostEqual(names.count("batch") / 4000, 0.3, delta=0.03)
        for index, name in enumerate(names):
            prompt = requests.prompt_tokens[index]
            self.assertTrue(1000 <= prompt <= 2000 if name == "batch" else 256 <= prompt <= 1024)
            self.assertEqual((requests.priority or [])[index], 5 if name == "batch" else 0)
            self.assertEqual(adapters[index] == "sql", name == "batch")

    def test_what_is_no_class_is_refused_in_one_line(self) -> None:
        for text in (
            "chat", "chat=0", "=1", "chat=1,chat=2", "chat=1/mood=good", "chat=1/priority=-1", "chat=1/prompt=x",
            "chat=1/priority=1/priority=2", "a:b=1", "chat=1/adapter=",
        ):  # fmt: skip
            with self.subTest(text=text), self.assertRaises(InputError) as caught:
                parse_classes(text)
            self.assertNotIn("\n", str(caught.exception))

    def test_class_and_adapter_go_through_traces_and_saved_runs(self) -> None:
        run = simulate(**SMALL, classes=MIXED, adapters=2, max_loras=2)
        with TemporaryDirectory() as folder:
            trace, saved = Path(folder) / "trace.jsonl", Path(folder) / "run.jsonl"
            trace.write_text("".join(trace_lines(run.requests)), encoding="utf-8")
            write_run(str(saved), run, "simulate")
            for requests in (
                read_trace(str(trace)).requests, read_trace(str(saved)).requests, read_run(str(saved)).requests,
            ):  # fmt: skip
                self.assertEqual(requests.class_names, run.requests.class_names)
                self.assertEqual(requests.adapters, run.requests.adapters)
            again = summarize(read_run(str(saved)), parse_slos(["chat:ttft_p95=1s"])).as_dict()
            self.assertEqual(json.dumps(again), json.dumps(summarize(run, parse_slos(["chat:ttft_p95=1s"])).as_dict()))

    def test_the_report_has_a_line_for_each_class_and_the_fairness(self) -> None:
        said = servesim(
            "simulate", "--rate", "20", "--requests", "100", "--classes", MIXED, "--slo", "chat:ttft_p95=1s", "--quiet"
        )
        self.assertRegex(said.out, r"(?m)^class +offered +completed .*goodput$")
        self.assertRegex(said.out, r"(?m)^  batch +\d+ ")
        self.assertRegex(said.out, r"(?m)^fairness +[01]\.\d+")
        self.assertRegex(said.out, r"(?m)^slo +chat:ttft_p95 <= 1,000\.0 ms: ")


class Adapters(unittest.TestCase):
    def load(self, **options: Any) -> Run:
        return simulate(requests=200, rate=25.0, prompt_tokens="100-400", output_tokens="20-80", **options)

    def test_an_adapter_has_two_thin_matrices_beside_every_linear_layer(self) -> None:
        # 41,943,040 is what PEFT prints for Llama 3.1 8B with rank 16 and all linear layers as targets.
        self.assertEqual(adapter_params(find_model("llama-3.1-8b"), 16), 41_943_040)
        self.assertEqual(adapter_bytes(find_model("llama-3.1-8b"), 16), 83_886_080)
        for name in ("deepseek-v3", "qwen3-30b-a3b", "gemma-3-12b", "qwen3-next-80b-a3b"):
            model = find_model(name)
            self.assertTrue(0 < adapter_params(model, 8) < 0.01 * model.params, name)
        with self.assertRaises(InputError):
            adapter_params(find_model("llama-3.1-8b"), 0)

    def test_adapters_take_their_slots_out_of_the_kv_cache(self) -> None:
        plain, adapted = build_server(ServerSpec()), build_server(ServerSpec(max_loras=8, adapter_rank=64))
        taken = plain.plan.kv_cache_bytes - adapted.plan.kv_cache_bytes
        self.assertEqual(taken, 8 * adapter_bytes(find_model("llama-3.1-8b"), 64))

    def test_one_adapter_for_all_that_costs_nothing_equals_none(self) -> None:
        server = build_server(ServerSpec(prefix_caching=True))
        spec: dict[str, Any] = {"rate": 25.0, "shared_prefix_tokens": 64}
        times = []
        for adapters, config in ((0, None), (1, AdapterConfig(max_loras=1))):
            workload = build_workload(WorkloadSpec(**spec, adapters=adapters))
            engine = Engine(replace(server.config, adapters=config), server.cost(), workload)
            engine.advance()
            times.append(engine.run({}).times)
        self.assertEqual(*times)

    def test_prefixes_of_different_adapters_are_different(self) -> None:
        hits = []
        for adapters in (1, 4):
            run = self.load(max_loras=4, adapters=adapters, shared_prefix_tokens=512, prefix_caching=True)
            assert run.engine is not None
            hits.append(run.engine.hit_tokens)
        self.assertLess(hits[1], hits[0])

    def test_a_cap_below_the_adapters_asked_for_makes_their_requests_wait(self) -> None:
        def ttft_ms(max_loras: int) -> float:
            run = self.load(max_loras=max_loras, adapters=8, adapter_load="50ms")
            self.assertEqual(run.violations, [])
            self.assertEqual(summarize(run).requests.completed, 200)
            ttft = summarize(run).ttft_ms
            assert ttft is not None
            return ttft.mean

        self.assertGreater(ttft_ms(1), ttft_ms(4))
        self.assertGreater(ttft_ms(4), ttft_ms(8))

    def test_no_law_breaks_with_adapters_under_any_memory(self) -> None:
        for seed in range(12):
            options: dict[str, Any] = {
                "seed": seed,
                "max_loras": 1 + seed % 4,
                "adapters": 1 + seed % 5,
                "kv_tokens": (600, 3000, 100_000)[seed % 3],
                "prefix_caching": seed % 2 == 0,
                "shared_prefix_tokens": 64,
                "async_scheduling": seed % 4 < 2,
                "client_timeout_s": (None, 2.0)[seed % 2],
            }
            with self.subTest(**options):
                self.assertEqual(self.load(**options).violations, [])

    def test_what_adapters_cost_is_asked_for_with_them(self) -> None:
        for options in (
            {"adapter_rank": 8},
            {"adapter_load": "1s"},
            {"max_loras": 0},
            {"max_loras": 2, "adapter_rank": 0},
        ):
            with self.subTest(**options), self.assertRaises(InputError):
                ServerSpec(**options)


if __name__ == "__main__":
    unittest.main()
