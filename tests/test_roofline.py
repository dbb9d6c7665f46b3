"""The roofline: its formula, its golden figures, its floor, and one result however it is asked."""

from __future__ import annotations

import random
import unittest

from servesim.catalog.hardware import HARDWARE
from servesim.catalog.models import MODELS
from servesim.cost.model import COST_MODELS, CostModel, FloorWatch
from servesim.cost.roofline import Roofline, critical_batch, step_seconds
from servesim.errors import InputError

LLAMA = MODELS["llama-3.1-8b"]
H100, A100, L4 = HARDWARE["h100-sxm-80gb"], HARDWARE["a100-sxm-80gb"], HARDWARE["l4-24gb"]

# Qwen3-0.6B BF16 on an M4 Pro through PyTorch, one request at a time, measured elsewhere: (prompt, output, seconds).
OUTPUT_SCAN = ((19, 10, 0.099), (19, 50, 0.417), (19, 100, 0.810), (19, 200, 1.605), (19, 250, 2.026))
INPUT_SCAN = ((22, 100, 0.872), (108, 100, 0.931), (293, 100, 0.925), (546, 100, 0.969), (1235, 100, 1.266))


class Formula(unittest.TestCase):
    def test_a_step_is_overhead_and_the_longer_of_compute_and_memory(self) -> None:
        for tokens, context in ((1, 0), (64, 60_000), (8192, 8192), (300, 10), (0, 0)):
            with self.subTest(tokens=tokens, context=context):
                compute = 2 * 8.03e9 * tokens / (989e12 * 0.5)
                memory = (16.06e9 + context * 131_072) / (3350e9 * 0.75)
                self.assertAlmostEqual(step_seconds(LLAMA, H100, tokens, context), 1e-3 + max(compute, memory), 15)

    def test_every_way_of_asking_gives_the_same_bits(self) -> None:
        rng = random.Random(7)
        for device in (H100, L4, HARDWARE["cpu-4vcpu"]):
            for tensor_parallel in (1, 2, 8):
                cost: CostModel = COST_MODELS["roofline"](LLAMA, device, tensor_parallel)
                for _ in range(200):
                    sequences, context = rng.randint(1, 256), rng.randint(0, 10**6)
                    chunks = [(rng.randint(1, 4000), rng.randint(1, 9000)) for _ in range(rng.randint(0, 3))]
                    tokens = sequences + sum(new for new, _ in chunks)
                    total = context + sum(computed for _, computed in chunks)
                    expected = step_seconds(LLAMA, device, tokens, total, tensor_parallel)
                    self.assertEqual(cost.step(sequences, context, chunks), expected)
                    self.assertEqual(
                        cost.decode(sequences, context),
                        step_seconds(LLAMA, device, sequences, context, tensor_parallel),
                    )

    def test_tensor_parallelism_divides_work_and_reads_but_not_the_overhead(self) -> None:
        for tokens, context in ((1, 5000), (4096, 0)):
            alone = step_seconds(LLAMA, H100, tokens, context) - H100.overhead_s
            shared = step_seconds(LLAMA, H100, tokens, context, 4) - H100.overhead_s
            self.assertAlmostEqual(shared, alone / 4, 15)

    def test_a_mixture_computes_with_its_active_parameters(self) -> None:
        mixtral = MODELS["mixtral-8x7b"]
        compute = step_seconds(mixtral, H100, 10_000) - H100.overhead_s
        self.assertAlmostEqual(compute, 2 * 12.88e9 * 10_000 / (989e12 * 0.5), 12)

    def test_hostile_numbers_are_refused(self) -> None:
        for tokens, context in ((-1, 0), (1, -1), (1.5, 0), (True, 0), (float("nan"), 0)):
            self.assertRaises(InputError, step_seconds, LLAMA, H100, tokens, context)
        self.assertRaises(InputError, Roofline, LLAMA, H100, 0)
        self.assertRaises(InputError, critical_batch, LLAMA, H100, -1)


class GoldenFigures(unittest.TestCase):
    def test_one_sequence_on_an_l4_decodes_in_72_ms(self) -> None:
        self.assertEqual(round(step_seconds(LLAMA, L4, 1) * 1e3, 2), 72.38)

    def test_the_critical_batch_is_where_compute_equals_the_weight_read(self) -> None:
        for model, device, batch in ((LLAMA, H100, 197), (LLAMA, L4, 269), (LLAMA, A100, 102)):
            found = critical_batch(model, device)
            assert found is not None
            self.assertEqual(round(found), batch)
        on_cpu = critical_batch(MODELS["smollm2-135m-q8_0"], HARDWARE["cpu-4vcpu"])
        assert on_cpu is not None
        self.assertLess(on_cpu, 3)

    def test_long_contexts_put_the_critical_batch_out_of_reach(self) -> None:
        for device, last in ((H100, 622), (A100, 1201), (L4, 455)):
            with self.subTest(device=device.name):
                self.assertIsNotNone(critical_batch(LLAMA, device, last))
                self.assertIsNone(critical_batch(LLAMA, device, last + 1))

    def test_at_the_critical_batch_compute_equals_memory(self) -> None:
        batch = critical_batch(LLAMA, H100, 300)
        assert batch is not None
        cost = Roofline(LLAMA, H100)
        self.assertAlmostEqual(batch * cost.token_s, cost.weights_s + batch * 300 * cost.context_s, 12)

    def test_the_m4_pro_is_fitted_as_well_as_it_says(self) -> None:
        device = HARDWARE["apple-m4-pro"]
        cost = Roofline(MODELS["qwen3-0.6b"], device)
        worst = 0.0
        for scan, stated in ((OUTPUT_SCAN, 0.044), (INPUT_SCAN, 0.043)):
            errors = []
            for prompt, output, seen_s in scan:
                decodes_s = sum(cost.decode(1, prompt + token) for token in range(1, output))
                errors.append(abs((cost.step(0, 0, [(prompt, prompt)]) + decodes_s) / seen_s - 1))
            worst = max(worst, *errors)
            self.assertAlmostEqual(sum(errors) / len(errors), stated, delta=0.0006)
        self.assertAlmostEqual(worst, 0.169, delta=0.0006)
        for figure in ("4.4 %", "4.3 %", "16.9 %"):
            self.assertIn(figure, device.fitted)


class Floor(unittest.TestCase):
    def test_no_preset_is_faster_than_its_datasheet(self) -> None:
        rng = random.Random(3)
        for device in HARDWARE.values():
            cost = Roofline(LLAMA, device)
            self.assertFalse(cost.can_beat_floor)
            for _ in range(50):
                tokens, context = rng.randint(1, 8192), rng.randint(0, 10**6)
                self.assertGreaterEqual(cost.seconds(tokens, context), cost.floor_seconds(tokens, context))

    def test_an_efficiency_above_one_is_allowed_told_and_counted(self) -> None:
        fast = H100.with_efficiency(mbu=1.09, overhead_ms=0.0)
        inner = Roofline(LLAMA, fast)
        self.assertTrue(inner.can_beat_floor)
        watch = FloorWatch(inner, LLAMA, fast)
        self.assertEqual(watch.decode(1, 1000), inner.decode(1, 1000))
        self.assertEqual(watch.step(0, 0, [(8192, 8192)]), inner.step(0, 0, [(8192, 8192)]))
        self.assertEqual(watch.steps_below_floor, 1)
        watch.step(1, 100, [(5, 5)])
        self.assertEqual(watch.steps_below_floor, 2)


if __name__ == "__main__":
    unittest.main()
