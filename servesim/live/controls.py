"""The controls of the live page of `serve`: its traffic, three options of the engine, the Monday incident and its fix.

The options are those that a real server takes at its start, so the engine is started again for them. The incident is
sized for the server: many people open the assistant at once, and every prompt begins with one of two system prompts.
The rate that follows lies between what the server can serve when it computes every prompt whole and what it can with
prefix caching.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from servesim.config.build import Server, build_server
from servesim.config.engine import EngineConfig
from servesim.config.option import checks_of
from servesim.config.server import ServerSpec
from servesim.cost.model import CostModel
from servesim.errors import InputError
from servesim.live.feed import Feed
from servesim.live.traffic import (
    MAX_HELD,
    MAX_OUTPUT_TOKENS,
    MAX_PROMPT_TOKENS,
    MAX_RATE,
    SYSTEM_PROMPTS,
    Traffic,
    TrafficSpec,
)
from servesim.serve.app import ServeApp
from servesim.units import suggest

PROMPT_TOKENS, OUTPUT_TOKENS = 1365, 248  # the means of the example burst, 1,024 tokens of a prompt shared
WITHIN_S = 3.5
MAX_BURST = MAX_HELD // 4
MAX_TOKENS_PER_S = 15_000.0  # more than one thread streams in time


@dataclass(slots=True, frozen=True, kw_only=True)
class Incident:
    """The load: `burst` requests within `within_s` seconds of the wall's clock, then `traffic`."""

    traffic: TrafficSpec
    burst: int
    within_s: float
    room: int  # requests of this size that the server holds at once


