"""A measurement beside its workload: where requests go, what each says, how it is measured; every option declared once.

A saved run can be run again from its `config`. Secrets are not in it: of the API key the name of its variable, of
headers only the names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from servesim.config.option import (
    REQUIRED,
    check_fields,
    count,
    number,
    one_of,
    option,
    seconds,
    switch,
    text,
)
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


def long_text(value: Any, name: str) -> str:
    """Check for text of any length, such as a prompt."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{name} is {shown(value)}, must be a text that is not empty")
    return value


def header(value: Any, name: str) -> str:
    """Check for a text; the error does not show the value, which may be secret."""
    if not isinstance(value, str):
        raise InputError(f"{name} must be a text such as 'Name: value'")
    return value


def header_lines(value: Any, name: str) -> Any:
    """Check one header, or the list of them."""
    if isinstance(value, (list, tuple)):
        return tuple(header(each, name) for each in value)
    return header(value, name)


SERVER = "server"
REQUEST = "requests"
MEASUREMENT = "measurement"


@dataclass(slots=True, frozen=True, kw_only=True)
class LoadSpec:
    """How a server is measured. Raises InputError for what makes no sense together."""

    url: str = option(
        REQUIRED, text, "base URL, with or without a path, /v1 or a whole route", "URL", group=SERVER, common=True
    )
    api: str = option("chat", text, "what the server speaks: {choices}", "NAME", common=True)
    model: str | None = option(
        None, text, "the model to ask for", "NAME", shown_default="the first that /v1/models lists"
    )
    api_key_env: str | None = option(
        None, text, "environment variable that holds the API key; never printed, never saved", "NAME"
    )
    headers: tuple[str, ...] = option(
        (),
        header_lines,
        "one more header, 'Name: value'; may be given again",
        "HEADER",
        flag="--header",
        repeat=True,
        field_options={"repr": False},
    )
    insecure: bool = option(False, switch, "accept any TLS certificate")
    ca_file: str | None = option(None, text, "certificate authorities to trust, PEM", "FILE")
    proxy: str | None = option(
        None, text, "go through this proxy; env: the environment's. Without it, none is used", "URL"
    )
    wait_ready_s: float = option(0.0, seconds(), "wait up to TIME for the server to load its model", "TIME")
    ignore_eos: bool = option(
        False, switch, "go on to the given length past the model's own end", group=REQUEST, common=True
    )
    min_tokens: int | None = option(None, count(minimum=0), "fewest output tokens")
    temperature: float | None = option(
        None, number(minimum=0.0, maximum=100.0), "sampling temperature", "X", shown_default="the server's"
    )
    extra_body: Mapping[str, Any] = option(
        REQUIRED,
        json_object,
        "JSON object merged into every request; null takes a field out",
        "JSON",
        field_options={"default_factory": dict},
    )
    no_stream: bool = option(False, switch, "ask for one answer instead of a stream: E2E only")
    prompt: str | None = option(None, long_text, "the same text for every request", "TEXT")
    prompts: str | None = option(None, text, "texts or messages from FILE, one JSON object a line, in turn", "FILE")
    prompt_salt: str | None = option(  # new for each run, so that no earlier run's prompts are still cached
        None, text, "make the synthetic prompts of an earlier run again", "TEXT", shown_default="new for each run"
    )
    warmup: int = option(
        2,
        count(minimum=0, maximum=10**6),
        "requests before the clock starts, one after the other, not counted",
        shown_default="2; scans 3",
        group=MEASUREMENT,
    )
    repeat: int = option(
        1, count(maximum=10**6), "measure N times and show the spread", shown_default="1; scans 5 requests a length"
    )
    processes: int = option(1, count(maximum=1024), "client processes on one schedule; gains only where cores are free")
    client_timeout_s: float | None = option(
        None, seconds(positive=True), "give a request up after TIME", "TIME", shown_default="never"
    )
    idle_timeout_s: float = option(
        300.0, seconds(positive=True), "give a request up TIME after its last event", "TIME", shown_default="5min"
    )
    grace_s: float = option(10.0, seconds(), "after Ctrl-C, wait up to TIME for what is in flight", "TIME")
    strict: bool = option(False, switch, "exit 1 when the client was saturated: it measured itself")
    find: str | None = option(
        None,
        one_of("search", SEARCHED),
        "search for the highest load within the --slo: {choices}",
        "LOAD",
        common=True,
    )
    find_max: float | None = option(
        None, number(above=0.0), "highest load that the search may try", "X", shown_default="no limit"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.prompt is not None and self.prompts is not None:
            raise InputError("prompt and prompts both say what is sent; give one of them")
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
