"""Calibration: known figures found again from every kind of file, and what the runs cannot tell said in words."""

from __future__ import annotations

import json
import os
import tempfile
import unittest
from dataclasses import replace
from typing import Any

from servesim.calibrate.calibrate import calibrate, points_of
from servesim.calibrate.input import of_row, of_run, read_measurements
from servesim.calibrate.measurement import Measurement, check_figure, figures_for
from servesim.calibrate.parameters import roofline_from
from servesim.catalog.hardware import HARDWARE, read_hardware
from servesim.cli.runner import run_verb
from servesim.config.build import build_server
from servesim.config.server import ServerSpec
from servesim.config.workload import WorkloadSpec
from servesim.engine.simulate import run_workload
from servesim.errors import InputError, RunError
from servesim.fleet.simulate import simulate
from servesim.report.documents import summary_document
from servesim.runs.records import Run
from servesim.runs.writer import RunWriter, write_lines
from servesim.summary.summary import summarize
from tests.command import Said
from tests.extent import needs_data
from tests.runs import measured

KNOWN = {"mfu": 0.61, "mbu": 0.83, "overhead_ms": 3.1}
SERVER: dict[str, Any] = {"model": "llama-3.1-8b", "hardware": "l4-24gb"}


def known_run(concurrency: int, prompt: str = "300-700", output: str = "24-40", **more: Any) -> Run:
    """Return a simulated run on an L4 with the known figures."""
    return simulate(
        **SERVER,
        mfu=KNOWN["mfu"],
        mbu=KNOWN["mbu"],
        step_overhead_s=KNOWN["overhead_ms"] / 1e3,
        concurrency=concurrency,
        requests=max(12, 2 * concurrency),
        prompt_tokens=prompt,
        output_tokens=output,
        **more,
    )


def row(figures: dict[str, float], **more: Any) -> Measurement:
    load = {"prompt_tokens": 500, "output_tokens": 30, "concurrency": 1, **more, **figures}
    return of_row("a row", load, SERVER)


class Verb:
    """Run the verb in this process, whether or not the command line lists it."""

    def __call__(self, *argv: str) -> Said:
        import contextlib
        import io

        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_verb("calibrate", argv)
        return Said(code, out.getvalue(), err.getvalue())


class Files(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name: str, text: str = "") -> str:
        path = os.path.join(self.folder, name)
        if text:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return path

    def saved(self, name: str, run: Run) -> str:
        with RunWriter(self.path(name)) as writer:
            write_lines(writer, run, "simulate")
        return self.path(name)

    def report(self, name: str, run: Run) -> str:
        return self.path(name, json.dumps(summary_document("simulate", run.config, summarize(run))))

    def assert_known(self, values: dict[str, float], within: float = 0.01) -> None:
        for name, value in KNOWN.items():
            self.assertAlmostEqual(values[name] / value, 1.0, delta=within, msg=name)


