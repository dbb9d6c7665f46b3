"""Requests made from a description: lengths, arrivals, shared prefixes, sessions, priorities.

Every purpose draws from a stream of its own, so that adding prefixes to a workload changes no length and no arrival.
"""

from __future__ import annotations

import math
from array import array
from itertools import repeat

from servesim.config.workload import WorkloadSpec
from servesim.workload.arrivals import draw_arrivals, draw_scheduled, read_schedule
from servesim.workload.classes import draw_adapters, draw_classes, give_classes, parse_classes
from servesim.workload.content import renumber
from servesim.workload.lengths import draw_lengths, parse_lengths
from servesim.workload.requests import OPEN_END, Content, Requests
from servesim.workload.seeds import random_stream


def generate_requests(spec: WorkloadSpec) -> Requests:
    """Return the requests that `spec`, which names no trace, describes; NaN is an arrival that a completion decides.

    `prompt_tokens` is what a request has for itself: its own prompt, or what a turn adds to the conversation. Shared
    prefixes and the earlier turns come on top of it. With turns, the rate is that at which sessions begin, and the
    last session ends early where the number of requests says so.
    """
    starts = _draw_starts(spec)
    turns = _draw_turns(spec, None if starts is None else len(starts))
    count = sum(turns)
    requests = Requests()
    requests.prompt_tokens, requests.output_tokens = draw_lengths(
        count,
        parse_lengths(spec.prompt_tokens, "prompt_tokens"),
        parse_lengths(spec.output_tokens, "output_tokens"),
        spec.seed,
    )
    if starts is not None and count == len(turns):
        requests.arrival_s = starts[:count]
    else:
        requests.arrival_s = array("d", [math.nan]) * count
    if spec.priorities > 1:
        draw = random_stream(spec.seed, "priorities").randrange
        requests.priority = array("q", (draw(spec.priorities) for _ in range(count)))
    if spec.adapters:
        requests.adapters = draw_adapters(spec.adapters, turns, spec.seed)
    if spec.classes is not None:
        give_classes(requests, draw_classes(parse_classes(spec.classes), turns, spec.seed), spec.seed)
    prefixes = _draw_prefixes(spec, len(turns))
    if count > len(turns):
        _make_sessions(requests, turns, prefixes, starts, spec)
    elif prefixes is not None:
        requests.content = renumber(prefixes)
        own = requests.prompt_tokens
        requests.prompt_tokens = array("q", (tokens + spec.shared_prefix_tokens for tokens in own))
    return requests


def _draw_starts(spec: WorkloadSpec) -> array[float] | None:
    """Return when requests, or sessions, begin in an open loop."""
    if spec.rate_schedule is not None:
        return draw_scheduled(
            str(spec.arrivals),
            read_schedule(spec.rate_schedule),
            seed=spec.seed,
            burstiness=spec.burstiness,
            count=spec.requests,
            until_s=spec.duration_s,
        )
    if spec.rate is None:
        return None
    return draw_arrivals(
        str(spec.arrivals),
        rate=spec.rate,
        seed=spec.seed,
        burstiness=spec.burstiness,
        ramp_s=spec.ramp_s,
        count=spec.requests,
        until_s=spec.duration_s,
    )


def _draw_turns(spec: WorkloadSpec, sessions: int | None) -> array[int]:
    """Return the number of turns of each session, one for lone requests, cut so that requests are not exceeded."""
    turns = parse_lengths(spec.turns, "turns")
    left = math.inf if spec.requests is None else spec.requests
    if turns.high == 1:
        return array("q", [1]) * int(min(left, math.inf if sessions is None else sessions))
    draw = turns.draw_from(random_stream(spec.seed, "turns"))
    drawn = array("q")
    for _ in repeat(None) if sessions is None else repeat(None, sessions):
        if left <= 0:
            break
        drawn.append(int(min(draw(), left)))
        left -= drawn[-1]
    return drawn


def _draw_prefixes(spec: WorkloadSpec, sessions: int) -> list[Content] | None:
    """Return the shared prefix of each session or lone request, as content."""
    if not spec.shared_prefix_tokens:
        return None
    choices: list[Content] = [((stream, spec.shared_prefix_tokens),) for stream in range(spec.prefixes)]
    if len(choices) == 1:
        return choices * sessions
    return random_stream(spec.seed, "prefixes").choices(choices, k=sessions)


def _make_sessions(
    requests: Requests,
    turns: array[int],
    prefixes: list[Content] | None,
    starts: array[float] | None,
    spec: WorkloadSpec,
) -> None:
    """Turn lone lengths into conversations: each prompt holds the prefix and all earlier turns, outputs included."""
    prompt_tokens, output_tokens = requests.prompt_tokens, requests.output_tokens
    requests.sessions, requests.turns = [], array("q")
    contents: list[Content] = []
    if spec.think_s:
        requests.think_s = array("d")
    index = 0
    for session, size in enumerate(turns):
        prefix = () if prefixes is None else prefixes[session]
        content = (*prefix, (spec.prefixes + session, OPEN_END)) if size > 1 else prefix
        if starts is not None:
            requests.arrival_s[index] = starts[session]
        history_tokens = spec.shared_prefix_tokens
        for turn in range(1, size + 1):
            prompt_tokens[index] += history_tokens
            history_tokens = prompt_tokens[index] + output_tokens[index]
            requests.sessions.append(f"s{session}")
            requests.turns.append(turn)
            contents.append(content)
            if requests.think_s is not None:
                requests.think_s.append(spec.think_s if turn > 1 else 0.0)
            index += 1
    requests.content = renumber(contents)
