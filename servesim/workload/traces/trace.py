"""Trace files: recognised by content, read as a stream into request columns, written so that they read back equal.

`TRACE_FORMATS` is the one place where a format is added; each is a file beside this one. What rows say together is
`rows`' business.
"""

from __future__ import annotations

import gc
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from servesim.errors import InputError
from servesim.inputs import InputFile, Object
from servesim.units import format_duration, suggest
from servesim.workload.requests import OPEN_END, TRAITS, Content, Requests, of_session, trait
from servesim.workload.traces.access_log import ACCESS_LOG
from servesim.workload.traces.aiperf import AIPERF
from servesim.workload.traces.azure import AZURE
from servesim.workload.traces.burstgpt import BURSTGPT
from servesim.workload.traces.fields import TIME_UNITS
from servesim.workload.traces.format import TraceFacts, TraceFormat, TraceHead
from servesim.workload.traces.guidellm import GUIDELLM
from servesim.workload.traces.hashed import BAILIAN, MOONCAKE
from servesim.workload.traces.jsonl import NATIVE
from servesim.workload.traces.rows import TraceRows
from servesim.workload.traces.saved_run import SAVED_RUN
from servesim.workload.traces.sharegpt import SHAREGPT
from servesim.workload.traces.vllm_bench import VLLM_BENCH

_DOCUMENT = re.compile(r'"schema":\s*"servesim\.(\w+)/')


@dataclass(slots=True, frozen=True, kw_only=True)
class Trace:
    """A trace as it was understood. `notes` are sentences for the person who gave it."""

    name: str
    format: str
    requests: Requests
    times: str | None  # how arrival times were read, such as "epoch ms"; None: there were none
    span_s: float  # from the first arrival to the last
    skipped: int  # bad rows left out
    notes: tuple[str, ...]

    def describe(self) -> str:
        """Return one line that says what was understood, so that a wrong unit is seen at once."""
        count = len(self.requests)
        text = f"{self.name}: {self.format}, {count:,} requests"
        if self.times is not None:
            text += f" over {format_duration(self.span_s)} ({self.times})"
            if self.span_s > 0:
                text += f", {count / self.span_s:.3g} requests/s"
        return text


EXAMPLES = {
    "burst": "the Monday incident: 48 requests within 3 s, each behind one of two long system prompts",
    "mixed": "long prompts among short chats: 400 requests, one in four a document of 8,000 tokens",
}
"""Traces that ship with servesim, by the name that stands for one wherever a trace is named."""


def example_path(path: str) -> str:
    """Return the file of the example that `path` names, or `path`: a file of that name comes first."""
    if path not in EXAMPLES or os.path.exists(path):
        return path
    return os.path.join(os.path.dirname(__file__), "examples", f"{path}.jsonl")


TRACE_FORMATS: dict[str, TraceFormat] = {
    "servesim": NATIVE,
    "servesim-run": SAVED_RUN,
    "azure": AZURE,
    "burstgpt": BURSTGPT,
    "bailian": BAILIAN,
    "mooncake": MOONCAKE,
    "sharegpt": SHAREGPT,
    "vllm-bench": VLLM_BENCH,
    "guidellm": GUIDELLM,
    "aiperf": AIPERF,
    "access-log": ACCESS_LOG,
}