class KnownFigures(Files):
    def test_two_saved_runs_give_the_roofline_back(self) -> None:
        paths = [self.saved("slow.jsonl", known_run(1)), self.saved("fast.jsonl", known_run(64))]
        fit = calibrate([found for path in paths for found in read_measurements(path)])
        self.assert_known(fit.solution.values)
        self.assertLess(fit.mean_error, 0.001)
        self.assertEqual((fit.warnings, fit.hints), ((), ()))

    def test_reports_runs_and_tables_mix(self) -> None:
        last = summarize(known_run(32, "400", "30"))
        assert last.ttft_ms is not None and last.tpot_ms is not None
        table = "prompt_tokens,output_tokens,concurrency,requests,ttft_ms_mean,tpot_ms_mean\n"
        table += f"400,30,32,64,{last.ttft_ms.mean},{last.tpot_ms.mean}\n"
        found = [
            *read_measurements(self.saved("run.jsonl", known_run(1))),
            *read_measurements(self.report("report.json", known_run(8)), SERVER),
            *read_measurements(self.path("table.csv", table), SERVER),
        ]
        self.assertEqual(len(found), 3)
        self.assert_known(calibrate(found).solution.values)

    def test_a_queue_in_the_measurement_is_a_queue_in_the_fit(self) -> None:
        limits = {"max_num_seqs": 4}
        runs = [known_run(1, **limits), known_run(24, **limits)]
        self.assertGreater(summarize(runs[1]).queue_ms.mean, 1000)  # type: ignore[union-attr]
        fit = calibrate([of_run("run", run, {}) for run in runs])
        self.assert_known(fit.solution.values)

    def test_arrivals_of_an_open_loop_come_again(self) -> None:
        run = simulate(**SERVER, rate=1.0, requests=30, output_tokens="30", mfu=0.61, mbu=0.83, step_overhead_s=3.1e-3)
        (measurement,) = read_measurements(self.saved("open.jsonl", run))
        device = replace(HARDWARE["l4-24gb"], **KNOWN)  # type: ignore[arg-type]
        points = points_of([measurement], device, "roofline")
        self.assertLess(max(abs(point.error) for point in points), 1e-9)

    def test_times_of_the_detailed_model_that_are_asked_for_by_name_are_found_from_far_off(self) -> None:
        for overhead_ms in (0.0, 0.25, 12.0):
            known = {"mfu": 0.63, "mbu": 0.45, "overhead_ms": overhead_ms, "ingest_ms": 9.4, "kv_mbu": 0.93}
            device = replace(HARDWARE["l4-24gb"], detailed=known)
            loads = ((1, "400", "20"), (1, "60", "20"), (8, "300-600", "20"), (32, "200-600", "20"))
            reports = []
            for concurrency, prompt, output in loads:
                load = {"prompt_tokens": prompt, "output_tokens": output, "concurrency": concurrency, "ttft_s": 1}
                asked = of_row("a report", {**load, "tpot_s": 1, "requests": 2 * concurrency}, SERVER)
                reports.append(replace(asked, figures=asked.on(device, "detailed").predict()))
            fit = calibrate(reports, cost_model="detailed", names=tuple(known))
            with self.subTest(overhead_ms=overhead_ms):
                for name, value in known.items():
                    self.assertAlmostEqual(fit.solution.values[name], value, delta=0.05 * value + 0.005)

    def test_the_fitted_device_predicts_a_load_that_was_not_fitted(self) -> None:
        fit = calibrate([of_run("slow", known_run(1), {}), of_run("fast", known_run(48), {})])
        held = of_run("held", known_run(16, "100-2000", "50"), {})
        for point in points_of([held], fit.hardware, "roofline"):
            self.assertLess(abs(point.error), 0.01, point.figure)


class WhatIsNotTold(unittest.TestCase):
    def test_one_sequence_cannot_tell_overhead_from_bandwidth(self) -> None:
        fit = calibrate(
            [row({"tpot_ms": 75.0}), row({"tpot_ms": 75.0}, prompt_tokens=100)], names=("mbu", "overhead_ms")
        )
        (hint,) = fit.hints
        self.assertEqual(
            hint,
            "mbu and overhead_ms cannot be told apart from these runs: add a run at concurrency 32 or more",
        )

    def test_decode_steps_alone_cannot_tell_compute(self) -> None:
        fit = calibrate([row({"tpot_ms": 75.0}), row({"tpot_ms": 80.0}, concurrency=8)], names=("mfu", "mbu"))
        self.assertEqual(
            fit.hints, ("mfu cannot be told from these runs: add a run with prompts of 1,024 tokens or more",)
        )

    def test_a_default_that_the_runs_do_not_touch_is_said_to_be_one(self) -> None:
        fit = calibrate([row({"e2e_s": 3.0})], cost_model="detailed")
        self.assertTrue(any("stay near their defaults" in hint for hint in fit.hints), fit.hints)
        self.assertLess(fit.mean_error, 0.01)

    def test_a_server_whose_decode_costs_more_than_its_prefill_has_them_fitted_separately(self) -> None:
        server = {"model": "smollm2-135m-q8_0", "hardware": "cpu-4vcpu", "kv_tokens": 8192, "cost_model": "detailed"}
        built = build_server(ServerSpec(**server))
        slow = replace(built, hardware=replace(built.hardware, detailed={"mfu": 0.6, "decode_work": 2.5}))
        loads = [WorkloadSpec(concurrency=n, requests=3 * n, prompt_tokens="40", output_tokens="30") for n in (1, 4)]
        runs = [of_run(f"at {load.concurrency}", run_workload(slow, load), {}) for load in loads]
        fit = calibrate(runs, cost_model="detailed")
        self.assertAlmostEqual(fit.solution.values["decode_work"] / 2.5, 1.0, delta=0.1)
        self.assertTrue(any("prefill and decode were fitted separately" in note for note in fit.notes), fit.notes)

    def test_more_than_the_datasheet_is_warned_of(self) -> None:
        fit = calibrate([row({"tpot_ms": 20.0}), row({"tpot_ms": 21.0}, concurrency=8)], names=("mbu",))
        self.assertGreater(fit.solution.values["mbu"], 1)
        self.assertTrue(any("mbu is" in text and "above 1" in text for text in fit.warnings), fit.warnings)

    def test_points_that_no_device_could_make_are_warned_of(self) -> None:
        fit = calibrate([row({"tpot_ms": 80.0}), row({"tpot_ms": 20.0}, concurrency=64)], names=("mbu", "overhead_ms"))
        self.assertTrue(any("not of one server" in text for text in fit.warnings), fit.warnings)

    def test_a_fit_that_says_nothing_is_unusable(self) -> None:
        fit = calibrate([row({"tpot_ms": 8000.0}), row({"tpot_ms": 20.0}, concurrency=64)], names=("mbu",))
        self.assertFalse(fit.usable)


