"""The live page in front of a simulated server: counts its steps, feeds the page, and connects the page's controls."""

from __future__ import annotations

import time
from time import monotonic
from typing import Any

from servesim import __version__
from servesim.live.controls import Controls
from servesim.live.feed import MAX_VIEWERS, SAMPLE_S, Feed
from servesim.live.meter import CHARTS, WINDOW_S, LiveFigures, Meter, Trail
from servesim.live.page import page_routes
from servesim.live.traffic import Traffic
from servesim.serve.app import ServeApp
from servesim.serve.generation import EndedStep, Generation, StepTokens
from servesim.serve.run import Serving

FIRST_SAMPLE_S = 0.05


class EngineSource:
    """Counts every step and end (see `StepListener`) and returns the figures of a simulated server."""

    def __init__(self, app: ServeApp) -> None:
        self._app = app
        self.begin()

    def begin(self) -> None:
        """Begin at nothing, as the engine does that was just started."""
        now = monotonic()
        self._meter = Meter(now)
        self._hits, self._queries, self._preempted = Trail(now), Trail(now), Trail(now)

    def on_step(self, step: EndedStep, tokens: StepTokens, lateness_s: float) -> None:
        self._meter.tokens(tokens.count)
        for generation in tokens.firsts:
            self._meter.first_token(generation.first_s, generation.first_s - generation.arrived_s)

    def on_over(self, generation: Generation, reason: str, now: float) -> None:
        if reason != "abort":
            made = generation.made
            self._meter.completed(now, (now - generation.first_s) / (made - 1) if made > 1 else None)

    def refused(self, count: int) -> None:
        """Hear of requests that were turned away."""
        self._meter.failed(count)

    def figures(self) -> LiveFigures:
        now, clock = monotonic(), self._app.clock
        totals = clock.engine.totals
        for trail, total in (
            (self._hits, totals.hit_tokens),
            (self._queries, totals.looked_up_tokens),
            (self._preempted, totals.preemptions),
        ):
            trail.add(now, total)
        queries = self._queries.growth
        return self._meter.figures(
            now,
            running=clock.last.running,
            waiting=clock.waiting,
            kv_usage=1.0 - clock.last.free_blocks / clock.config.num_blocks,
            prefix_hit_rate=self._hits.growth / queries if queries else None,
            preempted_per_s=self._preempted.rate,
        )


class LiveServer:
    """The page of one simulated server. With an API key it only looks on: a key is there to keep strangers out."""

    def __init__(self, serving: Serving) -> None:
        app = self._app = serving.app
        self._loop = serving.loop
        self._figures = EngineSource(app)
        self._refused = 0
        app.listeners.append(self._figures)
        self.traffic = Traffic(app, serving.loop)
        self.feed = Feed(self._hello, min(MAX_VIEWERS, max(1, app.spec.max_connections // 4)))
        self.feed.sockets = serving.loop
        self.steering = Controls(app, self.traffic, self.feed, self._figures.begin)
        control = None if app.has_api_key else self.steering.control
        app.add_routes(page_routes(self.feed, control, app.spec.host))
        serving.loop.later(FIRST_SAMPLE_S, self._tick)

    def _hello(self) -> dict[str, Any]:
        app = self._app
        config, speed = app.clock.config, app.spec.speed
        about = f"{app.server.model.name} on {app.server.spec.hardware}, simulated"
        about += f"; {config.num_blocks:,} KV blocks of {config.block_size} tokens"
        controls = None
        if not app.has_api_key:
            controls = {"limits": self.steering.limits(), "state": self.steering.state()}
        return {
            "kind": "serve",
            "title": app.model_name,
            "about": about + (f"; clock {speed:g} times as fast as the device" if speed != 1 else ""),
            "version": __version__,
            "window_s": WINDOW_S,
            "sources": ["server"],
            "charts": [chart.as_dict() for chart in CHARTS.values()],
            "controls": controls,
        }

    def _tick(self) -> None:
        """Take a sample and send it, until the server drains."""
        if self._app.draining:
            self.traffic.stop()
            self.feed.end()
            return
        if self.traffic.refused != self._refused:
            self._figures.refused(self.traffic.refused - self._refused)
            self._refused = self.traffic.refused
            self.feed.send("state", self.steering.state())
        self.feed.sample(time.time(), {"server": self._figures.figures()})
        self._loop.later(SAMPLE_S, self._tick)


def attach(serving: Serving) -> LiveServer:
    """Serve the live page at `/` of a simulated server."""
    return LiveServer(serving)
