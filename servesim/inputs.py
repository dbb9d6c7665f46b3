"""The files that a user gives: opened, bounded, unpacked and recognised in one place, with one line for what is wrong.

A path, or `-` for standard input; gzip is seen by its content. A file is streamed (`InputFile`) or read whole
(`read_text`, `read_object`, `recognise`) within `MAX_BYTES`. What a file is follows from what is in it (`FileKind`).
Knows no room: what a saved run, a document or a table means is left to the caller.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType
from typing import Any, BinaryIO

from servesim.console import reason
from servesim.errors import InputError
from servesim.units import MIB, refuse_constant

STDIN = "-"
MAX_BYTES = 256 * MIB  # of a file that is read whole, unpacked
MAX_CONFIG_BYTES = 16 * MIB  # of one that describes a single thing: a model, a device, a fleet
MAX_LINE_BYTES = 4 * MIB  # of a line of `InputFile.lines`
HEAD_BYTES = 64 * 2**10
PIECE_BYTES = 2**18

Object = dict[str, Any]  # any JSON object


class FileKind(Enum):
    """What a file is, by its content."""

    RUN = auto()  # a saved run: a JSON object on the first line that says `"kind": "header"`
    DOCUMENT = auto()  # one JSON object with `"schema": "servesim..."`
    JSON = auto()  # any other JSON value
    LINES = auto()  # a JSON object on the first line, and more below it
    TEXT = auto()  # a table, a metric page, or nothing that is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A file that was recognised. Of a saved run only the first line was read, of anything else all of it."""

    path: str
    kind: FileKind
    text: str
    first: Object | None  # the JSON object on the first line, None where there is none
    value: Any  # the whole text as JSON, None where it is none
    fault: str  # why the text is no JSON

    def json_object(self) -> Object:
        """Return the JSON object that the file is, or begins with; raise `InputError` where there is none."""
        if self.first is not None:
            return self.first
        if self.fault:
            raise InputError(f"{self.path}: is not JSON: {self.fault}")
        if not isinstance(self.value, dict):
            raise InputError(f"{self.path}: must be a JSON object")
        return self.value


def recognise(path: str) -> Contents:
    """Return what the file at `path` is; raise `InputError` for one that cannot be read, is too large or no text."""
    with InputFile(path) as file:
        line = file.read_line(MAX_BYTES)
        head = _text_of(path, line)
        found, fault = _json_of(head)
        first = found if isinstance(found, dict) else None
        if first is not None and first.get("kind") == "header":
            return Contents(path=path, kind=FileKind.RUN, text=head, first=first, value=None, fault="")
        rest = file.read(MAX_BYTES + 1 - len(line))
    text = _checked_text(path, line + rest, MAX_BYTES)
    value, fault = _json_of(text) if rest else (found, fault)
    if fault:
        kind = FileKind.TEXT if first is None else FileKind.LINES
    else:
        is_ours = isinstance(value, dict) and str(value.get("schema", "")).startswith("servesim.")
        kind = FileKind.DOCUMENT if is_ours else FileKind.JSON
    return Contents(path=path, kind=kind, text=text, first=first, value=value, fault=fault)


def read_text(path: str, *, limit_bytes: int = MAX_BYTES) -> str:
    """Return the text in the file at `path`, its lines ended by a newline and without a byte-order mark."""
    with InputFile(path) as file:
        return _checked_text(path, file.read(limit_bytes + 1), limit_bytes)


def read_object(path: str, *, limit_bytes: int = MAX_BYTES) -> Object:
    """Return the JSON object that the file at `path` is."""
    return parse_object(read_text(path, limit_bytes=limit_bytes), path)


def parse_object(text: str | bytes, path: str) -> Object:
    """Return the JSON object that `text` is; `path` is what an error calls it."""
    value, fault = _json_of(text if isinstance(text, str) else _text_of(path, text))
    if fault:
        raise InputError(f"{path}: is not JSON: {fault}")
    if not isinstance(value, dict):
        raise InputError(f"{path}: must be a JSON object")
    return value


