"""The way in: verbs, help, one exit point for errors, and output that cannot be written."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from importlib import import_module
from multiprocessing import active_children
from pathlib import Path
from typing import Any
from unittest import mock

from servesim import __version__
from servesim.cli.main import VERBS
from servesim.config.server import ServerSpec
from servesim.config.workload import WorkloadSpec
from servesim.engine.simulate import Watch
from servesim.fleet.build import Deployment
from servesim.fleet.simulate import run_deployment
from servesim.plan.sweep import Cell, cells_run
from servesim.runs.records import Run
from tests.command import ROOT, in_shell, servesim
from tests.extent import EXTENT
from tests.serve_case import PATIENCE_S


@contextlib.contextmanager
def pressed(times: int) -> Iterator[None]:
    """Press Ctrl-C so many times at the first moment at which a run is watched."""

    def press(deployment: Deployment, spec: WorkloadSpec, *, watch: Watch, **options: Any) -> Run:
        def watch_and_press(over: int) -> bool:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
            return watch(over)

        return run_deployment(deployment, spec, watch=watch_and_press, **options)

    with mock.patch("servesim.cli.simulate.run_deployment", press):
        yield


class Verbs(unittest.TestCase):
    def test_help_begins_with_examples_everywhere(self) -> None:
        for argv in ((), *((verb,) for verb in VERBS)):
            with self.subTest(argv=argv):
                said = servesim(*argv, "--help")
                self.assertEqual((said.code, said.err), (0, ""))
                self.assertTrue(said.out.startswith("examples:\n  servesim "), said.out[:40])

    def test_help_shows_what_people_use_and_help_all_the_rest(self) -> None:
        for verb in VERBS:
            parser = import_module(f"servesim.cli.{verb}").build_parser()
            some, everything = servesim(verb, "--help").out, servesim(verb, "--help-all").out
            with self.subTest(verb):
                self.assertLessEqual(len(re.findall(r"^  --", some, re.MULTILINE)), 24)
                for option in parser.options.values():
                    self.assertIn(f"  {option.flag}", everything)
                    if option.common:
                        self.assertIn(f"  {option.flag}", some)
                self.assertEqual(some != everything, f"servesim {verb} --help-all\n" in some)

    def test_servesim_alone_prints_the_help_and_exits_2(self) -> None:
        said = servesim()
        self.assertEqual((said.code, said.out, said.err), (2, servesim("--help").out, ""))

    def test_no_verb_writes_over_a_file_that_it_reads(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run, trace, table = (os.path.join(folder, name) for name in ("run.jsonl", "trace.jsonl", "table.csv"))
            self.assertEqual(servesim("simulate", "--requests", "2", "--save", run, "--quiet").code, 0)
            shutil.copy(ROOT / "fixtures" / "burst.jsonl", trace)
            shutil.copy(ROOT / "fixtures" / "m4-pro.csv", table)
            other = os.path.join(folder, ".", "run.jsonl")
            for argv in (
                ("report", run, "-o", other),
                ("compare", run, run, "-o", run),
                ("diagnose", run, "-o", run),
                ("trace", "convert", trace, "-o", trace),
                ("simulate", "--trace", trace, "--save", trace),
                ("simulate", "--config", run, "-o", run),
                ("calibrate", table, "-o", table),
            ):
                with self.subTest(argv=argv[:2]):
                    before = [Path(path).read_bytes() for path in (run, trace, table)]
                    said = servesim(*argv)
                    self.assertEqual((said.code, said.out), (2, ""))
                    self.assertRegex(said.err, "^error: --(output|save) is .*, which is read; give the result a file")
                    self.assertEqual([Path(path).read_bytes() for path in (run, trace, table)], before)

    def test_help_says_how_values_are_written_and_breaks_no_word(self) -> None:
        for verb in ("simulate", "serve", "trace", "watch"):
            said = servesim(verb, "--help-all").out
            with self.subTest(verb):
                self.assertIn("\nvalues:\n", said)
                self.assertEqual("  TIME  with its unit: 250ms" in said, " TIME" in said.partition("values:")[0])
                self.assertNotRegex(said, r"/[a-z]+\n +[a-z]+=")

    def test_every_example_of_every_help_parses(self) -> None:
        for verb in VERBS:
            module = import_module(f"servesim.cli.{verb}")
            for example in module.EXAMPLES:
                words = re.findall(r"'[^']*'|\S+", example)
                with self.subTest(example=example):
                    words = words[words.index("servesim") :]
                    self.assertEqual(words[1], verb)
                    if "|" not in words and ">" not in words:
                        module.build_parser().read([word.strip("'") for word in words[2:]])

    def test_examples_run_anywhere(self) -> None:
        lines = {
            example
            for verb in ("simulate", "sweep", "trace")
            for example in import_module(f"servesim.cli.{verb}").EXAMPLES
            if {"burst", "mixed"} & set(example.split())
        }
        self.assertGreaterEqual(len(lines), 5)
        with tempfile.TemporaryDirectory() as folder:
            for line in sorted(lines):
                if "mixed" in line and EXTENT != "full":
                    continue
                with self.subTest(line):
                    said = in_shell(line, Path(folder), PYTHONPATH=str(ROOT))
                    self.assertIn(said.code, (0, 1), said.err)
                    self.assertTrue(said.out)

    def test_an_option_means_the_same_wherever_it_appears(self) -> None:
        seen: dict[str, tuple[str, object]] = {}
        for verb in ("capacity", "simulate", "sweep"):
            for group in import_module(f"servesim.cli.{verb}").build_parser().groups:
                for option in group.options:
                    self.assertEqual(seen.setdefault(option.flag, (option.key, option.check))[0], option.key)

    def test_the_version_is_told(self) -> None:
        self.assertEqual(servesim("--version").out, f"servesim {__version__}\n")

    def test_an_unknown_verb_or_option_gets_the_nearest(self) -> None:
        self.assertIn("did you mean 'simulate'?", servesim("simulat").err)
        self.assertIn("did you mean '--concurrency'?", servesim("simulate", "--concurency", "4").err)

    def test_an_abbreviated_option_is_refused(self) -> None:
        self.assertEqual(servesim("simulate", "--conc", "4").code, 2)

    def test_python_dash_m_is_the_same_command(self) -> None:
        said = in_shell("python3 -m servesim --version")
        self.assertEqual((said.code, said.out), (0, f"servesim {__version__}\n"))

    def test_capacity_waits_for_nothing_that_it_does_not_need(self) -> None:
        code = (
            "import sys; from servesim.cli.main import main; main(['capacity']);"
            "print(sorted({'random', 'statistics', 'multiprocessing', 'ssl', 'http.client', 'servesim.summary.summary',"
            "'servesim.engine.engine', 'servesim.workload.traces.trace'} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.splitlines()[-1], "[]")


class Output(unittest.TestCase):
    def test_a_broken_pipe_is_quiet(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", "servesim", "capacity"]
        done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, check=False)
        os.close(writer)
        self.assertEqual((done.returncode, done.stderr), (1, b""))

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full here")
    def test_a_full_disk_is_one_line_and_exit_1(self) -> None:
        for command in ("servesim capacity > /dev/full", "servesim capacity -o /dev/full"):
            with self.subTest(command=command):
                said = in_shell(command)
                self.assertEqual(said.code, 1)
                self.assertRegex(said.err, r"\Aerror: cannot write .*: no space left on device\n\Z")

    def test_a_closed_stdout_is_one_line_and_exit_1(self) -> None:
        said = in_shell("servesim capacity >&-")
        self.assertEqual((said.code, said.err), (1, "error: cannot write the result: stdout is closed\n"))

    def test_a_closed_stderr_does_not_disturb_the_result(self) -> None:
        said = in_shell("servesim capacity --hardware l4-24gb 2>&-")
        self.assertEqual(said.code, 0)
        self.assertIn("1,941", said.out)
        self.assertEqual(in_shell("servesim capacity --hardware l5 2>&-").code, 2)

    def test_ctrl_c_reports_what_there_is_marked_partial_and_exits_1(self) -> None:
        with pressed(1):
            said = servesim("simulate", "--json", "--quiet")
        self.assertEqual((said.code, said.err), (1, ""))
        self.assertIn('"partial": true', said.out)

    def test_ctrl_c_twice_stops_at_once(self) -> None:
        with pressed(2):
            said = servesim("simulate", "--json")
        self.assertEqual((said.code, said.out, said.err), (1, "", "error: interrupted\n"))

    def test_ctrl_c_twice_waits_for_no_process_of_a_sweep(self) -> None:
        cells = [Cell(server=ServerSpec(), workload=WorkloadSpec(rate=1.0, requests=10_000_000))] * 2
        with self.assertRaises(KeyboardInterrupt), cells_run(2) as run_all:
            run_all(cells)
            while len(active_children()) < len(cells):  # both are at work
                time.sleep(0.01)
            time.sleep(0.2)
            workers = active_children()
            raise KeyboardInterrupt
        for worker in workers:
            worker.join(PATIENCE_S)
            with self.assertRaises(ProcessLookupError):  # whoever reaped it: here, or who else waits for children
                os.kill(worker.pid or 0, 0)


if __name__ == "__main__":
    unittest.main()
