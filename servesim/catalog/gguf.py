"""A model from the header of a GGUF file: shapes from its metadata, parameters and bytes from its tensors.

Only the header is read, of versions 1 to 3 in either byte order, and of it only what fits is kept: a text up to 64 KiB,
a list up to 16,384 numbers, 32 MiB in all. The rest is skipped over and known by its length. Nothing that the file
claims is believed before it is held against the file's size, so that a damaged or hostile file costs no more time and
memory than an honest one of its size. Source: ggml/docs/gguf.md and the checks of ggml/src/gguf.cpp.

What the layers keep follows llama.cpp: heads by layer, a latent where keys are stored compressed, windows where the
architecture has them, a state where a layer has tensors of a recurrent mixer. A file in parts (`-00001-of-00003`) is
read with its siblings. Source: src/llama-hparams.cpp and src/llama-model.cpp of llama.cpp.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, NoReturn

from servesim.catalog.json_fields import JsonFields
from servesim.catalog.model import Attention, Experts, Model
from servesim.catalog.weights import GGML_TYPES, WEIGHT_BYTES
from servesim.errors import InputError
from servesim.inputs import open_binary
from servesim.units import format_gb

MAGIC = b"GGUF"
MAX_KEYS = 65_536
MAX_TENSORS = 65_536
MAX_ITEMS = 1 << 24  # of one list; vocabularies have less than a million
MAX_STRINGS = 1 << 22  # of all lists together: each must be stepped over
KEPT_STRING_BYTES = 65_536
KEPT_ITEMS = 16_384
KEPT_BYTES = 32 * 2**20
MAX_NAME_BYTES = 1024  # ggml itself takes 63 for a tensor
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(slots=True, frozen=True)
class Skipped:
    """A list or text that was not kept: how many items or bytes it has."""

    length: int


Value = int | float | bool | str | list[int | float | bool] | Skipped
"""A value of the metadata."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Tensor:
    """One tensor: its shape, fastest dimension first, its type's name, and its bytes."""

    name: str
    shape: tuple[int, ...]
    type: str
    elements: int
    size_bytes: int


@dataclass(slots=True, frozen=True, kw_only=True)
class GgufHeader:
    """What a file says of itself."""

    version: int
    metadata: dict[str, Value]
    tensors: tuple[Tensor, ...]


def read_gguf(path: str) -> GgufHeader:
    """Return the header of the GGUF file at `path`.

    Raises `InputError` in one line for a file that is none, is cut, or contradicts itself.
    """
    with open_binary(path) as file:
        return _Reader(file, path, os.fstat(file.fileno()).st_size).header()


