"""The detailed cost model: its terms add up, each obeys its formula, nothing is faster than the datasheet."""

from __future__ import annotations

import random
import unittest
from dataclasses import replace

from servesim.catalog.hardware import HARDWARE
from servesim.catalog.model import Model
from servesim.catalog.models import MODELS
from servesim.cost.detailed import PARAMETERS, TERMS, Detailed, DetailedParameters, Split
from servesim.cost.model import COST_MODELS, CostModel
from servesim.errors import InputError
from servesim.fleet.simulate import simulate

LLAMA, MIXTRAL, GEMMA = MODELS["llama-3.1-8b"], MODELS["mixtral-8x7b"], MODELS["gemma-3-12b"]
DEEPSEEK, GPT_OSS = MODELS["deepseek-v3"], MODELS["gpt-oss-20b"]
H100, CPU = HARDWARE["h100-sxm-80gb"], HARDWARE["cpu-4vcpu"]

PERFECT = DetailedParameters(
    **{
        **dict.fromkeys(("mfu", "mbu", "kv_mbu", "attention_mfu", "expert_mfu", "mixed_kv", "bus_share"), 1.0),
        **dict.fromkeys(("overhead_ms", "traffic_vectors", "layer_us", "eager_layer_us", "sequence_us"), 0.0),
        **dict.fromkeys(("request_ms", "ingest_ms", "allreduce_us", "graph_limit"), 0.0),
        "softness": 20.0,
    }
)


def _routed(model: Model) -> float:
    """Return the share of a token's arithmetic, the head apart, that its routed experts have."""
    split = Split.of(model)
    routed = split.routed_params * split.routed_share
    return routed / (split.body_params + routed)


def random_step(rng: random.Random) -> tuple[int, int, list[tuple[int, int]]]:
    sequences = rng.choice([0, 1, 3, 64, 300])
    context = sequences * rng.randint(1, 4000)
    chunks = []
    for _ in range(rng.randint(0 if sequences else 1, 3)):
        new = rng.choice([1, 17, 512, 4096])
        chunks.append((new, new + rng.choice([0, 0, 5000])))
    return sequences, context, chunks


class TheTerms(unittest.TestCase):
    def test_they_add_up_to_the_step_for_every_kind_of_model(self) -> None:
        for seed in range(200):
            rng = random.Random(seed)
            model = rng.choice(list(MODELS.values()))
            parallel = rng.choice([1, 2])
            cost = Detailed(
                model, H100, parallel, pipeline_parallel=rng.choice([1, 2]), expert_parallel=rng.choice([1, 2])
            )
            sequences, context, chunks = random_step(rng)
            with self.subTest(seed=seed, model=model.name):
                terms = cost.terms(sequences, context, chunks)
                self.assertEqual(terms.keys(), TERMS.keys())
                step = cost.step(sequences, context, chunks)
                self.assertAlmostEqual(sum(terms.values()) / step, 1.0, 9)
                self.assertGreaterEqual(min(terms.values()), 0.0)
                if not chunks:
                    self.assertEqual(step, cost.decode(sequences, context))

    def test_no_step_is_faster_than_the_datasheet_allows(self) -> None:
        for seed in range(200):
            rng = random.Random(seed)
            cost = Detailed(rng.choice([LLAMA, MIXTRAL, DEEPSEEK]), H100, rng.choice([1, 8]), parameters=PERFECT)
            sequences, context, chunks = random_step(rng)
            with self.subTest(seed=seed):
                floor = cost.floor_seconds(sequences, context, chunks)
                self.assertGreaterEqual(cost.step(sequences, context, chunks), floor * (1 - 1e-9))
                worse = Detailed(cost.model, H100, cost.parallel)
                self.assertGreater(worse.step(sequences, context, chunks), floor)

    def test_with_every_efficiency_1_a_decode_step_is_the_weights_and_the_cache(self) -> None:
        cost = Detailed(LLAMA, H100, parameters=PERFECT)
        read = 8.03e9 * 2 - 128256 * 4096 * 2 + 10_000 * 131_072  # the embedding table is not read
        self.assertAlmostEqual(cost.decode(1, 10_000) / (read / 3350e9), 1.0, 3)

    def test_a_prompt_takes_its_products_and_its_causal_attention(self) -> None:
        terms = Detailed(LLAMA, H100, parameters=PERFECT).terms(0, 0, [(4096, 4096)])
        body = 8.03e9 - 2 * 128256 * 4096
        self.assertAlmostEqual(terms["compute"] / (2 * body * 4096 / 989e12), 1.0, 3)
        pairs = 4096 * 4096 / 2 * (1 + 512 / 4096)  # half of the square, and what a chunk of 4,096 leaves idle
        self.assertAlmostEqual(terms["attention"] / (4 * 32 * 128 * 32 * pairs / 989e12), 1.0, 3)

    def test_kv_reads_beside_a_prompt_cost_more(self) -> None:
        cost = Detailed(LLAMA, H100, parameters=DetailedParameters(mixed_kv=1.9))
        terms = cost.terms(64, 100_000, [(512, 512)])
        self.assertAlmostEqual(terms["mixed"] / terms["kv"], 0.9)
        self.assertEqual(cost.terms(64, 100_000)["mixed"], 0.0)

    def test_only_sampled_rows_go_through_the_head(self) -> None:
        cost = Detailed(LLAMA, H100)
        self.assertEqual(cost.terms(0, 0, [(4096, 4096)])["head"], cost.terms(1, 1)["head"])
        self.assertGreater(cost.terms(512, 512)["head"], cost.terms(1, 1)["head"])

    def test_a_decode_batch_runs_in_the_next_captured_graph(self) -> None:
        cost = Detailed(LLAMA, H100, parameters=replace(PERFECT, softness=2.0, graph_limit=512.0))
        self.assertEqual(cost.terms(9, 900)["compute"], cost.terms(16, 900)["compute"])
        self.assertGreater(cost.terms(17, 900)["compute"], cost.terms(16, 900)["compute"])
        self.assertLess(cost.terms(513, 900)["compute"], cost.terms(528, 900)["compute"])


