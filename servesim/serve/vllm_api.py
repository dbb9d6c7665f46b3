"""vLLM's routes: text, models, tokens, health, load, version, metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from servesim.serve.app import Handler, Response
from servesim.serve.asked import Asked, Fields, read_chat, read_completion, read_json
from servesim.serve.connection import Connection
from servesim.serve.errors import ApiError, Json, bad_request, missing, unknown_model
from servesim.serve.http import HttpRequest
from servesim.serve.shapes import VllmChat, VllmCompletion, encode
from servesim.serve.tokenizer import chat_tokens, cut
from servesim.serve.vllm_metrics import VllmMetrics

if TYPE_CHECKING:
    from servesim.serve.app import ServeApp

VERSIONS = {"vllm-0.32": "0.32.0", "vllm-0.18": "0.18.1"}
METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class VllmApi:
    """vLLM's OpenAI-compatible server."""

    def __init__(self, app: ServeApp) -> None:
        self._app = app
        self.metrics = VllmMetrics(app.server, model_name=app.model_name, max_model_len=app.max_model_len)

    def routes(self) -> Mapping[str, Mapping[str, Handler]]:
        return {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completion},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/health": {"GET": _nothing},
            "/ping": {"GET": _nothing, "POST": _nothing},
            "/load": {"GET": self._load},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics},
        }

    def reword(self, error: ApiError) -> ApiError:
        return error

    def is_open(self, path: str) -> bool:
        return not path.startswith("/v1")

    def _read(self, request: HttpRequest, read: Any) -> Asked:
        asked: Asked = read(read_json(request.body))
        self._check_model(asked.model)
        return asked

    def _check_model(self, asked: str | None) -> None:
        if asked is not None and asked != self._app.model_name:
            raise unknown_model(asked, self._app.model_name)

    def _chat(self, connection: Connection, request: HttpRequest) -> None:
        self._app.generate(connection, request, self._read(request, read_chat), VllmChat, "chatcmpl-")

    def _completion(self, connection: Connection, request: HttpRequest) -> None:
        self._app.generate(connection, request, self._read(request, read_completion), VllmCompletion, "cmpl-")

    def _models(self, connection: Connection, request: HttpRequest) -> Response:
        app = self._app
        permission = {"id": "modelperm-servesim", "object": "model_permission", "created": app.started_s}
        permission |= {"allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True}
        permission |= {"allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False}
        permission |= {"organization": "*", "group": None, "is_blocking": False}
        model = {"id": app.model_name, "object": "model", "created": int(time.time()), "owned_by": "vllm"}
        model |= {"root": app.server.spec.model, "parent": None, "max_model_len": app.max_model_len}
        return whole({"object": "list", "data": [model | {"permission": [permission]}]})

    def _tokenize(self, connection: Connection, request: HttpRequest) -> Response:
        body = read_json(request.body)
        fields = Fields(body)
        self._check_model(fields.text("model"))
        if "messages" in body:
            (messages,) = read_chat({"messages": body["messages"]}).prompts
            numbers = self._app.tokenizer.encode_chat(messages)  # type: ignore[arg-type]
            texts = list(chat_tokens(messages)) if body.get("return_token_strs") else None  # type: ignore[arg-type]
        else:
            if "prompt" not in body:
                fields.problems.append(missing("prompt", body))
            text = fields.text("prompt")
            fields.check()
            if text is None:
                raise bad_request("prompt must be a text.", "prompt")
            numbers = self._app.tokenizer.encode(text)
            texts = list(cut(text)) if body.get("return_token_strs") else None
        told: Json = {"count": len(numbers), "max_model_len": self._app.max_model_len}
        return whole(told | {"tokens": list(numbers), "token_strs": texts})

    def _load(self, connection: Connection, request: HttpRequest) -> Response:
        return whole({"server_load": len(self._app.answers)})

    def _version(self, connection: Connection, request: HttpRequest) -> Response:
        return whole({"version": VERSIONS[self._app.server.spec.rules]})

    def _metrics(self, connection: Connection, request: HttpRequest) -> Response:
        return Response(200, self._app.metrics.page(self._app.clock).encode(), METRICS_TYPE)


def whole(body: Json) -> Response:
    """Return a body as the answer."""
    return Response(200, encode(body))


def _nothing(connection: Connection, request: HttpRequest) -> Response:
    return Response(200, b"")