class _Reader:
    """Reads forward through one file and never beyond its size."""

    def __init__(self, file: BinaryIO, path: str, size: int) -> None:
        self.file, self.path, self.size = file, path, size
        self.at = 0
        self.order = "<"
        self.wide = True  # lengths of 64 bits; of 32 in version 1
        self.strings = 0
        self.kept_bytes = 0

    def header(self) -> GgufHeader:
        if self.take(4, "its first bytes") != MAGIC:
            self.fail("is no GGUF file: it does not begin with GGUF")
        version = self.number("I", "the version")
        if version & 0xFFFF == 0 and version:  # written with the other byte order
            self.order, version = ">", int.from_bytes(version.to_bytes(4, "little"), "big")
        if version not in (1, 2, 3):
            self.fail(f"is GGUF version {version}, must be 1, 2 or 3")
        self.wide = version > 1
        tensors = self.length("the number of tensors", MAX_TENSORS, least_bytes=24)
        keys = self.length("the number of keys", MAX_KEYS, least_bytes=13)
        metadata: dict[str, Value] = {}
        for _ in range(keys):
            key = self.name("a key")
            if key in metadata:
                self.fail(f"has the key {key!r} twice")
            metadata[key] = self.value(self.number("I", f"the type of {key}"), key)
        return GgufHeader(version=version, metadata=metadata, tensors=self.tensors(tensors, metadata))

    def tensors(self, count: int, metadata: dict[str, Value]) -> tuple[Tensor, ...]:
        """Return the tensors, each of which must lie within the file."""
        found: dict[str, tuple[Tensor, int]] = {}
        for _ in range(count):
            name = self.name("a tensor's name")
            if name in found:
                self.fail(f"has the tensor {name!r} twice")
            found[name] = self.tensor(name)
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 1 <= alignment <= 2**20 or alignment & (alignment - 1):
            self.fail(f"has an alignment of {alignment!r:.40}, must be a power of two")
        start = -(-self.at // alignment) * alignment
        for tensor, offset in found.values():
            if offset % alignment:
                self.fail(f"has tensor {tensor.name!r} at offset {offset:,}, which its alignment forbids")
            end = start + offset + tensor.size_bytes
            if end > self.size:
                self.fail(f"is cut: tensor {tensor.name!r} ends at byte {end:,} of {self.size:,}")
        if found and start + sum(tensor.size_bytes for tensor, _ in found.values()) > self.size:
            self.fail("has tensors that overlap")
        return tuple(tensor for tensor, _ in found.values())

    def tensor(self, name: str) -> tuple[Tensor, int]:
        """Return a tensor and its offset in the data."""
        dimensions = self.number("I", f"the shape of {name}")
        if dimensions > MAX_DIMENSIONS:
            self.fail(f"has tensor {name!r} with {dimensions:,} dimensions, must be at most {MAX_DIMENSIONS}")
        shape = tuple(self.number("Q" if self.wide else "I", f"the shape of {name}") for _ in range(dimensions))
        number = self.number("I", f"the type of {name}")
        offset = self.number("Q", f"the offset of {name}")
        if number not in GGML_TYPES:
            self.fail(f"has tensor {name!r} of type {number}, which is not known")
        type_name, block, block_bytes = GGML_TYPES[number]
        elements = 1
        for width in shape:
            elements *= width
        if elements == 0 or elements >= 2**60 or (shape[0] if shape else 1) % block:
            self.fail(f"has tensor {name!r} of shape {shape}, which {type_name} cannot have")
        size = elements // block * block_bytes
        return Tensor(name=name, shape=shape, type=type_name, elements=elements, size_bytes=size), offset

    def value(self, kind: int, key: str) -> Value:
        """Return one value of the metadata, or `Skipped` for what is too long to keep."""
        if kind in _SCALARS:
            scalar: Value = self.number(_SCALARS[kind], key)
            return scalar
        if kind == _STRING:
            length = self.length(key, self.size, least_bytes=1)
            if length > KEPT_STRING_BYTES or not self.keeps(length):
                self.skip(length, key)
                return Skipped(length)
            return self.take(length, key).decode("utf-8", "replace")
        if kind == _ARRAY:
            return self.array(key)
        return self.fail(f"has {key} of type {kind}, which is not known")

    def array(self, key: str) -> Value:
        """Return a short list of numbers, and of anything else its length."""
        kind = self.number("I", key)
        if kind == _STRING:
            count = self.length(key, MAX_ITEMS, least_bytes=8 if self.wide else 4)
            self.skip_strings(count, key)
            return Skipped(count)
        if kind not in _SCALARS:
            self.fail(f"has {key}, a list of type {kind}; lists hold numbers, truths or strings")
        width = struct.calcsize(f"{self.order}{_SCALARS[kind]}")
        count = self.length(key, self.size, least_bytes=width)
        if count > KEPT_ITEMS or not self.keeps(count * 32):
            self.skip(count * width, key)
            return Skipped(count)
        return list(struct.unpack(f"{self.order}{count}{_SCALARS[kind]}", self.take(count * width, key)))

    def name(self, what: str) -> str:
        length = self.length(what, MAX_NAME_BYTES, least_bytes=1)
        data = self.take(length, what)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"has {what} that is not UTF-8")
        if not text.isprintable() or not text:
            self.fail(f"has {what} that is empty or not printable")
        return text

    def length(self, what: str, most: int, *, least_bytes: int) -> int:
        """Return a count of things that take `least_bytes` each, so many as the rest of the file can hold."""
        count: int = self.number("Q" if self.wide else "I", what)
        if count > most:
            self.fail(f"claims {count:,} for {what}, more than {most:,}")
        if count * least_bytes > self.size - self.at:
            self.fail(f"claims {count:,} for {what}, more than its {self.size:,} bytes hold")
        return count

    def number(self, code: str, what: str) -> Any:
        code = self.order + code
        return struct.unpack(code, self.take(struct.calcsize(code), what))[0]

    def take(self, count: int, what: str) -> bytes:
        data = self.file.read(count) if count <= self.size - self.at else b""
        if len(data) != count:
            self.fail(f"is cut: it ends at byte {self.size:,}, in {what}")
        self.at += count
        return data

    def skip(self, count: int, what: str) -> None:
        if count > self.size - self.at:
            self.fail(f"is cut: it ends at byte {self.size:,}, in {what}")
        self.at += count
        self.file.seek(self.at)

    def skip_strings(self, count: int, what: str) -> None:
        """Step over `count` strings, a piece of the file at a time."""
        self.strings += count
        if self.strings > MAX_STRINGS:
            self.fail(f"has more than {MAX_STRINGS:,} strings")
        length = struct.Struct(self.order + ("Q" if self.wide else "I"))
        at, piece, position = self.at, b"", 0
        for _ in range(count):
            if position + length.size > len(piece):
                at, position = at + position, 0
                if at + length.size > self.size:
                    self.fail(f"is cut: it ends at byte {self.size:,}, in {what}")
                self.file.seek(at)
                piece = self.file.read(2**18)
            position += length.size + length.unpack_from(piece, position)[0]
        self.skip(at + position - self.at, what)

    def keeps(self, size_bytes: int) -> bool:
        """Return whether so much more may be kept, and count it."""
        if self.kept_bytes + size_bytes > KEPT_BYTES:
            return False
        self.kept_bytes += size_bytes
        return True

    def fail(self, problem: str) -> NoReturn:
        raise InputError(f"{self.path}: {problem}")


