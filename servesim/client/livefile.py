"""A measured run's file, written while the run goes on: a crash or `kill -9` loses nothing that had finished.

A disk that fills up does not end the measurement: the file stops there, the run goes on to its report, and the error is
told at the end.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

from servesim.errors import RunError
from servesim.records import Records, Run
from servesim.runfile import RunWriter
from servesim.workload.requests import Requests


def path_beside(path: str, label: str) -> str:
    """Return the path of one of several runs: `label` goes before the last suffix.

    >>> path_beside("out/run.jsonl", "concurrency-8")
    'out/run.concurrency-8.jsonl'
    """
    whole = Path(path)
    return str(whole.with_name(f"{whole.stem}.{label}{whole.suffix}"))


class LiveFile:
    """Writes one run as it happens. `error` is the first failure to write, None while all is well."""

    def __init__(self, path: str) -> None:
        self.error: RunError | None = None
        self._writer = RunWriter(path, live=True)

    def begin(self, config: dict[str, Any], setup: dict[str, Any], warmup: Run | None) -> None:
        """Write the header and the warm-up, before the first request is sent."""
        try:
            self._writer.header(Run("measured", Requests(), Records(0), array("d"), config, setup=setup), "loadgen")
            for index in range(0 if warmup is None else len(warmup.records)):
                assert warmup is not None
                self._writer.request(warmup, index, kind="warmup")
        except RunError as error:
            self.error = self.error or error

    def request(self, run: Run, index: int) -> None:
        """Write a request that is over."""
        if self.error is None:
            try:
                self._writer.request(run, index)
            except RunError as error:
                self.error = error

    def written_elsewhere(self, count: int) -> None:
        """Count requests that forked processes wrote into the same file."""
        self._writer.requests += count

    def end(self, run: Run) -> None:
        """Write what is known only now, and close the file."""
        try:
            if self.error is None:
                self._writer.gauges(run)
                self._writer.footer(run)
            self._writer.close()
        except RunError as error:
            self.error = self.error or error

    def abandon(self) -> None:
        """Close the file as it is: it reads back as cut."""
        try:
            self._writer.close()
        except RunError as error:
            self.error = self.error or error
