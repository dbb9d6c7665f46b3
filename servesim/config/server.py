"""The server that is asked for: the fields of every option that describes it, as given, each checked by itself.

A field left at None was not asked for; `servesim.config.build` decides what it becomes. The same fields are the
command line's options, the keyword arguments of `simulate()` and the keys of a document's `config`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from servesim.catalog.weights import KV_BYTES, WEIGHT_FORMATS
from servesim.config.engine import POLICIES, RULES
from servesim.config.offload import links, sizes
from servesim.cost.memory import MAX_RANK
from servesim.errors import InputError
from servesim.units import parse_bandwidth, parse_count, parse_duration, parse_finite, shown, suggest

Check = Callable[[Any, str], Any]

MAX_DAYS = 3660  # of any time that is asked for; more than that is a slip of a unit


def count(minimum: int = 1, maximum: int = 2**53) -> Check:
    """Return a check for a whole number."""
    return lambda value, name: parse_count(value, name, minimum=minimum, maximum=maximum)


def number(*, above: float | None = None, minimum: float | None = None, maximum: float | None = None) -> Check:
    """Return a check for a finite number."""
    return lambda value, name: parse_finite(value, name, above=above, minimum=minimum, maximum=maximum)


def seconds(*, positive: bool = False) -> Check:
    """Return a check for a time: text with its unit, or a number of seconds from a document or a program."""

    def check(value: Any, name: str) -> float:
        if not isinstance(value, str):
            return parse_finite(value, name, above=0.0 if positive else None, minimum=0.0, maximum=MAX_DAYS * 86400.0)
        given_s = parse_duration(value, name, positive=positive)
        if given_s > MAX_DAYS * 86400.0:
            raise InputError(f"{name} is {shown(value)}, must be at most {MAX_DAYS}d")
        return given_s

    return check


@dataclass(slots=True, frozen=True)
class OneOf:
    """A check for a name in a registry, which tells its choices."""

    kind: str
    choices: Mapping[str, Any]

    def __call__(self, value: Any, name: str) -> str:
        if not isinstance(value, str):
            raise _wrong(value, name, "a name")
        if value not in self.choices:
            raise suggest(self.kind, value, self.choices)
        return value


def one_of(kind: str, choices: Mapping[str, Any]) -> OneOf:
    """Return a check for a name in a registry."""
    return OneOf(kind, choices)


def text(value: Any, name: str) -> str:
    """Check for text that is not empty."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise _wrong(value, name, "a name or a path")
    return value


def kv_dtype(value: Any, name: str) -> str | None:
    """Check for the dtype of a KV cache; `auto`, as vLLM calls it, is the model's own."""
    return None if value == "auto" else one_of("kv cache dtype", KV_BYTES)(value, name)


def switch(value: Any, name: str) -> bool:
    """Check for true or false."""
    if not isinstance(value, bool):
        raise _wrong(value, name, "true or false")
    return value


def acceptance(value: Any, name: str) -> str:
    """Check for probabilities that a drafted token is accepted: one, or one for each position, `0.9:0.8:0.6`."""
    parts = str(value).split(":") if isinstance(value, (str, float, int)) and not isinstance(value, bool) else [""]
    try:
        each = [parse_finite(part, name, minimum=0.0, maximum=1.0) for part in parts]
    except InputError:
        wrong = f"{name} is {shown(value)}, must be a probability from 0 to 1, or one a position, such as 0.9:0.7:0.5"
        raise InputError(wrong) from None
    return ":".join(f"{probability:g}" for probability in each)


def time_or_bandwidth(value: Any, name: str) -> str:
    """Check for what a load takes: a time such as `20ms`, or the bandwidth of the link, such as `25GB/s`."""
    given = text(value, name)
    (parse_bandwidth if given.endswith("/s") else parse_duration)(given, name)
    return given


def _wrong(value: object, name: str, what: str) -> InputError:
    return InputError(f"{name} is {shown(value)}, must be {what}")