MAX_PARTS = 512
MAX_LAYERS = 10_000

# llama_ftype of include/llama.h by its number, what `general.file_type` means; a dash was never in use or is gone.
_FILE_TYPES = dict(
    enumerate(
        "fp32 fp16 q4_0 q4_1 - - - q8_0 q5_0 q5_1 q2_k q3_k_s q3_k_m q3_k_l q4_k_s q4_k_m q5_k_s q5_k_m q6_k iq2_xxs "
        "iq2_xs q2_k_s iq3_xs iq3_xxs iq1_s iq4_nl iq3_s iq3_m iq2_s iq2_m iq4_xs iq1_m bf16 - - - tq1_0 tq2_0 mxfp4 "
        "nvfp4 q1_0".split()
    )
)
_PLAIN = {"f32": "fp32", "f16": "fp16"}

# Every n-th layer sees everything and the others a window, where the file does not say so itself; `set_swa_pattern`.
_WHOLE_EVERY = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "cohere2": 4,
    "exaone4": 4,
    "llama4": 4,
    "olmo2": 4,
}
_CHUNK = {"llama4": 8192}

_PART = re.compile(r"-([0-9]{5})-of-([0-9]{5})\.gguf", re.ASCII)
_BLOCK = re.compile(r"blk\.([0-9]{1,5})\.(.+)", re.ASCII)


def read_gguf_model(path: str) -> Model:
    """Return the model of the GGUF file at `path`, which may be any part of a file in parts.

    Raises `InputError` for a damaged file, and for one without what a decoder needs.
    """
    header, tensors = _whole(path)
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not 0 < len(architecture) <= 64:
        raise InputError(f"{path}: does not name its architecture; is it a model?")
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}
    return _model(JsonFields(own, f"{path}: {architecture}"), architecture, header, tensors, path)


def _whole(path: str) -> tuple[GgufHeader, list[Tensor]]:
    """Return the first part's header and the tensors of all parts."""
    header = read_gguf(path)
    parts = header.metadata.get("split.count", 1)
    if not isinstance(parts, int) or not 1 <= parts <= MAX_PARTS:
        raise InputError(f"{path}: split.count is {parts!r:.40}, must be 1 to {MAX_PARTS}")
    if parts == 1:
        return header, list(header.tensors)
    name = _PART.search(path)
    if name is None or int(name[2]) != parts:
        raise InputError(f"{path}: is one of {parts} parts, but its name does not end in -00001-of-{parts:05}.gguf")
    paths = [f"{path[: name.start()]}-{number:05}-of-{parts:05}.gguf" for number in range(1, parts + 1)]
    headers = [read_gguf(part) for part in paths]
    return headers[0], [tensor for part in headers for tensor in part.tensors]


