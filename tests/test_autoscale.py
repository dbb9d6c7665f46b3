"""A fleet that grows and shrinks: paid by the integral of what is there, drained to the end, equal to a fixed one."""

from __future__ import annotations

import json
import math
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from servesim import simulate, summarize
from servesim.config.build import build_server
from servesim.config.fleet import FleetSpec, price_of
from servesim.config.server import ServerSpec
from servesim.config.workload import WorkloadSpec, build_workload
from servesim.errors import InputError
from servesim.fleet.autoscale import FIGURES, ScaledFleet, Scaling, scaling_of
from servesim.fleet.fleet import Fleet, Kind
from servesim.runs.records import Run
from tests.command import servesim
from tests.extent import once

TARGETS = {"concurrency": 20.0, "kv": 0.05, "waiting": 1.0, "ttft_p95": 0.1}


class Curve(unittest.TestCase):
    """A small day: a rate that rises and falls, in a file of its own."""

    folder: TemporaryDirectory[str]
    path: str

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = TemporaryDirectory()
        cls.path = str(Path(cls.folder.name) / "day.csv")
        Path(cls.path).write_text("time,rate\n0,4\n40s,40\n80s,40\n2m,4\n", encoding="utf-8")
        cls.server = build_server(ServerSpec())

    server: Any

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    def kind(self, count: int = 1) -> Kind:
        return Kind(name="one", config=self.server.config, cost=self.server.cost(), count=count)

    def scaled(self, scaling: Scaling, **load: Any) -> tuple[ScaledFleet, Run]:
        spec = WorkloadSpec(**({"rate_schedule": self.path} | load))
        fleet = ScaledFleet(build_workload(spec), self.kind(), scaling)
        fleet.advance()
        return fleet, fleet.run({})


