"""A run that servesim saved (`--save`), taken as a trace: its requests again, at the times they were sent.

Of the kinds of lines (`runs.writer`) only requests matter here; those of the warm-up are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from servesim.errors import InputError
from servesim.inputs import InputFile, Object
from servesim.workload.requests import OPEN_END, TRAITS
from servesim.workload.traces.fields import Row, tokens_of
from servesim.workload.traces.format import Rows, TraceFacts, TraceFormat, TraceHead, map_rows
from servesim.workload.traces.jsonl import parse_json_line

_REQUEST = '{"kind":"request"'
_COPIED = ("id", *(column.key for column in TRAITS if column.key != "content"))


def _recognises(head: TraceHead) -> bool:
    return head.first.get("kind") == "header" and str(head.first.get("schema")).startswith("servesim.run/")


def _rows(file: InputFile, facts: TraceFacts) -> Rows:
    facts.time_field, facts.time_unit = "sent_s", "s"
    measured = False

    def parse(record: Object) -> Row | None:
        nonlocal measured
        if record.get("kind") != "request":
            measured = measured or record.get("source") == "measured"
            return None
        row = _row(record, measured)
        if row is None:
            facts.left_out("requests that were never sent")
        return row

    return map_rows(_lines(file, facts), parse)


def _lines(file: InputFile, facts: TraceFacts) -> Iterator[tuple[int, Object | InputError]]:
    """Yield the header and the requests; a last line that was cut is no mistake of anybody's."""
    for line, text in file.lines():
        if isinstance(text, InputError):
            yield line, text
        elif line == 1 or text.startswith(_REQUEST):
            try:
                record = parse_json_line(text)
            except InputError as error:
                if not text.endswith("\n"):
                    facts.note(f"the file was cut in line {line}; the requests behind the cut are lost")
                    return
                yield line, error
                continue
            yield line, record


def _row(record: Object, measured: bool) -> Row | None:
    sent_s = record.get("sent_s")
    if sent_s is None:
        return None
    prompt_tokens = tokens_of(record, "asked_prompt_tokens")
    output_tokens = tokens_of(record, "asked_output_tokens")
    if measured and record.get("outcome") == "completed":  # what the server counted, and where it stopped
        prompt_tokens = max(prompt_tokens, tokens_of(record, "prompt_tokens", minimum=0))
        output_tokens = tokens_of(record, "output_tokens", minimum=0) or output_tokens
    row: Object = {"timestamp": sent_s, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    for key in _COPIED:
        if record.get(key) is not None:
            row[key] = record[key]
    content = record.get("content")
    if isinstance(content, list):
        row["content"] = [
            [segment[0], None if segment[1] == OPEN_END else segment[1]]
            if isinstance(segment, list) and len(segment) == 2
            else segment
            for segment in content
        ]
    elif "session" in row:
        row["content"] = []  # nothing is shared that the run did not say
    return row


SAVED_RUN = TraceFormat(
    summary="a run that servesim saved (--save): its requests again, at the times they were sent",
    recognises=_recognises,
    rows=_rows,
)