SERVER_CHECKS: dict[str, Check] = {
    "model": text,
    "hardware": text,
    "quantization": one_of("quantization", WEIGHT_FORMATS),
    "tensor_parallel_size": count(maximum=4096),
    "pipeline_parallel_size": count(maximum=4096),
    "data_parallel_size": count(maximum=4096),
    "expert_parallel": switch,
    "gpu_memory_utilization": number(above=0.0, maximum=1.0),
    "reserve_gib": number(minimum=0.0, maximum=1e6),
    "block_size": count(maximum=2**20),
    "kv_cache_dtype": kv_dtype,
    "kv_tokens": count(maximum=2**40),
    "kv_blocks": count(minimum=2, maximum=2**40),
    "slots": count(maximum=2**20),
    "max_num_seqs": count(maximum=2**31),
    "max_num_batched_tokens": count(maximum=2**40),
    "max_model_len": count(maximum=2**40),
    "chunked_prefill": switch,
    "long_prefill_token_threshold": count(minimum=0, maximum=2**40),
    "watermark": number(minimum=0.0, maximum=1.0),
    "scheduler_reserve_full_isl": switch,
    "prefix_caching": switch,
    "async_scheduling": switch,
    "rules": one_of("rules", RULES),
    "policy": one_of("policy", POLICIES),
    "max_tokens_in_flight": count(minimum=0, maximum=2**53),
    "max_num_queued_reqs": count(minimum=0),
    "max_num_queued_tokens": count(minimum=0),
    "client_timeout_s": seconds(positive=True),
    "kv_offload": sizes,
    "offload_link": links,
    "offload_overlap": switch,
    "spec_tokens": count(minimum=0, maximum=64),
    "acceptance": acceptance,
    "max_loras": count(maximum=2**20),
    "adapter_rank": count(maximum=MAX_RANK),
    "adapter_load": time_or_bandwidth,
    "like_vllm": switch,
    "cost_model": text,
    "mfu": number(above=0.0, maximum=1e3),
    "mbu": number(above=0.0, maximum=1e3),
    "step_overhead_s": seconds(),
}
"""What each field of `ServerSpec` accepts: a flag's text or a JSON value, with the name it was given under."""


SAID_WHEN_USED = frozenset(
    "kv_offload offload_link offload_overlap spec_tokens acceptance max_loras adapter_rank adapter_load".split()
)
"""Fields that a configuration names only where they are used."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ServerSpec:
    """One server of one model on one kind of device. Raises `InputError` for a value that no server could have."""

    model: str = "llama-3.1-8b"
    hardware: str = "h100-sxm-80gb"
    quantization: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    expert_parallel: bool = False
    gpu_memory_utilization: float | None = None
    reserve_gib: float | None = None
    block_size: int | None = None
    kv_cache_dtype: str | None = None
    kv_tokens: int | None = None
    kv_blocks: int | None = None
    slots: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    rules: str = "vllm-0.32"
    policy: str = "fcfs"
    max_tokens_in_flight: int = 0
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    client_timeout_s: float | None = None
    kv_offload: str | None = None  # sizes of the tiers below the device's cache, see `offload`
    offload_link: str | None = None
    offload_overlap: bool = False
    spec_tokens: int | None = None  # drafted tokens per step
    acceptance: str | None = None  # of a drafted token
    max_loras: int | None = None  # adapters that run at once; None: adapters cost nothing
    adapter_rank: int = 16
    adapter_load: str = "25GB/s"
    like_vllm: bool = False
    cost_model: str | None = None
    mfu: float | None = None
    mbu: float | None = None
    step_overhead_s: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                object.__setattr__(self, field.name, SERVER_CHECKS[field.name](value, field.name))
        if self.kv_tokens is not None and self.kv_blocks is not None:
            raise InputError("kv_tokens and kv_blocks both size the cache; give one of them")
        if self.kv_offload is None and (self.offload_link is not None or self.offload_overlap):
            raise InputError("offload_link and offload_overlap belong to kv_offload; give its size, such as 64GB")
        if (self.spec_tokens and self.acceptance is None) or (self.spec_tokens is None and self.acceptance is not None):
            raise InputError("spec_tokens and acceptance belong together; give both, such as 3 and 0.7")
        if self.spec_tokens and self.acceptance and self.acceptance.count(":") not in (0, self.spec_tokens - 1):
            raise InputError(
                f"acceptance is {self.acceptance}, must be one or one for each of {self.spec_tokens} drafts"
            )
        if self.max_loras is None and (self.adapter_rank, self.adapter_load) != (16, "25GB/s"):
            raise InputError(
                "adapter_rank and adapter_load are what adapters cost; give max_loras, how many run at once"
            )
        if self.slots is None:
            return
        for name, given in (
            ("max_num_seqs", self.max_num_seqs not in (None, self.slots)),
            ("prefix_caching", self.prefix_caching),
            ("kv_offload", self.kv_offload),
            ("like_vllm", self.like_vllm),
            ("max_tokens_in_flight", self.max_tokens_in_flight),
        ):
            if given:
                raise InputError(f"slots never share their tokens; leave out {name} or slots")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, of those that are `SAID_WHEN_USED` the ones that are."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in SAID_WHEN_USED or getattr(self, field.name) != field.default
        }
