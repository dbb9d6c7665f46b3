"""Which prompts begin alike: token numbers to the engine's shared content, by chained block hashes.

As in vLLM (vllm/v1/core/kv_cache_utils.py) the hash of a block takes in the hash of the block before it, so equal
hashes mean equal texts from the first token on. The engine wants streams (see `servesim.workload.requests`): the blocks
of a prompt that are known run along streams of earlier prompts, those that are new become a stream of their own, and
the tail behind the last whole block, with the answer, is a stream that only the next turn of the same talk joins.

It does not know which blocks still exist: the pool does, and tells it now and then, so that it forgets with the pool.
Two answers that are word for word the same count as different, unless the second request came when the first was over.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from hashlib import blake2b

from servesim.workload.content import Streams
from servesim.workload.requests import OPEN_END, Content

FEW_NODES = 1 << 15
_DEPTH_BITS = 24


class Prefixes:
    """The blocks that were seen and may still exist: hash -> the stream and the depth at which the block lies."""

    __slots__ = ("_many_nodes", "_nodes", "_streams", "block_size")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._nodes: dict[bytes, int] = {}
        self._many_nodes = FEW_NODES
        self._streams = Streams()

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def crowded(self) -> bool:
        """Whether it is time to `forget`."""
        return len(self._nodes) >= self._many_nodes

    def content(self, numbers: array[int]) -> tuple[Content, bytes]:
        """Return the content of a prompt, and the hash of its last whole block (what an answer goes on from)."""
        nodes, size = self._nodes, self.block_size
        segments: list[tuple[int, int]] = []
        parent, new = b"", -1
        for depth, start in enumerate(range(0, len(numbers) - size + 1, size), 1):
            parent = _hash(parent, numbers[start : start + size])
            node = nodes.get(parent) if new < 0 else None
            if node is None:
                if new < 0:
                    new = self._streams.new()
                nodes[parent] = new << _DEPTH_BITS | depth
                stream = new
            else:
                stream = node >> _DEPTH_BITS
            if segments and segments[-1][0] == stream:
                segments[-1] = stream, depth * size
            else:
                segments.append((stream, depth * size))
        segments.append((self._streams.new(), OPEN_END))
        return tuple(segments), parent

    def add_answer(self, content: Content, parent: bytes, tail: array[int], prompt_blocks: int) -> None:
        """Make an answer's blocks known: `tail` is what follows the prompt's last whole block, hashed to `parent`."""
        stream, size = content[-1][0], self.block_size
        for depth, start in enumerate(range(0, len(tail) - size + 1, size), prompt_blocks + 1):
            parent = _hash(parent, tail[start : start + size])
            self._nodes.setdefault(parent, stream << _DEPTH_BITS | depth)

    def forget(self, alive: Mapping[int, int], in_use: Iterable[int]) -> None:
        """Forget the blocks that no longer exist: all but the first `alive[stream]`, and those of streams `in_use`."""
        used = set(in_use)
        mask = (1 << _DEPTH_BITS) - 1
        self._nodes = {
            key: node
            for key, node in self._nodes.items()
            if (stream := node >> _DEPTH_BITS) in used or node & mask <= alive.get(stream, 0)
        }
        self._many_nodes = max(FEW_NODES, 2 * len(self._nodes))


def _hash(parent: bytes, block: array[int]) -> bytes:
    return blake2b(parent + block.tobytes(), digest_size=16).digest()
