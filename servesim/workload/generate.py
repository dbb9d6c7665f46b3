"""Requests made from a description: lengths, arrivals, shared prefixes, sessions, priorities.

Every purpose draws from a stream of its own, so that adding prefixes to a workload changes no length and no arrival.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from itertools import repeat

from servesim.workload.classes import RequestClass, draw_adapters, draw_classes, give_classes
from servesim.workload.content import renumber
from servesim.workload.lengths import Lengths, draw_lengths
from servesim.workload.requests import OPEN_END, Content, Requests
from servesim.workload.seeds import random_stream


@dataclass(slots=True, frozen=True, kw_only=True)
class RequestMix:
    """What requests are drawn from.

    `prompt_tokens` is what a request has for itself: its own prompt, or what a turn adds to the conversation. Shared
    prefixes and the earlier turns come on top of it.
    """

    seed: int
    requests: int | None  # at most so many, the last session ends early; None: as many as there are starts
    prompt_tokens: Lengths
    output_tokens: Lengths
    turns: Lengths  # of a session; a request by itself is a session of one
    think_s: float = 0.0
    shared_prefix_tokens: int = 0
    prefixes: int = 1
    priorities: int = 1  # levels, equally likely
    adapters: int = 0  # equally likely; 0: the base model
    classes: tuple[RequestClass, ...] = ()


def generate_requests(mix: RequestMix, starts: array[float] | None) -> Requests:
    """Return requests drawn from `mix`; `starts` are the times at which sessions begin, in seconds.

    Without them the loop is closed: an arrival that a completion decides is NaN.
    """
    turns = _draw_turns(mix, None if starts is None else len(starts))
    count = sum(turns)
    requests = Requests()
    requests.prompt_tokens, requests.output_tokens = draw_lengths(count, mix.prompt_tokens, mix.output_tokens, mix.seed)
    if starts is not None and count == len(turns):
        requests.arrival_s = starts[:count]
    else:
        requests.arrival_s = array("d", [math.nan]) * count
    if mix.priorities > 1:
        draw = random_stream(mix.seed, "priorities").randrange
        requests.priority = array("q", (draw(mix.priorities) for _ in range(count)))
    if mix.adapters:
        requests.adapters = draw_adapters(mix.adapters, turns, mix.seed)
    if mix.classes:
        give_classes(requests, draw_classes(mix.classes, turns, mix.seed), mix.seed)
    prefixes = _draw_prefixes(mix, len(turns))
    if count > len(turns):
        _make_sessions(requests, turns, prefixes, starts, mix)
    elif prefixes is not None:
        requests.content = renumber(prefixes)
        own = requests.prompt_tokens
        requests.prompt_tokens = array("q", (tokens + mix.shared_prefix_tokens for tokens in own))
    return requests


def _draw_turns(mix: RequestMix, sessions: int | None) -> array[int]:
    """Return the number of turns of each session (a request by itself is one of one), in all at most `requests`."""
    turns = mix.turns
    left = math.inf if mix.requests is None else mix.requests
    if turns.high == 1:
        return array("q", [1]) * int(min(left, math.inf if sessions is None else sessions))
    draw = turns.draw_from(random_stream(mix.seed, "turns"))
    drawn = array("q")
    for _ in repeat(None) if sessions is None else repeat(None, sessions):
        if left <= 0:
            break
        drawn.append(int(min(draw(), left)))
        left -= drawn[-1]
    return drawn


def _draw_prefixes(mix: RequestMix, sessions: int) -> list[Content] | None:
    """Return the shared prefix of each session or request by itself, as content."""
    if not mix.shared_prefix_tokens:
        return None
    choices: list[Content] = [((stream, mix.shared_prefix_tokens),) for stream in range(mix.prefixes)]
    if len(choices) == 1:
        return choices * sessions
    return random_stream(mix.seed, "prefixes").choices(choices, k=sessions)


def _make_sessions(
    requests: Requests,
    turns: array[int],
    prefixes: list[Content] | None,
    starts: array[float] | None,
    mix: RequestMix,
) -> None:
    """Turn single lengths into conversations: each prompt holds the prefix and all earlier turns, outputs included."""
    prompt_tokens, output_tokens = requests.prompt_tokens, requests.output_tokens
    requests.sessions, requests.turns = [], array("q")
    contents: list[Content] = []
    if mix.think_s:
        requests.think_s = array("d")
    index = 0
    for session, size in enumerate(turns):
        prefix = () if prefixes is None else prefixes[session]
        content = (*prefix, (mix.prefixes + session, OPEN_END)) if size > 1 else prefix
        if starts is not None:
            requests.arrival_s[index] = starts[session]
        history_tokens = mix.shared_prefix_tokens
        for turn in range(1, size + 1):
            prompt_tokens[index] += history_tokens
            history_tokens = prompt_tokens[index] + output_tokens[index]
            requests.sessions.append(f"s{session}")
            requests.turns.append(turn)
            contents.append(content)
            if requests.think_s is not None:
                requests.think_s.append(mix.think_s if turn > 1 else 0.0)
            index += 1
    requests.content = renumber(contents)