def read_trace(
    path: str,
    *,
    trace_format: str | None = None,
    time_unit: str | None = None,
    skip_bad_rows: bool = False,
    arrivals_required: bool = True,
    limit: int | None = None,
) -> Trace:
    """Read the trace at `path`, or its first `limit` rows.

    `path` is a file, gzip or plain, `-` for standard input, or a key of EXAMPLES.

    `trace_format` is a key of TRACE_FORMATS, None to recognise it; `time_unit` one of TIME_UNITS. With `skip_bad_rows`
    malformed rows are counted instead of refused. Raises InputError naming file, line and field.
    """
    if trace_format is not None and trace_format not in TRACE_FORMATS:
        raise suggest("trace format", trace_format, TRACE_FORMATS)
    if time_unit is not None and time_unit not in TIME_UNITS:
        raise suggest("time unit", time_unit, TIME_UNITS)
    with InputFile(example_path(path), "trace") as file:
        name = trace_format or _recognise(file)
        facts = TraceFacts()
        rows = TraceRows(time_unit=time_unit, arrivals_required=arrivals_required, facts=facts)
        skipped = 0
        first_error = None
        add = rows.add
        for line, row in islice(TRACE_FORMATS[name].rows(file, facts), limit):
            try:
                if isinstance(row, InputError):
                    raise row
                add(line, row)
            except InputError as error:
                first_error = first_error or InputError(f"{file.name}:{line}: {error}")
                if not skip_bad_rows:
                    raise first_error from None
                skipped += 1
    if not rows:
        raise first_error or InputError("; ".join([f"{file.name}: no requests in it", *facts.notes]))
    try:
        with _uncollected():
            requests = rows.finish()
    except InputError as error:
        raise InputError(f"{file.name}:{error}") from None
    notes = [f"{file.name}: {note}" for note in (*facts.notes, *rows.notes)]
    if skipped:
        notes.append(f"{skipped} bad rows skipped, the first: {first_error}")
    known = [at for at in requests.arrival_s if not math.isnan(at)]
    return Trace(
        name=file.name,
        format=name,
        requests=requests,
        times=rows.clock.understood if rows.clock else None,
        span_s=max(known) - min(known) if known else 0.0,
        skipped=skipped,
        notes=tuple(notes),
    )


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the collector of cycles from looking again and again at millions of new tuples, which are in none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def trace_lines(requests: Requests) -> Iterator[str]:
    """Yield the lines of `requests` as servesim JSONL; `read_trace` gives back equal columns.

    Sharing is written as `prefix` where every request shares one closed head at most, else as `content`.
    """
    contents, arrival_s = requests.content, requests.arrival_s
    only_heads = requests.sessions is None and (
        contents is None or all(len(content) <= 1 and not _is_open(content) for content in contents)
    )
    for index in range(len(requests)):
        content: Content = () if contents is None else contents[index]
        row: Object = {}
        if requests.ids is not None:
            row["id"] = requests.ids[index]
        if not math.isnan(arrival_s[index]):
            row["arrival_s"] = arrival_s[index]
        row["prompt_tokens"], row["output_tokens"] = requests.prompt_tokens[index], requests.output_tokens[index]
        if only_heads and content:
            ((stream, row["prefix_tokens"]),) = content
            row["prefix"] = f"prefix-{stream}"
        elif content or (requests.sessions is not None and requests.sessions[index] is not None):
            row["content"] = [[stream, None if end == OPEN_END else end] for stream, end in content]
        for column in _WRITTEN:
            value = trait(requests, column, index)
            if value != column.absent:
                row[column.key] = value
        yield json.dumps(row) + "\n"


_WRITTEN = sorted((each for each in TRAITS if each.key != "content"), key=lambda each: not of_session(each))


def _is_open(content: Content) -> bool:
    return bool(content) and content[-1][1] == OPEN_END


def _recognise(file: InputFile) -> str:
    if not file.head.strip():
        raise InputError(f"{file.name}: no requests in it")
    head = TraceHead(file.head)
    for name, candidate in TRACE_FORMATS.items():
        if candidate.recognises(head):
            return name
    document = _DOCUMENT.search(head.text)
    if document:
        raise InputError(
            f"{file.name}: a {document[1]} of a run, which has no requests; save the run itself with --save"
        )
    if head.text.startswith("{"):
        return "servesim"  # whose reader says what is missing
    next(file.pieces(), None)  # which names a byte that is no UTF-8
    raise InputError(
        f"{file.name}: not a trace that is known; say which with --trace-format {', '.join(TRACE_FORMATS)}"
    )
