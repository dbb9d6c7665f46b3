"""Where a verb's result goes: stdout, or a file opened before the work."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from servesim import __version__
from servesim.console import OutputFile


class Result:
    """The one place that a verb writes its result to."""

    def __init__(self, file: OutputFile | None) -> None:
        self._file = file

    def text(self, text: str) -> None:
        if self._file is not None:
            self._file.write(text)
        else:
            sys.stdout.write(text)

    def document(self, name: str, command: str, config: dict[str, Any], partial: bool, body: dict[str, Any]) -> None:
        """Write a JSON document: what it is, what made it, from which configuration, and `body`."""
        head = {
            "schema": f"servesim.{name}/1",
            "servesim": __version__,
            "command": command,
            "config": config,
            "partial": partial,
        }
        self.text(json.dumps({**head, **body}, indent=1, allow_nan=False) + "\n")


@contextmanager
def result_to(path: str | None) -> Iterator[Result]:
    """Give the `Result` that goes to `path` (None: stdout); a file appears whole at the end or not at all."""
    if path is None:
        yield Result(None)
        return
    with OutputFile(path) as file:
        yield Result(file)
        file.commit()
