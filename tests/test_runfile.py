from __future__ import annotations

import errno
import gzip
import json
import math
import os
import random
import tempfile
import unittest
from array import array
from pathlib import Path

from servesim.errors import InputError, RunError
from servesim.runs.columns import LINE
from servesim.runs.reader import read_run, read_saved
from servesim.runs.records import GaugeSample, Outcome, Records, Run
from servesim.runs.writer import RunWriter, write_run
from servesim.summary.slo import parse_slos
from servesim.summary.summary import summarize
from servesim.workload.requests import REQUEST_COLUMNS, Requests
from tests.extent import EXTENT
from tests.runs import measured, random_simulated

SLOS = parse_slos(["ttft_p95=10ms,itl_p99=20ms,e2e=1s"])


def summary_bytes(run: Run) -> str:
    return json.dumps(summarize(run, SLOS).as_dict(), allow_nan=False)


def random_measured(seed: int) -> Run:
    rng = random.Random(seed)
    streams = []
    for _ in range(rng.randint(1, 12)):
        sent, times = rng.random(), []
        for _ in range(rng.randint(0, 9)):
            times.append((times[-1] if times else sent) + rng.choice([0.0, rng.random()]))
        stream = {
            "sent": sent,
            "planned": sent - rng.random(),
            "times": times,
            "tokens": len(times) * rng.randint(1, 2),
        }
        stream["outcome"] = rng.choice([Outcome.COMPLETED, Outcome.COMPLETED, Outcome.FAILED])
        if stream["outcome"] == Outcome.FAILED:
            stream["reason"] = "stream_cut"
        if rng.random() < 0.3:
            stream["extra"] = {"status": 200, "message": "naïve \n text", "estimated": True}
        if times:
            stream["visible"] = rng.randrange(len(times))
        streams.append(stream)
    return measured(*streams)


