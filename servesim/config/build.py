"""From a server as it was given to one that can be run: defaults, memory, limits, cost model.

What depends on something else is decided here and nowhere else: vLLM's own defaults for a device, the balance of
max_num_seqs and token budget, the cache that memory leaves, the slots of llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from servesim.catalog.hardware import Hardware, load_hardware
from servesim.catalog.model import Model
from servesim.catalog.models import load_model
from servesim.catalog.servers import vllm_defaults
from servesim.config.engine import AdapterConfig, EngineConfig
from servesim.config.offload import tiers_of
from servesim.config.server import ServerSpec
from servesim.cost.memory import (
    DEFAULT_TOKENS_PER_REQUEST,
    DEFAULT_UTILIZATION,
    CapacityPlan,
    adapter_bytes,
    plan_capacity,
)
from servesim.cost.model import COST_MODELS, CostModel, FloorWatch
from servesim.cost.roofline import Roofline
from servesim.errors import InputError
from servesim.units import parse_bandwidth, parse_duration, suggest

MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 8192
BLOCK_SIZE = 16
COST_MODEL = "roofline"


@dataclass(slots=True, frozen=True, kw_only=True)
class Server:
    """A server that can be run: `spec` with every value in force, and what follows from it."""

    spec: ServerSpec
    model: Model
    hardware: Hardware
    plan: CapacityPlan
    config: EngineConfig
    adapter_bytes: int = 0  # of one LoRA adapter on one device; 0 where adapters are off
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def cost(self) -> CostModel:
        """Return the cost model of one run; one that may beat the datasheet is watched."""
        tensor_parallel = self.spec.tensor_parallel_size
        kv = self._kv_bytes_per_token()
        cost = COST_MODELS[self.spec.cost_model or COST_MODEL](
            self.model, self.hardware, tensor_parallel, kv_bytes_per_token=kv, **self._spread()
        )
        if getattr(cost, "can_beat_floor", True):
            return FloorWatch(cost, self.model, self.hardware, tensor_parallel, kv_bytes_per_token=kv)
        return cost

    def roofline(self) -> Roofline:
        """Return the roofline of the server's steps, whatever cost model it is run with."""
        tensor_parallel = self.spec.tensor_parallel_size
        return Roofline(self.model, self.hardware, tensor_parallel, kv_bytes_per_token=self._kv_bytes_per_token())

    def _kv_bytes_per_token(self) -> int | None:
        """Return the plan's figure where a token's KV depends on how many there are (sliding windows), else None."""
        return None if self.model.kv_is_linear else self.plan.whole_kv_bytes_per_token

    def _spread(self) -> dict[str, int]:
        """Return what a cost model beside the roofline wants to know of pipelines and shared experts."""
        if self.spec.cost_model == "roofline":
            return {}
        parallel = self.plan.parallel
        return {
            "pipeline_parallel": parallel.pipeline,
            "expert_parallel": parallel.expert_devices if parallel.expert else 1,
            "data_parallel": parallel.data,
        }

    def describe(self) -> dict[str, Any]:
        """Return every value in force, as a document's `config` has it, with the usable blocks that follow."""
        return {**self.spec.as_dict(), "num_blocks": self.config.num_blocks}


def build_server(given: ServerSpec, *, tokens_per_request: int | None = None) -> Server:
    """Return the server that `given` comes to.

    Raises `InputError` for limits that contradict each other and `CapacityError` where memory does not suffice.
    """
    hardware = _device(given)
    cost_model = given.cost_model or hardware.fitted_for or COST_MODEL
    if cost_model not in COST_MODELS:
        raise suggest("cost model", cost_model, COST_MODELS)
    given, model = replace(given, cost_model=cost_model), _model(given)
    spec = replace(_with_defaults(given, hardware), kv_cache_dtype=model.kv_dtype)
    spec, notes = _with_limits(spec, given, hardware)
    adapter = _adapter_bytes(spec, model)
    plan = _plan(spec, model, hardware, tokens_per_request, adapter * (spec.max_loras or 0))
    config = _engine_config(spec, plan, _adapters(spec, hardware, adapter))
    if given.slots is not None:
        spec = replace(spec, max_num_seqs=config.max_num_seqs, max_model_len=config.max_model_len)
    return Server(
        spec=spec,
        model=model,
        hardware=hardware,
        plan=plan,
        config=config,
        adapter_bytes=adapter,
        notes=tuple(notes),
        warnings=tuple(_warnings(spec, given, hardware, plan)),
    )


def _model(given: ServerSpec) -> Model:
    """Return the model with the weights and the cache in the formats that were given."""
    model = load_model(given.model)
    if given.quantization is not None and given.quantization != model.weight_dtype:
        model = model.quantized(given.quantization)
    return model if given.kv_cache_dtype is None else model.with_kv_dtype(given.kv_cache_dtype)