class Kinds(unittest.TestCase):
    def test_a_mixture_reads_the_experts_that_its_tokens_hit(self) -> None:
        cost = Detailed(MIXTRAL, H100, 2, parameters=replace(PERFECT, softness=20.0))
        split = Split.of(MIXTRAL)
        for tokens, hit in ((1, 0.25), (2, 1 - 0.75**2), (4, 1 - 0.75**4)):
            read = (split.body_bytes + split.routed_bytes * hit) / (3350e9 * 2)
            self.assertAlmostEqual(cost.terms(tokens, 0)["weights"] / read, 1.0, 3)

    def test_the_split_adds_up_to_the_model(self) -> None:
        for model in MODELS.values():
            split = Split.of(model)
            table = model.embedding_bytes
            whole = split.body_bytes + split.routed_bytes + split.head_bytes + table
            self.assertAlmostEqual(whole / model.weights_bytes, 1.0, delta=0.12, msg=model.name)

    def test_sliding_layers_read_no_more_than_their_window(self) -> None:
        cost = Detailed(GEMMA, H100, parameters=PERFECT)
        short, long = cost.terms(1, 512)["kv"], cost.terms(1, 51_200)["kv"]
        self.assertLess(long, 100 * short)
        full, sliding = (group.bytes_per_token("bf16") for group in GEMMA.attention)
        self.assertAlmostEqual(cost.terms(1, 51_200)["kv"] * 3350e9, 51_200 * full + 1024 * sliding, -3)

    def test_tensor_parallelism_divides_and_pays_for_its_links(self) -> None:
        one, four = Detailed(LLAMA, H100).terms(32, 32_000), Detailed(LLAMA, H100, 4).terms(32, 32_000)
        self.assertEqual(one["links"], 0.0)
        self.assertAlmostEqual(four["kv"], one["kv"] / 4)
        message = 32 * 4096 * 2
        p = DetailedParameters()
        expected = 2 * 32 * (p.allreduce_us / 1e6 + 2 * 3 / 4 * message / (450e9 * p.bus_share))
        self.assertAlmostEqual(four["links"], expected)
        self.assertEqual(four["host"], one["host"])

    def test_a_latent_cache_is_not_divided(self) -> None:
        self.assertEqual(
            Detailed(DEEPSEEK, H100, 8).terms(1, 9000)["kv"], Detailed(DEEPSEEK, H100).terms(1, 9000)["kv"]
        )

    def test_a_pipeline_divides_the_batch_not_the_weight_read(self) -> None:
        one = Detailed(LLAMA, H100, parameters=PERFECT)
        two = Detailed(LLAMA, H100, pipeline_parallel=2, parameters=PERFECT)
        self.assertAlmostEqual(two.terms(1, 9000)["weights"], one.terms(1, 9000)["weights"])
        self.assertAlmostEqual(two.terms(1, 9000)["kv"], one.terms(1, 9000)["kv"] / 2)

    def test_ranks_that_share_the_experts_read_their_part_and_send_each_other_their_tokens(self) -> None:
        split = Split.of(DEEPSEEK)
        for whole in (1, 8):
            cost = Detailed(DEEPSEEK, H100, expert_parallel=whole, data_parallel=8, parameters=PERFECT)
            terms = cost.terms(4096, 0)
            read_s = (split.body_bytes + split.routed_bytes / 8) / (H100.bandwidth_gb_s * 1e9)
            self.assertAlmostEqual(cost.terms(1, 0)["weights"], read_s, delta=0.9 * read_s)
            self.assertLessEqual(cost.terms(64, 0)["weights"], read_s * 1.001)
            self.assertGreater(terms["links"], 0.0)
            alone = Detailed(DEEPSEEK, H100, parameters=PERFECT).terms(4096, 0)
            self.assertEqual(alone["links"], 0.0)
        dense = Detailed(LLAMA, H100, data_parallel=8, parameters=PERFECT)
        self.assertEqual(dense.terms(64, 1000), Detailed(LLAMA, H100, parameters=PERFECT).terms(64, 1000))

    def test_experts_compute_at_an_efficiency_of_their_own(self) -> None:
        slow = replace(PERFECT, expert_mfu=0.1)
        prompt = [(8192, 8192)]
        for model, times in ((LLAMA, 1.0), (MIXTRAL, 1 + 9 * _routed(MIXTRAL))):
            fast_s, slow_s = (Detailed(model, H100, parameters=p).terms(0, 0, prompt) for p in (PERFECT, slow))
            self.assertAlmostEqual(slow_s["compute"] / fast_s["compute"], times, delta=1e-6 * times)

    def test_the_busiest_expert_rank_sets_the_pace(self) -> None:
        alone, shared = Detailed(DEEPSEEK, H100, 8), Detailed(DEEPSEEK, H100, 8, expert_parallel=8)
        self.assertGreater(shared.terms(4096, 4096)["compute"], alone.terms(4096, 4096)["compute"])
        self.assertLess(shared.terms(4096, 4096)["compute"], 1.2 * alone.terms(4096, 4096)["compute"])

    def test_a_quantised_model_computes_at_the_rate_of_its_dtype(self) -> None:
        quantised = LLAMA.quantized("fp8")
        ratio = Detailed(LLAMA, H100).terms(0, 0, [(8192, 8192)])["compute"]
        ratio /= Detailed(quantised, H100).terms(0, 0, [(8192, 8192)])["compute"]
        self.assertAlmostEqual(ratio, 1979 / 989, 2)

    def test_a_processor_keeps_its_own_figures(self) -> None:
        parameters = DetailedParameters.of(CPU)
        self.assertEqual((parameters.mfu, parameters.mbu, parameters.overhead_ms), (1.0, 1.0, 2.0))
        self.assertEqual(parameters.graph_limit, 0.0)


