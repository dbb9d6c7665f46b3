"""The weights' own bytes, from an index of shards or from the headers of `.safetensors` files; no tensor is read.

A header is eight bytes of length and a JSON object. What an index promises and a file holds is checked against the
file's size. Source: the safetensors format, version 0.4, and transformers' `*.index.json`.
"""

from __future__ import annotations

import math
import os
import re
import struct
from dataclasses import dataclass
from typing import Any, TypeGuard

from servesim.catalog.json_fields import JsonFields
from servesim.console import reason
from servesim.errors import InputError
from servesim.inputs import open_binary, parse_object, read_object

MAX_HEADER_BYTES = 32 * 2**20  # the format allows 100 MB; a header of a real shard is under one
MAX_SHARDS = 4096

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")

_DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
_PLAIN = ("F64", "F32", "F16", "BF16")
_LAYER = re.compile(r"(?:^|\.)layers\.([0-9]{1,6})\.")
_BESIDE = ("visual", "vision", "audio", "multi_modal", "mm_projector")


@dataclass(slots=True, frozen=True, kw_only=True)
class Weights:
    """What a folder's files hold: the bytes of the model's tensors, and the parameters where none is packed."""

    size_bytes: int
    params: int | None  # of the decoder, without vision and audio towers; None where a file packs or only an index is
    source: str


def folder_weights(folder: str, layers: int) -> Weights | None:
    """Return the weights in `folder`, without draft layers beyond `layers` where headers name them.

    None when there are neither files nor an index. Raises `InputError` for a damaged one.
    """
    index = next((path for name in INDEXES if os.path.isfile(path := os.path.join(folder, name))), None)
    names = _shards_of(index) if index is not None else _shards_in(folder)
    paths = [os.path.join(folder, name) for name in names]
    if paths and all(path.endswith(".safetensors") and os.path.isfile(path) for path in paths):
        return _sum_of_headers(paths, layers)
    if index is None:
        return None
    metadata = JsonFields(read_object(index), index).part("metadata")
    if metadata is None or metadata.get("total_size") is None:
        return None
    size = metadata.count("total_size", maximum=10**15)
    return Weights(size_bytes=size, params=None, source=f"total_size of {os.path.basename(index)}")


def read_header(path: str) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """Return (dtype, shape, bytes) of each tensor in a `.safetensors` file.

    Raises `InputError` for a file that is cut, or whose header contradicts itself or the file's size.
    """
    with open_binary(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise InputError(f"{path}: is no safetensors file, or cut: a header of {length:,} bytes in {size:,}")
        data = file.read(length)
    if len(data) != length:
        raise InputError(f"{path}: is cut in its header")
    header = parse_object(data, path)
    header.pop("__metadata__", None)
    room = size - 8 - length
    return {name: _tensor(name, value, room, path) for name, value in header.items()}


def _tensor(name: str, value: object, room: int, path: str) -> tuple[str, tuple[int, ...], int]:
    """Return one checked entry of a header."""
    wrong = InputError(f"{path}: tensor {name[:80]!r} makes no sense, or lies beyond the end of the file")
    if not isinstance(value, dict):
        raise wrong
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _DTYPE_BITS or not _are_sizes(shape) or not _are_sizes(offsets):
        raise wrong
    if len(shape) > 16 or len(offsets) != 2:
        raise wrong
    begin, end = offsets
    if not begin <= end <= room or (end - begin) * 8 != math.prod(shape) * _DTYPE_BITS[dtype]:
        raise wrong
    return dtype, tuple(shape), end - begin


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 2**60 for number in value)


def _sum_of_headers(paths: list[str], layers: int) -> Weights:
    size = params = 0
    plain = True
    for path in paths:
        for name, (dtype, shape, size_bytes) in read_header(path).items():
            layer = _LAYER.search(name)
            if (layer and int(layer[1]) >= layers and not _is_beside(name)) or name.startswith("mtp."):
                continue
            size += size_bytes
            plain = plain and dtype in _PLAIN
            if not _is_beside(name):
                params += math.prod(shape)
    if size == 0:
        raise InputError(f"{paths[0]}: holds no weights")
    count = "1 safetensors file" if len(paths) == 1 else f"{len(paths)} safetensors files"
    return Weights(size_bytes=size, params=params if plain else None, source=f"headers of {count}")


def _is_beside(name: str) -> bool:
    return any(word in name for word in _BESIDE)


def _shards_of(index: str) -> list[str]:
    """Return the files that an index names, each once."""
    weight_map = JsonFields(read_object(index), index).part("weight_map")
    names = sorted({name for name in (weight_map.values if weight_map else {}).values() if isinstance(name, str)})
    if len(names) > MAX_SHARDS or any(os.path.basename(name) != name or "\0" in name for name in names):
        raise InputError(f"{index}: names too many files, or files outside of its folder")
    return names


def _shards_in(folder: str) -> list[str]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    except OSError as error:
        raise InputError(f"cannot read {folder}: {reason(error)}") from error
    whole = [
        name for name in names if name == "model.safetensors" or re.fullmatch(r"model-\d+-of-\d+\.safetensors", name)
    ]
    return (whole or names)[:MAX_SHARDS]
