"""BurstGPT: months of ChatGPT and GPT-4 requests of a campus, in seconds from the midnight of the first day.

Source: github.com/HPMLL/BurstGPT, README. A request that failed has no response tokens; newer files have sessions.
"""

from __future__ import annotations

from servesim.inputs import InputFile, Object
from servesim.workload.traces.fields import Row, cell_time, cell_tokens
from servesim.workload.traces.format import Rows, TraceFacts, TraceFormat, TraceHead, map_rows
from servesim.workload.traces.table import Cells, table_cells

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
OPTIONAL = ("Log Type", "Session ID")


def _recognises(head: TraceHead) -> bool:
    return bool(head.columns & {"requesttokens", "responsetokens"})


def _rows(file: InputFile, facts: TraceFacts) -> Rows:
    facts.time_field, facts.time_unit = "Timestamp", "s"

    def parse(cells: Cells) -> Row | None:
        at, prompt, output, kind, session = cells
        output_tokens = cell_tokens(output, "Response tokens", minimum=0)
        if output_tokens == 0:
            facts.left_out("failed requests (Response tokens is 0)")
            return None
        row: Object = {
            "timestamp": cell_time(at),
            "prompt_tokens": cell_tokens(prompt, "Request tokens"),
            "output_tokens": output_tokens,
        }
        if kind:
            row["class"] = kind
        if session:
            row["session"] = session
        return row

    return map_rows(table_cells(file, COLUMNS, OPTIONAL), parse)


BURSTGPT = TraceFormat(
    summary="BurstGPT CSV: Timestamp, Request tokens, Response tokens; failed requests are left out and counted",
    recognises=_recognises,
    rows=_rows,
)