def _device(given: ServerSpec) -> Hardware:
    """Return the device with what was given instead; a value that is the preset's own changes nothing of it."""
    preset = load_hardware(given.hardware)
    overhead_s = preset.overhead_s if given.step_overhead_s is None else given.step_overhead_s
    hardware = preset.with_efficiency(
        mfu=None if given.mfu == preset.mfu else given.mfu,
        mbu=None if given.mbu == preset.mbu else given.mbu,
        overhead_ms=None if overhead_s == preset.overhead_s else overhead_s * 1e3,
    )
    return hardware if given.reserve_gib is None else replace(hardware, reserve_gib=given.reserve_gib)


def _with_defaults(given: ServerSpec, hardware: Hardware) -> ServerSpec:
    """Fill in what was not given and depends on nothing but the device and on whether vLLM's defaults are wanted."""
    utilization, block_size, caching, ahead = DEFAULT_UTILIZATION, BLOCK_SIZE, False, False
    if given.like_vllm:
        vllm = vllm_defaults(hardware, given.rules, tensor_parallel=given.tensor_parallel_size)
        utilization, block_size = vllm.gpu_memory_utilization, vllm.block_size
        caching, ahead = vllm.prefix_caching, vllm.async_scheduling
    return replace(
        given,
        gpu_memory_utilization=_or(given.gpu_memory_utilization, utilization),
        reserve_gib=hardware.reserve_gib,
        block_size=_or(given.block_size, block_size),
        prefix_caching=_or(given.prefix_caching, caching),
        async_scheduling=_or(given.async_scheduling, ahead),
        mfu=hardware.mfu,
        mbu=hardware.mbu,
        step_overhead_s=_or(given.step_overhead_s, hardware.overhead_s),
    )


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _with_limits(spec: ServerSpec, given: ServerSpec, hardware: Hardware) -> tuple[ServerSpec, list[str]]:
    """Balance max_num_seqs and token budget as vLLM does, and say what was moved."""
    tokens, seqs, longest = given.max_num_batched_tokens, given.max_num_seqs, given.max_model_len
    if given.slots is not None:
        seqs = given.slots
    if tokens is not None and seqs is not None and tokens < seqs:
        raise InputError(
            f"max_num_batched_tokens is {tokens}, must be at least max_num_seqs ({seqs}): "
            "every running sequence needs a token of each step"
        )
    too_long = tokens is not None and longest is not None and longest > tokens
    if too_long and not given.chunked_prefill and given.slots is None:  # what a slot holds was not given, but follows
        raise InputError(
            f"max_model_len is {longest}, must be at most max_num_batched_tokens ({tokens}) without chunked prefill: "
            "a prompt enters whole or not at all"
        )
    default_tokens, default_seqs = MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS
    if given.like_vllm:
        vllm = vllm_defaults(hardware, given.rules, tensor_parallel=given.tensor_parallel_size)
        default_tokens, default_seqs = vllm.max_num_batched_tokens, vllm.max_num_seqs
    tokens_in_force, seqs_in_force = tokens, seqs
    if tokens_in_force is None:
        tokens_in_force = max(default_tokens, seqs_in_force or 0)
        if longest is not None and not given.chunked_prefill:
            tokens_in_force = max(tokens_in_force, longest)
        if given.like_vllm and longest is not None:
            tokens_in_force = max(min(tokens_in_force, (seqs_in_force or default_seqs) * longest), seqs_in_force or 0)
    if seqs_in_force is None:
        seqs_in_force = min(default_seqs, tokens_in_force)
    notes = []
    if tokens is None and tokens_in_force > default_tokens:
        notes.append(f"max_num_batched_tokens raised from {default_tokens:,} to {tokens_in_force:,}")
    if seqs is None and seqs_in_force < default_seqs:
        notes.append(f"max_num_seqs lowered from {default_seqs:,} to the token budget, {seqs_in_force:,}")
    return replace(spec, max_num_batched_tokens=tokens_in_force, max_num_seqs=seqs_in_force), notes