class InADirectory(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.path = str(self.folder / "run.jsonl")

    def put(self, *lines: object) -> str:
        text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
        Path(self.path).write_text(text, encoding="utf-8")
        return self.path


class SaveAndRead(InADirectory):
    def test_a_simulated_run_reads_back_to_the_same_summary(self):
        for seed in range(100):
            run = random_simulated(seed)
            run.warnings, run.violations = ["beware"], ["a law"]
            run.gauges = [GaugeSample(0.1, 1, 2, 3, 0.25, 0, 7), GaugeSample(0.2, 1, 2, None, None, 0, 9)]
            write_run(self.path, run, "simulate")
            read = read_run(self.path)
            with self.subTest(seed=seed):
                self.assertEqual(summary_bytes(read), summary_bytes(run))
                self.assertEqual(read.steps, run.steps)
                self.assertEqual((read.engine, read.gauges, read.config), (run.engine, run.gauges, run.config))
                self.assertFalse(read.partial)

    def test_a_measured_run_reads_back_to_the_same_summary_in_whatever_order_it_finished(self):
        for seed in range(100):
            run = random_measured(seed)
            run.client, run.server = {"verdict": "ok"}, {"dialect": "vllm", "kv_mean": 0.5}
            run.setup = {"n_ctx": 4096}
            order = list(range(len(run.records)))
            random.Random(seed).shuffle(order)
            with RunWriter(self.path, live=True) as writer:
                writer.header(run, "loadgen")
                for index in order:
                    writer.request(run, index)
                writer.footer(run)
            read = read_run(self.path)
            with self.subTest(seed=seed):
                self.assertEqual(summary_bytes(read), summary_bytes(run))
                self.assertEqual(read.setup, {"n_ctx": 4096})
                self.assertEqual(
                    [read.token_times(i) for i in range(len(order))], [run.token_times(i) for i in range(len(order))]
                )
                self.assertEqual(read.records.extra, run.records.extra)

    def test_saving_what_was_read_gives_the_same_bytes(self):
        for seed in range(50):
            for run in (random_simulated(seed), random_measured(seed)):
                write_run(self.path, run, "simulate")
                first = Path(self.path).read_bytes()
                if run.records.outcome.count(Outcome.WITHHELD):
                    continue  # never offered, never written: rows close up and ids stand for them
                write_run(self.path, read_run(self.path), "simulate")
                with self.subTest(seed=seed, source=run.source):
                    self.assertEqual(Path(self.path).read_bytes(), first)

    def test_what_a_trace_says_of_a_request_comes_back(self):
        run = measured({"times": [1.0, 2.0], "asked": 9}, {"times": [], "outcome": Outcome.FAILED})
        requests = run.requests
        requests.ids = ["a", "b"]
        requests.content = [(), ((3, 1 << 20), (4, 1 << 21))]
        requests.priority = array("q", [0, -2])
        requests.class_names, requests.sessions = [None, "chat"], ["s", None]
        requests.turns, requests.think_s = array("q", [2, 0]), array("d", [0.5, 0.0])
        run.records.attempts[0] = 3
        requests.arrival_s[0] = 0.75
        write_run(self.path, run, "loadgen")
        read = read_run(self.path)
        for column in REQUEST_COLUMNS:
            self.assertEqual(getattr(read.requests, column.name), getattr(requests, column.name), column.name)
        self.assertEqual(read.records.attempts, {0: 3})
        self.assertEqual(read.records.planned_s[0], 0.0)

    def test_every_column_is_in_a_line(self):
        keys = [column.key for column in LINE]
        self.assertEqual(len(keys), len(set(keys)))
        written = {column.name for column in LINE}
        held = {*Records.__slots__, *Requests.__slots__} - {"abandoned"}  # slices of times that are in no record
        self.assertEqual(held - written, set())

    def test_a_session_that_was_kept_open_ended_comes_back(self):
        run = measured({"times": [1.0]})
        run.requests.content = [((7, 1 << 60),)]
        write_run(self.path, run, "simulate")
        self.assertEqual(read_run(self.path).requests.content, [((7, 1 << 60),)])

    def test_warmup_requests_stay_apart(self):
        run = measured({"times": [1.0]})
        run.warmup = measured({"times": [7.0, 9.0]})
        write_run(self.path, run, "loadgen")
        read = read_run(self.path)
        assert read.warmup is not None
        self.assertEqual((len(read.records), read.warmup.token_times(0)), (1, [7.0, 9.0]))

    def test_a_packed_file_is_read_as_a_plain_one(self):
        run = random_simulated(3)
        write_run(self.path, run, "simulate")
        packed = self.folder / "run.jsonl.gz"
        packed.write_bytes(gzip.compress(Path(self.path).read_bytes()))
        self.assertEqual(summary_bytes(read_run(str(packed))), summary_bytes(run))

    def test_token_times_are_written_when_asked_for(self):
        run = random_simulated(5, outcomes=False)
        write_run(self.path, run, "simulate", token_times=True)
        rows = [json.loads(line) for line in Path(self.path).read_text().splitlines()]
        times = [row["times_s"] for row in rows if row["kind"] == "request"]
        self.assertEqual(times, [run.token_times(i) for i in range(len(run.records))])
        self.assertEqual(summary_bytes(read_run(self.path)), summary_bytes(run))

    def test_the_header_names_schema_version_and_command(self):
        write_run(self.path, measured({"times": [1.0]}), "loadgen")
        saved = read_saved(self.path)
        self.assertEqual((saved.command, saved.whole), ("loadgen", True))
        header = json.loads(Path(self.path).read_text().splitlines()[0])
        self.assertEqual((header["schema"], header["servesim"]), ("servesim.run/1", saved.version))

    def test_a_number_that_json_has_not_becomes_null(self):
        run = measured({"times": [1.0]})
        run.server = {"itl": {"le": math.inf}, "means": (1.0, math.nan)}
        write_run(self.path, run, "loadgen")
        self.assertEqual(read_run(self.path).server, {"itl": {"le": None}, "means": [1.0, None]})


class CutFiles(InADirectory):
    def test_a_file_cut_anywhere_reads_back_up_to_the_cut(self):
        for run in (random_simulated(11, outcomes=False), random_measured(4)):
            write_run(self.path, run, "simulate")
            whole = Path(self.path).read_bytes()
            header = whole.index(b"\n") + 1
            for size in range(header, len(whole) - 1, 7 if EXTENT == "full" else 31):
                Path(self.path).write_bytes(whole[:size])
                saved = read_saved(self.path)
                self.assertFalse(saved.whole)
                self.assertTrue(saved.run.partial)
                self.assertIn("was cut", saved.run.warnings[-1])
                complete = whole[:size].count(b'{"kind":"request"') - (not whole[:size].endswith(b"\n"))
                self.assertIn(len(saved.run.records) - complete, (0, 1))
                self.assertTrue(summarize(saved.run).partial)

    def test_a_file_without_its_last_line_end_is_whole(self):
        run = random_measured(4)
        write_run(self.path, run, "loadgen")
        Path(self.path).write_bytes(Path(self.path).read_bytes()[:-1])
        self.assertTrue(read_saved(self.path).whole)

    def test_a_cut_packed_file_reads_back_up_to_the_cut(self):
        run = random_measured(6)
        write_run(self.path, run, "loadgen")
        packed = gzip.compress(Path(self.path).read_bytes())
        Path(self.path).write_bytes(packed[: len(packed) - 12])
        self.assertTrue(read_run(self.path).partial)

    def test_requests_that_were_in_flight_leave_no_hole(self):
        run = measured({"times": [1.0]}, {"times": [2.0]}, {"times": [3.0]})
        with RunWriter(self.path, live=True) as writer:
            writer.header(run, "loadgen")
            writer.request(run, 2)
            writer.request(run, 0)
        read = read_run(self.path)
        self.assertEqual([read.requests.id(i) for i in range(len(read.records))], ["0", "2"])

    def test_a_live_file_has_every_line_at_once(self):
        run = measured({"times": [1.0]}, {"times": [2.0]})
        with RunWriter(self.path, live=True) as writer:
            writer.header(run, "loadgen")
            writer.request(run, 1)
            self.assertEqual(len(read_run(self.path).records), 1)

    def test_an_interrupted_run_says_so_when_it_is_read(self):
        run = measured({"times": [1.0]})
        run.partial = True
        write_run(self.path, run, "loadgen")
        read = read_run(self.path)
        self.assertTrue(read.partial)
        self.assertEqual(read.warnings, [])


class WritesThatFail(InADirectory):
    def test_a_path_that_cannot_be_written_is_one_line_before_the_run(self):
        for live in (False, True):
            for path in (str(self.folder), str(self.folder / "no" / "run.jsonl")):
                with self.subTest(live=live, path=path), self.assertRaisesRegex(RunError, "cannot write .*") as caught:
                    RunWriter(path, live=live)
                self.assertNotIn("\n", str(caught.exception))

    @unittest.skipUnless(os.path.exists("/dev/full"), "needs /dev/full")
    def test_a_full_disk_is_one_line(self):
        run = random_simulated(1)
        for live in (False, True):
            with (
                self.subTest(live=live),
                self.assertRaises(RunError) as caught,
                RunWriter("/dev/full", live=live) as out,
            ):
                out.header(run, "simulate")
                out.engine(run)
                out.footer(run)
            self.assertIn(os.strerror(errno.ENOSPC).lower(), str(caught.exception))

    def test_a_run_that_breaks_leaves_no_half_file(self):
        with self.assertRaises(ZeroDivisionError), RunWriter(self.path) as writer:
            writer.header(random_simulated(1), "simulate")
            raise ZeroDivisionError
        self.assertEqual(os.listdir(self.folder), [])


HEADER = {
    "kind": "header",
    "schema": "servesim.run/1",
    "servesim": "0.1.0",
    "command": "simulate",
    "source": "measured",
    "config": {},
}
REQUEST = {
    "kind": "request",
    "index": 0,
    "id": "0",
    "outcome": "completed",
    "sent_s": 0.0,
    "prompt_tokens": 1,
    "output_tokens": 2,
    "times_s": [0.5, 1.0],
}


class WrongFiles(InADirectory):
    def refused(self, *lines: object) -> str:
        self.put(*lines)
        with self.assertRaises(InputError) as caught:
            read_run(self.path)
        text = str(caught.exception)
        self.assertNotIn("\n", text)
        return text

    def test_a_good_file_is_the_base_of_the_bad_ones(self):
        self.assertEqual(read_run(self.put(HEADER, REQUEST)).token_times(0), [0.5, 1.0])

    def test_a_wrong_field_is_named_with_file_and_line(self):
        for change, part in (
            ({"sent_s": "x"}, "sent_s is 'x'"),
            ({"sent_s": True}, "sent_s is True"),
            ({"sent_s": 10**400}, "sent_s is a whole number"),
            ({"prompt_tokens": -1}, "prompt_tokens is -1"),
            ({"prompt_tokens": 1.5}, "prompt_tokens is 1.5"),
            ({"output_tokens": None}, "output_tokens is None"),
            ({"outcome": "complete"}, "did you mean 'completed'?"),
            ({"index": "0"}, "index is '0'"),
            ({"id": 5}, "id is 5"),
            ({"times_s": [1.0, 0.5]}, "times_s falls"),
            ({"times_s": [1.0, None]}, "times_s is"),
            ({"times_s": 3}, "times_s is 3"),
            ({"steps": [[0, 1]]}, "steps ends at step 1"),
            ({"steps": [[1, 0]]}, "steps is [[1, 0]]"),
            ({"steps": []}, "steps is []"),
            ({"visible": 2}, "visible is 2"),
            ({"capped": 1}, "capped is 1"),
            ({"extra": []}, "extra is []"),
            ({"reason": 3}, "reason is 3"),
            ({"attempts": 0}, "attempts is 0"),
            ({"preempted": [[1]]}, "preempted is [[1]]"),
            ({"content": [[1.5, 2]]}, "content is [[1.5, 2]]"),
            ({"think_s": None}, "think_s is None"),
            ({"kind": "reqest"}, "kind is 'reqest'"),
        ):
            with self.subTest(change=change):
                text = self.refused(HEADER, {**REQUEST, **change})
                self.assertIn(f"{self.path}:2: ", text)
                self.assertIn(part, text)

    def test_what_is_no_saved_run_is_refused(self):
        for lines, part in (
            ((), "no header"),
            (("\n",), "not valid JSON"),
            (("[1]\n",), "must be a JSON object"),
            (({"arrival_s": 0, "prompt_tokens": 3},), "no header of a saved run"),
            (({**HEADER, "schema": "servesim.run/2"},), "this version of servesim reads servesim.run/1"),
            (({**HEADER, "source": None},), "source is None"),
            ((HEADER, HEADER), "kind is 'header'"),
            ((HEADER, REQUEST, REQUEST), "index 0 is there twice"),
            ((HEADER, "{,}\n", REQUEST), "not valid JSON"),
            ((HEADER, '{"a": NaN}\n'), "not valid JSON"),
            ((HEADER, "[" * 100_000 + "\n"), "not valid JSON"),
            ((HEADER, {"kind": "footer", "requests": 1}), "requests is 1, must be 0"),
            ((HEADER, {"kind": "footer", "requests": 0}, REQUEST), "the run ended"),
            ((HEADER, {"kind": "steps", "from": 5}), "from is 5, must be 0"),
            ((HEADER, {"kind": "gauge", "at_s": None}), "at_s is None"),
        ):
            with self.subTest(part=part):
                self.assertIn(part, self.refused(*lines))

    def test_a_file_that_cannot_be_read_is_one_line(self):
        for path in (str(self.folder), str(self.folder / "none.jsonl")):
            with self.assertRaisesRegex(InputError, "cannot read"):
                read_run(path)

    def test_bytes_that_are_no_utf8_are_named(self):
        Path(self.path).write_bytes(json.dumps(HEADER).encode() + b"\n\xff\xfe\n")
        with self.assertRaisesRegex(InputError, ":2: not valid UTF-8"):
            read_run(self.path)


if __name__ == "__main__":
    unittest.main()
