"""The server of a run: every option that describes it, each declared once and checked by itself.

A field left at None was not given; `servesim.config.build` decides what it becomes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from servesim.catalog.weights import KV_BYTES, WEIGHT_FORMATS
from servesim.config.engine import POLICIES, RULES
from servesim.config.offload import DEFAULT_OFFLOAD_LINK, JOIN, links, sizes
from servesim.config.option import (
    check_fields,
    count,
    number,
    one_of,
    option,
    options_of,
    seconds,
    switch,
    text,
    values_of,
)
from servesim.cost.memory import MAX_RANK
from servesim.cost.model import COST_MODELS
from servesim.errors import InputError
from servesim.units import parse_bandwidth, parse_duration, parse_finite, shown

DEVICE = "model and device"
LIMITS = "limits of the engine"
QUEUE = "queue and clients"
TIERS = "KV tiers below the device"
SPECULATION = "speculative decoding"
ADAPTERS = "LoRA adapters"
COST = "cost of a step"


def kv_dtype(value: Any, name: str) -> str | None:
    """Check for the dtype of a KV cache; `auto`, as vLLM calls it, is the model's own."""
    return None if value == "auto" else one_of("kv cache dtype", KV_BYTES)(value, name)


def probabilities(value: Any, name: str) -> str:
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


