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
        """Return the number of a stream that is not used yet."""
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


ANY_ROOT = 0  # the last node of a chain without blocks, once there is any chain
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

    def contents(self, leaves: Sequence[int], prompt_tokens: Sequence[int], streams: Streams) -> list[Content]:
        """Return the content of each request, given its last node and its tokens, which may fill that node in part.

        A piece is a stretch of a run that nobody leaves or joins but at its ends. It goes on with the one before it
        where it is the only one that does; only what two requests or more pass through is a stream. Streams are named
        in order of their first request.
        """
        size, parents, is_first = len(self._is_first), self._parent, self._is_first
        left = {node + 1 for node in parents.values() if node + 1 < size and not is_first[node + 1]}
        begins = sorted([*self._begins, *left])
        place = [bisect_right(begins, leaf) - 1 for leaf in leaves]
        before: list[int] = []  # of each piece: the piece in front of it
        depth: list[int] = []  # its last token
        block_tokens: list[int] = []
        children, below = [0] * len(begins), [0] * len(begins)
        begins.append(size)
        for piece, begin in enumerate(begins[:-1]):
            parent = parents[begin] if is_first[begin] else begin - 1
            if parent < 0:
                before.append(-1)
                block_tokens.append(self._block_tokens[begin])
                depth.append(0)
                continue
            above = piece - 1 if parent == begin - 1 else bisect_right(begins, parent) - 1
            before.append(above)
            children[above] += 1
            block_tokens.append(block_tokens[above])
            depth.append(depth[above] + (begins[piece + 1] - begin) * block_tokens[above])
        for piece in place:
            below[piece] += 1
        for piece in range(len(before) - 1, 0, -1):
            if before[piece] >= 0:
                below[before[piece]] += below[piece]
        first: list[int] = []  # of each piece: the first of its stretch
        for piece, above in enumerate(before):
            first.append(first[above] if above >= 0 and before[above] >= 0 and children[above] == 1 else piece)
        heads = _Heads(before, first, depth, below, streams)
        result = []
        for leaf, last, end in zip(leaves, place, prompt_tokens, strict=True):
            piece = first[last]
            content = heads.segments[piece] if piece in heads.segments else heads.add(piece)
            if piece in heads.stream:
                known = depth[last] - (begins[last + 1] - 1 - leaf) * block_tokens[last]
                content = (*content, (heads.stream[piece], min(known, end)))
            result.append(content)
        return result

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


class _Heads:
    """The segments in front of each stretch of a trie's pieces, and the stream of each that two requests pass through.

    A stretch is known by its first piece. Both are made when a request asks, so that streams are numbered in that
    order.
    """

    __slots__ = ("_before", "_below", "_depth", "_first", "_streams", "segments", "stream")

    def __init__(
        self, before: list[int], first: list[int], depth: list[int], below: list[int], streams: Streams
    ) -> None:
        self._before, self._first, self._depth, self._below = before, first, depth, below
        self._streams = streams
        self.segments: dict[int, Content] = {}
        self.stream: dict[int, int] = {}

    def add(self, piece: int) -> Content:
        """Return the segments in front of the stretch that begins with `piece`."""
        before, first, segments, stream = self._before, self._first, self.segments, self.stream
        missing = []
        while piece not in segments and before[piece] >= 0:
            missing.append(piece)
            piece = first[before[piece]]
        content = segments.setdefault(piece, ())
        for piece in reversed(missing):
            above = before[piece]
            run = first[above]
            content = (*segments[run], (stream[run], self._depth[above])) if run in stream else segments[run]
            segments[piece] = content
            if self._below[piece] > 1:
                stream[piece] = self._streams.new()
        return content