class ClosedForm(unittest.TestCase):
    def test_two_runs_and_an_unqueued_prefill_give_a_start_near_the_answer(self) -> None:
        # On the CPU preset three sequences are beyond the critical batch.
        server = {
            "model": "smollm2-135m-q8_0",
            "hardware": "cpu-4vcpu",
            "mfu": 0.7,
            "mbu": 0.6,
            "step_overhead_s": 3e-3,
        }
        slow, fast = (
            of_run(
                name,
                simulate(**server, concurrency=n, requests=10 * n, prompt_tokens="40-80", output_tokens="100-300"),
                {},
            )
            for name, n in (("slow", 1), ("fast", 12))
        )
        found = roofline_from([fast, slow])
        assert found is not None
        self.assertEqual((found.slow, found.fast), ("slow", "fast"))
        for name, value in (("mfu", 0.7), ("mbu", 0.6), ("overhead_ms", 3.0)):
            self.assertAlmostEqual(getattr(found, name) / value, 1.0, delta=0.3, msg=name)
        fit = calibrate([slow, fast])
        self.assertIn("a closed form of slow and fast", fit.start)
        self.assertAlmostEqual(fit.solution.values["mbu"] / 0.6, 1.0, delta=0.01)

    def test_a_batch_below_the_critical_one_gives_none(self) -> None:
        runs = [of_run("slow", known_run(1, "1500", "40"), {}), of_run("fast", known_run(32, "1000", "100"), {})]
        self.assertIsNone(roofline_from(runs))

    def test_one_run_gives_none(self) -> None:
        self.assertIsNone(roofline_from([of_run("one", known_run(1), {})]))


class MeasuredRuns(Files):
    def test_what_a_server_had_cached_it_did_not_compute(self) -> None:
        run = measured(
            {"sent": 0.0, "times": [1.0, 1.1, 1.2], "prompt": 100, "cached": 60},
            {"sent": 1.2, "times": [2.2, 2.3], "prompt": 80},
        )
        run.config["concurrency"] = 1
        found = of_run("run", run, SERVER)
        self.assertEqual(list(found.workload().requests.prompt_tokens), [40, 80])
        self.assertEqual(found.concurrency, 1)


class BadInput(Files):
    def test_files_that_are_no_measurement_are_refused_by_name(self) -> None:
        for text, complaint in (
            ("", "cannot read"),
            (" \n", "is empty"),
            ("{}", "prompt_tokens is missing"),
            ("[1, 2]", "is no saved run"),
            ("hello\n", "is no saved run"),
            ('{"schema": "servesim.summary/1"}', "has no config"),
            ("prompt_tokens,output_tokens\n10,x\n", "output_tokens"),
            ("prompt_tokens,output_tokens\n10,10\n", "no ttft, tpot or e2e"),
            ("prompt_tokens,output_tokens,tpot_ms\n10,10,-3\n", "must be above 0"),
            ('{"engine": {}}\n{"id": 1}\n', "is no request of an engine log"),
            ('{"engine": {}}\n' + "[" * 100_000, "is no request of an engine log"),
        ):
            with self.subTest(text=text), self.assertRaisesRegex(InputError, complaint):
                read_measurements(self.path("file", text), SERVER)

    def test_a_measurement_that_nobody_names_a_device_for_is_refused(self) -> None:
        with self.assertRaisesRegex(InputError, "which hardware it measured; give --hardware"):
            of_row("row", {"prompt_tokens": 9, "output_tokens": 9, "e2e_s": 1.0, "model": "llama-3.1-8b"}, {})

    def test_two_devices_at_once_are_refused(self) -> None:
        other = of_row("b", {"prompt_tokens": 9, "output_tokens": 9, "e2e_s": 1}, {**SERVER, "hardware": "t4-16gb",
                                                                                   "model": "qwen3-0.6b"})  # fmt: skip
        with self.assertRaisesRegex(InputError, "a fit is of one device"):
            calibrate([row({"tpot_ms": 70.0}), other])

    def test_names_that_are_no_parameter_are_refused(self) -> None:
        for cost_model in ("roofline", "detailed"):
            with self.assertRaisesRegex(InputError, "did you mean 'mfu'"):
                calibrate([row({"tpot_ms": 70.0})], cost_model=cost_model, names=("mfuu",))
        with self.assertRaisesRegex(InputError, "unknown cost model"):
            calibrate([row({"tpot_ms": 70.0})], cost_model="roofing")
        self.assertRaises(InputError, calibrate, [])
        self.assertRaises(InputError, check_figure, "ttft_p42")

    def test_a_run_of_few_requests_has_no_percentiles_to_stand_on(self) -> None:
        self.assertEqual(figures_for(3), ["ttft_mean", "tpot_mean", "e2e_mean"])
        self.assertIn("e2e_p99", figures_for(100))