@once
class Laws(Curve):
    def test_replica_hours_are_the_integral_of_the_live_replicas(self) -> None:
        for on, target in TARGETS.items():
            scaling = Scaling(
                minimum=1, maximum=6, on=on, target=target, cold_start_s=3.0, cool_down_s=10.0, every_s=2.0
            )
            with self.subTest(on=on):
                _, run = self.scaled(scaling)
                assert run.scaling is not None
                self.assertEqual(run.violations, [])
                end_s, lives = run.scaling.end_s, run.scaling.lives
                # The integral of a step function, from one change to the next.
                changes = sorted(
                    {end_s, *(life.launched_s for life in lives), *(life.ended_s or end_s for life in lives)}
                )
                integral = peak = 0.0
                for start_s, stop_s in zip(changes, changes[1:], strict=False):
                    there = sum(
                        life.launched_s <= start_s and stop_s <= (end_s if life.ended_s is None else life.ended_s)
                        for life in lives
                    )
                    integral += there * (stop_s - start_s)
                    peak = max(peak, there)
                    self.assertLessEqual(there, scaling.maximum)
                    self.assertGreaterEqual(there, scaling.minimum)
                self.assertAlmostEqual(integral, run.scaling.replica_seconds, places=6)
                self.assertAlmostEqual(math.fsum(run.scaling.seconds), integral, places=6)
                self.assertEqual(peak, run.scaling.peak)
                self.assertGreater(peak, 1, "it never grew")

    def test_no_replica_runs_before_it_is_ready_or_after_its_drain(self) -> None:
        scaling = Scaling(minimum=1, maximum=6, target=15.0, cold_start_s=4.0, cool_down_s=5.0, every_s=1.0)
        _, run = self.scaled(scaling)
        assert run.scaling is not None
        lives = run.scaling.lives
        self.assertTrue(any(life.ended_s is not None for life in lives), "nothing ever drained")
        records = run.records
        for index, home in enumerate(run.replica_of["replica"]):
            last_s = run.times[records.last[index]]
            sent_s = records.sent_s[index]
            fits = [
                life
                for life in lives
                if life.replica == home
                and life.ready_s <= sent_s
                and (life.drained_s is None or sent_s <= life.drained_s)
                and (life.ended_s is None or last_s <= life.ended_s)
            ]
            self.assertEqual(len(fits), 1, f"request {index} on replica {home}")
        self.assertEqual(summarize(run).requests.completed, len(records))

    def test_an_instant_free_scaler_equals_the_fixed_fleet_of_its_peak(self) -> None:
        instant = Scaling(
            minimum=1, maximum=300, target=1.0, cold_start_s=0.0, cool_down_s=1e9, every_s=0.0, tolerance=0.0
        )
        load: dict[str, Any] = {"rate_schedule": self.path, "requests": 1500}
        _, run = self.scaled(instant, **load)
        assert run.scaling is not None
        fixed = Fleet(build_workload(WorkloadSpec(**load)), [self.kind(run.scaling.peak)], router="least-loaded")
        fixed.advance()
        other = fixed.run({})
        for index in range(1500):
            self.assertEqual(run.token_times(index), other.token_times(index))

    def test_a_fleet_that_may_not_move_equals_a_fixed_one(self) -> None:
        for size in (1, 3):
            with self.subTest(size=size):
                scaled = simulate(rate_schedule=self.path, autoscale=f"{size}:{size}")
                fixed = simulate(rate_schedule=self.path, replicas=size)
                self.assertEqual(scaled.times, fixed.times)
                assert scaled.scaling is not None
                self.assertEqual(scaled.scaling.replica_seconds, size * scaled.scaling.end_s)

    def test_more_of_a_target_is_never_more_replicas(self) -> None:
        paid = []
        for target in (5.0, 20.0, 80.0):
            _, run = self.scaled(
                Scaling(minimum=1, maximum=8, target=target, cold_start_s=2.0, cool_down_s=10.0, every_s=2.0)
            )
            assert run.scaling is not None
            paid.append(run.scaling.replica_seconds)
        self.assertEqual(paid, sorted(paid, reverse=True))

    @once
    def test_a_target_of_next_to_nothing_asks_for_every_replica(self) -> None:
        for on in TARGETS:
            scaling = Scaling(minimum=1, maximum=3, on=on, target=1e-308, every_s=0.0)
            scaled = self.scaled(scaling, requests=1200)[1].scaling
            assert scaled is not None
            self.assertEqual(scaled.peak, 3, on)

    def test_nothing_is_decided_when_all_is_over(self) -> None:
        scaling = Scaling(minimum=1, maximum=3, on="ttft_p95", target=1e-9, every_s=15.0)
        fleet, run = self.scaled(scaling, rate_schedule=None, rate=5.0, requests=20)
        assert run.scaling is not None
        self.assertEqual((len(fleet.lives), run.scaling.replica_seconds), (1, run.scaling.end_s))

    def test_the_same_seed_gives_the_same_lives(self) -> None:
        scaling = Scaling(minimum=1, maximum=6, target=15.0, cold_start_s=4.0, cool_down_s=5.0)
        first, second = (self.scaled(scaling)[1].scaling for _ in range(2))
        self.assertEqual(repr(first), repr(second))