@dataclass(slots=True, frozen=True, kw_only=True)
class ServerSpec:
    """One server of one model on one kind of device. Raises `InputError` for a value that no server could have."""

    model: str = option(
        "llama-3.1-8b",
        text,
        "a preset (servesim models), a config.json, its folder, or a .gguf file",
        "NAME",
        group=DEVICE,
        common=True,
    )
    hardware: str = option(
        "h100-sxm-80gb", text, "a preset (servesim hardware) or a device's JSON file", "NAME", common=True
    )
    quantization: str | None = option(
        None,
        one_of("quantization", WEIGHT_FORMATS),
        "of the weights: fp8, awq, q4_k_m, ... (servesim models --formats)",
        "NAME",
        shown_default="as the model comes",
    )
    tensor_parallel_size: int = option(
        1, count(maximum=4096), "devices that share the model; the roofline leaves communication out", common=True
    )
    pipeline_parallel_size: int = option(1, count(maximum=4096), "stages that share the layers")
    data_parallel_size: int = option(1, count(maximum=4096), "ranks with a cache each; experts are shared over all")
    expert_parallel: bool = option(
        False, switch, "each device has whole experts, not a part of each", flag="--enable-expert-parallel"
    )
    gpu_memory_utilization: float | None = option(
        None,
        number(above=0.0, maximum=1.0),
        "share of the device's memory that the server may use, 0 to 1",
        "X",
        shown_default="0.90; with --like-vllm 0.92, under the 0.18 rules 0.90",
        derived=True,
    )
    reserve_gib: float | None = option(
        None,
        number(minimum=0.0, maximum=1e6),
        "GiB kept for activations and the runtime",
        "GIB",
        shown_default="of the hardware preset",
        derived=True,
    )
    block_size: int | None = option(
        None, count(maximum=2**20), "tokens in one KV block", shown_default="16", derived=True
    )
    kv_cache_dtype: str | None = option(
        None, kv_dtype, f"of the KV cache: {', '.join(KV_BYTES)}", "DTYPE", shown_default="of the model", derived=True
    )
    kv_tokens: int | None = option(
        None, count(maximum=2**40), "size of the KV cache in tokens, instead of what memory allows"
    )
    kv_blocks: int | None = option(
        None,
        count(minimum=2, maximum=2**40),
        "size of the KV cache as vLLM's log prints it, of which one block is vLLM's null block",
    )
    slots: int | None = option(
        None,
        count(maximum=2**20),
        "N slots with their own share of the cache each, as llama.cpp's --parallel N",
        after="max_tokens_in_flight",
    )
    max_num_seqs: int | None = option(
        None,
        count(maximum=2**31),
        "sequences that run at once",
        group=LIMITS,
        shown_default="256, at most the token budget",
        derived=True,
        common=True,
    )
    max_num_batched_tokens: int | None = option(
        None,
        count(maximum=2**40),
        "token budget of one step",
        shown_default="8192, at least a given --max-num-seqs",
        derived=True,
        common=True,
    )
    max_model_len: int | None = option(
        None,
        count(maximum=2**40),
        "longest prompt + output, in tokens",
        shown_default="no limit",
        derived=True,
        common=True,
    )
    chunked_prefill: bool = option(
        True,
        switch,
        "cut prompts at the token budget (default)",
        no="a prompt enters a step whole or not at all",
    )
    long_prefill_token_threshold: int = option(
        0, count(minimum=0, maximum=2**40), "most tokens of one prompt in a step, 0: off"
    )
    watermark: float = option(
        0.0,
        number(minimum=0.0, maximum=1.0),
        "share of blocks kept free when admitting beside running requests",
        "X",
    )
    scheduler_reserve_full_isl: bool = option(
        True,
        switch,
        "admit only when the whole sequence fits (default under the 0.32 rules)",
        no="admit when the first chunk fits, not the whole sequence",
    )
    prefix_caching: bool | None = option(
        None,
        switch,
        "reuse the KV of equal prefixes (default with --like-vllm)",
        no="never reuse KV (default)",
        derived=True,
        common=True,
    )
    async_scheduling: bool | None = option(
        None,
        switch,
        "schedule one step ahead (default with --like-vllm on GPUs)",
        no="schedule after each step (default)",
        derived=True,
    )
    rules: str = option("vllm-0.32", one_of("rules", RULES), "the scheduler's rules: {choices}", "NAME")
    policy: str = option(
        "fcfs", one_of("policy", POLICIES), "who is served first: {choices} (sjf is an oracle)", "NAME"
    )
    max_tokens_in_flight: int = option(
        0, count(minimum=0, maximum=2**53), "most tokens of all running requests at admission, 0: off"
    )
    max_num_queued_reqs: int | None = option(
        None,
        count(minimum=0),
        "arrivals beyond N waiting requests are refused (429)",
        shown_default="no limit",
        group=QUEUE,
    )
    max_num_queued_tokens: int | None = option(
        None, count(minimum=0), "the same, in waiting prompt tokens", shown_default="no limit"
    )
    client_timeout_s: float | None = option(
        None, seconds(positive=True), "a client leaves after TIME", "TIME", shown_default="never"
    )
    kv_offload: str | None = option(
        None,
        sizes,
        "evicted prefixes fall into SIZE of host memory; give it again, or A+B, for a tier below that",
        "SIZE",
        shown_default="off",
        join=JOIN,
        when_used=True,
        group=TIERS,
    )
    offload_link: str | None = option(
        None,
        links,
        "bandwidth between a device and the tier; one for all tiers, or one for each",
        "RATE",
        shown_default=DEFAULT_OFFLOAD_LINK,
        join=JOIN,
        when_used=True,
    )
    offload_overlap: bool = option(False, switch, "KV comes back beside the step instead of before it", when_used=True)
    spec_tokens: int | None = option(
        None,
        count(minimum=0, maximum=64),
        "drafted tokens that each step verifies beside the next one, 0: off",
        shown_default="0",
        when_used=True,
        group=SPECULATION,
    )
    acceptance: str | None = option(
        None,
        probabilities,
        "probability that a drafted token is accepted, with --spec-tokens; one, or one a position: 0.9:0.7:0.5",
        "A",
        when_used=True,
    )
    max_loras: int | None = option(
        None,
        count(maximum=2**20),
        "adapters in one batch, each with room on the device",
        shown_default="adapters cost nothing",
        when_used=True,
        group=ADAPTERS,
    )
    adapter_rank: int = option(
        16,
        count(maximum=MAX_RANK),
        "rank of every adapter: its bytes follow from the model",
        "R",
        when_used=True,
    )
    adapter_load: str = option(
        "25GB/s", time_or_bandwidth, "time to load one, or the bandwidth it is loaded with", "TIME|RATE", when_used=True
    )
    like_vllm: bool = option(
        False,
        switch,
        "what is not given has vLLM's own default for the device (vllm serve)",
        after="async_scheduling",
        common=True,
    )
    cost_model: str | None = option(
        None,
        text,
        f"how a step's time is computed: {', '.join(COST_MODELS)}",
        "NAME",
        shown_default="roofline; of a device that calibrate fitted, the model it fitted",
        derived=True,
        after="step_overhead_s",
    )
    mfu: float | None = option(
        None,
        number(above=0.0, maximum=1e3),
        "share of peak FLOP/s that is reached",
        "X",
        group=COST,
        shown_default="of the hardware preset, mostly 0.50",
        derived=True,
    )
    mbu: float | None = option(
        None,
        number(above=0.0, maximum=1e3),
        "share of peak bandwidth that is reached",
        "X",
        shown_default="of the hardware preset, mostly 0.75",
        derived=True,
    )
    step_overhead_s: float | None = option(
        None,
        seconds(),
        "time of a step beside compute and memory",
        "TIME",
        shown_default="of the hardware preset, mostly 1ms",
        derived=True,
    )

    def __post_init__(self) -> None:
        check_fields(self)
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
        """Return the fields by name, those of features that are off left out."""
        return values_of(self)


DERIVED = tuple(dict.fromkeys(option.key for option in options_of(ServerSpec) if option.derived))
"""Fields whose value, where it is not given, follows from others: the device, the model, vLLM's own defaults."""
