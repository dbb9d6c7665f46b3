"""The result of `vllm bench serve`: parallel lists, one entry a request, there only with --save-detailed.

Source: vllm/benchmarks/serve.py. Start times, in newer versions, are seconds of a clock with any beginning.
"""

from __future__ import annotations

from typing import Any

from servesim.errors import InputError
from servesim.inputs import InputFile, Object
from servesim.units import shown
from servesim.workload.traces.fields import Row, token_count
from servesim.workload.traces.format import Rows, TraceFacts, TraceFormat, TraceHead, map_rows
from servesim.workload.traces.json_stream import JsonStream

_LISTS = ("input_lens", "output_lens", "start_times", "errors")


def _recognises(head: TraceHead) -> bool:
    return bool(head.keys & {"input_lens", "output_lens", "total_input_tokens"})


def _rows(file: InputFile, facts: TraceFacts) -> Rows:
    facts.time_field, facts.time_unit = "start_times", "s"
    stream = JsonStream(file)
    if not stream.peek():
        return iter(())
    lists = _read_lists(stream)
    for name in ("input_lens", "output_lens"):
        if name not in lists:
            raise InputError(f"{file.name}: {name} is missing; save the result with --save-detailed")
    size = len(lists["input_lens"])
    for name, items in lists.items():
        if len(items) != size:
            raise InputError(f"{file.name}: {name} has {len(items)} entries, input_lens has {size}; is the file whole?")
    starts = lists.get("start_times")
    known = [at for at in starts or () if isinstance(at, (int, float))]
    first_s = min(known, default=0.0)
    if starts is None:
        facts.note("the version of vLLM that wrote it kept no start times")
    errors = lists.get("errors", [None] * size)

    def parse(index: int) -> Row | None:
        output_tokens = token_count(lists["output_lens"][index], f"output_lens[{index}]", minimum=0)
        if errors[index] or output_tokens == 0:
            facts.left_out("failed requests")
            return None
        prompt_tokens = token_count(lists["input_lens"][index], f"input_lens[{index}]")
        row: Object = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
        if starts is not None:
            if not isinstance(starts[index], (int, float)):
                raise InputError(f"start_times[{index}] is {shown(starts[index])}, must be a number")
            row["timestamp"] = starts[index] - first_s
        return row

    return map_rows(((1, index) for index in range(size)), parse)


def _read_lists(stream: JsonStream) -> dict[str, list[Any]]:
    lists = {}
    for key in stream.members():
        if key in _LISTS and stream.peek() == "[":
            lists[key] = stream.array()
        else:
            stream.skip()
    stream.end()
    return {name: items for name, items in lists.items() if items or name in ("input_lens", "output_lens")}


VLLM_BENCH = TraceFormat(
    summary="the result of vllm bench serve --save-detailed: input_lens, output_lens, start_times",
    recognises=_recognises,
    rows=_rows,
)
