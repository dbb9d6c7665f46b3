"""The memory plan: what fits a device beside the weights, and whether a server would start.

    weights_bytes  = params x bytes per parameter
    budget         = device memory x gpu_memory_utilization
    kv_cache_bytes = budget - weights_bytes - reserve
    num_blocks     = floor(kv_cache_bytes / (block_size x kv_bytes_per_token))

Where several devices share a model (`Parallel`), budget, cache, KV per token (`max(1, kv_heads / tp)` heads) and blocks
are one device's, and each holds its share of the weights. All of it is integer arithmetic. `num_blocks` are usable
blocks; a vLLM log counts its null block too. A LoRA adapter is the one thing more that memory may have to hold. This
module neither prints nor knows what a step costs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from servesim.catalog.hardware import Hardware
from servesim.catalog.model import Attention, Model
from servesim.catalog.weights import KV_BYTES
from servesim.errors import CapacityError, InputError
from servesim.units import GIB, format_bytes, format_gb, format_gib, format_gib_apart, shown

_ADAPTER_BYTES = 2  # of a number of an adapter: 16 bits, whatever the base model is quantised to
MAX_RANK = 512  # as vLLM's --max-lora-rank


@dataclass(slots=True, frozen=True, kw_only=True)
class Parallel:
    """The sizes of the groups of devices that share a model.

    Tensor parallelism divides every layer, pipeline parallelism the layers; data parallelism repeats both, each rank
    with a cache of its own, but shares the routed experts over all ranks, as vLLM does: cut like any matrix, or whole
    under expert parallelism. What tensor parallelism cannot divide (MLA's down projections, KV heads beyond their
    number) is small and counted as divided.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False  # each device has whole experts, not a part of each

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 2**20:
                raise InputError(f"{name}_parallel_size is {shown(value)}, must be a whole number of 1 or more")

    @property
    def devices(self) -> int:
        """Devices of the whole server."""
        return self.tensor * self.pipeline * self.data

    @property
    def expert_devices(self) -> int:
        """Devices that share the routed experts of one layer."""
        return self.tensor * self.data

    def check(self, model: Model) -> None:
        """Raise `InputError` for a model that cannot be spread so."""
        model.check_tensor_parallel(self.tensor)
        if self.pipeline > model.layers:
            raise InputError(
                f"pipeline_parallel_size is {self.pipeline}, must be at most the {model.layers} layers of {model.name}"
            )
        if self.expert and model.experts is None:
            raise InputError(f"expert parallelism is asked for, but {model.name} has no experts")

    def device_weights_bytes(self, model: Model) -> int:
        """Return the bytes of weights on the fullest device.

        Of the stages of a pipeline the one with most layers, and with the larger of embedding table and output head.
        """
        experts = model.expert_bytes if self.data > 1 or self.expert else 0
        rest = model.weights_bytes - experts
        if self.pipeline > 1:
            ends = model.embedding_bytes + model.head_bytes
            layers = -(-model.layers // self.pipeline)
            rest = -(-(rest - ends) * layers // model.layers) + max(model.embedding_bytes, model.head_bytes)
            experts = -(-experts * layers // model.layers)
        held = -(-experts // self.expert_devices)
        if self.expert and model.experts is not None:
            count = model.experts.count
            held = -(-experts * -(-count // self.expert_devices) // count)
        return -(-rest // self.tensor) + held


DEFAULT_UTILIZATION = 0.90
DEFAULT_TOKENS_PER_REQUEST = 4096

_TENSOR_PARALLEL_SIZES = (1, 2, 4, 8, 16, 32, 64)
_LONGEST_CONTEXT = 10**9  # where a model keeps nothing of old tokens, any length fits


@dataclass(slots=True, frozen=True, kw_only=True)
class StartCheck:
    """Whether a server with `max_model_len` would start, and what would help if not (None: nothing of the kind)."""

    max_model_len: int
    starts: bool
    needed_bytes: int  # KV of one sequence of max_model_len, in whole blocks
    available_bytes: int
    largest_context: int
    gpu_memory_utilization: float | None = None
    tensor_parallel: int | None = None
    kv_dtype: str | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class CapacityPlan:
    """What one device holds. Bytes are exact; `weights_bytes` is the whole model's, all else one device's."""

    model: Model
    hardware: Hardware
    gpu_memory_utilization: float
    block_size: int
    parallel: Parallel
    tokens_per_request: int
    basis: str  # "memory", "kv_tokens" or "kv_blocks": what num_blocks was taken from
    weights_bytes: int
    device_weights_bytes: int
    reserve_bytes: int
    budget_bytes: int
    kv_bytes_per_token: int
    kv_cache_bytes: int
    num_blocks: int
    start: StartCheck | None = None
    warnings: tuple[str, ...] = ()

    @property
    def tensor_parallel(self) -> int:
        return self.parallel.tensor

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.kv_bytes_per_token

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def max_concurrency(self) -> float:
        """Requests of `tokens_per_request` that the cache holds at once."""
        return self.kv_tokens / self.tokens_per_request

    @property
    def num_gpu_blocks(self) -> int:
        """The blocks that vLLM's log would name for this cache, its null block among them."""
        return self.num_blocks + 1 if self.basis == "kv_blocks" else self.num_blocks

    @property
    def whole_kv_bytes_per_token(self) -> int:
        """KV bytes of one token over all devices, as a cost model wants them."""
        return self.model.kv_bytes_per_token(context=self.tokens_per_request)

    def vllm_concurrency(self, max_model_len: int) -> float:
        """Return the maximum concurrency that vLLM prints at startup: null block counted, requests in whole blocks."""
        if not self.model.kv_is_linear:
            needed = _sequence_bytes(self.model, max_model_len, self.block_size, self.parallel)
            return self.kv_cache_bytes / needed
        return self.num_gpu_blocks / -(-max_model_len // self.block_size)

    def require_start(self) -> None:
        """Raise `CapacityError` with what would help if the `max_model_len` that was asked about cannot start."""
        if self.start is not None and not self.start.starts:
            raise CapacityError(start_refusal(self, self.start))


def plan_capacity(
    model: Model,
    hardware: Hardware,
    *,
    gpu_memory_utilization: float = DEFAULT_UTILIZATION,
    block_size: int = 16,
    reserve_bytes: int | None = None,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    data_parallel: int = 1,
    expert_parallel: bool = False,
    kv_tokens: int | None = None,
    kv_blocks: int | None = None,
    max_model_len: int | None = None,
    tokens_per_request: int = DEFAULT_TOKENS_PER_REQUEST,
) -> CapacityPlan:
    """Plan the memory of `model` on one device of each of the groups that share it (see `Parallel`).

    `reserve_bytes` None takes the device's own. `kv_tokens` sets the cache by hand, in usable tokens, and must fit
    the device; `kv_blocks` sets it from a vLLM log, null block included, and only warns if it should not fit.
    `max_model_len` fills in `plan.start`; it raises nothing, `plan.require_start()` does.

    Raises `InputError` for values that make no sense and `CapacityError` where weights or cache do not fit.
    """
    _check_share(gpu_memory_utilization)
    reserve = hardware.reserve_bytes if reserve_bytes is None else reserve_bytes
    for name, value, least in (
        ("block_size", block_size, 1),
        ("reserve_bytes", reserve, 0),
        ("tokens_per_request", tokens_per_request, 1),
        ("kv_tokens", kv_tokens, block_size),
        ("kv_blocks", kv_blocks, 2),
        ("max_model_len", max_model_len, 1),
    ):
        _check_whole(name, value, least)
    if kv_tokens is not None and kv_blocks is not None:
        raise InputError("kv_tokens and kv_blocks both set the cache, give one of them")
    parallel = Parallel(tensor=tensor_parallel, pipeline=pipeline_parallel, data=data_parallel, expert=expert_parallel)
    parallel.check(model)

    budget = _budget_bytes(hardware, gpu_memory_utilization)
    weights = parallel.device_weights_bytes(model)
    kv_per_token = _kv_per_token(model, parallel, tokens_per_request)
    block_bytes = block_size * kv_per_token
    warnings: tuple[str, ...] = ()
    if kv_tokens is None and kv_blocks is None:
        basis = "memory"
        cache = budget - weights - reserve
        if cache < block_bytes:
            raise CapacityError(
                _does_not_fit(model, hardware, weights, reserve, gpu_memory_utilization, block_bytes, parallel)
            )
        blocks = cache // block_bytes
    else:
        basis = "kv_tokens" if kv_blocks is None else "kv_blocks"
        blocks = kv_tokens // block_size if kv_tokens is not None else (kv_blocks or 2) - 1
        cache = (blocks if kv_blocks is None else kv_blocks) * block_bytes
        if weights + reserve + cache > hardware.memory_bytes:
            too_much = (
                f"{model.name} on {hardware.name}: {format_gb(weights)} of weights + {format_reserve(reserve)} reserve "
                f"+ {format_gib(cache)} of KV cache > {format_gib(hardware.memory_bytes)} of memory"
            )
            if kv_blocks is None:
                most = (hardware.memory_bytes - weights - reserve) // kv_per_token // block_size * block_size
                remedy = f"at most {most:,} kv_tokens fit" if most > 0 else "the weights alone do not fit"
                raise CapacityError(f"{too_much}; {remedy}")
            warnings = (f"{too_much}; the block count is taken as given, check model, dtype and device",)
        if kv_tokens is not None and kv_tokens % block_size:
            warnings = (f"kv_tokens {kv_tokens:,} is rounded down to {blocks * block_size:,}, whole blocks",)

    plan = CapacityPlan(
        model=model,
        hardware=hardware,
        gpu_memory_utilization=gpu_memory_utilization,
        block_size=block_size,
        parallel=parallel,
        tokens_per_request=tokens_per_request,
        basis=basis,
        weights_bytes=model.weights_bytes,
        device_weights_bytes=weights,
        reserve_bytes=reserve,
        budget_bytes=budget,
        kv_bytes_per_token=kv_per_token,
        kv_cache_bytes=cache,
        num_blocks=blocks,
        warnings=warnings,
    )
    return plan if max_model_len is None else _with_start(plan, max_model_len)


def start_refusal(plan: CapacityPlan, start: StartCheck) -> str:
    """Return the line that says why a server would not start, and what would do."""
    ways = [f"a context of {start.largest_context:,} tokens fits"]
    if start.gpu_memory_utilization is not None:
        ways.append(f"--gpu-memory-utilization {start.gpu_memory_utilization:.2f}")
    if start.tensor_parallel is not None:
        ways.append(f"--tensor-parallel-size {start.tensor_parallel}")
    if start.kv_dtype is not None:
        ways.append(f"an {start.kv_dtype} KV cache")
    needed, there = format_gib_apart(start.needed_bytes, start.available_bytes)
    return (
        f"{plan.model.name} on {plan.hardware.name} would not start with max_model_len {start.max_model_len:,}: "
        f"one sequence needs {needed} of KV cache, {there} are there; "
        f"{ways[0]}{'; or use ' + ' or '.join(ways[1:]) if ways[1:] else ''}"
    )


def format_reserve(size_bytes: int) -> str:
    """Return the reserve in GiB with the digits it was given with: `2.0 GiB`, `2.4524 GiB`."""
    text = f"{size_bytes / GIB:.4f}".rstrip("0")
    return f"{text}0 GiB" if text.endswith(".") else f"{text} GiB"


def _with_start(plan: CapacityPlan, max_model_len: int) -> CapacityPlan:
    """Return `plan` with the answer to "will it start": one sequence must fit the usable blocks."""
    available = plan.num_blocks * plan.block_bytes
    needed = _sequence_bytes(plan.model, max_model_len, plan.block_size, plan.parallel)
    starts = needed <= available
    utilization = tensor_parallel = kv_dtype = None
    if not starts and plan.basis == "memory":
        utilization = _smallest_utilization(plan, needed)
        tensor_parallel = _smallest_tensor_parallel(plan, max_model_len)
        kv_dtype = _kv_dtype_that_fits(plan, max_model_len, available)
    start = StartCheck(
        max_model_len=max_model_len,
        starts=starts,
        needed_bytes=needed,
        available_bytes=available,
        largest_context=_largest_context(plan, available),
        gpu_memory_utilization=utilization,
        tensor_parallel=tensor_parallel,
        kv_dtype=kv_dtype,
    )
    return replace(plan, start=start)


def _kv_per_token(model: Model, parallel: Parallel, tokens_per_request: int) -> int:
    return model.kv_bytes_per_token(parallel.tensor, tokens_per_request, parallel.pipeline)


def _sequence_bytes(model: Model, tokens: int, block_size: int, parallel: Parallel) -> int:
    return model.kv_bytes_of_sequence(-(-tokens // block_size) * block_size, parallel.tensor, parallel.pipeline)


def _largest_context(plan: CapacityPlan, available: int) -> int:
    """Return the longest sequence, in whole blocks, whose KV fits `available` bytes."""
    low, high = 0, _LONGEST_CONTEXT // plan.block_size
    while low < high:
        middle = (low + high + 1) // 2
        fits = _sequence_bytes(plan.model, middle * plan.block_size, plan.block_size, plan.parallel) <= available
        low, high = (middle, high) if fits else (low, middle - 1)
    return low * plan.block_size


def _smallest_utilization(plan: CapacityPlan, needed: int) -> float | None:
    """Return the smallest utilisation, in hundredths, at which `needed` bytes of KV fit."""
    memory = plan.hardware.memory_bytes
    hundredths = -(-(plan.device_weights_bytes + plan.reserve_bytes + _whole(needed, plan.block_bytes)) * 100 // memory)
    return hundredths / 100 if hundredths <= 100 else None


def _smallest_tensor_parallel(plan: CapacityPlan, max_model_len: int) -> int | None:
    for size in _TENSOR_PARALLEL_SIZES:
        if size > plan.tensor_parallel and _divides(plan.model, size):
            wider = replace(plan.parallel, tensor=size)
            block_bytes = plan.block_size * _kv_per_token(plan.model, wider, plan.tokens_per_request)
            needed = _whole(_sequence_bytes(plan.model, max_model_len, plan.block_size, wider), block_bytes)
            if wider.device_weights_bytes(plan.model) + plan.reserve_bytes + needed <= plan.budget_bytes:
                return size
    return None


def _kv_dtype_that_fits(plan: CapacityPlan, max_model_len: int, available: int) -> str | None:
    if KV_BYTES[plan.model.kv_dtype] <= KV_BYTES["fp8"]:
        return None
    narrow = plan.model.with_kv_dtype("fp8")
    block_bytes = plan.block_size * _kv_per_token(narrow, plan.parallel, plan.tokens_per_request)
    needed = _sequence_bytes(narrow, max_model_len, plan.block_size, plan.parallel)
    return "fp8" if needed <= plan.kv_cache_bytes // block_bytes * block_bytes else None


def _does_not_fit(
    model: Model,
    hardware: Hardware,
    weights: int,
    reserve: int,
    utilization: float,
    block_bytes: int,
    parallel: Parallel,
) -> str:
    """Return the line that names model, device, weights, reserve and budget, and the three ways out."""
    budget = _budget_bytes(hardware, utilization)
    left = budget - weights - reserve
    size = next(
        (
            size
            for size in _TENSOR_PARALLEL_SIZES
            if size > parallel.tensor
            and _divides(model, size)
            and replace(parallel, tensor=size).device_weights_bytes(model) + reserve + block_bytes <= budget
        ),
        None,
    )
    would_do = f" (--tensor-parallel-size {size} would do)" if size else ""
    share = f" on each of {parallel.devices} devices" if parallel.devices > 1 else ""
    sum_text = f"{format_gb(weights)} of weights{share} + {format_reserve(reserve)} reserve"
    budget_text = f"{format_gib(budget)} ({format_gib(hardware.memory_bytes)} x {utilization:g})"
    problem = f"{sum_text} > {budget_text}"
    if left > 0:
        problem = (
            f"{sum_text} leave {format_bytes(left)} of {budget_text}, less than a block of {format_bytes(block_bytes)}"
        )
    return (
        f"{model.name} does not fit {hardware.name}: {problem}; quantise it, "
        f"shard it with tensor parallelism{would_do}, or take a bigger device"
    )


def _divides(model: Model, tensor_parallel: int) -> bool:
    try:
        model.check_tensor_parallel(tensor_parallel)
    except InputError:
        return False
    return True


def _whole(size_bytes: int, block_bytes: int) -> int:
    return -(-size_bytes // block_bytes) * block_bytes


def _budget_bytes(hardware: Hardware, utilization: float) -> int:
    """Return memory x utilisation, exact for a utilisation of up to nine decimals."""
    return hardware.memory_bytes * round(utilization * 10**9) // 10**9


def _check_share(utilization: object) -> None:
    if isinstance(utilization, bool) or not isinstance(utilization, (int, float)) or not 0 < utilization <= 1:
        raise InputError(f"gpu_memory_utilization is {shown(utilization)}, must be above 0 and at most 1")


def _check_whole(name: str, value: object, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**53:
        raise InputError(f"{name} is {shown(value)}, must be a whole number of {least} or more")


def adapter_params(model: Model, rank: int) -> int:
    """Return the numbers in a LoRA adapter of `rank` for `model`. Raises `InputError` for a rank that is none.

    It adds rank x (inputs + outputs) to each projection of attention (query, key, value, output) and of the dense
    feed-forward layers (gate, up, down), as PEFT writes it with all linear layers as targets. What it leaves alone:
    routed experts, recurrent layers, embeddings and head, which adapters rarely touch.

    >>> from servesim.catalog.models import find_model
    >>> adapter_params(find_model("llama-3.1-8b"), 16)
    41943040
    """
    if not 1 <= rank <= MAX_RANK:
        raise InputError(f"adapter_rank is {rank}, must be from 1 to {MAX_RANK}")
    attention = sum(group.layers * _attention_width(group, model) for group in model.attention)
    matrices = model.dense_layers * model.matrices if model.intermediate else 0
    feed_forward = matrices * (model.hidden + model.intermediate)
    return rank * (attention + feed_forward)


def adapter_bytes(model: Model, rank: int) -> int:
    """Return the bytes of an adapter of `rank`, over all devices that share the model."""
    return _ADAPTER_BYTES * adapter_params(model, rank)


def _attention_width(group: Attention, model: Model) -> int:
    """Return the sum of inputs and outputs of the projections of one layer."""
    hidden, heads = model.hidden, model.heads
    if group.latent_dim:  # the query of 192 and the value of 128 a head in DeepSeek's shape, and the latent
        return (hidden + heads * 192) + (hidden + group.latent_dim) + (heads * 128 + hidden)
    if not group.kv_heads:
        return 0
    value_dim = group.value_dim or group.head_dim
    query, key, value = heads * group.head_dim, group.kv_heads * group.head_dim, group.kv_heads * value_dim
    return (hidden + query) + (hidden + key) + (hidden + value) + (heads * value_dim + hidden)
