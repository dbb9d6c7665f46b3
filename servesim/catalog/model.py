"""A model: what a server must hold of it (weights), keeps of each token (KV), and computes for each token (FLOPs).

The KV is given by groups of layers that keep the same thing, so that grouped heads, MLA latents, sliding windows and
recurrent layers are one kind of fact. Presets are in `models`; nothing here knows of files or devices.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from servesim.catalog.weights import EVERY, EXPERTS, KV_BYTES, WEIGHT_BYTES, WEIGHT_FORMATS
from servesim.errors import InputError
from servesim.units import suggest


@dataclass(slots=True, frozen=True, kw_only=True)
class Attention:
    """What `layers` layers keep of a sequence: heads of keys and values, or one latent, or a state of fixed size.

    A group that is `idle` keeps nothing: layers without attention, or ones that read another layer's keys and values.
    """

    layers: int
    kv_heads: int = 0
    head_dim: int = 0
    value_dim: int = 0  # of a head's value, where it is not head_dim
    latent_dim: int = 0  # MLA: kv_lora_rank + qk_rope_head_dim, one vector per token, the same on every rank
    index_bytes: int = 0  # a sparse layer's indexer: bytes per token and layer, whatever the KV dtype, on every rank
    window: int | None = None  # tokens that a sliding layer keeps at most
    state_bytes: int = 0  # a recurrent layer: bytes per sequence and layer, whatever its length
    idle: bool = False

    def __post_init__(self) -> None:
        for field in ("layers", "kv_heads", "head_dim", "value_dim", "latent_dim", "index_bytes", "state_bytes"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**9:
                raise InputError(f"{field} of an attention group is {value!r}, must be a whole number of 0 or more")
        if self.layers < 1:
            raise InputError("layers of an attention group is 0, must be 1 or more")
        if self.window is not None and self.window < 1:
            raise InputError(f"window of an attention group is {self.window!r}, must be 1 or more")
        keeps = (self.kv_heads > 0 and self.head_dim > 0, self.latent_dim > 0, self.state_bytes > 0, self.idle)
        if sum(keeps) != 1:
            raise InputError("an attention group must have kv_heads and head_dim, or latent_dim, or state_bytes")

    def values_per_token(self, tensor_parallel: int = 1) -> int:
        """Return the numbers that one device keeps of one token over these layers."""
        if self.latent_dim:
            return self.layers * self.latent_dim
        if not self.kv_heads:
            return 0
        return self.layers * max(1, self.kv_heads // tensor_parallel) * (self.head_dim + self._value_dim)

    @property
    def _value_dim(self) -> int:
        return self.value_dim or self.head_dim

    def bytes_per_token(self, kv_dtype: str, tensor_parallel: int = 1) -> int:
        """Return the bytes that one device keeps of one token over these layers."""
        return math.ceil(self.values_per_token(tensor_parallel) * KV_BYTES[kv_dtype]) + self.layers * self.index_bytes

    def bytes_of_sequence(self, tokens: int, kv_dtype: str, tensor_parallel: int = 1) -> int:
        """Return the bytes that one device keeps of a sequence of `tokens`, window and state respected."""
        kept = tokens if self.window is None else min(tokens, self.window)
        state = self.layers * -(-self.state_bytes // tensor_parallel)
        return kept * self.bytes_per_token(kv_dtype, tensor_parallel) + state

    def on_stage(self, pipeline_parallel: int) -> Attention:
        """Return what the fullest of `pipeline_parallel` stages has of these layers."""
        return replace(self, layers=-(-self.layers // pipeline_parallel)) if pipeline_parallel > 1 else self


@dataclass(slots=True, frozen=True, kw_only=True)
class Experts:
    """The experts of a mixture: `top_k` of `count` compute a token in each of `layers` layers, `shared` always do."""

    layers: int
    count: int
    top_k: int
    intermediate: int
    shared: int = 0
    shared_intermediate: int = 0  # of a shared expert, where it is not `intermediate`

    def __post_init__(self) -> None:
        if not (self.layers > 0 and 0 < self.top_k <= self.count and self.intermediate > 0 and self.shared >= 0):
            raise InputError(f"experts: {self.top_k} of {self.count} in {self.layers} layers makes no mixture")


@dataclass(slots=True, frozen=True, kw_only=True)
class Model:
    """One model as it is served. Every count is of numbers, not bytes, unless its name says bytes."""

    name: str
    params: int
    active_params: int = 0  # parameters that compute one token; 0: all of them
    attention: tuple[Attention, ...]
    heads: int
    hidden: int
    intermediate: int = 0  # of the dense feed-forward layers; 0: there are none
    mlp_layers: int | None = None  # layers with a dense feed-forward; None: all that have no experts
    gated: bool = True  # a feed-forward of three matrices (gate, up, down), not two
    vocab: int
    tied_embeddings: bool = False
    experts: Experts | None = None
    weight_dtype: str = "bf16"
    kept_params: int = 0  # parameters that a quantisation left in `kept_dtype`
    kept_dtype: str = "bf16"
    file_bytes: int | None = None  # bytes of the weights' own file, where it is not params x bytes of weight_dtype
    kv_dtype: str = "bf16"
    source: str
    date: str

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise InputError(f"model name is {self.name!r}, must be printable text")
        for field in ("params", "active_params", "kept_params", "heads", "hidden", "intermediate", "vocab"):
            value = getattr(self, field)
            least = 0 if field in ("active_params", "kept_params", "intermediate") else 1
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 10**15:
                raise InputError(
                    f"{field} of model {self.name!r} is {value!r}, must be a whole number, {least} or more"
                )
        if max(self.active_params, self.kept_params) > self.params:
            raise InputError(f"model {self.name!r} computes with, or keeps, more parameters than it has")
        if all(group.idle for group in self.attention):
            raise InputError(f"model {self.name!r} has no layers that keep anything of a token")
        for dtype in (self.weight_dtype, self.kept_dtype):
            if dtype not in WEIGHT_BYTES:
                raise suggest("weight dtype", dtype, WEIGHT_BYTES)
        if self.kv_dtype not in KV_BYTES:
            raise suggest("kv cache dtype", self.kv_dtype, KV_BYTES)
        if self.file_bytes is not None and not 0 < self.file_bytes < 10**16:
            raise InputError(f"file_bytes of model {self.name!r} is {self.file_bytes!r}, must be above 0")

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights: the file's own where there is one, else params x bytes per parameter."""
        if self.file_bytes is not None:
            return self.file_bytes
        kept_bytes = round(self.kept_params * WEIGHT_BYTES[self.kept_dtype])
        return round((self.params - self.kept_params) * WEIGHT_BYTES[self.weight_dtype]) + kept_bytes

    @property
    def compute_params(self) -> int:
        """Parameters that compute one token, each with a multiplication and an addition."""
        return self.active_params or self.params

    @property
    def compute_dtype(self) -> str:
        """The arithmetic that the quantised weights allow at best: bf16, fp8, int8 or fp4."""
        return WEIGHT_FORMATS[self.weight_dtype].compute

    @property
    def layers(self) -> int:
        return sum(group.layers for group in self.attention)

    @property
    def dense_layers(self) -> int:
        """Layers with a dense feed-forward."""
        if self.mlp_layers is not None:
            return self.mlp_layers
        return max(0, self.layers - (self.experts.layers if self.experts else 0))

    @property
    def matrices(self) -> int:
        """Matrices of a feed-forward, dense or an expert's."""
        return 3 if self.gated else 2

    @property
    def head_params(self) -> int:
        """Parameters of the output head, whether its matrix is the embedding table or one of its own."""
        return self.vocab * self.hidden

    @property
    def embedding_params(self) -> int:
        """Parameters of the embedding table that no step multiplies with: 0 where the head uses the same table."""
        return 0 if self.tied_embeddings else self.vocab * self.hidden

    @property
    def expert_params(self) -> int:
        """Parameters of all routed experts."""
        experts = self.experts
        return experts.layers * experts.count * self.matrices * self.hidden * experts.intermediate if experts else 0

    @property
    def shared_expert_params(self) -> int:
        """Parameters of the experts that compute every token."""
        experts = self.experts
        if experts is None:
            return 0
        width = experts.shared_intermediate or experts.intermediate
        return experts.layers * experts.shared * self.matrices * self.hidden * width

    @property
    def router_params(self) -> int:
        """Parameters that choose the experts."""
        return self.experts.layers * self.experts.count * self.hidden if self.experts else 0

    @property
    def mlp_params(self) -> int:
        """Parameters of the dense feed-forward layers."""
        return self.dense_layers * self.matrices * self.hidden * self.intermediate

    @property
    def attention_params(self) -> int:
        """What is left: projections of attention and of recurrent layers, with norms and biases."""
        others = self.head_params + self.embedding_params + self.mlp_params
        return max(0, self.params - others - self.expert_params - self.shared_expert_params - self.router_params)

    @property
    def expert_bytes(self) -> int:
        """Bytes of all routed experts, the part of the weights that a step reads as its tokens choose."""
        return min(self.weights_bytes, round(self.expert_params * self._quantised_bytes))

    @property
    def head_bytes(self) -> int:
        """Bytes of the output head, which a step reads to sample."""
        return round(self.head_params * self._outer_bytes)

    @property
    def embedding_bytes(self) -> int:
        """Bytes of the embedding table that a step does not read (a row per token apart)."""
        return round(self.embedding_params * self._outer_bytes)

    @property
    def _outer_bytes(self) -> float:
        """Bytes of a weight of head and table: of the kept dtype where a quantisation left them out."""
        if self.kept_params >= self.head_params:
            return WEIGHT_BYTES[self.kept_dtype]
        return self._quantised_bytes

    @property
    def _quantised_bytes(self) -> float:
        """Bytes of a weight; on average, where a file without kept parameters counts its own bytes."""
        if self.file_bytes is not None and not self.kept_params:
            return self.file_bytes / self.params
        return WEIGHT_BYTES[self.weight_dtype]

    @property
    def kv_is_linear(self) -> bool:
        """Whether a sequence's KV is its tokens times one figure: no sliding windows and no recurrent state."""
        return all(group.window is None and not group.state_bytes for group in self.attention)

    def kv_bytes_per_token(
        self, tensor_parallel: int = 1, context: int | None = None, pipeline_parallel: int = 1
    ) -> int:
        """Return the KV bytes of one token on one device.

        Without `context`, every layer that keeps the token is counted: exact where `kv_is_linear`, and up to the
        shortest window elsewhere. With it, the mean over a sequence of `context` tokens, rounded up.
        """
        if context is not None and not self.kv_is_linear:
            return -(-self.kv_bytes_of_sequence(context, tensor_parallel, pipeline_parallel) // context)
        groups = [group.on_stage(pipeline_parallel) for group in self.attention]
        return sum(group.bytes_per_token(self.kv_dtype, tensor_parallel) for group in groups)

    def kv_bytes_of_sequence(self, tokens: int, tensor_parallel: int = 1, pipeline_parallel: int = 1) -> int:
        """Return the bytes that one device keeps of a sequence of `tokens`, windows and states respected."""
        groups = [group.on_stage(pipeline_parallel) for group in self.attention]
        return sum(group.bytes_of_sequence(tokens, self.kv_dtype, tensor_parallel) for group in groups)

    def with_kv_dtype(self, kv_dtype: str) -> Model:
        """Return the same model with another dtype in its cache."""
        return replace(self, kv_dtype=kv_dtype)

    def quantized(self, name: str, *, keep: Collection[str] = (), kept_dtype: str | None = None) -> Model:
        """Return the same model with its weights in the format `name`.

        What the format does not cover stays in `kept_dtype` (default: 16 bits as now): embeddings, head and routers
        for most recipes, and what this checkpoint leaves out besides: `keep`, any of "attention", "mlp", "shared" and
        "experts". Bytes are then counted by parameter, whatever file the model came from.
        """
        if name not in WEIGHT_FORMATS:
            raise suggest("quantization", name, WEIGHT_FORMATS)
        if kept_dtype is None:
            kept_dtype = self.weight_dtype if self.weight_dtype in ("bf16", "fp16", "fp32") else self.kept_dtype
        covers = WEIGHT_FORMATS[name].covers
        kept = 0
        if covers == EXPERTS and self.experts is not None:
            kept = self.params - self.expert_params
        elif covers != EVERY:
            kept = self.embedding_params + self.head_params + self.router_params
            if "attention" in keep:
                kept += self.attention_params
            if "mlp" in keep:
                kept += self.mlp_params
            if "shared" in keep:
                kept += self.shared_expert_params
            if "experts" in keep:
                kept += self.expert_params
        return replace(
            self, weight_dtype=name, kept_params=min(kept, self.params), kept_dtype=kept_dtype, file_bytes=None
        )

    def check_tensor_parallel(self, tensor_parallel: int) -> None:
        """Raise `InputError` unless heads divide evenly over `tensor_parallel` devices, as vLLM asks."""
        if tensor_parallel < 1:
            raise InputError(f"tensor_parallel_size is {tensor_parallel}, must be 1 or more")
        if self.heads % tensor_parallel:
            raise InputError(
                f"tensor_parallel_size is {tensor_parallel}, must divide the {self.heads} heads of {self.name}"
            )
        for group in self.attention:
            if group.kv_heads > tensor_parallel and group.kv_heads % tensor_parallel:
                raise InputError(
                    f"tensor_parallel_size is {tensor_parallel}, "
                    f"must divide the {group.kv_heads} KV heads of {self.name} or be above them"
                )
