"""Which tokens requests share: streams of shared content, and the ways in which a trace can say so.

A stream is an endless row of tokens, known by a number; a request's `Content` is a row of segments of streams (see
`requests.py`). Three things become streams: a named prefix, the history of a session, and a chain of block hashes.
This module knows nothing of KV blocks: rounding down to whole ones is the engine's business.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence

from servesim.workload.requests import OPEN_END, Content


class Streams:
    """Hands out stream numbers; the same name gives the same stream."""

    __slots__ = ("_count", "_named")

    def __init__(self) -> None:
        self._named: dict[Hashable, int] = {}
        self._count = 0

    def new(self) -> int:
        """Return the number of a stream that nobody has yet."""
        self._count += 1
        return self._count - 1

    def named(self, name: Hashable) -> int:
        """Return the number of the stream called `name`."""
        number = self._named.get(name)
        if number is None:
            number = self._named[name] = self.new()
        return number


def cut(content: Content, end: int) -> Content:
    """Return what `content` says of the first `end` tokens."""
    kept: list[tuple[int, int]] = []
    for stream, segment_end in content:
        if segment_end >= end:
            kept.append((stream, end))
            break
        kept.append((stream, segment_end))
    return tuple(kept) if end > 0 else ()


def follow(content: Content, history_tokens: int, prompt_tokens: int, streams: Streams) -> tuple[Content, bool]:
    """Return the content of a session's next turn, and whether its prompt cuts the session's history short.

    `content` and `history_tokens` (prompt and output) are those of the turn before, whose last segment is open. A
    prompt that holds the whole history goes on in the same stream. A shorter one holds the head of the history; its
    output is another text than the history's, so it branches off into a stream of its own.
    """
    if prompt_tokens >= history_tokens:
        return content, False
    return (*cut(content, prompt_tokens), (streams.new(), OPEN_END)), True


def renumber(contents: list[Content]) -> list[Content]:
    """Return the same sharing with streams numbered from 0 in order of first appearance, so that equal is `==`."""
    numbers: dict[int, int] = {}
    renumbered: dict[Content, Content] = {(): ()}
    result = []
    for content in contents:
        done = renumbered.get(content)
        if done is None:
            done = tuple((numbers.setdefault(stream, len(numbers)), end) for stream, end in content)
            renumbered[content] = done
        result.append(done)
    return result


class BlockChains:
    """Chains of block hashes: an equal chain from the start is equal content.

    Chains are interned in a trie, one node a block. `contents` then makes one stream of every run of nodes that nobody
    leaves or joins half-way, and leaves out what only one request has, so that a request keeps a few segments at most,
    however many blocks it has.
    """

    __slots__ = ("_children", "_depth", "_first", "_other", "_parent", "_roots", "_users")

    def __init__(self) -> None:
        # A hash mostly stands behind one parent only, and then needs no pair to be found by.
        self._first: dict[int, int] = {}  # hash -> the first node that had it
        self._other: dict[tuple[int, int], int] = {}  # (parent, hash) -> its other nodes
        self._roots: dict[int, int] = {}  # tokens per block -> root: blocks of different sizes are never equal
        self._parent = array("q")
        self._depth = array("q")  # tokens from the start to the end of the node's block
        self._children = array("q")
        self._users = array("q")  # requests whose chain ends here

    def add(self, hash_ids: Iterable[int], block_tokens: int) -> int:
        """Intern one request's chain; return its last node, to be given to `contents`."""
        root = self._roots.get(block_tokens)
        if root is None:
            root = self._roots[block_tokens] = len(self._parent)
            self._new(-1, 0)
        first, parents, node = self._first, self._parent, root
        for hash_id in hash_ids:
            child = first.setdefault(hash_id, len(parents))
            if child == len(parents):
                self._new(node, block_tokens)
            elif parents[child] != node:
                child = self._other.setdefault((node, hash_id), len(parents))
                if child == len(parents):
                    self._new(node, block_tokens)
            node = child
        self._users[node] += 1
        return node

    def contents(self, leaves: Sequence[int], ends: Sequence[int], streams: Streams) -> list[Content]:
        """Return the content of each request, given its last node and the token where its known content ends."""
        parent, depth = self._parent, self._depth
        below = array("q", self._users)  # requests whose chain passes through the node
        for node in range(len(parent) - 1, 0, -1):
            if parent[node] >= 0:
                below[parent[node]] += below[node]
        run = array("q")  # the first node of each node's run
        stream: dict[int, int] = {}  # of a run, if two requests or more pass through it
        above: dict[int, Content] = {}  # segments in front of a run
        for node, before in enumerate(parent):
            if before < 0:
                run.append(node)
                above[node] = ()
            elif parent[before] >= 0 and self._children[before] == 1:
                run.append(run[before])
            else:
                run.append(node)
                first = run[before]
                above[node] = (*above[first], (stream[first], depth[before])) if first in stream else above[first]
                if below[node] > 1:
                    stream[node] = streams.new()
        result: list[Content] = []
        for leaf, end in zip(leaves, ends, strict=True):
            first = run[leaf]
            result.append((*above[first], (stream[first], end)) if first in stream else above[first])
        return result

    def _new(self, parent: int, block_tokens: int) -> None:
        self._parent.append(parent)
        self._depth.append(block_tokens if parent < 0 else self._depth[parent] + block_tokens)
        self._children.append(0)
        self._users.append(0)
        if parent >= 0:
            self._children[parent] += 1
