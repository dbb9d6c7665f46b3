"""Write GGUF files as a hostile or an honest hand would: headers byte by byte, data as a hole of the right size."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servesim.catalog.weights import GGML_TYPES

NUMBERS = {name: number for number, (name, _, _) in GGML_TYPES.items()}


@dataclass
class GgufFile:
    """A file in the making; `bytes()` is its header, `write()` adds the room that its tensors claim."""

    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: list[tuple[str, tuple[int, ...], str]] = field(default_factory=list)
    version: int = 3
    order: str = "<"
    alignment: int = 32

    def bytes(self) -> bytes:
        wide = "Q" if self.version > 1 else "I"
        parts = [b"GGUF", self._pack("I", self.version)]
        parts += [self._pack(wide, len(self.tensors)), self._pack(wide, len(self.metadata))]
        for key, value in self.metadata.items():
            parts += [self._string(key), self._value(value)]
        offset = 0
        for name, shape, kind in self.tensors:
            parts += [self._string(name), self._pack("I", len(shape)), *(self._pack(wide, width) for width in shape)]
            parts += [self._pack("I", NUMBERS[kind]), self._pack("Q", offset)]
            offset += -(-self._size(shape, kind) // self.alignment) * self.alignment
        return b"".join(parts)

    def write(self, path: Path, *, missing_bytes: int = 0) -> str:
        header = self.bytes()
        data = sum(-(-self._size(shape, kind) // self.alignment) * self.alignment for _, shape, kind in self.tensors)
        start = -(-len(header) // self.alignment) * self.alignment
        with path.open("wb") as file:
            file.write(header)
            file.truncate(start + data - missing_bytes)
        return str(path)

    def _pack(self, code: str, value: Any) -> bytes:
        return struct.pack(self.order + code, value)

    def _string(self, text: str) -> bytes:
        data = text.encode()
        return self._pack("Q" if self.version > 1 else "I", len(data)) + data

    def _value(self, value: Any) -> bytes:
        if isinstance(value, bool):
            return self._pack("I", 7) + self._pack("?", value)
        if isinstance(value, int):
            return self._pack("I", 4) + self._pack("I", value)
        if isinstance(value, float):
            return self._pack("I", 6) + self._pack("f", value)
        if isinstance(value, str):
            return self._pack("I", 8) + self._string(value)
        wide = "Q" if self.version > 1 else "I"
        if value and isinstance(value[0], str):
            return (
                self._pack("I", 9)
                + self._pack("I", 8)
                + self._pack(wide, len(value))
                + b"".join(map(self._string, value))
            )
        code, kind = ("?", 7) if value and isinstance(value[0], bool) else ("i", 5)
        packed = b"".join(self._pack(code, item) for item in value)
        return self._pack("I", 9) + self._pack("I", kind) + self._pack(wide, len(value)) + packed

    @staticmethod
    def _size(shape: tuple[int, ...], kind: str) -> int:
        _, block, size = GGML_TYPES[NUMBERS[kind]]
        elements = 1
        for width in shape:
            elements *= width
        return elements // block * size


def llama(*, layers: int = 2, kind: str = "q4_0", architecture: str = "llama", **metadata: Any) -> GgufFile:
    """Return a small Llama: 256 channels, 4 heads of 64, 2 of them for keys and values, a vocabulary of 512."""
    own = {
        "block_count": layers,
        "embedding_length": 256,
        "feed_forward_length": 512,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "rope.dimension_count": 64,
    }
    facts = {"general.architecture": architecture, "general.name": "Tiny"}
    facts |= {f"{architecture}.{key}": value for key, value in own.items()}
    facts |= {f"{architecture}.{key.replace('__', '.')}": value for key, value in metadata.items()}
    facts["tokenizer.ggml.tokens"] = [f"token{number}" for number in range(512)]
    tensors = [("token_embd.weight", (256, 512), "q6_k"), ("output_norm.weight", (256,), "f32")]
    for layer in range(layers):
        tensors += [
            (f"blk.{layer}.attn_norm.weight", (256,), "f32"),
            (f"blk.{layer}.attn_q.weight", (256, 256), kind),
            (f"blk.{layer}.attn_k.weight", (256, 128), kind),
            (f"blk.{layer}.attn_v.weight", (256, 128), kind),
            (f"blk.{layer}.attn_output.weight", (256, 256), kind),
            (f"blk.{layer}.ffn_norm.weight", (256,), "f32"),
            (f"blk.{layer}.ffn_gate.weight", (256, 512), kind),
            (f"blk.{layer}.ffn_up.weight", (256, 512), kind),
            (f"blk.{layer}.ffn_down.weight", (512, 256), kind),
        ]
    return GgufFile(metadata=facts, tensors=tensors)
