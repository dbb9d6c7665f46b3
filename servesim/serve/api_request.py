"""What a body of the OpenAI-compatible API asks for: read field by field, refused in vLLM's words.

Fields that a pretended model has no use for (temperature, top_p, logprobs, tools, ...) are taken and passed over, as
far as they make sense; what a model that reads only text cannot take is refused.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from typing import Any

from servesim.serve.errors import bad_request, missing, mistyped, validation_error, wrong_json
from servesim.wire.events import Json

MAX_N = 128
MAX_STOPS = 64
DEFAULT_COMPLETION_TOKENS = 16  # of /v1/completions, as OpenAI has it

Messages = list[tuple[str, str]]


@dataclass(slots=True, kw_only=True)
class ApiRequest:
    """One request for text. `prompts` are texts, token numbers or (chat) one conversation."""

    chat: bool
    model: str | None
    prompts: list[str | array[int] | Messages]
    max_tokens: int | None
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    stop: list[str] = field(default_factory=list)
    include_stop: bool = False
    seed: int | None = None
    priority: int = 0


def read_json(body: bytes) -> Json:
    """Return the object that a body holds. Raises ApiError."""
    try:
        value = json.loads(body)
    except json.JSONDecodeError as error:
        raise wrong_json(error.pos, error.msg) from None
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise wrong_json(0, type(error).__name__) from None
    if not isinstance(value, dict):
        problem = mistyped("", "model_attributes_type", "Input should be a valid dictionary or object", value)
        raise validation_error([problem | {"loc": "body"}])
    return value


class Fields:
    """Reads the fields of a body, each with its type, and gathers what is wrong with them."""

    def __init__(self, body: Json) -> None:
        self.body = body
        self.problems: list[Json] = []

    def check(self) -> None:
        """Raise ApiError if any field was wrong."""
        if self.problems:
            raise validation_error(self.problems)

    def _wrong(self, name: str, kind: str, message: str) -> None:
        self.problems.append(mistyped(name, kind, message, self.body[name]))

    def integer(self, name: str) -> int | None:
        value = self.body.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
        self._wrong(name, "int_type", "Input should be a valid integer")
        return None

    def number(self, name: str) -> float | None:
        value = self.body.get(name)
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            return value
        self._wrong(name, "float_type", "Input should be a valid number")
        return None

    def switch(self, name: str) -> bool:
        value = self.body.get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        self._wrong(name, "bool_type", "Input should be a valid boolean")
        return False

    def text(self, name: str) -> str | None:
        value = self.body.get(name)
        if value is None or isinstance(value, str):
            return value
        self._wrong(name, "string_type", "Input should be a valid string")
        return None

    def stops(self) -> list[str]:
        value = self.body.get("stop")
        if value is None:
            return []
        if isinstance(value, str):
            return [value]
        if isinstance(value, list) and len(value) <= MAX_STOPS and all(isinstance(each, str) for each in value):
            return value
        self._wrong("stop", "list_type", "Input should be a valid list")
        return []


def read_chat(body: Json) -> ApiRequest:
    """Read a body of `/v1/chat/completions`. Raises ApiError."""
    fields = Fields(body)
    messages: Messages = []
    if "messages" not in body:
        fields.problems.append(missing("messages", body))
    elif not isinstance(body["messages"], list):
        fields.problems.append(mistyped("messages", "list_type", "Input should be a valid list", body["messages"]))
    else:
        messages = _messages(body["messages"], fields)
    api_request = _common(fields, chat=True, prompts=[messages])
    if not messages:
        raise bad_request("Cannot apply chat template to an empty conversation. Provide at least one message.")
    tools = body.get("tools")
    if isinstance(tools, list) and tools:
        messages.insert(0, ("system", json.dumps(tools)))
    return api_request


def read_completion(body: Json) -> ApiRequest:
    """Read a body of `/v1/completions`. Raises ApiError."""
    prompts = _prompts(body.get("prompt"))
    api_request = _common(Fields(body), chat=False, prompts=prompts)
    if not prompts or not all(prompts):
        raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    return api_request


def _common(fields: Fields, *, chat: bool, prompts: list[Any]) -> ApiRequest:
    max_tokens = fields.integer("max_tokens")
    if chat:
        limit = fields.integer("max_completion_tokens")
        max_tokens = max_tokens if limit is None else limit
    elif "max_tokens" not in fields.body:
        max_tokens = DEFAULT_COMPLETION_TOKENS
    n, temperature = fields.integer("n"), fields.number("temperature")
    for name in ("top_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
        fields.number(name)
    api_request = ApiRequest(
        chat=chat,
        model=fields.text("model"),
        prompts=prompts,
        max_tokens=max_tokens,
        min_tokens=fields.integer("min_tokens") or 0,
        ignore_eos=fields.switch("ignore_eos"),
        n=1 if n is None else n,
        stream=fields.switch("stream"),
        stop=fields.stops(),
        include_stop=fields.switch("include_stop_str_in_output"),
        seed=fields.integer("seed"),
        priority=fields.integer("priority") or 0,
    )
    options = fields.body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        fields.problems.append(mistyped("stream_options", "model_type", "Input should be an object", options))
    fields.check()
    if options is not None:
        if not api_request.stream:
            raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
        details = Fields(options)
        api_request.include_usage = details.switch("include_usage")
        api_request.continuous_usage = api_request.include_usage and details.switch("continuous_usage_stats")
        details.check()
    if not 1 <= api_request.n <= MAX_N:
        raise bad_request(f"n must be between 1 and {MAX_N}, got {api_request.n}.", "n", api_request.n)
    if temperature is not None and temperature < 0:
        raise bad_request(
            f"temperature must be non-negative, got {float(temperature)}.", "temperature", float(temperature)
        )
    if max_tokens is not None and max_tokens < 1:
        raise bad_request(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
    if api_request.min_tokens < 0:
        message = f"min_tokens must be greater than or equal to 0, got {api_request.min_tokens}."
        raise bad_request(message, "min_tokens", api_request.min_tokens)
    if max_tokens is not None and api_request.min_tokens > max_tokens:
        raise bad_request(
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {api_request.min_tokens}.",
            "min_tokens",
        )
    if any(not stop for stop in api_request.stop):
        raise bad_request("stop cannot contain an empty string.", "stop")
    if not -(2**63) <= api_request.priority < 2**63:
        raise bad_request("priority is out of range.", "priority")
    return api_request


def _messages(values: list[Any], fields: Fields) -> Messages:
    messages = []
    for number, value in enumerate(values):
        if not isinstance(value, dict):
            problem = mistyped(f"messages.{number}", "model_type", "Input should be a valid dictionary", value)
            fields.problems.append(problem)
            continue
        role = value.get("role")
        if not isinstance(role, str):
            fields.problems.append(missing(f"messages.{number}.role", value))
            continue
        messages.append((role, _text_of(value)))
    return messages


def _text_of(message: Json) -> str:
    """Return the text of a message: its content, or its parts of text; calls of tools as they are written."""
    content = message.get("content")
    pieces = []
    if isinstance(content, str):
        pieces.append(content)
    elif isinstance(content, list):
        for part in content:
            text = part.get("text") if isinstance(part, dict) else part
            if not isinstance(text, str):
                raise bad_request("This model is not a multimodal model: a part of a message must be text.")
            pieces.append(text)
    elif content is not None:
        raise bad_request("The content of a message must be a text or a list of parts.")
    if isinstance(calls := message.get("tool_calls"), list):
        pieces.append(json.dumps(calls))
    return "\n".join(pieces)


def _prompts(value: object) -> list[str | array[int]]:
    """Return the prompts that `prompt` holds: a text, token numbers, or a list of either."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        return []
    if value and all(isinstance(each, int) for each in value):
        return [_numbers(value)]
    prompts: list[str | array[int]] = []
    for each in value:
        if isinstance(each, str):
            prompts.append(each)
        elif isinstance(each, list) and all(isinstance(number, int) for number in each):
            prompts.append(_numbers(each))
        else:
            raise bad_request("A prompt must be a text or a list of token numbers.", "prompt")
    return prompts


def _numbers(values: list[int]) -> array[int]:
    try:
        return array("I", values)
    except (OverflowError, TypeError):
        raise bad_request("A token number is out of range.", "prompt") from None
