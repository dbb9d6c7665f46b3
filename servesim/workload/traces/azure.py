"""Azure's LLM inference traces, 2023 (code, conversation) and 2024 (a week): wall-clock times and two counts.

Source: github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and AzureLLMInferenceDataset2024.md. Times
have seven decimals, in 2023 without a zone, in 2024 with +00:00.
"""

from __future__ import annotations

from servesim.inputs import InputFile
from servesim.workload.traces.fields import Row, cell_time, cell_tokens
from servesim.workload.traces.format import Rows, TraceFacts, TraceFormat, TraceHead, map_rows
from servesim.workload.traces.table import Cells, table_cells

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _recognises(head: TraceHead) -> bool:
    return bool(head.columns & {"contexttokens", "generatedtokens"})


def _rows(file: InputFile, facts: TraceFacts) -> Rows:
    facts.time_field = COLUMNS[0]

    def parse(cells: Cells) -> Row | None:
        at, prompt, output = cells
        output_tokens = cell_tokens(output, "GeneratedTokens", minimum=0)
        if output_tokens == 0:
            facts.left_out("requests without output (GeneratedTokens is 0)")
            return None
        return {
            "timestamp": cell_time(at),
            "prompt_tokens": cell_tokens(prompt, "ContextTokens"),
            "output_tokens": output_tokens,
        }

    return map_rows(table_cells(file, COLUMNS), parse)


AZURE = TraceFormat(
    summary="Azure LLM inference CSV, 2023 and 2024: TIMESTAMP, ContextTokens, GeneratedTokens",
    recognises=_recognises,
    rows=_rows,
)