class Parameters(unittest.TestCase):
    def test_a_device_brings_its_own(self) -> None:
        device = replace(H100, detailed={"mfu": 0.9, "mixed_kv": 1.2})
        self.assertEqual(DetailedParameters.of(device).mixed_kv, 1.2)
        self.assertEqual(DetailedParameters.of(device).mbu, DetailedParameters().mbu)

    def test_a_figure_given_by_name_counts_for_this_model_too(self) -> None:
        self.assertEqual(DetailedParameters.of(H100.with_efficiency(mbu=0.6)).mbu, 0.6)

    def test_unknown_names_and_values_out_of_bounds_are_refused(self) -> None:
        with self.assertRaisesRegex(InputError, "did you mean 'mixed_kv'"):
            DetailedParameters.from_mapping({"mixed_kw": 1.0})
        for name, known in PARAMETERS.items():
            for value in (known.low - 1, known.high * 2 + 1, float("nan"), True, "1"):
                self.assertRaises(InputError, DetailedParameters, **{name: value})

    def test_every_parameter_has_bounds_and_a_default_within(self) -> None:
        self.assertEqual(list(DetailedParameters().as_dict()), list(PARAMETERS))

    def test_sizes_below_one_are_refused(self) -> None:
        self.assertRaises(InputError, Detailed, LLAMA, H100, 0)
        self.assertRaises(InputError, Detailed, LLAMA, H100, pipeline_parallel=0)


class InTheSimulator(unittest.TestCase):
    def test_it_is_a_cost_model_by_name(self) -> None:
        cost: CostModel = COST_MODELS["detailed"](LLAMA, H100, 1, kv_bytes_per_token=None)
        self.assertGreater(cost.decode(1, 1), 0)

    def test_the_time_before_the_queue_is_in_ttft_and_in_no_step(self) -> None:
        options = {"requests": 4, "concurrency": 1, "prompt_tokens": "100", "output_tokens": "10"}
        run = simulate(cost_model="detailed", **options)
        assert run.steps is not None
        first_s = run.steps.end_s[run.records.first[0]] - run.records.sent_s[0]
        delay_s = DetailedParameters().ingest_ms / 1e3
        self.assertAlmostEqual(first_s - delay_s, run.steps.durations_s()[0])
        self.assertAlmostEqual(run.records.admitted_s[0] - run.records.sent_s[0], delay_s)
        self.assertGreaterEqual(run.records.sent_s[1], run.steps.end_s[run.records.last[0]] - 1e-12)


if __name__ == "__main__":
    unittest.main()
