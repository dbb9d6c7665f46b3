"""What is behind the sockets: routes and who may ask for them, requests for text and their way into the engine.

It knows no server program's words: a dialect brings its routes, response formats, errors and metrics.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from servesim.config.build import Server
from servesim.config.serve import ServeSpec
from servesim.serve.answer import AnswerWriter, Choice, Context, ResponseFormat
from servesim.serve.api_request import ApiRequest
from servesim.serve.connection import Connection
from servesim.serve.engine_clock import EngineClock
from servesim.serve.errors import (
    ApiError,
    internal_error,
    not_found,
    queue_full,
    shutting_down,
    unauthorized,
    wrong_method,
)
from servesim.serve.generation import NO_READER, EndedStep, Faults, Generation, StepListener, StepTokens
from servesim.serve.http import HttpRequest
from servesim.serve.metrics import DialectMetrics, Metrics
from servesim.serve.prompt import PromptBuilder
from servesim.serve.tokenizer import Prefixes, Tokenizer
from servesim.workload.seeds import random_stream

if TYPE_CHECKING:
    from servesim.serve.loop import Loop


@dataclass(slots=True, frozen=True)
class Response:
    """An answer that is there at once."""

    status: int
    body: bytes
    content_type: str = "application/json"
    fields: tuple[tuple[str, str], ...] = ()


Handler = Callable[[Connection, HttpRequest], Response | None]
"""Answers a request at once, or returns None and answers it later."""


class Dialect(Protocol):
    """One server program: what it offers and how it words it."""

    @property
    def metrics(self) -> DialectMetrics:
        """What it counts."""

    def routes(self) -> Mapping[str, Mapping[str, Handler]]:
        """Return the handlers by path and method."""

    def reword(self, error: ApiError) -> ApiError:
        """Return a refusal in this program's words."""

    def is_open(self, path: str) -> bool:
        """Tell whether a path may be asked for without the API key."""


