"""Files that are given: recognised by content, unpacked, bounded, and refused in one line."""

from __future__ import annotations

import gzip
import io
import os
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

from servesim import inputs
from servesim.errors import InputError
from servesim.inputs import FileKind, InputFile, is_pipe, open_binary, read_object, read_text, recognise, rereadable

HEADER = '{"kind":"header","schema":"servesim.run/1"}\n'


class Given(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def path(self, content: str | bytes, name: str = "given") -> str:
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)


class Recognition(Given):
    def test_a_file_is_what_its_content_says_packed_or_not(self) -> None:
        for content, kind in (
            (HEADER + '{"kind":"request"}\n', FileKind.RUN),
            ('{\n  "schema": "servesim.summary/1"\n}\n', FileKind.DOCUMENT),
            ('{"schema": "servesim.summary/1"}', FileKind.DOCUMENT),
            ('{"schema": "someone.else/1"}', FileKind.JSON),
            ("[1, 2]\n", FileKind.JSON),
            ('{"arrival_s": 0}\n{"arrival_s": 1}\n', FileKind.LINES),
            ("time,rate\n0,1\n", FileKind.TEXT),
            ("# HELP vllm:requests\n", FileKind.TEXT),
            ("", FileKind.TEXT),
        ):
            for data in (content.encode(), gzip.compress(content.encode())):
                with self.subTest(content=content, packed=data[:2] == b"\x1f\x8b"):
                    self.assertIs(recognise(self.path(data)).kind, kind)

    def test_of_a_saved_run_only_the_first_line_is_read(self) -> None:
        run = recognise(self.path(HEADER.encode() + b"\xff" * 100))
        self.assertEqual((run.text, run.json_object()["kind"]), (HEADER, "header"))

    def test_the_object_of_a_file_is_the_whole_of_it_or_its_first_line(self) -> None:
        self.assertEqual(recognise(self.path('{\n"a": 1}')).json_object(), {"a": 1})
        self.assertEqual(recognise(self.path('{"a": 1}\n{"a": 2}\n')).json_object(), {"a": 1})
        for content, error in (
            ("[1]", "must be a JSON object"),
            ("a,b", "is not JSON"),
            ('{"a": NaN}', "nan is no json number"),
        ):
            with self.subTest(content=content), self.assertRaisesRegex(InputError, error):
                recognise(self.path(content)).json_object()

    def test_a_mark_of_the_byte_order_and_other_ends_of_lines_do_not_matter(self) -> None:
        self.assertEqual(read_text(self.path(b"\xef\xbb\xbfa\r\nb\rc\n")), "a\nb\nc\n")
        self.assertEqual(read_object(self.path(b'\xef\xbb\xbf{"a": 1}')), {"a": 1})


class Refusal(Given):
    def test_what_cannot_be_read_is_one_line_with_its_name(self) -> None:
        packed = gzip.compress(os.urandom(5000).hex().encode())
        for path, error in (
            (str(self.folder), "is a directory"),
            (str(self.folder / "none"), "no such file or directory"),
            ("a\0b", "null"),
            (self.path(packed[:3000], "cut"), "[Cc]ompressed file ended|cut short"),
            (self.path(packed[:2000] + b"\xff" * 500 + packed[2500:], "damaged"), "."),
        ):
            for read in (recognise, read_text, read_object):
                with self.subTest(path=path, read=read.__name__), self.assertRaisesRegex(InputError, error) as raised:
                    read(path)
                self.assertNotIn("\n", str(raised.exception))
        with self.assertRaisesRegex(InputError, "^cannot read /no/such: no such file"), open_binary("/no/such"):
            pass

    def test_a_file_beyond_the_limit_is_refused_however_it_is_packed(self) -> None:
        with mock.patch.object(inputs, "MAX_BYTES", 1000):
            for data in (b"x" * 1001, gzip.compress(b"x" * 10**6), b"x\n" * 501):
                with self.subTest(size=len(data)), self.assertRaisesRegex(InputError, "is larger than 1,000 bytes"):
                    recognise(self.path(data))
            self.assertEqual(len(recognise(self.path(b"x" * 1000)).text), 1000)

    def test_text_that_is_none_is_refused(self) -> None:
        with self.assertRaisesRegex(InputError, "given: is not UTF-8 text"):
            recognise(self.path(b"\xff\xfe"))


class Streams(Given):
    def test_a_packed_file_that_was_cut_is_an_error_or_ends_there(self) -> None:
        lines = "".join(f"{number} {os.urandom(8).hex()}\n" for number in range(2000))
        cut = self.path(gzip.compress(lines.encode())[:-2000])
        with InputFile(cut, "trace") as file, self.assertRaisesRegex(InputError, "cannot read trace '.*given'"):
            list(file.lines())
        with InputFile(cut, may_be_cut=True) as file:
            found = b""
            while line := file.read_line(100):
                found += line
        self.assertGreater(len(found), 1000)
        self.assertTrue(lines.encode().startswith(found))

    def test_standard_input_is_a_file_that_is_read_once(self) -> None:
        with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 1}'))):
            self.assertEqual(recognise("-").json_object(), {"a": 1})
            with self.assertRaisesRegex(InputError, "cannot read standard input: it is closed, or was read already"):
                recognise("-")

    def test_a_pipe_is_copied_so_that_it_can_be_read_again(self) -> None:
        pipe = str(self.folder / "pipe")
        os.mkfifo(pipe)
        self.assertTrue(is_pipe(pipe))
        writer = threading.Thread(target=Path(pipe).write_bytes, args=(b"once",))
        writer.start()
        with rereadable(pipe) as path:
            assert path is not None
            self.assertEqual([read_text(path), read_text(path)], ["once", "once"])
        writer.join()
        with rereadable("/no/such") as path:
            self.assertEqual(path, "/no/such")


if __name__ == "__main__":
    unittest.main()
