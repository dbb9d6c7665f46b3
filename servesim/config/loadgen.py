"""The load run that is asked for, beside its workload: where it goes, what each request says, how it is measured.

The same fields are the command line's options and the keys of a document's `config`, so that a saved run can be run
again from itself. Secrets are not among them: of the API key the name of its variable, of headers only the names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from servesim.config.server import Check, count, number, one_of, seconds, switch, text
from servesim.errors import InputError
from servesim.units import refuse_constant, shown

SEARCHED = {"concurrency": "requests in flight", "rate": "requests per second"}
"""What `find` can look for."""


def json_object(value: Any, name: str) -> dict[str, Any]:
    """Check for a JSON object, as text or as a document holds it."""
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_constant=refuse_constant)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name} is {shown(value)}, must be a JSON object: {str(error)[:80].lower()}") from None
    if not isinstance(value, dict):
        raise InputError(f"{name} is {shown(value)}, must be a JSON object")
    return value


def words(value: Any, name: str) -> str:
    """Check for text of any length, such as a prompt."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{name} is {shown(value)}, must be a text that is not empty")
    return value


def header(value: Any, name: str) -> str:
    """Check for a text; the error does not show the value, which may be secret."""
    if not isinstance(value, str):
        raise InputError(f"{name} must be a text such as 'Name: value'")
    return value


def headers(value: Any, name: str) -> Any:
    """Check one header, or the list of them."""
    if isinstance(value, (list, tuple)):
        return tuple(header(each, name) for each in value)
    return header(value, name)


LOAD_CHECKS: dict[str, Check] = {
    "url": text,
    "headers": headers,
    "api": text,
    "model": text,
    "api_key_env": text,
    "insecure": switch,
    "ca_file": text,
    "proxy": text,
    "wait_ready_s": seconds(),
    "ignore_eos": switch,
    "min_tokens": count(minimum=0),
    "temperature": number(minimum=0.0, maximum=100.0),
    "extra_body": json_object,
    "no_stream": switch,
    "prompt": words,
    "prompts": text,
    "prompt_salt": text,
    "warmup": count(minimum=0, maximum=10**6),
    "repeat": count(maximum=10**6),
    "processes": count(maximum=1024),
    "client_timeout_s": seconds(positive=True),
    "idle_timeout_s": seconds(positive=True),
    "grace_s": seconds(),
    "strict": switch,
    "find": one_of("search", SEARCHED),
    "find_max": number(above=0.0),
}
"""What each field of `LoadSpec` accepts: a flag's text or a JSON value, with the name it was given under."""


@dataclass(slots=True, frozen=True, kw_only=True)
class LoadSpec:
    """How a server is measured. Raises InputError for what makes no sense together."""

    url: str
    api: str = "chat"  # a key of client.flavour.API_FLAVOURS
    model: str | None = None  # None: asked from /v1/models
    api_key_env: str | None = None
    headers: tuple[str, ...] = field(default=(), repr=False)  # "Name: value"
    insecure: bool = False
    ca_file: str | None = None
    proxy: str | None = None
    wait_ready_s: float = 0.0
    ignore_eos: bool = False
    min_tokens: int | None = None
    temperature: float | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    no_stream: bool = False
    prompt: str | None = None
    prompts: str | None = None
    prompt_salt: str | None = None  # None: new for each run, so that no earlier run's prompts are still cached
    warmup: int = 2
    repeat: int = 1
    processes: int = 1
    client_timeout_s: float | None = None
    idle_timeout_s: float = 300.0
    grace_s: float = 10.0
    strict: bool = False
    find: str | None = None
    find_max: float | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None:
                object.__setattr__(self, each.name, LOAD_CHECKS[each.name](value, each.name))
        if self.prompt is not None and self.prompts is not None:
            raise InputError("prompt and prompts both say what is asked; give one of them")
        if self.find is None and self.find_max is not None:
            raise InputError("find_max bounds a search; give find")
        if self.find is not None and self.repeat != 1:
            raise InputError("find repeats by itself near the edge; leave out repeat")

    def as_dict(self) -> dict[str, Any]:
        """Return the options as JSON values without secrets; a URL's query may hold one and is left out too."""
        options = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "headers"}
        options["url"] = self.url.partition("?")[0]
        options["extra_body"] = dict(self.extra_body)
        options["header_names"] = [header.partition(":")[0].strip() for header in self.headers]
        return options
