"""What goes wrong between a client and a server: a server's error in any format, as one line; bytes that are refused.

Errors come as the body of an HTTP error and as an event inside a stream that began with a 200, in the same formats. A
decoder of this package keeps at most one of the bounds below of bytes that it has not yet passed on, and raises
`ProtocolError` beyond it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from servesim.errors import RunError

MAX_CHUNK_HEADER_BYTES = 4096  # a chunk's size with its extensions
MAX_TRAILER_BYTES = 65536  # all trailer lines of one body
MAX_EVENT_BYTES = 16 * 1024 * 1024  # one line of a stream, one event, or one answer that is not a stream
MAX_INFLATED_BYTES = 64 * 1024 * 1024  # what one read may grow to when decompressed


class ProtocolError(RunError):
    """The peer sent bytes that its protocol does not allow, or more of them than anyone should hold."""


_MAX_MESSAGE_CHARACTERS = 500


class ErrorFact(NamedTuple):
    """A server's error: its message in one line, its type and its code, where it gives them."""

    message: str
    type: str = ""
    code: str = ""


def error_of(value: Mapping[str, Any], *, named: bool = False) -> ErrorFact | None:
    """Return the error that a JSON object holds, None when it holds none.

    `named`: something outside the object (an event's type, an HTTP status) already says that it is an error, so
    that a bare `message` or `detail` is one.
    """
    error = value.get("error")
    if isinstance(error, dict):
        return ErrorFact(_message(error), _short(error.get("type")), _short(error.get("code")))
    if isinstance(error, str) and error:  # Ollama, TGI (with its error_type)
        return ErrorFact(_one_line(error), _short(value.get("error_type")))
    if isinstance(error, (list, int)) and error:
        return ErrorFact(_one_line(json.dumps(error)))
    if named or value.get("object") == "error":  # vLLM before 0.9 put the fields at the top
        return ErrorFact(_message(value), _short(value.get("type")), _short(value.get("code")))
    return None


def error_from_body(body: bytes, *, reason: str = "") -> ErrorFact:
    """Read the body of an HTTP error: a JSON object of any format, or whatever text it is, or else `reason`."""
    text = body.decode("utf-8", "replace")
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        fact = error_of(value, named=True)
        if fact is not None:
            return fact
    if isinstance(value, str):
        text = value
    return ErrorFact(_one_line(text) or _one_line(reason) or "no message")


def _message(error: Mapping[str, Any]) -> str:
    for name in ("message", "detail", "error", "title"):
        value = error.get(name)
        if isinstance(value, str) and value.strip():
            return _one_line(value)
        if isinstance(value, list) and value:  # FastAPI's validation errors
            return _one_line("; ".join(_validation(item) for item in value))
        if isinstance(value, Mapping) and value:
            return _message(value)
    return _one_line(json.dumps(error, default=str)) if error else "no message"


def _validation(item: Any) -> str:
    if not isinstance(item, Mapping):
        return str(item)
    place = item.get("loc")
    where = ".".join(str(part) for part in place) + ": " if isinstance(place, list) else ""
    return f"{where}{item.get('msg', '')}"


def _short(value: Any) -> str:
    return _one_line(str(value)) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""


def _one_line(text: str) -> str:
    """Return `text` as one line that any terminal and any UTF-8 file can take."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    line = " ".join(printable.split())
    return line if len(line) <= _MAX_MESSAGE_CHARACTERS else line[: _MAX_MESSAGE_CHARACTERS - 3] + "..."
