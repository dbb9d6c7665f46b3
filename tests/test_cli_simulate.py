"""`simulate` and `capacity` from the outside: exit codes, what is printed, what is saved, what is refused."""

from __future__ import annotations

import json
import os
import tempfile
import unittest
from pathlib import Path
from typing import Any

from servesim.cli import capacity, simulate, sweep
from servesim.runs.reader import read_run
from tests.command import in_shell, servesim
from tests.extent import EXTENT, once

BURST = ("simulate", "--hardware", "l4-24gb", "--trace", "fixtures/burst.jsonl", "--quiet")
SMALL = ("simulate", "--quiet", "--requests", "8", "--prompt-tokens", "20", "--output-tokens", "5")


def document(*argv: str) -> dict[str, Any]:
    said = servesim(*argv, "--json")
    assert said.code < 2, said.err
    return json.loads(said.out)  # type: ignore[no-any-return]


class ExitCodes(unittest.TestCase):
    def test_a_run_in_which_all_complete_is_0(self) -> None:
        self.assertEqual(servesim(*SMALL).code, 0)

    def test_a_rejected_request_is_1_while_the_others_go_on(self) -> None:
        got = document(*SMALL, "--kv-tokens", "160", "--prompt-tokens", "10-300")
        self.assertGreater(got["requests"]["rejected"], 0)
        self.assertGreater(got["requests"]["completed"], 0)
        self.assertEqual(servesim(*SMALL, "--kv-tokens", "160", "--prompt-tokens", "10-300").code, 1)

    def test_an_objective_that_is_not_met_is_1(self) -> None:
        self.assertEqual(servesim(*SMALL, "--slo", "ttft_p95=1ms").code, 1)
        self.assertEqual(servesim(*SMALL, "--slo", "ttft_p95=10s", "--slo", "e2e=60s").code, 0)

    def test_a_horizon_that_leaves_requests_unfinished_is_0_with_a_warning(self) -> None:
        said = servesim(*SMALL[:1], "--requests", "100", "--rate", "100", "--horizon", "200ms", "--json")
        self.assertEqual(said.code, 0)
        self.assertIn("unfinished", said.err)
        got = json.loads(said.out)["requests"]
        self.assertEqual(got["offered"], got["completed"] + got["unfinished"])

    def test_a_model_that_does_not_fit_is_1_and_nothing_is_written(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.json")
            said = servesim("capacity", "--model", "llama-3.1-70b", "-o", path)
            self.assertEqual((said.code, said.out, os.listdir(folder)), (1, "", []))

    def test_a_server_that_would_not_start_is_1_with_the_plan_and_the_ways_out(self) -> None:
        said = servesim(
            *("capacity", "--hardware", "rtx-3090-24gb", "--reserve-gib", "2.4524", "--max-model-len", "32000")
        )
        self.assertEqual(said.code, 1)
        self.assertIn("1,952", said.out)
        self.assertIn("largest context", said.out)
        self.assertIn("would not start", said.err)


class Printed(unittest.TestCase):
    def test_stdout_is_the_result_and_stderr_the_notes(self) -> None:
        said = servesim(*BURST[:-1])
        self.assertIn("48 completed", said.out)
        self.assertRegex(said.err, r"\Anote: burst.jsonl: servesim, 48 requests .*\n\Z")

    def test_the_effective_limits_are_printed_and_a_moved_one_is_told(self) -> None:
        said = servesim("simulate", "--requests", "2", "--max-num-seqs", "9000")
        self.assertIn("max_num_seqs 9,000   max_num_batched_tokens 9,000", said.out)
        self.assertEqual(said.err, "note: max_num_batched_tokens raised from 8,192 to 9,000\n")

    def test_an_oracle_is_called_one(self) -> None:
        self.assertIn("policy sjf (an oracle)", servesim(*SMALL, "--policy", "sjf").out)

    def test_no_line_is_wider_than_a_terminal(self) -> None:
        for flags in (
            (),
            ("--like-vllm", "--rate", "9", "--slo", "ttft_p95=1s"),
            ("--turns", "3", "--think-time", "1s"),
        ):
            for line in servesim(*SMALL, *flags).out.splitlines():
                self.assertLessEqual(len(line), 110, line)

    def test_json_is_one_document_with_the_promised_names(self) -> None:
        got = document(*SMALL)
        for key in ("schema", "servesim", "command", "config", "partial", "source", "requests", "tokens", "duration_s"):
            self.assertIn(key, got)
        self.assertEqual((got["command"], got["source"], got["partial"]), ("simulate", "simulated", False))
        self.assertNotIn("slo", got)

    def test_what_is_asked_with_o_goes_to_the_file_alone(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.json")
            said = servesim(*SMALL, "--json", "-o", path)
            self.assertEqual((said.code, said.out, os.listdir(folder)), (0, "", ["out.json"]))
            self.assertEqual(Path(path).read_text(), servesim(*SMALL, "--json").out)

    def test_one_requests_time_is_explained_and_adds_up(self) -> None:
        said = servesim(*BURST, "--explain-request", "40")
        self.assertIn("request 40:", said.out)
        for index in range(48):
            told = document(*BURST, "--explain-request", str(index))["explanation"]
            self.assertAlmostEqual(sum(told["phases_ms"].values()), told["e2e_ms"], places=9)

    def test_an_unknown_request_is_bad_input(self) -> None:
        self.assertEqual(servesim(*SMALL, "--explain-request", "99").code, 2)


class Saved(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "run.jsonl")

    def test_a_saved_run_reads_back(self) -> None:
        servesim(*BURST, "--save", self.path)
        run = read_run(self.path)
        self.assertEqual((len(run.records), run.partial), (48, False))

    def test_the_same_command_saves_the_same_bytes_under_any_hash_seed(self) -> None:
        command = "servesim simulate --hardware l4-24gb --trace fixtures/burst.jsonl --prefix-caching --quiet --save"
        saved = []
        for seed in ("0", "1"):
            in_shell(f"{command} '{self.path}'", PYTHONHASHSEED=seed)
            saved.append(Path(self.path).read_bytes())
        self.assertEqual(len(set(saved)), 1)

    def test_more_seats_than_requests_change_no_record(self) -> None:
        saved = []
        for slots in ("256", "512"):
            servesim(*BURST, "--max-num-seqs", slots, "--save", self.path)
            saved.append(Path(self.path).read_text().splitlines()[1:])
        self.assertEqual(saved[0], saved[1])

    def test_what_is_off_or_never_reached_changes_no_record(self) -> None:
        off = "--retries 0 --replicas 1 --router least-kv --spec-tokens 0 --tensor-parallel-size 1 --energy"
        drawn = "--adapters 0 --priorities 1 --prefixes 1"
        never = "--max-num-queued-reqs 1000000 --max-num-queued-tokens 1G --client-timeout 1h --kv-offload 1TB"
        for load, switches in (
            (("--concurrency", "8", "--requests", "64", "--prefix-caching"), (off, drawn, never)),
            (("--rate", "20", "--requests", "64", "--turns", "2", "--shared-prefix-tokens", "64"), (off, drawn)),
            ((*BURST[1:], "--prefix-caching", "--async-scheduling"), (off, never.partition(" --kv-offload")[0])),
        ):
            saved = []
            for flags in ("", *switches):
                said = servesim("simulate", *load, *flags.split(), "--quiet", "--save", self.path)
                self.assertEqual(said.code, 0, said.err)
                lines = map(json.loads, Path(self.path).read_text(encoding="utf-8").splitlines())
                saved.append([line for line in lines if line["kind"] == "request"])
            for flags, records in zip(switches, saved[1:], strict=True):
                with self.subTest(load=load, flags=flags):
                    self.assertEqual(records, saved[0])

    def test_two_results_in_one_file_are_refused(self) -> None:
        said = servesim(*SMALL, "--save", self.path, "-o", os.path.join(os.path.dirname(self.path), ".", "run.jsonl"))
        self.assertEqual(said.code, 2, said.err)
        self.assertIn("--save and --output", said.err)
        self.assertFalse(os.path.exists(self.path))

    def test_nothing_is_saved_of_what_went_wrong(self) -> None:
        self.assertEqual(servesim(*SMALL, "--save", self.path, "--trace", "no-such-file").code, 2)
        self.assertFalse(os.path.exists(self.path))


class BadInput(unittest.TestCase):
    """Every flag with a value, given nonsense: one line, exit 2, nothing on stdout."""

    NONSENSE = ("", " ", "--", "nan", "inf", "-1", "x", "1e999", "0x10", "9" * 400, "1,2,", "٣", "\x1b[2J", "1_000")
    FREE_TEXT = frozenset({"output", "save"})  # any text is a file name

    @once
    def test_every_flag_refuses_nonsense_in_one_line(self) -> None:
        for verb, module in (("capacity", capacity), ("simulate", simulate), ("sweep", sweep)):
            for group in module.build_parser().groups:
                for number, option in enumerate(group.options):
                    if option.check is None or option.key in self.FREE_TEXT:
                        continue
                    for value in self.NONSENSE[number % 3 :: 3] if EXTENT != "full" else self.NONSENSE:
                        with self.subTest(verb=verb, flag=option.flag, value=value[:9]):
                            said = servesim(verb, f"{option.flag}={value}", "--quiet")
                            self.assertEqual((said.code, said.out), (2, ""), said.err)
                            self.assertEqual(said.err.count("\n"), 1, said.err)
                            self.assertLess(len(said.err), 600)

    def test_a_flag_without_its_value_is_refused(self) -> None:
        for flag in ("--requests", "--trace", "--slo"):
            self.assertEqual(servesim("simulate", flag).code, 2)

    def test_loads_that_exclude_each_other_are_refused(self) -> None:
        for flags in (
            ("--rate", "5", "--concurrency", "3"),
            ("--rate", "5", "--trace", "fixtures/burst.jsonl"),
            ("--arrivals", "gamma"),
            ("--speed", "2"),
            ("--think-time", "1s"),
            ("--trace", "fixtures/burst.jsonl", "--prompt-tokens", "5"),
        ):
            with self.subTest(flags=flags):
                said = servesim("simulate", *flags)
                self.assertEqual((said.code, said.out, said.err.count("\n")), (2, "", 1))


if __name__ == "__main__":
    unittest.main()
