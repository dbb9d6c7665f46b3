"""GuideLLM's JSON report: benchmarks one after another, each with the records of its requests, times in epoch seconds.

Source: github.com/vllm-project/guidellm, src/guidellm/schemas (0.4 and later: `request_start_time`, `input_metrics`)
and src/guidellm/benchmark/benchmark.py (0.2: `start_time`). What is needed is looked up under each of its names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from servesim.errors import InputError
from servesim.inputs import InputFile
from servesim.workload.traces.fields import Row, token_count
from servesim.workload.traces.format import Rows, TraceFacts, TraceFormat, TraceHead, map_rows
from servesim.workload.traces.json_stream import JsonStream

_PROMPT = ("prompt_tokens", "input_metrics.total_tokens", "input_metrics.text_tokens")
_OUTPUT = ("output_tokens", "output_metrics.total_tokens", "output_metrics.text_tokens")
_START = (
    "request_start_time",
    "start_time",
    "info.timings.request_start",
    "scheduler_info.request_timings.request_start",
)


def _recognises(head: TraceHead) -> bool:
    return "benchmarks" in head.keys or "guidellm_version" in head.keys


def _rows(file: InputFile, facts: TraceFacts) -> Rows:
    facts.time_field, facts.time_unit = "request_start_time", "s"

    def parse(record: Any) -> Row | None:
        output, name = _look_up(record, _OUTPUT)
        output_tokens = token_count(output, name, minimum=0)
        if output_tokens == 0:
            facts.left_out("requests without output (output_tokens is 0)")
            return None
        prompt, name = _look_up(record, _PROMPT)
        start, _ = _look_up(record, _START)
        return {"timestamp": start, "prompt_tokens": token_count(prompt, name), "output_tokens": output_tokens}

    return map_rows(_records(file, facts), parse)


def _records(file: InputFile, facts: TraceFacts) -> Iterator[tuple[int, Any]]:
    """Yield every request that succeeded, of every benchmark of the report."""
    stream = JsonStream(file)
    if not stream.peek():
        return
    benchmarks = 0
    found = False
    for key in stream.members():
        if key != "benchmarks":
            stream.skip()
            continue
        for _ in stream.items():
            benchmarks += 1
            for part in stream.members():
                if part == "requests" and stream.peek() == "{":
                    found = True
                    yield from _successful(stream, facts)
                else:
                    stream.skip()
    stream.end()
    if not found:
        raise InputError(
            f"{file.name}: no benchmark in it has its requests; write the report as JSON, with all requests"
        )
    if benchmarks > 1:
        facts.note(f"the {benchmarks} benchmarks of the report follow each other as they ran")


def _successful(stream: JsonStream, facts: TraceFacts) -> Iterator[tuple[int, Any]]:
    for state in stream.members():
        if stream.peek() != "[":
            stream.skip()
            continue
        for _ in stream.items():
            stream.peek()
            line = stream.line
            record = stream.value()
            if state == "successful":
                yield line, record
            else:
                facts.left_out(f"requests that were {state}")


def _look_up(record: Any, names: tuple[str, ...]) -> tuple[Any, str]:
    """Return the value that `record` has under the first of `names` that it knows, and that name."""
    for name in names:
        value = record
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return value, name
    raise InputError(f"{names[0]} is missing (looked for {', '.join(names)})")


GUIDELLM = TraceFormat(
    summary="GuideLLM's report as JSON: the requests of its benchmarks that succeeded",
    recognises=_recognises,
    rows=_rows,
)