class TheVerb(Files):
    def test_the_last_line_and_the_file_are_the_fitted_device(self) -> None:
        paths = [self.saved("slow.jsonl", known_run(1)), self.saved("fast.jsonl", known_run(64))]
        said = Verb()(*paths, "-o", self.path("fitted.json"))
        self.assertEqual((said.code, said.err), (0, ""))
        preset = json.loads(said.out.splitlines()[-1])
        self.assertEqual(preset["base"], "l4-24gb")
        self.assert_known(preset)
        fitted = read_hardware(self.path("fitted.json"))
        self.assertAlmostEqual(fitted.mbu, preset["mbu"], 4)
        self.assertIn("mean absolute error", fitted.fitted)
        self.assertTrue(all(len(line) <= 100 for line in said.out.splitlines()[:-1]), said.out)
        again = simulate(**{**SERVER, "hardware": self.path("fitted.json")}, concurrency=64, requests=128,
                         prompt_tokens="300-700", output_tokens="24-40")  # fmt: skip
        self.assertAlmostEqual(again.times[-1] / known_run(64).times[-1], 1.0, delta=0.01)

    def test_the_line_alone_is_a_device_too(self) -> None:
        said = Verb()(self.saved("slow.jsonl", known_run(1)), self.saved("fast.jsonl", known_run(64)),
                      "--cost-model", "detailed", "--fit", "mbu,mfu")  # fmt: skip
        device = read_hardware(self.path("line.json", said.out.splitlines()[-1]))
        assert device.detailed is not None
        self.assertIn("mbu", device.detailed)

    def test_json_has_the_parameters_and_the_points(self) -> None:
        said = Verb()(self.saved("slow.jsonl", known_run(1)), self.saved("fast.jsonl", known_run(64)), "--json")
        document = json.loads(said.out)
        self.assertEqual(document["schema"], "servesim.calibrate/1")
        self.assertEqual([each["name"] for each in document["parameters"]], ["mfu", "mbu", "overhead_ms"])
        self.assertTrue(all(set(point) >= {"label", "figure", "error"} for point in document["points"]))

    def test_an_unusable_fit_is_a_failure_and_writes_no_file(self) -> None:
        table = "prompt_tokens,output_tokens,concurrency,tpot_ms\n100,30,1,8000\n100,30,64,20\n"
        argv = [self.path("t.csv", table), "--hardware", "l4-24gb", "--model", "llama-3.1-8b", "--fit", "mbu"]
        with self.assertRaisesRegex(RunError, "unusable"):
            Verb()(*argv)

    def test_nothing_to_fit_to_is_bad_input(self) -> None:
        self.assertRaises(InputError, Verb())


@needs_data
class RealRuns(unittest.TestCase):
    def test_a_real_vllm_is_replayed_within_two_percent(self) -> None:
        path = os.path.join(os.environ["SERVESIM_DATA"], "vllm-rtx4090-llama-3.1-8b.jsonl")
        (measurement,) = read_measurements(path)
        self.assertEqual(measurement.server.hardware.name, "rtx-4090-24gb")
        self.assertEqual(measurement.server.config.num_blocks, 2587)
        self.assertLess(calibrate([measurement]).mean_error, 0.02)


if __name__ == "__main__":
    unittest.main()
