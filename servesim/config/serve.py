"""How the simulated server is put on the network: every option of `serve` beside the engine's, declared once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from servesim.config.option import check_fields, count, number, one_of, option, seconds, switch, text
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


NETWORK = "network"
API = "API"
CLOCK = "clock"
FAULTS = "faults on demand"

_share = number(minimum=0.0, maximum=1.0)


@dataclass(slots=True, frozen=True, kw_only=True)
class ServeSpec:
    """One server's place on the network and its manners. Raises `InputError` for a value that makes no sense."""

    host: str = option("127.0.0.1", text, "address to listen on", "HOST", group=NETWORK, common=True)
    port: int = option(8000, count(minimum=0, maximum=65535), "port to listen on; 0: any that is free", common=True)
    served_model_name: str | None = option(
        None, text, "the model's name in the API", "NAME", shown_default="that of --model", group=API
    )
    dialect: str = option("vllm", one_of("dialect", DIALECTS), "what it looks like: {choices}", "NAME", common=True)
    speed: float = option(
        1.0, number(above=0.0, maximum=1e6), "times as fast as the real device", "X", group=CLOCK, common=True
    )
    settle_s: float = option(
        0.01,
        seconds(),
        "count a request that comes within TIME of the client's last answer as sent at once",
        "TIME",
        shown_default="10ms, at most half a step",
    )
    seed: int = option(7, count(minimum=0), "of what is drawn: lengths, texts, faults", group=API)
    answer_tokens: tuple[int, int] = option(
        (64, 256),
        _range,
        "length of an answer that nothing else ends, drawn from A-B",
        "A-B",
        shown_default="64-256",
    )
    api_key_env: str | None = option(
        None,
        text,
        "environment variable with the key that clients must give",
        "NAME",
        shown_default="no key",
        group=NETWORK,
    )
    allow_origin: str = option("*", text, "pages that may read the answers: * or a comma list", "ORIGIN")
    enable_prompt_tokens_details: bool = option(False, switch, "report the cached tokens in the usage", group=API)
    fail_rate: float = option(
        0.0, _share, "share of requests that are answered with a 500", "X", group=FAULTS, common=True
    )
    stall: float = option(0.0, _share, "share of answers that fall silent half-way", "X")
    stall_for_s: float = option(10.0, seconds(positive=True), "how long they are silent", "TIME")
    cut_streams: float = option(0.0, _share, "share of answers whose connection is closed half-way", "X")
    max_connections: int = option(
        1024, count(maximum=100_000), "connections at once; beyond, idle ones are closed", group=NETWORK
    )
    max_body_bytes: int = option(
        16 * 2**20, _bytes, "largest body of a request", "SIZE", flag="--max-body", shown_default="16MiB"
    )
    grace_s: float = option(30.0, seconds(), "when stopped, let answers finish for TIME", "TIME")

    def __post_init__(self) -> None:
        check_fields(self)
