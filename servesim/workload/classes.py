"""Classes of requests that are made from a description: who they are, how many of all, and what is different of them.

    chat=0.7/priority=0,batch=0.3/priority=5/prompt=2k-4k/adapter=sql

is 70 % chat and 30 % batch, by weights that need not add up to 1. What a class does not say (`prompt`, `output`,
`priority`, `adapter`) it has from the workload. Classes of a session are drawn once for all its turns.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from servesim.errors import InputError
from servesim.units import parse_count, parse_finite, shown, suggest
from servesim.workload.lengths import parse_lengths
from servesim.workload.requests import Requests
from servesim.workload.seeds import random_stream

MAX_CLASSES = 1000
MAX_NAME = 60
KEYS = ("priority", "prompt", "output", "adapter")


@dataclass(slots=True, frozen=True, kw_only=True)
class RequestClass:
    """One class; None is what the workload says."""

    name: str
    weight: float
    priority: int | None = None
    prompt: str | None = None  # a length, see lengths.LENGTHS
    output: str | None = None
    adapter: str | None = None


def parse_classes(text: object) -> tuple[RequestClass, ...]:
    """Return the classes in `NAME=WEIGHT[/KEY=VALUE...]`, a comma list. Raises `InputError` in one line.

    >>> parse_classes("chat=0.7,batch=0.3/priority=5")[1].priority
    5
    """
    if not isinstance(text, str):
        raise InputError(f"classes is {shown(text)}, must be a list such as chat=0.7,batch=0.3/priority=5")
    classes = tuple(_class(part) for part in text.split(","))
    names = [each.name for each in classes]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"classes has {shown(name)} twice, must have each once")
    if len(classes) > MAX_CLASSES:
        raise InputError(f"classes has {len(classes):,} of them, must have {MAX_CLASSES:,} or fewer")
    return classes


def _class(text: str) -> RequestClass:
    head, *rest = (part.strip() for part in text.split("/"))
    name, equals, weight = (part.strip() for part in head.partition("="))
    if not equals or not 0 < len(name) <= MAX_NAME or not name.isprintable() or ":" in name:
        raise InputError(f"classes has {shown(text)}, must be NAME=WEIGHT with /KEY=VALUE behind it")
    given: dict[str, str] = {}
    for part in rest:
        key, _, value = (side.strip() for side in part.partition("="))
        if key not in KEYS:
            raise suggest(f"key of class {name}", key, KEYS)
        if not value or key in given:
            raise InputError(f"class {name} has {shown(part)}, must be one {key}=VALUE")
        given[key] = value
    lengths = {
        key: parse_lengths(given[key], f"{key} of class {name}").text for key in ("prompt", "output") if key in given
    }
    adapter = given.get("adapter")
    if adapter is not None and not adapter.isprintable():
        raise InputError(f"adapter of class {name} is {shown(adapter)}, must be printable")
    return RequestClass(
        name=name,
        weight=parse_finite(weight, f"weight of class {name}", above=0.0),
        priority=_priority(given["priority"], name) if "priority" in given else None,
        adapter=adapter,
        **lengths,
    )


def _priority(text: str, name: str) -> int:
    return parse_count(text, f"priority of class {name}", minimum=0, maximum=2**31)


def draw_classes(classes: Sequence[RequestClass], turns: array[int], seed: int) -> list[RequestClass]:
    """Return the class of every request of sessions of so many `turns`, drawn by weight."""
    weights = [each.weight for each in classes]
    drawn = random_stream(seed, "classes").choices(classes, weights, k=len(turns))
    return list(chain.from_iterable(map(repeat, drawn, turns)))


def give_classes(requests: Requests, of_request: Sequence[RequestClass], seed: int) -> None:
    """Write into `requests` what their classes say, lengths of a class from a random stream of its own."""
    requests.class_names = [each.name for each in of_request]
    if any(each.priority is not None for each in of_request):
        before = requests.priority or array("q", [0]) * len(of_request)
        given = (each.priority for each in of_request)
        requests.priority = array("q", (old if new is None else new for old, new in zip(before, given, strict=True)))
    if any(each.adapter is not None for each in of_request):
        adapters = requests.adapters or [None] * len(of_request)
        requests.adapters = [each.adapter or old for each, old in zip(of_request, adapters, strict=True)]
    draws = {}
    for each in dict.fromkeys(of_request):
        for what, text in (("prompt", each.prompt), ("output", each.output)):
            if text is not None:
                lengths = parse_lengths(text, what)
                draws[each.name, what] = lengths.draw_from(random_stream(seed, f"{what} of {each.name}"))
    for what, column in (("prompt", requests.prompt_tokens), ("output", requests.output_tokens)):
        for index, each in enumerate(of_request):
            draw = draws.get((each.name, what))
            if draw is not None:
                column[index] = draw()


def draw_adapters(adapters: int, turns: array[int], seed: int) -> list[str | None]:
    """Return the adapter of every request of sessions of so many `turns`: one of `adapters`, all as likely."""
    names = [f"adapter-{number}" for number in range(adapters)]
    drawn = random_stream(seed, "adapters").choices(names, k=len(turns))
    return list(chain.from_iterable(map(repeat, drawn, turns)))