def _adapter_bytes(spec: ServerSpec, model: Model) -> int:
    """Return a device's part of one adapter, 0 where there are none."""
    if spec.max_loras is None:
        return 0
    return -(-adapter_bytes(model, spec.adapter_rank) // (spec.tensor_parallel_size * spec.pipeline_parallel_size))


def _adapters(spec: ServerSpec, hardware: Hardware, each_bytes: int) -> AdapterConfig | None:
    """Return what adapters of `each_bytes` cost: a load over its link, a read in every step as weights are read."""
    if spec.max_loras is None:
        return None
    load = spec.adapter_load
    if load.endswith("/s"):
        load_s = each_bytes / parse_bandwidth(load, "adapter_load")
    else:
        load_s = parse_duration(load, "adapter_load")
    read_s = each_bytes / (hardware.bandwidth_gb_s * 1e9 * hardware.mbu)
    return AdapterConfig(max_loras=spec.max_loras, load_s=load_s, read_s=read_s)


def _plan(
    spec: ServerSpec, model: Model, hardware: Hardware, tokens_per_request: int | None, adapters_bytes: int
) -> CapacityPlan:
    """Plan the memory; adapters have slots of their own from the start, as in vLLM, so that they are reserved."""
    assert spec.gpu_memory_utilization is not None and spec.block_size is not None  # filled in above
    return plan_capacity(
        model,
        hardware,
        gpu_memory_utilization=spec.gpu_memory_utilization,
        block_size=spec.block_size,
        reserve_bytes=hardware.reserve_bytes + adapters_bytes,
        tensor_parallel=spec.tensor_parallel_size,
        pipeline_parallel=spec.pipeline_parallel_size,
        data_parallel=spec.data_parallel_size,
        expert_parallel=spec.expert_parallel,
        kv_tokens=spec.kv_tokens,
        kv_blocks=spec.kv_blocks,
        max_model_len=spec.max_model_len if spec.slots is None else None,
        tokens_per_request=_or(tokens_per_request, DEFAULT_TOKENS_PER_REQUEST),
    )


def _engine_config(spec: ServerSpec, plan: CapacityPlan, adapters: AdapterConfig | None) -> EngineConfig:
    assert spec.max_num_seqs is not None and spec.max_num_batched_tokens is not None
    num_blocks, max_model_len = plan.num_blocks, spec.max_model_len
    if spec.slots is not None:
        cache = plan.kv_tokens if spec.kv_tokens is None else spec.kv_tokens
        slot_tokens = cache // spec.slots
        if slot_tokens < 2:
            raise InputError(f"slots is {spec.slots}, must leave 2 tokens or more of the {cache:,} to each")
        max_model_len = slot_tokens if max_model_len is None else min(max_model_len, slot_tokens)
        num_blocks = spec.slots * -(-slot_tokens // plan.block_size)
    if spec.kv_offload is not None and not spec.prefix_caching:
        raise InputError("kv_offload keeps what falls out of the prefix cache; give prefix_caching too")
    return EngineConfig(
        num_blocks=num_blocks,
        block_size=plan.block_size,
        max_num_seqs=spec.max_num_seqs,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        max_model_len=max_model_len,
        prefix_caching=bool(spec.prefix_caching),
        chunked_prefill=spec.chunked_prefill,
        async_scheduling=bool(spec.async_scheduling),
        long_prefill_token_threshold=spec.long_prefill_token_threshold,
        watermark_blocks=int(spec.watermark * (num_blocks + 1)),
        reserve_full_isl=spec.scheduler_reserve_full_isl,
        max_tokens_in_flight=spec.max_tokens_in_flight,
        max_num_queued_reqs=spec.max_num_queued_reqs,
        max_num_queued_tokens=spec.max_num_queued_tokens,
        client_timeout_s=spec.client_timeout_s,
        policy=spec.policy,
        rules=spec.rules,
        spec_tokens=spec.spec_tokens or 0,
        acceptance=tuple(map(float, spec.acceptance.split(":"))) if spec.acceptance else (),
        kv_tiers=tiers_of(spec.kv_offload, spec.offload_link, plan),
        kv_tiers_overlap=spec.offload_overlap,
        adapters=adapters,
    )


def _warnings(spec: ServerSpec, given: ServerSpec, hardware: Hardware, plan: CapacityPlan) -> list[str]:
    warnings = list(plan.warnings)
    if plan.start is not None and not plan.start.starts:
        warnings.append(
            f"vLLM would not start with max_model_len {plan.start.max_model_len:,}: "
            f"the cache holds a sequence of at most {plan.start.largest_context:,}"
        )
    if spec.tensor_parallel_size > 1 and spec.cost_model == "roofline":
        warnings.append("the roofline leaves out the communication of tensor parallelism: times are a lower bound")
    if spec.pipeline_parallel_size > 1 and spec.cost_model == "roofline":
        warnings.append("the roofline takes a step through all pipeline stages before the next: no two batches overlap")
    if spec.data_parallel_size > 1 and spec.cost_model == "roofline" and plan.model.experts is not None:
        warnings.append("the roofline reads all experts on every rank, though each holds a part: ask for detailed")
    warnings += [
        f"{name} is {value:g}, above 1: steps may be faster than the datasheet of {hardware.name} allows"
        for name, value in (("mfu", hardware.mfu), ("mbu", hardware.mbu))
        if value > 1
    ]
    if not given.chunked_prefill and given.long_prefill_token_threshold > 0:
        warnings.append("long_prefill_token_threshold cuts prompts although chunked prefill is off")
    return warnings
