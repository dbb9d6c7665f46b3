"""Traces with block hashes: Mooncake (blocks of 512 tokens) and Qwen-Bailian (blocks of 16, with sessions).

Sources: github.com/kvcache-ai/Mooncake, FAST25-release/traces (arXiv:2407.00079); github.com/alibaba-edu/
qwen-bailian-usagetraces-anon. An equal id stands for an equal block behind an equal prefix; the last one is partial.
"""

from __future__ import annotations

from servesim.errors import InputError
from servesim.inputs import InputFile, Object
from servesim.units import shown
from servesim.workload.traces.fields import Row, tokens_of
from servesim.workload.traces.format import Rows, TraceFacts, TraceFormat, TraceHead, map_rows
from servesim.workload.traces.jsonl import json_objects

MOONCAKE_BLOCK_TOKENS = 512
BAILIAN_BLOCK_TOKENS = 16
ROOT = -1  # the parent of a chat that has none


def _hashed_row(row: Object, block_tokens: int, facts: TraceFacts) -> Object | None:
    output_tokens = tokens_of(row, "output_length", minimum=0)
    if output_tokens == 0:
        facts.left_out("requests without output (output_length is 0)")
        return None
    prompt_tokens = tokens_of(row, "input_length")
    result = {"timestamp": row.get("timestamp"), "prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    hash_ids = row.get("hash_ids")
    if hash_ids is None:
        return result
    if not isinstance(hash_ids, list):
        raise InputError(f"hash_ids is {shown(hash_ids)}, must be a list of whole numbers")
    if len(hash_ids) > -(-prompt_tokens // block_tokens):
        raise InputError(
            f"hash_ids has {len(hash_ids)} blocks of {block_tokens}, more than input_length ({prompt_tokens}) fills"
        )
    result["hash_ids"], result["hash_block_tokens"] = hash_ids, block_tokens
    return result


def _mooncake_rows(file: InputFile, facts: TraceFacts) -> Rows:
    facts.time_field, facts.time_unit = "timestamp", "ms"
    return map_rows(json_objects(file), lambda row: _hashed_row(row, MOONCAKE_BLOCK_TOKENS, facts))


def _bailian_rows(file: InputFile, facts: TraceFacts) -> Rows:
    """A chat whose parent is in the file goes on with the parent's session; a second child begins one of its own."""
    facts.time_field, facts.time_unit = "timestamp", "s"
    place: dict[int, tuple[int, int]] = {}  # chat without a next turn so far -> its session and turn

    def parse(row: Object) -> Row | None:
        result = _hashed_row(row, BAILIAN_BLOCK_TOKENS, facts)
        if result is None:
            return None
        chat, parent = _chat(row, "chat_id"), _chat(row, "parent_chat_id")
        session, turn = place.pop(parent, (chat, 0))
        if turn == 0 and parent != ROOT:
            facts.note("turns whose parent is not in front of them, or was followed already, begin a session")
        place[chat] = session, turn + 1
        result["session"], result["turn"] = session, turn + 1
        if row.get("type") is not None:
            result["class"] = row["type"]
        return result

    return map_rows(json_objects(file), parse)


def _chat(row: Object, field: str) -> int:
    value = row.get(field)
    if type(value) is int:
        return value
    raise InputError(f"{field} is {shown(value) if field in row else 'missing'}, must be a whole number")


def _has_lengths(head: TraceHead) -> bool:
    return bool(head.keys & {"input_length", "output_length"})


def _is_bailian(head: TraceHead) -> bool:
    return bool(head.keys & {"chat_id", "parent_chat_id"})


MOONCAKE = TraceFormat(
    summary="Mooncake JSONL: timestamp (ms), input_length, output_length, hash_ids of 512-token blocks, shared as such",
    recognises=lambda head: _has_lengths(head) and not _is_bailian(head),
    rows=_mooncake_rows,
)

BAILIAN = TraceFormat(
    summary="Qwen-Bailian JSONL: the same in s and 16-token blocks; chat_id and parent_chat_id make sessions",
    recognises=lambda head: _has_lengths(head) and _is_bailian(head),
    rows=_bailian_rows,
)
