"""AIPerf's `profile_export.jsonl`: one record a request, times in epoch nanoseconds.

Source: github.com/ai-dynamo/aiperf, docs/tutorials/working-with-profile-exports.md. Requests of one user session have
one `x_correlation_id`; those of the warm-up are left out.
"""

from __future__ import annotations

from servesim.errors import InputError
from servesim.inputs import InputFile, Object
from servesim.units import shown
from servesim.workload.traces.fields import Row, token_count
from servesim.workload.traces.format import Rows, TraceFacts, TraceFormat, TraceHead, map_rows
from servesim.workload.traces.jsonl import json_objects

_OUTPUT = ("output_sequence_length", "output_token_count")


def _recognises(head: TraceHead) -> bool:
    return head.keys >= {"metadata", "metrics"} and "benchmarks" not in head.keys


def _rows(file: InputFile, facts: TraceFacts) -> Rows:
    facts.time_field, facts.time_unit = "request_start_ns", "ns"

    def parse(record: Object) -> Row | None:
        metadata = _table(record, "metadata")
        if metadata.get("benchmark_phase") == "warmup":
            facts.left_out("requests of the warm-up")
            return None
        if record.get("error") is not None or metadata.get("was_cancelled"):
            facts.left_out("requests that failed or were cancelled")
            return None
        metrics = _table(record, "metrics")
        output_name = next((name for name in _OUTPUT if name in metrics), _OUTPUT[0])
        output_tokens = token_count(_metric(metrics, output_name), output_name, minimum=0)
        if output_tokens == 0:
            facts.left_out(f"requests without output ({output_name} is 0)")
            return None
        row: Object = {
            "timestamp": metadata.get("request_start_ns"),
            "prompt_tokens": token_count(_metric(metrics, "input_sequence_length"), "input_sequence_length"),
            "output_tokens": output_tokens,
        }
        session, turn = metadata.get("x_correlation_id"), metadata.get("turn_index")
        if session is not None and type(turn) is int:
            row["session"], row["turn"] = session, turn + 1
        return row

    return map_rows(json_objects(file), parse)


def _table(record: Object, field: str) -> Object:
    value = record.get(field)
    if not isinstance(value, dict):
        raise InputError(f"{field} is {shown(value) if field in record else 'missing'}, must be an object")
    return value


def _metric(metrics: Object, name: str) -> object:
    """Return the value of a metric, which stands beside its unit."""
    metric = metrics.get(name)
    if metric is None:
        raise InputError(f"{name} is missing")
    return metric.get("value") if isinstance(metric, dict) else metric


AIPERF = TraceFormat(
    summary="AIPerf's profile_export.jsonl: input and output sequence lengths, request_start_ns, sessions",
    recognises=_recognises,
    rows=_rows,
)
