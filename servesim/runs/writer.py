"""A run as lines of JSON, written while it happens or at its end.

The first line is the header, the last the footer, which says whether the run is whole; every line has a `kind`:

| kind | what |
|---|---|
| `header` | schema, version, command, source, effective config, facts about the server |
| `engine` | what only a simulated engine can count; before the requests, so that a cut file still has it |
| `facts` | what KV tiers did, when replicas came and went, what was paid for; where there is any of it |
| `replica`, `link` | what each engine of a fleet did, what crossed the link; before the requests as well |
| `steps` | a stretch of a simulated run's step log; before the requests, whose tokens are numbers of steps |
| `request`, `warmup` | one request that is over: ids, times in seconds, token counts, outcome, token times |
| `gauge` | the state of the engine at one moment |
| `footer` | whether the run is whole, warnings, broken laws, the client's health, the server's window |

Floats are written so that they read back to the bit: a run that was saved and read has the same summary. A file cut
anywhere reads back up to the cut (`reader`). Requests come in any order and carry their `index`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from typing import IO, Any

from servesim import __version__
from servesim.console import OutputFile, reason
from servesim.errors import RunError
from servesim.runs.as_json import as_json, finite
from servesim.runs.columns import ASKED, KINDS, RARE, RECORDS, REQUIRED, known
from servesim.runs.records import TOTALS_SAID_WHEN_USED, Outcome, Run, StepLog
from servesim.workload.requests import TRAITS

SCHEMA = "servesim.run/1"
STEPS_A_LINE = 1000

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=True).encode


class RunWriter:
    """Writes the lines of one run; open it before the run, so that a path that cannot be written costs nothing.

    `live` flushes every line: a crash, or `kill -9`, loses nothing that was written. Otherwise the file appears whole
    at `close` or not at all. Whatever cannot be written is a `RunError` of one line.
    """

    def __init__(self, path: str, *, live: bool = False) -> None:
        self.path = path
        self.requests = 0
        self._live: IO[str] | None = None
        self._whole: OutputFile | None = None
        self._setup: dict[str, Any] = {}
        if not live:
            self._whole = OutputFile(path)
            return
        try:
            self._live = open(path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115
        except OSError as error:
            raise self._failed(error) from error

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        elif self._whole is not None:
            self._whole.discard()
        elif self._live is not None:
            try:
                self._live.close()
            except OSError:  # a full disk raises at close as well; what went wrong first is on its way
                pass

    def header(self, run: Run, command: str) -> None:
        """Write who ran what, with its effective configuration and the facts about the server known so far."""
        self._setup = dict(run.setup)
        self._line(
            {
                "kind": "header",
                "schema": SCHEMA,
                "servesim": __version__,
                "command": command,
                "source": run.source,
                "config": run.config,
                "setup": self._setup,
            }
        )

    def request(self, run: Run, index: int, *, kind: str = "request", token_times: bool = False) -> None:
        """Write request `index` of `run`, which is over; `token_times` adds the times of a simulated run's tokens."""
        self.requests += kind == "request"
        self._line({"kind": kind, **request_row(run, index, token_times=token_times)})

    def gauges(self, run: Run, start: int = 0) -> None:
        """Write the gauge samples of `run` from number `start` on."""
        for sample in run.gauges[start:]:
            self._line({"kind": "gauge", **asdict(sample)})

    def engine(self, run: Run) -> None:
        """Write the engine's counts and step log, where the run has them."""
        if run.engine is not None:
            totals = asdict(run.engine)
            self._line({"kind": "engine"} | {k: v for k, v in totals.items() if v or k not in TOTALS_SAID_WHEN_USED})
        facts = {"offload": as_json(run.offload), "scaling": as_json(run.scaling), "usage": run.usage}
        if any(facts.values()):
            self._line({"kind": "facts"} | {name: fact for name, fact in facts.items() if fact})
        for replica in run.replicas:
            self._line({"kind": "replica", **asdict(replica)})
        if run.link is not None:
            self._line({"kind": "link", **asdict(run.link)})
        if run.steps is not None:
            for line in _step_lines(run.steps):
                self._line(line)

    def footer(self, run: Run) -> None:
        """Write how the run ended; without a footer a file counts as cut."""
        footer: dict[str, Any] = {
            "kind": "footer",
            "whole": not run.partial,
            "requests": self.requests,
            "warnings": run.warnings,
            "violations": run.violations,
        }
        if run.setup != self._setup:
            footer["setup"] = run.setup
        if run.client is not None:
            footer["client"] = run.client
        if run.server is not None:
            footer["server"] = run.server
        self._line(footer)

    def close(self) -> None:
        """Finish the file."""
        if self._whole is not None:
            self._whole.commit()
        elif self._live is not None:
            try:
                self._live.close()
            except OSError as error:
                raise self._failed(error) from error

    def _line(self, row: dict[str, Any]) -> None:
        try:
            text = _encode(row) + "\n"
        except ValueError:  # a NaN or infinity in facts that somebody else reported
            text = _encode(finite(row)) + "\n"
        if self._whole is not None:
            self._whole.write(text)
        elif self._live is not None:
            try:
                self._live.write(text)
                self._live.flush()
            except OSError as error:
                raise self._failed(error) from error

    def _failed(self, error: OSError) -> RunError:
        return RunError(f"cannot write {self.path}: {reason(error)}")


