"""Which tokens requests share: streams of shared content, and the ways in which a trace can say so.

A stream is an endless row of tokens, known by a number; a request's `Content` is a row of segments of streams (see
`requests.py`). Three things become streams: a named prefix, the history of a session, and a chain of block hashes.
This module knows nothing of KV blocks: rounding down to whole ones is the engine's business.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Hashable, Sequence

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


_DENSE_ROOM = 4  # entries of the table of hashes that may be empty, for each that is not


class BlockChains:
    """Chains of block hashes: an equal chain from the start is equal content.

    Chains are interned in a trie, one node a block. A chain that leaves the trie adds all of its rest at once, so that
    nodes are numbered along runs and only the first node of a run has a parent worth keeping: what is held per block is
    a number to find it by, and a byte. `contents` then makes one stream of every run that nobody leaves or joins
    half-way, and leaves out what only one request has, so that a request keeps a few segments at most, however many
    blocks it has.
    """

    __slots__ = ("_begins", "_block_tokens", "_dense", "_is_first", "_other", "_parent", "_roots", "_sparse")

    def __init__(self) -> None:
        # A hash mostly stands behind one parent only, and then needs no pair to be found by. Most traces number theirs.
        self._dense: array[int] = array("q")  # hash -> the first node that had it, -1: none
        self._sparse: dict[int, int] = {}  # the same for hashes that are too large for that
        self._other: dict[tuple[int, int], int] = {}  # (parent, hash) -> its other nodes
        self._roots: dict[int, int] = {}  # tokens per block -> root: blocks of different sizes are never equal
        self._is_first = bytearray()  # of each node: whether a run begins with it
        self._begins = array("q")  # of each run: its first node, in order
        self._parent: dict[int, int] = {}  # of a run's first node; every other node's is the node before it
        self._block_tokens: dict[int, int] = {}  # of a root

    def add(self, hash_ids: Sequence[int], block_tokens: int) -> int:
        """Intern one request's chain; return its last node, to be given to `contents`."""
        root = self._roots.get(block_tokens)
        if root is None:
            root = self._roots[block_tokens] = self._begin_run(-1)
            self._block_tokens[root] = block_tokens
        dense, sparse, is_first, parents = self._dense, self._sparse, self._is_first, self._parent
        node, known, size = root, 0, len(dense)
        for hash_id in hash_ids:
            child = dense[hash_id] if 0 <= hash_id < size else -1
            if child < 0:
                child = sparse.get(hash_id, -1)
                if child < 0:
                    break
            if (parents[child] if is_first[child] else child - 1) != node:
                child = self._other.get((node, hash_id), -1)
                if child < 0:
                    break
            node = child
            known += 1
        return self._extend(node, hash_ids, known) if known < len(hash_ids) else node

    def contents(self, leaves: Sequence[int], ends: Sequence[int], streams: Streams) -> list[Content]:
        """Return the content of each request, given its last node and the token where its known content ends.

        A piece is a stretch of a run that nobody leaves or joins but at its ends.
        """
        size, parents = len(self._is_first), self._parent
        begins = array("q", sorted({*self._begins, *(node + 1 for node in parents.values() if node + 1 < size)}))
        place = [bisect_right(begins, leaf) - 1 for leaf in leaves]
        before, depth = array("q"), array("q")  # of each piece: the piece in front of it, its last token
        children, below = array("q", bytes(8 * len(begins))), array("q", bytes(8 * len(begins)))
        block_tokens = array("q")
        for piece, (begin, end) in enumerate(zip(begins, (*begins[1:], size), strict=True)):
            parent = parents[begin] if self._is_first[begin] else begin - 1
            if parent < 0:
                before.append(-1)
                block_tokens.append(self._block_tokens[begin])
                depth.append(0)
                continue
            above = piece - 1 if parent == begin - 1 else bisect_right(begins, parent) - 1
            before.append(above)
            children[above] += 1
            block_tokens.append(block_tokens[above])
            depth.append(depth[above] + (end - begin) * block_tokens[above])
        for piece in place:
            below[piece] += 1
        for piece in range(len(begins) - 1, 0, -1):
            if before[piece] >= 0:
                below[before[piece]] += below[piece]
        first, stream, heads = _name_streams(before, depth, children, below, streams)
        return [
            (*heads[run], (stream[run], end)) if (run := first[piece]) in stream else heads[run]
            for piece, end in zip(place, ends, strict=True)
        ]

    def _begin_run(self, parent: int) -> int:
        node = len(self._is_first)
        self._begins.append(node)
        self._parent[node] = parent
        self._is_first.append(1)
        return node

    def _extend(self, parent: int, hash_ids: Sequence[int], known: int) -> int:
        """Add the blocks of `hash_ids` from number `known` on behind `parent`; return the last one's node."""
        node = first = self._begin_run(parent)
        rest = hash_ids[known:] if known else hash_ids
        self._is_first.extend(bytes(len(rest) - 1))
        dense, sparse, other = self._dense, self._sparse, self._other
        largest = max(rest)
        if len(dense) <= largest < _DENSE_ROOM * len(self._is_first) + 2**16:
            dense.extend(array("q", [-1]) * (largest + 1024 - len(dense)))
        small = largest < len(dense) and min(rest) >= 0 and not sparse
        for node, hash_id in enumerate(rest, first):
            if small or 0 <= hash_id < len(dense):
                if dense[hash_id] < 0 and (small or hash_id not in sparse):
                    dense[hash_id] = node
                else:
                    other[parent, hash_id] = node
            elif sparse.setdefault(hash_id, node) != node:
                other[parent, hash_id] = node
            parent = node
        return node


def _name_streams(
    before: array[int], depth: array[int], children: array[int], below: array[int], streams: Streams
) -> tuple[array[int], dict[int, int], dict[int, Content]]:
    """Return the first piece of each piece's stretch, that stretch's stream, and the segments in front of it.

    A piece goes on with the one before it where it is the only one that does; only what two requests or more pass
    through is a stream.
    """
    first = array("q")
    stream: dict[int, int] = {}
    heads: dict[int, Content] = {}
    for piece, above in enumerate(before):
        if above < 0:
            first.append(piece)
            heads[piece] = ()
        elif before[above] >= 0 and children[above] == 1:
            first.append(first[above])
        else:
            first.append(piece)
            run = first[above]
            heads[piece] = (*heads[run], (stream[run], depth[above])) if run in stream else heads[run]
            if below[piece] > 1:
                stream[piece] = streams.new()
    return first, stream, heads
