"""Notes, the progress line, and files that are written whole or not at all."""

from __future__ import annotations

import doctest
import io
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from servesim import console
from servesim.console import Console, OutputFile, progress_line
from servesim.errors import RunError


class Terminal(io.StringIO):
    """A stream that says a person looks at it."""

    def isatty(self) -> bool:
        return True


def environment(**values: str) -> mock._patch_dict:
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
    return mock.patch.dict(os.environ, {**kept, "TERM": "xterm", **values}, clear=True)


class SideChannel(unittest.TestCase):
    def test_a_terminal_gets_colour_and_a_pipe_does_not(self) -> None:
        with environment():
            for stream, coloured in ((Terminal(), True), (io.StringIO(), False)):
                Console(stream=stream).warn("half of it is missing")
                self.assertEqual("\x1b[" in stream.getvalue(), coloured)
                self.assertIn("half of it is missing", stream.getvalue())

    def test_no_color_and_a_dumb_terminal_get_no_colour(self) -> None:
        for values in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            with environment(**values):
                stream = Terminal()
                Console(stream=stream).error("no")
                self.assertEqual(stream.getvalue(), "error: no\n")

    def test_an_error_stays_on_one_line_and_moves_no_cursor(self) -> None:
        stream = io.StringIO()
        Console(stream=stream).error("unknown model 'a\nb\x1b[2Jc'")
        self.assertEqual(stream.getvalue(), "error: unknown model 'a b\\x1b[2Jc'\n")

    def test_quiet_keeps_errors_only(self) -> None:
        stream = Terminal()
        quiet = Console(quiet=True, stream=stream)
        quiet.note("a")
        quiet.warn("b")
        with quiet.progress("requests", 10) as progress:
            progress.update(5)
        self.assertEqual(stream.getvalue(), "")
        quiet.error("c")
        self.assertIn("c", stream.getvalue())

    def test_progress_is_drawn_on_a_terminal_and_gone_at_the_end(self) -> None:
        with environment():
            stream = Terminal()
            with Console(stream=stream).progress("requests", 10) as progress:
                progress.update(5)
            self.assertIn("requests 5/10", stream.getvalue())
            self.assertTrue(stream.getvalue().endswith("\r\x1b[K"))
            piped = io.StringIO()
            with Console(stream=piped).progress("requests", 10) as progress:
                progress.update(5)
            self.assertEqual(piped.getvalue(), "")

    def test_progress_has_count_rate_and_eta(self) -> None:
        self.assertEqual(progress_line("rows", 1, 5, 0.5), "rows 1/5  20%  0.5/s  ETA 8s")
        self.assertEqual(progress_line("requests", 1200, None, 100.0), "requests 1,200  100/s")

    def test_the_docstrings_are_true(self) -> None:
        self.assertEqual(doctest.testmod(console).failed, 0)


class Output(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.path = self.folder / "result.json"

    def test_a_file_appears_whole_at_commit(self) -> None:
        with OutputFile(str(self.path)) as file:
            file.write("new\n")
            self.assertFalse(self.path.exists())
            file.commit()
        self.assertEqual(self.path.read_text(), "new\n")
        self.assertEqual(os.listdir(self.folder), ["result.json"])

    def test_what_fails_half_way_leaves_the_old_file_and_no_draft(self) -> None:
        self.path.write_text("old\n")
        with self.assertRaises(ValueError), OutputFile(str(self.path)) as file:
            file.write("half")
            raise ValueError
        self.assertEqual(self.path.read_text(), "old\n")
        self.assertEqual(os.listdir(self.folder), ["result.json"])

    def test_what_cannot_be_opened_is_a_run_error_that_names_it(self) -> None:
        for path, why in ((self.folder, "it is a directory"), (self.folder / "no" / "x", "no such file or directory")):
            with self.assertRaisesRegex(RunError, f"cannot write .*: {why}"):
                OutputFile(str(path))

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full here")
    def test_a_full_disk_is_a_run_error(self) -> None:
        with self.assertRaisesRegex(RunError, "no space left on device"), OutputFile("/dev/full") as file:
            file.write("x" * 100_000)
            file.commit()


if __name__ == "__main__":
    unittest.main()
