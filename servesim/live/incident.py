"""The Monday incident, cut to the measure of a server: more than it can bear, and easy with prefix caching.

Many people open the assistant at once, and every prompt begins with one of two system prompts. The rate that follows
lies between what the server can serve when it computes every prompt whole and what it can when it does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from servesim.cost.model import CostModel
from servesim.engine.config import EngineConfig
from servesim.engine.server import Server
from servesim.live.traffic import MAX_HELD, MAX_RATE, SYSTEM_PROMPTS, TrafficSpec

PROMPT_TOKENS, OUTPUT_TOKENS = 1365, 248  # the means of fixtures/burst.jsonl, 1,024 tokens of a prompt shared
WITHIN_S = 3.5
MAX_BURST = MAX_HELD // 4
MAX_TOKENS_PER_S = 15_000.0  # more than one thread of ours hands out in time


@dataclass(slots=True, frozen=True, kw_only=True)
class Incident:
    """The load: `burst` requests within `within_s` seconds of the wall's clock, then `traffic`."""

    traffic: TrafficSpec
    burst: int
    within_s: float
    room: int  # requests of this size that the server holds at once


def plan_incident(server: Server, speed: float) -> Incident | None:
    """Return the incident for a server, None where it has none.

    That is a server whose seats share no cache, one that holds hardly a request, one too fast for us to overload.
    """
    config = server.config
    if server.spec.slots is not None:
        return None
    longest = config.max_model_len or config.num_blocks * config.block_size
    scale = min(1.0, longest / (1.5 * (PROMPT_TOKENS + OUTPUT_TOKENS)))
    prompt, output = round(PROMPT_TOKENS * scale), round(OUTPUT_TOKENS * scale)
    traffic = TrafficSpec(on=True, prompt_tokens=prompt, output_tokens=output, shared=True)
    room = _room(config, prompt + output, 0)
    if room < 2:
        return None
    cost = server.cost()
    whole = _capacity(cost, config, traffic, shared=0)
    cached = _capacity(cost, config, traffic, shared=traffic.shared_tokens)
    rate = math.sqrt(whole * cached) * speed
    if rate > min(MAX_RATE, MAX_TOKENS_PER_S / output):
        return None
    return Incident(
        traffic=traffic.changed({"rate": float(f"{rate:.2g}")}),
        burst=min(MAX_BURST, round(2.4 * room)),
        within_s=WITHIN_S / speed,
        room=room,
    )


def _room(config: EngineConfig, tokens: int, shared: int) -> int:
    """Return how many requests of `tokens`, `shared` of them common property, run at once."""
    cache = config.num_blocks * config.block_size - SYSTEM_PROMPTS * shared
    return min(config.max_num_seqs, cache // (tokens - shared))


def _capacity(cost: CostModel, config: EngineConfig, traffic: TrafficSpec, *, shared: int) -> float:
    """Return the requests per second of the engine's clock that a full server works off, roughly."""
    prompt, output = traffic.prompt_tokens, traffic.output_tokens
    seats = max(1, _room(config, prompt + output, shared))
    context = seats * (prompt + output // 2)
    step_s = cost.decode(seats, context)
    prefill_s = cost.step(seats, context, [(prompt - shared, prompt)]) - step_s
    return 1.0 / (output * step_s / seats + prefill_s)