class ServeApp:
    """Answers requests for one simulated server."""

    def __init__(
        self,
        server: Server,
        spec: ServeSpec,
        make_dialect: Callable[[ServeApp], Dialect],
        *,
        api_key: str | None = None,
    ) -> None:
        self.spec = spec
        self.tokenizer = Tokenizer()
        self.draining = False
        self.answers: dict[AnswerWriter, None] = {}
        self.listeners: list[StepListener] = []  # who else hears of steps and ends, from one engine to the next
        self.loop: Loop | None = None  # whoever serves this
        self._make_dialect = make_dialect
        self._open_routes: dict[str, Mapping[str, Handler]] = {}
        self._api_key = None if api_key is None else api_key.encode()
        self._faults = Faults(fail=spec.fail_rate, stall=spec.stall, cut=spec.cut_streams, seed=spec.seed)
        self._random = random_stream(spec.seed, "serve")
        self._start(server)

    def _start(self, server: Server) -> None:
        """Be a server that was just started: nothing is counted, nothing is cached."""
        self.server = server
        self.model_name = self.spec.served_model_name or server.model.name
        config = server.config
        self.max_model_len = config.max_model_len or config.num_blocks * config.block_size
        self.started_s = int(time.time())
        self.dialect = self._make_dialect(self)
        self.metrics = Metrics(self.dialect.metrics)
        self.clock = EngineClock(server, self, speed=self.spec.speed, settle_s=self.spec.settle_s)
        self.prompt_builder = PromptBuilder(
            self.clock, self.spec, self.tokenizer, self._random, max_model_len=self.max_model_len
        )
        self.routes = {**self._open_routes, **self.dialect.routes()}

    def restart(self, server: Server) -> None:
        """Go on as if stopped and started again with other options, on the same port.

        What is in flight does not survive it: a stream is cut, and who waits for a whole answer gets a 503.
        """
        for answer in list(self.answers):
            if answer.stream:
                assert self.loop is not None
                self.loop.close(answer.connection)
            else:
                self._client_gone(answer)
                self._send(answer.connection, self._refusal(shutting_down()))
        self._start(server)

    def add_routes(self, routes: Mapping[str, Mapping[str, Handler]]) -> None:
        """Answer more than the dialect does, to anybody, with the API key or without."""
        self._open_routes.update(routes)
        self.routes = {**self._open_routes, **self.dialect.routes()}

    @property
    def has_api_key(self) -> bool:
        """Whether clients must give a key."""
        return self._api_key is not None

    @property
    def prefixes(self) -> Prefixes | None:
        """What the prefix cache knows prompts by; None without one."""
        return self.prompt_builder.prefixes

    # What the engine does

    def on_step(self, step: EndedStep, tokens: StepTokens, lateness_s: float) -> None:
        self.metrics.on_step(step, tokens, lateness_s)
        for listener in self.listeners:
            listener.on_step(step, tokens, lateness_s)

    def on_over(self, generation: Generation, reason: str, now: float) -> None:
        self.metrics.on_over(generation, reason, now)
        for listener in self.listeners:
            listener.on_over(generation, reason, now)

    # Requests

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        """Answer a request of any kind, now or later."""
        if request.method == "OPTIONS" and "origin" in request.headers:
            self._send(connection, self._preflight(request))
            return
        try:
            response = self._handler(request)(connection, request)
        except ApiError as error:
            response = self._refusal(error)
        if response is not None:
            self._send(connection, response)

    def _refusal(self, error: ApiError) -> Response:
        error = self.dialect.reword(error)
        return Response(error.status, json.dumps(error.body, separators=(",", ":")).encode(), fields=error.fields)

    def _handler(self, request: HttpRequest) -> Handler:
        if self.draining:
            raise shutting_down()
        methods = self.routes.get(request.path)
        if methods is None:
            raise not_found()
        handler = methods.get(request.method)
        if handler is None:
            raise wrong_method(", ".join(sorted(methods)))
        is_open = request.path in self._open_routes or self.dialect.is_open(request.path)
        if self._api_key is not None and not is_open:
            scheme, _, key = request.header("authorization").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(key.strip().encode("utf-8"), self._api_key):
                raise unauthorized()
        return handler

    def _preflight(self, request: HttpRequest) -> Response:
        headers = request.header("access-control-request-headers")
        fields = [
            ("access-control-allow-methods", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"),
            ("access-control-max-age", "600"),
        ]
        if headers:
            fields.append(("access-control-allow-headers", headers))
        return Response(200, b"OK", "text/plain; charset=utf-8", tuple(fields))

    def cors(self, request: HttpRequest | None) -> list[tuple[str, str]]:
        """Return the fields by which a browser lets a page read the answer."""
        fields = [("vary", "Origin")]
        if request is not None and "origin" in request.headers:
            allowed = self.spec.allow_origin
            if allowed == "*" or request.header("origin") in allowed.split(","):
                fields.insert(0, ("access-control-allow-origin", "*" if allowed == "*" else request.header("origin")))
        return fields

    def _send(self, connection: Connection, response: Response) -> None:
        content = [("content-type", response.content_type)] if response.body or response.status != 200 else []
        fields = [*content, *response.fields, *self.cors(connection.request)]
        connection.answer(response.status, fields, response.body)
        self._over(connection)

    def _over(self, connection: Connection) -> None:
        """Count an answer that is out and let the connection go on."""
        request = connection.request
        assert self.loop is not None
        if request is not None:
            handler = request.path if request.path in self.routes else "none"
            seconds = max(0.0, time.monotonic() - request.arrived_s)
            sizes = request.size_bytes, connection.sent_bytes
            self.metrics.http.on_answer(handler, request.method, connection.status, *sizes, seconds)
        self.loop.over(connection)

    # Requests for text

    def generate(
        self,
        connection: Connection,
        request: HttpRequest,
        api_request: ApiRequest,
        make_format: Callable[[Context], ResponseFormat],
        id_prefix: str,
    ) -> None:
        """Take a request for text into the engine and answer it when its tokens are made. Raises ApiError."""
        fate = self._faults.draw()
        prompts = [self.prompt_builder.tokens_of(prompt) for prompt in api_request.prompts]
        limits = [self.prompt_builder.limit(api_request, len(tokens)) for tokens in prompts]
        total = sum(map(len, prompts)) * api_request.n
        full = self.clock.overflow(total, len(prompts) * api_request.n)
        if full is not None:
            self.dialect.metrics.on_refusal(full)
            raise queue_full(full)
        if fate.fails:
            self.metrics.own.faults.add(kind="fail")
            raise internal_error("a failure that was asked for (--fail-rate)")
        context = Context(
            id=f"{id_prefix}{self._random.getrandbits(64):016x}",
            created=int(time.time()),
            model=self.model_name,
            fingerprint=f"servesim-{self.server.spec.rules}",
            prompt_tokens=sum(map(len, prompts)),
            n=api_request.n,
            include_usage=api_request.include_usage,
            continuous_usage=api_request.continuous_usage,
            report_cached=self.spec.enable_prompt_tokens_details,
        )
        response_format = make_format(context)
        generations = self.prompt_builder.generations(context, api_request, prompts, limits, request.arrived_s)
        answer = AnswerWriter(
            self, connection, response_format, stream=api_request.stream, fate=fate, stall_s=self.spec.stall_for_s
        )
        for generation in generations:
            generation.reader = answer
        self.answers[answer] = None
        connection.on_gone = lambda: self._client_gone(answer)
        self.dialect.metrics.on_request(api_request.n, max(limits))
        if api_request.stream:
            content = ("content-type", response_format.content_type)
            connection.begin(200, [content, *response_format.stream_fields, *self.cors(request)])
        for generation in generations:
            self.clock.submit(generation, follows=connection)
        self.clock.awaited.discard(connection)

    # How answers go

    def choice_over(self, answer: AnswerWriter, choice: Choice) -> None:
        self.prompt_builder.learn(choice)

    def answer_over(self, answer: AnswerWriter, whole: bytes | None) -> None:
        """Send an answer that was not streamed and let the connection go on; its client may ask again at once."""
        self._forget(answer)
        if answer.connection.keep_alive and not self.draining:
            self.clock.awaited.add(answer.connection)
        if whole is None:
            self._over(answer.connection)
        else:
            self._send(answer.connection, Response(200, whole))

    def hang_up(self, answer: AnswerWriter, kind: str) -> None:
        """Close the connection of an answer: a fault that was asked for, or a client that takes nothing."""
        if kind == "cut":
            self.metrics.own.faults.add(kind="cut")
        if kind == "cut" and not answer.stream:
            answer.connection.begin(200, [("content-type", "application/json")])
        assert self.loop is not None
        self.loop.close(answer.connection)

    def unsent(self, connection: Connection) -> None:
        assert self.loop is not None
        self.loop.watch(connection)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.metrics.own.faults.add(kind="stall")
        assert self.loop is not None
        self.loop.later(delay_s, call)

    def _client_gone(self, answer: AnswerWriter) -> None:
        """Free what a client that left was given, before the next step is decided."""
        answer.closed = True
        now = time.monotonic()
        for generation in answer.generations:
            self.prompt_builder.drop(generation)
            self.clock.cancel(generation, now)
        self._forget(answer)

    def _forget(self, answer: AnswerWriter) -> None:
        self.answers.pop(answer, None)
        for generation in answer.generations:
            generation.reader = NO_READER  # no circle is left for the garbage collector

    # Now and then

    def tidy(self) -> None:
        self.prompt_builder.tidy(self.clock)

    def count_connections(self, count: int) -> None:
        self.metrics.own.connections.set(count)
