"""What a server's API looks like to the load generator: where a request goes, what is in it, what comes back.

A `Flavour` is a row of a table and knows no socket, no clock and no tokenizer. The client asks it three things:

- `route(stream)`: `"/v1/chat/completions"`; `Target.path` turns it into the path of the request line;
- `build_body(prompt, options)`: the JSON object of one request. `prompt` is the text, or a list of chat messages;
  `options` says the rest;
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

from servesim.config.loadgen import LoadSpec
from servesim.errors import InputError

Body = dict[str, Any]
Prompt = str | list[dict[str, Any]]
"""A text, or chat messages as the OpenAI API spells them. A native API of plain text gets their contents, joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What every request of a run asks for; None leaves a field out of the body."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False
    temperature: float | None = None
    stream: bool = True
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # merged last: it wins; a null takes a field out


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """One API flavour."""

    name: str  # as `--api` spells it
    path: str
    stream_format: str  # "sse", "ndjson" or "json"
    reader: str  # the format of its events, as `servesim.wire.events` names it
    build_body: Callable[[Prompt, RequestOptions], Body]
    whole_path: str | None = None  # where whole answers have a route of their own
    needs_model: bool = True  # False: the API has no model field
    cannot: frozenset[str] = frozenset()  # names of RequestOptions that the API has no field for
    about: str = ""  # one line for `--help`

    def route(self, *, stream: bool = True) -> str:
        """Return the route that streams, or the one that gives whole answers."""
        return self.path if stream else self.whole_path or self.path

    def framing(self, *, stream: bool = True) -> str:
        """Return how an answer is framed; an event stream's decoder notices a whole answer by itself."""
        return "json" if not stream and self.stream_format == "ndjson" else self.stream_format


def messages_of(prompt: Prompt) -> list[dict[str, Any]]:
    """Return the prompt as chat messages."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def text_of(prompt: Prompt) -> str:
    """Return the prompt as one text, for an API that knows no messages.

    >>> text_of([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}])
    'Be brief.\\n\\nWhy?'
    """
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(content for message in prompt if isinstance(content := message.get("content"), str))


def _finish(body: Body, options: RequestOptions) -> Body:
    """Leave out what was not asked for and merge `extra_body`, one level deep where both sides are objects."""
    for key, value in options.extra_body.items():
        if isinstance(value, Mapping) and isinstance(body.get(key), dict):
            body[key] = {**body[key], **value}
        else:
            body[key] = value
    return {key: value for key, value in body.items() if value is not None}


def _present(**fields: Any) -> Body:
    return {name: value for name, value in fields.items() if value is not None}


def _openai(body: Body, options: RequestOptions) -> Body:
    """Add what the OpenAI-compatible routes share. `ignore_eos` and `min_tokens` are vLLM's and SGLang's extensions."""
    body["model"] = options.model
    body["temperature"] = options.temperature
    body["min_tokens"] = options.min_tokens
    body["ignore_eos"] = True if options.ignore_eos else None
    if options.stream:
        body["stream"] = True
    return _finish(body, options)


def _usage_in_stream(options: RequestOptions) -> Body | None:
    return {"include_usage": True} if options.stream else None  # vLLM refuses stream_options without stream


def chat_body(prompt: Prompt, options: RequestOptions) -> Body:
    """Build `/v1/chat/completions`."""
    body: Body = {"messages": messages_of(prompt), "max_tokens": options.max_tokens}
    return _openai({**body, "stream_options": _usage_in_stream(options)}, options)


def completions_body(prompt: Prompt, options: RequestOptions) -> Body:
    """Build `/v1/completions`."""
    body: Body = {"prompt": text_of(prompt), "max_tokens": options.max_tokens}
    return _openai({**body, "stream_options": _usage_in_stream(options)}, options)


def responses_body(prompt: Prompt, options: RequestOptions) -> Body:
    """Build `/v1/responses`, whose last event carries the usage without being asked."""
    return _openai({"input": prompt, "max_output_tokens": options.max_tokens}, options)


def llamacpp_body(prompt: Prompt, options: RequestOptions) -> Body:
    """Build llama.cpp's own `/completion` (tools/server/README.md)."""
    body: Body = {"prompt": text_of(prompt), "n_predict": options.max_tokens, "temperature": options.temperature}
    body["ignore_eos"] = True if options.ignore_eos else None
    return _finish({**body, "stream": options.stream}, options)


