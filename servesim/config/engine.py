"""The limits and rules of one engine: facts that check themselves.

What it may do (`EngineConfig`), how the server it stands for schedules (`RULES`), who goes first (`POLICIES`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from servesim.errors import InputError

if TYPE_CHECKING:  # limits are wanted by commands that simulate nothing
    from servesim.workload.requests import Requests


@dataclass(slots=True, frozen=True, kw_only=True)
class Rules:
    """How one range of vLLM versions schedules, as booleans that are each read in one place.

    Source: vLLM's V1 scheduler as observed version by version (vllm/v1/core/sched/scheduler.py,
    vllm/v1/core/kv_cache_manager.py, vllm/v1/core/block_pool.py).
    """

    whole_sequence_must_fit: bool  # scheduler_reserve_full_isl: admission needs room for all of `length`
    keyless_to_front: bool  # released blocks without a key are the next to be taken
    threshold_spares_single: bool  # long_prefill_token_threshold does not cut a request that is alone


RULES: dict[str, Rules] = {
    "vllm-0.32": Rules(whole_sequence_must_fit=True, keyless_to_front=True, threshold_spares_single=True),
    "vllm-0.18": Rules(whole_sequence_must_fit=False, keyless_to_front=False, threshold_spares_single=False),
}


Key = tuple[Any, ...]
KeyFunction = Callable[["Requests", "array[int]", int], Key]


@dataclass(slots=True, frozen=True, kw_only=True)
class Policy:
    """`admission` orders `waiting` (None: arrivals at the back, preempted ones at the front); `victim` picks whom to
    preempt: the running request with the largest key (None: the youngest).

    Both are given the requests, the output tokens that each may have, and an index.
    """

    about: str
    admission: KeyFunction | None
    victim: KeyFunction | None


def _priority(requests: Requests, _: array[int], index: int) -> Key:
    priority = 0 if requests.priority is None else requests.priority[index]
    return priority, requests.arrival_s[index], index


def _total_length(requests: Requests, targets: array[int], index: int) -> Key:
    return requests.prompt_tokens[index] + targets[index], requests.arrival_s[index], index


POLICIES: dict[str, Policy] = {
    "fcfs": Policy(about="first come, first served; the youngest is preempted", admission=None, victim=None),
    "priority": Policy(
        about="lowest priority number first, then arrival; the largest is preempted",
        admission=_priority,
        victim=_priority,
    ),
    "sjf": Policy(
        about="shortest prompt + output first: an oracle, since no server knows the output",
        admission=_total_length,
        victim=None,
    ),
}


@dataclass(slots=True, frozen=True, kw_only=True)
class TierConfig:
    """`blocks` it holds (None: without end), and the seconds that one takes to come back over its link."""

    blocks: int | None
    block_s: float
    block_bytes: int = 0  # for the report
    name: str = "host"

    def __post_init__(self) -> None:
        if self.blocks is not None and self.blocks < 0:
            raise InputError(f"kv tier {self.name} has {self.blocks} blocks, must have 0 or more")
        if not self.block_s >= 0.0:
            raise InputError(f"kv tier {self.name} takes {self.block_s} s for a block, must be 0 or more")


@dataclass(slots=True, frozen=True, kw_only=True)
class AdapterConfig:
    """`max_loras` adapters at once; the seconds that loading one and reading one in a step take."""

    max_loras: int
    load_s: float = 0.0
    read_s: float = 0.0

    def __post_init__(self) -> None:
        if self.max_loras < 1:
            raise InputError(f"max_loras is {self.max_loras}, must be 1 or more")
        for name in ("load_s", "read_s"):
            if not getattr(self, name) >= 0.0:
                raise InputError(f"{name} is {getattr(self, name)}, must be 0 or more")


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineConfig:
    """What one engine is allowed to do. Blocks are usable blocks: vLLM's null block is not among them."""

    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    prefix_caching: bool = False
    chunked_prefill: bool = True
    async_scheduling: bool = False
    long_prefill_token_threshold: int = 0
    watermark_blocks: int = 0  # int(watermark x vLLM's num_gpu_blocks)
    reserve_full_isl: bool = True  # read only where the rules have whole_sequence_must_fit
    max_tokens_in_flight: int = 0  # 0: off
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    client_timeout_s: float | None = None
    policy: str = "fcfs"  # a key of POLICIES
    rules: str = "vllm-0.32"  # a key of RULES
    spec_tokens: int = 0  # speculative decoding: drafted tokens per step
    acceptance: tuple[float, ...] = ()  # of a drafted token: one probability, or one per position
    kv_tiers: tuple[TierConfig, ...] = ()  # below the device's cache, the nearest first
    kv_tiers_overlap: bool = False  # a fetch goes on beside the step instead of before it
    adapters: AdapterConfig | None = None  # LoRA; read where a request names one
    seed: int = 7  # of what the engine draws: how many drafted tokens are accepted

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, must be 1 or more")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InputError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, "
                f"must be at least max_num_seqs ({self.max_num_seqs})"
            )
        if self.rules not in RULES:
            raise InputError(f"unknown rules {self.rules!r}, must be one of {', '.join(RULES)}")
