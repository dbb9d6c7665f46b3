"""What a server's API looks like to the load generator: where a request goes, what is in it, what comes back.

A `Flavour` is a row of a table and knows no socket, no clock and no tokenizer. The client asks it three things:

- `path`: appended to the base URL (see `endpoint`), `"/v1/chat/completions"`;
- `build_body(prompt, options)`: the JSON object of one request. `prompt` is the text; `options` says the rest;
- `stream_format`: how the answer is framed, which is all that the loop decodes while the clock runs: `"sse"`,
  `"ndjson"`, or `"json"` (one object, no stream: TTFT is then unknown). What the objects mean is read later, by the
  event reader named `reader` in `servesim.wire.events`, when no socket is ready.

A server that answers a streaming request with one JSON object (any `Content-Type`) is still read: the client notices
that the body holds no event and hands the whole body to the reader as one event, marked `non_stream`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What every request of a run asks for; None leaves a field out of the body."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False
    temperature: float | None = None
    stream: bool = True
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # merged last: it wins


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """One API flavour."""

    name: str  # as `--api` spells it
    path: str
    stream_format: str  # "sse", "ndjson" or "json"
    reader: str  # the shape of its events, as `servesim.wire.events` names it
    build_body: Callable[[str, RequestOptions], dict[str, Any]]
    about: str = ""  # one line for `--help`


API_FLAVOURS: dict[str, Flavour] = {}
