"""Where a verb's result goes: stdout, or a file opened before the work."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from servesim.console import OutputFile
from servesim.errors import InputError, RunError
from servesim.units import shown


@contextmanager
def result_to(path: str | None) -> Iterator[Callable[[str], object]]:
    """Give what writes the result: to stdout, or to the file at `path`, whole at the end or not at all."""
    if path is None:
        if sys.stdout is None:
            raise RunError("cannot write the result: stdout is closed")
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # for what the terminal's encoding lacks
        yield sys.stdout.write
        return
    with OutputFile(path) as file:
        yield file.write
        file.commit()


def check_output(values: Mapping[str, Any]) -> None:
    """Refuse a picture in characters inside a JSON document, and two results in one file."""
    if values.get("plot") and values.get("json"):
        raise InputError("--plot draws into the text; leave out --json, or ask servesim report for pictures")
    saved, result = values.get("save"), values.get("output")
    if saved is None or result is None or os.path.realpath(saved) != os.path.realpath(result):
        return
    if os.path.isfile(result) or not os.path.exists(result):  # a terminal or a pipe may have both
        raise InputError(f"--save and --output are both {shown(saved)}; give each a file of its own")


def ascii_only(path: str | None) -> bool:
    """Return whether the result must do without block characters: stdout says that it cannot write them."""
    encoding = getattr(sys.stdout, "encoding", None) if path is None else "utf-8"
    return (encoding or "utf-8").lower().replace("-", "") != "utf8"
