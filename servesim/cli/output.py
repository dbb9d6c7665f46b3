"""Where a verb's result goes: stdout, or a file opened before the work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from servesim.console import OutputFile
from servesim.errors import RunError


@contextmanager
def result_to(path: str | None) -> Iterator[Callable[[str], object]]:
    """Give what writes the result: to stdout, or to the file at `path`, whole at the end or not at all."""
    if path is None:
        if sys.stdout is None:
            raise RunError("cannot write the result: stdout is closed")
        yield sys.stdout.write
        return
    with OutputFile(path) as file:
        yield file.write
        file.commit()
