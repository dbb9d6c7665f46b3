"""What a person sees beside the result: notes, warnings, one progress line; and where results go.

stdout is the result and nothing else; everything here goes to stderr. Knows nothing of what is being run.
"""

from __future__ import annotations

import os
import sys
import time
from typing import IO, TextIO

from servesim.errors import RunError

REDRAW_S = 0.1  # a progress line drawn more often than this is only flicker and cost


def is_terminal(stream: TextIO) -> bool:
    """Return whether a person looks at `stream`, and it can redraw a line."""
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


def wants_colour(stream: TextIO) -> bool:
    """Return whether `stream` takes colour: a terminal, unless `NO_COLOR` is set (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def one_line(text: str) -> str:
    """Return `text` on one line with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else " " if c in "\n\t" else repr(c)[1:-1] for c in text)


class Console:
    """The person's side channel. A quiet one shows errors only."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.quiet = quiet
        self.stream: TextIO | None = sys.stderr if stream is None else stream

    def _say(self, label: str, colour: str, text: str) -> None:
        if self.stream is None:  # started with stderr closed
            return
        if wants_colour(self.stream):
            label = f"\x1b[{colour}m{label}\x1b[0m"
        print(f"{label}: {one_line(text)}", file=self.stream, flush=True)

    def error(self, text: str) -> None:
        self._say("error", "31", text)

    def warn(self, text: str) -> None:
        """Say what may make the result useless, and the remedy."""
        if not self.quiet:
            self._say("warning", "33", text)

    def note(self, text: str) -> None:
        """Say what was understood or decided without being asked."""
        if not self.quiet:
            self._say("note", "36", text)

    def progress(self, what: str, total: int | None) -> Progress:
        """Return a progress line of `total` things (None: unknown); it draws only where a person looks."""
        stream = None if self.quiet or self.stream is None or not is_terminal(self.stream) else self.stream
        return Progress(stream, what, total)


class Progress:
    """One line with count, rate and ETA, redrawn in place and gone at the end."""

    def __init__(self, stream: TextIO | None, what: str, total: int | None) -> None:
        self._stream, self._what, self._total = stream, what, total
        self._start = self._next = time.monotonic()
        self._on_screen = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def update(self, done: int, detail: str = "") -> None:
        """Show that `done` things are done; cheap to call often."""
        if self._stream is None:
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + REDRAW_S
        rate = done / (now - self._start) if now > self._start else 0.0
        line = progress_line(self._what, done, self._total, rate, detail)
        self._stream.write(f"\r{line}\x1b[K")
        self._stream.flush()
        self._on_screen = True

    def clear(self) -> None:
        """Take the line off the screen, so that whatever is printed next starts clean."""
        if self._stream is not None and self._on_screen:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._on_screen = False


def progress_line(what: str, done: int, total: int | None, rate: float, detail: str = "") -> str:
    """Return the text of a progress line; `rate` is things per second.

    >>> progress_line("requests", 500, 2000, 250.0)
    'requests 500/2,000  25%  250/s  ETA 6s'
    """
    parts = [f"{what} {done:,}" + (f"/{total:,}  {100 * done // total}%" if total else "")]
    parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s")
    if total and rate > 0:
        parts.append(f"ETA {(total - done) / rate:,.0f}s")
    return "  ".join([*parts, detail] if detail else parts)


class OutputFile:
    """A file opened before the work and written whole or not at all.

    A regular target is written beside itself and renamed into place by `commit`; what is not a regular file (a pipe,
    a terminal, `/dev/stdout`) is written directly. Raises `RunError` for whatever cannot be opened or written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._direct = os.path.exists(path) and not os.path.isfile(path)
        self._draft = path if self._direct else f"{path}.part"
        if os.path.isdir(path):
            raise RunError(f"cannot write {path}: it is a directory")
        try:
            # A lone half of a surrogate pair, which JSON may hold, is written as its escape.
            self._file: IO[str] = open(  # noqa: SIM115
                self._draft, "w", encoding="utf-8", errors="backslashreplace", newline="\n"
            )
        except OSError as error:
            raise RunError(f"cannot write {path}: {reason(error)}") from error

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._file.closed:
            self.discard()

    def write(self, text: str) -> None:
        try:
            self._file.write(text)
        except OSError as error:
            raise self._failed(error) from error

    def commit(self) -> None:
        """Make what was written the file's content."""
        try:
            self._file.flush()
            self._file.close()
            if not self._direct:
                os.replace(self._draft, self.path)
        except OSError as error:
            raise self._failed(error) from error

    def discard(self) -> None:
        """Leave the target as it was."""
        try:
            self._file.close()
        except OSError:  # a full disk raises at close as well
            pass
        if not self._direct and os.path.exists(self._draft):
            os.unlink(self._draft)

    def _failed(self, error: OSError) -> RunError:
        self.discard()
        return RunError(f"cannot write {self.path}: {reason(error)}")


def reason(error: OSError) -> str:
    """Return the operating system's reason in lower case: `no such file or directory`."""
    return (error.strerror or str(error)).lower()
