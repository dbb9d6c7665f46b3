"""The page's own traffic: an open loop of requests straight into the simulated engine, without a socket in between.

Each prompt is token numbers like any other, so that prefix caching finds in them what it would find in text. When the
engine is started again with other options the requests in flight are sent again, as clients that try again do: a queue
that a setting has built is still there for the next setting to work off.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass, fields
from time import monotonic
from typing import Any, Protocol

from servesim.config.option import count, number, switch
from servesim.errors import InputError
from servesim.serve.app import ServeApp
from servesim.serve.generation import Generation
from servesim.units import suggest
from servesim.workload.seeds import random_stream

MAX_RATE = 200.0
MAX_PROMPT_TOKENS, MAX_OUTPUT_TOKENS = 32768, 8192
MAX_HELD = 2000  # requests of ours in the house; beyond, they are turned away
MAX_LAG_S = 1.0  # arrivals that are later than this are left out
SYSTEM_PROMPTS = 2
SHARED_SHARE = 0.75  # of a prompt, where prompts share their heads
SPREAD = 0.25  # lengths are drawn from this far around what is asked for

TRAFFIC_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "on": switch,
    "rate": number(minimum=0.01, maximum=MAX_RATE),
    "prompt_tokens": count(maximum=MAX_PROMPT_TOKENS),
    "output_tokens": count(maximum=MAX_OUTPUT_TOKENS),
    "shared": switch,
}


@dataclass(slots=True, frozen=True, kw_only=True)
class TrafficSpec:
    """What is sent: requests per second of the wall's clock, lengths in tokens, whether prompts begin alike."""

    on: bool = False
    rate: float = 1.0
    prompt_tokens: int = 512
    output_tokens: int = 128
    shared: bool = False

    @property
    def shared_tokens(self) -> int:
        """Tokens at the head of a prompt that others have too."""
        return round(self.prompt_tokens * SHARED_SHARE) if self.shared else 0

    def changed(self, changes: object) -> TrafficSpec:
        """Return this with `changes`, a JSON object. Raises InputError."""
        if not isinstance(changes, dict):
            raise InputError("traffic must be a JSON object")
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in changes.items():
            if name not in TRAFFIC_CHECKS:
                raise suggest("traffic option", str(name), TRAFFIC_CHECKS)
            values[name] = TRAFFIC_CHECKS[name](value, name)
        return TrafficSpec(**values)


class Timers(Protocol):
    """Who calls back: the loop."""

    def later(self, delay_s: float, call: Callable[[], None]) -> None: ...


class Traffic:
    """Sends requests as its `spec` says, and holds those that are not over."""

    def __init__(self, app: ServeApp, timers: Timers) -> None:
        self.spec = TrafficSpec()
        self.refused = 0  # in all, and
        self.refusal: str | None = None  # why the last one was
        self._app = app
        self._timers = timers
        self._random = random_stream(app.spec.seed, "live traffic")
        self._heads = [self._text(MAX_PROMPT_TOKENS) for _ in range(SYSTEM_PROMPTS)]
        self._held: dict[Generation, array[int]] = {}
        self._epoch = 0  # timers of an earlier one are void
        self._due_s = 0.0

    @property
    def in_flight(self) -> int:
        return len(self._held)

    def set(self, spec: TrafficSpec) -> None:
        """Go on as `spec` says; what is in flight is left alone."""
        self.spec = spec
        self._epoch += 1
        self.refusal = None
        if spec.on:
            self._due_s = monotonic() + self._random.expovariate(spec.rate)
            self._wait(self._epoch)

    def burst(self, requests: int, within_s: float) -> None:
        """Send so many requests, spread evenly over the next seconds, beside what `spec` says."""
        epoch = self._epoch
        for place in range(requests):
            self._timers.later(within_s * place / requests, lambda: self._send_at(epoch))

    def clear(self) -> None:
        """Forget what is in flight; its blocks are free before the next step."""
        held, self._held = self._held, {}
        now = monotonic()
        for generation in held:
            self._app.clock.cancel(generation, now)

    def stop(self) -> None:
        """Send nothing more and forget what is in flight."""
        self._epoch += 1
        self.clear()

    def send_again(self) -> None:
        """Send what is in flight to an engine that was just started. Its users count from when they first asked."""
        held, self._held = self._held, {}
        for generation, tokens in held.items():
            if not generation.over:
                self._submit(tokens, generation.target, generation.arrived_s)

    def receive(self, generation: Generation, first: int) -> None:
        """Take a request's tokens (see `Reader`): nobody reads them."""
        if generation.over:
            self._held.pop(generation, None)

    # Arrivals

    def _wait(self, epoch: int) -> None:
        self._timers.later(max(0.0, self._due_s - monotonic()), lambda: self._arrive(epoch))

    def _arrive(self, epoch: int) -> None:
        if epoch != self._epoch or self._app.draining:
            return
        now = monotonic()
        self._due_s = max(self._due_s, now - MAX_LAG_S)
        while self._due_s <= now:
            self._send(self._due_s)
            self._due_s += self._random.expovariate(self.spec.rate)
        self._wait(epoch)

    def _send_at(self, epoch: int) -> None:
        if epoch == self._epoch and not self._app.draining:
            self._send(monotonic())

    def _send(self, arrived_s: float) -> None:
        """Draw a request and submit it, within what the server takes at all."""
        spec, longest = self.spec, self._app.max_model_len
        shared = spec.shared_tokens
        output = max(1, min(self._drawn(spec.output_tokens), longest - 1))
        prompt = max(1, min(shared + self._drawn(spec.prompt_tokens - shared), longest - output))
        head = self._random.choice(self._heads)[: min(shared, prompt)]
        self._submit(head + self._text(prompt - len(head)), output, arrived_s)

    def _submit(self, tokens: array[int], output: int, arrived_s: float) -> None:
        app, prompt = self._app, len(tokens)
        reason = "the page holds no more" if len(self._held) >= MAX_HELD else app.clock.overflow(prompt)
        reason = reason or app.clock.limits.refusal(prompt, prompt + output)
        if reason is not None:
            self.refused += 1
            self.refusal = reason.replace("_", " ")
            return
        generation = Generation(number=0, prompt=prompt, target=output, arrived_s=arrived_s)
        generation.reader = self
        if app.prefixes is not None:
            generation.content, _ = app.prefixes.content(tokens)
        self._held[generation] = tokens
        app.dialect.metrics.on_request(1, output)
        app.clock.submit(generation)

    def _drawn(self, about: int) -> int:
        return round(about * self._random.uniform(1 - SPREAD, 1 + SPREAD))

    def _text(self, tokens: int) -> array[int]:
        """Return token numbers that nobody else has."""
        numbers = array("I")
        numbers.frombytes(self._random.randbytes(tokens * numbers.itemsize))
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers
