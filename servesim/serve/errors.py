"""Errors as the servers word them: status, structure and text of vLLM 0.32, and of llama.cpp.

Source: captured answers of both. vLLM's validation errors are pydantic's, each a Python dict in a message of text.
"""

from __future__ import annotations

from servesim.errors import ServesimError
from servesim.wire.events import Json


class ApiError(ServesimError):
    """A request that is refused; `body` is the JSON of the answer."""

    def __init__(self, status: int, body: Json, *, fields: tuple[tuple[str, str], ...] = (), kind: str = "") -> None:
        super().__init__(str(body))
        self.status = status
        self.body = body
        self.fields = fields
        self.kind = kind  # of a bounded queue: its limit


def error_body(status: int, message: str, kind: str, param: str | None = None) -> Json:
    """Return an error as vLLM writes it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def bad_request(message: str, param: str | None = None, value: object = None) -> ApiError:
    """Return vLLM's plain 400; `param` and `value` are named in the text too."""
    if param is not None:
        named = f"parameter={param}" if value is None else f"parameter={param}, value={value}"
        message = f"{message} ({named})"
    return ApiError(400, error_body(400, message, "BadRequestError", param))


def validation_error(problems: list[Json]) -> ApiError:
    """Return what comes of a body that does not have the form it must have."""
    lines = "".join(f"\n  {problem}" for problem in problems)
    count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''}"
    return ApiError(400, error_body(400, f"{count}:{lines}", "Bad Request", problems[0]["loc"]))


def wrong_json(position: int, reason: str) -> ApiError:
    """Return what comes of a body that is not JSON from byte `position` on."""
    return validation_error(
        [
            {
                "type": "json_invalid",
                "loc": f"body.{position}",
                "msg": "JSON decode error",
                "input": "<dict of 0 items>",
                "ctx": {"error": reason},
            }
        ]
    )


def missing(name: str, body: Json) -> Json:
    """Return the problem of a field that must be there."""
    return {"type": "missing", "loc": f"body.{name}", "msg": "Field required", "input": described(body)}


def mistyped(name: str, kind: str, message: str, value: object) -> Json:
    """Return the problem of a field of the wrong kind."""
    return {"type": kind, "loc": f"body.{name}", "msg": message, "input": described(value)}


def described(value: object) -> object:
    """Return a value as the message shows it: what is long is only counted."""
    if isinstance(value, dict):
        return f"<dict of {len(value)} items>"
    if isinstance(value, list):
        return f"<list of {len(value)} items>"
    return value if not isinstance(value, str) or len(value) <= 64 else f"<str of {len(value)} characters>"


def unknown_model(name: str, known: str) -> ApiError:
    message = f"The model `{name[:256]}` does not exist. Valid aliases: {known}."
    return ApiError(404, error_body(404, message, "NotFoundError", "model"))


def prompt_too_long(longest: int, prompt: int, *, at_least: bool) -> ApiError:
    contains = f"at least {prompt}" if at_least else str(prompt)
    return bad_request(
        f"This model's maximum context length is {longest} tokens. However, your prompt contains {contains} input "
        "tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt.",
        "input_tokens",
        prompt,
    )


def max_tokens_too_large(max_tokens: int, longest: int) -> ApiError:
    return bad_request(
        f"max_tokens={max_tokens} cannot be greater than max_model_len={longest}. Please request fewer output tokens.",
        "max_tokens",
        max_tokens,
    )


def queue_full(limit: str) -> ApiError:
    """Return what a bounded queue answers to those it has no room for."""
    message = f"The server is at its limit of waiting requests ({limit}). Please try again later."
    body = error_body(429, message, "TooManyRequestsError")
    return ApiError(429, body, fields=(("retry-after", "1"),), kind=limit)


def internal_error(message: str) -> ApiError:
    return ApiError(500, error_body(500, message, "InternalServerError"))


def shutting_down() -> ApiError:
    return ApiError(503, error_body(503, "The server is shutting down.", "ServiceUnavailableError"))


def unauthorized() -> ApiError:
    return ApiError(401, {"error": "Unauthorized"}, fields=(("www-authenticate", "Bearer"),))


def not_found() -> ApiError:
    return ApiError(404, {"detail": "Not Found"})


def wrong_method(allowed: str) -> ApiError:
    return ApiError(405, {"detail": "Method Not Allowed"}, fields=(("allow", allowed),))


def llamacpp_error(error: ApiError, *, prompt: int | None = None, longest: int | None = None) -> ApiError:
    """Return the same refusal in llama.cpp's words."""
    if prompt is not None and longest is not None:
        text = f"request ({prompt} tokens) exceeds the available context size ({longest} tokens), try increasing it"
        kind: Json = {"type": "exceed_context_size_error", "n_prompt_tokens": prompt, "n_ctx": longest}
        return ApiError(400, {"error": {"code": 400, "message": text, **kind}})
    names = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
    names |= {429: "rate_limit_error", 503: "unavailable_error"}
    inner = error.body.get("error")
    message = inner.get("message", "") if isinstance(inner, dict) else error.body.get("detail", inner)
    body = {"error": {"code": error.status, "message": message, "type": names.get(error.status, "server_error")}}
    return ApiError(error.status, body, fields=error.fields, kind=error.kind)
