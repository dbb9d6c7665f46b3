"""What fits: the memory plan as text, each figure beside its arithmetic, and as the body of `capacity --json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Annotated

from servesim.catalog.model import Attention, Model
from servesim.catalog.weights import KV_BYTES, WEIGHT_BYTES
from servesim.config.build import Server
from servesim.cost.memory import CapacityPlan, format_reserve
from servesim.cost.roofline import Roofline, critical_batch
from servesim.units import (
    format_bytes,
    format_duration,
    format_gb,
    format_gib,
    format_gib_apart,
    format_number,
    format_si,
)

WIDTH = 98

Line = tuple[str, str, str]  # what, the figure with its unit, how it comes about


def capacity_text(plan: CapacityPlan, context: int | None = None, beside: Sequence[Line] = ()) -> str:
    """Return the plan as a labelled block of text; with `context`, the critical batch there too.

    `beside` are the lines of what a server has beside its cache (`beside_lines`).
    """
    model, hardware = plan.model, plan.hardware
    lines = [*_memory_lines(plan), *beside, *_start_lines(plan), *_cost_lines(plan, context)]
    label_width = max(len(label) for label, _, _ in lines)
    figure_width = max(len(figure) for _, figure, _ in lines)
    rows = [f"  {label:<{label_width}}  {figure:>{figure_width}}  {how}".rstrip() for label, figure, how in lines]
    notes = [fill(note, WIDTH, initial_indent="  note: ", subsequent_indent="        ") for note in _notes(plan)]
    return "\n".join([f"{model.name} on {hardware.name}{_shards(plan)}", *rows, *notes]) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCheck:
    """Whether vLLM would start with a context of `max_model_len`, and with which options it would."""

    max_model_len: int
    starts: bool
    needed_bytes: int
    available_bytes: int
    largest_context: int | None
    vllm_max_concurrency: float | None
    smallest_gpu_memory_utilization: float | None
    smallest_tensor_parallel_size: int | None
    kv_cache_dtype: Annotated[str | None, "one with which it would start"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRoom:
    """What one KV tier below the device's cache holds."""

    tier: str
    blocks: int | None
    tokens: int | None
    size_bytes: int | None
    block_ms: Annotated[float, "to fetch a block"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The body of `capacity --json`; bytes are whole numbers."""

    model: str
    hardware: str
    params: int
    active_params: Annotated[int, "of one token"]
    devices: int
    weights_bytes: Annotated[int, "of all devices"]
    device_weights_bytes: int
    kv_bytes_per_token: int | None
    budget_bytes: Annotated[int | None, "what the server may use of one device"]
    reserve_bytes: int | None
    kv_cache_bytes: int
    num_blocks: int
    kv_tokens: int
    tokens_per_request: int
    max_concurrency: Annotated[float, "requests of tokens_per_request at once"]
    decode_step_ms: Annotated[float, "of one sequence without context"]
    critical_batch: Annotated[float | None, "from which on arithmetic decides"]
    context: int | None
    critical_batch_at_context: Annotated[float | None, "null where memory decides at any batch"]
    ridge_flop_per_byte: float
    start: StartCheck | None
    warnings: list[str]
    adapter_bytes: int | None = None
    kv_tiers: list[TierRoom] | None = None


def capacity_of(plan: CapacityPlan, context: int | None = None, server: Server | None = None) -> Capacity:
    """Return what fits, and what the adapters and KV tiers of `server` take, where it has any."""
    start, block_size = plan.start, plan.block_size
    tiers = () if server is None else server.config.kv_tiers
    return Capacity(
        model=plan.model.name,
        hardware=plan.hardware.name,
        params=plan.model.params,
        active_params=plan.model.compute_params,
        devices=plan.parallel.devices,
        weights_bytes=plan.weights_bytes,
        device_weights_bytes=plan.device_weights_bytes,
        kv_bytes_per_token=plan.kv_bytes_per_token,
        budget_bytes=plan.budget_bytes,
        reserve_bytes=plan.reserve_bytes,
        kv_cache_bytes=plan.kv_cache_bytes,
        num_blocks=plan.num_blocks,
        kv_tokens=plan.kv_tokens,
        tokens_per_request=plan.tokens_per_request,
        max_concurrency=plan.max_concurrency,
        decode_step_ms=_roofline(plan).decode(1, 0) * 1e3,
        critical_batch=_rounded(_critical_batch(plan, 0)),
        context=context,
        critical_batch_at_context=None if context is None else _rounded(_critical_batch(plan, context)),
        ridge_flop_per_byte=plan.hardware.ridge_flop_per_byte,
        start=None
        if start is None
        else StartCheck(
            max_model_len=start.max_model_len,
            starts=start.starts,
            needed_bytes=start.needed_bytes,
            available_bytes=start.available_bytes,
            largest_context=start.largest_context,
            vllm_max_concurrency=plan.vllm_concurrency(start.max_model_len),
            smallest_gpu_memory_utilization=start.gpu_memory_utilization,
            smallest_tensor_parallel_size=start.tensor_parallel,
            kv_cache_dtype=start.kv_dtype,
        ),
        warnings=list(plan.warnings),
        adapter_bytes=(server.adapter_bytes or None) if server is not None else None,
        kv_tiers=[
            TierRoom(
                tier=tier.name,
                blocks=tier.blocks,
                tokens=(tier.blocks or 0) * block_size,
                size_bytes=(tier.blocks or 0) * tier.block_bytes,
                block_ms=tier.block_s * 1e3,
            )
            for tier in tiers
        ]
        or None,
    )


def beside_lines(server: Server) -> list[Line]:
    """Return what a server's adapters take out of its memory, and what the KV tiers below its cache hold."""
    lines, plan, spec = [], server.plan, server.spec
    if server.adapter_bytes:
        size = format_gib((spec.max_loras or 0) * server.adapter_bytes)
        how = f"{spec.max_loras} x {format_bytes(server.adapter_bytes)} of rank {spec.adapter_rank}, in the reserve"
        lines.append(("adapters", size, how))
    for tier in server.config.kv_tiers:
        blocks = tier.blocks or 0
        tokens = blocks * plan.block_size
        how = (
            f"{blocks:,} blocks = {tokens:,} tokens, {tokens / plan.kv_tokens:,.1f} of the device's cache, "
            f"{format_duration(tier.block_s)} a block"
        )
        lines.append((f"kv tier {tier.name}", format_gb(blocks * tier.block_bytes), how))
    return lines


def _shards(plan: CapacityPlan) -> str:
    """Return how many devices there are, and how they share the model."""
    parallel = plan.parallel
    if parallel.devices == 1:
        return ""
    sizes = (("tensor", parallel.tensor), ("pipeline", parallel.pipeline), ("data", parallel.data))
    used = [(name, size) for name, size in sizes if size > 1]
    text = ", ".join(name if len(used) == 1 else f"{name} {size}" for name, size in used)
    return f" x {parallel.devices} ({text} parallel, figures per device)"


def _memory_lines(plan: CapacityPlan) -> list[Line]:
    model, hardware = plan.model, plan.hardware
    per_token, *more_groups = _kv_arithmetic(plan)
    lines = [("weights", format_gb(plan.weights_bytes), _weights_arithmetic(model))]
    if plan.device_weights_bytes != plan.weights_bytes:
        lines.append(("weights per device", format_gb(plan.device_weights_bytes), _share_arithmetic(plan)))
    lines.append(("kv per token", format_bytes(plan.kv_bytes_per_token), per_token))
    lines += [("", "", how) for how in more_groups]
    budget_how = f"{format_gib(hardware.memory_bytes)} x {plan.gpu_memory_utilization:g} gpu-memory-utilization"
    lines.append(("budget", format_gib(plan.budget_bytes), budget_how))
    block = f"{plan.block_size} tokens x {format_bytes(plan.kv_bytes_per_token)}"
    if plan.basis == "memory":
        left = (
            f"budget - {format_gib(plan.device_weights_bytes)} weights - {format_reserve(plan.reserve_bytes)} reserve"
        )
        blocks_how = f"floor({format_gib(plan.kv_cache_bytes)} / ({block}))"
    elif plan.basis == "kv_tokens":
        left = f"{plan.num_blocks:,} blocks x {block}, as asked for"
        blocks_how = f"{plan.kv_tokens:,} tokens / {plan.block_size}, as asked for"
    else:
        left = f"{plan.num_gpu_blocks:,} blocks x {block}, as in the log"
        blocks_how = f"{plan.num_gpu_blocks:,} in the log - 1 null block"
    lines.append(("kv cache", format_gib(plan.kv_cache_bytes), left))
    lines.append(("blocks", f"{plan.num_blocks:,}", blocks_how))
    lines.append(("kv tokens", f"{plan.kv_tokens:,}", f"{plan.num_blocks:,} blocks x {plan.block_size} tokens"))
    concurrency_how = f"{plan.kv_tokens:,} tokens / {plan.tokens_per_request:,} tokens per request"
    lines.append(("max concurrency", f"{plan.max_concurrency:,.2f}x", concurrency_how))
    ranks = plan.parallel.data
    if ranks > 1:
        lines.append(("of all ranks", f"{ranks * plan.max_concurrency:,.2f}x", f"{ranks} data-parallel ranks"))
    return lines


def _weights_arithmetic(model: Model) -> str:
    if model.file_bytes is not None:
        return f"the file's own bytes, {format_si(model.params)} parameters ({model.weight_dtype})"
    quantised = f"{WEIGHT_BYTES[model.weight_dtype]:.6g} bytes ({model.weight_dtype})"
    if not model.kept_params:
        return f"{format_si(model.params)} parameters x {quantised}"
    kept = f"{format_si(model.kept_params)} x {WEIGHT_BYTES[model.kept_dtype]:g} bytes ({model.kept_dtype})"
    return f"{format_si(model.params - model.kept_params)} parameters x {quantised} + {kept}"


def _share_arithmetic(plan: CapacityPlan) -> str:
    """Return how a device comes by its share of the weights."""
    parallel = plan.parallel
    share = f"{format_gb(plan.weights_bytes)}" + (f" / {parallel.tensor}" if parallel.tensor > 1 else "")
    if plan.model.experts is not None and (parallel.data > 1 or parallel.expert):
        experts = "whole experts" if parallel.expert else "experts"
        share += f", of it {format_gb(plan.model.expert_bytes)} of {experts} / {parallel.expert_devices}"
    if parallel.pipeline > 1:
        share += f", the fullest of {parallel.pipeline} stages"
    return share


def _kv_arithmetic(plan: CapacityPlan) -> list[str]:
    """Return one line for each group of layers that keeps something."""
    dtype = plan.model.kv_dtype
    stages = plan.parallel.pipeline
    first, *others = [
        _group_arithmetic(plan, group.on_stage(stages)) for group in plan.model.attention if not group.idle
    ]
    return [f"{first} ({dtype})", *(f"+ {line}" for line in others)]


def _group_arithmetic(plan: CapacityPlan, group: Attention) -> str:
    over = f"/{plan.tokens_per_request:,}"
    if group.state_bytes:
        state_bytes = -(-group.state_bytes // plan.tensor_parallel)
        return f"{group.layers} recurrent layers x {format_bytes(state_bytes)}{over} tokens"
    width = f"{KV_BYTES[plan.model.kv_dtype]:g} bytes"
    heads = max(1, group.kv_heads // plan.tensor_parallel)
    if group.index_bytes:
        how = f"{group.layers} layers x ({group.latent_dim} latent x {width} + {group.index_bytes} of the indexer)"
    elif group.latent_dim:
        how = f"{group.layers} layers x {group.latent_dim} latent x {width}"
    elif group.value_dim:
        how = f"{group.layers} layers x {heads} KV heads x ({group.head_dim} + {group.value_dim}) x {width}"
    else:
        how = f"2 x {group.layers} layers x {heads} KV heads x {group.head_dim} head dim x {width}"
    if group.window is not None and group.window < plan.tokens_per_request:
        how = f"{how.replace(' head dim', '')} x {group.window:,}{over} window"
    return how


def _start_lines(plan: CapacityPlan) -> list[Line]:
    start = plan.start
    if start is None:
        return []
    verdict, sign = ("yes", "<=") if start.starts else ("no", ">")
    needed = f" {sign} ".join(format_gib_apart(start.needed_bytes, start.available_bytes))
    linear = plan.model.kv_is_linear
    longest = (
        f"{plan.num_blocks:,} blocks x {plan.block_size} tokens, one sequence" if linear else "tokens, one sequence"
    )
    lines = [
        ("will it start", verdict, f"{start.max_model_len:,} tokens need {needed} of KV cache"),
        ("largest context", f"{start.largest_context:,}", longest),
    ]
    if start.starts:
        blocks = f"{plan.num_gpu_blocks:,} blocks / ceil({start.max_model_len:,} / {plan.block_size})"
        how = blocks if linear else f"{format_gib(plan.kv_cache_bytes)} / {format_gib(start.needed_bytes)}"
        lines.append(("vLLM would log", f"{plan.vllm_concurrency(start.max_model_len):,.2f}x", how))
    if start.gpu_memory_utilization is not None:
        lines.append(("would do", f"{start.gpu_memory_utilization:.2f}", "gpu-memory-utilization, at least"))
    if start.tensor_parallel is not None:
        lines.append(("would do", f"{start.tensor_parallel}", "tensor-parallel-size, at least"))
    if start.kv_dtype is not None:
        lines.append(("would do", start.kv_dtype, "KV cache dtype"))
    return lines


def _cost_lines(plan: CapacityPlan, context: int | None) -> list[Line]:
    hardware = plan.hardware
    cost = _roofline(plan)
    read_bytes = plan.weights_bytes / plan.tensor_parallel  # the roofline's: stages and ranks do not change it
    read = f"{format_gb(read_bytes)} / ({hardware.bandwidth_gb_s:g} GB/s x {hardware.mbu:g})"
    compute = f"2 x {format_si(plan.model.compute_params)} FLOP / ({hardware.tflops:g} TFLOP/s x {hardware.mfu:g})"
    if plan.tensor_parallel > 1:
        compute += f" / {plan.tensor_parallel}"
    weights_read = f"{cost.weights_s * 1e3:,.2f} ms weights"
    ridge = f"FLOP per byte: {hardware.tflops:g} TFLOP/s / {hardware.bandwidth_gb_s:g} GB/s"
    lines = [
        (
            "decode step",
            f"{cost.decode(1, 0) * 1e3:,.2f} ms",
            f"{hardware.overhead_ms:g} ms overhead + {read}, context 0",
        ),
        ("critical batch", _batch_text(_critical_batch(plan, 0)), f"{weights_read} / ({compute})"),
        ("ridge", format_number(hardware.ridge_flop_per_byte, 0), ridge),
    ]
    if context is not None:
        batch = _critical_batch(plan, context)
        mean_kv = plan.model.kv_bytes_per_token(context=context) if context else 0
        at_context = Roofline(plan.model, hardware, plan.tensor_parallel, kv_bytes_per_token=mean_kv)
        compute_each, read_each = format_duration(cost.token_s), format_duration(context * at_context.context_s)
        how = f"{weights_read} / ({compute_each} compute - {read_each} KV read, each)"
        if batch is None:
            how = f"never compute-bound: {read_each} KV read >= {compute_each} compute, each"
        lines.insert(2, (f"  at context {context:,}", _batch_text(batch), how))
    return lines


def _notes(plan: CapacityPlan) -> list[str]:
    notes = []
    if not plan.model.kv_is_linear:
        notes.append(f"KV per token is a mean over {plan.tokens_per_request:,} tokens (--tokens-per-request)")
    if plan.parallel.devices > 1:
        notes.append("the step leaves communication between devices out")
    if plan.parallel.data > 1 and plan.model.experts is not None:
        notes.append("the step reads all experts, of which a rank holds a part (--cost-model detailed --explain-cost)")
    if plan.parallel.pipeline > 1:
        notes.append("the step goes through all stages one after the other")
    if plan.hardware.fitted:
        notes.append(f"efficiency fitted: {plan.hardware.fitted}")
    return notes


def _roofline(plan: CapacityPlan) -> Roofline:
    return Roofline(plan.model, plan.hardware, plan.tensor_parallel, kv_bytes_per_token=plan.whole_kv_bytes_per_token)


def _critical_batch(plan: CapacityPlan, context: int) -> float | None:
    return critical_batch(plan.model, plan.hardware, context, plan.tensor_parallel)


def _rounded(batch: float | None) -> float | int | None:
    """Return a batch as a person reads it: whole, but below ten with two decimals."""
    if batch is None:
        return None
    return round(batch) if batch >= 10 else round(batch, 2)


def _batch_text(batch: float | None) -> str:
    rounded = _rounded(batch)
    return "never" if rounded is None else f"{rounded:,}"
