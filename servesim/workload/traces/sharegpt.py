"""ShareGPT: conversations as text, in one huge array (or one a line), with neither times nor token counts.

Source: huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered. A conversation becomes a session: every
answered question is a request whose prompt holds all that was said before it. Tokens are estimated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from servesim.errors import InputError
from servesim.inputs import InputFile
from servesim.units import shown
from servesim.workload.traces.fields import Row
from servesim.workload.traces.format import Rows, TraceFacts, TraceFormat, TraceHead
from servesim.workload.traces.json_stream import JsonStream

BYTES_PER_TOKEN = 4  # of UTF-8; about right for English text and for Chinese
_SPEAKERS = {
    **dict.fromkeys(("human", "user"), "person"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model"), "model"),
    **dict.fromkeys(("system", "tool", "function", "function_call", "observation"), "context"),
}


def _recognises(head: TraceHead) -> bool:
    return bool(head.keys & {"conversations", "conversation"})


def _rows(file: InputFile, facts: TraceFacts) -> Rows:
    facts.note(f"token counts are estimated, {BYTES_PER_TOKEN} bytes of text a token: the file has only text")
    stream = JsonStream(file)
    for number, (line, conversation) in enumerate(_conversations(stream), 1):
        try:
            rows = list(_requests(number, conversation, facts))
        except InputError as error:
            yield line, InputError(f"conversation {number}: {error}")
            continue
        if not rows:
            facts.left_out("conversations without an answered question")
        for row in rows:
            yield line, row


def _conversations(stream: JsonStream) -> Iterator[tuple[int, Any]]:
    if stream.peek() == "[":
        for _ in stream.items():
            stream.peek()
            yield stream.line, stream.value()
    while stream.peek():
        yield stream.line, stream.value()


def _requests(number: int, conversation: object, facts: TraceFacts) -> Iterator[Row]:
    """Yield a request for every answer that follows a question; whatever else was said is part of later prompts."""
    messages = None
    if isinstance(conversation, dict):
        messages = conversation.get("conversations", conversation.get("conversation"))
    if not isinstance(messages, list):
        raise InputError(f"conversations is {shown(messages)}, must be a list of messages")
    said_tokens = turn = 0
    asked = False
    for place, message in enumerate(messages, 1):
        speaker, text = _message(place, message)
        tokens = -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN) if not text.isspace() else 0
        if not tokens:
            facts.left_out("messages without text")
            continue
        if speaker == "model" and asked:
            turn += 1
            yield {
                "prompt_tokens": said_tokens,
                "output_tokens": tokens,
                "session": f"conversation-{number}",
                "turn": turn,
            }
        elif speaker == "model":
            facts.note("answers that nobody asked for count as part of the next prompt")
        asked = speaker == "person" or (asked and speaker == "context")
        said_tokens += tokens


def _message(place: int, message: object) -> tuple[str, str]:
    if not isinstance(message, dict):
        raise InputError(f"message {place} is {shown(message)}, must be an object with from and value")
    speaker = message.get("from", message.get("role"))
    text = message.get("value", message.get("content"))
    if not isinstance(speaker, str) or speaker.lower() not in _SPEAKERS:
        raise InputError(f"message {place}: from is {shown(speaker)}, must be human, gpt or system")
    if not isinstance(text, str):
        raise InputError(f"message {place}: value is {shown(text)}, must be text")
    return _SPEAKERS[speaker.lower()], text


SHAREGPT = TraceFormat(
    summary="ShareGPT JSON: conversations of text, no times (--concurrency); tokens are estimated, turns make sessions",
    recognises=_recognises,
    rows=_rows,
)