def _model(fields: JsonFields, architecture: str, header: GgufHeader, tensors: list[Tensor], path: str) -> Model:
    layers = fields.count("block_count", maximum=MAX_LAYERS)
    layers -= fields.count("nextn_predict_layers", default=0, minimum=0, maximum=layers - 1)  # drafts, never run
    hidden = fields.count("embedding_length")
    served = [tensor for tensor in tensors if _layer(tensor.name) < layers]
    params = sum(tensor.elements for tensor in served)
    if not params:
        raise InputError(f"{path}: holds no tensors; is it only a vocabulary?")
    names = {tensor.name for tensor in served}
    heads = max(_by_layer(fields, "attention.head_count", layers, default=1))
    model = Model(
        name=_name(path),
        params=params,
        attention=_attention(fields, architecture, layers, max(1, heads), hidden, names),
        heads=max(1, heads),
        hidden=hidden,
        intermediate=max(_by_layer(fields, "feed_forward_length", layers, default=0)),
        mlp_layers=sum(f"blk.{layer}.ffn_down.weight" in names for layer in range(layers)),
        gated=any(".ffn_gate" in name for name in names),
        vocab=_vocabulary(fields, header, served, path),
        tied_embeddings="output.weight" not in names,
        experts=_experts(fields, layers, names),
        weight_dtype=_dtype(header, served),
        file_bytes=sum(tensor.size_bytes for tensor in served),
        kv_dtype="fp16",  # llama.cpp's default
        source=f"header of {os.path.basename(path)}: {architecture}, {len(served)} tensors of {_types(served)}",
        date="",
    )
    head = "token_embd.weight" if model.tied_embeddings else "output.weight"
    head_type = next((_format(tensor.type) for tensor in served if tensor.name == head), None)
    if head_type is not None:
        model = replace(model, kept_params=min(model.head_params, params), kept_dtype=head_type)
    if model.experts is None:
        return model
    idle = round(model.expert_params * (1 - model.experts.top_k / model.experts.count))
    return replace(model, active_params=max(1, params - idle))