def write_run(path: str, run: Run, command: str, *, token_times: bool = False) -> None:
    """Write `run` to `path`, whole or not at all. Raises `RunError` if it cannot be written."""
    with RunWriter(path) as writer:
        write_lines(writer, run, command, token_times=token_times)


def write_lines(writer: RunWriter, run: Run, command: str, *, token_times: bool = False) -> None:
    """Write all lines of a run that is over to a `writer` that was opened before it."""
    writer.header(run, command)
    writer.engine(run)
    for index in range(len(run.warmup.records) if run.warmup else 0):
        assert run.warmup is not None
        writer.request(run.warmup, index, kind="warmup", token_times=token_times)
    for index, outcome in enumerate(run.records.outcome):
        if outcome != Outcome.WITHHELD:
            writer.request(run, index, token_times=token_times)
    writer.gauges(run)
    writer.footer(run)


def request_row(run: Run, index: int, *, token_times: bool = False) -> dict[str, Any]:
    """Return request `index` as a JSON object; unknown times are null, what is not worth saying is left out."""
    requests, records = run.requests, run.records
    row: dict[str, Any] = dict.fromkeys(REQUIRED)  # in the order of the line
    row["index"], row["id"] = index, requests.id(index)
    for key, name, write in _RECORDS:
        row[key] = write(run, getattr(records, name)[index])
    for column in ASKED:
        row[column.key] = getattr(requests, column.name)[index]
    for column in RARE:
        values = getattr(records, column.name)
        if values and (column.typecode or index in values):
            value = True if column.kind == "flag" else values[index]
            row[column.key] = KINDS[column.kind].write(run, value)
    arrival_s = known(requests.arrival_s[index])
    if arrival_s != row["planned_s"]:
        row["arrival_s"] = arrival_s
    for column in TRAITS:
        values = getattr(requests, column.name)
        if values is not None and values[index] != column.absent:
            row[column.key] = values[index]
    row.update((name, values[index]) for name, values in run.replica_of.items())
    row.update((name, known(values[index])) for name, values in run.stages.items())
    first, last = records.first[index], records.last[index]
    if run.steps is not None and first >= 0:
        slices = records.slices.get(index, [(first, last)])
        # A first token that was handed over is in no step: it came at `decode_start_s`.
        row["steps"] = [list(slice_) for slice_ in slices if slice_[0] < len(run.steps)]
    if run.steps is None or token_times:
        row["times_s"] = run.token_times(index)
    if records.visible is not None:
        row["visible"] = records.visible[index] - first if records.visible[index] >= 0 else None
    return row


_RECORDS = tuple((column.key, column.name, KINDS[column.kind].write) for column in RECORDS)


def _step_lines(steps: StepLog) -> Iterator[dict[str, Any]]:
    end_s = steps.end_s
    begins = [0, *(step for step in range(1, len(steps)) if end_s[step] < end_s[step - 1])]  # of the next replica
    bounds = [start for begin, after in pairwise([*begins, len(steps)]) for start in range(begin, after, STEPS_A_LINE)]
    for start, stop in pairwise([*bounds, len(steps)]):
        yield {
            "kind": "steps",
            "from": start,
            "end_s": list(steps.end_s[start:stop]),
            "decodes": list(steps.decodes[start:stop]),
            "prefill_tokens": list(steps.prefill_tokens[start:stop]),
            "kv_blocks": list(steps.kv_blocks[start:stop]),
            "starts": [[step, steps.starts[step]] for step in range(start, stop) if step in steps.starts],
        }