class Options(Curve):
    def test_what_makes_no_sense_is_refused(self) -> None:
        for options in (
            {"autoscale": "0:4"},
            {"autoscale": "5:4"},
            {"autoscale": "4"},
            {"autoscale": "1:4", "scale_on": "mood"},
            {"autoscale": "1:4", "scale_on": "kv", "scale_target": 80},
            {"autoscale": "1:4", "scale_on": "kv", "scale_target": 1.5},
            {"autoscale": "1:4", "scale_target": 0},
            {"autoscale": "1:4", "replicas": 2},
            {"autoscale": "1:4", "disagg": "1:1"},
            {"cold_start_s": "5s"},
            {"scale_target": 4},
            {"autoscale": "1:4", "scale_every_s": "1us"},
            {"autoscale": "1:4", "cold_start_s": 1e300},
            {"price": "2.5"},
        ):
            with self.subTest(**options), self.assertRaises(InputError):
                scaling_of(FleetSpec(**options))  # type: ignore[arg-type]

    def test_every_figure_has_a_target_of_its_own_and_a_line_in_the_help(self) -> None:
        said = " ".join(servesim("simulate", "--help-all").out.split())
        for name, figure in FIGURES.items():
            self.assertGreater(figure.target, 0.0)
            self.assertIn(figure.about, said)
            scaling = scaling_of(FleetSpec(autoscale="1:2", scale_on=name))
            assert scaling is not None
            self.assertEqual(scaling.target, figure.target)

    def test_a_run_is_a_configuration_of_itself(self) -> None:
        flags = ["--autoscale", "1:4", "--scale-on", "ttft_p95", "--target", "300ms", "--cold-start", "3s"]
        first = servesim("simulate", "--rate-schedule", self.path, *flags, "--price", "2/h", "--json")
        path = Path(self.folder.name) / "first.json"
        path.write_text(first.out, encoding="utf-8")
        again = servesim("simulate", "--config", str(path), "--json")
        self.assertEqual(json.loads(first.out), json.loads(again.out))

    def test_a_time_of_0_is_told_and_runs_again(self) -> None:
        flags = ["--autoscale", "1:4", "--cold-start", "0", "--cool-down", "0s", "--scale-every", "0", "--quiet"]
        first = servesim("simulate", "--rate-schedule", self.path, *flags, "--json")
        self.assertIn("cold start 0 s", servesim("simulate", "--rate-schedule", self.path, *flags).out)
        path = Path(self.folder.name) / "zero.json"
        path.write_text(first.out, encoding="utf-8")
        self.assertEqual(servesim("simulate", "--config", str(path), "--json", "--quiet").out, first.out)

    def test_a_sweep_over_targets_holds_objectives_against_cost(self) -> None:
        said = servesim(
            "sweep", "--rate-schedule", self.path, "--autoscale", "1:6", "--target", "5,40", "--cold-start", "2s",
            "--scale-every", "2s", "--price", "2/h", "--slo", "ttft_p95=1s", "--json", "--quiet",
        )  # fmt: skip
        cheap, dear = (json.loads(said.out)["rows"][row]["usage"]["cost"] for row in (1, 0))
        self.assertLess(cheap, dear)


class Usage(Curve):
    def test_money_is_hours_by_price(self) -> None:
        run = simulate(rate_schedule=self.path, replicas=2, tensor_parallel_size=2, price="2/h")
        used, totals = run.usage, run.engine
        assert used is not None and totals is not None
        self.assertAlmostEqual(used["device_hours"], 4 * totals.elapsed_s / 3600)
        self.assertAlmostEqual(used["cost"], 2 * used["device_hours"])

    def test_a_device_without_a_price_is_refused(self) -> None:
        self.assertIsNone(price_of("l4-24gb", ["h100-sxm-80gb=3/h"]))
        with self.assertRaises(InputError):
            simulate(rate=5.0, requests=5, price="l4-24gb=1/h")

    def test_energy_lies_between_rest_and_peak_and_grows_with_the_load(self) -> None:
        mean_w = []
        for rate in (0.2, 5.0, 25.0):
            run = simulate(rate=rate, requests=100, energy=True)
            assert run.usage is not None and run.engine is not None
            energy = run.usage["energy"]
            self.assertTrue(121.7 <= energy["mean_w"] <= 700.0)
            self.assertAlmostEqual(energy["joules"], energy["mean_w"] * run.engine.elapsed_s)
            mean_w.append(energy["mean_w"])
        self.assertEqual(mean_w, sorted(mean_w))

    def test_energy_of_one_steady_step_is_the_closed_form(self) -> None:
        run = simulate(requests=1, concurrency=1, prompt_tokens="10", output_tokens="200", energy=True)
        totals, used = run.engine, run.usage
        assert totals is not None and used is not None
        at_work_s = totals.busy_s - totals.steps * 1e-3
        expected = 121.7 * totals.elapsed_s + (700 - 121.7) * at_work_s
        self.assertAlmostEqual(used["energy"]["joules"], expected, places=6)
        self.assertAlmostEqual(used["energy"]["joules_per_output_token"], expected / 200, places=6)

    def test_where_no_source_gives_power_at_rest_no_energy_is_told(self) -> None:
        run = simulate(hardware="l4-24gb", requests=4, energy=True)
        assert run.usage is not None
        self.assertIsNone(run.usage["energy"])
        self.assertTrue(any("no energy" in warning for warning in run.warnings))


if __name__ == "__main__":
    unittest.main()