def ollama_body(prompt: Prompt, options: RequestOptions) -> Body:
    """Build Ollama's `/api/chat` (docs/api.md): limits live in `options`."""
    limits = _present(num_predict=options.max_tokens, temperature=options.temperature)
    body: Body = {"model": options.model, "messages": messages_of(prompt), "stream": options.stream}
    return _finish({**body, "options": limits or None}, options)


def tgi_body(prompt: Prompt, options: RequestOptions) -> Body:
    """Build TGI's `/generate_stream`: `details` brings the token counts; its temperature must be above 0."""
    greedy = options.temperature == 0
    sampling = _present(temperature=None if greedy else options.temperature, do_sample=False if greedy else None)
    parameters = {**_present(max_new_tokens=options.max_tokens), "details": True, **sampling}
    return _finish({"inputs": text_of(prompt), "parameters": parameters}, options)


def generate_body(prompt: Prompt, options: RequestOptions) -> Body:
    """Build the plain `POST /generate` of small servers around a model."""
    body: Body = {"prompt": text_of(prompt), "max_output_tokens": options.max_tokens}
    return _finish({**body, "temperature": options.temperature}, options)


API_FLAVOURS: dict[str, Flavour] = {
    flavour.name: flavour
    for flavour in (
        Flavour(
            name="chat",
            path="/v1/chat/completions",
            stream_format="sse",
            reader="chat",
            build_body=chat_body,
            about="OpenAI chat completions: vLLM, SGLang, llama.cpp, most others",
        ),
        Flavour(
            name="completions",
            path="/v1/completions",
            stream_format="sse",
            reader="completions",
            build_body=completions_body,
            about="OpenAI text completions: no chat template around the prompt",
        ),
        Flavour(
            name="responses",
            path="/v1/responses",
            stream_format="sse",
            reader="responses",
            build_body=responses_body,
            about="OpenAI responses",
        ),
        Flavour(
            name="llamacpp",
            path="/completion",
            stream_format="sse",
            reader="llamacpp",
            build_body=llamacpp_body,
            needs_model=False,
            cannot=frozenset({"min_tokens"}),
            about="llama.cpp's own /completion",
        ),
        Flavour(
            name="ollama",
            path="/api/chat",
            stream_format="ndjson",
            reader="ollama",
            build_body=ollama_body,
            cannot=frozenset({"min_tokens", "ignore_eos"}),
            about="Ollama's /api/chat, one JSON object a line",
        ),
        Flavour(
            name="tgi",
            path="/generate_stream",
            whole_path="/generate",
            stream_format="sse",
            reader="tgi",
            build_body=tgi_body,
            needs_model=False,
            cannot=frozenset({"min_tokens", "ignore_eos"}),
            about="Text Generation Inference's /generate_stream, or its /generate without a stream",
        ),
        Flavour(
            name="generate",
            path="/generate",
            stream_format="json",
            reader="generate",
            build_body=generate_body,
            needs_model=False,
            cannot=frozenset({"min_tokens", "ignore_eos"}),
            about="a plain POST /generate that answers one JSON object: E2E only",
        ),
    )
}


def find_flavour(name: str) -> Flavour:
    """Return the flavour that `--api NAME` means."""
    if name not in API_FLAVOURS:
        raise InputError(f"unknown api {name!r}, must be one of {', '.join(API_FLAVOURS)}")
    return API_FLAVOURS[name]


def flavour_of(load: LoadSpec) -> Flavour:
    """Return the flavour of a measurement. Raises `InputError` for an option that it has no field for."""
    flavour = find_flavour(load.api)
    for name in sorted(flavour.cannot):
        if getattr(load, name, None):
            raise InputError(f"the {flavour.name} api has no field for {name}; use --extra-body if the server has one")
    return flavour


def request_options(load: LoadSpec, model: str | None) -> RequestOptions:
    """Return what every request of a measurement says; its `max_tokens` is each request's own."""
    return RequestOptions(
        model=model,
        min_tokens=load.min_tokens,
        ignore_eos=load.ignore_eos,
        temperature=load.temperature,
        stream=not load.no_stream,
        extra_body=load.extra_body,
    )