def _attention(
    fields: JsonFields, architecture: str, layers: int, heads: int, hidden: int, names: set[str]
) -> tuple[Attention, ...]:
    """Return what the layers keep, in groups of equal ones, those that keep every token in front."""
    kv_heads = _by_layer(fields, "attention.head_count_kv", layers, default=heads)
    windows = _windows(fields, architecture, layers)
    width = fields.count("attention.key_length", default=max(1, hidden // heads))
    value = fields.count("attention.value_length", default=width)
    latent = fields.count("attention.kv_lora_rank", default=0, minimum=0)
    rope = fields.count("rope.dimension_count", default=0, minimum=0)
    borrowing = fields.count("attention.shared_kv_layers", default=0, minimum=0, maximum=layers - 1)
    state = _state_bytes(fields)
    groups: dict[Attention, int] = {}
    for layer in range(layers):
        prefix = f"blk.{layer}."
        if state and any(prefix + part in names for part in ("ssm_conv1d.weight", "ssm_in.weight", "ssm_out.weight")):
            keeps = Attention(layers=1, state_bytes=state)
        elif layer >= layers - borrowing or not kv_heads[layer]:
            keeps = Attention(layers=1, idle=True)
        elif latent and (prefix + "attn_k_b.weight" in names or prefix + "attn_kv_b.weight" in names):
            keeps = Attention(layers=1, latent_dim=latent + rope)
        else:
            keeps = Attention(
                layers=1,
                kv_heads=kv_heads[layer],
                head_dim=width,
                value_dim=value if value != width else 0,
                window=windows[layer],
            )
        groups[keeps] = groups.get(keeps, 0) + 1
    found = (replace(keeps, layers=count) for keeps, count in groups.items())
    return tuple(sorted(found, key=lambda group: (group.idle, group.state_bytes > 0, group.window is not None)))


def _windows(fields: JsonFields, architecture: str, layers: int) -> list[int | None]:
    """Return each layer's window; None where it sees everything."""
    window = fields.count("attention.sliding_window", default=_CHUNK.get(architecture, 0), minimum=0)
    pattern = fields.get("attention.sliding_window_pattern")
    if not window or (pattern is None and architecture not in _WHOLE_EVERY):
        return [None] * layers
    if isinstance(pattern, list):
        flags = fields.items("attention.sliding_window_pattern", length=layers) or ()
        return [window if flag else None for flag in flags]
    every = fields.count("attention.sliding_window_pattern", default=_WHOLE_EVERY.get(architecture, 0), minimum=0)
    return [window if every == 0 or layer % every < every - 1 else None for layer in range(layers)]


def _state_bytes(fields: JsonFields) -> int:
    """Return the bytes of one recurrent layer's state, which llama.cpp keeps in FP32: the scan and its convolution."""
    inner = fields.count("ssm.inner_size", default=0, minimum=0, maximum=10**7)
    if not inner:
        return 0
    state = fields.count("ssm.state_size", default=0, minimum=0, maximum=10**5)
    groups = fields.count("ssm.group_count", default=0, minimum=0, maximum=10**5)
    kernel = fields.count("ssm.conv_kernel", default=1, maximum=1000)
    return 4 * (inner * state + (kernel - 1) * (inner + 2 * groups * state))


def _experts(fields: JsonFields, layers: int, names: set[str]) -> Experts | None:
    count = fields.count("expert_count", default=0, minimum=0)
    # Experts of a layer are one tensor; files from before that have one tensor each.
    mixing = sum(
        any(f"blk.{layer}.{part}.weight" in names for part in ("ffn_down_exps", "ffn_gate_up_exps", "ffn_down.0"))
        for layer in range(layers)
    )
    if count < 2 or not mixing:
        return None
    width = max(_by_layer(fields, "feed_forward_length", layers, default=0))
    width = fields.count("expert_feed_forward_length", default=max(1, width))
    shared_width = fields.count("expert_shared_feed_forward_length", default=0, minimum=0)
    shared = fields.count("expert_shared_count", default=1 if shared_width else 0, minimum=0)
    if shared and shared_width % (shared * width) == 0:
        shared_width = 0  # of all shared ones together
    return Experts(
        layers=mixing,
        count=count,
        top_k=fields.count("expert_used_count", maximum=count),
        intermediate=width,
        shared=shared,
        shared_intermediate=-(-shared_width // max(1, shared)),
    )


def _by_layer(fields: JsonFields, name: str, layers: int, *, default: int) -> list[int]:
    """Return a number for each layer, where the file has one for all or a list."""
    if not isinstance(fields.get(name), list):
        return [fields.count(name, default=default, minimum=0)] * layers
    listed = fields.items(name) or ()
    if len(listed) < layers:
        raise InputError(f"{fields.path}: {name} has {len(listed)} items, must have one for each of {layers} layers")
    each = JsonFields({str(layer): listed[layer] for layer in range(layers)}, f"{fields.path}: {name}")
    return [each.count(str(layer), minimum=0) for layer in range(layers)]


def _vocabulary(fields: JsonFields, header: GgufHeader, tensors: Iterable[Tensor], path: str) -> int:
    """Return the size of the vocabulary: of the embedding table, which is what a step computes with."""
    for tensor in tensors:
        if tensor.name == "token_embd.weight" and len(tensor.shape) == 2:
            return tensor.shape[1]
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    known = tokens.length if isinstance(tokens, Skipped) and tokens.length else None
    if known is None and fields.get("vocab_size") is None:
        raise InputError(f"{path}: has no token_embd.weight and no vocabulary")
    return fields.count("vocab_size", default=known)


def _dtype(header: GgufHeader, tensors: Iterable[Tensor]) -> str:
    """Return the name of the file's format: what it says, else the type of most of its bytes."""
    said = header.metadata.get("general.file_type")
    if isinstance(said, int) and _FILE_TYPES.get(said, "") in WEIGHT_BYTES:
        return _FILE_TYPES[said]
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.size_bytes
    most = max(sizes, key=lambda name: sizes[name])
    return _format(most)


def _format(ggml_type: str) -> str:
    """Return the name in `WEIGHT_BYTES` of one of ggml's types; integers and FP64 do not hold weights."""
    name = _PLAIN.get(ggml_type, ggml_type)
    return name if name in WEIGHT_BYTES else "fp32"


def _types(tensors: Iterable[Tensor]) -> str:
    """Return the types of the tensors, the most bytes first: `q4_1 66.42 GB, q8_0 30.08 GB`."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.size_bytes
    ranked = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {format_gb(size)}" for name, size in ranked[:4])


def _layer(name: str) -> int:
    """Return the number of the layer that a tensor belongs to; -1 for none."""
    block = _BLOCK.match(name)
    return int(block[1]) if block else -1


def _name(path: str) -> str:
    """Return the file's name without its ending and without the number of its part."""
    name = _PART.sub("", os.path.basename(path))
    name = os.path.splitext(name)[0] if name.lower().endswith(".gguf") else name
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:80] or "model"
