"""How the simulated server is put on the network: every option of `serve` beside those of the engine, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from servesim.config.server import count, number, one_of, seconds, text
from servesim.units import parse_bytes, parse_range

DIALECTS = {
    "vllm": "vLLM's routes, errors and /metrics",
    "llamacpp": "llama.cpp's: also /slots, /props and /completion",
}


def _bytes(value: Any, name: str) -> int:
    return parse_bytes(value, name) if isinstance(value, str) else count(minimum=1024)(value, name)


def _range(value: Any, name: str) -> tuple[int, int]:
    low, high = value if isinstance(value, (list, tuple)) and len(value) == 2 else parse_range(value, name)
    return int(low), int(high)


_share = number(minimum=0.0, maximum=1.0)

SERVE_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "host": text,
    "port": count(minimum=0, maximum=65535),
    "served_model_name": text,
    "dialect": one_of("dialect", DIALECTS),
    "speed": number(above=0.0, maximum=1e6),
    "settle_s": seconds(),
    "seed": count(minimum=0),
    "answer_tokens": _range,
    "api_key_env": text,
    "allow_origin": text,
    "enable_prompt_tokens_details": lambda value, name: bool(value),
    "fail_rate": _share,
    "stall": _share,
    "stall_for_s": seconds(positive=True),
    "cut_streams": _share,
    "max_connections": count(maximum=100_000),
    "max_body_bytes": _bytes,
    "grace_s": seconds(),
}


@dataclass(slots=True, frozen=True, kw_only=True)
class ServeSpec:
    """One server's place on the network and its manners. Raises `InputError` for a value that makes no sense."""

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    dialect: str = "vllm"
    speed: float = 1.0
    settle_s: float = 0.01
    seed: int = 7
    answer_tokens: tuple[int, int] = (64, 256)
    api_key_env: str | None = None
    allow_origin: str = "*"
    enable_prompt_tokens_details: bool = False
    fail_rate: float = 0.0
    stall: float = 0.0
    stall_for_s: float = 10.0
    cut_streams: float = 0.0
    max_connections: int = 1024
    max_body_bytes: int = 16 * 1024 * 1024
    grace_s: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                object.__setattr__(self, field.name, SERVE_CHECKS[field.name](value, field.name))
