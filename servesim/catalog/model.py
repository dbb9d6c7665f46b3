"""A model: what a server must hold of it (weights), keeps of each token (KV), and computes for each token (FLOPs).

KV is told by groups of layers that keep the same thing, so that grouped heads, MLA latents, sliding windows and
recurrent layers are one kind of fact. Presets are in `models`; nothing here knows of files or devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from servesim.errors import InputError
from servesim.units import suggest

# Bytes per weight. A GGUF block of 32 weights carries a scale of 2 bytes, Q4_1 a minimum of 2 more; MXFP4 a scale of 1.
WEIGHT_BYTES: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "q8_0": 34 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "mxfp4": 17 / 32,
}
KV_BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


@dataclass(slots=True, frozen=True, kw_only=True)
class Attention:
    """What `layers` layers keep of a sequence: heads of keys and values, or one latent, or a state of fixed size."""

    layers: int
    kv_heads: int = 0
    head_dim: int = 0
    latent_dim: int = 0  # MLA: kv_lora_rank + qk_rope_head_dim, one vector per token, the same on every rank
    window: int | None = None  # tokens that a sliding layer keeps at most
    state_bytes: int = 0  # a recurrent layer: bytes per sequence and layer, whatever its length

    def __post_init__(self) -> None:
        for field in ("layers", "kv_heads", "head_dim", "latent_dim", "state_bytes"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**9:
                raise InputError(f"{field} of an attention group is {value!r}, must be a whole number of 0 or more")
        if self.layers < 1:
            raise InputError("layers of an attention group is 0, must be 1 or more")
        if self.window is not None and self.window < 1:
            raise InputError(f"window of an attention group is {self.window!r}, must be 1 or more")
        keeps = (self.kv_heads > 0 and self.head_dim > 0, self.latent_dim > 0, self.state_bytes > 0)
        if sum(keeps) != 1:
            raise InputError("an attention group must have kv_heads and head_dim, or latent_dim, or state_bytes")

    def values_per_token(self, tensor_parallel: int = 1) -> int:
        """Return the numbers that one device keeps of one token over these layers."""
        if self.latent_dim:
            return self.layers * self.latent_dim
        return 2 * self.layers * max(1, self.kv_heads // tensor_parallel) * self.head_dim if self.kv_heads else 0


@dataclass(slots=True, frozen=True, kw_only=True)
class Experts:
    """The experts of a mixture: `top_k` of `count` compute a token in each of `layers` layers, `shared` always do."""

    layers: int
    count: int
    top_k: int
    intermediate: int
    shared: int = 0

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
    vocab: int
    tied_embeddings: bool = False
    experts: Experts | None = None
    weight_dtype: str = "bf16"
    file_bytes: int | None = None  # bytes of the weights' own file, where it is not params x bytes of weight_dtype
    kv_dtype: str = "bf16"
    source: str
    date: str

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise InputError(f"model name is {self.name!r}, must be printable text")
        for field in ("params", "active_params", "heads", "hidden", "intermediate", "vocab"):
            value = getattr(self, field)
            least = 0 if field in ("active_params", "intermediate") else 1
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 10**15:
                raise InputError(
                    f"{field} of model {self.name!r} is {value!r}, must be a whole number, {least} or more"
                )
        if self.active_params > self.params:
            raise InputError(f"model {self.name!r} computes with more parameters than it has")
        if not self.attention:
            raise InputError(f"model {self.name!r} has no layers")
        if self.weight_dtype not in WEIGHT_BYTES:
            raise suggest("weight dtype", self.weight_dtype, WEIGHT_BYTES)
        if self.kv_dtype not in KV_BYTES:
            raise suggest("kv cache dtype", self.kv_dtype, KV_BYTES)
        if self.file_bytes is not None and not 0 < self.file_bytes < 10**16:
            raise InputError(f"file_bytes of model {self.name!r} is {self.file_bytes!r}, must be above 0")

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights: the file's own where there is one, else params x bytes per parameter."""
        return self.file_bytes if self.file_bytes is not None else round(self.params * WEIGHT_BYTES[self.weight_dtype])

    @property
    def compute_params(self) -> int:
        """Parameters that compute one token, each with a multiplication and an addition."""
        return self.active_params or self.params

    @property
    def layers(self) -> int:
        return sum(group.layers for group in self.attention)

    @property
    def kv_is_linear(self) -> bool:
        """Whether a sequence's KV is its tokens times one figure: no sliding windows and no recurrent state."""
        return all(group.window is None and not group.state_bytes for group in self.attention)

    def kv_bytes_per_token(self, tensor_parallel: int = 1, context: int | None = None) -> int:
        """Return the KV bytes of one token on one device.

        Without `context`, every layer that keeps the token is counted: exact where `kv_is_linear`, and up to the
        shortest window elsewhere. With it, the mean over a sequence of `context` tokens, rounded up.
        """
        if context is not None and not self.kv_is_linear:
            return -(-self.kv_bytes_of_sequence(context, tensor_parallel) // context)
        values = sum(group.values_per_token(tensor_parallel) for group in self.attention)
        return values * KV_BYTES[self.kv_dtype]

    def kv_bytes_of_sequence(self, tokens: int, tensor_parallel: int = 1) -> int:
        """Return the bytes that one device keeps of a sequence of `tokens`, windows and states respected."""
        size = 0
        for group in self.attention:
            kept = tokens if group.window is None else min(tokens, group.window)
            size += kept * group.values_per_token(tensor_parallel) * KV_BYTES[self.kv_dtype]
            size += group.layers * group.state_bytes
        return size

    def with_kv_dtype(self, kv_dtype: str) -> Model:
        """Return the same model with another dtype in its cache."""
        return replace(self, kv_dtype=kv_dtype)

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