def plan_incident(server: Server, speed: float) -> Incident | None:
    """Return the incident for a server, None where it has none.

    That is a server whose slots share no cache, one that holds hardly a request, one too fast for us to overload.
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
    slots = max(1, _room(config, prompt + output, shared))
    context = slots * (prompt + output // 2)
    step_s = cost.decode(slots, context)
    prefill_s = cost.step(slots, context, [(prompt - shared, prompt)]) - step_s
    return 1.0 / (output * step_s / slots + prefill_s)


SHORT = {"max_num_seqs": "slots", "max_num_batched_tokens": "budget", "prefix_caching": "caching"}  # on a chart
ENGINE_OPTIONS = tuple(SHORT)
SLIDER_SEQS, SLIDER_BATCHED_TOKENS = 1024, 32768


class Controls:
    """Does what the page asks for. `SCENARIOS` are its buttons."""

    def __init__(self, app: ServeApp, traffic: Traffic, feed: Feed, restarted: Callable[[], None]) -> None:
        self._app = app
        self._traffic = traffic
        self._feed = feed
        self._restarted = restarted
        self._happening = False
        self._incident = self._plan()
        self._traffic.spec = TrafficSpec() if self._incident is None else replace(self._incident.traffic, on=False)

    def limits(self) -> dict[str, list[float]]:
        """Return how far the page's sliders go."""
        rate = MAX_RATE if self._incident is None else min(MAX_RATE, 8 * self._incident.traffic.rate)
        longest = self._app.max_model_len
        config = self._app.clock.config
        return {
            "rate": [min(0.05, rate / 100), rate],
            "prompt_tokens": [16, min(MAX_PROMPT_TOKENS, max(17, longest - 1))],
            "output_tokens": [1, min(MAX_OUTPUT_TOKENS, 2048, max(2, longest // 2))],
            "max_num_seqs": [1, max(SLIDER_SEQS, config.max_num_seqs)],
            "max_num_batched_tokens": [16, max(SLIDER_BATCHED_TOKENS, config.max_num_batched_tokens)],
        }

    @property
    def scenario(self) -> str | None:
        """Return how far the incident is: None, "incident" or "fixed"."""
        if not self._happening:
            return None
        return "fixed" if self._app.clock.config.prefix_caching else "incident"

    def state(self) -> dict[str, Any]:
        """Return where the controls stand."""
        config, spec = self._app.clock.config, self._traffic.spec
        return {
            "traffic": {name: getattr(spec, name) for name in TrafficSpec.__dataclass_fields__},
            "shared_tokens": spec.shared_tokens,
            "refused": self._traffic.refused,
            "refusal": self._traffic.refusal,
            "engine": {name: getattr(config, name) for name in ENGINE_OPTIONS},
            "scenario": self.scenario,
            "story": self._story(),
            "can_happen": self._incident is not None,
        }

    def control(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what `request` holds and return the state that follows. Raises InputError."""
        for name in request:
            if name not in ("traffic", "engine", "scenario"):
                raise suggest("control", name, ("traffic", "engine", "scenario"))
        spec = self._traffic.spec.changed(request.get("traffic", {}))
        if request.get("engine"):
            self._restart(request["engine"])
        if "traffic" in request:
            self._traffic.set(spec)
        if "scenario" in request:
            if request["scenario"] not in SCENARIOS:
                raise suggest("scenario", str(request["scenario"]), SCENARIOS)
            SCENARIOS[request["scenario"]](self)
        state = self.state()
        self._feed.send("state", state)
        return state

    # Scenarios

    def _happen(self) -> None:
        """Let the incident begin on an idle server without prefix caching."""
        incident = self._incident
        if incident is None:
            raise InputError(self._story())
        self._traffic.stop()
        if self._app.clock.config.prefix_caching:
            self._restart({"prefix_caching": False})
        self._incident = incident = self._plan() or incident
        self._happening = True
        self._feed.mark(time.time(), "Monday")
        self._traffic.set(incident.traffic)
        self._traffic.burst(incident.burst, incident.within_s)

    def _fix(self) -> None:
        """Turn prefix caching on, and let the traffic go on."""
        if not self._app.clock.config.prefix_caching:
            self._restart({"prefix_caching": True})

    def _calm(self) -> None:
        """Send nothing more and clear the queue."""
        self._traffic.set(replace(self._traffic.spec, on=False))
        self._traffic.clear()
        self._happening = False

    # The engine

    def _restart(self, options: object) -> None:
        if not isinstance(options, dict):
            raise InputError("engine must be a JSON object")
        values = {}
        for name, value in options.items():
            if name not in ENGINE_OPTIONS:
                raise suggest("engine option", str(name), ENGINE_OPTIONS)
            values[name] = checks_of(ServerSpec)[name](value, name)
        server = build_server(replace(self._app.server.spec, **values))
        self._app.restart(server)
        self._restarted()
        self._traffic.send_again()
        self._incident = self._plan() or self._incident
        text = ", ".join(_setting_text(name, value) for name, value in values.items())
        self._feed.mark(time.time(), text)

    def _plan(self) -> Incident | None:
        """Plan the incident as it is without prefix caching, whatever is on now."""
        return plan_incident(self._app.server, self._app.spec.speed)

    def _story(self) -> str:
        incident = self._incident
        if incident is None:
            if self._app.server.spec.slots is not None:
                return "No incident here: slots never share their cache, so there would be no fix."
            return (
                "No incident here: this server is too fast, or too small, for the page to overload it. "
                "Start serve with --hardware l4-24gb for one."
            )
        rate, shared = incident.traffic.rate, incident.traffic.shared_tokens
        if self.scenario == "fixed":
            return (
                f"The same traffic, with prefix caching: the {shared:,} tokens that prompts share are computed once "
                "and stored once. Watch the queue drain and the first tokens come back."
            )
        begun = self.scenario == "incident"
        people = f"{incident.burst:,} people {'opened' if begun else 'open'} the assistant"
        tokens = incident.traffic.prompt_tokens
        return (
            f"{people} within {incident.within_s:.2g} s, then {rate:g} more a second. "
            f"Prompts of {tokens:,} tokens begin with one of two system prompts of {shared:,}; "
            f"the cache has room for {incident.room:,} such requests at once."
            + (" Everybody else waits. The cure is one flag." if begun else "")
        )


SCENARIOS: dict[str, Callable[[Controls], None]] = {
    "incident": Controls._happen,
    "fix": Controls._fix,
    "calm": Controls._calm,
}
"""What the page's buttons ask for."""


def _setting_text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"{SHORT[name]} {'on' if value else 'off'}"
    return f"{SHORT[name]} {value:,}"