def is_gguf(path: str) -> bool:
    """Return whether the file at `path` begins as a GGUF file does, whatever its name."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"GGUF"
    except (OSError, ValueError):
        return False


@contextmanager
def open_binary(path: str) -> Iterator[BinaryIO]:
    """Open a file for a reader that seeks in it; what the system refuses is an `InputError`."""
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise InputError(f"cannot read {path}: {reason(error)}") from error


def _text_of(path: str, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text") from error
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _checked_text(path: str, data: bytes, limit_bytes: int) -> str:
    if len(data) > limit_bytes:
        raise InputError(f"{path}: is larger than {limit_bytes:,} bytes")
    return _text_of(path, data)


def _json_of(text: str) -> tuple[Any, str]:
    """Return the JSON value of `text` and "", or None and what is wrong with it."""
    try:
        return json.loads(text, parse_constant=refuse_constant), ""
    except (ValueError, RecursionError) as error:
        return None, str(error)[:80].lower()


@contextmanager
def rereadable(path: str | None) -> Iterator[str | None]:
    """Give a path that can be read as often as it is wanted: that of a copy, where `path` is standard input or a pipe.

    A path that cannot be opened is given as it is: its reader says what is wrong with it.
    """
    if path is None or (not is_pipe(path) and path != STDIN) or (path == STDIN and sys.stdin is None):
        yield path
        return
    import shutil
    import tempfile  # with `random` and two compressors in its wake, which no start needs

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


class InputFile:
    """An open file: `name` for messages, `head` to recognise it by; then read once, by lines, by pieces or by bytes.

    `what` is what an error calls it, such as a trace. A gzip stream that was cut is an error, or, with `may_be_cut`,
    ends there. Raises `InputError` for a file that cannot be opened or read, in one line that names it.
    """

    def __init__(self, path: str, what: str = "", *, may_be_cut: bool = False) -> None:
        self.name = "stdin" if path == STDIN else os.path.basename(path) or path
        self._path, self._what, self._may_be_cut = path, what, may_be_cut
        self._stack = ExitStack()
        if path == STDIN and (sys.stdin is None or sys.stdin.closed or sys.stdin.buffer.closed):
            named = f"a {what} from standard input" if what else "standard input"
            raise InputError(f"cannot read {named}: it is closed, or was read already")
        try:
            binary = self._buffered(sys.stdin.buffer if path == STDIN else open(path, "rb"))  # noqa: SIM115
            if binary.peek(2)[:2] == b"\x1f\x8b":
                binary = self._buffered(_Unpacked(binary))
            self._binary = binary
            self.head = self._peek(HEAD_BYTES).removeprefix(codecs.BOM_UTF8)
        except _UNREADABLE as error:
            self._stack.close()
            raise self._unreadable(error) from None

    def __enter__(self) -> InputFile:
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
        while raw := self.read_line(MAX_LINE_BYTES):
            number += 1
            if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
                while raw and not raw.endswith(b"\n"):
                    raw = self.read_line(MAX_LINE_BYTES)
                yield number, InputError(f"the line is longer than {MAX_LINE_BYTES // MIB} MiB")
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
            raw = self.read(PIECE_BYTES)
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

    def read(self, limit_bytes: int) -> bytes:
        """Return what comes next, `limit_bytes` of it at most."""
        try:
            return self._binary.read(limit_bytes)
        except _UNREADABLE as error:
            raise self._unreadable(error) from None

    def read_line(self, limit_bytes: int) -> bytes:
        """Return the rest of the line, `limit_bytes` of it at most; nothing at the end."""
        try:
            return self._binary.readline(limit_bytes)
        except _UNREADABLE as error:
            if self._may_be_cut and isinstance(error, EOFError):
                return b""
            raise self._unreadable(error) from None

    def _peek(self, count: int) -> bytes:
        try:
            return self._binary.peek(count)[:count]
        except EOFError:
            if self._may_be_cut:
                return b""
            raise

    def _buffered(self, binary: Any) -> io.BufferedReader:
        """Return `binary` with `peek`, and a buffer that suits files of gigabytes; close it at the end."""
        if binary is not sys.stdin.buffer:
            self._stack.enter_context(binary)
        return io.BufferedReader(binary, 2**18)

    def _unreadable(self, error: Exception) -> InputError:
        named = f"{self._what} {self._path!r}" if self._what else self._path
        return InputError(f"cannot read {named}: {_cause(error)}")


_UNREADABLE = (OSError, ValueError, EOFError, zlib.error)


class _Unpacked(io.RawIOBase):
    """A gzip stream, which gives all that it has before it raises what is wrong with it."""

    def __init__(self, packed: io.BufferedReader) -> None:
        import gzip  # which most starts do without

        self._gzip = gzip.GzipFile(fileobj=packed)
        self._fault: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        filled = 0
        try:
            while filled < len(buffer) and self._fault is None and (data := self._gzip.read1(len(buffer) - filled)):
                buffer[filled : filled + len(data)] = data
                filled += len(data)
        except _UNREADABLE as error:
            self._fault = error
        if self._fault is not None and not filled:
            raise self._fault
        return filled


def _cause(error: Exception) -> str:
    """Return the reason of `error` as it goes on in a sentence; `CRC check failed` stays as it is."""
    text = getattr(error, "strerror", None) or str(error) or "it is cut short"
    return text if text[:2].isupper() else text[:1].lower() + text[1:]
