"""The lines of a trace, wherever they lie: a file, a gzip file, standard input. Memory is bounded by one line's limit.

Knows files and text, not what a line means.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

from servesim.errors import InputError

MAX_LINE_BYTES = 4 * 2**20
HEAD_BYTES = 64 * 2**10
PIECE_BYTES = 2**18
STDIN = "-"


@contextmanager
def kept_trace(path: str | None) -> Iterator[str | None]:
    """Give a path that can be read as often as it is wanted: that of a copy, where `path` is standard input or a pipe.

    A path that cannot be opened is given as it is: its reader says what is wrong with it.
    """
    if path is None or (not is_pipe(path) and path != STDIN) or (path == STDIN and sys.stdin is None):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="servesim-") as folder, ExitStack() as stack:
        copy = os.path.join(folder, "stdin" if path == STDIN else os.path.basename(path))
        source = sys.stdin.buffer if path == STDIN else stack.enter_context(open(path, "rb"))
        with open(copy, "wb") as file:
            shutil.copyfileobj(source, file)
        yield copy


def is_pipe(path: str) -> bool:
    """Return whether the file at `path` can be read but once: a FIFO, or a shell's `<(command)`."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode) and os.access(path, os.R_OK)
    except (OSError, ValueError):
        return False


class TraceFile:
    """An open trace: `name` for messages, `head` to recognise its format by, `lines` (or `pieces`) to be read once.

    Raises InputError for a file that cannot be opened or read, in one line that names it.
    """

    def __init__(self, path: str, what: str = "trace") -> None:
        self._what = what
        self.name = "stdin" if path == STDIN else os.path.basename(path) or path
        self._stack = ExitStack()
        if path == STDIN and (sys.stdin is None or sys.stdin.closed or sys.stdin.buffer.closed):
            raise InputError(f"cannot read a {what} from standard input: it is closed, or was read already")
        try:
            binary = self._buffered(sys.stdin.buffer if path == STDIN else open(path, "rb"))  # noqa: SIM115
            if binary.peek(2)[:2] == b"\x1f\x8b":
                binary = self._buffered(gzip.GzipFile(fileobj=binary))
            self._binary = binary
            self.head = binary.peek(HEAD_BYTES)[:HEAD_BYTES].removeprefix(codecs.BOM_UTF8)
        except (OSError, ValueError, EOFError, zlib.error) as error:
            self._stack.close()
            raise self._unreadable(error, path) from None

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def lines(self) -> Iterator[tuple[int, str | InputError]]:
        """Yield (number from 1, text or what is wrong with it) of every line that is not blank.

        A byte-order mark is dropped. Of a line that is too long, no more than the limit is held.
        """
        number = 0
        while raw := self._read():
            number += 1
            if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
                while raw and not raw.endswith(b"\n"):
                    raw = self._read()
                yield number, InputError(f"the line is longer than {MAX_LINE_BYTES // 2**20} MiB")
                continue
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            try:
                text = raw.decode()
            except UnicodeDecodeError as error:
                at = error.start
                yield number, InputError(f"not UTF-8: byte 0x{raw[at]:02x} at column {at + 1}")
                continue
            if text and not text.isspace():
                yield number, text

    def pieces(self) -> Iterator[str]:
        """Yield the text in pieces of a size that suits the reader, instead of its lines."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        first = True
        while True:
            try:
                raw = self._binary.read(PIECE_BYTES)
            except (OSError, EOFError, zlib.error) as error:
                raise self._unreadable(error, self.name) from None
            try:
                text = decoder.decode(raw, final=not raw)
            except UnicodeDecodeError as error:
                raise InputError(f"{self.name}: not UTF-8: byte 0x{error.object[error.start]:02x}") from None
            if first:
                text = text.removeprefix("\ufeff")
                first = False
            if text:
                yield text
            if not raw:
                return

    def _read(self) -> bytes:
        try:
            return self._binary.readline(MAX_LINE_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise self._unreadable(error, self.name) from None

    def _buffered(self, binary: Any) -> io.BufferedReader:
        """Return `binary` with `peek`, and a buffer that suits files of gigabytes; close it at the end."""
        if binary is not sys.stdin.buffer:
            self._stack.enter_context(binary)
        return io.BufferedReader(binary, 2**18)

    def _unreadable(self, error: Exception, path: str) -> InputError:
        reason = getattr(error, "strerror", None) or str(error) or "it is cut short"
        return InputError(f"cannot read {self._what} {path!r}: {_lowered(reason)}")


def _lowered(reason: str) -> str:
    """Return `reason` as it goes on in a sentence; `CRC check failed` stays as it is."""
    return reason if reason[:2].isupper() else reason[:1].lower() + reason[1:]
