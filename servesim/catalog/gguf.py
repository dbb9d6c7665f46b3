"""The header of a GGUF file: its metadata and the list of its tensors. Versions 1 to 3, either byte order.

Only the header is read, and of it only what fits is kept: a text up to 64 KiB, a list up to 16,384 numbers, 32 MiB in
all. The rest is skipped over and known by its length. Nothing that the file claims is believed before it is held
against the file's size, so that a damaged or hostile file costs no more time and memory than an honest one of its
size, within the bounds below. Source: ggml/docs/gguf.md and the checks of ggml/src/gguf.cpp.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

from servesim.catalog.weights import GGML_TYPES
from servesim.console import reason
from servesim.errors import InputError

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
    """What a file says of itself. A value is a number, a truth, a text, a list of numbers, or `Skipped`."""

    version: int
    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]


def read_gguf(path: str) -> GgufHeader:
    """Return the header of the GGUF file at `path`.

    Raises `InputError` in one line for a file that is none, is cut, or contradicts itself.
    """
    try:
        with open(path, "rb") as file:
            return _Reader(file, path, os.fstat(file.fileno()).st_size).header()
    except OSError as error:
        raise InputError(f"cannot read {path}: {reason(error)}") from error


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
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self.name("a key")
            if key in metadata:
                self.fail(f"has the key {key!r} twice")
            metadata[key] = self.value(self.number("I", f"the type of {key}"), key)
        return GgufHeader(version=version, metadata=metadata, tensors=self.tensors(tensors, metadata))

    def tensors(self, count: int, metadata: dict[str, Any]) -> tuple[Tensor, ...]:
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

    def value(self, kind: int, key: str) -> Any:
        """Return one value of the metadata, or `Skipped` for what is too long to keep."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], key)
        if kind == _STRING:
            length = self.length(key, self.size, least_bytes=1)
            if length > KEPT_STRING_BYTES or not self.keeps(length):
                self.skip(length, key)
                return Skipped(length)
            return self.take(length, key).decode("utf-8", "replace")
        if kind == _ARRAY:
            return self.array(key)
        return self.fail(f"has {key} of type {kind}, which is not known")

    def array(self, key: str) -> Any:
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
