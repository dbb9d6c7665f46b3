"""`servesim trace`: what it says of a trace, and that what it writes is the trace that was asked for."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import sys
import tempfile
import threading
import unittest
from collections import Counter
from pathlib import Path
from unittest import mock

from servesim.config.workload import WorkloadSpec, build_workload
from servesim.workload.requests import OPEN_END, Requests
from servesim.workload.reshape import at_rate, at_speed, sample, window
from servesim.workload.traces.describe import pace_of, sharing_of
from servesim.workload.traces.trace import read_trace
from servesim.workload.workload import link_turns
from tests.command import ROOT, servesim

SAMPLES = ROOT / "fixtures" / "traces"
PLAN_WANTS_A_FILE = "a plan reads its trace many times, so not from standard input or a pipe; give a file"


def columns(requests: Requests) -> dict[str, str]:
    return {name: repr(getattr(requests, name)) for name in Requests.__slots__}


def requests_of(**options: object) -> Requests:
    return build_workload(WorkloadSpec(**options)).requests  # type: ignore[arg-type]


class TraceCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def written(self, *argv: str) -> Requests:
        """Return the requests that `servesim trace ARGV` writes."""
        target = self.folder / "out.jsonl"
        said = servesim("trace", *argv, "-o", str(target), "--quiet")
        self.assertEqual((said.code, said.out, said.err), (0, "", ""))
        return read_trace(str(target), arrivals_required=False).requests

    def figures(self, name: str) -> dict:
        said = servesim("trace", "describe", str(SAMPLES / name), "--json", "--quiet")
        self.assertEqual((said.code, said.err), (0, ""))
        return json.loads(said.out)


class DescribeTest(TraceCase):
    def test_the_block_says_what_is_in_the_trace(self) -> None:
        said = servesim("trace", "describe", str(ROOT / "fixtures" / "burst.jsonl"))
        self.assertEqual(
            said.out.splitlines(),
            [
                "trace        burst.jsonl   format servesim",
                "requests     48",
                "span         2.57 s   18.65 requests/s   times read as relative s",
                "peaks        20 in a second   48 in a minute   2 at one instant",
                "burstiness   gaps vary by 1.15 of their mean (Poisson: 1)   like --burstiness 0.76",
                "tokens       64,135 prompt   11,883 output",
                "lengths            mean       min       p50       p90       p95       p99       max",
                "prompt          1,336.1     1,149     1,324     1,476     1,483     1,515     1,515",
                "output            247.6        78       266       333       342       348       348",
                "shared       73.4% of prompt tokens (47.1k), in 46 requests, were in an earlier one as well",
            ],
        )
        self.assertIn("note: burst.jsonl: servesim, 48 requests over 2.57 s (relative s), 18.6 requests/s", said.err)

    def test_the_document_has_the_same_figures_by_name(self) -> None:
        document = self.figures("bailian.jsonl")
        self.assertEqual((document["schema"], document["command"]), ("servesim.trace/1", "trace"))
        self.assertEqual((document["format"], document["requests"], document["skipped"]), ("bailian", 5, 0))
        self.assertEqual(document["pace"]["span_s"], 59.75)
        self.assertEqual(document["pace"]["times"], "relative s")
        self.assertEqual(document["sessions"]["count"], 3)
        self.assertEqual(document["sessions"]["turns"]["max"], 3)
        self.assertEqual(document["classes"], {"text": 4, "search": 1})
        self.assertEqual(
            document["sharing"], {"shared_tokens": 16 + 32 + 64 + 64, "fraction": 176 / 309, "requests": 4}
        )

    def test_what_is_unknown_is_null_and_said(self) -> None:
        document = self.figures("sharegpt.json")
        self.assertIsNone(document["pace"])
        self.assertIsNone(self.figures("azure-2023.csv")["sharing"])
        out = servesim("trace", "describe", str(SAMPLES / "sharegpt.json"), "--quiet").out
        self.assertIn("no times in it: replay it with --concurrency, or give it some with trace scale --rate", out)

    def test_every_sample_is_described_within_100_columns(self) -> None:
        for path in sorted(SAMPLES.iterdir()):
            if path.suffix != ".md":
                with self.subTest(path=path.name):
                    said = servesim("trace", "describe", str(path), "--quiet")
                    self.assertEqual((said.code, said.err), (0, ""))
                    self.assertLessEqual(max(map(len, said.out.splitlines())), 100)

    def test_standard_input_is_described(self) -> None:
        data = (SAMPLES / "burstgpt.csv").read_bytes()
        with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(data))):
            said = servesim("trace", "describe", "-", "--quiet")
        self.assertTrue(said.out.startswith("trace        stdin   format burstgpt\n"))

    def test_poisson_arrivals_are_like_burstiness_1_and_gamma_ones_like_their_own(self) -> None:
        for burstiness in (0.25, 1.0, 4.0):
            pace = pace_of(requests_of(rate=5.0, burstiness=burstiness, requests=20_000).arrival_s)
            assert pace is not None and pace.burstiness is not None and pace.requests_per_s is not None
            with self.subTest(burstiness=burstiness):
                self.assertAlmostEqual(pace.burstiness / burstiness, 1.0, delta=0.1)
                self.assertAlmostEqual(pace.requests_per_s, 5.0, delta=0.25)

    def test_shared_tokens_are_those_that_an_earlier_request_had_in_the_same_place(self) -> None:
        """Against token by token: a prompt is the list of (stream, place) it consists of, unknown ones its own."""
        for seed in range(200):
            rng = random.Random(seed)
            requests = Requests()
            requests.content = []
            seen: set[tuple] = set()
            expected = sharers = 0
            for index in range(rng.randint(1, 12)):
                begins = (0, 3, 7)[: rng.randint(0, 3)]  # a stream begins at the same token wherever it occurs
                ends = (*begins[1:], rng.choice((OPEN_END, *range(8, 12))))
                content = [(rng.choice((0, 1)) + 2 * begin, end) for begin, end in zip(begins, ends, strict=False)]
                prompt, output = rng.randint(max([end for _, end in content if end != OPEN_END] or [1]), 14), 3
                tokens = []
                for place in range(prompt + output):
                    stream = next((stream for stream, end in content if place < end), None)
                    tokens.append(("own", index, place) if stream is None else (stream, place))
                shared = 0
                while shared < prompt and tuple(tokens[: shared + 1]) in seen:
                    shared += 1
                seen |= {tuple(tokens[: place + 1]) for place in range(prompt + output)}
                expected, sharers = expected + shared, sharers + (shared > 0)
                requests.prompt_tokens.append(prompt)
                requests.output_tokens.append(output)
                requests.arrival_s.append(float(index))
                requests.content.append(tuple(content))
            sharing = sharing_of(requests)
            with self.subTest(seed=seed):
                assert sharing is not None
                self.assertEqual((sharing.shared_tokens, sharing.requests), (expected, sharers))


class WritingTest(TraceCase):
    def test_what_is_converted_reads_back_equal_whatever_its_format(self) -> None:
        for path in sorted(SAMPLES.iterdir()):
            if path.suffix != ".md":
                with self.subTest(path=path.name):
                    before = read_trace(str(path), arrivals_required=False).requests
                    self.assertEqual(columns(self.written("convert", str(path))), columns(before))

    def test_the_trace_goes_to_stdout_where_no_file_is_named(self) -> None:
        said = servesim("trace", "convert", str(SAMPLES / "azure-2024.csv"), "--quiet")
        self.assertEqual(said.out.splitlines()[0], '{"arrival_s": 0.0, "prompt_tokens": 2162, "output_tokens": 5}')

    def test_a_speed_divides_arrivals(self) -> None:
        for action in ("convert", "scale"):
            requests = self.written(action, str(SAMPLES / "burstgpt.csv"), "--speed", "2")
            self.assertEqual(list(requests.arrival_s), [2.5, 22.5, 59.25])

    def test_a_rate_stretches_arrivals_to_it(self) -> None:
        requests = self.written("scale", str(ROOT / "fixtures" / "burst.jsonl"), "--rate", "3")
        pace = pace_of(requests.arrival_s)
        assert pace is not None and pace.requests_per_s is not None
        self.assertAlmostEqual(pace.requests_per_s, 3.0)

    def test_a_trace_without_times_is_given_a_poisson_process_of_sessions(self) -> None:
        requests = self.written("scale", str(SAMPLES / "sharegpt.json"), "--rate", "4")
        self.assertEqual([at == at for at in requests.arrival_s], [True, False, True, True])
        self.assertEqual(
            columns(requests), columns(self.written("scale", str(SAMPLES / "sharegpt.json"), "--rate", "4"))
        )

    def test_a_window_is_cut_and_begins_at_0(self) -> None:
        requests = self.written("sample", str(SAMPLES / "burstgpt.csv"), "--from", "40s", "--to", "100s")
        self.assertEqual((list(requests.arrival_s), list(requests.prompt_tokens)), ([5.0], [1087]))

    def test_the_first_rows_are_cut(self) -> None:
        self.assertEqual(len(self.written("sample", str(SAMPLES / "azure-2023.csv"), "--first", "2")), 2)

    def test_a_sample_has_whole_sessions_and_the_same_ones_for_the_same_seed(self) -> None:
        requests = requests_of(rate=3.0, requests=400, turns="1-5", think_s=1.0, shared_prefix_tokens=64, prefixes=3)
        before = Counter(requests.sessions or ())
        picked = sample(requests, 100, seed=5)
        self.assertTrue(100 <= len(picked) < 105)
        for name, turns in Counter(picked.sessions or ()).items():
            self.assertEqual(turns, before[name])
        self.assertEqual(columns(sample(requests, 100, seed=5)), columns(picked))
        self.assertNotEqual(columns(sample(requests, 100, seed=6)), columns(picked))
        self.assertEqual(columns(sample(requests, 10**6, seed=5)), columns(requests))

    def test_a_window_over_everything_and_a_speed_of_1_change_nothing(self) -> None:
        requests = requests_of(rate=3.0, requests=50, turns="1-3", shared_prefix_tokens=64)
        self.assertEqual(columns(window(requests)), columns(requests))
        self.assertEqual(columns(at_speed(requests, 1.0)), columns(requests))

    def test_a_turn_whose_first_turn_is_cut_off_keeps_its_place(self) -> None:
        requests = read_trace(str(SAMPLES / "bailian.jsonl")).requests
        self.assertEqual(list(window(requests, 30.0).arrival_s), [0.5, 1.0, 30.0])
        firsts, _ = link_turns(window(requests, 30.0))
        self.assertEqual(firsts, [0, 1])

    def test_a_rate_counts_requests_and_keeps_the_shape(self) -> None:
        requests = requests_of(rate=3.0, requests=500, burstiness=0.5)
        before, after = pace_of(requests.arrival_s), pace_of(at_rate(requests, 9.0, 7).arrival_s)
        assert before is not None and after is not None and before.gap_variation is not None
        self.assertAlmostEqual(after.requests_per_s or 0.0, 9.0)
        self.assertAlmostEqual(after.gap_variation or 0.0, before.gap_variation, places=9)


class ReplayTest(TraceCase):
    def test_sweep_reads_standard_input_for_every_row(self) -> None:
        path = SAMPLES / "mooncake.jsonl"
        argv = ("sweep", "--concurrency", "1,2", "--json")
        with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes()))):
            piped = servesim(*argv, "--trace", "-")
        self.assertEqual(piped.code, 0)
        self.assertIn("note: stdin: mooncake, 4 requests", piped.err)
        document, expected = json.loads(piped.out), json.loads(servesim(*argv, "--trace", str(path)).out)
        self.assertEqual((document["rows"], document["config"]["trace"]), (expected["rows"], "-"))

    def test_a_pipe_is_read_for_every_row_too_but_not_for_a_plan(self) -> None:
        pipe, packed = self.folder / "pipe", gzip.compress((SAMPLES / "mooncake.jsonl").read_bytes())
        os.mkfifo(pipe)
        writer = threading.Thread(target=lambda: pipe.write_bytes(packed))
        writer.start()
        said = servesim("sweep", "--concurrency", "1,2", "--json", "--trace", str(pipe))
        writer.join()
        self.assertIn("note: pipe: mooncake, 4 requests", said.err)
        self.assertEqual([row["requests"]["completed"] for row in json.loads(said.out)["rows"]], [4, 4])
        said = servesim("plan", "--slo", "ttft_p95=1s", "--trace", str(pipe))
        self.assertEqual((said.code, said.err), (2, "error: " + PLAN_WANTS_A_FILE + "\n"))

    def test_a_saved_run_is_its_own_configuration_and_its_own_trace(self) -> None:
        run, first, again = (str(self.folder / name) for name in ("run.jsonl", "first.json", "again.json"))
        load = ("--rate", "3", "--requests", "50", "--hardware", "l4-24gb", "--prefix-caching")
        self.assertEqual(servesim("simulate", *load, "--save", run, "--json", "-o", first).code, 0)
        self.assertEqual(servesim("simulate", "--config", run, "--trace", run, "--json", "-o", again).code, 0)
        before, after = (json.loads(Path(name).read_text()) for name in (first, again))
        self.assertEqual({**before, "config": None}, {**after, "config": None})


class RefusalTest(TraceCase):
    def test_what_cannot_be_done_is_one_line_and_exit_2(self) -> None:
        burst = str(ROOT / "fixtures" / "burst.jsonl")
        talk = str(SAMPLES / "sharegpt.json")
        for argv, message in (
            ((), "say what to do: servesim trace describe|convert|sample|scale|rates FILE"),
            (("descibe", burst), "unknown action 'descibe'; did you mean 'describe'?"),
            (("describe",), "name the trace: servesim trace describe FILE, or - for standard input"),
            (("describe", burst, "--rate", "3"), "--rate belongs to trace scale, not to describe"),
            (("convert", burst, "--json"), "--json belongs to trace describe, not to convert"),
            (("convert", burst, "--first", "3"), "--first belongs to trace sample, not to convert"),
            (("scale", burst), "trace scale takes one of --speed X and --rate R"),
            (("scale", burst, "--speed", "2", "--rate", "2"), "trace scale takes one of --speed X and --rate R"),
            (("scale", burst, "--speed", "0"), "--speed is '0', must be above 0"),
            (("scale", burst, "--rate", "nan"), "--rate is 'nan', must be a finite number such as 0.9 or 25"),
            (("sample", burst), "trace sample takes at least one of --from, --to, --first and --requests"),
            (("sample", burst, "--from", "3s", "--to", "2s"), "--from is not before --to"),
            (("sample", burst, "--from", "9s"), "no request arrives at 9 s or later; the last one does at 3.497 s"),
            (
                ("sample", talk, "--to", "9s"),
                "the trace has no arrival times, so that there is no window of time to cut out",
            ),
            (("describe", "/no/such"), "cannot read trace '/no/such': no such file or directory"),
            (
                ("describe", burst, "more"),
                "unexpected argument 'more'; every value follows its option, see servesim trace --help",
            ),
            (("describe", burst, "--trace-format", "azur"), "unknown trace format 'azur'; did you mean 'azure'?"),
        ):
            with self.subTest(argv=argv):
                said = servesim("trace", *argv, "--quiet")
                self.assertEqual((said.code, said.out, said.err), (2, "", f"error: {message}\n"))

    def test_a_curve_of_too_many_rows_is_refused_before_anything_is_written(self) -> None:
        sample = "fixtures/traces/azure-2023.csv"
        for every in ("1ns", "1us"):
            said = servesim("trace", "rates", sample, "--every", every, "--quiet")
            self.assertEqual((said.code, said.out), (2, ""))
            self.assertIn("s comes to more than 1,000,000 rows", said.err)
        timeless = servesim("trace", "rates", "fixtures/traces/sharegpt.json", "--every", "1s", "--quiet")
        self.assertEqual((timeless.code, timeless.out), (2, ""))

    def test_standard_input_that_was_read_is_not_read_again(self) -> None:
        with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(b""))):
            sys.stdin.close()
            said = servesim("trace", "describe", "-")
        self.assertEqual(said.code, 2)
        self.assertIn("cannot read a trace from standard input", said.err)

    def test_a_result_that_cannot_be_written_is_exit_1(self) -> None:
        said = servesim("trace", "convert", str(SAMPLES / "mooncake.jsonl"), "-o", str(self.folder / "no" / "x"))
        self.assertEqual(said.code, 1)
        self.assertIn("cannot write", said.err)

    def test_nothing_is_written_where_a_row_is_bad(self) -> None:
        path = self.folder / "bad.csv"
        path.write_text((SAMPLES / "burstgpt.csv").read_text() + "x\n")
        target = self.folder / "out.jsonl"
        said = servesim("trace", "convert", str(path), "-o", str(target), "--quiet")
        self.assertEqual(said.code, 2)
        self.assertEqual(said.err, "error: bad.csv:6: the row has 1 fields, must have 6 as the header has\n")
        self.assertEqual([path.name for path in self.folder.iterdir()], ["bad.csv"])
        self.assertEqual(len(self.written("convert", str(path), "--skip-bad-rows")), 3)


if __name__ == "__main__":
    unittest.main()
