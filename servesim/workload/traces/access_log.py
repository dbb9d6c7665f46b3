"""Access logs of OpenAI-style servers and gateways as JSON lines: a `usage` somewhere, a time under some name.

There is no standard: `usage` is that of chat completions or of responses, at the top or in the response, or its
counts stand at the top. Of several times the first of TIMES is taken, which begins with those that mark the start.
"""

from __future__ import annotations

from servesim.errors import InputError
from servesim.inputs import InputFile, Object
from servesim.units import shown
from servesim.workload.traces.fields import Row, token_count
from servesim.workload.traces.format import Rows, TraceFacts, TraceFormat, TraceHead, map_rows
from servesim.workload.traces.jsonl import json_objects

TIMES = (
    "start_time",
    "startTime",
    "request_time",
    "requested_at",
    "started_at",
    "received_at",
    "timestamp",
    "@timestamp",
    "timestamp_ms",
    "ts",
    "time",
    "datetime",
    "created_at",
    "created",
)
_UNITS = {"timestamp_ms": "ms"}
_PROMPT = ("prompt_tokens", "input_tokens")
_OUTPUT = ("completion_tokens", "output_tokens")
_DETAILS = ("prompt_tokens_details", "input_tokens_details")


def _recognises(head: TraceHead) -> bool:
    response = head.first.get("response")
    return (
        "usage" in head.first
        or "completion_tokens" in head.first
        or head.first.keys() >= {"input_tokens", "output_tokens"}
        or (isinstance(response, dict) and "usage" in response)
        or (bool(head.first) and '"usage"' in head.text)  # of a later line, where the first request failed
    )


def _rows(file: InputFile, facts: TraceFacts) -> Rows:
    cached = [0, 0]  # prompt tokens that the server had in its cache, of how many

    def parse(record: Object) -> Row | None:
        if facts.time_field is None:
            _choose_time(record, facts)
        usage = _usage(record)
        if usage is None:
            if "usage" in record or _failed(record):
                facts.left_out("requests without usage (failed, or streamed without include_usage)")
                return None
            raise InputError("usage is missing")
        output_name = next((name for name in _OUTPUT if name in usage), _OUTPUT[0])
        output_tokens = token_count(usage.get(output_name, 0), output_name, minimum=0)
        if output_tokens == 0:
            facts.left_out(f"requests without output ({output_name} is 0 or not there)")
            return None
        prompt_name = next((name for name in _PROMPT if name in usage), None)
        if prompt_name is None:
            raise InputError(f"{_PROMPT[0]} is missing")
        prompt_tokens = token_count(usage[prompt_name], prompt_name)
        cached[0] += min(_cached(usage), prompt_tokens)
        cached[1] += prompt_tokens
        return {
            "timestamp": record.get(facts.time_field or TIMES[0]),
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
        }

    yield from map_rows(json_objects(file), parse)
    if cached[0]:
        facts.note(
            f"the server had {cached[0] / cached[1]:.1%} of the prompt tokens in its cache; the log does not say which"
            " requests shared them, so here nothing is shared"
        )


def _choose_time(record: Object, facts: TraceFacts) -> None:
    given = [name for name in TIMES if record.get(name) is not None]
    if not given:
        raise InputError(f"no time under any name that is known: {', '.join(TIMES)}")
    facts.time_field, facts.time_unit = given[0], _UNITS.get(given[0])
    if len(given) > 1:
        facts.note(f"arrivals are taken from {given[0]}, not from {', '.join(given[1:])}")


def _usage(record: Object) -> Object | None:
    response = record.get("response")
    places = (record.get("usage"), response.get("usage") if isinstance(response, dict) else None)
    for usage in places:
        if isinstance(usage, dict):
            return usage
        if usage is not None:
            raise InputError(f"usage is {shown(usage)}, must be an object")
    return record if any(name in record for name in (*_PROMPT, *_OUTPUT)) else None


def _failed(record: Object) -> bool:
    status = next((record[name] for name in ("status", "status_code") if type(record.get(name)) is int), 200)
    return status >= 400 or record.get("error") is not None


def _cached(usage: Object) -> int:
    for name in _DETAILS:
        details = usage.get(name)
        if isinstance(details, dict) and type(details.get("cached_tokens")) is int:
            return token_count(details["cached_tokens"], "cached_tokens", minimum=0)
    return 0


ACCESS_LOG = TraceFormat(
    summary="OpenAI-style access logs as JSON lines: usage, and a time under one of its names, epoch or ISO 8601",
    recognises=_recognises,
    rows=_rows,
)
