"""servesim's own JSONL, whose names every other format is mapped onto."""

from __future__ import annotations

from servesim.workload.formats.format import Rows, TraceFacts, TraceFormat, TraceHead
from servesim.workload.formats.jsonl import json_objects
from servesim.workload.trace_file import TraceFile


def _recognises(head: TraceHead) -> bool:
    keys = head.first.keys()
    return bool(keys & {"prompt_tokens", "output_tokens"}) and not keys & {"completion_tokens", "input_tokens"}


def _rows(file: TraceFile, facts: TraceFacts) -> Rows:
    return json_objects(file, unique=True)


NATIVE = TraceFormat(
    summary="JSON lines: arrival_s, prompt_tokens, output_tokens; prefixes, hashes, sessions, priorities, classes, "
    "adapters",
    recognises=_recognises,
    rows=_rows,
)
